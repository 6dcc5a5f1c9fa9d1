"""The migrations that were requested of a live job, and what came of them."""

import time
from dataclasses import dataclass

from keyshift.experiment.commands import UNDER_WAY
from keyshift.lab.execution import Execution
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.system import KeyshiftJob

GONE = "incomplete: the job's process was gone, and the next one had only the steps of it that were planned"


@dataclass
class MigrationStatus:
    """A migration in a job's status and in its journal, without the steps: what can be told in another process.

    ``requested_at`` in seconds since the epoch; ``what``: the strategy in one line; ``slots``: that are to own the
    state; ``outcome``: ``UNDER_WAY`` until it is over.
    """

    number: int  # of its stage
    requested_at: float
    took_s: float | None
    outcome: str
    stage: str
    what: str
    slots: int
    planned_steps: int
    planned_moves: int


@dataclass
class Migration:
    """One that was requested. Times in seconds since the epoch; ``outcome``: empty until it is over."""

    number: int  # of its stage
    proposal: Proposal
    requested_at: float
    ended_at: float | None = None
    outcome: str = ""

    @property
    def status(self) -> MigrationStatus:
        """How it is."""
        proposal = self.proposal
        return MigrationStatus(
            number=self.number,
            requested_at=self.requested_at,
            took_s=None if self.ended_at is None else round(self.ended_at - self.requested_at, 3),
            outcome=self.outcome or UNDER_WAY,
            stage=proposal.stage,
            what=proposal.point.summary,
            slots=len(set(proposal.target.owner)),
            planned_steps=len(proposal.plan.steps),
            planned_moves=proposal.plan.moves,
        )


class Migrations:
    """Of all stages of ``system``; the first is the trigger of ``run``. Those of a process before are only told of."""

    def __init__(self, run: Execution, system: KeyshiftJob) -> None:
        self._run, self._system = run, system
        self._mine: list[Migration] = []
        self._before: list[MigrationStatus] = []
        self._targets: dict[str, list[int]] = {}  # where units should come, by stage and number of one under way there

    def request(self, proposal: Proposal) -> Migration:
        """Behind all else of its stage."""
        migration = Migration(self._system.plans.adopt(proposal), proposal, time.time())
        self._mine.append(migration)
        self._run.trigger = self._run.trigger or migration.requested_at
        return migration

    def find(self, stage: str, number: int) -> Migration:
        """One of this process."""
        return next(each for each in self._mine if (each.proposal.stage, each.number) == (stage, number))

    @property
    def under_way(self) -> bool:
        """Whether one of this process is not over."""
        return any(not migration.outcome for migration in self._mine)

    def status(self) -> list[MigrationStatus]:
        """All that were requested, in that order; for any thread."""
        return [*self._before, *(migration.status for migration in list(self._mine))]

    def settle(self) -> None:
        """See which are over."""
        before = [migration for migration in self._before if migration.outcome == UNDER_WAY]
        stages = self._system.status()["stages"] if before else {}
        for left in before:
            now = stages[left.stage]
            if not now["migrating"]:
                reached = self._targets.pop(_key(left.stage, left.number), None) == now["owners"]
                left.outcome = "complete" if reached else GONE
                left.took_s = round(time.time() - left.requested_at, 3)
        for migration in self._mine:
            stage, number = migration.proposal.stage, migration.number
            if not migration.outcome and (reached := self._system.plans.ended(stage, number)) is not None:
                migration.outcome = "complete" if reached else f"incomplete: {self._why(stage)}"
                migration.ended_at = time.time()

    def _why(self, stage: str) -> str:
        """The last note on ``stage``, or on the whole job."""
        notes = [note for note in self._system.notes if note.stage in ("", stage)]
        return str(notes[-1]) if notes else "it was taken back"

    @property
    def targets(self) -> dict[str, list[int]]:
        """Where units should come, by stage and number of a migration under way: the next process needs them."""
        proposals = [(each.proposal, each.number) for each in self._mine if not each.outcome]
        return self._targets | {_key(each.stage, number): list(each.target.owner) for each, number in proposals}

    def resume(self, migrations: list[MigrationStatus], targets: dict[str, list[int]]) -> None:
        """Those of the process before, as ``status`` and ``targets`` were there."""
        self._before, self._targets = migrations, targets


def _key(stage: str, number: int) -> str:
    return f"{stage} {number}"
