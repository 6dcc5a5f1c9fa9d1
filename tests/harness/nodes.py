"""How ZooKeeper may treat its sessions: ``wire.memory``, late and with accidents.

Watches come late, from a thread of their session, and miss values that were there for a short time. Acknowledgements
are under way for a while; what a session says later never arrives before them. A session may *expire*: what it had
registered is gone and it hears nothing, until after a while it has a successor that registers and watches anew. What
is asked or said meanwhile waits for that, as the real one repeats it. A session that is *lost* comes back no more, and
all that is asked of it raises. That of a driver publishes and withdraws nothing when another one has claimed its job.
"""

import contextlib
import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from keyshift.wire.epoch import Epoch
from keyshift.wire.memory import Memory, MemoryCoordination, Stored, Watch
from keyshift.wire.nodes import Folder, Node

T = TypeVar("T")

EXPIRED_S = 0.3  # at the most, until an expired session has its successor


class Ensemble(Memory):
    """``delay_s``: of watches and acknowledgements, at the most."""

    def __init__(self, seed: int, delay_s: float) -> None:
        super().__init__()
        self.rng, self.delay_s = random.Random(f"zookeeper {seed}"), delay_s

    def weather(
        self, seed: int, mean_s: float | None, over: threading.Event, seen: Counter[str], most: float = math.inf
    ) -> None:
        """Sessions expire, one after ``mean_s`` on average, until it is ``over`` or they were so many."""
        rng = random.Random(f"weather {seed}")
        while mean_s and seen["sessions expired"] < most and not over.wait(rng.expovariate(1 / mean_s)):
            with self.lock:
                session = rng.choice([*self.sessions, None])
            if session is not None:
                seen["sessions expired"] += 1
                session.expire()

    def below(self, path: str) -> list[str]:
        with self.lock:
            return super().below(path)

    def kept(self) -> dict[str, Stored]:
        """What would still be there if its machine went down now."""
        with self.lock:
            return {path: node for path, node in self.nodes.items() if node.owner is None}

    def go_back(self, kept: dict[str, Stored]) -> None:
        """Have only what was ``kept``, and no session: all that was confirmed since is lost, but for claims."""
        with self.lock:
            for session in [*self.sessions]:
                session.lose()
            self.nodes = dict(kept)


class Session(MemoryCoordination):
    """One session, seen from the root of one job."""

    def __init__(self, ensemble: Ensemble, root: str, epoch: Epoch | None = None) -> None:
        self._ensemble, self._rng = ensemble, random.Random(ensemble.rng.random())
        self._there = threading.Event()  # set while there is a session, and when there will never be one again
        self._there.set()
        self._events: queue.Queue[Watch | None] = queue.Queue()
        self._pending: set[Watch] = set()  # that have been told that something changed, and have not looked yet
        self._acks: list[tuple[str, bytes]] = []  # under way
        super().__init__(ensemble, root, epoch)
        threading.Thread(target=self._hear, name="zookeeper-events", daemon=True).start()

    # -- what may happen to it -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The session ends, and has a successor after a while."""
        with self._ensemble.lock:
            if self.over or not self._there.is_set():
                return
            self._there.clear()
            self._ensemble.forget(self)
        successor = threading.Timer(self._rng.random() * EXPIRED_S, self._succeed)
        successor.daemon = True
        successor.start()

    def _succeed(self) -> None:
        with self._ensemble.lock:
            if self.over:
                return
            if self.root in self._ensemble.nodes:
                for path, data in self._registered.items():
                    self._ensemble.put(path, data, self)
            self._there.set()
            for watch in self.watches:  # all of them, as it is not known what changed meanwhile
                self._changed(watch)

    def lose(self, why: str = "was lost") -> None:
        """There will not be a session again, and what was under way may have arrived or not."""
        with self._ensemble.lock:
            if not self.over:
                self._acks = [ack for ack in self._acks if self._rng.random() < 0.5]
                self._end(why)

    def _end(self, why: str) -> None:
        self._send_acks()
        super()._end(why)
        self._there.set()
        self._events.put(None)

    # -- what comes late -----------------------------------------------------------------------------------------------

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
            if not self.over:
                self._send_acks()

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        if self.root in self._ensemble.nodes:
            for path, data in acks:
                self._ensemble.put(path, data, over=False)
        elif acks:
            self._end("was refused: there is no root")

    def watch_children(self, folder: Folder[Any], call: Callable[[list[str]], None]) -> Callable[[], None]:
        return super().watch_children(folder, lambda names: call(self._rng.sample(names, len(names))))

    def _changed(self, watch: Watch) -> None:
        if not (watch in self._pending or watch.over):
            self._pending.add(watch)
            self._events.put(watch)

    def _hear(self) -> None:
        while (watch := self._events.get()) is not None:
            time.sleep(self._late())
            self._there.wait()
            self._pending.discard(watch)
            self._look(watch)

    def _late(self) -> float:
        return self._rng.random() * self._ensemble.delay_s

    @contextlib.contextmanager
    def _talking(self, needed: bool = True) -> Iterator[None]:
        """One request and its answer, in the order of all that the session says."""
        while needed:
            self._there.wait()
            with self._ensemble.lock:
                if self._there.is_set():
                    self._require()
                    self._send_acks()
                    yield
                    return
        with self._ensemble.lock:
            yield
