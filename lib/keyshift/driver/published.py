"""What a coordinator has published in ZooKeeper, as the next one or the next attempt finds it."""

from collections.abc import Sequence
from dataclasses import dataclass

from keyshift.model.keys import Assignment, Step, Version
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination


@dataclass(frozen=True)
class Published:
    """``version``, ``steps`` and ``rest``: see ``protocol.PublishSteps``, of the ``plan`` of this name; the
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
        return Published(assignment, assignment.version, [], whole, written.name)
    known = published.plan == written.name  # otherwise nothing of it was published yet
    rest = whole[len(whole) - published.rest :] if known else whole
    return Published(assignment, published.version, published.steps, rest, written.name)
