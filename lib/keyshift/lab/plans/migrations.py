"""The migrations that were requested of a live job, and what came of them."""

import time
from typing import cast

from keyshift.experiment.commands import UNDER_WAY, Migration
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.system import LiveSystem
from keyshift.model.notes import NoteKind

GONE = "the job's process was gone, and the next one had only the steps of it that were planned"
WHY = frozenset({NoteKind.MIGRATION, NoteKind.DEATH})  # notes of these kinds say why a migration did not reach its end


class Migrations:
    """Migrations in ``run``; the first is its trigger. Those of a process before are only told of."""

    def __init__(self, run: RunLoop) -> None:
        self._run, self._system = run, cast(LiveSystem, run.system)
        self._all: list[Migration] = []
        self._inherited = 0  # so many of them were requested in the process before
        self._targets: dict[str, list[int]] = {}  # where units should come, by the key of a migration under way

    def request(self, proposal: Proposal) -> Migration:
        """Request a migration, behind all else of its stage."""
        migration = Migration(
            number=self._system.plans.adopt(proposal),
            requested_at=time.time(),
            took_s=None,
            outcome=UNDER_WAY,
            why=None,
            stage=proposal.stage,
            what=proposal.point.summary,
            slots=len(set(proposal.target.owner)),
            planned_steps=len(proposal.plan.steps),
            planned_moves=proposal.plan.moves,
        )
        self._targets[_key(migration)] = list(proposal.target.owner)
        self._all.append(migration)
        self._run.trigger = self._run.trigger or migration["requested_at"]
        return migration

    def find(self, stage: str, number: int) -> Migration:
        """Find a migration of this process."""
        return next(each for each in self._all if (each["stage"], each["number"]) == (stage, number))

    @property
    def under_way(self) -> bool:
        """Whether a migration of this process is not over."""
        return any(each["outcome"] == UNDER_WAY for each in self._all[self._inherited :])

    @property
    def progress(self) -> tuple[int, int]:
        """How many there are, and how many of them are under way: either changes with each that begins or ends."""
        return len(self._all), len(self._targets)

    def status(self) -> list[Migration]:
        """All migrations that were requested, in that order, as they are now; for any thread."""
        return [migration.copy() for migration in self._all]

    @property
    def targets(self) -> dict[str, list[int]]:
        """Where units should come, by the key of a migration under way: the next process needs them."""
        return dict(self._targets)

    def settle(self) -> None:
        """See which migrations are over."""
        for place, migration in enumerate(self._all):
            if migration["outcome"] == UNDER_WAY:
                self._settle(migration, inherited=place < self._inherited)

    def _settle(self, migration: Migration, inherited: bool) -> None:
        stage, target = migration["stage"], self._targets.get(_key(migration))
        ended = self._system.plans.ended
        reached = self._reached(stage, target) if inherited else ended(stage, migration["number"])
        if reached is None:
            return
        self._targets.pop(_key(migration), None)
        migration["took_s"] = round(time.time() - migration["requested_at"], 3)
        if not reached:
            migration["why"] = GONE if inherited else self._why(stage)
        migration["outcome"] = "complete" if reached else "incomplete"

    def _reached(self, stage: str, target: list[int] | None) -> bool | None:
        """Whether units were there behind what the process before has left; None while that is under way."""
        now = self._system.status()["stages"][stage]
        if (found := self._system.plans.owners_before(stage)) is not None:  # looked for behind ``now``
            return list(found) == target
        return None if now["migrating"] else now["owners"] == target

    def _why(self, stage: str) -> str:
        """Why it failed: the last note on ``stage``, or on the whole job, that can say it."""
        notes = [note for note in self._system.notes if note.stage in ("", stage) and note.kind in WHY]
        return str(notes[-1]) if notes else "it was taken back"

    def resume(self, migrations: list[Migration], targets: dict[str, list[int]]) -> None:
        """Take over the migrations of the process before, as ``status`` and ``targets`` were there."""
        self._all, self._inherited, self._targets = list(migrations), len(migrations), dict(targets)


def _key(migration: Migration) -> str:
    return f"{migration['stage']} {migration['number']}"
