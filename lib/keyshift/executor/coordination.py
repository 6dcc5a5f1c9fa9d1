"""ZooKeeper, through kazoo: what the participants of a job tell each other.

Below the job's root: ``assignment`` and ``step`` and ``savepoint`` (published by the coordinator, watched), ``slots/N``
(ephemeral: where slot N listens), ``handover/N`` (where the state of slot N stayed at the end of a batch),
``acks/VERSION/PHASE-N`` and ``savepoints/ID/…`` (acknowledgements, with their measurements).
"""

import contextlib
import json
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from keyshift.errors import ServiceUnavailable


class Coordination:
    """One session, seen from the root of one job."""

    def __init__(self, hosts: str, root: str) -> None:
        self.client = KazooClient(hosts=hosts, timeout=10.0)
        self.root = root
        try:
            self.client.start(timeout=10)
        except KazooTimeoutError as error:
            self.client.close()
            raise ServiceUnavailable(f"ZooKeeper at {hosts} did not answer within 10 s: is it running?") from error

    def publish(self, path: str, value: Any) -> None:
        """Create or overwrite a node."""
        data = json.dumps(value).encode()
        try:
            self.client.set(f"{self.root}/{path}", data)
        except NoNodeError:
            self.client.create(f"{self.root}/{path}", data, makepath=True)

    def acknowledge(self, path: str, value: Any) -> None:
        """Create a node that others wait for, without blocking; the first one counts."""
        self.client.create_async(f"{self.root}/{path}", json.dumps(value).encode(), makepath=True)

    def read(self, path: str) -> Any | None:
        """The value of a node, or None if it is not there."""
        try:
            return json.loads(self.client.get(f"{self.root}/{path}")[0])
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
            return self.client.get_children(f"{self.root}/{path}")  # type: ignore[no-any-return]
        except NoNodeError:
            return []

    def register(self, path: str, value: Any) -> None:
        """An ephemeral node: it goes when this session does. Takes over what an earlier holder left."""
        data = json.dumps(value).encode()
        for _ in range(2):
            try:
                self.client.create(f"{self.root}/{path}", data, ephemeral=True, makepath=True)
                return
            except NodeExistsError:
                self.withdraw(path)
        raise ServiceUnavailable(f"{self.root}/{path} is held by somebody else")

    def withdraw(self, path: str) -> None:
        """Delete a node, if it is there."""
        with contextlib.suppress(NoNodeError):
            self.client.delete(f"{self.root}/{path}", recursive=True)

    def watch(self, path: str, call: Callable[[Any], bool | None]) -> None:
        """Call with the value now (if any) and at every change, from kazoo's thread, until it returns False."""

        def changed(data: bytes | None, _stat: Any) -> bool | None:
            return call(json.loads(data)) if data else None

        self.client.DataWatch(f"{self.root}/{path}", changed)

    def watch_children(self, path: str, call: Callable[[list[str]], bool | None]) -> None:
        """Call with the names below a node, now and at every change, until it returns False. Creates the node."""
        self.client.ensure_path(f"{self.root}/{path}")
        self.client.ChildrenWatch(f"{self.root}/{path}", call)

    def close(self) -> None:
        """End the session; ephemeral nodes go at once."""
        with contextlib.suppress(KazooException):  # closing what is already broken
            self.client.stop()
            self.client.close()
