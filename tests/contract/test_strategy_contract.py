"""Every registered strategy turns any difference between two assignments into a plan that makes just that."""

import copy
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyshift.keys import Assignment, Move, SlotId
from keyshift.planner import Snapshot, Strategy, make_plan, strategies
from keyshift.planner.targets import scale

EVERY_STRATEGY = pytest.mark.parametrize("strategy", [pytest.param(s, id=name) for name, s in strategies.items()])


@st.composite
def views(draw) -> Snapshot:
    units, slots = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    owners = st.lists(st.integers(0, slots - 1).map(SlotId), min_size=units, max_size=units).map(tuple)
    version = draw(st.integers(1, 5))
    return Snapshot(Assignment(version, draw(owners)), Assignment(version, draw(owners)))


def check(strategy: Strategy, view: Snapshot) -> None:
    """What must be true of a plan, said without ``make_plan``'s own words."""
    before = copy.deepcopy((view.current.owner, view.target.owner))
    steps = list(strategy.propose(view))
    assert steps == list(strategy.propose(view)), "same input, another plan"
    assert (view.current.owner, view.target.owner) == before, "the input was changed"
    assert make_plan(strategy, view.current, view.target).steps == tuple(steps)

    owner = list(view.current.owner)
    moved: Counter[int] = Counter()
    for step in steps:
        assert step.moves
        for move in step.moves:
            assert owner[move.unit] == move.source != move.destination
            owner[move.unit] = move.destination
            moved[move.unit] += 1
    assert tuple(owner) == view.target.owner
    assert set(moved.values()) <= {1}
    misplaced = sum(here != there for here, there in zip(*before, strict=True))
    assert len(moved) == misplaced


@EVERY_STRATEGY
@given(view=views())
def test_it_reaches_any_target_and_moves_nothing_twice(strategy, view):
    check(strategy, view)


@EVERY_STRATEGY
@given(view=views())
def test_an_empty_difference_gives_an_empty_plan(strategy, view):
    assert make_plan(strategy, view.current, view.current).steps == ()


@EVERY_STRATEGY
def test_one_slot_has_nothing_to_move(strategy):
    alone = Assignment.contiguous(16, 1)
    assert make_plan(strategy, alone, scale(alone, 1)).steps == ()


@EVERY_STRATEGY
def test_it_works_with_one_unit(strategy):
    view = Snapshot(Assignment(1, (SlotId(0),)), Assignment(1, (SlotId(1),)))
    check(strategy, view)
    assert [step.moves for step in strategy.propose(view)] == [(Move(0, 0, 1),)]


@EVERY_STRATEGY
def test_it_works_with_a_thousand_slots(strategy):
    current = Assignment.contiguous(4000, 999)
    check(strategy, Snapshot(current, scale(current, 1000)))
    check(strategy, Snapshot(current, scale(current, 1)))
    owner = list(current.owner)
    random.Random(5).shuffle(owner)
    check(strategy, Snapshot(current, Assignment(1, tuple(owner))))


@EVERY_STRATEGY
def test_it_says_what_it_does_and_where_it_is_from(strategy):
    assert 10 < len(strategy.summary) <= 80 and "\n" not in strategy.summary
    assert strategy.source
