"""One unit of every source at a time."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest

from keyshift.keys import Move, SlotId, Step
from keyshift.planner.model import Snapshot, Strategy


def propose(view: Snapshot) -> Iterator[Step]:
    """The i-th leaving unit of every source makes the i-th step. Source: Spacker with ``sync_keys = 1``."""
    leaving: dict[SlotId, list[Move]] = defaultdict(list)
    for move in view.misplaced():
        leaving[move.source].append(move)
    for moves in zip_longest(*(leaving[source] for source in sorted(leaving))):
        yield Step(tuple(move for move in moves if move is not None))


STRATEGY = Strategy("one unit of every source per step, ascending id", "Spacker sync_keys=1", propose)
