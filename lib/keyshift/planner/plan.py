"""The one place where a plan is made: asks the strategy for steps, keeps the invariants, names the broken one."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from operator import index

from keyshift.model.errors import BadInput, KeyshiftError, PlanRejected
from keyshift.model.keys import MAX_UNITS, Assignment, Move, SlotId, Step, UnitId
from keyshift.planner.batches import batches
from keyshift.planner.check import check
from keyshift.planner.model import LIVE_PUSH, Decision, Log, Plan, Strategy, View
from keyshift.planner.orders import orders


def make_plan(
    strategy: Strategy, current: Assignment, target: Assignment, heat: Sequence[float] = (), seed: int = 0
) -> Plan:
    """The plan of ``strategy`` from ``current`` to ``target``, both in the strategy's units (``in_units``).

    ``heat``: records per second of each unit, if they were measured; ``seed``: for orders that draw. The plan is
    that of a job's first migration; a strategy that changes has those of others in ``strategy.of_migration(n)``. The
    same input gives the same plan. What is proposed may be lists, and integers of numpy: the plan has tuples and plain
    integers.

    Raises BadInput if the strategy is one that ``check`` refuses, or the arguments do not fit together. Raises
    PlanRejected, which names the move, if what is proposed is no step; if a step is empty, is above the cap, has a mode
    of its own, moves a unit that is not there or not misplaced, moves a unit twice, names a source that is not the
    owner or a destination that is not the target; if a misplaced unit never moves; or if a query that is stopped would
    be stopped more than once; or if a strategy of somebody's own raises anything else.
    """
    check(strategy)
    try:
        return _made(strategy.of_migration(0), current, target, heat, seed)
    except KeyshiftError:
        raise
    except Exception as error:  # no reason to end a job
        raise PlanRejected(f"the strategy raised {type(error).__name__}: {error}") from error


def _made(strategy: Strategy, current: Assignment, target: Assignment, heat: Sequence[float], seed: int) -> Plan:
    units = len(current.owner)
    if len(target.owner) != units:
        raise BadInput(f"the target has {len(target.owner)} units: must have as many as the assignment now, {units}")
    view = View(current, target, _checked(tuple(heat), units), seed)
    decisions: list[Decision] = []
    replicated = copies(strategy, view, decisions.append)
    steps = []
    needed = {move.unit: move for move in view.misplaced()}
    slots = frozenset((*current.owner, *target.owner))
    done: dict[UnitId, int] = {}  # in which step
    proposed = (strategy.propose or propose)(strategy, view, decisions.append)
    if not isinstance(proposed, Iterable):
        raise PlanRejected(f"the strategy gave {proposed!r:.80}: it must yield steps")
    for number, step in enumerate(proposed):
        if not _is_step(step):
            raise PlanRejected(f"step {number} is {step!r:.80}: must be a Step of Moves")
        if not step.moves:
            raise PlanRejected(f"step {number} is empty")
        if strategy.cap and len(step.moves) > strategy.cap:
            raise PlanRejected(f"step {number} moves {len(step.moves)} units: cap = {strategy.cap}")
        if step.mode not in (LIVE_PUSH, strategy.mode):
            raise PlanRejected(f"step {number} has {step.mode}: the mode is the strategy's, {strategy.mode}")
        if number and strategy.restarts:
            raise PlanRejected(f"step {number}: a query that is stopped moves everything in step 0")
        for move in step.moves:
            if reason := _nonsense(move, units, slots, needed, done):
                raise PlanRejected(
                    f"step {number}, unit {move.unit} from slot {move.source} to {move.destination}: {reason}"
                )
            done[move.unit] = number
        steps.append(Step(tuple(needed[move.unit] for move in step.moves), strategy.mode))
    if missing := sorted(set(needed) - done.keys()):
        raise PlanRejected(f"units never moved: {missing[:10]}{' …' if len(missing) > 10 else ''}")
    explained = {(decision.unit, decision.step) for decision in decisions}
    for number, step in enumerate(steps):
        unexplained = (move.unit for move in step.moves if (move.unit, number) not in explained)
        decisions += [Decision(unit, number, "the strategy gave no reason") for unit in unexplained]
    return Plan(tuple(steps), replicated, tuple(map(_plain, decisions) if strategy.propose else decisions))


def _plain(decision: Decision) -> Decision:
    """The ``decision`` with integers that can be written down, as those of numpy cannot."""
    step = None if decision.step is None else index(decision.step)
    return replace(decision, unit=UnitId(index(decision.unit)), step=step)


def _is_step(step: object) -> bool:
    return (
        isinstance(step, Step)
        and isinstance(step.moves, tuple | list)
        and all(isinstance(move, Move) for move in step.moves)
    )


def _nonsense(
    move: Move, units: int, slots: Set[SlotId], needed: Mapping[UnitId, Move], done: Mapping[UnitId, int]
) -> str:
    """Say why ``move`` must not be made; empty if it may. ``done``: the step of each unit that has moved."""
    if move.unit not in range(units):
        return f"there is no such unit, they are 0 to {units - 1}"
    for slot in (move.source, move.destination):
        if slot not in slots:
            return f"there is no slot {slot}, they are {', '.join(map(str, sorted(slots)))}"
    if move.unit in done:
        return f"it moves twice, first in step {done[move.unit]}"
    if move.unit not in needed:
        return "it is where it should be and must not move"
    if move != needed[move.unit]:
        return f"it must go from slot {needed[move.unit].source} to {needed[move.unit].destination}"
    return ""


def propose(strategy: Strategy, view: View, log: Log) -> Iterator[Step]:
    """Yield steps by the strategy's order and batch; what a strategy without ``propose`` of its own does.

    Logs for each unit the step it is in and its place in the order and, the first time that a step has units of a later
    place but not this one, what it was put off for: at most two decisions per unit.
    """
    ranked = orders.get(strategy.order)(view.misplaced(), view)
    reason = {move.unit: why for move, why in ranked}
    place = {move.unit: number for number, (move, _) in enumerate(ranked)}
    reached = 0  # every earlier place has moved or was put off
    for number, moves in enumerate(batches.get(strategy.batch)([move for move, _ in ranked], strategy)):
        for move in moves:
            log(Decision(move.unit, number, reason[move.unit]))
        here = {move.unit for move in moves}
        last = max(place[unit] for unit in here)
        given, taken = Counter(move.source for move in moves), Counter(move.destination for move in moves)
        for move, _ in ranked[reached:last]:
            if move.unit not in here:
                why = _held_up(move, given[move.source], taken[move.destination], strategy, len(moves))
                log(Decision(move.unit, None, f"put off from step {number}: {why}"))
        reached = max(reached, last + 1)
        yield Step(tuple(moves), strategy.mode)


def copies(strategy: Strategy, view: View, log: Log) -> tuple[Move, ...]:
    """What to copy before the first step, ascending by unit: (unit, owner, holder of the copy).

    Every ``replicate``-th key group is copied. The copy of a unit that moves is held by its destination, so the target
    must be known by then (Spacker pushes to all nodes instead; what counts is the copy at the destination). With a
    ``ring`` that is copied all the time (``periodic``), each unit that stays has a copy too, at the next slot of the
    ring of owners, since nobody knows yet what moves later. Logs every unit that moves without a copy.
    """
    if not strategy.replicate:
        return ()
    made = []
    for unit, holder in _holders(strategy, view).items():
        owner, group = view.current.owner[unit], unit // strategy.bins
        if group % strategy.replicate == 0:
            if holder != owner:  # a slot that owns every unit has no other one on its ring
                made.append(Move(unit, owner, holder))
        elif view.target.owner[unit] != owner:
            reason = f"not copied: key group {group} is not a multiple of replicate = {strategy.replicate}"
            log(Decision(unit, None, reason))
    return tuple(made)


def _holders(strategy: Strategy, view: View) -> dict[UnitId, SlotId]:
    """Who would keep a copy of each unit that might be copied."""
    destination, owner = {move.unit: move.destination for move in view.misplaced()}, view.current.owner
    if strategy.holders == "destination" or strategy.copies == "warm_up":
        return destination
    ring = sorted(set(owner))
    following = dict(zip(ring, [*ring[1:], *ring[:1]], strict=True))
    return {unit: destination.get(unit, following[owner[unit]]) for unit in map(UnitId, range(len(owner)))}


def in_units(strategy: Strategy, assignment: Assignment) -> Assignment:
    """An assignment of key groups in the units that the strategy moves. Raises BadInput if they are too many."""
    require_units(strategy, len(assignment.owner))
    return assignment.by_bin(strategy.bins)


def require_units(strategy: Strategy, groups: int) -> None:
    """Refuse a strategy that cuts so many key groups into too many units: BadInput."""
    units = groups * strategy.bins
    if units > MAX_UNITS:
        raise BadInput(
            f"bins = {strategy.bins} in each of {groups} key groups make {units} units: at most {MAX_UNITS}; lower "
            "bins or the number of groups"
        )


def _checked(heat: tuple[float, ...], units: int) -> tuple[float, ...]:
    if heat and len(heat) != units:
        raise BadInput(f"heat has {len(heat)} values: must be one per unit, {units}, or empty if nobody measured")
    for unit, value in enumerate(heat):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"heat of unit {unit} = {value}: must be a finite number of records per second, at least 0")
    return heat


def _held_up(move: Move, given: int, taken: int, strategy: Strategy, moves: int) -> str:
    if moves == strategy.cap:
        return f"the step is at its cap, {moves}"
    if given:
        return f"source {move.source} already gives {given} unit{'s' * (given > 1)}"
    if taken:
        return f"destination {move.destination} already takes {taken} unit{'s' * (taken > 1)}"
    return f"batch {strategy.batch!r} has a later step for it"
