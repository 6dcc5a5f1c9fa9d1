import pytest
from small_steps import assignment

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Move
from keyshift.planner import View
from keyshift.planner.orders import BY_HEAT, orders

CURRENT = Assignment.contiguous(6, 1)
TARGET = assignment(1, 1, 1, 1, 0, 1, 1)
HEAT = (1, 5, 2, 9, 5, 0)


def ranked(order: str, heat: tuple[float, ...] = HEAT, seed: int = 0) -> list[tuple[Move, str]]:
    view = View(CURRENT, TARGET, heat, seed)
    return orders.get(order)(view.misplaced(), view)


def units(order: str, **given) -> list[int]:
    return [move.unit for move, _ in ranked(order, **given)]


@pytest.mark.parametrize(
    ("order", "expected", "reason"),
    [
        ("id", [0, 1, 2, 4, 5], "place 1 of 5 by id"),
        ("reverse", [5, 4, 2, 1, 0], "place 1 of 5 by id from the highest"),
        ("random", [1, 4, 5, 0, 2], "place 1 of 5 drawn with seed 0"),
        ("hottest", [1, 4, 2, 0, 5], "place 1 of 5 by heat, 5"),
        ("access", [0, 1, 2, 4, 5], "place 1 of 5 by id, unless a record asks for it earlier"),
    ],
)
def test_each_move_has_its_place_once_and_the_reason(order, expected, reason):
    assert [move for move, _ in ranked(order)] == [Move(unit, 0, 1) for unit in expected]
    assert ranked(order)[0][1] == reason


def test_the_hottest_first_needs_heat_that_was_measured_unless_nothing_moves():
    with pytest.raises(BadInput, match=r"all 6 units, but none was given: .* pass heat=…, or take order 'id'"):
        units("hottest", heat=())
    assert orders.get("hottest")((), View(CURRENT, CURRENT)) == []


@pytest.mark.parametrize("order", [name for name in orders.names() if name not in BY_HEAT])
def test_an_order_for_which_nobody_measures_does_not_look_at_the_heat(order):
    assert ranked(order, heat=()) == ranked(order)


def test_a_random_order_depends_on_its_seed_alone_and_is_the_same_everywhere():
    assert units("random", seed=1) == units("random", seed=1) == [0, 5, 2, 4, 1]
    assert len({tuple(units("random", seed=seed)) for seed in range(40)}) > 30
