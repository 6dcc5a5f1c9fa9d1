"""What was written down of a stage, over all attempts of its job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from keyshift.driver.attempt import Unfinished
from keyshift.driver.step_log import StepLog, note_acknowledgements, read_published
from keyshift.model.keys import NO_VERSION, Assignments, Version
from keyshift.model.records import StepRecord
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination

AssignmentsInJson = Annotated[Assignments, PlainValidator(Assignments.from_json), PlainSerializer(Assignments.to_json)]


@dataclass
class StageHistory:
    """What was written down. ``assignments``: every version that routers were ever told to use. ``begins``: the version
    that each attempt began with. ``records``: every step that was begun. ``known_until``: for each process that was
    gone the last version in its journal, or 0; of its later ones only the newest is known.
    """

    assignments: AssignmentsInJson = field(default_factory=Assignments)
    begins: list[int] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    known_until: list[int] = field(default_factory=list)  # not in older journals

    def with_attempt(self, log: StepLog | None) -> "StageHistory":
        """The same with what became of the steps of another attempt, if there is one. What slots said of them is in it
        only if the log was completed with that.
        """
        history, records = (log.history, list(log.records.values())) if log else (Assignments(), [])
        records = [*self.records, *records]
        return StageHistory(self.assignments + history, list(self.begins), records, self.known_until)

    def before_the_newest(self) -> "StageHistory":
        """The same without the newest assignment, with which another attempt is to begin."""
        before = [each for each in self.assignments if each.version < self.assignments[-1].version]
        return StageHistory(Assignments(before), list(self.begins), list(self.records), self.known_until)

    def knows_until(self, version: Version) -> bool:
        """Whether the way to this version is known: it is not one that a process had behind its last journal."""
        begins = ((last, [each for each in self.begins if each > last]) for last in self.known_until)
        return not any(last + 1 < version < min(later, default=version + 1) for last, later in begins)

    def cancel_behind(self, version: Version) -> None:
        """Cancel steps of later versions: they come again in the next attempt, under other ones."""
        for record in self.records:
            if record.outcome == "under way" and record.version > version:
                record.outcome = "cancelled"

    def find_later(self, participant: Coordination, stage: str, attempt: int) -> Unfinished:
        """Add what has happened to ``stage`` since this was written down by another process, as ZooKeeper has it.
        ``participant``: at the root of the job.

        Gives what the last ``attempt`` has left, or the one before if that had just begun; requests are lost. If
        ZooKeeper has lost what it had confirmed, it may have less than was written down: then the newest assignment is
        what was, and the steps behind that are lost, too. Raises ServiceUnavailable if there is none.
        """
        roots = [nodes.of_stage(number, stage) for number in range(attempt, -1, -1)]
        self._find_restarts(participant, roots)
        begun = (each for each in roots if participant.read(nodes.ASSIGNMENT.below(each)) is not None)
        root = next(begun, roots[0])
        for record in self.records:
            if not record.told_by_all:
                note_acknowledgements(record, participant.read_below(nodes.acks(record.version).below(root)))
        newest = participant.require(nodes.ASSIGNMENT.below(root)).assignment
        self.known_until = [*self.known_until, self.assignments[-1].version if self.assignments else NO_VERSION]
        if self.assignments and newest.version < self.assignments[-1].version:
            return Unfinished(self.assignments[-1])
        if not self.assignments or newest.version > self.assignments[-1].version:
            self.assignments.append(newest)
        left = read_published(participant, root)
        return Unfinished(newest, left.to_come(newest.version) if left else ())

    def _find_restarts(self, participant: Coordination, roots: Sequence[str]) -> None:
        """Add those that have switched and are not written down. ``roots``: of all attempts, the newest first."""
        known = {record.version for record in self.records if record.restarts}
        for root in reversed(roots):
            record = participant.read(nodes.RESTART.below(root))
            if record and record.version not in known and participant.read(nodes.ASSIGNMENT.below(root)):
                self.records.append(record)
