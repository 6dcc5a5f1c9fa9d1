"""What a run can do with the system that it tries, and keyshift's own job as such a system."""

import secrets
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

from keyshift.clock import SECOND_US
from keyshift.endpoints import Endpoints
from keyshift.executor.config import Certificate, JobConfig
from keyshift.executor.faults import Fault
from keyshift.executor.job import Job
from keyshift.executor.leader import MakeSteps
from keyshift.executor.led_stage import LedStage
from keyshift.keys import Assignment, Move, Step
from keyshift.lab.final_state import FinalState, of_job
from keyshift.lab.scenario import Balance, Change
from keyshift.lab.spec import RunSpec
from keyshift.planner import Decision, Strategy, make_plan
from keyshift.progress import Say

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

    def announce(self, change: Change) -> None:
        """A change that will be requested: what can be done ahead may be done."""

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Ask for a migration of ``stage``, behind all others there or instead of what has not begun of them.

        None: of each stage that the scenario names. Raises BadInput if there is no such stage.
        """

    def cancel(self) -> None:
        """Take back what has not begun."""

    def measure(self) -> Mapping[int, Mapping[str, Any]]:
        """What each slot has measured since the system started or was recovered; see ``Job.measure``."""

    @property
    def owners(self) -> Collection[int]:
        """The slots that own state now."""

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet."""

    def hit(self, fault: Fault) -> None:
        """A process of the system fails now."""

    def note(self, line: str) -> None:
        """One more line for the troubles of the final state."""

    def stop(self) -> None:
        """Answer what was offered until now, write the state down, and process nothing more."""

    def final_state(self) -> FinalState:
        """End the job, after ``stop``, and tell what came of it."""


def job_config(spec: RunSpec, name: str, endpoints: Endpoints, certificate: Certificate | None) -> JobConfig:
    """The first attempt of the job of ``spec``, as seen by its first stage, with a secret of its own."""
    tasks = dict.fromkeys(spec.tasks, spec.job.slots) if spec.point().restarts else spec.tasks
    (stage, slots), *onward = tasks.items()
    return JobConfig(
        job=name,
        attempt=0,
        endpoints=endpoints,
        workload=spec.workload.name,
        parameters=spec.workload.model_dump(),
        stage=stage,
        routers=spec.job.routers,
        slots=slots,
        onward=tuple(onward),
        hop_us=round(HOP * spec.run.frame_ms * 1000),
        key_groups=spec.workload.key_groups,
        bins=spec.workload.bins,
        queue_bytes=spec.job.queue_bytes,
        backend=spec.backend.name,
        backend_settings=spec.backend.settings,
        token=secrets.token_urlsafe(24),
        certificate=certificate,
        chunk_bytes=spec.job.chunk_bytes,
        deadline_s=spec.job.deadline_s,
        snapshot_s=spec.job.snapshot_s,
        fault=next((fault for fault in spec.scenario.faults() if fault.phase), None),
    )


