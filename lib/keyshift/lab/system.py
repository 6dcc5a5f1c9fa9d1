"""What a run can do with the system that it tries, and keyshift's own job as such a system."""

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from keyshift.driver.job import Job
from keyshift.endpoints import Endpoints
from keyshift.experiment.parts import JobPart
from keyshift.experiment.possible import slots_at_first
from keyshift.experiment.replicas import moves_apart
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import SNAPSHOTS, RunSpec
from keyshift.lab.judge.final_state import NOTHING_COPIED, FinalState, of_job
from keyshift.lab.live.failover import JobFailover
from keyshift.lab.live.status import SystemStatus
from keyshift.lab.plans.job_plans import JobPlans
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.notes import Activity, Note, NoteKind
from keyshift.model.records import Measured, PodUsed, Second
from keyshift.ordering import orderings
from keyshift.planner import Strategy
from keyshift.state import Settings, backends
from keyshift.traffic.topics import Topic
from keyshift.traffic.traffic import Traffic
from keyshift.wire import nodes
from keyshift.wire.config import Certificate, JobConfig
from keyshift.wire.faults import STEADY, Fault
from keyshift.workloads import Workload, parcel_of

if TYPE_CHECKING:
    from keyshift.lab.replicas.system import LiveReplicas

# A system that can be asked how it is while it runs: ``status``, ``activities`` and ``notes`` are for any thread.
LiveSystem: TypeAlias = "KeyshiftJob | LiveReplicas"
NEAR_US = 100_000  # beside two epochs: a replica that is not later than that keeps up
LOOK_WITHIN_S = 10.0  # for slots to tell who only looks what they have measured: nobody else is heard meanwhile
HOP = 0.75  # of the frame interval: a slot gathers results for so long before they go on to the next stage
# Parameters that tasks know by the same names; those of the numbers of tasks have another meaning there.
OF_TASKS = ({each.name for each in fields(JobConfig)} & JobPart.model_fields.keys()) - {"routers", "slots"}


