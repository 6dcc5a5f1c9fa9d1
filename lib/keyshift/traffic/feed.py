"""The load of a job: generators for each of its sources, which are told together what to do."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from keyshift.clock import SECOND_US
from keyshift.model.errors import ServiceUnavailable
from keyshift.traffic.generator import GeneratorConfig
from keyshift.traffic.messages import Begin, EndLoad, LoadDone, OfLoad, Ready, Report, SetRate, SkipEvents, SoFar, Stop
from keyshift.traffic.process import JsonProcess
from keyshift.waiting import wait_until

REMEMBERED = 60  # reports of a feed, one per second
READY_S = 300.0  # for a generator to make what it draws from: slots have as long to begin, see ``traffic.SAY_S``
ANSWER_S = 30.0  # for a generator to be done at the end of a load


class Before(NamedTuple):
    """What earlier processes have offered of a load: events, results that they must have, how long they took, and
    whether they changed a rate.
    """

    events: int = 0
    due: int = 0
    took_s: float = 0.0
    rate_changed: bool = False


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
        self.sent = self.due = self.reports = 0  # so far, as it said last; and how often it has
        self.ready = False
        self.done: LoadDone | None = None
        super().__init__("keyshift.traffic.generator", config, Report, self._heard)

    def _heard(self, report: Ready | SoFar | LoadDone) -> None:
        match report:
            case Ready():
                self.ready = True
            case SoFar(events, due):
                self.sent, self.due = events, due
                self.reports += 1
                self._told()
            case LoadDone():
                self.done = report


class Feed:
    """All generators of a load: with each of ``configs``, the routers that read its partitions.

    ``require_wanted`` raises if nobody waits any more for them.
    """

    def __init__(
        self,
        configs: Iterable[tuple[GeneratorConfig, Sequence[int]]],
        require_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self.before, self._require_wanted = Before(), require_wanted
        self._rate_changed = False
        self.progress: deque[Progress] = deque(maxlen=REMEMBERED)  # one whenever all have told of another second
        self._lock, self._seconds = threading.Lock(), 0  # that are in ``progress``, or were
        self.injectors: list[Injector] = []
        for config, routers in configs:
            self.injectors.append(Injector(config, routers, self._told))

    def _told(self) -> None:
        """Note the progress when all generators have told; in the thread of any of them."""
        with self._lock:
            if (seconds := min(each.reports for each in self.injectors)) > self._seconds:
                self._seconds = seconds
                self.progress.append(Progress(time.time(), self.sent, sum(each.due for each in self.injectors)))

    @property
    def sent(self) -> int:
        """Events so far, as the generators said last."""
        return sum(each.sent for each in self.injectors)

    def _tell(self, command: OfLoad | Stop) -> None:
        for each in self.injectors:
            each.tell(command)

    def skip(self, events: Sequence[int]) -> None:
        """Leave out so many events of each router, which another process has offered; to be called before ``begin``,
        and to be waited for.
        """
        for each in self.injectors:
            each.ready = False  # until it says so again
            each.tell(SkipEvents(tuple(events[router] for router in each.routers)))

    def begin(self, start: float, seconds: float | None) -> None:
        """Offer the load from ``start`` (seconds since the epoch), for ``seconds``; None: until ``end_load``."""
        self._tell(Begin(int(start * SECOND_US), seconds))

    def change_rate(self, rate: float, source: str) -> None:
        """Offer another rate of ``source`` from now on, in events per second, above 0. The load must be one without an
        end.
        """
        self._rate_changed = True
        for each in self.injectors:
            if each.source == source:
                each.tell(SetRate(rate))

    def end_load(self) -> None:
        """End now a load that has no end."""
        self._tell(EndLoad())

    def stop(self) -> None:
        """End the generators, whatever is left of the load."""
        self._tell(Stop())

    @property
    def _done(self) -> list[LoadDone] | None:
        """What all have said at the end of the load, None before."""
        done = [each.done for each in self.injectors if each.done is not None]
        return done if len(done) == len(self.injectors) else None

    @property
    def offered(self) -> int | None:
        """Events of the load, None before its end."""
        return None if self._done is None else sum(each.events for each in self._done) + self.before.events

    @property
    def planned(self) -> int:
        """Events that the load was to have; to be asked after its end."""
        assert self._done is not None
        return sum(each.planned for each in self._done) + self.before.events

    @property
    def rate_changed(self) -> bool:
        """Whether any rate was not what it was to be at the beginning."""
        return self._rate_changed or self.before.rate_changed

    @property
    def due(self) -> int | None:
        """Results that the events of the load must have, None before its end."""
        return None if self._done is None else sum(each.due for each in self._done) + self.before.due

    @property
    def took_s(self) -> float:
        """How long it took to offer the load; to be asked after its end."""
        assert self._done is not None
        return max(each.took_s for each in self._done) + self.before.took_s

    def await_ready(self) -> None:
        """Wait until a first frame is in each partition. Raises ServiceUnavailable if one dies or is late."""
        self._await_ready(READY_S)

    def await_skipped(self) -> None:
        """Wait until they have left out what they are to, however long that takes: with a limit a job that has lasted
        long could not be resumed any more. Raises ServiceUnavailable if one dies.
        """
        self._await_ready(math.inf)

    def _await_ready(self, within_s: float) -> None:
        self._await("ready", lambda: all(each.ready for each in self.injectors), within_s)

    def await_done(self) -> None:
        """Wait until all of the load is offered. Raises ServiceUnavailable if one dies or is late."""
        self._await("done", lambda: self._done is not None, ANSWER_S)

    def _await(self, state: str, reached: Callable[[], bool], within_s: float) -> None:
        def said() -> bool:
            self._require_wanted()
            for each in self.injectors:
                each.check()
            return reached()

        if not wait_until(said, within_s):
            raise ServiceUnavailable(f"the generator was not {state} within {within_s:g} s")
