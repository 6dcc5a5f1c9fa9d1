"""Every registered strategy turns any difference between two assignments into a plan that makes just that."""

import copy
import importlib.util
import random
from collections import Counter
from typing import get_args, get_type_hints

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keyshift.errors import BadInput
from keyshift.keys import Assignment, Mode, Move, SlotId
from keyshift.planner import Plan, Snapshot, Strategy, change, check, in_units, make_plan, strategies
from keyshift.planner.batches import batches
from keyshift.planner.orders import orders
from keyshift.planner.targets import scale
from keyshift.registry import Registry


def points(known: Registry[Strategy]) -> list:
    """Every strategy in every phase."""
    return [
        pytest.param(strategy.phase(number), id=f"{name}-{number}" if strategy.phases else name)
        for name, strategy in known.items()
        for number in range(max(1, len(strategy.phases)))
    ]


EVERY_STRATEGY = pytest.mark.parametrize("strategy", points(strategies))


@st.composite
def views(draw) -> Snapshot:
    """Two assignments of key groups, and their heat. Slots may own nothing, and groups may stay."""
    groups, slots = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    owners = st.lists(st.integers(0, slots - 1).map(SlotId), min_size=groups, max_size=groups).map(tuple)
    heat = draw(st.lists(st.floats(0, 1e6), min_size=groups, max_size=groups))
    version = draw(st.integers(1, 5))
    return Snapshot(
        Assignment(version, draw(owners)), Assignment(version, draw(owners)), tuple(heat), draw(st.integers())
    )


def plan_of(strategy: Strategy, view: Snapshot) -> tuple[Plan, Assignment, Assignment]:
    """The plan, and both assignments in units of the strategy."""
    current, target = in_units(strategy, view.current), in_units(strategy, view.target)
    heat = [value / strategy.bins for value in view.heat for _ in range(strategy.bins)]
    return make_plan(strategy, current, target, heat, view.seed), current, target


def check_plan(strategy: Strategy, view: Snapshot) -> Plan:
    """What must be true of a plan, said without ``make_plan``'s own words."""
    before = copy.deepcopy(view)
    plan, current, target = plan_of(strategy, view)
    assert view == before, "the input was changed"
    again = plan_of(strategy, view)[0]
    assert plan == again and plan.decisions == again.decisions, "same input, another plan"

    owner = list(current.owner)
    moved: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        assert step.moves
        assert len(step.moves) <= (strategy.cap or len(owner))
        assert step.mode == strategy.mode
        for move in step.moves:
            assert move.unit not in moved
            assert owner[move.unit] == move.source != move.destination
            owner[move.unit] = move.destination
            moved[move.unit] = number
    assert tuple(owner) == target.owner
    assert len(moved) == sum(here != there for here, there in zip(current.owner, target.owner, strict=True))
    assert len(plan.steps) <= 1 or not strategy.restarts
    check_copies(strategy, plan, current, moved)
    check_decisions(plan, moved)
    return plan


def check_copies(strategy: Strategy, plan: Plan, current: Assignment, moved: dict[int, int]) -> None:
    assert bool(plan.copies) <= bool(strategy.replicate)
    assert len({copied.unit for copied in plan.copies}) == len(plan.copies)
    for copied in plan.copies:
        assert current.owner[copied.unit] == copied.source != copied.destination
        assert copied.unit // strategy.bins % strategy.replicate == 0
        assert copied.unit in moved or strategy.replicas == "periodic"


def check_decisions(plan: Plan, moved: dict[int, int]) -> None:
    """Each unit that moves has one decision that says when; the others, at most two more each, say why not."""
    when = [(decision.unit, decision.step) for decision in plan.decisions if decision.step is not None]
    assert sorted(when) == sorted(moved.items())
    assert all(decision.reason for decision in plan.decisions)
    refused = Counter(decision.unit for decision in plan.decisions if decision.step is None)
    assert refused.keys() <= moved.keys()
    assert max(refused.values(), default=0) <= 2  # not copied, and put off


@EVERY_STRATEGY
@given(view=views())
def test_it_reaches_any_target_and_moves_nothing_twice(strategy, view):
    check_plan(strategy, view)


