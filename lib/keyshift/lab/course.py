"""What every run has, whatever is requested of it: a load, deaths that it survives, a backlog, and its outcome."""

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from keyshift.analysis.timelines import DEATH, FAULT
from keyshift.experiment.scenario import Scale
from keyshift.experiment.spec import RunSpec
from keyshift.lab.autoscaler import Autoscaler
from keyshift.lab.display import Display
from keyshift.lab.judge.outcome import Outcome, Span, outcome
from keyshift.lab.sampler import Sample
from keyshift.lab.system import SystemUnderTest
from keyshift.model.errors import KeyshiftError, QueryDied
from keyshift.planner.scaling import Scaling
from keyshift.traffic.traffic import Feed, Traffic

SILENCE_S = 10.0  # without any result, after which what is missing does not come any more
LEAD_S = 0.5  # between the decision to start the load and its start
LOOK_S = 0.2  # between two calls of ``check``
T = TypeVar("T")


class Course:
    """From ``_open`` to ``_outcome``. Leaves it to its owner to close the system and the traffic.

    ``ready``: until the system may be started anew. ``each_second``: called once a second by the controlling thread
    while the load is offered, whatever the system does then; may use all of it, and raise QueryDied.
    """

    deadly: tuple[type[KeyshiftError], ...] = (QueryDied,)  # after which the system has to be started anew

    def __init__(
        self, spec: RunSpec, system: SystemUnderTest, traffic: Traffic, display: Display, ready: Callable[[], None]
    ) -> None:
        self._spec, self._system, self._traffic, self._display, self._ready = spec, system, traffic, display, ready
        self.each_second: list[Callable[[], None]] = []
        self._looked_at = 0.0  # seconds since the epoch at which ``each_second`` was called last
        self._feed: Feed | None = None
        self._trigger = 0.0  # seconds since the epoch; 0: there was none yet
        self._idle_since = math.inf  # seconds since the epoch at which the load was over: only a backlog is left
        self._overloaded = False
        self._autoscaler: Autoscaler | None = None
        self._deaths: list[float] = []  # when the query died, seconds since the epoch

    def execute(self) -> Outcome:
        """From the topics to the verdict. Raises KeyshiftError if the run dies."""
        raise NotImplementedError

    def _open(self) -> Feed:
        """Topics, generator and system, until every router and slot has put a first row through."""
        run = self._spec.run
        self._traffic.open()
        self._feed = self._traffic.feed(run.rate, run.frame_ms, run.steps())
        if self._spec.scenario.faults():  # one may come while the system starts, on a machine that is slow
            self._surviving(self._system.start, lambda: None)
        else:
            self._system.start()
        self._display.say("ready: every router and slot has put a first row through")
        return self._feed

    def _autoscale(self, first: float, ask: Callable[[Scale, str], object]) -> None:
        """From the moment ``first`` on; see ``Autoscaler``."""
        assert self._feed is not None
        given = self._spec, self._system, self._traffic, self._feed, first, self._display.say
        self._autoscaler = Autoscaler(*given, ask)

    @property
    def scalings(self) -> list[Scaling]:
        """What an autoscaler has decided so far."""
        return self._autoscaler.decisions if self._autoscaler else []

    def _look(self) -> None:
        """While the load is offered."""
        self._check()
        if (now := time.time()) - self._looked_at >= 1.0:
            self._looked_at = now
            for look in self.each_second:
                look()
        if self._autoscaler:
            self._autoscaler.go_on()

    def _pass_until(self, moment: float) -> None:
        while (left := moment - time.time()) > 0:
            self._look()
            time.sleep(min(left, LOOK_S))

    def _check(self) -> None:
        self._system.check()
        self._traffic.check()

    def _outcome(self, start: float, measured: float, end: float, samples: list[Sample]) -> Outcome:
        """After ``_finish``. All in seconds since the epoch: of the load, of its measured part."""
        assert self._feed is not None
        self._traffic.stop()
        final, span = self._system.final_state(), Span(start, measured, end, self._trigger)
        deaths = [(at, FAULT, DEATH, 1.0) for at in self._deaths]
        given = self._spec.workload, span, self._traffic, self._feed, final, [*samples, *deaths]
        return outcome(*given, self._overloaded, self._display.say, self.scalings)

    # -- a backlog ----------------------------------------------------------------------------------------------------

    def _await_migrations(self) -> None:
        """They may take long if every step has to get through a backlog: then what has not begun is taken back."""
        while self._system.busy:
            self._check()
            if not self._overloaded and self._out_of_time():
                self._system.cancel()
            time.sleep(LOOK_S)

    def _finish(self) -> None:
        """Until everything offered has been answered; if the job is overloaded, what it has processed by then."""
        self._display.enter("catching up")
        self._await_results()
        self._system.stop()

    def _await_results(self) -> None:
        """Until all results that are due have come, or none comes any more (then some are lost), or time is up."""

        def over() -> bool:
            self._check()
            return not self._behind or self._overloaded or self._out_of_time()

        self._traffic.await_results(over, SILENCE_S)
        if self._behind and not self._overloaded:
            self._display.say(f"only {self._traffic.received} of {self._due} results came")

    @property
    def _due(self) -> int | None:
        return self._feed.due if self._feed else None

    @property
    def _behind(self) -> bool:
        """Whether results are still to come of events that were offered, or are to be."""
        return self._due is None or self._traffic.received < self._due

    def _out_of_time(self) -> bool:
        """Whether there is still a backlog after the time allowed. If so, the job counts as overloaded from then on."""
        allowed_s = self._spec.run.catch_up_s
        if self._behind and time.time() > self._idle_since + allowed_s:
            self._overloaded = True
            self._display.say(
                f"overloaded: the backlog was not worked off within catch_up_s = {allowed_s:g} s; "
                "the run ends with what has been processed"
            )
        return self._overloaded

    # -- the death of the query ---------------------------------------------------------------------------------------

    def _surviving(self, step: Callable[[], T], then: Callable[[], T] | None = None) -> T:
        """``step``, and once more after each death of the query, as long as the run may survive it.

        ``then``: after a death, instead of a ``step`` that the recovery does over.
        """
        death: KeyshiftError | None = None
        while True:
            try:
                if death is not None:
                    self._recover(death)
                return step()
            except self.deadly as error:
                self._deaths.append(time.time())
                self._allow_another(error)
                death, step = error, then or step

    def _allow_another(self, death: KeyshiftError) -> None:
        """Wait until the query may be started anew. Raises what ended it if it has died too often."""
        if len(self._deaths) > self._spec.run.recoveries:
            raise death

    def _moment(self) -> str:
        if not self._trigger:
            return "in the warm-up"
        since_s = time.time() - self._trigger
        return f"{abs(since_s):.1f} s {'after' if since_s > 0 else 'before'} the trigger"

    def _recover(self, death: KeyshiftError) -> None:
        moment, what = self._moment(), "died" if isinstance(death, QueryDied) else "was given up"
        self._display.say(f"{death}; starting anew")
        self._display.enter("recovering")
        begin = time.perf_counter()
        self._ready()
        done_again = self._system.recover()
        self._system.note(
            f"the query {what} {moment} ({death}); everything since its {done_again} was done again, which was "
            f"under way after {time.perf_counter() - begin:.1f} s; steps that had not switched by then came "
            "afterwards; latency counts the first result of an event"
        )
        self._display.enter("recovered")
        self._idle_since, self._overloaded = max(self._idle_since, time.time()), False


MakeCourse = Callable[[RunSpec, Any, Traffic, Display, Callable[[], None]], Course]