class KeyshiftJob:
    """Makes plans for the requests to a job, has copies made, and restarts it where the strategy says so."""

    def __init__(self, spec: RunSpec, job: Job, say: Say) -> None:
        self._spec, self._job, self._say = spec, job, say
        self._point = spec.point()
        self._stages = {stage.name: _Migrations() for stage in job.stages}
        self._restarts: deque[tuple[str, MakeSteps]] = deque()  # that were requested
        self._planned_s: float | None = None
        self._replicate_s: float | None = None
        self._told: dict[str, Any] = {}  # at the end

    def start(self) -> None:
        """Each stage under the assignment of the spec."""
        self._job.start([self._spec.start()] * len(self._job.stages))

    def check(self) -> None:
        """Restarts are made here."""
        self._job.check()
        if self._restarts:
            name, make_steps = self._restarts.popleft()
            target = self._job.stage(name).assignment
            for step in make_steps(target):
                target = target.after(step)
            self._job.restart(name, target)

    def recover(self) -> str:
        """The job's next attempt."""
        self._job.recover()
        if self._job.snapshots:
            return "snapshot"
        return "savepoint" if self._job.config.restore else "beginning"

    def announce(self, change: Change) -> None:
        """Copies that are kept all the time are begun, if the target is where they go."""
        point = self._point.phase(0)
        for stage in map(self._job.stage, self._spec.moving if point.replicas == "periodic" else []):
            current, heat = stage.assignment, self._heat(stage)
            target = self._spec.target(current, change)
            self._copy(stage, make_plan(point, current, target, heat, self._spec.workload.seed).copies, point)

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """It is planned when its turn comes."""
        for name in [stage] if stage else self._spec.moving:
            led = self._job.stage(name)
            make_steps = partial(self._plan, led, next(self._stages[name].numbers), change)
            if self._point.restarts:
                self._restarts.append((name, make_steps))
            else:
                led.request(make_steps, replace)

    def cancel(self) -> None:
        """Restarts that have not begun, too; of all stages."""
        self._restarts.clear()
        for stage in self._job.stages:
            stage.cancel()

    @property
    def busy(self) -> bool:
        """Whether a restart or a migration is to come or under way."""
        return bool(self._restarts) or any(stage.busy for stage in self._job.stages)

    def measure(self) -> Mapping[int, Mapping[str, Any]]:
        """Of the stage that migrates, the first of several."""
        return self._job.stage(self._spec.moving[0]).measure()

    @property
    def owners(self) -> Collection[int]:
        """By the newest assignment of that stage."""
        return set(self._job.stage(self._spec.moving[0]).assignment.owner)

    def hit(self, fault: Fault) -> None:
        """That of the first slot."""
        self._job.hit(fault)

    def note(self, line: str) -> None:
        """Behind the troubles of the job until now."""
        self._job.troubles.append(line)

    def stop(self) -> None:
        """Measure, then take the last savepoint; once more after ``recover``."""
        for stage in self._job.stages:
            self._stages[stage.name].measures = stage.measure()
        self._told = {"measured_at": time.time(), "bytes_copied": self._copied()}
        self._job.savepoint()
        self._told["left_behind"] = {stage.name: stage.left_behind() for stage in self._job.stages}
        self._job.read_log()

    def final_state(self) -> FinalState:
        """Of the job, with the plans that were made for it."""
        self._job.stop()
        if self._planned_s is None and self._spec.changes:  # nothing was planned
            for name in self._spec.moving:
                self._wants(name, self._spec.start(), self._spec.target(self._spec.start()))
        return of_job(
            self._job,
            **self._told,
            of_stages={
                name: {"decisions": each.decisions, "to_move": each.to_move, "measures": each.measures}
                for name, each in self._stages.items()
            },
            planned_s=self._planned_s or 0.0,
            replicate_s=self._replicate_s,
        )

    # -- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, stage: LedStage, number: int, change: Change, current: Assignment) -> tuple[Step, ...]:
        """The steps of the ``number``-th migration of a stage, from where the units are by now; copies first, if it
        wants some.
        """
        begin = time.perf_counter()
        point = self._point.phase(number)
        heat = self._heat(stage) if point.order == "hottest" or isinstance(change, Balance) else []
        target = self._spec.target(current, change, heat)
        self._wants(stage.name, current, target)
        plan = make_plan(point, current, target, heat, self._spec.workload.seed)
        self._stages[stage.name].decisions += [(number, decision) for decision in plan.decisions]
        if self._planned_s is None:
            self._planned_s = time.perf_counter() - begin
        if plan.copies and point.replicas == "warm_up":
            self._say("copying")
            copying = time.perf_counter()
            self._copy(stage, plan.copies, point)
            stage.await_copies()
            self._replicate_s = (self._replicate_s or 0.0) + time.perf_counter() - copying
        elif number and plan.copies:
            self._copy(stage, plan.copies, point)
        return plan.steps

    def _wants(self, stage: str, current: Assignment, target: Assignment) -> None:
        self._stages[stage].to_move |= {move.unit for move in current.moves_to(target)}

    def _heat(self, stage: LedStage) -> list[float]:
        """Records per second of each unit since the attempt began."""
        heat = [0.0] * len(stage.assignment.owner)
        for measures in stage.measure().values():
            for unit, number in measures["records"]:
                heat[unit] += number / measures["seconds"]
        return heat

    def _copy(self, stage: LedStage, copies: tuple[Move, ...], point: Strategy) -> None:
        job = self._spec.job
        if copies:
            stage.copy(copies, job.copy_every_s, job.copy_lag_keys, point.handover == "whole")

    def _copied(self) -> int | None:
        """Bytes of copies sent until they were close; None if nothing was copied."""
        of_stages = [stage.await_copies() for stage in self._job.stages]
        answers = [answer for said in of_stages if said is not None for answer in said.values()]
        if all(said is None for said in of_stages):
            return None
        if self._replicate_s is None:
            self._replicate_s = max((a["at_us"] - a["began_us"]) / SECOND_US for a in answers)
        return sum(answer["bytes"] for answer in answers)


@dataclass
class _Migrations:
    """What was planned for a stage, and what its slots measured in the end."""

    numbers: Iterator[int] = field(default_factory=count)  # of its migrations
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    to_move: set[int] = field(default_factory=set)
    measures: dict[int, dict[str, Any]] = field(default_factory=dict)