@EVERY_STRATEGY
@given(view=views())
def test_an_empty_difference_gives_an_empty_plan(strategy, view):
    plan, *_ = plan_of(strategy, Snapshot(view.current, view.current, view.heat))
    assert plan.steps == ()
    assert plan.decisions == ()


@EVERY_STRATEGY
def test_one_slot_has_nothing_to_move_or_to_copy(strategy):
    alone = Assignment.contiguous(16, 1)
    plan = check_plan(strategy, Snapshot(alone, scale(alone, 1)))
    assert (plan.steps, plan.copies) == ((), ())


@EVERY_STRATEGY
def test_it_works_with_one_group(strategy):
    view = Snapshot(Assignment(1, (SlotId(0),)), Assignment(1, (SlotId(1),)), (3.0,))
    plan = check_plan(strategy, view)
    moves = [move for step in plan.steps for move in step.moves]
    assert sorted(moves, key=lambda move: move.unit) == [Move(unit, 0, 1) for unit in range(strategy.bins)]


@EVERY_STRATEGY
def test_it_works_with_a_thousand_slots(strategy):
    current = Assignment.contiguous(4000, 999)
    heat = tuple(float(unit % 7) for unit in range(4000))
    check_plan(strategy, Snapshot(current, scale(current, 1000), heat))
    owner = list(current.owner)
    random.Random(5).shuffle(owner)
    check_plan(strategy, Snapshot(current, Assignment(1, tuple(owner)), heat))


@EVERY_STRATEGY
def test_it_says_what_it_does_and_where_it_is_from(strategy):
    assert 10 < len(strategy.summary) <= 80 and "\n" not in strategy.summary
    assert strategy.source


# -- the space between the presets -------------------------------------------------------------------------------------


@st.composite
def overrides(draw) -> dict[str, object]:
    """Any values of any settings; most combinations make no sense."""
    kinds = {
        name: st.sampled_from(get_args(kind)) if get_args(kind) else st.booleans()
        for name, kind in (get_type_hints(Strategy) | get_type_hints(Mode)).items()
        if name in ("replicas", "holders", "handover", "unit", "gate", "transfer", "background", "cache")
    }
    kinds |= {"order": st.sampled_from(orders.names()), "batch": st.sampled_from(batches.names())}
    kinds |= {"size": st.integers(0, 5), "cap": st.integers(-1, 5), "replicate": st.integers(-1, 3)}
    kinds |= {"bins": st.integers(0, 4), "fetch_back": st.integers(-1, 2)}
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=3, unique=True))
    return {name: draw(kinds[name]) for name in chosen}


@given(st.sampled_from(strategies.names()), overrides(), views())
def test_every_point_that_is_not_refused_makes_a_plan(name, settings, view):
    try:
        strategy = change(strategies.get(name), settings)
    except BadInput:
        assume(False)
    for number in range(max(1, len(strategy.phases))):
        check_plan(strategy.phase(number), view)


# -- a strategy of one's own -------------------------------------------------------------------------------------------

PAIRS = '''
"""Two slots exchange units: those that go the other way between the same two slots share a step."""

from keyshift.keys import Step
from keyshift.planner import Decision, Strategy


def propose(strategy, snapshot, log):
    left = list(snapshot.misplaced())
    number = 0
    while left:
        between = {left[0].source, left[0].destination}
        pair = [move for move in left if {move.source, move.destination} == between]
        left = [move for move in left if {move.source, move.destination} != between]
        for move in pair:
            log(Decision(move.unit, number, f"slots {sorted(between)} exchange"))
        yield Step(tuple(pair))
        number += 1


STRATEGY = Strategy("pairs of slots exchange their units", "this test", propose=propose)
'''


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Registry[Strategy]:
    file = tmp_path_factory.mktemp("strategies") / "pairs.py"
    file.write_text(PAIRS)
    spec = importlib.util.spec_from_file_location("pairs", file)
    assert spec and spec.loader
    pairs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pairs)
    registry: Registry[Strategy] = Registry("strategy")
    registry.register("pairs", pairs.STRATEGY)
    return registry


@given(view=views())
def test_a_new_strategy_is_one_file_and_one_line(known, view):
    pairs = known.get("pairs")
    check(pairs)
    plan = check_plan(pairs, view)
    between = {frozenset((move.source, move.destination)) for step in plan.steps for move in step.moves}
    assert len(plan.steps) == len(between)
