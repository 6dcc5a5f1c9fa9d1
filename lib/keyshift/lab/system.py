"""What a run can do with the system that it tries, and keyshift's own job as such a system."""

import secrets
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from keyshift.driver.job import Job, Past
from keyshift.driver.leader import MakeSteps
from keyshift.driver.stage import LedStage
from keyshift.endpoints import Endpoints
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import SNAPSHOTS, RunSpec
from keyshift.lab.judge.final_state import FinalState, of_job
from keyshift.lab.stage_plans import PlansPast, Proposal, StagePlans
from keyshift.model.errors import QueryDied
from keyshift.model.notes import Note, Phase
from keyshift.model.records import Measured
from keyshift.planner import Strategy
from keyshift.state import Settings, backends
from keyshift.traffic.topics import Epochs
from keyshift.wire.config import Certificate, JobConfig
from keyshift.wire.faults import Fault
from keyshift.workloads import parcel_of

HOP = 0.75  # of the frame interval: a slot gathers results for so long before they go on to the next stage


class SystemUnderTest(Protocol):
    """A job that reads and writes the topics of ``traffic``, and can be changed while it runs. Its owner closes it.

    ``request``, ``cancel`` and ``busy`` are for any thread, all else is for one controlling thread. Where the system
    waits, and in ``check``, it raises QueryDied if it has died and ``recover`` may help, else KeyshiftError.
    """

    def start(self) -> None:
        """Until every router and slot has put a first row through."""

    def check(self) -> None:
        """Raises if something has died; does what was requested and only the controlling thread can do."""

    def recover(self) -> str:
        """Start anew after QueryDied. Says from where: ``snapshot``, ``savepoint``, or ``beginning`` of the input."""

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """A change that will be requested: what can be done ahead may be done. ``point``: by this strategy."""

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Ask for a migration of ``stage``, behind all others there or instead of what has not begun of them.

        None: of each stage that the scenario names. Raises BadInput if there is no such stage.
        """

    def cancel(self) -> None:
        """Take back what has not begun."""

    def measure(self) -> Mapping[str, Mapping[int, Measured]]:
        """What each slot of each stage has measured since the system started or was recovered; see
        ``Questions.measure``.
        """

    @property
    def owners(self) -> Mapping[str, Collection[int]]:
        """The slots of each stage that own state now."""

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet."""

    def hit(self, fault: Fault) -> None:
        """A process of the system fails now."""

    def note(self, line: str) -> None:
        """One more line for the notes of the final state."""

    def stop(self) -> None:
        """Answer what was offered until now, write the state down, and process nothing more."""

    def final_state(self) -> FinalState:
        """End the job, after ``stop``, and tell what came of it."""


@dataclass(frozen=True)
class SystemJournal:
    """What another process needs to go on with a job: who the job is, and its way so far.

    Events, results and snapshots are in Kafka and MinIO, and what has happened since is in ZooKeeper. ``token`` is the
    job's secret; ``attempt`` and ``slots`` (of each stage) are those under way.
    """

    run_id: str
    token: str
    attempt: int
    slots: dict[str, int]
    past: Past
    plans: dict[str, PlansPast]


