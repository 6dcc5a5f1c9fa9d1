"""What a coordinator leaves in ZooKeeper for the next one, or for the next attempt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keyshift.model.keys import Assignment, Step
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination


@dataclass(frozen=True)
class LeftOver:
    """What a coordinator has left in ZooKeeper: ``version``, ``steps`` and ``rest``, see ``protocol.PublishSteps``, of
    the ``plan`` of this name; the ``assignment`` that was published last.
    """

    assignment: Assignment
    version: int
    steps: Sequence[tuple[int, Step]]
    rest: Sequence[Step]
    plan: str

    def to_come(self, version: int) -> list[Step]:
        """The steps of a migration that had not switched when ``version`` was the newest."""
        return [*(step for of, step in self.steps if of > version and step.moves), *self.rest]


def left_over(participant: Coordination, folder: str = "") -> LeftOver | None:
    """What is there of an attempt and a stage: in ``folder``, or at the root. None if there were no steps.

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
        return LeftOver(assignment, assignment.version, [], whole, written.name)
    known = published.plan == written.name  # otherwise nothing of it was published yet
    rest = whole[len(whole) - published.rest :] if known else whole
    return LeftOver(assignment, published.version, published.steps, rest, written.name)


def publish_plan(participant: Coordination, name: str, steps: Iterable[Step]) -> None:
    """Write ``steps`` down. None of it happens before it is said with ``steps`` how much of it is to come, or another
    coordinator takes over.
    """
    participant.publish(nodes.PLAN, nodes.WrittenPlan(name, tuple(steps)))
