"""Targets: where the units should be after the migration."""

from collections import Counter

from keyshift.errors import BadInput
from keyshift.keys import Assignment, SlotId


def scale(current: Assignment, slots: int) -> Assignment:
    """Slots 0..slots-1 own the units, loads differing by at most one, with the fewest possible moves.

    A slot keeps its lowest units; those above its share go, ascending, to the slots below theirs, ascending. The larger
    shares go to the slots that own most, so that no move is wasted on rounding. Raises BadInput for an impossible
    number of slots.
    """
    units = len(current.owner)
    if not 1 <= slots <= units:
        raise BadInput(f"slots = {slots}: must be between 1 and the number of units, {units}")
    load = Counter(current.owner)
    by_load = sorted(range(slots), key=lambda slot: (-load[SlotId(slot)], slot))
    share = {SlotId(slot): units // slots + (rank < units % slots) for rank, slot in enumerate(by_load)}
    owner = list(current.owner)
    kept: Counter[SlotId] = Counter()
    homeless = []
    for unit, slot in enumerate(owner):
        if kept[slot] < share.get(slot, 0):
            kept[slot] += 1
        else:
            homeless.append(unit)
    room = (slot for slot in sorted(share) for _ in range(share[slot] - kept[slot]))
    for unit, slot in zip(homeless, room, strict=True):
        owner[unit] = slot
    return Assignment(current.version, tuple(owner))


def shuffle(current: Assignment, affected: int) -> Assignment:
    """``affected`` units, spread evenly over the slots, each go to the next slot of the ring. Source: Spacker.

    Every slot gives its lowest units. Raises BadInput if there is only one slot, or more affected units than units.
    """
    units = len(current.owner)
    slots = sorted(set(current.owner))
    if len(slots) < 2:
        raise BadInput("a shuffle needs at least 2 slots that own units")
    if not 1 <= affected <= units:
        raise BadInput(f"affected = {affected}: must be between 1 and the number of units, {units}")
    queues = [current.units_of(slot) for slot in slots]
    owner = list(current.owner)
    taken = 0
    for turn in range(max(map(len, queues))):
        for place, queue in enumerate(queues):
            if turn < len(queue) and taken < affected:
                owner[queue[turn]] = slots[(place + 1) % len(slots)]
                taken += 1
    return Assignment(current.version, tuple(owner))
