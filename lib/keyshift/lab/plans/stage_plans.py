"""The plans for the migrations of one stage, and what came of them."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from keyshift.clock import SECOND_US
from keyshift.driver.stage import LedStage
from keyshift.experiment.commands import StepTold
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import RunSpec
from keyshift.lab.live.status import OfSlot, StageStatus
from keyshift.model.errors import BadInput, MigrationFailed, PlanRejected
from keyshift.model.keys import Assignment, Move, SlotId, Step
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.planner import Decision, Plan, Strategy, make_plan
from keyshift.planner.orders import BY_HEAT
from keyshift.wire.nodes import CopiesClose


@dataclass(frozen=True)
class Proposal:
    """A plan for ``change`` of a ``stage``: it is carried out if units still are where it begins, else another one."""

    stage: str
    change: Change
    point: Strategy
    begin: Assignment
    target: Assignment
    plan: Plan

    def steps_as_json(self) -> list[StepTold]:
        """The moves of each step."""
        return [
            {"moves": [{"unit": m.unit, "source": m.source, "destination": m.destination} for m in step.moves]}
            for step in self.plan.steps
        ]


@dataclass
class PlansPast:
    """The plans until now: all that another process needs of them. ``to_move``: units, None if nobody has planned.
    ``copied``: whether copies were ordered, in whatever attempt.
    """

    requested: int = 0  # migrations
    decisions: list[tuple[int, Decision]] = field(default_factory=list)  # with the numbers of their migrations
    to_move: set[int] | None = None
    copied: bool = False


class Copied(NamedTuple):
    """What was copied until copies were close."""

    bytes: int
    seconds: float


class StagePlans:
    """The plans for the migrations of ``led``, numbered from 0 as they are requested. ``note`` hears what is wrong."""

    def __init__(self, spec: RunSpec, led: LedStage, note: Callable[[Note], None]) -> None:
        self._spec, self.led, self._note = spec, led, note
        self._point = spec.point()
        self.past = PlansPast()  # its values are replaced, and never changed
        self._wanted: Change | None = None  # the one that was requested last, by this process
        self._first = -1  # the number of this process's first plan
        self._owners_before: tuple[SlotId, ...] | None = None  # when that was planned; none if some were still to come
        self._planned, self._target = -1, spec.start(led.name)  # the number of the last plan, and where it leads
        self._ended: dict[int, bool] = {}  # of migrations before that one, whether all units came where they should
        self._copied_for = -1  # the number of the migration for which copies were ordered last
        self._for_it_alone = False  # whether they are for no other one: they are not kept all the time
        self._ordering = threading.Lock()  # copies: by the planner's thread, or when there is none
        self.planned_s: float | None = None  # how long the first plan took
        self.replicate_s: float | None = None  # waited for copies
        self._copied: list[Copied] = []  # by orders before the last one

    def next_number(self, change: Change) -> int:
        """The number of the migration that is being requested."""
        self._wanted, self.past.requested = change, self.past.requested + 1
        return self.past.requested - 1

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """See ``JobPlans.announce``."""
        point = point or self._point.of_migration(self.past.requested)
        if point.copies == "periodic":
            self._copy(self.past.requested, self.propose(change, point).plan.copies, point)

    def propose(self, change: Change, point: Strategy | None = None) -> Proposal:
        """See ``JobPlans.propose``."""
        return self._proposed(point or self._point.of_migration(self.past.requested), change, self.led.assignment)

    def steps(self, number: int, change: Change, proposal: Proposal | None, current: Assignment) -> tuple[Step, ...]:
        """Give the steps of the ``number``-th migration from where units are by now, behind the copies it wants."""
        begin = time.perf_counter()
        there = () if self.led.late else current.owner  # of what was late units are still to come
        if self._first in (-1, number):  # it may be planned once more
            self._first, self._owners_before = number, there
        if self._planned not in (-1, number):
            self._ended[self._planned] = self._target.owner == there
        if self._planned == number and self._target.owner == current.owner:  # a restart died when it had switched
            return ()
        try:
            if proposal is None or proposal.begin.owner != current.owner:
                point = proposal.point if proposal else self._point.of_migration(number)
                proposal = self._proposed(point, change, current)
            last, slots = max(proposal.target.owner), self.led.config.slots
            if last >= slots and not proposal.point.restarts:  # a restart has taken it away meanwhile
                raise BadInput(f"slot {last} is not provisioned any more, only slots 0 to {slots - 1} are")
        except (BadInput, MigrationFailed, PlanRejected) as error:
            if proposal is None:
                raise
            why = f"migration {number} was dropped, no plan could be made when its turn came: {error}"
            self._note(self.led.note(why))
            return ()
        self._planned, self._target = number, proposal.target
        point, plan = proposal.point, proposal.plan
        self._want(current, proposal.target)
        if plan.decisions:  # not those of a plan that was not carried out
            others = [decided for decided in self.past.decisions if decided[0] != number]
            self.past.decisions = [*others, *((number, decision) for decision in plan.decisions)]
        if self.planned_s is None:
            self.planned_s = time.perf_counter() - begin
        if plan.copies and not self._keeps(number, plan.copies):
            self._copy(number, plan.copies, point)
            self._await_copies()
        return plan.steps

    def ended(self, number: int, busy: bool) -> bool | None:
        """See ``JobPlans.ended``. ``busy``: whether a migration of the stage is to come or under way."""
        if number in self._ended or busy:
            return self._ended.get(number)
        return self._planned == number and not self.incomplete

    @property
    def incomplete(self) -> bool:
        """Whether units are not where the last plan wants them; no if this process has made none."""
        return self._planned != -1 and (self._target.owner != self.led.assignment.owner or self.led.late)

    @property
    def owners_before(self) -> tuple[SlotId, ...] | None:
        """See ``JobPlans.owners_before``."""
        return () if self._first == -1 and self.led.late else self._owners_before

    def _want(self, current: Assignment, target: Assignment) -> None:
        self.past.to_move = (self.past.to_move or set()) | {move.unit for move in current.moves_to(target)}

    def to_move(self) -> set[int]:
        """Give, at the end, the units that were to change their slot, also by a request that nobody has planned."""
        if self.past.to_move is None and self._wanted is not None:
            start = self._spec.start(self.led.name)
            self._want(start, self._spec.target(start, self._wanted, stage=self.led.name))
        return self.past.to_move or set()

    def copied(self) -> Copied | None:
        """Return what all migrations so far have copied; waits until copies are close. None if nothing was copied."""
        answers = self.led.ask.await_copies()
        copied = [*self._copied, *([] if answers is None else [_copied(answers)])]
        return Copied(sum(each.bytes for each in copied), sum(each.seconds for each in copied)) if copied else None

    def end_copies(self) -> None:
        """Keep no copies for what comes now."""
        self.led.ask.end_copies()
        self.replicate_s, self._copied, self.past.copied = None, [], False

    def end_left_copies(self) -> None:
        """End the copies of a migration that is over and has left units where they were, unless copies are kept all the
        time: they would be brought up to date for ever. Call this again and again.
        """
        if not self._for_it_alone or self.led.busy:
            return
        with self._ordering:
            if not self.led.busy:  # otherwise the planner may just have ordered others
                owner = self.led.assignment.owner
                if any(owner[copy.unit] == copy.source for copy in self.led.ask.kept):
                    self._count_copied()
                    self.led.ask.end_copies()
                self._for_it_alone = False

    def status(self, unit_bytes: Mapping[int, int] | None) -> StageStatus:
        """Return what is known without asking anybody. ``unit_bytes``: of the newest snapshot, if there is one."""
        led, owner = self.led, self.led.assignment.owner
        begun = led.log.records.values() if led.log else ()
        under_way = [record for record in list(begun) if record.outcome == "under way"]
        moving = {slot for record in under_way for m in record.step.moves for slot in (m.source, m.destination)}
        of_slot: dict[int, OfSlot] = {
            slot: {
                "units": owner.count(SlotId(slot)),
                "moving": slot in moving,
                "state_bytes": None
                if unit_bytes is None
                else sum(unit_bytes.get(u, 0) for u, of in enumerate(owner) if of == slot),
            }
            for slot in range(led.config.slots)
        }
        return {
            "slots": len(set(owner)),
            "provisioned": led.config.slots,
            "owners": list(owner),
            "of_slot": of_slot,
            "activity": str(led.doing),
            "migrating": led.busy,
        }

    # -- plans --------------------------------------------------------------------------------------------------------

    def _proposed(self, point: Strategy, change: Change, current: Assignment) -> Proposal:
        # Nobody knows what a strategy of somebody's own looks at. Replicas would measure, and so plan, differently.
        own = point.propose is not None and self._spec.job.replicas == 1
        heat = self._heat() if own or point.order in BY_HEAT or change.measured else []
        target = self._spec.target(current, change, heat, self.led.name)
        plan = make_plan(point, current, target, heat, self._spec.workload.seed)
        return Proposal(self.led.name, change, point, current, target, plan)

    def _heat(self) -> list[float]:
        """Records per second of each unit since the attempt began."""
        heat = [0.0] * len(self.led.assignment.owner)
        for measures in self.led.ask.measure().values():
            for unit, number in measures.records:
                heat[unit] += number / measures.seconds
        return heat

    # -- copies -------------------------------------------------------------------------------------------------------

    def _keeps(self, number: int, copies: tuple[Move, ...]) -> bool:
        """Whether all of these were ordered for this migration, in this attempt. The target may be another one since,
        and copies for migrations before have gone with their units.
        """
        return number == self._copied_for and {*copies} <= {*self.led.ask.kept}

    def _copy(self, number: int, copies: tuple[Move, ...], point: Strategy) -> None:
        job = self._spec.job
        if copies:
            with self._ordering:
                self._copied_for, self._for_it_alone = number, point.copies == "warm_up"
                self._count_copied()
                self.past.copied = True
                self.led.ask.copy(copies, job.copy_every_s, job.copy_lag_keys, point.handover == "whole")

    def _count_copied(self) -> None:
        """Count the copies that were ordered last: by now they are close, or never will be."""
        if answers := self.led.ask.copied_by_now():
            self._copied.append(_copied(answers))

    def _await_copies(self) -> None:
        self.led.say(Doing(Activity.COPYING))
        copying = time.perf_counter()
        close = self.led.ask.await_copies() or {}  # none if their attempt has died meanwhile
        most, wanted = max((each.keys for each in close.values()), default=0), self._spec.job.copy_lag_keys
        if most > wanted:
            words = f"copies came no closer than {most} changed keys per round, copy_lag_keys = {wanted}"
            self._note(self.led.note(words, NoteKind.TOLD))  # the migration goes on
        self.replicate_s = (self.replicate_s or 0.0) + time.perf_counter() - copying


def _copied(answers: Mapping[int, CopiesClose]) -> Copied:
    took_s = max((a.at_us - a.began_us) / SECOND_US for a in answers.values())
    return Copied(sum(answer.bytes for answer in answers.values()), took_s)
