"""ZooKeeper in memory: sessions with the methods of ``wire.coordination.Coordination``, and how it may treat them.

Watches come late, from a thread of their session, and miss values that were there for a short time. Acknowledgements
are under way for a while; what a session says later never arrives before them. A session may *expire*: what it had
registered is gone and it hears nothing, until after a while it has a successor that registers and watches anew. What
is asked or said meanwhile waits for that, as the real one repeats it. A session that is *lost* comes back no more, and
all that is asked of it raises. That of a driver publishes and withdraws nothing when another one has claimed its job.
"""

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keyshift.model.errors import Deposed, NotThere, ServiceUnavailable
from keyshift.wire.epoch import Epoch
from keyshift.wire.nodes import Folder, Node

T = TypeVar("T")

EXPIRED_S = 0.3  # at the most, until an expired session has its successor


@dataclass
class _Node:
    data: bytes
    owner: "Session | None" = None  # of an ephemeral one
    made: int = 0  # a number of its own for each value


@dataclass
class _Watch:
    path: str
    look: Callable[[], tuple[Any, Callable[[], bool | None]]]  # gives what tells values apart, and how to say it
    turn: threading.RLock = field(default_factory=threading.RLock)
    seen: Any = None
    pending: bool = False  # it has been told that something changed, and has not looked yet
    over: bool = False


class Ensemble:
    """The nodes, and all sessions that are there. ``delay_s``: of watches and acknowledgements, at the most."""

    def __init__(self, seed: int, delay_s: float) -> None:
        self.rng, self.delay_s = random.Random(f"zookeeper {seed}"), delay_s
        self.lock = threading.RLock()
        self.nodes: dict[str, _Node] = {}
        self.sessions: list[Session] = []
        self.leaders: dict[str, Session] = {}
        self.terms: dict[str, int] = {}  # by root: how often somebody was elected
        self.epochs: dict[str, int] = {}  # by job: how often somebody has claimed it; of those that are not over
        self._made = 0

    def put(self, path: str, data: bytes, owner: "Session | None" = None, over: bool = True) -> None:
        """Set a node; without ``over`` only if it is not there."""
        with self.lock:
            new = path not in self.nodes
            if new or over:
                self._made += 1
                self.nodes[path] = _Node(data, owner, self._made)
                self._changed(path, path.rsplit("/", 1)[0] + "/" if new else "")

    def remove(self, path: str) -> None:
        """Delete a node, if it is there."""
        with self.lock:
            if self.nodes.pop(path, None) is not None:
                self._changed(path, path.rsplit("/", 1)[0] + "/")

    def below(self, path: str) -> list[str]:
        """Names below a node."""
        with self.lock:
            return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(f"{path}/")})

    def forget(self, session: "Session") -> None:
        """What a session had registered goes with it."""
        with self.lock:
            for path in [path for path, node in self.nodes.items() if node.owner is session]:
                self.remove(path)

    def _changed(self, *paths: str) -> None:
        for session in self.sessions:
            session.poke(paths)


