import pytest
from small_steps import assignment

from keyshift.model.keys import Assignment, SlotId
from keyshift.planner import Plan, change, in_units, make_plan, strategies

CURRENT = assignment(1, 0, 0, 0, 2, 2, 5)  # the ring is 0, 2, 5
TARGET = assignment(1, 2, 3, 3, 2, 5, 0)


def plan_of(**overrides: object) -> Plan:
    return make_plan(change(strategies.get("all_at_once"), overrides), CURRENT, TARGET)


def copies(plan: Plan) -> list[tuple[int, int, int]]:
    return [(copy.unit, copy.source, copy.destination) for copy in plan.copies]


def refusals(plan: Plan) -> dict[int, str]:
    return {d.unit: d.reason for d in plan.decisions if d.step is None}


ALL = [(0, 0, 2), (1, 0, 3), (2, 0, 3), (4, 2, 5), (5, 5, 0)]


@pytest.mark.parametrize(
    ("given", "copied"),
    [({}, []), ({"replicate": 1, "copies": "warm_up"}, ALL), ({"replicate": 1, "copies": "periodic"}, ALL)],
)
def test_every_unit_that_moves_is_copied_to_its_destination_and_no_other(given, copied):
    plan = plan_of(**given)
    assert (copies(plan), refusals(plan)) == (copied, {})


def test_of_every_second_group_the_others_are_refused_by_name():
    plan = plan_of(replicate=2)
    assert copies(plan) == [(0, 0, 2), (2, 0, 3), (4, 2, 5)]
    assert refusals(plan) == {
        unit: f"not copied: key group {unit} is not a multiple of replicate = 2" for unit in (1, 5)
    }


def test_bins_are_copied_by_their_group():
    strategy = change(strategies.get("fluid"), {"unit": "bin", "bins": 2, "replicate": 2})
    plan = make_plan(strategy, in_units(strategy, CURRENT), in_units(strategy, TARGET))
    assert copies(plan) == [(0, 0, 2), (1, 0, 2), (4, 0, 3), (5, 0, 3), (8, 2, 5), (9, 2, 5)]


def test_a_ring_that_is_copied_all_the_time_has_the_units_too_that_stay_at_the_next_slot_that_owns_some():
    plan = plan_of(replicate=1, holders="ring", copies="periodic")
    assert (copies(plan), refusals(plan)) == (sorted([*ALL, (3, 2, 5)]), {})
    plan = plan_of(replicate=3, holders="ring", copies="periodic")
    assert copies(plan) == [(0, 0, 2), (3, 2, 5)]
    assert refusals(plan).keys() == {1, 2, 4, 5}
    assert copies(plan_of(replicate=1, holders="ring")) == ALL, "when the migration begins what stays is not copied"


def test_a_slot_that_owns_every_unit_has_no_ring_and_copies_go_to_the_slots_that_come():
    alone = Assignment.contiguous(2, 1)
    plan = make_plan(strategies.get("rhino"), alone, Assignment(1, (SlotId(0), SlotId(1))))
    assert (copies(plan), refusals(plan)) == ([(1, 0, 1)], {})
