"""Replication: which units are copied, and to whom, so that a move only has to hand over what has changed since."""

from keyshift.model.keys import Move, SlotId, UnitId
from keyshift.planner.model import Decision, Log, Strategy, View


def copies(strategy: Strategy, view: View, log: Log) -> tuple[Move, ...]:
    """What to copy before the first step, ascending by unit: (unit, owner, holder of the copy).

    Every ``replicate``-th key group is copied. The copy of a unit that moves is held by its destination, so the target
    must be known by then (Spacker pushes to all nodes instead; what counts is the copy at the destination). With a
    ``ring`` that is copied all the time (``periodic``), each unit that stays has a copy too, at the next slot of the
    ring of owners, since nobody knows yet what moves later. Logs every unit that moves without a copy.
    """
    if not strategy.replicate:
        return ()
    made = []
    for unit, holder in _holders(strategy, view).items():
        owner, group = view.current.owner[unit], unit // strategy.bins
        if group % strategy.replicate == 0:
            if holder != owner:  # a slot that owns every unit has no other one on its ring
                made.append(Move(unit, owner, holder))
        elif view.target.owner[unit] != owner:
            reason = f"not copied: key group {group} is not a multiple of replicate = {strategy.replicate}"
            log(Decision(unit, None, reason))
    return tuple(made)


def _holders(strategy: Strategy, view: View) -> dict[UnitId, SlotId]:
    """Who would keep a copy of each unit that might be copied."""
    destination, owner = {move.unit: move.destination for move in view.misplaced()}, view.current.owner
    if strategy.holders == "destination" or strategy.copies == "warm_up":
        return destination
    ring = sorted(set(owner))
    following = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return {unit: destination.get(unit, following[owner[unit]]) for unit in map(UnitId, range(len(owner)))}