class Session:
    """One session, seen from the root of one job; see ``Coordination`` for the methods without a word here."""

    def __init__(self, ensemble: Ensemble, root: str, epoch: Epoch | None = None) -> None:
        self.root, self._ensemble, self._epoch = root, ensemble, epoch
        self._rng = random.Random(ensemble.rng.random())
        self._there = threading.Event()  # set while there is a session, and when there will never be one again
        self._there.set()
        self._over = ""  # why there is none any more
        self._events: queue.Queue[_Watch | None] = queue.Queue()
        self._acks: list[tuple[str, bytes]] = []  # under way
        self._watches: list[_Watch] = []
        self._registered: dict[str, bytes] = {}
        self._term: int | None = None  # since it was elected
        with ensemble.lock:
            ensemble.sessions.append(self)
        threading.Thread(target=self._hear, name="zookeeper-events", daemon=True).start()

    # -- what may happen to it -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The session ends, and has a successor after a while."""
        with self._ensemble.lock:
            if self._over or not self._there.is_set():
                return
            self._there.clear()
            self._ensemble.forget(self)
            self._step_back()
        successor = threading.Timer(self._rng.random() * EXPIRED_S, self._succeed)
        successor.daemon = True
        successor.start()

    def _succeed(self) -> None:
        with self._ensemble.lock:
            if self._over:
                return
            if self.root in self._ensemble.nodes:
                for path, data in self._registered.items():
                    self._ensemble.put(path, data, self)
            self._there.set()
        for watch in self._watches:  # all of them, as it is not known what changed meanwhile
            self._tell(watch)

    def lose(self, why: str = "was lost") -> None:
        """There will not be a session again, and what was under way may have arrived or not."""
        with self._ensemble.lock:
            if not self._over:
                self._acks = [ack for ack in self._acks if self._rng.random() < 0.5]
                self._end(why)

    def _end(self, why: str) -> None:
        self._send_acks()
        self._over = why
        self._ensemble.forget(self)
        if self in self._ensemble.sessions:
            self._ensemble.sessions.remove(self)
        self._step_back()
        self._there.set()
        self._events.put(None)

    # -- writing -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with self._talking():
            self._require_driver()
            self._ensemble.put(self.root, b"", over=False)

    def publish(self, node: Node[T], value: T) -> None:
        with self._talking():
            self._require_driver()
            self._require_root()
            if self._term not in (None, self._ensemble.terms.get(self.root)):
                raise ServiceUnavailable(f"{node.path} is not written: another one leads now")
            self._ensemble.put(self._at(node), node.encode(value))

    def acknowledge(self, node: Node[T], value: T) -> None:
        with self._ensemble.lock:
            self._require()
            self._acks.append((self._at(node), node.encode(value)))
        arrival = threading.Timer(self._late(), self._arrive)
        arrival.daemon = True
        arrival.start()

    def _arrive(self) -> None:
        self._there.wait()
        with self._ensemble.lock:
            if not self._over:
                self._send_acks()

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        if self.root in self._ensemble.nodes:
            for path, data in acks:
                self._ensemble.put(path, data, over=False)
        elif acks:
            self._end("was refused: there is no root")

    def register(self, node: Node[T], value: T) -> None:
        path, data = self._at(node), node.encode(value)
        with self._talking():
            self._require_root()
            self._ensemble.remove(path)
            self._registered[path] = data
            self._ensemble.put(path, data, self)

    def withdraw(self, node: Node[Any] | Folder[Any]) -> None:
        path = self._at(node)
        with self._talking():
            self._require_driver()
            self._registered.pop(path, None)
            for each in [each for each in self._ensemble.nodes if each == path or each.startswith(f"{path}/")]:
                self._ensemble.remove(each)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, node: Node[T]) -> T | None:
        with self._talking():
            there = self._ensemble.nodes.get(self._at(node))
            return None if there is None else node.decode(there.data)

    def require(self, node: Node[T]) -> T:
        if (value := self.read(node)) is None:
            raise ServiceUnavailable(f"{self._at(node)} is missing")
        return value

    def children(self, folder: Folder[Any]) -> list[str]:
        with self._talking():
            return self._ensemble.below(self._at(folder))

    def read_below(self, folder: Folder[T]) -> dict[str, T]:
        return {name: self.require(folder[name]) for name in self.children(folder)}

    # -- watching ------------------------------------------------------------------------------------------------------

    def watch(
        self, node: Node[T], call: Callable[[T], bool | None], gone: Callable[[], bool | None] = lambda: None
    ) -> None:
        def look() -> tuple[Any, Callable[[], bool | None]]:
            there = self._ensemble.nodes.get(self._at(node))
            return (None, gone) if there is None else (there.made, lambda: call(node.decode(there.data)))

        self._watch(_Watch(self._at(node), look, seen="nothing yet"))

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], bool | None]) -> None:
        def look() -> tuple[Any, Callable[[], bool | None]]:
            names = self._ensemble.below(self._at(folder))
            return names, lambda: call(self._rng.sample(names, len(names)))

        self._watch(_Watch(self._at(folder) + "/", look))

    def _watch(self, watch: _Watch) -> None:
        with self._talking():
            self._watches.append(watch)
        self._look(watch)

    def poke(self, paths: tuple[str, ...]) -> None:
        """One of these nodes has changed; a path with a slash at its end stands for the names below it."""
        for watch in self._watches:
            if watch.path in paths:
                self._tell(watch)

    def _tell(self, watch: _Watch) -> None:
        if not (watch.pending or watch.over):
            watch.pending = True
            self._events.put(watch)

    def _hear(self) -> None:
        while (watch := self._events.get()) is not None:
            time.sleep(self._late())
            self._there.wait()
            watch.pending = False
            self._look(watch)

    def _look(self, watch: _Watch) -> None:
        with watch.turn:
            with self._ensemble.lock:
                seen, say = watch.look()
            if watch.over or self._over or seen == watch.seen:
                return
            watch.seen = seen
            watch.over = say() is False

    # -- driving -------------------------------------------------------------------------------------------------------

    def claim(self, job: str, first: bool = False) -> Epoch:
        with self._talking():
            if not first and job not in self._ensemble.epochs:
                raise NotThere(f"job {job} is over, or never was")
            self._ensemble.epochs[job] = self._ensemble.epochs.get(job, 0) + 1
            return Epoch(job, self._ensemble.epochs[job])

    def require_epoch(self) -> None:
        with self._talking():
            self._require_driver()

    def end_epoch(self) -> None:
        with self._talking():
            if self._epoch is not None and self._epoch.job in self._ensemble.epochs:
                self._require_driver()
                del self._ensemble.epochs[self._epoch.job]

    def _require_root(self) -> None:
        if self.root not in self._ensemble.nodes:
            raise ServiceUnavailable(f"{self.root} is not there")

    def _require_driver(self) -> None:
        if self._epoch is not None and self._ensemble.epochs.get(self._epoch.job) != self._epoch.number:
            raise Deposed(f"job {self._epoch.job} is another's now")

    # -- life ----------------------------------------------------------------------------------------------------------

    def lead(self, name: str, act: Callable[[], None]) -> None:
        while True:
            with self._talking():
                if self._ensemble.leaders.setdefault(self.root, self) is self:
                    break
            time.sleep(0.01)
        with self._ensemble.lock:
            self._require_driver()
            if self._term is None:
                self._term = self._ensemble.terms[self.root] = self._ensemble.terms.get(self.root, 0) + 1
        try:
            act()
        finally:
            with self._ensemble.lock:
                self._step_back()

    def _step_back(self) -> None:
        if self._ensemble.leaders.get(self.root) is self:
            del self._ensemble.leaders[self.root]

    def check(self) -> None:
        with self._ensemble.lock:
            self._require()

    def close(self, prepare_next: bool = False) -> None:
        with self._ensemble.lock:
            if not self._over:
                self._end("is closed")

    def _at(self, node: Node[Any] | Folder[Any]) -> str:
        return f"{self.root}/{node.path}".rstrip("/")

    def _late(self) -> float:
        return self._rng.random() * self._ensemble.delay_s

    def _require(self) -> None:
        if self._over:
            raise ServiceUnavailable(f"the session with ZooKeeper {self._over}")

    @contextlib.contextmanager
    def _talking(self) -> Any:
        """One request and its answer, in the order of all that the session says."""
        while True:
            self._there.wait()
            with self._ensemble.lock:
                if self._there.is_set():
                    self._require()
                    self._send_acks()
                    yield
                    return
