"""ZooKeeper in memory, for tests: participants with the methods of ``Coordination``, and nothing between them.

``tests/contract`` holds both to the same promises. Watches are called by whoever changes something, when the change is
done and without a lock. What a participant encodes, another one decodes, as with the real service.
"""

import contextlib
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keyshift.model.errors import Deposed, JobOver, NotThere, ServiceUnavailable
from keyshift.wire.epoch import Epoch
from keyshift.wire.nodes import Folder, Node, of_job

T = TypeVar("T")

LOOK_S = 0.01  # how often whoever wants to lead looks whether nobody does


@dataclass
class Stored:
    """What is at one path."""

    data: bytes
    owner: "MemorySession | None"  # of an ephemeral node
    number: int  # another one for each value


@dataclass(eq=False)
class Watch:
    """``look()`` gives what tells one value from another, and the call that says it. A path with a slash at its end
    stands for the names below it.
    """

    session: "MemorySession"
    path: str
    look: Callable[[], tuple[Any, Callable[[], bool | None]]]
    seen: Any = "nothing yet"
    over: bool = False
    turn: threading.RLock = field(default_factory=threading.RLock)

    def tell(self) -> None:
        """Say what is there now, if that was not said last."""
        with self.turn:
            with self.session.memory.lock:
                seen, say = self.look()
            if not (self.over or self.session.over) and seen != self.seen:
                self.seen = seen
                if say() is False:
                    self.over = True


class Memory:
    """The service: nodes by their paths, and who takes part. Everything here is used under ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, Stored] = {}
        self.sessions: list[MemorySession] = []
        self.leaders: dict[str, MemorySession] = {}  # by root
        self.terms: dict[str, int] = {}  # by root: how often somebody was elected
        self.epochs: dict[str, int] = {}  # by job: how often somebody has claimed it; of those that are not over
        self.untold: list[Watch] = []  # that are to be called when the lock is free
        self._numbers = 0

    def put(self, path: str, data: bytes, owner: "MemorySession | None" = None, over: bool = True) -> None:
        """Set a node; without ``over`` only if it is not there."""
        new = path not in self.nodes
        if new or over:
            self._numbers += 1
            self.nodes[path] = Stored(data, owner, self._numbers)
            self._changed(path, new)

    def remove(self, path: str) -> None:
        """Delete a node, if it is there."""
        if self.nodes.pop(path, None) is not None:
            self._changed(path, True)

    def below(self, path: str) -> list[str]:
        """Names below a node."""
        return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(f"{path}/")})

    def forget(self, session: "MemorySession") -> None:
        """Remove what a session had registered; it leads no more."""
        for path in [path for path, node in self.nodes.items() if node.owner is session]:
            self.remove(path)
        for root in [root for root, leader in self.leaders.items() if leader is session]:
            del self.leaders[root]

    def require_root(self, root: str) -> None:
        """Refuse a ``root`` that nobody has made: ServiceUnavailable."""
        if root not in self.nodes:
            raise ServiceUnavailable(f"{root} is not there")

    def require_driver(self, epoch: Epoch | None) -> None:
        """Refuse the epoch of a driver whose job is another's, or over: Deposed."""
        if epoch is not None and self.epochs.get(epoch.job) != epoch.number:
            raise Deposed(f"job {epoch.job} is another's now")

    def _changed(self, path: str, names: bool) -> None:
        paths = (path, path.rsplit("/", 1)[0] + "/") if names else (path,)
        for session in self.sessions:
            for watch in session.watches:
                if watch.path in paths:
                    session._changed(watch)