class LiveSystem(SystemUnderTest, Protocol):
    """A system that can be asked for plans, and how it is, while it runs."""

    def propose(self, stage: str, change: Change, point: Strategy | None = None) -> Proposal:
        """The plan for a change, which is not requested. ``point``: instead of the system's own strategy."""

    def adopt(self, proposal: Proposal) -> int:
        """Ask for what was proposed, behind all else of the stage. Gives its number there, from 0."""

    def ended(self, stage: str, number: int) -> bool | None:
        """Whether all units came where this migration wanted them; None while it is to come or under way."""

    def require_driver(self) -> None:
        """Raises Deposed if another process has claimed the job."""

    def kept(self) -> None:
        """The journal that was told last is written down: what only older ones refer to may go."""

    def journal(self) -> SystemJournal:
        """What another process needs to go on. Raises Deposed if another one has claimed the job."""

    def claim(self, journal: SystemJournal) -> int:
        """Be the driver of the job that the journal is of, before anything else; gives the epoch."""

    def resume(self, journal: SystemJournal, epochs: Epochs) -> str:
        """Go on from there, instead of ``start``. Says from where, as ``recover``. ``epochs``: of the input."""

    def copied(self) -> dict[str, Any]:
        """``bytes_copied`` ahead of migrations, and ``replicate_s``, how long that took; None if there were none."""

    def end_copies(self) -> None:
        """Keep no copies for what comes now."""

    def status(self) -> dict[str, Any]:
        """What is known of each stage and of snapshots, without asking anybody; for any thread."""

    @property
    def notes(self) -> Sequence[Note]:
        """What has not gone as planned so far; for any thread."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        """What happens to the state of each stage now, as its coordinator says; for any thread."""


def job_config(
    spec: RunSpec, name: str, endpoints: Endpoints, certificate: Certificate | None, backend: Settings | None = None
) -> JobConfig:
    """The first attempt of the job of ``spec``, as seen by its first stage, with a secret of its own.

    ``backend``: its settings, as served.
    """
    backend = backend or backends.get(spec.backend.name).settings(**spec.backend.settings)
    tasks = dict.fromkeys(spec.tasks, spec.job.slots) if spec.point().restarts else spec.tasks
    (stage, slots), *onward = tasks.items()
    return JobConfig(
        job=name,
        attempt=0,
        endpoints=endpoints,
        workload=spec.workload.name,
        parameters=spec.workload.model_dump(),
        parcel=parcel_of(type(spec.workload)),
        stage=stage,
        routers=spec.job.routers,
        slots=slots,
        onward=tuple(onward),
        hop_us=round(HOP * spec.run.frame_ms * 1000),
        key_groups=spec.workload.key_groups,
        bins=spec.workload.bins,
        queue_bytes=spec.job.queue_bytes,
        backend=spec.backend.name,
        backend_settings=backend.model_dump(),
        backend_secret=backend.secret,
        token=secrets.token_urlsafe(24),
        certificate=certificate,
        chunk_bytes=spec.job.chunk_bytes,
        deadline_s=spec.job.deadline_s,
        snapshot_s=spec.job.snapshot_s,
        keep_snapshots=spec.run.verify == SNAPSHOTS,
        faults=tuple(fault for fault in spec.scenario.faults() if fault.phase),
    )


class KeyshiftJob:
    """Has plans made for the requests to a job, and restarts it where the strategy says so."""

    def __init__(self, spec: RunSpec, job: Job) -> None:
        self._spec, self._job = spec, job
        self._plans = {stage.name: StagePlans(spec, stage, self._job.notes.append) for stage in job.stages}
        self._moving = [self._plans[job.stage(name).name] for name in spec.moving]
        self._restarts: deque[tuple[str, MakeSteps]] = deque()  # that were requested
        self._told: dict[str, Any] = {}  # at the end
        self._past: Past | None = None  # in the journal that was told last

    def start(self) -> None:
        """Each stage under the assignment of the spec."""
        self._job.start([self._spec.start()] * len(self._job.stages))

    def check(self) -> None:
        """Restarts are made here, when no migration is under way."""
        self._job.check()
        if self._restarts and not self._migrating:
            name, make_steps = restart = self._restarts.popleft()
            try:
                self._restart(self._job.stage(name), make_steps)
            except QueryDied:
                self._restarts.appendleft(restart)  # of the next attempt
                raise

    def _restart(self, stage: LedStage, make_steps: MakeSteps) -> None:
        target = stage.assignment
        for step in make_steps(target):
            target = target.after(step)
        self._job.restart(stage.name, target, 0 if self._spec.point().restarts else stage.config.slots)

    def recover(self) -> str:
        """The job's next attempt."""
        self._job.recover()
        return self._from_where()

    def _from_where(self) -> str:
        if self._job.snapshots:
            return "snapshot"
        return "savepoint" if self._job.config.restore else "beginning"

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Copies that are kept all the time are begun, if the target is where they go."""
        for plans in self._moving:
            plans.announce(change, point)

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """It is planned when its turn comes."""
        restarts = self._spec.point().restarts
        for plans in [self._plans[self._job.stage(stage).name]] if stage else self._moving:
            self._ask(plans, partial(plans.steps, plans.next_number(change), change, None), restarts, replace)

    def propose(self, stage: str, change: Change, point: Strategy | None = None) -> Proposal:
        """As the next migration would be planned now."""
        return self._plans[stage].propose(change, point)

    def adopt(self, proposal: Proposal) -> int:
        """It is planned anew if the state is elsewhere when its turn comes."""
        plans = self._plans[proposal.stage]
        number = plans.next_number(proposal.change)
        self._ask(plans, partial(plans.steps, number, proposal.change, proposal), proposal.point.restarts)
        return number

    def _ask(self, plans: StagePlans, make_steps: MakeSteps, restarts: bool, replace: bool = False) -> None:
        if restarts:
            self._restarts.append((plans.led.name, make_steps))
        else:
            plans.led.request(make_steps, replace)

    def ended(self, stage: str, number: int) -> bool | None:
        """A migration is over when the next one of the stage is planned, or nothing is under way there."""
        plans, waiting = self._plans[stage], {name for name, _ in self._restarts}
        return plans.ended(number, stage in waiting or plans.led.busy)

    def cancel(self) -> None:
        """Restarts that have not begun, too; of all stages."""
        self._restarts.clear()
        for stage in self._job.stages:
            stage.cancel()

    @property
    def busy(self) -> bool:
        """Whether a restart or a migration is to come or under way, or a service is away."""
        return bool(self._restarts) or self._migrating or self._job.strikes.busy

    @property
    def _migrating(self) -> bool:
        return any(stage.busy for stage in self._job.stages)

    def measure(self) -> dict[str, dict[int, Measured]]:
        """Asks the slots."""
        return {stage.name: stage.ask.measure() for stage in self._job.stages}

    def require_driver(self) -> None:
        """Of the job."""
        self._job.require_driver()

    def journal(self) -> SystemJournal:
        """Of the job and of the plans that were made for it."""
        self.require_driver()
        config, plans = self._job.config, {name: each.past() for name, each in self._plans.items()}
        slots = {each.stage: each.slots for each in config.chain()}
        self._past = self._job.past()
        return SystemJournal(config.job, config.token, config.attempt, slots, self._past, plans)

    def kept(self) -> None:
        """Snapshots of older ones."""
        if self._past is not None:
            self._job.snapshots.journaled({snapshot.name for snapshot in self._past.snapshots})

    def claim(self, journal: SystemJournal) -> int:
        """With the secret that is in the journal."""
        self._job.config = self._config_of(journal)
        return self._job.claim()

    def resume(self, journal: SystemJournal, epochs: Epochs) -> str:
        """With the numbers of migrations going on where they were."""
        for name, plans in self._plans.items():
            plans.resume(journal.plans[name])
        self._job.config = replace(self._config_of(journal), epochs=epochs)
        self._job.resume(journal.past)
        return self._from_where()

    def _config_of(self, journal: SystemJournal) -> JobConfig:
        """As in the attempt that was under way."""
        return replace(self._job.config.with_slots(journal.slots), attempt=journal.attempt, token=journal.token)

    def status(self) -> dict[str, Any]:
        """Bytes are those of the newest snapshot."""
        newest = self._job.snapshots[-1] if self._job.snapshots else None
        return {
            "stages": {
                name: plans.status(newest.unit_bytes[name] if newest else None) for name, plans in self._plans.items()
            },
            "attempt": self._job.config.attempt,
            "snapshots": len(self._job.snapshots.taken),
            "snapshot_bytes": newest.bytes if newest else None,
            "notes": list(map(str, self.notes)),
        }

    @property
    def owners(self) -> dict[str, Collection[int]]:
        """By the newest assignments."""
        return {stage.name: set(stage.assignment.owner) for stage in self._job.stages}

    def hit(self, fault: Fault) -> None:
        """That of the first slot."""
        self._job.strikes.hit(fault)

    def note(self, line: str) -> None:
        """Behind the notes of the job until now."""
        self._job.note(line)

    @property
    def phases(self) -> dict[str, Phase]:
        """By the names of the stages."""
        return {stage.name: stage.doing.phase for stage in self._job.stages}

    @property
    def notes(self) -> list[Note]:
        """Of the job."""
        return self._job.notes_so_far

    def stop(self) -> None:
        """Measure, then take the last savepoint; once more after ``recover``."""
        measures = self.measure()
        self._told = {"measured_at": time.time()} | self.copied()
        self._job.savepoint()
        self._told["of_stages"] = {
            name: {"measures": measures[name], "left_behind": plans.led.ask.left_behind()}
            for name, plans in self._plans.items()
        }
        self._job.read_log()

    def copied(self) -> dict[str, Any]:
        """Waits until copies are close."""
        copied = [each for plans in self._plans.values() if (each := plans.copied())]
        waited = [s for plans in self._plans.values() if (s := plans.replicate_s) is not None]
        return {
            "bytes_copied": sum(each.bytes for each in copied) if copied else None,
            "replicate_s": max(waited or (each.seconds for each in copied), default=None),
        }

    def end_copies(self) -> None:
        """Of all stages."""
        for plans in self._plans.values():
            plans.end_copies()

    def final_state(self) -> FinalState:
        """Of the job, with the plans that were made for it."""
        self._job.stop()
        self._note_missed_faults()
        for plans in self._plans.values():
            plans.wants_unplanned()
        for name, plans in self._plans.items():
            self._told["of_stages"][name] |= {"decisions": plans.decisions, "to_move": plans.to_move or set()}
        planned_s = max((plans.planned_s or 0.0 for plans in self._plans.values()), default=0.0)
        return of_job(self._job, **self._told, planned_s=planned_s, struck=self._job.strikes.struck)

    def _note_missed_faults(self) -> None:
        """Those that end the query show by its deaths."""
        for fault in self._spec.scenario.faults():
            if not fault.ends_query and fault not in self._job.strikes.done:
                self.note(f"fault = {self._spec.scenario.fault}: {fault} did not happen, its phase never came")
