"""One unit at a time."""

from collections.abc import Iterator

from keyshift.keys import Step
from keyshift.planner.model import Snapshot, Strategy


def propose(view: Snapshot) -> Iterator[Step]:
    """One unit per step, ascending id. Source: Megaphone, strategy 'fluid'."""
    for move in view.misplaced():
        yield Step((move,))


STRATEGY = Strategy("one unit per step, ascending id", "Megaphone fluid", propose)
