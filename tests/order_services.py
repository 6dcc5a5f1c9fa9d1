"""What stands in for Kafka and ZooKeeper of an order that has leaders: order logs, and elections.

An append comes late, sometimes twice, and not always; those of one client come in their order. A leader's session ends
now and then: another one is elected, and the first one is not told, nor knows it.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from keyshift.ordering import Record
from keyshift.wire.config import JobConfig
from keyshift.worker.order import following

LOOK_S = 0.002


class OrderServices:
    """Of all jobs of a run. ``late_s``: of appends, at the most. ``seen``: how often what happened. ``made``: logs and
    candidates.
    """

    def __init__(self, seed: int, late_s: float = 0.01, fails: float = 0.02, expires_s: float = 0.3) -> None:
        self.rng, self.late_s, self.fails, self.expires_s = random.Random(f"order {seed}"), late_s, fails, expires_s
        self.lock = threading.Lock()
        self.logs: defaultdict[tuple[str, int], list[tuple[float, int, Record]]] = defaultdict(list)
        self.queues: defaultdict[Any, list[Election]] = defaultdict(list)
        self.terms: Counter[Any] = Counter()
        self.made: list[OrderLog | Election] = []
        self.seen: Counter[str] = Counter()

    @contextmanager
    def installed(self) -> Iterator["OrderServices"]:
        """Slots find them in place of the real ones."""
        log = lambda _endpoints, topic, partition, offset, replica: OrderLog(self, topic, partition, offset, replica)  # noqa: E731
        election = lambda _hosts, *given: Election(self, *given)  # noqa: E731
        with patch.object(following, "OrderLog", log), patch.object(following, "Election", election):
            yield self

    def ends(self, config: JobConfig) -> tuple[int, ...]:
        """Of each partition of the order log of a job: how much is in it by now."""
        with self.lock:
            return tuple(len(self.logs[config.order_topic, partition]) for partition in range(config.slots))


class OrderLog:
    """One reader and writer."""

    def __init__(self, services: OrderServices, topic: str, partition: int, offset: int, replica: int) -> None:
        self._services, self.partition, self.next, self.replica = services, (topic, partition), offset, replica
        self.closed = False
        services.made.append(self)

    def append(self, record: Record) -> None:
        services = self._services
        with services.lock:
            log, rng = services.logs[self.partition], services.rng
            if rng.random() < services.fails:
                services.seen["append lost"] += 1
                return
            due = max(time.monotonic() + rng.random() * services.late_s, log[-1][0] if log else 0.0)
            for _ in range(1 + (rng.random() < services.fails)):
                log.append((due, self.replica, record))

    def read(self, timeout_s: float) -> list[tuple[int, Record]]:
        assert not self.closed
        until = time.monotonic() + timeout_s
        while True:
            with self._services.lock:
                log, now = self._services.logs[self.partition], time.monotonic()
                found = [(n, r) for n, (due, _, r) in enumerate(log[self.next :], self.next) if due <= now]
            if found or now >= until:
                self.next += len(found)
                return found
            time.sleep(LOOK_S)

    def end(self) -> int:
        with self._services.lock:
            return len(self._services.logs[self.partition])

    def close(self) -> None:
        self.closed = True


class Election:
    """One candidate. ``lives``: it was told to give signs of life."""

    def __init__(
        self, services: OrderServices, secret: str, job: str, slot: tuple[str, int], replica: int, session_s: float
    ) -> None:
        self._services, self.slot, self.replica = services, (job, *slot), replica
        self.secret, self.session_s, self.lives = secret, session_s, False
        self._over, self._resigned = threading.Event(), threading.Event()
        services.made.append(self)

    def stand(self, elected: Callable[[int], None]) -> None:
        services, queue = self._services, self._services.queues[self.slot]
        while not self._over.is_set():
            self._resigned.clear()
            with services.lock:
                queue.append(self)
            while not (self._over.is_set() or queue[0] is self):
                time.sleep(LOOK_S)
            if not self._over.is_set():
                with services.lock:
                    services.terms[self.slot] += 1
                    term, expires_s = services.terms[self.slot], services.expires_s * (0.5 + services.rng.random())
                elected(term)
                if not self._resigned.wait(expires_s):
                    services.seen["expired"] += 1
            with services.lock:
                queue.remove(self)

    def keep(self) -> None:
        self.lives = True

    def resign(self) -> None:
        self._services.seen["resigned"] += 1
        self._resigned.set()

    def withdraw(self) -> None:
        self._over.set()
        self._resigned.set()

    close = withdraw
