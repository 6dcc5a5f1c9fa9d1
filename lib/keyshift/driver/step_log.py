"""What a coordinator has published of an attempt, and what became of its steps and snapshots."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyshift.model.keys import Assignment, Assignments, Step, Version
from keyshift.model.records import StepOutcome, StepRecord, UnitsCame, UnitsLeft
from keyshift.protocol import coordinator as protocol
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination


@dataclass(frozen=True)
class Published:
    """What was published, as the next coordinator or the next attempt finds it in ZooKeeper.

    ``version``, ``steps`` and ``rest``: see ``protocol.PublishSteps``, of the ``plan`` of this name; the
    ``assignment`` that was published last.
    """

    assignment: Assignment
    version: Version
    steps: Sequence[tuple[Version, Step]]
    rest: Sequence[Step]
    plan: str

    def to_come(self, version: Version) -> list[Step]:
        """The steps of a migration that had not switched when ``version`` was the newest."""
        return [*(step for of, step in self.steps if of > version and step.moves), *self.rest]


def read_published(participant: Coordination, folder: str = "") -> Published | None:
    """Read what was published of an attempt and a stage: in ``folder``, or at the root. None if there were no steps.

    Raises ServiceUnavailable.
    """
    steps, plan, begun = nodes.STEPS, nodes.PLAN, nodes.ASSIGNMENT
    if folder:
        steps, plan, begun = steps.below(folder), plan.below(folder), begun.below(folder)
    published, written = participant.read(steps), participant.read(plan) or nodes.WrittenPlan("", ())
    if published is None and not written.steps:
        return None
    assignment, whole = participant.require(begun).assignment, written.steps
    if published is None:
        return Published(assignment, assignment.version, [], whole, written.name)
    known = published.plan == written.name  # otherwise nothing of it was published yet
    rest = whole[len(whole) - published.rest :] if known else whole
    return Published(assignment, published.version, published.steps, rest, written.name)


class StepLog:
    """What became of steps: the coordinator that leads writes it, the next one goes on with it, any thread may read it.

    ``history``: the assignments that routers were told; ``used``: the last version that was used, if only for a step
    that did not happen; ``records``: of steps, by version; ``notes``: a line for each step that did not go as planned;
    ``snapshots``: the one that was begun last, and its version; ``late_snapshots``: the same one, if it was given up;
    ``told_by_all``: steps whose records have all that slots say of them.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.history = Assignments([assignment])
        self.used = assignment.version
        self.records: dict[Version, StepRecord] = {}
        self.notes: list[str] = []
        self.snapshots: dict[str, Version] = {}
        self.late_snapshots: set[str] = set()
        self.told_by_all: set[Version] = set()

    def assignment_of(self, version: Version) -> Assignment:
        """The assignment of a snapshot's ``version``, where nothing moves; whoever has published it may have died."""
        return Assignment(version, self.history.of(version).owner)

    def published(self, used: Version, steps: Iterable[tuple[Version, Step]], at_us: int) -> None:
        """Note steps, which are published already: the version of any other is another step's under another leader."""
        self.used = max(self.used, used)
        for version, step in steps:
            if step.snapshot:
                self.snapshots = {step.snapshot: version}
            elif version not in self.records:
                self.records[version] = StepRecord(version, step, at_us)

    def switched(self, assignment: Assignment) -> None:
        """Note that routers were told."""
        if assignment.version != self.history[-1].version:
            self.history.append(assignment)

    def ended(self, version: Version, outcome: StepOutcome, at_us: int) -> None:
        """Note how a step ended, unless it is known to have ended otherwise."""
        if (record := self.records.get(version)) and record.outcome == "under way":
            record.outcome, record.completed_us = outcome, at_us

    def snapshot_late(self, version: Version) -> None:
        """Note that a snapshot was given up."""
        self.late_snapshots = {name for name, of in self.snapshots.items() if of == version}

    def taken_back(self, dropped: protocol.Dropped) -> None:
        """Note what was taken back, at the end of a migration."""
        if any(dropped):
            self.notes.append(f"{_words(dropped)} were taken back before they had begun")

    def late(self, late: protocol.StepLate, deadline_s: float) -> None:
        """Note that a step passed its deadline."""
        self.records[late.version].outcome = "rolled back" if late.rolled_back else "late"
        outcome = "rolled back" if late.rolled_back else "goes forward: what has not moved yet waits for its state"
        also = f"; {_words(late.dropped)} behind it were dropped" if any(late.dropped) else ""
        self.notes.append(
            f"step of version {late.version}: slots {list(late.missing)} did not finish phase {late.phase!r} within "
            f"{deadline_s:g} s; {outcome}{also}; the job goes on"
        )

    def read_acknowledgements(self, coordination: Coordination, under_way: bool = True) -> None:
        """Complete ``records``: what slots measured is of no interest while steps wait for each other. What was told is
        not read again: an attempt may last for days. ``under_way``: also of steps that are, or had another end.
        """
        for version, record in list(self.records.items()):
            if version not in self.told_by_all and (under_way or record.outcome == "complete"):
                note_acknowledgements(record, coordination.read_below(nodes.acks(version)))
                if record.told_by_all:
                    self.told_by_all.add(version)


def note_acknowledgements(record: StepRecord, said: Mapping[str, nodes.Acknowledgement]) -> None:
    """Put into ``record`` what its slots have ``said``, by the names of their nodes. Another thread may just write it
    down.
    """
    by_slot = [(nodes.phase_and_slot(name)[1], each) for name, each in said.items()]
    record.released = record.released | {slot: each for slot, each in by_slot if isinstance(each, UnitsLeft)}
    record.installed = record.installed | {slot: each for slot, each in by_slot if isinstance(each, UnitsCame)}


def _words(dropped: protocol.Dropped) -> str:
    counts = (dropped.steps, "steps"), (dropped.requests, "requests for a migration")
    return " and ".join(f"{count} {what}" for count, what in counts if count)
