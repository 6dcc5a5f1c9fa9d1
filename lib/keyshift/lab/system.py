"""What a run can do with the system that it tries, and keyshift's own job as such a system."""

import secrets
import time
from collections import deque
from functools import partial
from itertools import count
from typing import Any, Protocol

from keyshift.clock import SECOND_US
from keyshift.endpoints import Endpoints
from keyshift.executor.config import Certificate, JobConfig
from keyshift.executor.faults import Fault
from keyshift.executor.job import Job
from keyshift.executor.leader import MakeSteps
from keyshift.keys import Assignment, Move, Step
from keyshift.lab.final_state import FinalState, of_job
from keyshift.lab.scenario import Balance, Change
from keyshift.lab.spec import RunSpec
from keyshift.planner import Decision, Strategy, make_plan
from keyshift.progress import Say
from keyshift.state import Settings, backends


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

    def request(self, change: Change, replace: bool = False) -> None:
        """Ask for a migration, behind all others or instead of what has not begun of them."""

    def cancel(self) -> None:
        """Take back what has not begun."""

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


def job_config(
    spec: RunSpec, name: str, endpoints: Endpoints, certificate: Certificate | None, backend: Settings | None = None
) -> JobConfig:
    """The first attempt of the job of ``spec``, with a secret of its own. ``backend``: its settings, as served."""
    backend = backend or backends.get(spec.backend.name).settings(**spec.backend.settings)
    return JobConfig(
        job=name,
        attempt=0,
        endpoints=endpoints,
        workload=spec.workload.name,
        parameters=spec.workload.model_dump(),
        stage=spec.workload.stages[0].name,
        routers=spec.job.routers,
        slots=spec.job.slots if spec.point().restarts else spec.tasks,
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
        fault=next((fault for fault in spec.scenario.faults() if fault.phase), None),
    )


class KeyshiftJob:
    """Makes plans for the requests to a job, has copies made, and restarts it where the strategy says so."""

    def __init__(self, spec: RunSpec, job: Job, say: Say) -> None:
        self._spec, self._job, self._say = spec, job, say
        self._point = spec.point()
        self._numbers = count()  # of the migrations
        self._restarts: deque[MakeSteps] = deque()  # that were requested
        self._decisions: list[tuple[int, Decision]] = []
        self._to_move: set[int] | None = None  # None: nobody has planned yet
        self._planned_s = 0.0
        self._replicate_s: float | None = None
        self._told: dict[str, Any] = {}  # at the end

    def start(self) -> None:
        """Under the assignment of the spec."""
        self._job.start(self._spec.start())

    def check(self) -> None:
        """Restarts are made here."""
        self._job.check()
        if self._restarts:
            make_steps, target = self._restarts.popleft(), self._job.assignment
            for step in make_steps(target):
                target = target.after(step)
            self._job.restart(target)

    def recover(self) -> str:
        """The job's next attempt."""
        self._job.recover()
        if self._job.snapshots:
            return "snapshot"
        return "savepoint" if self._job.config.restore else "beginning"

    def announce(self, change: Change) -> None:
        """Copies that are kept all the time are begun, if the target is where they go."""
        point = self._point.phase(0)
        if point.replicas == "periodic":
            current, heat = self._job.assignment, self._heat()
            target = self._spec.target(current, change)
            self._copy(make_plan(point, current, target, heat, self._spec.workload.seed).copies, point)

    def request(self, change: Change, replace: bool = False) -> None:
        """It is planned when its turn comes."""
        make_steps = partial(self._plan, next(self._numbers), change)
        if self._point.restarts:
            self._restarts.append(make_steps)
        else:
            self._job.request(make_steps, replace)

    def cancel(self) -> None:
        """Restarts that have not begun, too."""
        self._restarts.clear()
        self._job.cancel()

    @property
    def busy(self) -> bool:
        """Whether a restart or a migration is to come or under way."""
        return bool(self._restarts) or self._job.busy

    def hit(self, fault: Fault) -> None:
        """That of the first slot."""
        self._job.hit(fault)

    def note(self, line: str) -> None:
        """Behind the troubles of the job until now."""
        self._job.troubles.append(line)

    def stop(self) -> None:
        """Measure, then take the last savepoint; once more after ``recover``."""
        self._told = {"measures": self._job.measure(), "measured_at": time.time(), "bytes_copied": self._copied()}
        self._job.savepoint()
        self._told["left_behind"] = self._job.left_behind()
        self._job.read_log()

    def final_state(self) -> FinalState:
        """Of the job, with the plans that were made for it."""
        self._job.stop()
        if self._to_move is None:
            self._wants(self._spec.start(), self._spec.target(self._spec.start()))
        return of_job(
            self._job,
            **self._told,
            decisions=self._decisions,
            to_move=self._to_move or set(),
            planned_s=self._planned_s,
            replicate_s=self._replicate_s,
        )

    # -- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, number: int, change: Change, current: Assignment) -> tuple[Step, ...]:
        """The steps of the ``number``-th migration, from where the units are by now; copies first, if it wants some."""
        begin = time.perf_counter()
        point = self._point.phase(number)
        heat = self._heat() if point.order == "hottest" or isinstance(change, Balance) else []
        target = self._spec.target(current, change, heat)
        self._wants(current, target)
        plan = make_plan(point, current, target, heat, self._spec.workload.seed)
        self._decisions += [(number, decision) for decision in plan.decisions]
        if number == 0:
            self._planned_s = time.perf_counter() - begin
        if plan.copies and point.replicas == "warm_up":
            self._say("copying")
            copying = time.perf_counter()
            self._copy(plan.copies, point)
            self._job.await_copies()
            self._replicate_s = (self._replicate_s or 0.0) + time.perf_counter() - copying
        elif number and plan.copies:
            self._copy(plan.copies, point)
        return plan.steps

    def _wants(self, current: Assignment, target: Assignment) -> None:
        self._to_move = (self._to_move or set()) | {move.unit for move in current.moves_to(target)}

    def _heat(self) -> list[float]:
        """Records per second of each unit since the attempt began."""
        heat = [0.0] * len(self._job.assignment.owner)
        for measures in self._job.measure().values():
            for unit, number in measures["records"]:
                heat[unit] += number / measures["seconds"]
        return heat

    def _copy(self, copies: tuple[Move, ...], point: Strategy) -> None:
        job = self._spec.job
        if copies:
            self._job.copy(copies, job.copy_every_s, job.copy_lag_keys, point.handover == "whole")

    def _copied(self) -> int | None:
        """Bytes of copies sent until they were close; None if nothing was copied."""
        answers = self._job.await_copies()
        if answers is None:
            return None
        if self._replicate_s is None:
            self._replicate_s = max((a["at_us"] - a["began_us"]) / SECOND_US for a in answers.values())
        return sum(answer["bytes"] for answer in answers.values())
