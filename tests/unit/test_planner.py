from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyshift.errors import BadInput, PlanRejected
from keyshift.keys import Assignment, Move, SlotId, Step, UnitId
from keyshift.planner import Plan, Strategy, make_plan, strategies
from keyshift.planner.targets import scale, shuffle

CURRENT = Assignment(3, tuple(map(SlotId, (0, 0, 1, 1))))
TARGET = Assignment(3, tuple(map(SlotId, (0, 1, 1, 2))))  # unit 1: 0 -> 1, unit 3: 1 -> 2


def step(*moves: tuple[int, int, int]) -> Step:
    return Step(tuple(Move(UnitId(u), SlotId(s), SlotId(d)) for u, s, d in moves))


def plan_of(*steps: Step) -> Plan:
    return make_plan(Strategy("proposes what the test says", "this test", lambda view: iter(steps)), CURRENT, TARGET)


@st.composite
def assignments(draw, max_units=24, max_slots=6):
    """Any assignment: slots may own nothing, and their numbers may have gaps."""
    owner = draw(st.lists(st.integers(0, max_slots - 1).map(SlotId), min_size=1, max_size=max_units))
    return Assignment(draw(st.integers(1, 9)), tuple(owner))


# -- make_plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_that_moves_each_misplaced_unit_once_is_accepted():
    plan = plan_of(step((3, 1, 2)), step((1, 0, 1)))
    assert plan.steps == (step((3, 1, 2)), step((1, 0, 1)))
    assert plan.moves == 2


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step((1, 0, 1)), step(), step((3, 1, 2))], "step 1 is empty"),
        ([step((1, 0, 1)), step((3, 1, 2), (1, 0, 1))], "step 1: unit 1 moves twice"),
        ([step((1, 0, 1), (1, 0, 1)), step((3, 1, 2))], "step 0: unit 1 moves twice"),
        ([step((0, 0, 1), (1, 0, 1), (3, 1, 2))], "step 0: unit 0 is where it should be and must not move"),
        ([step((9, 0, 1))], "step 0: unit 9 is where it should be"),
        ([step((1, 1, 1))], r"step 0: Move\(unit=1, source=1.* where Move\(unit=1, source=0.* was expected"),
        ([step((1, 0, 2))], r"step 0: Move\(.*destination=2\) where Move\(.*destination=1\) was expected"),
        ([step((3, 1, 2))], r"units never moved: \[1\]"),
        ([], r"units never moved: \[1, 3\]"),
    ],
)
def test_a_plan_that_breaks_an_invariant_is_rejected_by_name(steps, message):
    with pytest.raises(PlanRejected, match=message):
        plan_of(*steps)


def test_a_long_list_of_units_never_moved_is_cut():
    lazy = Strategy("does nothing", "this test", lambda view: iter(()))
    with pytest.raises(PlanRejected, match=r"units never moved: \[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\] …$"):
        make_plan(lazy, Assignment.contiguous(20, 1), Assignment(1, (SlotId(1),) * 20))


# -- strategies --------------------------------------------------------------------------------------------------------


def steps_of(name: str) -> list[list[int]]:
    current = Assignment(1, tuple(map(SlotId, (0, 0, 0, 1, 1))))
    target = Assignment(1, tuple(map(SlotId, (2, 2, 0, 2, 0))))
    return [[move.unit for move in step.moves] for step in make_plan(strategies.get(name), current, target).steps]


def test_all_at_once_makes_one_step():
    assert steps_of("all_at_once") == [[0, 1, 3, 4]]


def test_fluid_moves_one_unit_per_step():
    assert steps_of("fluid") == [[0], [1], [3], [4]]


def test_fluid_per_source_moves_one_unit_of_every_source_per_step():
    assert steps_of("fluid_per_source") == [[0, 3], [1, 4]]


def test_only_stop_restart_stops_the_query():
    assert [name for name, strategy in strategies.items() if strategy.restarts] == ["stop_restart"]
    assert steps_of("stop_restart") == [[0, 1, 3, 4]]


# -- targets -----------------------------------------------------------------------------------------------------------


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
    affected = data.draw(st.integers(1, len(current.owner)))
    target = shuffle(current, affected)
    moves = current.moves_to(target)
    assert len(moves) == affected
    ring = sorted(set(current.owner))
    assert all(move.destination == ring[(ring.index(move.source) + 1) % len(ring)] for move in moves)
    given_away = Counter(move.source for move in moves)
    owned = Counter(current.owner)
    most = max(given_away.values())
    assert all(given_away[slot] >= min(owned[slot], most - 1) for slot in ring), "not spread evenly"
    lowest = {slot: current.units_of(slot)[: given_away[slot]] for slot in ring}
    assert sorted(move.unit for move in moves) == sorted(unit for units in lowest.values() for unit in units)


def test_a_shuffle_of_everything_among_equals_keeps_the_balance():
    four = Assignment.contiguous(12, 4)
    assert shuffle(four, 12).owner == tuple((slot + 1) % 4 for slot in four.owner)


def test_a_shuffle_needs_two_slots_that_own_units():
    with pytest.raises(BadInput, match="at least 2 slots"):
        shuffle(Assignment.contiguous(8, 1), 1)


@pytest.mark.parametrize("affected", [0, 9])
def test_an_impossible_number_of_affected_units_is_refused(affected):
    with pytest.raises(BadInput, match=f"affected = {affected}: must be between 1 and the number of units, 8"):
        shuffle(Assignment.contiguous(8, 2), affected)
