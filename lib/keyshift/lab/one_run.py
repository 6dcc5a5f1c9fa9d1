"""One run: a load for a system under test, the requests of a scenario, deaths that it survives, and its outcome."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from keyshift.errors import QueryDied
from keyshift.lab.autoscaler import Autoscaler
from keyshift.lab.display import Display
from keyshift.lab.outcome import Outcome, Span, outcome
from keyshift.lab.sampler import Sampler
from keyshift.lab.scenario import Action, Cancel, Hit, Migrate
from keyshift.lab.spec import RunSpec
from keyshift.lab.system import SystemUnderTest
from keyshift.traffic.traffic import Feed, Traffic

SILENCE_S = 10.0  # without any result, after which what is missing does not come any more
LEAD_S = 0.5  # between the decision to start the load and its start
LOOK_S = 0.2  # between two calls of ``check``
T = TypeVar("T")


class OneRun:
    """Leaves it to its owner to close the system and the traffic. ``ready``: until the system may be started anew."""

    def __init__(
        self, spec: RunSpec, system: SystemUnderTest, traffic: Traffic, display: Display, ready: Callable[[], None]
    ) -> None:
        self._spec, self._system, self._traffic, self._display, self._ready = spec, system, traffic, display, ready
        self._feed: Feed | None = None
        self._trigger = 0.0  # seconds since the epoch; 0: in the warm-up
        self._idle_since = math.inf  # seconds since the epoch at which the load was over: only a backlog is left
        self._overloaded = False
        self._deaths = 0
        self._autoscaler: Autoscaler | None = None

    def execute(self) -> Outcome:
        """From the topics to the verdict. Raises KeyshiftError if the run dies."""
        spec, run, system, traffic, display = self._spec, self._spec.run, self._system, self._traffic, self._display
        traffic.open()
        self._feed = feed = traffic.feed(run.rate, run.frame_ms, run.steps())
        system.start()
        display.say("ready: every router and slot has put a first row through")
        with Sampler(ignore=traffic.pids) as sampler:
            start = time.time() + LEAD_S
            measured, end = start + run.warmup_s, start + run.load_s
            self._idle_since = end
            feed.begin(start, end - start)
            with display.bar(end - start, spec.strategy.name):
                self._surviving(lambda: self._pass_until(measured))
                display.enter("steady")
                for first in spec.changes[:1]:
                    system.announce(first)
                self._trigger = measured + spec.scenario.trigger_s
                if spec.scenario.trigger == "auto":
                    self._autoscaler = Autoscaler(spec, system, traffic, feed, self._trigger, display.say)
                to_come = deque(spec.scenario.actions(spec.changes))
                self._surviving(lambda: self._play(to_come, measured))
                self._surviving(lambda: self._pass_until(end))
                self._surviving(self._await_migrations)
            self._surviving(self._finish)
        kills = [fault for fault in spec.scenario.faults() if fault.action == "kill"]
        if len(kills) > self._deaths:
            text = f"fault = {spec.scenario.fault}: not all of it happened"
            system.note(f"{text}, the query died {self._deaths} times and not {len(kills)}")
        traffic.stop()
        final, span = system.final_state(), Span(start, end, self._trigger)
        decided = self._autoscaler.decisions if self._autoscaler else []
        return outcome(spec.workload, span, traffic, feed, final, sampler.rows, self._overloaded, display.say, decided)

    def _play(self, to_come: deque[Action], measured: float) -> None:
        """Request what is ``to_come``, and take it from there. ``measured``: the beginning of the measured time."""
        while to_come:
            self._pass_until(measured + to_come[0].at_s)
            match to_come.popleft():
                case Migrate(_, change, replace):
                    self._system.request(change, replace)
                case Cancel():
                    self._system.cancel()
                case Hit(_, fault):
                    self._system.hit(fault)

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

    def _pass_until(self, moment: float) -> None:
        while (left := moment - time.time()) > 0:
            self._check()
            if self._autoscaler:
                self._autoscaler.go_on()
            time.sleep(min(left, LOOK_S))

    def _check(self) -> None:
        self._system.check()
        self._traffic.check()

    # -- a backlog ----------------------------------------------------------------------------------------------------

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

    def _surviving(self, step: Callable[[], T]) -> T:
        """``step``, and once more after each death of the query, as long as the run may survive it."""
        death: QueryDied | None = None
        while True:
            try:
                if death is not None:
                    self._recover(death)
                return step()
            except QueryDied as error:
                self._deaths += 1
                if self._deaths > self._spec.run.recoveries:
                    raise
                death = error

    def _recover(self, death: QueryDied) -> None:
        moment = "in the warm-up"
        if self._trigger:
            since_s = time.time() - self._trigger
            moment = f"{abs(since_s):.1f} s {'after' if since_s > 0 else 'before'} the trigger"
        self._display.say(f"{death}; starting anew")
        self._display.enter("recovering")
        begin = time.perf_counter()
        self._ready()
        done_again = self._system.recover()
        self._system.note(
            f"the query died {moment} ({death}); everything since its {done_again} was done again, which was under way "
            f"after {time.perf_counter() - begin:.1f} s; steps that had not switched by then were left out; latency "
            "counts the first result of an event"
        )
        self._display.enter("recovered")
        self._idle_since, self._overloaded = max(self._idle_since, time.time()), False
