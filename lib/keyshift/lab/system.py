"""What a run can do with the system that it tries, and keyshift's own job as such a system."""

import secrets
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from keyshift.clock import SECOND_US
from keyshift.endpoints import Endpoints
from keyshift.errors import BadInput, MigrationFailed, PlanRejected
from keyshift.executor.config import Certificate, JobConfig
from keyshift.executor.faults import Fault
from keyshift.executor.job import Job
from keyshift.executor.leader import MakeSteps
from keyshift.keys import Assignment, Move, SlotId, Step
from keyshift.lab.final_state import FinalState, of_job
from keyshift.lab.journal import config_from_json, decisions_from_json, decisions_to_json, past_from_json, past_to_json
from keyshift.lab.scenario import Balance, Change
from keyshift.lab.spec import RunSpec
from keyshift.planner import Decision, Plan, Strategy, make_plan
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

    def request(self, change: Change, replace: bool = False) -> int:
        """Ask for a migration, behind all others or instead of what has not begun of them. Gives its number, from 0."""

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


@dataclass(frozen=True)
class Proposal:
    """A plan from where the units were: it is carried out if they still are there, else another one is made."""

    point: Strategy
    begin: Assignment
    target: Assignment
    plan: Plan


class LiveSystem(SystemUnderTest, Protocol):
    """A system that can be asked for plans, and how it is, while it runs."""

    def propose(self, change: Change, point: Strategy | None = None) -> Proposal:
        """The plan for a change, which is not requested. ``point``: instead of the system's own strategy."""

    def request(self, change: Change, replace: bool = False, proposal: Proposal | None = None) -> int:
        """As in ``SystemUnderTest``; with what was proposed for the change."""

    def ended(self, number: int) -> bool | None:
        """Whether all units came where this migration wanted them; None while it is to come or under way."""

    def journal(self) -> dict[str, Any]:
        """What another process needs to go on; see ``lab.journal``."""

    def resume(self, journal: dict[str, Any]) -> str:
        """Go on from there, instead of ``start``. Says from where, as ``recover``."""

    def status(self) -> dict[str, Any]:
        """What is known of each stage and of snapshots, without asking anybody; for any thread."""


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
        self._requested = 0  # migrations
        self._restarts: deque[MakeSteps] = deque()  # that were requested
        self._planned, self._target = -1, spec.start()  # the number of the last plan, and where it leads
        self._ended: dict[int, bool] = {}  # of migrations before that one, whether all units came where they should
        self._announced = False  # copies for the first migration are there already, if it wants some
        self._decisions: list[tuple[int, Decision]] = []
        self._to_move: set[int] | None = None  # None: nobody has planned yet
        self._planned_s = 0.0
        self._replicate_s: float | None = None
        self._told: dict[str, Any] = {}  # at the end

    def start(self) -> None:
        """Under the assignment of the spec."""
        self._job.start(self._spec.start())

    def check(self) -> None:
        """Restarts are made here, when no migration is under way."""
        self._job.check()
        if self._restarts and not self._job.busy:
            make_steps, target = self._restarts.popleft(), self._job.assignment
            for step in make_steps(target):
                target = target.after(step)
            self._job.restart(target, 0 if self._point.restarts else self._job.config.slots)

    def recover(self) -> str:
        """The job's next attempt."""
        self._job.recover()
        return self._from_where()

    def _from_where(self) -> str:
        if self._job.snapshots:
            return "snapshot"
        return "savepoint" if self._job.config.restore else "beginning"

    def announce(self, change: Change) -> None:
        """Copies that are kept all the time are begun, if the target is where they go."""
        point, self._announced = self._point.phase(0), True
        if point.replicas == "periodic":
            current, heat = self._job.assignment, self._heat()
            target = self._spec.target(current, change)
            self._copy(make_plan(point, current, target, heat, self._spec.workload.seed).copies, point)

    def propose(self, change: Change, point: Strategy | None = None) -> Proposal:
        """As the next migration would be planned now."""
        return self._proposed(point or self._point.phase(self._requested), change, self._job.assignment)

    def request(self, change: Change, replace: bool = False, proposal: Proposal | None = None) -> int:
        """It is planned when its turn comes."""
        number, self._requested = self._requested, self._requested + 1
        make_steps = partial(self._plan, number, change, proposal=proposal)
        if (proposal.point if proposal else self._point).restarts:
            self._restarts.append(make_steps)
        else:
            self._job.request(make_steps, replace)
        return number

    def ended(self, number: int) -> bool | None:
        """A migration is over when the next one is planned, or nothing is under way."""
        if number in self._ended or self.busy:
            return self._ended.get(number)
        return self._planned == number and self._target.owner == self._job.assignment.owner

    def cancel(self) -> None:
        """Restarts that have not begun, too."""
        self._restarts.clear()
        self._job.cancel()

    @property
    def busy(self) -> bool:
        """Whether a restart or a migration is to come or under way."""
        return bool(self._restarts) or self._job.busy

    def measure(self) -> dict[int, dict[str, Any]]:
        """Asks the slots."""
        return self._job.measure()

    def journal(self) -> dict[str, Any]:
        """Of the job and of the plans that were made for it."""
        return past_to_json(self._job.config, self._job.past()) | {
            "requested": self._requested,
            "decisions": decisions_to_json(self._decisions),
            "to_move": None if self._to_move is None else sorted(self._to_move),
        }

    def resume(self, journal: dict[str, Any]) -> str:
        """With the numbers of migrations going on where they were."""
        self._requested, self._announced = journal["requested"], True
        self._decisions = decisions_from_json(journal["decisions"])
        self._to_move = None if journal["to_move"] is None else set(journal["to_move"])
        self._job.config = config_from_json(self._job.config, journal)
        self._job.resume(past_from_json(journal))
        return self._from_where()

    def status(self) -> dict[str, Any]:
        """There is one stage."""
        job, owner = self._job, self._job.assignment.owner
        moving = {slot for record in job.under_way for m in record.step.moves for slot in (m.source, m.destination)}
        newest = job.snapshots[-1] if job.snapshots else None
        of_unit = newest.unit_bytes if newest else {}
        slots = {
            slot: {
                "units": owner.count(SlotId(slot)),
                "moving": slot in moving,
                "state_bytes": sum(of_unit.get(u, 0) for u, of in enumerate(owner) if of == slot) if newest else None,
            }
            for slot in range(job.config.slots)
        }
        stage = {"slots": len(set(owner)), "provisioned": job.config.slots, "owners": list(owner), "of_slot": slots}
        return {
            "stages": {job.config.stage: stage},
            "attempt": job.config.attempt,
            "snapshots": len(job.snapshots),
            "snapshot_bytes": newest.bytes if newest else None,
            "troubles": job.troubles_so_far,
        }

    @property
    def owners(self) -> Collection[int]:
        """By the newest assignment."""
        return set(self._job.assignment.owner)

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
        if self._to_move is None and self._spec.changes:
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

    def _plan(
        self, number: int, change: Change, current: Assignment, proposal: Proposal | None = None
    ) -> tuple[Step, ...]:
        """The steps of the ``number``-th migration, from where the units are by now; copies first, if it wants some."""
        begin = time.perf_counter()
        if self._planned not in (-1, number):
            self._ended[self._planned] = self._target.owner == current.owner
        try:
            if proposal is None or proposal.begin.owner != current.owner:
                proposal = self._proposed(proposal.point if proposal else self._point.phase(number), change, current)
        except (BadInput, MigrationFailed, PlanRejected) as error:
            if proposal is None:
                raise
            self.note(f"migration {number} was dropped, no plan could be made when its turn came: {error}")
            return ()
        self._planned, self._target = number, proposal.target
        point, plan = proposal.point, proposal.plan
        self._wants(current, proposal.target)
        self._decisions += [(number, decision) for decision in plan.decisions]
        if number == 0:
            self._planned_s = time.perf_counter() - begin
        if plan.copies and point.replicas == "warm_up":
            self._say("copying")
            copying = time.perf_counter()
            self._copy(plan.copies, point)
            self._job.await_copies()
            self._replicate_s = (self._replicate_s or 0.0) + time.perf_counter() - copying
        elif plan.copies and (number or not self._announced):
            self._copy(plan.copies, point)
        return plan.steps

    def _proposed(self, point: Strategy, change: Change, current: Assignment) -> Proposal:
        heat = self._heat() if point.order == "hottest" or isinstance(change, Balance) else []
        target = self._spec.target(current, change, heat)
        return Proposal(point, current, target, make_plan(point, current, target, heat, self._spec.workload.seed))

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
