"""The one loop of every run: a load, a script, deaths that it survives, a backlog, and its evaluation."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from keyshift.analysis.metrics import DEATH
from keyshift.experiment.replicas import deaths_of
from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import RunSpec
from keyshift.lab.autoscaler import Autoscaler
from keyshift.lab.backlog import LOOK_S, Backlog
from keyshift.lab.ending import Unwanted
from keyshift.lab.judge.evaluation import EndedJob, Evaluation, Span
from keyshift.lab.machine.sampler import Sampler
from keyshift.lab.reporter import Reporter
from keyshift.lab.scalings import Scalings
from keyshift.lab.system import SystemUnderTest
from keyshift.model.errors import KeyshiftError, MigrationFailed, QueryDied
from keyshift.model.notes import Activity, Doing, NoteKind
from keyshift.model.records import Instance, PodUsed, Sample
from keyshift.traffic.feed import Feed
from keyshift.traffic.traffic import Traffic
from keyshift.waiting import wait_until

LEAD_S = 0.25  # between the decision to start the load and its start; generators that hear of it later move theirs
WINDOW_S = 600.0  # in which the query may die ``recoveries`` times
LONGEST_PAUSE_S = 30.0
DEADLY = (QueryDied, MigrationFailed)  # after which the system has to be started anew
T = TypeVar("T")
ScriptStep = float | Callable[[], object]
Script = Generator[ScriptStep, None, None]
MakeScript = Callable[["RunLoop"], Script]  # may change the loop before it begins


class RunLoop:
    """``execute`` makes the thread that calls it the controlling one. Its owner closes the system and the traffic.

    The script that ``make_script`` gives is what happens while the load is offered, which ends with it. It yields
    something to be done, or the moment (seconds since the epoch) until which there is nothing to do. What it yields is
    done once more if the query dies meanwhile, which what the script does itself must not notice.

    A migration phase that passes its deadline (MigrationFailed) where a savepoint was wanted leaves the query at a
    barrier: it is given up, and the job goes on as after its death.

    ``ready``: until the system may be started anew. ``each_second``: called once a second while the load is offered,
    whatever the system does then; may use all of it, and raise QueryDied. ``each_look``: called again and again, while
    the last results come, too.
    """

    load_s: float | None = None  # how long the load is, if that is known before
    unwanted = False  # nobody wants its outcome any more

    def __init__(
        self,
        spec: RunSpec,
        system: SystemUnderTest,
        traffic: Traffic,
        reporter: Reporter,
        ready: Callable[[], None],
        make_script: MakeScript,
    ) -> None:
        self.spec, self.system, self.traffic, self.reporter = spec, system, traffic, reporter
        self.strategy = str(spec.parameters()["strategy"])  # the one that migrates now
        self._ready = ready
        self.lasts_s = spec.run.load_s  # so long is the load at the most; a series, or a search for a rate, is longer
        self.open: Callable[[], Feed] = self.open_new
        self.each_second: list[Callable[[], None]] = []
        self.each_look: list[Callable[[], None]] = []
        self.pods: Callable[[], Iterable[tuple[int | None, PodUsed]]] | None = None  # see ``Sampler``
        self.parts: Callable[[], Mapping[int, Instance]] = dict  # likewise
        self.services: Callable[[], Mapping[int, str]] = dict  # processes of ours beside the job, with their names
        self.metrics: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # see ``run_metrics``
        self.cut_faults_short: Callable[[], None] = lambda: None  # those beside the run, see ``BesideRun``
        self.feed: Feed | None = None
        self.began_at = math.nan  # the load, in seconds since the epoch; if it was resumed, in another process
        self.trigger = 0.0  # likewise, of the first migration; 0: there was none yet
        # Events per second that are offered of each source; of a scenario, at the beginning.
        self.rates = {source.name: load.rate for source, load in zip(spec.workload.sources, spec.loads, strict=True)}
        self.deaths: list[float] = []  # likewise
        self.samples: list[Sample] = []
        self._ended_at = math.nan  # likewise
        self._looked_at = -math.inf  # by the monotonic clock, when ``each_second`` was called last
        self.died_at: list[float] = []  # by that clock, too: the other one may be set back
        self.measured_wrong: list[str] = []  # what has made measurements wrong, known behind ``run``
        allowed_s, deadline_s = spec.run.catch_up_s, spec.job.deadline_s
        self.backlog = Backlog(system, traffic, reporter, self.check, allowed_s, deadline_s)
        self._autoscaler: Autoscaler | None = None
        traffic.require_wanted = self._require_wanted  # also while the system starts or recovers
        self._script = make_script(self)

    def execute(self) -> Evaluation:
        """Run from the topics to the verdict. Raises KeyshiftError if the run dies."""
        self.run()
        span = Span(self.began_at, self.began_at + self.spec.run.warmup_s, self._ended_at, self.trigger)
        return self.end().evaluation(span, self.scalings, self.reporter.say)

    def end(self) -> EndedJob:
        """Give what was offered and what came of it, after ``run``. Ends traffic and system."""
        self.traffic.stop()
        assert self.feed is not None
        final, died = self.system.final_state(), Instance("query died")
        self.reporter.say("comparing every result and the final state with the oracle")
        samples = [*self.samples, *(Sample(at, DEATH, died, 1.0) for at in self.deaths)]
        return EndedJob(self.spec.workload, self.traffic, self.feed, final, samples, self.backlog.overloaded)

    def run(self) -> None:
        """Run from the topics until all is answered and the system stands. Raises KeyshiftError if the run dies."""
        self.feed = feed = self.open()
        with Sampler(self.around, self.pods, self.parts) as sampler, self.metrics():
            begin = time.time() + LEAD_S
            if math.isnan(self.began_at):
                self.began_at = begin
            feed.before = feed.before._replace(took_s=begin - self.began_at)
            feed.begin(begin, self.load_s)
            self.follow()
            feed = self.feed  # a script may have begun another one
            self._ended_at = time.time() if self.load_s is None else begin + self.load_s
            self.backlog.begin(feed)
            self.trigger = self.trigger or self._ended_at
            if self.load_s is None:
                feed.end_load()
            self.surviving(self.backlog.await_migrations)
            self.surviving(self.backlog.finish)
        self.samples, self.measured_wrong = sampler.rows, sampler.notes
        for line in self.measured_wrong:
            self.system.note(line)
        if (wanted := len(deaths_of(self.spec.job, self.spec.scenario))) > len(self.deaths):
            text = f"{self.spec.scenario.faults_said}: not all of it happened"
            self.system.note(f"{text}, the query died {len(self.deaths)} times and not {wanted}")

    def around(self) -> dict[int, str]:
        """Processes of ours that are not the system's, with their names."""
        return {**self.services(), **self.traffic.pids, os.getpid(): "driver"}

    def open_new(self) -> Feed:
        """Open topics, generator and system, and wait until every router and slot has put a first row through."""
        self.traffic.lasts_s = self.lasts_s
        self.traffic.open()
        feed = self.traffic.feed(self.spec.loads, self.spec.run.frame_ms)
        if self.spec.scenario.faults():  # one may come while the system starts, on a machine that is slow
            self.surviving(self.system.start, lambda: None)
        else:
            self.system.start()
        self.reporter.say("ready: every router and slot has put a first row through")
        return feed

    # -- while the load is offered ------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Do what the script says, to its end."""
        with contextlib.closing(self._script) as script:
            for step in script:
                self.surviving(step if callable(step) else partial(self.look_until, step))

    def look_until(self, moment: float) -> None:
        """Look again and again until ``moment``, in seconds since the epoch."""
        while (left := moment - time.time()) > 0:
            self.look()
            time.sleep(min(left, LOOK_S))

    def look(self) -> None:
        """Check, and do what is due while the load is offered. Raises what ends the run, or QueryDied."""
        self.check()
        if (now := time.monotonic()) - self._looked_at >= 1.0:
            self._looked_at = now
            for look in self.each_second:
                look()
        if self._autoscaler:
            self._autoscaler.go_on()

    def check(self) -> None:
        """See at any time whether something has failed. Raises what ends the run, or QueryDied."""
        self._require_wanted()
        self.system.check()
        self.traffic.check()
        for look in self.each_look:
            look()

    def _require_wanted(self) -> None:
        if self.unwanted:
            raise Unwanted("the job was given up before it was stopped: it has no verdict")

    def change_rate(self, rate: float, source: str | None = None) -> None:
        """Offer so many events per second of ``source``, or else of the first one, in a load of no known length."""
        assert self.feed is not None
        source = source or next(iter(self.rates))
        self.feed.change_rate(rate, source)
        self.rates[source] = rate

    @property
    def rate(self) -> float:
        """Events per second that are offered of the first source."""
        return next(iter(self.rates.values()))

    def calm(self, since: float, seconds: int, objective_ms: float) -> bool:
        """Whether the last so many seconds, none of them before ``since``, have a P99 of ``objective_ms`` at most."""
        found = [each.p99_ms for each in self.traffic.seconds[-seconds:] if each.second >= since]  # they ascend
        return len(found) == seconds and all(p99 is not None and p99 <= objective_ms for p99 in found)

    def autoscale(self, first: float, ask: Callable[[ScaleTo, str], object]) -> None:
        """Autoscale from the moment ``first`` on; see ``Autoscaler``."""
        assert self.feed is not None
        given = self.spec, self.system, self.traffic, self.feed, first, self.reporter.say
        self._autoscaler = Autoscaler(*given, ask)

    @property
    def scalings(self) -> Scalings:
        """What an autoscaler has decided so far."""
        return self._autoscaler.decisions if self._autoscaler else Scalings(len(self.spec.workload.stages))

    # -- the death of the query ---------------------------------------------------------------------------------------

    def surviving(self, step: Callable[[], T], then: Callable[[], T] | None = None) -> T:
        """Do ``step``, and after each death of the query that the run may survive ``then``, or ``step`` once more."""
        death: KeyshiftError | None = None
        while True:
            try:
                if death is not None:
                    self._recover(death)
                return step()
            except DEADLY as error:
                self.deaths.append(time.time())
                self.died_at.append(time.monotonic())
                self._allow_another(error)
                death, step = error, then or step

    def _allow_another(self, death: KeyshiftError) -> None:
        """Wait until the query may be started anew. Raises what ended it if it has died too often."""
        most = self.spec.run.recoveries
        pause_s = pause_before(self.died_at, most)
        if not most:
            raise death
        if pause_s is None:
            raise QueryDied(f"{death}; it died {most + 1} times within {WINDOW_S:g} s (recoveries = {most})") from death
        if pause_s:
            self.reporter.enter(Doing(Activity.RECOVERING))
            self.reporter.say(f"{death}; the next attempt begins in {pause_s:g} s")
            wait_until(self._require_wanted, pause_s)

    def _recover(self, death: KeyshiftError) -> None:
        what = "died" if isinstance(death, QueryDied) else "was given up"
        since_s = self.deaths[-1] - self.began_at
        moment = "before the load began" if not since_s > 0 else f"{since_s:.1f} s after the load began"
        self.reporter.say(f"{death}; starting anew")
        self.reporter.enter(Doing(Activity.RECOVERING))
        begin = time.perf_counter()
        self._ready()
        done_again = self.system.recover()
        self.system.note(
            f"the query {what} {moment} ({death}); everything since its {done_again} was done again, which was "
            f"under way after {time.perf_counter() - begin:.1f} s; steps that had not switched by then came "
            "afterwards; latency counts the first result of an event",
            NoteKind.DEATH,
        )
        self.reporter.enter(Doing(Activity.RECOVERED))
        self.backlog.begin_anew()


def pause_before(deaths: list[float], most: int) -> float | None:
    """Seconds until the next attempt, or None if there is none: ``most`` deaths are allowed within ``WINDOW_S``.

    ``deaths``: when each was, the last one now. The first two have no pause, and each pause is twice the one before.
    """
    recent = sum(death > deaths[-1] - WINDOW_S for death in deaths)
    if recent > most:
        return None
    return 0.0 if recent <= 2 else min(LONGEST_PAUSE_S, 2.0 ** (recent - 3))
