"""``make_plan``: what it refuses, what it writes down; and what makes each preset one."""

from dataclasses import replace

import numpy as np
import pytest
from small_steps import assignment, step

from keyshift.model.errors import BadInput, PlanRejected
from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, UnitId
from keyshift.model.messages import decode, encode
from keyshift.planner import Decision, Plan, Strategy, change, in_units, make_plan, settings, strategies
from keyshift.planner.batches import batches
from keyshift.planner.targets import scale
from keyshift.wire import nodes

CURRENT = assignment(3, 0, 0, 1, 1)
TARGET = assignment(3, 0, 1, 1, 2)  # unit 1: 0 -> 1, unit 3: 1 -> 2


def plan_of(*steps: Step, **settings: object) -> Plan:
    strategy = Strategy(
        "proposes what the test says", "this test", propose=lambda strategy, view, log: iter(steps), **settings
    )
    return make_plan(strategy, CURRENT, TARGET)


# -- make_plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_that_moves_each_misplaced_unit_once_is_accepted_in_the_mode_of_its_strategy_though_nobody_explains_it():
    plan = plan_of(step((3, 1, 2)), step((1, 0, 1)))
    assert plan.steps == (step((3, 1, 2)), step((1, 0, 1)))
    assert plan.moves == 2
    assert [(d.unit, d.step) for d in plan.decisions] == [(3, 0), (1, 1)]
    fetch = Mode(transfer="fetch", fetch_back=1)
    plan = plan_of(step((1, 0, 1)), step((3, 1, 2), mode=fetch), mode=fetch)
    assert [step.mode for step in plan.steps] == [fetch, fetch]


def test_a_plan_travels_and_is_read_as_it_was_made_whatever_integers_and_lists_the_strategy_has_used():
    def propose(strategy, view, log):
        owner, target = np.array(view.current.owner), np.array(view.target.owner)
        for number, unit in enumerate(np.flatnonzero(owner != target)):
            log(Decision(unit, np.int64(number), "as numpy found it"))
            yield Step([Move(unit, owner[unit], target[unit])])

    plan = make_plan(Strategy("integers of numpy", "this test", propose=propose), CURRENT, TARGET)
    assert plan.steps == (step((1, 0, 1)), step((3, 1, 2)))
    written = nodes.WrittenPlan("a", plan.steps)
    assert nodes.PLAN.decode(nodes.PLAN.encode(written)) == written
    assert decode(Decision, encode(plan.decisions[1])) == Decision(UnitId(3), 1, "as numpy found it")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step((1, 0, 1)), step(), step((3, 1, 2))], "step 1 is empty"),
        ([step((1, 0, 1)), step((3, 1, 2), (1, 0, 1))], "step 1, unit 1 from slot 0 to 1: it moves twice, first"),
        ([step((1, 0, 1), (1, 0, 1)), step((3, 1, 2))], "step 0, unit 1 from .* moves twice, first in step 0"),
        ([step((0, 0, 1), (1, 0, 1), (3, 1, 2))], "step 0, unit 0 from slot 0 to 1: it is where it should be and"),
        ([step((9, 0, 1))], "step 0, unit 9 from slot 0 to 1: there is no such unit, they are 0 to 3"),
        ([step((1, 1, 1))], "unit 1 from slot 1 to 1: it must go from slot 0 to 1"),
        ([step((1, 0, 2))], "unit 1 from slot 0 to 2: it must go from slot 0 to 1"),
        ([step((1, 0, 7))], "unit 1 from slot 0 to 7: there is no slot 7, they are 0, 1, 2"),
        ([step((1, -1, 1))], "unit 1 from slot -1 to 1: there is no slot -1"),
        ([[Move(UnitId(1), SlotId(0), SlotId(1))]], r"step 0 is \[Move\(.*: must be a Step of Moves"),
        ([Step((1,))], r"step 0 is Step\(moves=\(1,.*: must be a Step of Moves"),
        ([step((3, 1, 2))], r"units never moved: \[1\]"),
        ([], r"units never moved: \[1, 3\]"),
        ([step((1, 0, 1), mode=Mode(transfer="fetch")), step((3, 1, 2))], "step 0 has .*: the mode is the strategy's"),
    ],
)
def test_a_plan_that_breaks_an_invariant_is_rejected_by_name(steps, message):
    with pytest.raises(PlanRejected, match=message):
        plan_of(*steps)


