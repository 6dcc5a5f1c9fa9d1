from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_steps import assignment

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, SlotId
from keyshift.planner.targets import balance, explicit, scale, shuffle, zipf_balance, zipf_mass


@st.composite
def assignments(draw, max_units=24, max_slots=6):
    """Any assignment: slots may own nothing, and their numbers may have gaps."""
    owner = draw(st.lists(st.integers(0, max_slots - 1).map(SlotId), min_size=1, max_size=max_units))
    return Assignment(draw(st.integers(1, 9)), tuple(owner))


# -- scale and shuffle -------------------------------------------------------------------------------------------------


def fewest_moves(current: Assignment, slots: int) -> int:
    """By trying every choice of the slots that get the larger share."""
    load, units = Counter(current.owner), len(current.owner)
    share, more = divmod(units, slots)
    return min(
        units - sum(min(load[SlotId(slot)], share + (slot in larger)) for slot in range(slots))
        for larger in combinations(range(slots), more)
    )


@given(assignments(), st.data())
def test_scaling_balances_with_the_fewest_moves(current, data):
    slots = data.draw(st.integers(1, len(current.owner)).filter(lambda n: n <= 10))
    target = scale(current, slots)
    load = Counter(target.owner)
    assert load.keys() == set(range(slots))
    assert max(load.values()) - min(load.values()) <= 1
    assert len(current.moves_to(target)) == fewest_moves(current, slots)
    assert target.version == current.version
    assert scale(target, slots) == target


def test_scaling_out_and_in_gives_the_example_of_the_documentation():
    four = Assignment.contiguous(8, 4)
    assert scale(four, 2).owner == (0, 0, 1, 1, 0, 0, 1, 1)
    assert scale(Assignment.contiguous(8, 2), 4).owner == (0, 0, 2, 2, 1, 1, 3, 3)


@given(assignments().filter(lambda a: len(set(a.owner)) > 1), st.data())
def test_a_shuffle_moves_exactly_as_many_as_asked_each_to_the_next_slot(current, data):
    ring = sorted(set(current.owner))
    of = data.draw(st.sampled_from([0, *range(2, len(ring) + 1)]))
    ring = ring[:of] if of else ring
    affected = data.draw(st.integers(1, sum(map(current.owner.count, ring))))
    target = shuffle(current, affected, of)
    moves = current.moves_to(target)
    assert len(moves) == affected
    assert all(move.destination == ring[(ring.index(move.source) + 1) % len(ring)] for move in moves)
    given_away = Counter(move.source for move in moves)
    owned = Counter(current.owner)
    most = max(given_away.values())
    assert all(given_away[slot] >= min(owned[slot], most - 1) for slot in ring), "not spread evenly"
    lowest = {slot: current.units_of(slot)[: given_away[slot]] for slot in ring}
    assert sorted(move.unit for move in moves) == sorted(unit for units in lowest.values() for unit in units)


# -- explicit ----------------------------------------------------------------------------------------------------------


def test_a_map_says_what_moves_also_to_a_slot_that_is_said_to_exist_and_everything_else_stays():
    current = assignment(4, 0, 0, 1, 1)
    assert explicit(current, {1: 1, 2: 0, 3: 1}) == assignment(4, 0, 1, 0, 1)
    assert explicit(current, {0: 3}, slots=4) == assignment(4, 3, 0, 1, 1)
    assert explicit(current, {}) == current


# -- balance -----------------------------------------------------------------------------------------------------------


def loads(assignment: Assignment, load: list[float], slots: int) -> list[float]:
    total = [0.0] * slots
    for slot, value in zip(assignment.owner, load, strict=True):
        total[slot] += value
    return total


@given(assignments(), st.data())
def test_after_balancing_no_unit_could_level_the_fullest_with_the_emptiest_slot(current, data):
    load = data.draw(st.lists(st.integers(0, 50), min_size=len(current.owner), max_size=len(current.owner)))
    slots = max(current.owner) + 1
    target = balance(current, load)
    before, after = loads(current, load, slots), loads(target, load, slots)
    assert target.version == current.version
    assert sum(after) == sum(before)
    assert max(after) <= max(before)
    assert min(after) >= min(before)
    difference = max(after) - min(after)
    fullest = [unit for unit, slot in enumerate(target.owner) if after[slot] == max(after)]
    assert not any(0 < load[unit] < difference for unit in fullest)
    assert balance(target, load) == target


@pytest.mark.parametrize(
    ("load", "owner"),
    [
        pytest.param([4, 1, 1, 1, 1, 0], (1, 0, 0, 0, 0, 1), id="one heavy unit rather than many light ones"),
        pytest.param([0, 0, 2, 2, 0, 0], (0, 0, 1, 0, 0, 1), id="none without load"),
        pytest.param([0, 0, 0, 0, 0, 0], (0, 0, 0, 0, 0, 1), id="none at all"),
    ],
)
def test_balancing_moves(load, owner):
    assert balance(assignment(1, 0, 0, 0, 0, 0, 1), load).owner == owner


def test_an_empty_slot_gets_its_share():
    current = assignment(1, *[0] * 6, *[2] * 6)
    target = balance(current, [1.0] * 12)
    assert sorted(Counter(target.owner).values()) == [4, 4, 4]
    assert len(current.moves_to(target)) == 4


