"""The plans for the migrations of a job, stage by stage, and the restarts of a strategy that stops the job."""

import contextlib
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from keyshift.driver.job import Job
from keyshift.driver.leader import MakeSteps
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.final_state import CopiedAhead
from keyshift.lab.plans.stage_plans import Proposal, StagePlans
from keyshift.model.errors import MigrationFailed, QueryDied
from keyshift.model.keys import NO_VERSION, SlotId, Version
from keyshift.planner import Strategy


class _Queued(NamedTuple):
    """A migration of ``stage`` that does not begin before it is its turn here."""

    stage: str
    make_steps: MakeSteps
    restarts: bool


class JobPlans:
    """The plans of ``job``; ``of`` has those of each stage. ``request``, ``cancel`` and ``busy`` are for any thread,
    all else is for the controlling one.
    """

    def __init__(self, spec: RunSpec, job: Job) -> None:
        self._spec, self._job = spec, job
        self.of = {stage.name: StagePlans(spec, stage, job.notes.append) for stage in job.stages}
        self._moving = [self.of[job.stage(name).name] for name in spec.moving]
        self._waiting: deque[_Queued] = deque()  # restarts, and what was asked of their stages behind them

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Begin copies that are kept all the time for the next migration, if its target is where they go.

        ``point``: its strategy, instead of that of the run.
        """
        for plans in self._moving:
            plans.announce(change, point)

    def request(
        self,
        change: Change,
        replace: bool = False,
        stage: str | None = None,
        behind: Mapping[str, Version] = MappingProxyType({}),
    ) -> None:
        """See ``SystemUnderTest.request``. ``behind``: by stage, see ``Coordinator.request``."""
        restarts = self._spec.point().restarts
        for plans in [self.of[self._job.stage(stage).name]] if stage else self._moving:
            make_steps = partial(plans.steps, plans.next_number(change), change, None)
            self._ask(plans, make_steps, restarts, replace, behind)

    def propose(self, stage: str, change: Change, point: Strategy | None = None) -> Proposal:
        """Plan a change as the next migration would be planned now. ``point``: instead of the job's own strategy."""
        return self.of[stage].propose(change, point)

    def adopt(self, proposal: Proposal, behind: Mapping[str, Version] = MappingProxyType({})) -> int:
        """Ask for what was proposed, behind all else of the stage. Gives its number there, from 0. It is planned anew
        if the state is elsewhere when its turn comes. ``behind``: see ``request``.
        """
        plans = self.of[proposal.stage]
        number = plans.next_number(proposal.change)
        make_steps = partial(plans.steps, number, proposal.change, proposal)
        self._ask(plans, make_steps, proposal.point.restarts, False, behind)
        return number

    def _ask(
        self, plans: StagePlans, make_steps: MakeSteps, restarts: bool, replace: bool, behind: Mapping[str, Version]
    ) -> None:
        stage = plans.led.name
        if replace:
            self._take_back([stage])
        if restarts or self._waits(stage):
            self._waiting.append(_Queued(stage, make_steps, restarts))
        else:
            plans.led.request(make_steps, replace, behind.get(stage, NO_VERSION))

    def _take_back(self, stages: Collection[str]) -> None:
        for each in [*self._waiting]:
            if each.stage in stages:
                with contextlib.suppress(ValueError):  # its turn has come meanwhile
                    self._waiting.remove(each)
                    why = "a request for a migration was taken back before it had begun"
                    self._job.notes.append(self._job.stage(each.stage).note(why))

    def ended(self, stage: str, number: int) -> bool | None:
        """Whether all units came where this migration wanted them; None while it is to come or under way.

        A migration is over when the next one of the stage is planned, or nothing is under way there.
        """
        return self.of[stage].ended(number, self.moves(stage))

    def owners_before(self, stage: str) -> tuple[SlotId, ...] | None:
        """The owners of its units when the first migration of this process began, behind all that was left by the
        process before; None if none has. Empty if a step of that is late, or was then: some units are still to come.
        """
        return self.of[stage].owners_before

    def cancel(self) -> None:
        """Take back what has not begun: migrations and restarts, of all stages."""
        self._take_back(self.of.keys())
        for stage in self._job.stages:
            stage.cancel()

    @property
    def busy(self) -> bool:
        """Whether a restart or a migration is to come or under way."""
        return bool(self._waiting) or self._migrating

    def moves(self, stage: str) -> bool:
        """Whether a restart or a migration of the stage is to come or under way."""
        return self._waits(stage) or self.of[stage].led.busy

    def _waits(self, stage: str) -> bool:
        return any(each.stage == stage for each in [*self._waiting])

    @property
    def _migrating(self) -> bool:
        return any(stage.busy for stage in self._job.stages)

    def begin_next(self) -> None:
        """Make restarts, and begin what waits behind them, one by one, when no migration is under way."""
        if not self._waiting or self._migrating:
            return
        asked = self._waiting.popleft()
        stage = self._job.stage(asked.stage)
        before = stage.assignment
        try:
            self._begin(asked)
        except QueryDied:
            self._waiting.appendleft(asked)  # of the next attempt, which has nothing to do if this one has switched
            raise
        except MigrationFailed:  # one that is late is so again, perhaps, and each takes one of ``recoveries``
            if stage.assignment == before:
                self._job.notes.append(stage.note("a restart was late, and is not tried again"))
            raise

    def _begin(self, asked: _Queued) -> None:
        stage = self._job.stage(asked.stage)
        if not asked.restarts:
            stage.request(asked.make_steps)
            return
        target = stage.assignment
        steps = asked.make_steps(target)
        for step in steps:
            target = target.after(step)
        least = 0 if self._spec.point().restarts else stage.config.slots
        if steps or max(least, 1 + max(target.owner)) != stage.config.slots:  # otherwise all is as it should be
            self._job.restart(stage.name, target, least)

    # -- copies -------------------------------------------------------------------------------------------------------

    def copied(self) -> CopiedAhead:
        """Return what was copied ahead, in all stages. Waits until copies are close."""
        copied = [each for plans in self.of.values() if (each := plans.copied())]
        waited = [s for plans in self.of.values() if (s := plans.replicate_s) is not None]
        return CopiedAhead(
            bytes_copied=sum(each.bytes for each in copied) if copied else None,
            replicate_s=max(waited or (each.seconds for each in copied), default=None),
            ordered=any(plans.past.copied for plans in self.of.values()),
        )

    def end_left_copies(self) -> None:
        """End the copies of migrations that are over; see ``StagePlans.end_left_copies``."""
        for plans in self.of.values():
            plans.end_left_copies()

    def end_copies(self) -> None:
        """Keep no copies for what comes now."""
        for plans in self.of.values():
            plans.end_copies()
