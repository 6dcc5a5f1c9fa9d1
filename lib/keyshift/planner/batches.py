"""Batches: how ordered moves are cut into steps. A new batch is one function and one line at the end.

``cap`` bounds the units of a step in every batch. Moves keep their order within a step.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from keyshift.model.keys import Move, SlotId
from keyshift.planner.matching import fewest_steps
from keyshift.planner.model import Strategy
from keyshift.registry import Registry

Batching = Callable[[Sequence[Move], Strategy], Iterator[list[Move]]]


def together(moves: Sequence[Move], strategy: Strategy) -> Iterator[list[Move]]:
    """Everything in one step. Source: Megaphone, 'sudden'; Spacker with ``sync_keys = 0``."""
    return _chunks(moves, strategy.cap or len(moves))


def globally(moves: Sequence[Move], strategy: Strategy) -> Iterator[list[Move]]:
    """``size`` units per step, whoever has them. Source: with size 1 Megaphone, 'fluid'."""
    return _chunks(moves, min(strategy.size, strategy.cap or strategy.size))


def per_source(moves: Sequence[Move], strategy: Strategy) -> Iterator[list[Move]]:
    """Up to ``size`` units of every source: the i-th chunks of all sources make the i-th step.

    If the cap cuts the round of the sources short, the next step goes on there, so that all get on equally.
    Source: Spacker with ``sync_keys = size``; with size 1 and a cap, Meces' gradual migration.
    """
    leaving: defaultdict[SlotId, deque[Move]] = defaultdict(deque)
    for move in moves:
        leaving[move.source].append(move)
    place = {move.unit: number for number, move in enumerate(moves)}
    turn = deque(leaving.values())  # sources that have units left, the one whose turn it is first
    quota = strategy.size  # what that one may still give in its turn
    while turn:
        step: list[Move] = []
        served = []
        room = strategy.cap or len(moves)
        while turn and room:
            queue = turn.popleft()
            chunk = [queue.popleft() for _ in range(min(quota, room, len(queue)))]
            step += chunk
            room -= len(chunk)
            quota -= len(chunk)
            if queue and quota:  # so there is no room left
                turn.appendleft(queue)
                continue
            if queue:
                served.append(queue)
            quota = strategy.size
        yield sorted(step, key=lambda move: place[move.unit])
        turn.extend(served)


def matched(moves: Sequence[Move], strategy: Strategy) -> Iterator[list[Move]]:
    """Every source and every destination at most once per step, in the fewest steps: see ``matching``.

    Source: Megaphone, 'batched' (which takes more steps, and loses moves of a source with several destinations).
    """
    return iter(fewest_steps(moves, strategy.cap))


def _chunks(moves: Sequence[Move], size: int) -> Iterator[list[Move]]:
    return (list(moves[begin : begin + size]) for begin in range(0, len(moves), size or 1))


batches: Registry[Batching] = Registry("batch")
batches.register("all", together)
batches.register("global", globally)
batches.register("per_source", per_source)
batches.register("matched", matched)
SIZED = ("global", "per_source")  # that look at ``size``: of others it is refused
