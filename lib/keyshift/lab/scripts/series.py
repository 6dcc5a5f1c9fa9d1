"""Several migrations of one running job, each measured as a run of its own: a point of a sweep costs seconds.

A *lap* is a quiet time, one migration by the strategy of its spec, and the time until latency is normal again. Then the
units go back to where they were, all at once and unmeasured, so that every lap begins alike. Before the first one the
units move there and back for practice, because whatever a job does for the first time takes longer. Verdicts are of the
whole job: a fault in any lap makes all of them bad.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

from keyshift.analysis import metrics
from keyshift.experiment.parts import Choice
from keyshift.experiment.scenario import Map, ScenarioPart
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.evaluation import EndedJob, Evaluation, Span, bytes_beside
from keyshift.lab.judge.final_state import CopiedAhead
from keyshift.lab.run_loop import LOOK_S, RunLoop, Script, ScriptStep
from keyshift.lab.system import KeyshiftJob
from keyshift.model.errors import MigrationFailed
from keyshift.model.notes import Activity, Doing
from keyshift.planner import Strategy
from keyshift.results.manifest import Verdict

BACK = "all_at_once"  # how units go back after a lap
CALM_S = metrics.HOLD_S + 1  # so many seconds of normal latency end a lap
QUIET_S = 3.0  # before each migration, at the least
OF_A_SERIES = (
    "one of several migrations of one running job, after one for practice; the verdict is of the whole job, and peak "
    "memory is that of the job until then"
)


@dataclass(frozen=True)
class Lap:
    """What is known of a lap when it is over.

    ``planned_s``: how long its plan took. ``numbers``: of its migration, by stage. ``incomplete``: whether some of its
    units did not come.
    """

    spec: RunSpec
    span: Span
    planned_s: float
    numbers: Mapping[str, int]
    incomplete: bool
    copied: CopiedAhead
    bytes_beside: int
    notes: Sequence[str]


def one_job(specs: Sequence[RunSpec]) -> RunSpec | None:
    """The job in which each of ``specs`` can be a lap, or None if they need several, or runs of their own. It may need
    more cores than any of them.

    They may differ in strategy, trigger and measured time. Faults, several migrations in a run, changes of the rate
    or of the events, events of a file, replicas and the autoscaler belong to a run of its own.
    """
    first = specs[0]
    if any(_alone(spec) or job_of(spec) != job_of(first) for spec in specs):
        return None
    most = max(spec.tasks[stage] for spec in specs for stage in spec.moving)
    run = first.run.model_copy(update={"recoveries": 0})  # laps are compared with each other: the job must not die
    at_once = Choice(name=BACK, settings={"bins": first.workload.bins, "unit": "bin"})
    scenario = ScenarioPart(stage=first.scenario.stage, trigger_s=0.0, to_slots=most)  # there is room for all of them
    return replace(first, run=run, strategy=at_once, scenario=scenario)


def by_job(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """``specs``, those that only one job could have as laps together."""
    together: dict[str, list[RunSpec]] = {}
    for spec in specs:
        together.setdefault(job_of(spec), []).append(spec)
    return [*together.values()]


def with_jobs(specs: Sequence[RunSpec]) -> list[tuple[list[RunSpec], RunSpec | None]]:
    """``specs`` as by ``by_job``, each time with the job in which they are laps. None if each has a job of its own, as
    all have where no two runs can share one. Raises BadInput for a job that is not possible.
    """
    groups = [(some, one_job(some)) for some in by_job(specs)]
    shared = any(job is not None and sum(spec.run.repetitions for spec in some) > 1 for some, job in groups)
    return [(some, job if shared else None) for some, job in groups]


def judged(specs: Sequence[RunSpec]) -> Iterator[tuple[RunSpec, float]]:
    """Give, for each verdict on ``specs`` if those that can be are laps of one job, one that it is on, and the seconds
    of load that it is on, at the most: those of all laps, whose verdict is one.
    """
    for some in by_job(specs):
        if any(map(_alone, some)):
            yield from ((spec, spec.run.load_s) for spec in some)
        else:
            yield some[0], some[0].run.warmup_s + sum(spec.run.seconds * spec.run.repetitions for spec in some)


def as_stored(job: RunSpec, specs: Sequence[RunSpec]) -> Sequence[RunSpec]:
    """``specs``, laps of ``job``, with the slots that it has: rows come into all of them, whatever a lap needs.

    Those of a chain are left as they are: other stages may have fewer slots.
    """
    if len(job.tasks) > 1 or all(spec.tasks == job.tasks for spec in specs):
        return specs
    more = {"slots_max": max(job.tasks.values())}
    return [replace(spec, job=spec.job.model_copy(update=more)) for spec in specs]


def _alone(spec: RunSpec) -> bool:
    several = spec.job.replicas > 1 or len(spec.changes) != 1
    changes = spec.run.rate_steps or any(source.drifts for source in spec.workload.sources)
    return bool(several or spec.scenario.fault or changes or spec.run.events)


def job_of(spec: RunSpec) -> str:
    """A text that is the same for all runs that can be laps of one job."""
    run = spec.run.model_dump(exclude={"seconds", "repetitions"})
    return repr((run, spec.unsettled, spec.job, spec.workload, spec.backend, spec.scenario.stage))


class Series:
    """A lap for each of ``specs``, in this order. Verdict and evaluations are there when it has run."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        self._specs = specs
        self._laps: list[Lap] = []

    def script(self, run: RunLoop) -> Script:
        """Carry out the laps in the job of ``run``. Raises KeyshiftError if that dies, a migration hangs, or units
        do not go back.
        """
        self._run, self._system = run, cast(KeyshiftJob, run.system)
        specs, reporter = self._specs, run.reporter
        with reporter.bar(run.spec.run.warmup_s + sum(spec.run.seconds for spec in specs), "series"):
            yield run.began_at + run.spec.run.warmup_s
            reporter.enter(Doing(Activity.MOVING, "practice"))
            yield from self._migrate(specs[0], run.spec.point())
            yield from self._go_back()
            for number, spec in enumerate(specs, 1):
                reporter.enter(Doing(Activity.STEADY, f"{number}/{len(specs)} {spec.strategy.name}"))
                yield from self._lap(spec)

    def evaluations(self) -> list[tuple[Span, Evaluation]]:
        """Give, for each lap, when it was and what came of it. Ends the system."""
        ended, wrong = self._run.end(), self._run.measured_wrong
        verdict, laps = ended.verdict(), [replace(lap, notes=[*lap.notes, *wrong]) for lap in self._laps]
        return [(lap.span, evaluation_of(ended, lap, verdict)) for lap in laps]

    def _lap(self, spec: RunSpec) -> Script:
        self._run.strategy = spec.strategy.name
        system, run, point = self._system, spec.run, spec.point().of_migration(0)
        yield from self._await_calm(time.time(), time.time() + run.seconds, 2)
        begin, told = time.time(), len(system.notes)
        system.announce(spec.changes[0], point)
        yield begin + max(QUIET_S, spec.scenario.trigger_s)
        attempt, sent = system.status()["attempt"], bytes_beside(system.measure().values())
        trigger = time.time()
        planned_s, numbers = yield from self._migrate(spec, point)
        yield from self._await_calm(time.time(), trigger + run.seconds - spec.scenario.trigger_s, CALM_S)
        span = Span(begin, begin, time.time(), trigger)
        incomplete = not self._complete(numbers)
        restarted = system.status()["attempt"] != attempt  # slots count from the beginning of their attempt
        sent = bytes_beside(system.measure().values()) - (0 if restarted else sent)
        copied, notes = system.plans.copied(), list(map(str, system.notes[told:]))
        system.plans.end_copies()
        yield from self._go_back()
        self._laps.append(Lap(spec, span, planned_s, numbers, incomplete, copied, sent, notes))

    def _migrate(self, spec: RunSpec, point: Strategy) -> Generator[ScriptStep, None, tuple[float, dict[str, int]]]:
        """Migrate until it is over. Gives seconds for the plans, and the numbers of the migrations."""
        system, begin = self._system, time.perf_counter()
        proposals = [system.plans.propose(stage, spec.changes[0], point) for stage in spec.moving]
        planned_s = time.perf_counter() - begin
        numbers = {each.stage: system.plans.adopt(each) for each in proposals}
        yield from self._await_end(numbers)
        return planned_s, numbers

    def _go_back(self) -> Script:
        """Move units back to where they were at first. Raises MigrationFailed if some did not come there."""
        spec = self._run.spec
        homes = {stage: enumerate(spec.start(stage).owner[:: spec.workload.bins]) for stage in spec.moving}
        back = [
            self._system.plans.propose(
                stage, Map({group: int(slot) for group, slot in home}, spec.slots_of[stage]), spec.point()
            )
            for stage, home in homes.items()
        ]
        numbers = {each.stage: self._system.plans.adopt(each) for each in back}
        yield from self._await_end(numbers)
        if not self._complete(numbers):  # the next lap would not begin as the others
            raise MigrationFailed("units did not go back to where they were before a migration")

    def _complete(self, numbers: Mapping[str, int]) -> bool:
        return all(self._system.plans.ended(stage, number) for stage, number in numbers.items())

    def _await_end(self, numbers: Mapping[str, int]) -> Script:
        within_s = self._run.spec.job.deadline_s + self._run.spec.run.catch_up_s
        end = time.time() + within_s
        while any(self._system.plans.ended(stage, number) is None for stage, number in numbers.items()):
            if time.time() > end:
                raise MigrationFailed(f"a migration was not over within {within_s:g} s")
            yield time.time() + LOOK_S

    def _await_calm(self, since: float, until: float, seconds: int) -> Script:
        """Wait for so many seconds of normal latency in a row, none before ``since``; at most until ``until``.

        Normal is what it was in the median second under load so far: migrations are the lesser part of them.
        """
        told, begin = self._run.traffic.seconds, self._run.began_at
        p99s_ms = [each.p99_ms for each in told if each.second >= begin and each.p99_ms is not None]
        objective_ms = metrics.objective_ms(median(p99s_ms or [0.0]))
        while time.time() < until and not self._run.calm(since, seconds, objective_ms):
            yield time.time() + LOOK_S


def evaluation_of(ended: EndedJob, lap: Lap, verdict: Verdict) -> Evaluation:
    """The evaluation of a lap; ``verdict`` is that of the job."""
    span, left = lap.span, ended.unprocessed_in(lap.span)
    tables = ended.tables(span, lap.numbers)
    made, due = ended.counted(span)
    number = ended.offered_for(made) + left
    offered = {"took_s": span.end - span.start, "events": number, "unprocessed": left, "planned": number, "due": due}
    pushed = lap.spec.point().of_migration(0).mode.transfer == "push"
    facts = ended.facts(span, tables, offered, lap.copied, pushed)
    facts |= {"planned_s": lap.planned_s, "bytes_beside": lap.bytes_beside, "incomplete": lap.incomplete}
    facts["one_job"] = True
    return Evaluation(tables, verdict, facts, [*lap.notes, *ended.notes, OF_A_SERIES])