@given(st.integers(1, 6), st.integers(1, 80), st.floats(0, 3))
def test_zipf_mass_is_that_of_the_ranks(slots, groups, exponent):
    mass = zipf_mass(groups, exponent)
    assert sum(mass) == pytest.approx(1)
    assert mass[0] / mass[-1] == pytest.approx(groups**exponent)


def test_balancing_by_zipf_mass_moves_few_groups_and_levels_the_slots():
    current = Assignment.contiguous(128, 4)
    mass = zipf_mass(128, 0.8)
    target = zipf_balance(current, 0.8)
    before, after = loads(current, mass, 4), loads(target, mass, 4)
    assert max(before) > 1.9 / 4
    assert max(after) < 1.02 / 4
    assert len(current.moves_to(target)) < 32
    assert zipf_balance(current, 0) == current, "without skew equal ranges are balanced already"


@given(assignments().filter(lambda a: len(set(a.owner)) > 1), st.floats(0, 3))
def test_the_first_slot_keeps_its_hottest_groups_up_to_half_of_the_mass_of_first_and_last(current, exponent):
    mass, slots = zipf_mass(len(current.owner), exponent), sorted(set(current.owner))
    first, last = slots[0], slots[-1]
    target = zipf_balance(current, exponent, 2)
    moves = current.moves_to(target)
    assert {(move.source, move.destination) for move in moves} <= {(first, last)}, "others keep what they have"
    kept = target.units_of(first)
    assert kept == current.units_of(first)[: len(kept)], "not the hottest"
    before, after = loads(current, mass, last + 1), loads(target, mass, last + 1)
    half = (before[first] + before[last]) / 2
    nearest = [abs(sum(mass[group] for group in current.units_of(first)[:number]) - half) for number in range(25)]
    assert abs(after[first] - half) == pytest.approx(min(nearest))
    assert max(after[first], after[last]) <= max(before[first], before[last]) + 1e-9
    assert target.version == current.version
    assert zipf_balance(target, exponent, 2) == target


def test_the_last_slot_gives_nothing_and_equal_ones_are_level_already():
    current = Assignment.contiguous(32, 4)
    assert zipf_balance(current, 0, 2) == current
    assert zipf_balance(assignment(1, 1, 1, 0, 0), 1.0, 2).owner == (1, 1, 0, 0)
    assert zipf_balance(current, 1.0, 2).owner == (0, 0, *[3] * 6, *[1] * 8, *[2] * 8, *[3] * 8)


# -- what is refused ---------------------------------------------------------------------------------------------------

FOUR = Assignment.contiguous(4, 2)


def shuffled(slots: int, affected: int, of: int = 0) -> Assignment:
    return shuffle(Assignment.contiguous(16, slots), affected, of)


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        (scale, (FOUR, -1), "slots = -1: must be between 1 and the number of units, 4"),
        (scale, (FOUR, 0), "slots = 0: must be"),
        (scale, (FOUR, 5), "slots = 5: must be"),
        (shuffled, (4, 1, 1), "affected_slots = 1: must be between 2 and the slots that own units, 4; 0: all"),
        (shuffled, (4, 1, 5), "affected_slots = 5: must be between 2 and"),
        (shuffled, (4, 9, 2), "affected = 9: must be between 1 and the number of units of 2 slots, 8"),
        (shuffled, (2, 0), "affected = 0: must be between 1 and the number of units, 16"),
        (shuffled, (2, 17), "affected = 17: must be between 1 and the number of units, 16"),
        (shuffled, (1, 1), "at least 2 slots"),
        (explicit, (FOUR, {4: 0}), "unit 4 is unknown: units are 0 to 3"),
        (explicit, (FOUR, {-1: 0}), "unit -1 is unknown"),
        (explicit, (FOUR, {0: 2}), "unit 0 to slot 2: unknown slot; slots are 0 to 1"),
        (explicit, (FOUR, {0: -1}), "unit 0 to slot -1: unknown slot"),
        (explicit, (FOUR, {0: 3}, 3), "unit 0 to slot 3: unknown slot; slots are 0 to 2"),
        (explicit, (FOUR, {0: 0}, 0), "slots = 0: must be at least 1"),
        (balance, (FOUR, [1.0]), "load has 1 values: must be one per unit, 4"),
        (balance, (FOUR, [1.0, 1.0, -2.0, 1.0]), "load of unit 2 = -2.0: must be a finite number, at least 0"),
        (balance, (FOUR, [1.0, float("inf"), 1.0, 1.0]), "load of unit 1 = inf"),
        (zipf_balance, (FOUR, -0.1), "must be between 0"),
        (zipf_balance, (FOUR, 10.5), "must be between 0"),
        (zipf_balance, (FOUR, float("nan")), "must be between 0"),
        (zipf_balance, (FOUR, 1.0, 1), "affected_slots = 1: by Zipf mass the first slot gives .* last one, 2, or all"),
        (zipf_balance, (FOUR, 1.0, 3), "affected_slots = 3: by Zipf mass .* all slots are levelled, 0"),
        (zipf_balance, (Assignment.contiguous(4, 1), 1.0, 2), "slot 0 owns all groups, and at least 2 must own some"),
    ],
)
def test_what_is_impossible_is_refused(change, given, words):
    with pytest.raises(BadInput, match=words):
        change(*given)
