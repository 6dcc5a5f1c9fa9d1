"""Orders: which unit moves before which, and why. A new order is one function and one line at the end.

One that looks at the heat is in ``BY_HEAT``, too: without that nobody measures it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from keyshift.model.errors import BadInput
from keyshift.model.keys import Move, hash_keys
from keyshift.planner.model import View
from keyshift.registry import Registry

Ranked = list[tuple[Move, str]]  # first to move first, each with the reason for its place
Order = Callable[[Sequence[Move], View], Ranked]

_MAX_SEED = (1 << 63) - 1


def by_id(moves: Sequence[Move], view: View) -> Ranked:
    """Ascending by unit. Source: Megaphone; Spacker, order 'default'."""
    return _with_place(sorted(moves, key=lambda move: move.unit), "by id")


def reverse(moves: Sequence[Move], view: View) -> Ranked:
    """Descending by unit. Source: Spacker, order 'reverse'."""
    return _with_place(sorted(moves, key=lambda move: -move.unit), "by id from the highest")


def at_random(moves: Sequence[Move], view: View) -> Ranked:
    """In an order drawn with the view's seed, the same on every machine and release. Source: Spacker, 'random'."""
    # Sorting by the hash of unit and seed, instead of a generator, needs no state and no module that may change.
    salt = hash_keys(np.array([view.seed & _MAX_SEED], dtype=np.int64))
    units = np.array([move.unit for move in moves], dtype=np.uint64)
    drawn = np.argsort(hash_keys((units ^ salt).astype(np.int64)))
    return _with_place([moves[place] for place in drawn], f"drawn with seed {view.seed}")


def hottest(moves: Sequence[Move], view: View) -> Ranked:
    """Descending by measured records per second, ties by unit.

    Raises BadInput if nobody measured. Complexity: O(n log n).
    """
    heat = view.heat
    if moves and not heat:
        raise BadInput(
            f"order 'hottest' needs the measured heat (records per second) of all {len(view.current.owner)} units, "
            "but none was given: let the job run under load before it migrates, pass heat=…, or take order 'id'"
        )
    ranked = sorted(moves, key=lambda move: (-heat[move.unit], move.unit))
    return [
        (move, f"place {place} of {len(ranked)} by heat, {heat[move.unit]:.4g}") for place, move in enumerate(ranked, 1)
    ]


def by_access(moves: Sequence[Move], view: View) -> Ranked:
    """Ascending by unit; while the plan is carried out, what a record asks for goes first. Source: Meces."""
    return _with_place(sorted(moves, key=lambda move: move.unit), "by id, unless a record asks for it earlier")


def _with_place(moves: Sequence[Move], why: str) -> Ranked:
    return [(move, f"place {place} of {len(moves)} {why}") for place, move in enumerate(moves, 1)]


orders: Registry[Order] = Registry("order")
orders.register("id", by_id)
orders.register("reverse", reverse)
orders.register("random", at_random)
orders.register("hottest", hottest)
orders.register("access", by_access)
BY_HEAT = {"hottest"}
