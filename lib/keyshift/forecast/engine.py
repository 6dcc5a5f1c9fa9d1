"""One migration in simulated time: the coordinator's machine leads, what it hears comes from a model of the others."""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from keyshift.forecast.fitting import SIZES
from keyshift.forecast.model import Cluster, Costs, Floats, Ints, Load
from keyshift.forecast.network import Network
from keyshift.forecast.waiting import Waits
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment, Move, Step, Version
from keyshift.planner import Plan, Strategy
from keyshift.protocol import CoordinatorMachine
from keyshift.protocol import coordinator as protocol


@dataclass(frozen=True)
class Simulated:
    """What a migration would be like; fields as in a run's summary (docs/results.md).

    ``longest_s``: the longest wait of a record for its state, which P99 of all events may not show. ``step_s``: the
    longest step, from its switch to its last unit in place. ``seconds``: latency by second from the trigger on.
    """

    completion_s: float
    spike_ms: float
    p99_ms: float
    longest_s: float
    step_s: float
    steps: int
    units_moved: int
    bytes_moved: float
    bytes_copied: float
    bytes_minimum: float
    replicate_s: float
    floor_s: float
    assignment: Assignment
    seconds: pd.DataFrame


def require_possible(strategy: Strategy) -> None:
    """Raise BadInput for a strategy that cannot be simulated."""
    if strategy.unit == "key":
        raise BadInput(f"transfer = {strategy.mode.transfer}: keys that move one by one are not simulated")


def check_costs(strategy: Strategy, current: Assignment, target: Assignment, load: Load, costs: Costs) -> None:
    """Raise BadInput if a slot has more events than it can take, or a restart costs nobody knows what."""
    slots = 1 + max(*current.owner, *target.owner)
    for assignment in (current, target):
        load.check(assignment, slots, costs)
    if strategy.restarts and math.isnan(costs.restart_s):
        raise BadInput(
            "gate = query: what a restart costs is not known; restarts have to be measured with at least two sizes of "
            f"state, one {SIZES:g} times the other"
        )


def simulated(
    strategy: Strategy,
    plan: Plan,
    current: Assignment,
    target: Assignment,
    load: Load,
    cluster: Cluster,
    costs: Costs,
    seed: int = 0,
) -> Simulated:
    """Carry out ``plan``, which ``strategy`` made for the way from ``current`` to ``target``.

    ``seed``: of the moments at which records first ask for a unit. The same input gives the same output. Raises
    BadInput if keys move one by one, as ``check_costs``, and if records would wait, or it would take, too long.
    """
    require_possible(strategy)
    check_costs(strategy, current, target, load, costs)
    run = _Migration(strategy, current, load, cluster, costs, 1 + max(*current.owner, *target.owner), seed)
    if strategy.restarts and plan.steps:  # with nothing to move a job goes on as it is
        run.restart(target)
    else:
        run.migrate(plan)
    needed = load.unit_bytes[current.slot_of != target.slot_of]
    seconds = run.waits.per_second(costs, run.end_s)
    return Simulated(
        completion_s=run.end_s - run.begin_s,
        spike_ms=float(seconds["p99_ms"].max()),
        p99_ms=float(np.quantile(costs.latency_ms(load.frame_s), 0.99)),
        longest_s=run.waits.longest_s,
        step_s=run.step_s,
        steps=len(plan.steps),
        units_moved=run.units,
        bytes_moved=run.bytes,
        bytes_copied=run.copied,
        bytes_minimum=float(needed.sum()),
        replicate_s=run.replicate_s,
        floor_s=cluster.floor_s(current, target, load.unit_bytes),
        assignment=run.assignment,
        seconds=seconds,
    )


