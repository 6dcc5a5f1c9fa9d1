"""Every registered strategy turns any difference between two assignments into a plan that makes just that."""

import random
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keyshift.checks import check_plan, check_strategy
from keyshift.checks.strategy import draw_view
from keyshift.model.errors import BadInput, ContractBroken, PlanRejected
from keyshift.model.keys import Assignment, Mode, Step
from keyshift.planner import Decision, Strategy, View, change, strategies
from keyshift.planner.batches import batches
from keyshift.planner.orders import orders
from keyshift.registry import Registry


def points(known: Registry[Strategy]) -> list:
    """Every strategy for every migration of a job."""
    return [
        pytest.param(point, id=f"{name}-{number}" if strategy.by_migration else name)
        for name, strategy in known.items()
        for number, point in enumerate(strategy.of_every_migration)
    ]


EVERY_STRATEGY = pytest.mark.parametrize("strategy", points(strategies))


@st.composite
def views(draw) -> View:
    return draw_view(draw(st.randoms(use_true_random=False)))


@EVERY_STRATEGY
@given(view=views())
def test_it_reaches_any_target_and_moves_nothing_twice(strategy, view):
    check_plan(strategy, view)


@pytest.mark.parametrize("name", strategies.names())
def test_it_passes_the_check_that_anybody_can_call(name):
    check_strategy(strategies.get(name))


@EVERY_STRATEGY
def test_it_works_with_a_thousand_slots_in_any_order(strategy):
    current = Assignment.contiguous(4000, 999)
    owner = list(current.owner)
    random.Random(5).shuffle(owner)
    heat = tuple(float(unit % 7) for unit in range(4000))
    check_plan(strategy, View(current, Assignment(1, tuple(owner)), heat))


# -- the space between the presets -------------------------------------------------------------------------------------


@st.composite
def overrides(draw) -> dict[str, object]:
    """Any values of any settings; most combinations make no sense."""
    kinds = {
        name: st.sampled_from(get_args(kind)) if get_args(kind) else st.booleans()
        for name, kind in (get_type_hints(Strategy) | get_type_hints(Mode)).items()
        if name in ("copies", "holders", "handover", "unit", "gate", "transfer", "background", "cache")
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
    for point in strategy.of_every_migration:
        check_plan(point, view)


# -- a strategy of one's own -------------------------------------------------------------------------------------------


def exchange_in_pairs(strategy, view, log):
    """Units that go from one to the other of the same two slots, either way, share a step."""
    left = list(view.misplaced())
    number = 0
    while left:
        between = {left[0].source, left[0].destination}
        pair = [move for move in left if {move.source, move.destination} == between]
        left = [move for move in left if {move.source, move.destination} != between]
        for move in pair:
            log(Decision(move.unit, number, f"slots {sorted(between)} exchange"))
        yield Step(tuple(pair))
        number += 1


PAIRS = Strategy("pairs of slots exchange their units", "this test", propose=exchange_in_pairs)


@given(view=views())
def test_a_strategy_with_code_of_its_own_makes_its_own_steps(view):
    plan = check_plan(PAIRS, view)
    between = {frozenset((move.source, move.destination)) for step in plan.steps for move in step.moves}
    assert len(plan.steps) == len(between)


def test_a_strategy_of_ones_own_passes_the_check():
    check_strategy(PAIRS)


def strategy_that(propose, **changes) -> Strategy:
    return replace(Strategy("somebody's own way to move state", "this test", propose=propose), **changes)


def backwards(strategy, view, log):
    yield Step(tuple(reversed(view.misplaced())))


def by_chance(strategy, view, log):
    moves = list(view.misplaced())
    random.shuffle(moves)
    yield from (Step((move,)) for move in moves)


def incomplete(strategy, view, log):
    yield from (Step((move,)) for move in view.misplaced()[1:])


def talkative(strategy, view, log):
    for unit in range(len(view.current.owner)):
        log(Decision(unit, None, "it was looked at"))
    yield from (Step((move,)) for move in view.misplaced())


def hot_own(strategy, view, log):
    yield from (Step((m,)) for m in sorted(view.misplaced(), key=lambda m: view.heat[m.unit]))


def surprised(strategy, view, log):
    raise ZeroDivisionError("of a cell")


@pytest.mark.parametrize(
    ("strategy", "error", "words"),
    [
        (strategy_that(backwards), PlanRejected, "step 0 is empty"),
        (strategy_that(by_chance), ContractBroken, "the same view gave another plan"),
        (strategy_that(incomplete), PlanRejected, "units never moved"),
        (strategy_that(talkative), ContractBroken, "a unit that does not move"),
        (strategy_that(hot_own), ContractBroken, "^without heat, as with replicas, it raised IndexError: "),
        (strategy_that(surprised), PlanRejected, "^the strategy raised ZeroDivisionError: of a cell$"),
        (strategy_that(None, summary="short"), ContractBroken, "summary 'short': must be a line"),
        (strategy_that(None, source=""), ContractBroken, "source is empty"),
    ],
    ids=lambda value: value.propose.__name__ if isinstance(value, Strategy) and value.propose else "",
)
def test_the_check_says_in_plain_words_what_a_strategy_does_not_keep(strategy, error, words):
    with pytest.raises(error, match=words):
        check_strategy(strategy)