class MemorySession:
    """The session of one participant, as far as it is not about nodes."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.over = ""  # why there is no session any more
        self.watches: list[Watch] = []
        with memory.lock:
            memory.sessions.append(self)

    def _changed(self, watch: Watch) -> None:
        """Note that something has changed that is watched here; under the lock."""
        self.memory.untold.append(watch)

    def check(self) -> None:
        """Raises ServiceUnavailable if the session is over."""
        self._require()

    def catch_up(self) -> None:
        """Raise ServiceUnavailable if the session is over, as the real one does: nobody is behind here."""
        with self._talking():
            pass

    def epoch_of(self, job: str) -> Epoch | None:  # noqa: D102
        with self._talking():
            return Epoch(job, self.memory.epochs[job]) if job in self.memory.epochs else None

    def _require(self) -> None:
        if self.over:
            raise ServiceUnavailable(f"the session with ZooKeeper {self.over}")

    def close(self, prepare_next: bool = False) -> None:
        """End the session; what was registered goes at once."""
        with self._talking(needed=False):
            if not self.over:
                self._end("is closed")

    def lose(self, why: str = "was lost") -> None:
        """End the session as a service does that is away for too long."""
        with self._talking(needed=False):
            if not self.over:
                self._end(why)

    def _end(self, why: str) -> None:
        self.over = why
        self.memory.forget(self)
        if self in self.memory.sessions:
            self.memory.sessions.remove(self)

    @contextlib.contextmanager
    def _talking(self, needed: bool = True) -> Iterator[None]:
        """Make one request inside; what is watched is told behind that."""
        with self.memory.lock:
            if needed:
                self._require()
            yield
        while True:
            with self.memory.lock:
                if not self.memory.untold:
                    return
                watch = self.memory.untold.pop(0)
            watch.session._look(watch)

    def _look(self, watch: Watch) -> None:
        """Tell a watch what is there, outside the lock."""
        watch.tell()


class MemoryCoordination(MemorySession):
    """One participant, seen from the root of one job; see ``Coordination`` for methods without a word here."""

    def __init__(self, memory: Memory, root: str = "/job", epoch: Epoch | None = None) -> None:
        self.root, self._epoch = root, epoch
        self._registered: dict[str, bytes] = {}
        self._term: int | None = None  # since it was elected
        super().__init__(memory)

    # -- writing ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:  # noqa: D102
        with self._talking():
            self.memory.require_driver(self._epoch)
            self.memory.put(self.root, b"", over=False)

    def publish(self, node: Node[T], value: T) -> None:  # noqa: D102
        with self._talking():
            self.memory.require_driver(self._epoch)
            self.memory.require_root(self.root)
            if self._term not in (None, self.memory.terms.get(self.root)):
                raise ServiceUnavailable(f"{node.path} is not written: another coordinator leads {self.root} now")
            self.memory.put(self._at(node), node.encode(value))

    def acknowledge(self, node: Node[T], value: T) -> None:  # noqa: D102
        with self._talking():
            if self.root in self.memory.nodes:
                self.memory.put(self._at(node), node.encode(value), over=False)
            else:
                self._end("was refused: there is no root")

    def register(self, node: Node[T], value: T) -> None:  # noqa: D102
        path, data = self._at(node), node.encode(value)
        with self._talking():
            self.memory.require_root(self.root)
            self.memory.remove(path)
            self._registered[path] = data
            self.memory.put(path, data, self)

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:  # noqa: D102
        path = self._at(node)
        with self._talking():
            self.memory.require_driver(self._epoch)
            self._registered.pop(path, None)
            for each in [each for each in self.memory.nodes if each == path or each.startswith(f"{path}/")]:
                self.memory.remove(each)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, node: Node[T]) -> T | None:  # noqa: D102
        with self._talking():
            there = self.memory.nodes.get(self._at(node))
            return None if there is None else node.decode(there.data)

    def require(self, node: Node[T]) -> T:  # noqa: D102
        if (value := self.read(node)) is None:
            raise ServiceUnavailable(f"{self._at(node)} is missing")
        return value

    def children(self, folder: Folder[Any]) -> list[str]:  # noqa: D102
        with self._talking():
            return self.memory.below(self._at(folder))

    def read_below(self, folder: Folder[T]) -> dict[str, T]:  # noqa: D102
        found = {name: self.read(folder[name]) for name in self.children(folder)}
        return {name: value for name, value in found.items() if value is not None}  # others have gone meanwhile

    def watch(self, node: Node[T], call: Callable[[T], bool | None]) -> None:  # noqa: D102
        def look() -> tuple[Any, Callable[[], bool | None]]:
            there = self.memory.nodes.get(self._at(node))
            return (None, lambda: None) if there is None else (there.number, lambda: call(node.decode(there.data)))

        self._watch(Watch(self, self._at(node), look))

    def watch_children(  # noqa: D102
        self, folder: Folder[Any], call: Callable[[list[str]], None]
    ) -> Callable[[], None]:
        def look() -> tuple[Any, Callable[[], bool | None]]:
            names = self.memory.below(self._at(folder))
            return names, lambda: call(names)

        with self._talking():
            self.memory.require_root(self.root)
        watch = Watch(self, f"{self._at(folder)}/", look)
        self._watch(watch)

        def end() -> None:
            watch.over = True
            with self.memory.lock:
                self.watches = [each for each in self.watches if each is not watch]

        return end

    def _watch(self, watch: Watch) -> None:
        with self._talking():
            self.watches.append(watch)
        self._look(watch)

    # -- leading and driving ------------------------------------------------------------------------------------------

    def lead(self, name: str, act: Callable[[], None]) -> None:  # noqa: D102
        while not self._elected():
            time.sleep(LOOK_S)
        try:
            act()
        finally:
            with self.memory.lock:
                if self.memory.leaders.get(self.root) is self:
                    del self.memory.leaders[self.root]

    def _elected(self) -> bool:
        with self._talking():
            self.memory.require_driver(self._epoch)
            if self.memory.leaders.setdefault(self.root, self) is not self:
                return False
            if self._term is None:
                self._term = self.memory.terms[self.root] = self.memory.terms.get(self.root, 0) + 1
            return True

    def claim(self, job: str, first: bool = False) -> Epoch:  # noqa: D102
        with self._talking():
            if not first and job not in self.memory.epochs:
                if of_job(job) in self.memory.nodes:
                    raise JobOver(f"job {job} is over")
                raise NotThere(f"job {job} is over, or never was")
            self.memory.put(of_job(job), b"", over=False)
            self.memory.epochs[job] = self.memory.epochs.get(job, 0) + 1
            return Epoch(job, self.memory.epochs[job])

    def require_epoch(self) -> None:  # noqa: D102
        with self._talking():
            self.memory.require_driver(self._epoch)

    def end_epoch(self) -> None:  # noqa: D102
        with self._talking():
            if self._epoch is not None and self._epoch.job in self.memory.epochs:
                self.memory.require_driver(self._epoch)
                del self.memory.epochs[self._epoch.job]

    def _at(self, node: Node[Any] | Folder[Any]) -> str:
        return posixpath.join(self.root, node.path).rstrip("/")
