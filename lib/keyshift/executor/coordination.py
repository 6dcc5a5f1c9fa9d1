"""ZooKeeper, through kazoo: what the participants of a job tell each other.

Below the job's root: ``assignment``, ``steps`` and ``savepoint`` (published by the coordinator, watched), ``slots/N``
(ephemeral: where slot N listens), ``handover/N`` (where the state of slot N stayed at the end of a batch),
``acks/VERSION/PHASE-N`` and ``savepoints/ID/…`` (acknowledgements, with their measurements).
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError

from keyshift.errors import ServiceUnavailable
from keyshift.keys import Step

GIVE_UP_S = 10.0  # without a connection; kazoo alone would keep every caller waiting for ever


def steps_to_json(version: int, steps: Sequence[tuple[int, Step]], rest: int) -> dict[str, Any]:
    """What ``steps`` holds: see ``protocol.coordinator.PublishSteps``; ``rest`` is how many of the plan come last."""
    return {"version": version, "steps": [{"version": of} | step.to_json() for of, step in steps], "rest": rest}


def steps_of(raw: dict[str, Any]) -> tuple[int, list[tuple[int, Step]]]:
    """The version and the steps of ``steps_to_json``."""
    return raw["version"], [(step["version"], Step.from_json(step)) for step in raw["steps"]]


class Coordination:
    """One session, seen from the root of one job.

    Every method raises ServiceUnavailable if ZooKeeper is not there, or was lost for ``GIVE_UP_S``.
    """

    def __init__(self, hosts: str, root: str) -> None:
        self._client = KazooClient(hosts=hosts, timeout=10.0)
        self._hosts = hosts
        self._timer: threading.Timer | None = None
        self.root = root
        try:
            self._client.start(timeout=10)
        except KazooTimeoutError as error:
            self._client.close()
            raise ServiceUnavailable(f"ZooKeeper at {hosts} did not answer within 10 s: is it running?") from error
        self._client.add_listener(self._connection_changed)

    def _connection_changed(self, state: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state == KazooState.SUSPENDED:
            self._timer = threading.Timer(GIVE_UP_S, self._client.stop)  # fails whatever waits for an answer
            self._timer.daemon = True
            self._timer.start()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except NoNodeError:
            raise
        except KazooException as error:
            raise ServiceUnavailable(
                f"ZooKeeper at {self._hosts} was lost ({type(error).__name__}): see `keyshift status`"
            ) from error

    def publish(self, path: str, value: Any) -> None:
        """Create or overwrite a node."""
        data = json.dumps(value).encode()
        with self._talking():
            try:
                self._client.set(f"{self.root}/{path}", data)
            except NoNodeError:
                self._client.create(f"{self.root}/{path}", data, makepath=True)

    def acknowledge(self, path: str, value: Any) -> None:
        """Create a node that others wait for, without blocking; the first one counts."""
        with self._talking():
            self._client.create_async(f"{self.root}/{path}", json.dumps(value).encode(), makepath=True)

    def read(self, path: str) -> Any | None:
        """The value of a node, or None if it is not there."""
        try:
            with self._talking():
                return json.loads(self._client.get(f"{self.root}/{path}")[0])
        except NoNodeError:
            return None

    def require(self, path: str) -> Any:
        """The value of a node that must be there. Raises ServiceUnavailable if it is not."""
        value = self.read(path)
        if value is None:
            raise ServiceUnavailable(f"{self.root}/{path} is missing in ZooKeeper: was the job's folder removed?")
        return value

    def children(self, path: str) -> list[str]:
        """Names below a node; empty if it is not there."""
        try:
            with self._talking():
                return self._client.get_children(f"{self.root}/{path}".rstrip("/"))  # type: ignore[no-any-return]
        except NoNodeError:
            return []

    def read_below(self, path: str) -> dict[str, Any]:
        """The values of all nodes below one, by name."""
        names = self.children(path)
        with self._talking():
            answers = [self._client.get_async(f"{self.root}/{path}/{name}") for name in names]  # all under way at once
            return {name: json.loads(answer.get()[0]) for name, answer in zip(names, answers, strict=True)}

    def register(self, path: str, value: Any) -> None:
        """An ephemeral node: it goes when this session does. Takes over what an earlier holder left."""
        node = f"{self.root}/{path}"
        with self._talking():
            while True:
                try:
                    self._client.create(node, json.dumps(value).encode(), ephemeral=True, makepath=True)
                    return
                except NodeExistsError:
                    self.withdraw(path)

    def withdraw(self, path: str) -> None:
        """Delete a node and all below it, if it is there."""
        with contextlib.suppress(NoNodeError), self._talking():
            while True:  # somebody may write below it meanwhile
                try:
                    self._client.delete(f"{self.root}/{path}".rstrip("/"))
                    return
                except NotEmptyError:
                    for name in self.children(path):
                        self.withdraw(f"{path}/{name}".lstrip("/"))

    def watch(
        self, path: str, call: Callable[[Any], bool | None], gone: Callable[[], bool | None] = lambda: None
    ) -> None:
        """Call with the value now (if any) and at every change, from kazoo's thread, until it returns False.

        ``gone`` is called instead while there is no value.
        """

        def changed(data: bytes | None, _stat: Any) -> bool | None:
            return call(json.loads(data)) if data else gone()

        with self._talking():
            self._client.DataWatch(f"{self.root}/{path}", changed)

    def watch_children(self, path: str, call: Callable[[list[str]], bool | None]) -> None:
        """Call with the names below a node, now and at every change, until it returns False. Creates the node."""
        with self._talking():
            self._client.ensure_path(f"{self.root}/{path}")
            self._client.ChildrenWatch(f"{self.root}/{path}", call)

    def lead(self, name: str, act: Callable[[], None]) -> None:
        """Wait to be elected among those who want to lead the job, act, and step back."""
        with self._talking():
            self._client.Election(f"{self.root}/election", name).run(act)

    def close(self) -> None:
        """End the session; ephemeral nodes go at once."""
        with contextlib.suppress(KazooException):  # closing what is already broken
            self._client.stop()
            self._client.close()
