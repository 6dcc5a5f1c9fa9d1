"""Everything in one step, nothing blocked."""

from collections.abc import Iterator

from keyshift.keys import Step
from keyshift.planner.model import Snapshot, Strategy


def propose(view: Snapshot) -> Iterator[Step]:
    """All moves in one step. Source: Megaphone, strategy 'sudden'; Spacker with ``sync_keys = 0``."""
    if moves := view.misplaced():
        yield Step(moves)


STRATEGY = Strategy(
    "everything in one step, unaffected keys keep flowing", "Megaphone sudden; Spacker sync_keys=0", propose
)