def test_a_step_above_the_cap_is_rejected_and_a_query_that_is_stopped_is_stopped_once():
    assert plan_of(step((1, 0, 1), (3, 1, 2)), cap=2).moves == 2
    with pytest.raises(PlanRejected, match="step 0 moves 2 units: cap = 1"):
        plan_of(step((1, 0, 1), (3, 1, 2)), cap=1)
    stopped = {"mode": Mode(gate="query")}
    assert plan_of(step((1, 0, 1), (3, 1, 2)), **stopped).moves == 2
    with pytest.raises(PlanRejected, match="step 1: a query that is stopped moves everything in step 0"):
        plan_of(step((1, 0, 1)), step((3, 1, 2)), **stopped)


def test_a_long_list_of_units_never_moved_is_cut():
    lazy = Strategy("does nothing", "this test", propose=lambda strategy, view, log: iter(()))
    with pytest.raises(PlanRejected, match=r"units never moved: \[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\] …$"):
        make_plan(lazy, Assignment.contiguous(20, 1), Assignment(1, (SlotId(1),) * 20))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": Assignment.contiguous(5, 1)}, "the target has 5 units: must have as many as the assignment now, 4"),
        ({"heat": [1.0, 2.0]}, "heat has 2 values: must be one per unit, 4"),
        ({"heat": [1.0, 2.0, -1.0, 0.0]}, "heat of unit 2 = -1.0"),
        ({"heat": [1.0, 2.0, 3.0, float("nan")]}, "heat of unit 3 = nan"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        make_plan(strategies.get("fluid"), **({"current": CURRENT, "target": TARGET} | arguments))


def test_a_strategy_that_makes_no_sense_and_more_units_than_an_assignment_can_hold_are_refused():
    with pytest.raises(BadInput, match="size = 0"):
        make_plan(replace(strategies.get("fluid"), size=0), CURRENT, CURRENT)
    meces = strategies.get("meces")
    assert len(in_units(meces, Assignment.contiguous(8, 2)).owner) == 128
    with pytest.raises(BadInput, match="bins = 16 in each of 65537 key groups make 1048592 units: at most 1048576"):
        in_units(meces, Assignment.contiguous(65537, 2))


# -- decisions ---------------------------------------------------------------------------------------------------------


def five_units(strategy: Strategy) -> Plan:
    current, target = assignment(1, 0, 0, 0, 1, 1), assignment(1, 2, 2, 0, 2, 0)
    return make_plan(strategy, current, target, heat=(1, 9, 5, 2, 7))


@pytest.mark.parametrize(
    ("name", "decisions"),
    [
        ("fluid", [(unit, step, f"place {step + 1} of 4 by id") for step, unit in enumerate((0, 1, 3, 4))]),
        (
            "fluid_per_source",
            [
                (0, 0, "place 1 of 4 by id"),
                (3, 0, "place 3 of 4 by id"),
                (1, None, "put off from step 0: source 0 already gives 1 unit"),
                (1, 1, "place 2 of 4 by id"),
                (4, 1, "place 4 of 4 by id"),
            ],
        ),
    ],
)
def test_each_unit_has_the_reason_for_its_step_and_why_it_was_put_off_in_the_order_of_decisions(name, decisions):
    found = five_units(strategies.get(name)).decisions
    assert [(each.unit, each.step, each.reason) for each in found] == decisions


def test_matched_names_the_end_that_is_busy():
    current, target = (Assignment(1, tuple(map(SlotId, owner))) for owner in ((0, 0, 1, 3), (2, 4, 2, 5)))
    plan = make_plan(strategies.get("matched"), current, target)
    assert [[move.unit for move in step.moves] for step in plan.steps] == [[0, 3], [1, 2]]
    assert [(d.unit, d.reason) for d in plan.decisions if d.step is None] == [
        (1, "put off from step 0: source 0 already gives 1 unit"),
        (2, "put off from step 0: destination 2 already takes 1 unit"),
    ]


def test_the_cap_is_named_where_it_is_what_holds_a_unit_up():
    capped = change(strategies.get("chunked"), {"size": 2, "cap": 3})
    put_off = Decision(UnitId(2), None, "put off from step 0: the step is at its cap, 3")
    assert replace(put_off, unit=UnitId(1)) not in five_units(capped).decisions
    plan = make_plan(capped, assignment(1, 0, 1, 1, 0), Assignment(1, (SlotId(2),) * 4))
    assert [[move.unit for move in step.moves] for step in plan.steps] == [[0, 1, 3], [2]]
    assert [d for d in plan.decisions if d.step is None] == [put_off]


def test_a_new_batch_is_one_function_and_what_it_delays_is_explained(registered):
    registered(batches, last_first=lambda moves, strategy: ([move] for move in reversed(moves)))
    plan = make_plan(change(strategies.get("fluid"), {"batch": "last_first"}), CURRENT, TARGET)
    assert [(d.unit, d.step, d.reason) for d in plan.decisions] == [
        (3, 0, "place 2 of 2 by id"),
        (1, None, "put off from step 0: batch 'last_first' has a later step for it"),
        (1, 1, "place 1 of 2 by id"),
    ]


# -- presets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "overrides", "steps"),
    [("all_at_once", {"order": "reverse", "cap": 3}, [[4, 3, 1], [0]]), ("hot_first", {"size": 1}, [[1, 4], [3, 0]])],
)
def test_moves_are_cut_in_their_order(name, overrides, steps):
    plan = five_units(change(strategies.get(name), overrides))
    assert [[move.unit for move in step.moves] for step in plan.steps] == steps


