"""Targets: where the units should be after the migration."""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, SlotId


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


def shuffle(current: Assignment, affected: int, affected_slots: int = 0) -> Assignment:
    """``affected`` units, spread evenly over the slots of a ring, each go to the next slot of it. Source: Spacker.

    The ring has the first ``affected_slots`` slots that own units; 0: all of them. Others keep what they have. Every
    slot of the ring gives its lowest units. Raises BadInput if there is only one slot, if the ring cannot have so many
    slots, or if they have fewer units than are affected.
    """
    slots = sorted(set(current.owner))
    if len(slots) < 2:
        raise BadInput("a shuffle needs at least 2 slots that own units")
    if affected_slots and not 2 <= affected_slots <= len(slots):
        raise BadInput(
            f"affected_slots = {affected_slots}: must be between 2 and the slots that own units, {len(slots)}; 0: all"
        )
    slots = slots[:affected_slots] if affected_slots else slots
    queues = [current.units_of(slot) for slot in slots]
    units = sum(map(len, queues))
    if not 1 <= affected <= units:
        of = f"units of {affected_slots} slots" if affected_slots else "units"
        raise BadInput(f"affected = {affected}: must be between 1 and the number of {of}, {units}")
    owner = list(current.owner)
    in_turn = ((unit, place) for row in zip_longest(*queues) for place, unit in enumerate(row) if unit is not None)
    for unit, place in islice(in_turn, affected):
        owner[unit] = slots[(place + 1) % len(slots)]
    return Assignment(current.version, tuple(owner))


def explicit(current: Assignment, mapping: Mapping[int, int], slots: int | None = None) -> Assignment:
    """``mapping`` says, unit to slot, what moves; all other units stay.

    Slots 0..slots-1 are known; without ``slots``, those up to the highest that owns a unit. Raises BadInput for a unit
    or slot that is not known.
    """
    owner = list(current.owner)
    if slots is not None and slots < 1:
        raise BadInput(f"slots = {slots}: must be at least 1")
    known = max(current.owner) + 1 if slots is None else slots
    for unit, slot in mapping.items():
        if not 0 <= unit < len(owner):
            raise BadInput(f"unit {unit} is unknown: units are 0 to {len(owner) - 1}")
        if not 0 <= slot < known:
            raise BadInput(f"unit {unit} to slot {slot}: unknown slot; slots are 0 to {known - 1}")
        owner[unit] = SlotId(slot)
    return Assignment(current.version, tuple(owner))


def balance(current: Assignment, load: Sequence[float]) -> Assignment:
    """Few units move, so that the loads of slots become as equal as a greedy choice makes them.

    ``load``: of each unit, in any measure (records per second, bytes). Slots up to the highest that owns a unit take
    part. As long as a unit can go from a fuller slot to the emptiest and leave both between where they were, the one
    nearest to half of their difference goes. Source: Spacker, triggers 'load_balance'. Raises BadInput for a load that
    is missing, negative or not finite.
    """
    if len(load) != len(current.owner):
        raise BadInput(f"load has {len(load)} values: must be one per unit, {len(current.owner)}")
    for unit, value in enumerate(load):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"load of unit {unit} = {value}: must be a finite number, at least 0")
    owner = list(current.owner)
    # Of each slot the units with their load, ascending, and their sum; units without load change nothing and stay.
    held: list[list[tuple[float, int]]] = [[] for _ in range(max(owner) + 1)]
    for weight, unit in sorted((value, unit) for unit, value in enumerate(load) if value > 0):
        held[owner[unit]].append((weight, unit))
    total = [math.fsum(weight for weight, _ in units) for units in held]
    least = 1e-9 * max(total)  # below this a gain is a rounding error, and pursuing it need not end
    while found := _next_transfer(held, total, least):
        source, index, destination = found
        weight, unit = held[source].pop(index)
        insort(held[destination], (weight, unit))
        total[source] -= weight
        total[destination] += weight
        owner[unit] = SlotId(destination)
    return Assignment(current.version, tuple(owner))


def zipf_balance(current: Assignment, exponent: float, affected_slots: int = 0) -> Assignment:
    """``balance`` by Zipf mass: group i has rank i, as generators draw them. ``affected_slots`` 0: of all slots.

    2: of those that own groups the first keeps its hottest ones up to half of the mass that it and the last have, to
    the nearest group, and the last gets all others of the first. All slots but the first keep what they have. Source:
    Spacker, trigger 'load_balance_zipf'. Raises BadInput for another number, and for 2 if a single slot owns all.
    """
    mass = zipf_mass(len(current.owner), exponent)
    if not affected_slots:
        return balance(current, mass)
    if affected_slots != 2:
        raise BadInput(
            f"affected_slots = {affected_slots}: by Zipf mass the first slot gives groups to the last one, 2, or all "
            "slots are levelled, 0"
        )
    first, *others = sorted(set(current.owner))
    if not others:
        raise BadInput(f"affected_slots = {affected_slots}: slot {first} owns all groups, and at least 2 must own some")
    owner, hottest_first = list(current.owner), current.units_of(first)
    kept, half = 0.0, sum(mass[group] for group in (*hottest_first, *current.units_of(others[-1]))) / 2
    for place, group in enumerate(hottest_first):
        if half - kept <= mass[group] / 2:  # without this one it is nearer to half of both
            for colder in hottest_first[place:]:
                owner[colder] = others[-1]
            break
        kept += mass[group]
    return Assignment(current.version, tuple(owner))


def zipf_mass(groups: int, exponent: float) -> list[float]:
    """The share of the records that each group gets: 1 / (i + 1) ** exponent, sum 1; exponent 0 is uniform.

    Raises BadInput for an exponent below 0 or above 10.
    """
    if not 0 <= exponent <= 10:
        raise BadInput(f"Zipf exponent = {exponent}: must be between 0 (uniform) and 10")
    weights = [(group + 1) ** -exponent for group in range(groups)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _next_transfer(
    held: list[list[tuple[float, int]]], total: list[float], least: float
) -> tuple[int, int, int] | None:
    """Source, index of the unit in it, and destination of the transfer that levels best; None if none levels."""
    slots = range(len(total))
    destination = min(slots, key=total.__getitem__)
    for source in sorted(slots, key=total.__getitem__, reverse=True):
        difference = total[source] - total[destination]
        above = bisect_left(held[source], (difference / 2, 0))
        levels = [
            (abs(held[source][index][0] - difference / 2), index)
            for index in (above - 1, above)
            if 0 <= index < len(held[source]) and least < held[source][index][0] < difference - least
        ]
        if levels:
            return source, min(levels)[1], destination
    return None
