"""The load of a job: generators for each of its sources, which are told together what to do."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from keyshift.clock import SECOND_US
from keyshift.model.errors import ServiceUnavailable
from keyshift.traffic.generator import GeneratorConfig
from keyshift.traffic.process import JsonProcess
from keyshift.waiting import wait_until

REMEMBERED = 60  # reports of a feed, one per second
ANSWER_S = 30.0  # for a generator to get ready, and to be done at the end of a load


class Before(NamedTuple):
    """What earlier processes have offered of a load: events, results that they must have, and since when."""

    events: int = 0
    due: int = 0
    took_s: float = 0.0


class Progress(NamedTuple):
    """What a feed had offered at a moment, in seconds since the epoch: events, and results that are due for them."""

    at: float
    events: int
    due: int


class Injector(JsonProcess):
    """One generator: ticks from the beginning, a load when it is told to.

    ``routers``: that read its partitions. ``told`` is called when it has reported.
    """

    def __init__(self, config: GeneratorConfig, routers: Sequence[int], told: Callable[[], None]) -> None:
        self.source, self.routers, self._told = config.source, routers, told
        self.said: dict[str, dict[str, Any]] = {}  # by state
        self.sent = self.due = self.reports = 0  # so far, as it said last; and how often it has
        super().__init__("keyshift.traffic.generator", config.model_dump(mode="json"), self._heard)

    def _heard(self, report: dict[str, Any]) -> None:
        if "state" in report:
            self.said[report["state"]] = report
        elif "sent_events" in report:
            self.sent, self.due = report["sent_events"], report["due"]
            self.reports += 1
            self._told()


class Feed:
    """All generators of a load: with each of ``configs``, the routers that read its partitions."""

    def __init__(self, configs: Iterable[tuple[GeneratorConfig, Sequence[int]]]) -> None:
        self.before = Before()
        self.progress: deque[Progress] = deque(maxlen=REMEMBERED)  # one whenever all have told of another second
        self._lock, self._seconds = threading.Lock(), 0  # that are in ``progress``, or were
        self.injectors: list[Injector] = []
        for config, routers in configs:
            self.injectors.append(Injector(config, routers, self._told))

    def _told(self) -> None:
        """In the thread of any of them."""
        with self._lock:
            if (seconds := min(each.reports for each in self.injectors)) > self._seconds:
                self._seconds = seconds
                self.progress.append(Progress(time.time(), self.sent, sum(each.due for each in self.injectors)))

    @property
    def sent(self) -> int:
        """Events so far, as they said last."""
        return sum(each.sent for each in self.injectors)

    def skip(self, events: Sequence[int]) -> None:
        """Leave out so many events of each router, which another process has offered; to be called before ``begin``."""
        for each in self.injectors:
            each.tell({"skip": [events[router] for router in each.routers]})

    def begin(self, start: float, seconds: float | None) -> None:
        """Offer the load from ``start`` (seconds since the epoch), for ``seconds``; None: until ``end_load``."""
        for each in self.injectors:
            each.tell({"start_at_us": int(start * SECOND_US), "seconds": seconds})

    def change_rate(self, rate: float, source: str) -> None:
        """Offer another rate of ``source`` from now on, in events per second, above 0. The load must be one without an
        end.
        """
        for each in self.injectors:
            if each.source == source:
                each.tell({"rate": rate})

    def end_load(self) -> None:
        """End now a load that has no end."""
        for each in self.injectors:
            each.tell({"end": True})

    @property
    def offered(self) -> int | None:
        """Events of the load, None before its end."""
        return self._sum("events") + self.before.events if self._have_said("done") else None

    @property
    def planned(self) -> int:
        """Events that the load was to have; to be asked after its end."""
        return self._sum("planned") + self.before.events

    @property
    def due(self) -> int | None:
        """Results that the events of the load must have, None before its end."""
        return self._sum("due") + self.before.due if self._have_said("done") else None

    @property
    def took_s(self) -> float:
        """How long it took to offer the load; to be asked after its end."""
        return max(float(each.said["done"]["took_s"]) for each in self.injectors) + self.before.took_s

    def _sum(self, fact: str) -> int:
        return sum(int(each.said["done"][fact]) for each in self.injectors)

    def _have_said(self, state: str) -> bool:
        return all(state in each.said for each in self.injectors)

    def await_state(self, state: str) -> None:
        """Wait until all are ``ready``, or ``done`` with the load. Raises ServiceUnavailable if one dies or is late."""

        def said() -> bool:
            for each in self.injectors:
                each.check()
            return self._have_said(state)

        if not wait_until(said, ANSWER_S):
            raise ServiceUnavailable(f"the generator was not {state} within {ANSWER_S:g} s")
