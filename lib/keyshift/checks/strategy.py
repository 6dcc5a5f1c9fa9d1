"""What every strategy promises: a plan that makes just the moves that are needed, and says why."""

import copy
import random
from collections import Counter
from dataclasses import replace

from keyshift.model.errors import ContractBroken, PlanRejected, require
from keyshift.model.keys import Assignment, SlotId, Version
from keyshift.planner import Plan, Strategy, View, check, in_units, make_plan
from keyshift.planner.targets import scale


def check_strategy(strategy: Strategy, examples: int = 50, seed: int = 1) -> None:
    """Try ``strategy``, for each migration of a job, on random assignments and on those at the edges; one with a
    ``propose`` of its own also without heat, as replicas have none.

    Raises ContractBroken, or what ``check`` and ``make_plan`` raise (BadInput, PlanRejected).
    """
    check(strategy)
    summary = strategy.summary
    fits = 10 < len(summary) <= 80 and "\n" not in summary
    require(fits, f"summary {summary!r}: must be a line of 11 to 80 characters")
    require(bool(strategy.source), "source is empty: must say where the strategy is from")
    rng = random.Random(seed)
    for point in strategy.of_every_migration:
        for _ in range(examples):
            view = draw_view(rng)
            check_plan(point, view)
            plan = check_plan(point, View(view.current, view.current, view.heat))
            stays = not plan.steps and not plan.decisions
            require(stays, "a plan for the assignment that is there has steps or decisions")
            if point.propose:
                _check_without_heat(point, view)
        alone = Assignment.contiguous(16, 1)
        plan = check_plan(point, View(alone, scale(alone, 1)))
        require(not plan.steps and not plan.copies, "a plan for a single slot has steps or copies")
        check_plan(point, View(Assignment(Version(1), (SlotId(0),)), Assignment(Version(1), (SlotId(1),)), (3.0,)))
        many = Assignment.contiguous(4000, 999)
        check_plan(point, View(many, scale(many, 1000), tuple(float(unit % 7) for unit in range(4000))))


def _check_without_heat(strategy: Strategy, view: View) -> None:
    try:
        check_plan(strategy, replace(view, heat=()))
    except PlanRejected as error:
        said = str(error).replace("the strategy", "it", 1)
        raise ContractBroken(f"without heat, as with replicas, {said}") from error


def check_plan(strategy: Strategy, view: View) -> Plan:
    """Make a plan from ``view``, which is of key groups, and check it. What must be true of a plan is said here without
    ``make_plan``'s own words. Raises ContractBroken, and what ``make_plan`` raises.
    """
    before = copy.deepcopy(view)
    plan, current, target = _plan(strategy, view)
    require(view == before, "the view was changed")
    again, *_ = _plan(strategy, view)
    require(plan == again and plan.decisions == again.decisions, "the same view gave another plan")
    owner, most = list(current.owner), strategy.cap or len(current.owner)
    moved: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        require(bool(step.moves), f"step {number} is empty")
        require(len(step.moves) <= most, f"step {number} has more moves than cap = {strategy.cap}")
        require(step.mode == strategy.mode, f"step {number} has a mode of its own, {step.mode}")
        for move in step.moves:
            require(move.unit not in moved, f"unit {move.unit} moves twice")
            require(owner[move.unit] == move.source, f"unit {move.unit} moves from slot {move.source}, not its owner")
            require(move.source != move.destination, f"unit {move.unit} moves to where it is")
            owner[move.unit] = move.destination
            moved[move.unit] = number
    require(tuple(owner) == target.owner, "the plan does not lead to the target")
    needed = sum(here != there for here, there in zip(current.owner, target.owner, strict=True))
    require(len(moved) == needed, f"{len(moved)} units move, {needed} have to")
    require(len(plan.steps) <= 1 or not strategy.restarts, "a query that is stopped moves everything in one step")
    _check_copies(strategy, plan, current, moved)
    _check_decisions(plan, moved)
    return plan


def _plan(strategy: Strategy, view: View) -> tuple[Plan, Assignment, Assignment]:
    """Make the plan, and give it with both assignments in units of the strategy."""
    current, target = in_units(strategy, view.current), in_units(strategy, view.target)
    heat = [value / strategy.bins for value in view.heat for _ in range(strategy.bins)]
    return make_plan(strategy, current, target, heat, view.seed), current, target


def draw_view(rng: random.Random) -> View:
    """Draw two assignments of key groups, and their heat. Slots may own nothing, and groups may stay."""
    groups, slots, version = rng.randint(1, 40), rng.randint(1, 8), Version(rng.randint(1, 5))
    current, target = (tuple(SlotId(rng.randrange(slots)) for _ in range(groups)) for _ in range(2))
    heat = tuple(rng.choice((0.0, rng.random() * 1e6)) for _ in range(groups))
    return View(Assignment(version, current), Assignment(version, target), heat, rng.randrange(1 << 32))


def _check_copies(strategy: Strategy, plan: Plan, current: Assignment, moved: dict[int, int]) -> None:
    require(not plan.copies or bool(strategy.replicate), "there are copies, and replicate is 0")
    require(len({copied.unit for copied in plan.copies}) == len(plan.copies), "a unit is copied twice")
    for copied in plan.copies:
        unit, owner = copied.unit, current.owner[copied.unit]
        leaves = owner == copied.source != copied.destination
        require(leaves, f"the copy of unit {unit} is not from its owner to another slot")
        require(unit // strategy.bins % strategy.replicate == 0, f"unit {unit} is copied, which is not of the fraction")
        require(unit in moved or strategy.copies == "periodic", f"unit {unit} is copied, and does not move")


def _check_decisions(plan: Plan, moved: dict[int, int]) -> None:
    """Require of each unit that moves one decision when, and at most two why not before, or why not copied."""
    when = sorted((decision.unit, decision.step) for decision in plan.decisions if decision.step is not None)
    once = when == sorted(moved.items())
    require(once, "the decisions do not say once of each unit that moves in which step it does")
    require(all(decision.reason for decision in plan.decisions), "a decision has no reason")
    refused = Counter(decision.unit for decision in plan.decisions if decision.step is None)
    require(refused.keys() <= moved.keys(), "there is a decision about a unit that does not move")
    require(max(refused.values(), default=0) <= 2, "there are more than two decisions why a unit does not move yet")
