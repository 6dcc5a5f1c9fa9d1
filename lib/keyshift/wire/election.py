"""Who leads the replicas of one slot: an election in ZooKeeper, in a session of its own, which may be short.

Whoever stands is in a queue, and the first one leads. A *term* begins when somebody comes to lead, and has a number
that grows. Nobody is told that a term is over: a leader whose session has ended, or who was paused, knows nothing of
it. So whoever obeys a leader has to tell terms apart (``ordering.kazoo``), and a leader goes on until it reads of a
later term, also while ZooKeeper is away.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.serialization import Connect, int_struct

from keyshift.model.errors import BadInput, ServiceUnavailable, service_errors
from keyshift.model.keys import SlotId
from keyshift.wire.client import ANSWER_S, begin, connected, end
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import Folder, of_job, of_order
from keyshift.wire.tree import GuardedWrites, Tree

SIGNS = 4  # of life in each session: kazoo's own come up to 0.4 s late, whatever the session is
AGAIN_S = 0.1  # until somebody whom ZooKeeper has not heard stands again
_DIGITS = 10  # that ZooKeeper puts behind the name of a candidate


class Election:
    """One candidate to lead the replicas of a slot (``stage_and_slot``), below the root of ``job``, which is there.

    ``resign``, ``withdraw`` and ``close`` are for any thread, and may be called twice; each other method has one of its
    own.
    """

    def __init__(
        self,
        hosts: str,
        secret: str,
        job: str,
        stage_and_slot: tuple[str, SlotId],
        replica: int,
        session_s: float,
    ) -> None:
        self._root, self._name = _root(job, *stage_and_slot), f"{replica}-{secrets.token_hex(4)}-"
        self._client, _ = begin(hosts, secret, session_s)
        self._sign_s = session_s / SIGNS
        self._guarded = GuardedWrites(self._client, self._root, None)
        self._tree = Tree(self._client, of_job(job), self._guarded)
        self._over, self._closed, self._changed = threading.Event(), threading.Event(), threading.Event()
        self._stands = True  # in the queue, until it resigns or its session ends
        self._client.add_listener(self._session_changed)

    def stand(self, elected: Callable[[int], None]) -> None:
        """Stand until ``withdraw``; ``elected`` is told each term. Who resigned or lost its session stands again."""
        while not self._over.is_set():
            self._stands = True
            try:
                self._stand(elected)
            except KazooException:  # it was away, or the session has ended meanwhile
                self._over.wait(AGAIN_S)

    def keep(self) -> None:
        """Give signs of life until ``close``."""
        while not self._closed.wait(self._sign_s):
            with contextlib.suppress(KazooException):
                self._client.exists_async(self._root)

    def resign(self) -> None:
        """Lead no more: another one is elected, or this one again, as the last in the queue."""
        self._stands = False
        self._changed.set()

    def withdraw(self) -> None:
        """Neither stand nor lead; who is next hears of it at once. Does not wait for that."""
        self._over.set()
        self._changed.set()

    def close(self) -> None:
        """End the session, too."""
        self._closed.set()
        self.withdraw()
        self._client.remove_listener(self._session_changed)
        end(self._client)

    def _heard(self, _event: object) -> None:
        self._changed.set()

    def _session_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self.resign()

    def _stand(self, elected: Callable[[int], None]) -> None:
        queue = _queue(self._root)
        for node in (f"{self._root}/leader", queue):
            self._tree.ensure(node)
        self._leave(queue)  # whatever an answer that was lost has left there
        mine = self._client.create(f"{queue}/{self._name}", ephemeral=True, sequence=True).rsplit("/", 1)[1]
        leads = False
        try:
            while True:
                self._changed.clear()
                if self._over.is_set() or not self._stands:
                    return
                names = _queued(self._client.get_children(queue))
                if mine not in names:
                    return
                if ahead := names.index(mine):
                    if not self._client.exists(f"{queue}/{names[ahead - 1]}", watch=self._heard):
                        continue
                elif not leads:
                    leads = True
                    elected(self._guarded.begin_term(f"{queue}/{mine}", self._name))
                self._changed.wait()
        finally:
            if not self._closed.is_set():  # then the session's end does it
                self._leave(queue)

    def _leave(self, queue: str) -> None:
        for name in self._client.get_children(queue):
            if name.startswith(self._name):
                with contextlib.suppress(NoNodeError):
                    self._client.delete(f"{queue}/{name}")


def candidates(participant: Coordination, job: str, stage: str, slot: SlotId) -> list[int]:
    """The replicas of ``job`` that stand for a slot now, the one that leads first; also that of a session which will
    not last. Wherever the ``participant`` is. Raises ServiceUnavailable.
    """
    queue: Folder[Any] = Folder(_queue(_root(job, stage, slot)), {})
    return [int(name.split("-")[0]) for name in _queued(participant.children(queue))]


def _root(job: str, stage: str, slot: SlotId) -> str:
    return f"{of_job(job)}/{of_order(stage, slot)}"


def _queue(root: str) -> str:
    return f"{root}/election"


def _queued(names: Iterable[str]) -> list[str]:
    """Candidates in the order in which they have come."""
    return sorted(names, key=lambda name: name[-_DIGITS:])


def require_session(hosts: str, session_ms: int) -> None:
    """Refuse sessions that are too short for ZooKeeper: BadInput. Raises ServiceUnavailable if it does not answer."""
    granted = _granted_ms(hosts, session_ms)
    if granted > session_ms:
        raise BadInput(
            f"session_ms = {session_ms}: ZooKeeper at {hosts} has no session below {granted} ms, two of its ticks; "
            f"raise session_ms to {granted} or lower its tickTime: if it is embedded, by session_ms of the profile, "
            "and start it anew"
        )


def _granted_ms(hosts: str, wanted_ms: int) -> int:
    """Ask how long a session is for whoever asks for so many milliseconds."""
    asked = Connect(0, 0, wanted_ms, 0, b"\0" * 16, False).serialize()
    with (
        service_errors(OSError, lambda error: f"ZooKeeper at {hosts}: {error}; see `keyshift status`"),
        connected(hosts.split("/")[0], ANSWER_S) as link,
        link.makefile("rb") as answers,
    ):
        link.sendall(int_struct.pack(len(asked)) + asked)
        size = answers.read(int_struct.size)
        answer = answers.read(*int_struct.unpack(size)) if len(size) == int_struct.size else b""
    if not answer:
        raise ServiceUnavailable(f"ZooKeeper at {hosts} has closed the connection: see its log")
    said, _ = Connect.deserialize(answer, 0)
    return int(said.time_out)