class _Migration:
    """One migration. ``begin_s`` is the first switch, ``end_s`` when the last unit is in place; the trigger is 0."""

    def __init__(
        self, strategy: Strategy, current: Assignment, load: Load, cluster: Cluster, costs: Costs, slots: int, seed: int
    ) -> None:
        self._strategy, self._load, self._cluster, self._costs, self._slots = strategy, load, cluster, costs, slots
        self._network = Network(cluster, slots, costs)
        self._random = np.random.default_rng(seed)
        self._machine = CoordinatorMachine(current, math.inf, slots)
        # When, in order: phase, version, slot.
        self._answers: list[tuple[float, int, protocol.StepPhase, Version, int]] = []
        self._order = itertools.count()
        self._known: dict[int, Step] = {}  # by version
        self._free: defaultdict[int, float] = defaultdict(float)  # when each slot's part of the step before ends
        self._copies: frozenset[tuple[int, int]] = frozenset()
        self._kept: tuple[Floats, Floats, Floats]  # at routers: begins, rates and busy, see ``Waits.add``
        self.waits = Waits(load)
        self.assignment, self._rates = current, load.of_slots(current, slots)
        self.begin_s, self.end_s = math.inf, 0.0
        self.step_s = self.bytes = self.copied = self.replicate_s = 0.0
        self.units = 0

    # -- a restart ----------------------------------------------------------------------------------------------------

    def restart(self, target: Assignment) -> None:
        """Stop everything, write it to the store, and have its new owners read it from there."""
        load, costs, cluster = self._load, self._costs, self._cluster
        self.begin_s, took_s = 0.0, costs.restart_s
        for assignment in (self.assignment, target):
            held = np.bincount(assignment.slot_of // cluster.host_slots, load.unit_bytes)
            owners = np.bincount(np.unique(assignment.slot_of) // cluster.host_slots)
            cores = np.clip(owners, 1, cluster.cores)  # a slot uses one
            took_s += float((held * np.maximum(costs.stored_byte_s / 2 / cores, 1 / cluster.link_bytes_per_s)).max())
        self.assignment, self._rates = target, load.of_slots(target, self._slots)
        begins = load.boundaries(costs.notify_s)
        busy = self._busy(self._rates, np.arange(self._slots))
        self.waits.add(begins, np.full(self._slots, took_s), self._rates, busy)
        self.end_s = self.step_s = took_s
        self.bytes, self.units = float(load.unit_bytes.sum()), len(load.unit_bytes)

    # -- a migration of a running job ---------------------------------------------------------------------------------

    def migrate(self, plan: Plan) -> None:
        """Lead until no acknowledgement is to come."""
        begin_s = heard_s = self._costs.request_s + self._copy(plan.copies)
        self._carry_out(self._machine.submit(plan), begin_s)
        while self._answers:
            now_s, _, phase, version, slot = heapq.heappop(self._answers)
            heard_s = max(now_s, heard_s) + self._costs.ack_s
            self._carry_out(self._machine.acknowledged(phase, version, slot, 1000 * heard_s), heard_s)
        assert not self._machine.busy, "the coordinator waits for an acknowledgement that nobody sends"
        if not plan.steps:
            self.begin_s = 0.0

    def _copy(self, copies: Sequence[Move]) -> float:
        """Seconds that the migration waits for copies."""
        self._copies = frozenset((copy.unit, copy.destination) for copy in copies)
        sizes = self._load.unit_bytes[[copy.unit for copy in copies]] if copies else np.zeros(0)
        self.copied = float(sizes.sum())
        if copies and self._strategy.copies == "warm_up":
            self.replicate_s = float(self._network.ends_s(copies, sizes).max())
        return self.replicate_s

    def _carry_out(self, effects: Iterable[protocol.CoordinatorEffect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case protocol.PlanNext(plan):
                    assert isinstance(plan, Plan)
                    made = self._machine.planned(plan.steps, self._machine.assignment, 1000 * now_s)
                    self._carry_out(made, now_s)
                case protocol.PublishSteps(_, steps, _):
                    for version, step in steps:
                        if version not in self._known:
                            self._known[version] = step
                            self._prepare(version, step, now_s)
                case protocol.PublishAssignment(assignment, _, _) if assignment is not self.assignment:
                    self.assignment = assignment
                    self._switch(self._known[assignment.version], now_s)
                case protocol.PublishAssignment():  # once more: its step is complete, and routers let go
                    begins, rates, busy = self._kept
                    self.waits.add(begins, np.full(len(rates), now_s + self._costs.notify_s), rates, busy)

    def _answer(self, done_s: float, phase: protocol.StepPhase, version: Version, slot: int) -> None:
        answer = done_s + self._costs.answer_s, next(self._order), phase, version, slot
        heapq.heappush(self._answers, answer)

    def _prepare(self, version: Version, step: Step, now_s: float) -> None:
        """Prepare a step: each slot does when it hears of it and its part of the step before has ended."""
        heard_s = now_s + self._costs.notify_s
        for slot in sorted({slot for move in step.moves for slot in (move.source, move.destination)}):
            self._answer(max(heard_s, self._free[slot]), "prepared", version, slot)

    def _switch(self, step: Step, now_s: float) -> None:
        """Switch routers between two frames; state moves behind the last one's barrier, records wait for it."""
        load, costs, moves, mode = self._load, self._costs, step.moves, step.mode
        begins = load.boundaries(now_s + costs.notify_s)
        ready_s = begins[-1] + costs.handover_s
        units = np.array([move.unit for move in moves])
        asked = None
        if mode.transfer == "fetch":
            waits_s = self._random.exponential(1.0, len(moves)) / np.maximum(load.rates[units], 1e-12)
            asked = begins.mean() + waits_s + mode.fetch_interval_ms / 1000 - ready_s
        sizes = np.array([self._to_send(move) for move in moves])
        sources, destinations = np.array([(move.source, move.destination) for move in moves]).T
        np.subtract.at(self._rates, sources, load.rates[units])
        np.add.at(self._rates, destinations, load.rates[units])
        installed = ready_s + self._network.ends_s(moves, sizes, asked)
        busy = self._busy(load.rates[units], destinations)
        drained = installed
        if mode.gate != "router":  # else records wait at routers, and none at a destination
            drained = np.maximum(installed, (installed - busy * begins.mean()) / (1 - busy))
        ended = _last(moves, drained)  # each slot's part of the step
        self._free.update(ended)
        for slot in sorted({move.destination for move in moves}):
            self._answer(ended[slot], "installed", self.assignment.version, slot)
        for slot in sorted({move.source for move in moves}):
            self._answer(ended[slot], "released", self.assignment.version, slot)
        if mode.gate == "none":
            self.waits.add(begins, installed, load.rates[units], busy)
        else:  # not only records of what moves
            blocked = _last(moves, installed)  # what has waited in a slot is processed behind that
            slots, ends = np.array(list(blocked)), np.array(list(blocked.values()))
            rates = self._rates[slots]
            if mode.gate == "router":
                self._kept = begins, rates, self._busy(rates, slots)
            else:
                self.waits.add(begins, ends, rates, self._busy(rates, slots))
        self.begin_s, self.end_s = min(self.begin_s, now_s), max(self.end_s, float(installed.max()))
        self.step_s = max(self.step_s, float(installed.max()) - now_s)
        self.bytes, self.units = self.bytes + float(sizes.sum()), self.units + len(moves)

    def _to_send(self, move: Move) -> float:
        """Bytes to send: of a unit with a copy at its destination what has changed since the last round, on average."""
        load, unit = self._load, move.unit
        if (unit, move.destination) not in self._copies:
            return float(load.unit_bytes[unit])
        changes = load.rates[unit] * load.copy_every_s / 2
        whole = self._strategy.handover == "whole"
        return float(load.unit_bytes[unit]) * -math.expm1(-changes / (1.0 if whole else max(load.unit_keys[unit], 1.0)))

    def _busy(self, rates: Floats, slots: Ints) -> Floats:
        """The share that these records take of what the others of their slots leave."""
        own = rates * self._costs.event_s
        others = self._rates[slots] * self._costs.event_s + self._load.rows_per_s * self._costs.row_s - own
        return np.asarray(np.minimum(own / np.maximum(1 - others, 1e-3), 0.999))


def _last(moves: Sequence[Move], ends: Floats) -> dict[int, float]:
    """The moment when the last of its ``moves`` ends, for each slot."""
    last: defaultdict[int, float] = defaultdict(float)
    for move, end_s in zip(moves, ends.tolist(), strict=True):
        for slot in (move.source, move.destination):
            last[slot] = max(last[slot], end_s)
    return last
