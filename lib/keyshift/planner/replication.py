"""Replication: which units are copied, and to whom, so that a move only has to hand over what has changed since."""

from keyshift.model.keys import Move, SlotId, UnitId
from keyshift.planner.model import Decision, Log, Strategy, View


def copies(strategy: Strategy, view: View, log: Log) -> tuple[Move, ...]:
    """What to copy before the first step, ascending by unit: (unit, owner, holder of the copy).

    Every ``replicate``-th key group is copied. A copy held by the ``destination`` is one of a unit that moves, so the
    target must be known by then (Spacker pushes to all nodes instead; what counts is the copy at the destination). A
    copy held by the next slot of the ``ring`` of owners is kept of every unit if it is ``periodic``, since nobody knows
    yet which will move. Logs every unit that moves without a copy at its destination.
    """
    if not strategy.replicate:
        return ()
    destination = {move.unit: move.destination for move in view.misplaced()}
    made = []
    for unit, holder in _holders(strategy, view).items():
        owner, group = view.current.owner[unit], unit // strategy.bins
        reason = ""
        if group % strategy.replicate:
            reason = f"not copied: key group {group} is not a multiple of replicate = {strategy.replicate}"
        elif holder == owner:
            reason = f"not copied: slot {owner} owns every unit, so the ring has no other slot"
        else:
            made.append(Move(unit, owner, holder))
            if unit in destination and holder != destination[unit]:
                reason = f"copied to slot {holder}, next of the ring, which is not its destination {destination[unit]}"
        if reason and unit in destination:
            log(Decision(unit, None, reason))
    return tuple(made)


def _holders(strategy: Strategy, view: View) -> dict[UnitId, SlotId]:
    """Who would keep a copy of each unit that might be copied."""
    moves, owner = view.misplaced(), view.current.owner
    if strategy.holders == "destination":
        return {move.unit: move.destination for move in moves}
    ring = sorted(set(owner))
    following = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    units = range(len(owner)) if strategy.copies == "periodic" else [move.unit for move in moves]
    return {UnitId(unit): following[owner[unit]] for unit in units}
