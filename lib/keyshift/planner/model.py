"""Planning: from (current, target) to the steps of a migration. Pure: no clock, no random, no IO.

A strategy is a small generator that proposes steps; ``make_plan`` alone keeps the invariants and names the broken one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from keyshift.errors import PlanRejected
from keyshift.keys import Assignment, Move, Step, UnitId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a strategy may look at."""

    current: Assignment
    target: Assignment

    def misplaced(self) -> tuple[Move, ...]:
        """The moves that lead from current to target, ascending by unit."""
        return self.current.moves_to(self.target)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to move state, as a point of the space of design decisions."""

    summary: str
    source: str
    propose: Callable[[Snapshot], Iterator[Step]]
    restarts: bool = False  # the gate is the whole query: savepoint, stop, start anew


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps one after the other; each is begun when the one before is complete."""

    steps: tuple[Step, ...]

    @property
    def moves(self) -> int:
        """How many units move."""
        return sum(len(step.moves) for step in self.steps)


def make_plan(strategy: Strategy, current: Assignment, target: Assignment) -> Plan:
    """The plan of ``strategy`` from ``current`` to ``target``.

    Raises PlanRejected if a step is empty, moves a unit that is not misplaced, moves a unit twice, names a source that
    is not the owner or a destination that is not the target, or if a misplaced unit never moves.
    """
    view = Snapshot(current, target)
    needed = {move.unit: move for move in view.misplaced()}
    done: set[UnitId] = set()
    steps = []
    for number, step in enumerate(strategy.propose(view)):
        if not step.moves:
            raise PlanRejected(f"step {number} is empty")
        for move in step.moves:
            if move.unit in done:
                raise PlanRejected(f"step {number}: unit {move.unit} moves twice")
            if move.unit not in needed:
                raise PlanRejected(f"step {number}: unit {move.unit} is where it should be and must not move")
            if move != needed[move.unit]:
                raise PlanRejected(f"step {number}: {move} where {needed[move.unit]} was expected")
            done.add(move.unit)
        steps.append(step)
    if missing := sorted(set(needed) - done):
        raise PlanRejected(f"units never moved: {missing[:10]}{' …' if len(missing) > 10 else ''}")
    return Plan(tuple(steps))
