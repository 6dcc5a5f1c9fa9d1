from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyshift.model.keys import Move, SlotId, UnitId
from keyshift.planner import Strategy
from keyshift.planner.batches import SIZED, batches
from keyshift.planner.matching import fewest_steps

PLAIN = Strategy("cuts what the test says", "this test")


def moves_of(*ends: tuple[int, int]) -> list[Move]:
    return [Move(UnitId(unit), SlotId(source), SlotId(there)) for unit, (source, there) in enumerate(ends)]


def cut(batch: str, moves: list[Move], size: int = 1, cap: int = 0) -> list[list[int]]:
    steps = batches.get(batch)(moves, replace(PLAIN, batch=batch, size=size, cap=cap))
    return [[move.unit for move in step] for step in steps]


def degree(moves: list[Move]) -> int:
    """Of the slot that gives or takes most."""
    return max([*Counter(m.source for m in moves).values(), *Counter(m.destination for m in moves).values()])


slots = st.integers(0, 5)
# A slot may well be both source and destination, and many units may go between the same two.
multigraphs = st.lists(st.tuples(slots, slots).filter(lambda ends: ends[0] != ends[1]), min_size=1, max_size=60).map(
    lambda ends: moves_of(*ends)
)
big_multigraphs = st.integers(2, 25).flatmap(
    lambda slots: st.lists(st.tuples(st.integers(0, slots), st.integers(0, slots)), min_size=1, max_size=300).map(
        lambda ends: moves_of(*ends)
    )
)


# -- matched -----------------------------------------------------------------------------------------------------------


@example(moves_of((0, 1), (0, 2)), 0)  # on which Megaphone's published generator ends after one move
@example(moves_of((0, 1), (1, 2), (2, 0)), 0)  # each slot gives and takes in the same step
@example(moves_of((1, 10), (1, 11), (0, 12), (0, 11)), 0)  # first fit has no step for the last one
@given(multigraphs | big_multigraphs, st.integers(0, 8))
def test_matched_uses_each_source_and_destination_once_in_the_fewest_possible_steps(moves, cap):
    steps = fewest_steps(moves, cap)
    assert len(steps) == max(degree(moves), -(-len(moves) // cap) if cap else 0)
    assert sorted(move.unit for step in steps for move in step) == list(range(len(moves)))
    assert all(degree(step) == 1 and len(step) <= (cap or len(moves)) for step in steps)


@given(multigraphs, st.integers(0, 8))
def test_no_move_of_matched_fits_into_an_earlier_step(moves, cap):
    for before, after in combinations(fewest_steps(moves, cap), 2):
        for move in after:
            busy = any(m.source == move.source or m.destination == move.destination for m in before)
            assert busy or len(before) == cap


@example(moves_of((0, 9), (1, 8), (2, 8), (2, 9), (2, 9)))  # an exchange turns the last two round
@given(multigraphs)
def test_matched_keeps_the_order_of_units_between_the_same_two_slots(moves):
    number = {move.unit: number for number, step in enumerate(fewest_steps(moves)) for move in step}
    ends = {(move.source, move.destination) for move in moves}
    for pair in ends:
        same = [number[move.unit] for move in moves if (move.source, move.destination) == pair]
        assert all(a < b for a, b in pairwise(same))


# -- the others --------------------------------------------------------------------------------------------------------

SIX = moves_of((0, 9), (0, 9), (0, 9), (1, 9), (2, 9), (2, 9))


@pytest.mark.parametrize(
    ("batch", "size", "cap", "steps"),
    [
        ("all", 1, 0, [[0, 1, 2, 3, 4, 5]]),
        ("all", 1, 4, [[0, 1, 2, 3], [4, 5]]),
        ("global", 1, 0, [[0], [1], [2], [3], [4], [5]]),
        ("global", 4, 0, [[0, 1, 2, 3], [4, 5]]),
        ("global", 4, 2, [[0, 1], [2, 3], [4, 5]]),
        ("per_source", 1, 0, [[0, 3, 4], [1, 5], [2]]),
        ("per_source", 2, 0, [[0, 1, 3, 4, 5], [2]]),
        ("per_source", 1, 2, [[0, 3], [1, 4], [2, 5]]),
        ("per_source", 9, 4, [[0, 1, 2, 3], [4, 5]]),
        ("matched", 1, 0, [[0], [1], [2], [3], [4], [5]]),
    ],
)
def test_moves_are_cut_by_size_and_cap(batch, size, cap, steps):
    assert cut(batch, SIX, size, cap) == steps


@pytest.mark.parametrize("batch", batches.names())
def test_a_size_is_for_the_batches_that_look_at_it(batch):
    assert (cut(batch, SIX, size=1) != cut(batch, SIX, size=2)) == (batch in SIZED)


@given(st.sampled_from(batches.names()), multigraphs | st.just([]), st.integers(1, 5), st.integers(0, 6))
def test_every_batch_keeps_the_cap_the_order_within_a_step_and_every_move(batch, moves, size, cap):
    steps = cut(batch, moves, size, cap)
    assert sorted(unit for step in steps for unit in step) == list(range(len(moves)))
    for step in steps:
        assert step == sorted(step)
        assert 0 < len(step) <= (cap or len(moves))


@given(multigraphs, st.integers(1, 5))
def test_per_source_the_chunks_of_a_source_are_full_until_its_last(moves, size):
    steps = cut("per_source", moves, size)
    for source in {move.source for move in moves}:
        given_away = [sum(moves[unit].source == source for unit in step) for step in steps]
        owned = sum(move.source == source for move in moves)
        full, rest = divmod(owned, size)
        assert [n for n in given_away if n] == [size] * full + [rest] * (rest > 0)
        assert all(given_away[: full + (rest > 0)])


@example(sources=4, each=12, size=2, cap=5)
@example(sources=2, each=6, size=2, cap=1)
@given(st.integers(2, 8), st.integers(2, 12), st.integers(1, 4), st.integers(1, 12))
def test_per_source_a_cap_lets_all_sources_get_on_equally(sources, each, size, cap):
    moves = moves_of(*[(source, 99) for source in range(sources) for _ in range(each)])
    left = Counter(dict.fromkeys(range(sources), each))
    for step in cut("per_source", moves, size, cap):
        given_away = Counter(moves[unit].source for unit in step)
        assert max(given_away.values()) <= size
        left -= given_away
        if len(left) == sources:
            assert max(left.values()) - min(left.values()) <= size
