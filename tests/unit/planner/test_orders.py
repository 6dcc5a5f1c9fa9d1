import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_steps import assignment

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Move
from keyshift.planner import Snapshot
from keyshift.planner.orders import BY_HEAT, orders

CURRENT = Assignment.contiguous(6, 1)
TARGET = assignment(1, 1, 1, 1, 0, 1, 1)


def units(order: str, heat: tuple[float, ...] = (), seed: int = 0) -> list[int]:
    snapshot = Snapshot(CURRENT, TARGET, heat, seed)
    return [move.unit for move, _ in orders.get(order)(snapshot.misplaced(), snapshot)]


def test_units_are_ordered_by_id_either_way_and_by_heat():
    assert units("id") == [0, 1, 2, 4, 5]
    assert units("reverse") == [5, 4, 2, 1, 0]
    assert units("access") == [0, 1, 2, 4, 5]
    assert units("hottest", heat=(1, 5, 2, 9, 5, 0)) == [1, 4, 2, 0, 5]


def test_each_unit_has_its_place_and_the_reason():
    snapshot = Snapshot(CURRENT, TARGET, (1, 5, 2, 9, 5, 0), seed=3)
    reasons = {name: order(snapshot.misplaced(), snapshot)[0][1] for name, order in orders.items()}
    assert reasons == {
        "id": "place 1 of 5 by id",
        "reverse": "place 1 of 5 by id from the highest",
        "random": "place 1 of 5 drawn with seed 3",
        "hottest": "place 1 of 5 by heat, 5",
        "access": "place 1 of 5 by id, unless a record asks for it earlier",
    }


def test_the_hottest_first_needs_heat_that_was_measured():
    with pytest.raises(BadInput, match=r"all 6 units, but none was given: .* pass heat=…, or take order 'id'"):
        units("hottest")


@pytest.mark.parametrize("order", [name for name in orders.names() if name not in BY_HEAT])
def test_an_order_for_which_nobody_measures_does_not_look_at_the_heat(order):
    assert units(order) == units(order, heat=(1, 5, 2, 9, 5, 0))


def test_without_moves_no_heat_is_needed():
    assert orders.get("hottest")((), Snapshot(CURRENT, CURRENT)) == []


def test_a_random_order_depends_on_its_seed_alone_and_is_the_same_everywhere():
    assert units("random", seed=1) == units("random", seed=1)
    assert len({tuple(units("random", seed=seed)) for seed in range(40)}) > 30
    assert [units("random", seed=seed) for seed in (0, 1)] == [[1, 4, 5, 0, 2], [0, 5, 2, 4, 1]]


def test_every_unit_is_first_in_some_random_order():
    assert {units("random", seed=seed)[0] for seed in range(60)} == {0, 1, 2, 4, 5}


@given(st.sampled_from(orders.names()), st.lists(st.floats(0, 1e9), min_size=6, max_size=6), st.integers())
def test_an_order_keeps_every_move_once(name, heat, seed):
    snapshot = Snapshot(CURRENT, TARGET, tuple(heat), seed)
    ranked = orders.get(name)(snapshot.misplaced(), snapshot)
    assert sorted(move.unit for move, _ in ranked) == [0, 1, 2, 4, 5]
    assert {move for move, _ in ranked} == {Move(unit, 0, 1) for unit in (0, 1, 2, 4, 5)}