TABLE = {  # what makes a preset one: everything else is as in `all_at_once`
    "stop_restart": {"gate": "query"},
    "pause_resume": {"gate": "router"},
    "order_unaware": {"gate": "slots"},
    "all_at_once": {},
    "fluid": {"batch": "global"},
    "fluid_per_source": {"batch": "per_source"},
    "matched": {"batch": "matched"},
    "chunked": {"batch": "per_source", "size": 4},
    "hot_first": {"batch": "per_source", "size": 4, "order": "hottest"},
    "replicated": {"replicate": 2, "copies": "periodic"},
    "rhino": {"replicate": 1, "copies": "periodic", "holders": "ring"},
    "meces": {
        "order": "access",
        "batch": "per_source",
        "size": 16,
        "cap": 128,
        "unit": "bin",
        "bins": 16,
        "transfer": "fetch",
        "fetch_back": 2,
        "fetch_interval_ms": 3,
    },
    "lazy": {"order": "access", "unit": "key", "transfer": "access", "background": False},
    "hybrid": {"order": "access", "unit": "key", "transfer": "remote", "background": False, "cache": True},
    "spacker_dynamic": {},
    "drrs": {"order": "access", "batch": "global", "size": 16, "transfer": "fetch"},
}


def test_each_preset_is_its_point_of_the_space():
    base = settings(strategies.get("all_at_once"))
    assert {name: dict(settings(strategies.get(name)).items() - base.items()) for name in TABLE} == TABLE


def test_the_dynamic_preset_plans_each_migration_anew_and_stays_with_its_last_plan():
    dynamic = strategies.get("spacker_dynamic")
    current = Assignment.contiguous(64, 4)
    plans = [make_plan(dynamic.of_migration(number), current, scale(current, 2)) for number in range(4)]
    assert [len(plan.steps) for plan in plans] == [1, 2, 2, 2]
    assert [len(plan.copies) for plan in plans] == [0, 16, 16, 16]
    assert [dynamic.of_migration(number).order for number in range(4)] == ["id", "random", "id", "id"]
    assert make_plan(dynamic, current, scale(current, 2)) == plans[0]
