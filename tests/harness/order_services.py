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
    """Of all jobs of a run. ``late_s``: of appends, at the most. ``seen``: how often what happened."""

    def __init__(self, seed: int, late_s: float = 0.01, fails: float = 0.02, expires_s: float = 0.3) -> None:
        self.rng, self.late_s, self.fails, self.expires_s = random.Random(f"order {seed}"), late_s, fails, expires_s
        self.lock = threading.Lock()
        self.logs: defaultdict[tuple[str, int], list[tuple[float, int, Record]]] = defaultdict(list)
        self.queues: defaultdict[Any, list[Election]] = defaultdict(list)
        self.terms: Counter[Any] = Counter()
        self.leaders: defaultdict[Any, list[int]] = defaultdict(list)  # by place: the replica of each term
        self.seen: Counter[str] = Counter()

    @contextmanager
    def installed(self) -> Iterator["OrderServices"]:
        """Slots find them in place of the real ones."""
        log = lambda _endpoints, topic, partition, offset, replica: OrderLog(self, topic, partition, offset, replica)  # noqa: E731
        election = lambda _hosts, _secret, job, place, replica, _s: Election(self, (job, place), replica)  # noqa: E731
        with patch.object(following, "OrderLog", log), patch.object(following, "Election", election):
            yield self

    def ends(self, config: JobConfig) -> tuple[int, ...]:
        """Of each partition of the order log of a job: how much is in it by now."""
        with self.lock:
            return tuple(len(self.logs[config.order_topic, partition]) for partition in range(config.slots))


class OrderLog:
    """One reader and writer."""

    def __init__(self, services: OrderServices, topic: str, partition: int, offset: int, replica: int) -> None:
        self._services, self._place, self.next, self._replica = services, (topic, partition), offset, replica

    def append(self, record: Record) -> None:
        services = self._services
        with services.lock:
            log, rng = services.logs[self._place], services.rng
            if rng.random() < services.fails:
                services.seen["append lost"] += 1
                return
            due = max(time.monotonic() + rng.random() * services.late_s, log[-1][0] if log else 0.0)
            for _ in range(1 + (rng.random() < services.fails)):
                log.append((due, self._replica, record))

    def read(self, timeout_s: float) -> list[tuple[int, Record]]:
        until = time.monotonic() + timeout_s
        while True:
            with self._services.lock:
                log, now = self._services.logs[self._place], time.monotonic()
                found = [(n, r) for n, (due, _, r) in enumerate(log[self.next :], self.next) if due <= now]
            if found or now >= until:
                self.next += len(found)
                return found
            time.sleep(LOOK_S)

    def end(self) -> int:
        with self._services.lock:
            return len(self._services.logs[self._place])

    def close(self) -> None:
        """Nothing is kept."""


class Election:
    """One candidate."""

    def __init__(self, services: OrderServices, place: Any, replica: int) -> None:
        self._services, self._place, self._replica = services, place, replica
        self._over, self._resigned = threading.Event(), threading.Event()

    def stand(self, elected: Callable[[int], None]) -> None:
        services, queue = self._services, self._services.queues[self._place]
        while not self._over.is_set():
            self._resigned.clear()
            with services.lock:
                queue.append(self)
            while not (self._over.is_set() or queue[0] is self):
                time.sleep(LOOK_S)
            if not self._over.is_set():
                with services.lock:
                    services.terms[self._place] += 1
                    services.leaders[self._place].append(self._replica)
                    term, expires_s = services.terms[self._place], services.expires_s * (0.5 + services.rng.random())
                elected(term)
                if not self._resigned.wait(expires_s):
                    services.seen["expired"] += 1
            with services.lock:
                queue.remove(self)

    def keep(self) -> None:
        """Not needed."""

    def resign(self) -> None:
        self._services.seen["resigned"] += 1
        self._resigned.set()

    def withdraw(self) -> None:
        self._over.set()
        self._resigned.set()

    close = withdraw