class SystemUnderTest(Protocol):
    """A job that reads and writes the topics of ``traffic``, and can be changed while it runs. Its owner closes it.

    ``request``, ``cancel``, ``migrating`` and ``busy`` are for any thread, all else is for one controlling thread.
    Where the system waits, and in ``check``, it raises QueryDied if it has died and ``recover`` may help, else
    KeyshiftError.

    What has a body is what a system does that nothing can be asked of.
    """

    def start(self) -> None:
        """Start, and wait until every router and slot has put a first row through."""

    def check(self) -> None:
        """Raise if something has died; do what was requested and only the controlling thread can do."""

    def recover(self) -> str:
        """Start anew after QueryDied. Says from where: ``snapshot``, ``savepoint``, or ``beginning`` of the input."""

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Announce a change that will be requested: what can be done ahead may be done. ``point``: by this strategy."""
        return

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Ask for a migration of ``stage``, behind all others there or instead of what has not begun of them.

        None: of each stage that the scenario names. Raises BadInput if there is no such stage.
        """
        return

    def cancel(self) -> None:
        """Take back what has not begun."""
        return

    def measure(self, within_s: float = math.inf) -> Mapping[str, Mapping[int, Measured]]:
        """What each slot of each stage has measured since the system started or was recovered; see
        ``Questions.measure``. Nothing of slots that are not asked.
        """
        return {stage: {} for stage in self.owners}

    @property
    def owners(self) -> Mapping[str, Collection[int]]:
        """The slots of each stage that own state now."""

    @property
    def migrating(self) -> bool:
        """Whether a migration or a restart is to come or under way."""
        return False

    @property
    def busy(self) -> bool:
        """Whether anything is not over yet: migrations, and what a fault has taken away for a while."""
        return self.migrating

    def hit(self, fault: Fault) -> None:
        """Let a process of the system fail now. Raises BadInput if it cannot happen here."""
        raise BadInput(f"fault = {fault}: processes of this job are not hit")

    def note(self, line: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Add one more line to the notes of the final state."""

    def stop(self) -> None:
        """Answer what was offered until now, write the state down, and process nothing more."""

    def final_state(self) -> FinalState:
        """End the job, after ``stop``, and tell what came of it."""


def job_config(
    spec: RunSpec, name: str, endpoints: Endpoints, certificate: Certificate | None, backend: Settings | None = None
) -> JobConfig:
    """The configuration of the first attempt of a job, as seen by its first stage. ``backend``: settings, as served."""
    backend = backend or backends.get(spec.backend.name).settings(**spec.backend.settings)
    (stage, slots), *onward = slots_at_first(spec).items()
    return JobConfig(
        job=name,
        attempt=0,
        endpoints=endpoints,
        workload=spec.workload.name,
        parameters=spec.workload.model_dump(),
        parcel=parcel_of(type(spec.workload)),
        stage=stage,
        routers=spec.routers,
        sources=tuple(spec.routers_of.items()),
        slots=slots,
        onward=tuple(onward),
        hop_us=round(HOP * spec.run.frame_ms * 1000),
        key_groups=spec.workload.key_groups,
        bins=spec.workload.bins,
        backend=spec.backend.name,
        backend_settings=backend.model_dump(),
        backend_secret=backend.secret,
        token=secrets.token_urlsafe(24),
        certificate=certificate,
        heartbeat_us=round(spec.job.heartbeat_ms * 1000),
        apart=moves_apart(spec.job, spec.scenario),
        keep_snapshots=spec.run.verify == SNAPSHOTS,
        faults=tuple(fault for fault in spec.scenario.faults() if fault.phase not in ("", STEADY)),
        **{parameter: value for parameter, value in spec.job if parameter in OF_TASKS},
    )


def job_traffic(
    workload: Workload,
    config: JobConfig,
    results: int,
    work: Path,
    heard: Callable[[Second], None] = lambda second: None,
    configs: Sequence[JobConfig] = (),
) -> Traffic:
    """The traffic of the job of ``config``, with a topic for each source. What the collector writes is in ``work``.

    ``results``: partitions of their topic. ``heard``: see ``Traffic``. ``configs``: of its replicas, if it has some,
    each with a topic of results of its own.
    """
    events = [Topic.at(config.endpoints, each.topic, each.partitions) for each in config.inputs]
    topics = [Topic.at(each.endpoints, each.results_topic, results) for each in configs or [config]]
    output = work / f"{config.job}.parquet"
    given = workload, events, topics[0], output, heard, config.trace
    near_us, order = 2 * config.heartbeat_us + NEAR_US, None
    if orderings.get(config.ordering).leads:
        *before, _ = config.chain()
        order = Topic.at(config.endpoints, config.order_topic, sum(each.slots for each in before) + results)
    return Traffic(*given, others=topics[1:], near_us=near_us, apart=config.apart, order=order)


def used_by_pods(jobs: Callable[[], Iterable[Job]]) -> list[tuple[int | None, PodUsed]]:
    """What executors that are pods have used, as each slot and router has told last, behind its replica, if there are
    some; for any thread. Nothing of a job without an attempt.
    """
    used = list[tuple[int | None, PodUsed]]()
    for job in jobs():
        of = job.config.replica if job.config.replicated else None
        for stage in job.stages:
            with contextlib.suppress(ServiceUnavailable):
                used += ((of, told) for told in stage.participant.read_below(nodes.USED).values())
    return used


class KeyshiftJob:
    """A job of keyshift's own, without replicas. Another process can go on with it (``failover``)."""

    returning = False  # whether a replica is on its way back, or lives and is not full yet
    measured_of: int | None = None  # the replica of which ``measure`` told last

    def __init__(self, spec: RunSpec, job: Job) -> None:
        self._spec, self._job = spec, job
        self.plans = JobPlans(spec, job)
        self.failover = JobFailover(job, self.plans)
        self.identity = job.config.job, job.config.token  # the job's name, which is the run's id, and its secret
        # As they were when the job stopped.
        self._measured_at, self._copied = 0.0, NOTHING_COPIED
        self._measures: Mapping[str, Mapping[int, Measured]] = {}
        self._left_behind: dict[str, Collection[tuple[int, int]]] = {}
        self._incomplete: dict[str, bool] = {}

    def start(self) -> None:
        """Start each stage under the assignment of the spec."""
        self._job.start([self._spec.start(stage.name) for stage in self._job.stages])

    def check(self) -> None:
        """Make restarts, and end copies that nobody wants any more, when no migration is under way."""
        self._job.check()
        self.plans.end_left_copies()
        self.plans.begin_next()

    def recover(self) -> str:
        """Begin the job's next attempt."""
        self._job.recover()
        return self.begun_from

    @property
    def begun_from(self) -> str:
        """From where this attempt has begun: ``snapshot``, ``savepoint``, or ``beginning`` of the input."""
        if self._job.snapshots.last:
            return "snapshot"
        return "savepoint" if self._job.config.restore else "beginning"

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Begin copies that are kept all the time; see ``JobPlans.announce``."""
        self.plans.announce(change, point)

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Ask for a migration, which is planned when its turn comes."""
        self.plans.request(change, replace, stage)

    def cancel(self) -> None:
        """Take back what has not begun, of all stages."""
        self.plans.cancel()

    @property
    def migrating(self) -> bool:
        """Whether a restart or a migration is to come or under way."""
        return self.plans.busy

    @property
    def busy(self) -> bool:
        """Whether it migrates, or a service is away."""
        return self.migrating or self._job.faults.busy

    def measure(
        self, within_s: float = math.inf, progress: Callable[[], object] = lambda: None
    ) -> dict[str, dict[int, Measured]]:
        """Asks the slots; see ``Questions.measure``."""
        return {stage.name: stage.ask.measure(within_s, progress) for stage in self._job.stages}

    def status(self) -> SystemStatus:
        """What is known without asking anybody; for any thread. Bytes are those of the newest snapshot."""
        newest = self._job.snapshots.last
        return {
            "stages": {
                name: plans.status(newest.unit_bytes[name] if newest else None) for name, plans in self.plans.of.items()
            },
            "attempt": self._job.config.attempt,
            "snapshots": len(self._job.snapshots.taken),
            "snapshot_bytes": newest.bytes if newest else None,
            "notes": list(map(str, self.notes)),
        }

    @property
    def owners(self) -> dict[str, Collection[int]]:
        """The slots that own state, by the newest assignments."""
        return {stage.name: set(stage.assignment.owner) for stage in self._job.stages}

    def hit(self, fault: Fault) -> None:
        """Let a process fail: of slots, that of the first one."""
        self._job.faults.hit(fault)

    def note(self, line: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Add a line behind the notes of the job until now."""
        self._job.note(line, kind)

    @property
    def activities(self) -> dict[str, Activity]:
        """What happens to the state of each stage now, as its coordinator says; for any thread."""
        return {stage.name: stage.doing.activity for stage in self._job.stages}

    @property
    def notes(self) -> list[Note]:
        """What has not gone as planned so far; for any thread."""
        return self._job.notes_so_far

    def stop_at(self, at_us: int) -> int:
        """Appoint the last savepoint, which ``stop`` takes then; see ``Job.call_savepoint``."""
        return self._job.call_savepoint(at_us)

    def stop(self) -> None:
        """Measure, then take the last savepoint; once more after ``recover``. Neither is late while results come."""
        self._measures = self.measure(progress=lambda: self._job.output.received)
        self._measured_at = time.time()
        self._copied = self.plans.copied()
        self._job.savepoint()
        self._left_behind = {name: plans.led.ask.left_behind() for name, plans in self.plans.of.items()}
        self._incomplete = {name: plans.incomplete for name, plans in self.plans.of.items()}
        self._job.read_log()

    def final_state(self) -> FinalState:
        """The final state of the job, with the plans that were made for it."""
        self._job.stop()
        scenario, done = self._spec.scenario, self._job.faults.done
        for fault in scenario.faults():
            if not fault.ends_query and fault not in done:  # those that end the query show by its deaths
                self.note(f"fault = {scenario.fault}: {fault} did not happen")
        final = of_job(
            self._job,
            self._left_behind,
            measured_at=self._measured_at,
            planned_s=max((s for plans in self.plans.of.values() if (s := plans.planned_s) is not None), default=None),
            copied=self._copied,
            struck=self._job.faults.struck,
        )
        stages = [
            replace(
                stage,
                decisions=plans.past.decisions,
                to_move=plans.to_move(),
                measures=self._measures[name],
                incomplete=self._incomplete[name],
            )
            for stage, (name, plans) in zip(final.stages, self.plans.of.items(), strict=True)
        ]
        return replace(final, stages=stages)
