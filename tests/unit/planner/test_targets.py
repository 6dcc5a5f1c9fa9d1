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


@pytest.mark.parametrize("slots", [-1, 0, 9])
def test_an_impossible_number_of_slots_is_refused(slots):
    with pytest.raises(BadInput, match=f"slots = {slots}: must be between 1 and the number of units, 8"):
        scale(Assignment.contiguous(8, 2), slots)


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


@pytest.mark.parametrize(
    ("slots", "affected", "of", "why"),
    [
        (4, 1, 1, "affected_slots = 1: must be between 2 and the slots that own units, 4; 0: all"),
        (4, 1, 5, "affected_slots = 5: must be between 2 and"),
        (4, 9, 2, "affected = 9: must be between 1 and the number of units of 2 slots, 8"),
        (2, 0, 0, "affected = 0: must be between 1 and the number of units, 16"),
        (2, 17, 0, "affected = 17: must be between 1 and the number of units, 16"),
        (1, 1, 0, "at least 2 slots"),
    ],
)
def test_an_impossible_shuffle_is_refused(slots, affected, of, why):
    with pytest.raises(BadInput, match=why):
        shuffle(Assignment.contiguous(16, slots), affected, of)


# -- explicit ----------------------------------------------------------------------------------------------------------


def test_a_map_says_what_moves_and_everything_else_stays():
    current = assignment(4, 0, 0, 1, 1)
    target = explicit(current, {1: 1, 2: 0, 3: 1})
    assert target == assignment(4, 0, 1, 0, 1)
    assert explicit(current, {}) == current


def test_a_map_may_name_a_slot_that_owns_nothing_yet_if_it_is_said_to_exist():
    assert explicit(Assignment.contiguous(4, 2), {0: 3}, slots=4).owner == (3, 0, 1, 1)


@pytest.mark.parametrize(
    ("mapping", "slots", "message"),
    [
        ({4: 0}, None, "unit 4 is unknown: units are 0 to 3"),
        ({-1: 0}, None, "unit -1 is unknown"),
        ({0: 2}, None, "unit 0 to slot 2: unknown slot; slots are 0 to 1"),
        ({0: -1}, None, "unit 0 to slot -1: unknown slot"),
        ({0: 3}, 3, "unit 0 to slot 3: unknown slot; slots are 0 to 2"),
        ({0: 0}, 0, "slots = 0: must be at least 1"),
    ],
)
def test_an_unknown_unit_or_slot_is_refused(mapping, slots, message):
    with pytest.raises(BadInput, match=message):
        explicit(Assignment.contiguous(4, 2), mapping, slots)


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


def test_one_heavy_unit_moves_rather_than_many_light_ones():
    current = assignment(1, 0, 0, 0, 0, 0, 1)
    assert balance(current, [4, 1, 1, 1, 1, 0]).owner == (1, 0, 0, 0, 0, 1)


def test_units_without_load_stay():
    current = assignment(1, 0, 0, 0, 0, 0, 1)
    assert balance(current, [0, 0, 2, 2, 0, 0]).owner == (0, 0, 1, 0, 0, 1)
    assert balance(current, [0] * 6) == current


def test_an_empty_slot_gets_its_share():
    current = assignment(1, *[0] * 6, *[2] * 6)
    target = balance(current, [1.0] * 12)
    assert sorted(Counter(target.owner).values()) == [4, 4, 4]
    assert len(current.moves_to(target)) == 4


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ([1.0], "load has 1 values: must be one per unit, 4"),
        ([1.0, 1.0, -2.0, 1.0], "load of unit 2 = -2.0: must be a finite number, at least 0"),
        ([1.0, float("inf"), 1.0, 1.0], "load of unit 1 = inf"),
    ],
)
def test_a_load_that_is_none_is_refused(load, message):
    with pytest.raises(BadInput, match=message):
        balance(Assignment.contiguous(4, 2), load)


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


def test_without_skew_equal_ranges_are_balanced_already():
    assert zipf_balance(Assignment.contiguous(128, 4), 0) == Assignment.contiguous(128, 4)


@pytest.mark.parametrize("exponent", [-0.1, 10.5, float("nan")])
def test_an_impossible_zipf_exponent_is_refused(exponent):
    with pytest.raises(BadInput, match="must be between 0"):
        zipf_balance(Assignment.contiguous(8, 2), exponent)
