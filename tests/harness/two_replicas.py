"""Two jobs on one input, as replicas are, in one process: ``run(seed, ordering)`` gives what the slots of each did.

They have batches, processes and delays of their own, and the second begins late. If it ``moves``, units do so in the
second alone, unit by unit, in both together, or in one after the other. If it ``returns``, the second begins from what
the first has written down while it ran.
``dies_and_returns`` and ``two_die`` have the whole way back, with the threads that it has in a run.
"""

import dataclasses
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
from engine import Bucket, Engine
from flaky_flight import Failures
from leading import Fate
from nodes import Ensemble
from one_run import Outcome, Run, installed
from shape import draw

from keyshift.clock import now_us
from keyshift.driver.agreement import Agreement, MemberSay
from keyshift.driver.snapshotter import capture
from keyshift.driver.stage_history import StageHistory
from keyshift.experiment.spec import make_spec
from keyshift.lab.replicas.resume_points import ResumePoint
from keyshift.lab.replicas.returning import Return
from keyshift.lab.replicas.system import TOGETHER_US, LiveReplicas
from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, Assignments, SlotId, Step
from keyshift.planner import make_plan, strategies
from keyshift.runtime.row import SAVEPOINT
from keyshift.runtime.turn import Turn
from keyshift.runtime.turns import TurnCore
from keyshift.traffic.copies import Chains, Difference, Superseded
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import REPLICA, parse
from keyshift.wire.savepoint import Savepoint
from keyshift.worker.slot import opening
from keyshift.worker.slot.task import SlotTask
from order_services import OrderServices

LATE_S, LOAD_S = 0.4, 2.0
# However long it takes, each slot gives more results than this before state moves and behind it, of nearly all keys, in
# more frames than this: one of kazoo may have a thousand.
MANY, FRAMES = 100, 20
TURNS, BATCHES = 20, 3  # each slot has more turns, and each replica more batches, before the end
OF_MOVES = {"batch_s": 1.5}  # in which state comes some way on a machine that is busy, too
HERE_ONLY = ["version", "slot", "log_offset", "arrived_us"]  # columns in which replicas differ if one moves
MOVED_ALIKE = ["log_offset", "arrived_us"]  # otherwise
Place = tuple[int, int]


@dataclass
class Replica:
    """By stage and slot: ``turns`` with number and chain, in their order, and ``stopped``: the turn behind which the
    last savepoint was. By slot of the last stage: rows of ``results``, in their order.
    """

    stopped: dict[Place, int] = field(default_factory=dict)
    turns: dict[Place, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    results: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    batches: int = 0


def run(
    seed: int,
    ordering: str,
    workload: str = "keycount",
    moves: Literal["", "one", "both", "one_by_one"] = "",
    returns: bool = False,
    **pinned: Any,
) -> list[Replica]:
    """Until all of the input has come out of both. ``moves``: all units change their slots in the second one, in both
    together, or in the second one and then in the first one. ``pinned``: more of their shape.
    """
    replicas, pinned = [Replica() for _ in range(2)], (OF_MOVES if moves else {}) | pinned
    with _recorded(replicas), _incarnations(seed, (0, 1), workload, ordering, **pinned) as runs:
        first, second = runs
        first.load_s, moving = math.inf, {"": [], "one": [second], "both": runs, "one_by_one": [second, first]}[moves]
        if moves == "both":
            _agree(runs, lambda: {*range(2)})
        for each in runs if moves == "one_by_one" else []:
            each.job.config = dataclasses.replace(each.job.config, apart=True)
        Thread(target=first.load, daemon=True).start()
        assignments = [Assignment.contiguous(8, stage.config.slots) for stage in first.job.stages]
        first.job.start(assignments)
        time.sleep(LATE_S)
        begin = None
        if returns:
            time.sleep(LOAD_S / 2)
            _await_turns(first, replicas[0], TURNS)
            begin = _capture(first)
            _restore(second, begin, first.job.config.job)
        second.job.start(assignments, begin)
        time.sleep(LATE_S)
        for each in moving:
            _await_results(each)
        for each in moving:
            _move(each)
            if moves == "one_by_one":
                _await_moved(each)
        for each in moving:
            _await_moved(each)
            _await_results(each)
        time.sleep(LOAD_S)
        first.await_that("load", lambda: first.due > MANY, lambda: first.due)
        for each, replica in zip(runs, replicas, strict=True):
            _await_batches(each)
            if each.job.config.in_turns:
                _await_turns(each, replica, TURNS)
        if returns:
            _await_results(second)
        with first.loading:
            first.loaded, second.due = True, first.due
        if begin:
            first.await_answered()
            second.due = first.due - _answered_until(begin, first)
        for each in runs:
            each.await_answered()
        at_us = now_us() + TOGETHER_US
        for each in runs:
            each.job.call_savepoint(at_us)
        for each in runs:
            each.job.savepoint()
    for each, replica in zip(runs, replicas, strict=True):
        table, replica.batches = pd.concat(each.engine.results), each.engine.batches
        for slot, rows in table.groupby("slot", sort=False):
            own = HERE_ONLY if moves in ("one", "one_by_one") else MOVED_ALIKE
            kept = rows.drop(columns=own).itertuples(index=False, name=None)
            replica.results[slot] = [tuple(map(_plain, row)) for row in kept]
    return replicas


def _plain(value: Any) -> Any:
    """Lists, as ``saas`` has them, can be compared like all else."""
    return tuple(value) if isinstance(value, np.ndarray) else value


def _capture(run: Run) -> Savepoint:
    """What it has written down."""
    return capture(run.job.config, run.job.stages, run.job.check, "capture-0")[0]


def _restore(run: Run, saved: Savepoint, of: str) -> None:
    """It is to begin from what job ``of`` has written down."""
    run.job.config = dataclasses.replace(run.job.config, restore=saved.name, restore_of=of)


def _point(run: Run) -> ResumePoint:
    """What it writes down for whoever goes on from there."""
    saved = _capture(run)
    histories = {stage.name: StageHistory(Assignments([stage.assignment])) for stage in run.job.stages}
    return ResumePoint(run.job.config.job, saved, histories, {}, math.inf)


def _answered_until(begin: Savepoint, run: Run) -> int:
    """So many results of events came before ``begin``, which ``run`` has written."""
    turns = begin.turns[run.job.stages[-1].name]
    return sum(of_events for slot, turn, of_events in run.engine.by_turn if turn <= turns[slot])


def _move(run: Run) -> None:
    """All units of the last stage change their slots: of another one, whoever is behind it would get the events of a
    key from other senders, and in another order.
    """
    stage = run.job.stages[-1]

    def steps(current: Assignment) -> Sequence[Step]:
        target = Assignment(current.version, tuple(SlotId(1 - owner) for owner in current.owner))
        return make_plan(strategies.get("fluid"), current, target).steps

    stage.request(steps)


def _await_moved(run: Run) -> None:
    stages = run.job.stages

    def versions() -> list[int]:
        return [stage.assignment.version for stage in stages]

    run.await_that("nothing moves", lambda: not any(stage.busy for stage in stages), versions)


def _await_results(run: Run) -> None:
    """Until more than ``MANY`` others have come from each slot, in more than ``FRAMES`` frames."""
    of_turns = run.engine.by_turn
    before = len(of_turns)

    def fewest() -> tuple[int, int]:
        """Results and frames."""
        slots = [[of_events for of, _, of_events in of_turns[before:] if of == slot] for slot in range(2)]
        return min(sum(each) for each in slots), min(len(each) for each in slots)

    def enough() -> bool:
        results, in_frames = fewest()
        return results > MANY and in_frames > FRAMES

    run.await_that("results", enough, fewest)


def _await_turns(run: Run, replica: Replica, many: int) -> None:
    """Until each slot of each stage has had more than so ``many``."""
    places = [(stage.config.number, slot) for stage in run.job.stages for slot in range(stage.config.slots)]

    def fewest() -> int:
        return min(len(replica.turns.get(place, ())) for place in places)  # who looks adds none

    run.await_that("turns", lambda: fewest() > many, fewest)


def _await_batches(run: Run) -> None:
    """Until more than ``BATCHES`` have begun."""
    run.await_that("batches", lambda: run.engine.batches > BATCHES, lambda: run.engine.batches)


def _agree(runs: list[Run], living: Callable[[], Collection[int]]) -> None:
    """They switch behind the same epochs, as long as their numbers are among ``living``."""
    for stages in zip(*(each.job.stages for each in runs), strict=True):
        agreement = Agreement(lambda: [(number, 0) for number in living()])
        for number, stage in enumerate(stages):
            stage.agrees = MemberSay(agreement, (number, 0))


@contextmanager
def _incarnations(
    seed: int,
    replicas: Sequence[int],
    workload: str,
    ordering: str = "live_robin",
    order: OrderServices | None = None,
    **pinned: Any,
) -> Iterator[list[Run]]:
    """One run for each of these numbers of replicas, on the input of the first one; they end with the block."""
    ensemble, bucket, many = Ensemble(seed, 0.005), Bucket(seed), len(replicas)
    shape = _shape(seed, ordering, workload, **pinned)
    outcomes = [Outcome(many * seed + number, shape, {}) for number in range(many)]
    runs = [Run(outcome, ensemble, bucket) for outcome in outcomes]
    for each, number in zip(runs, replicas, strict=True):
        each.topic = each.engine.topic = runs[0].topic
        each.job.config = dataclasses.replace(each.job.config.of_replica(number), input_of="both")
    with (
        installed(ensemble, bucket, Failures(seed, 0.0, 0.0), Fate(ensemble, 0.0)),
        (order or OrderServices(seed)).installed(),
    ):
        try:
            yield runs
        finally:
            runs[0].over.set()
            for each in runs:
                each.job.stop()
                each.engine.end()


def _begin(runs: Sequence[Run]) -> None:
    """The load, and each of them from its beginning."""
    Thread(target=runs[0].load, daemon=True).start()
    for each in runs:
        each.job.start([Assignment.contiguous(8, stage.config.slots) for stage in each.job.stages])


def moves_and_dies(
    seed: int, workload: str, dies_after_s: float, ordering: str = "live_robin", **pinned: Any
) -> tuple[Run, Run, list[Replica]]:
    """Both move their state together, over and over, and the second one dies meanwhile. ``pinned``: see ``run``."""
    replicas, living = [Replica() for _ in range(2)], {0, 1}
    with _recorded(replicas), _incarnations(seed, (0, 1), workload, ordering, **(OF_MOVES | pinned)) as runs:
        first, second = runs
        _agree(runs, lambda: set(living))
        _begin(runs)
        for each in runs:
            for _ in range(10):
                _move(each)
        _await_turns(second, replicas[1], 2)
        time.sleep(dies_after_s)
        second.engine.query.die(RuntimeError("injected: the replica was killed"))
        living.remove(1)
        _await_moved(first)
        with first.loading:
            first.loaded = True
        first.await_answered()
    return first, second, replicas


def _shape(seed: int, ordering: str, workload: str, **pinned: Any) -> Any:
    calm = {"moves": 1.0, "batch_s": 0.3, "expires_s": None, "fails": 0.0, "leader_dies": 0.0, "snapshot_s": 0.0}
    fixed = {"routers": 2, "slots": 2, "begin_slots": 2, "strategy": "all_at_once", "slow_s": (0.04, 0.01)}
    given = {**calm, **fixed, **pinned}
    return draw(seed, kind="push", workload=workload, ordering=ordering, queue_bytes=1 << 26, **given)


@contextmanager
def _recorded(replicas: list[Replica]) -> Iterator[None]:
    """Turns are worked on in any thread of a slot: whose a core is, is known when it is made."""
    make_slot, original, of = opening.make_slot, TurnCore.deliver, dict[Any, tuple[int, int]]()

    def made(config: JobConfig, slot: int) -> SlotTask:
        task = make_slot(config, slot)
        of[task.shared.core] = config.replica, config.number
        return task

    def deliver(core: TurnCore[Any, Any], turn: Turn) -> None:
        number, stage = of[core]
        replica, place = replicas[number], (stage, core.machine.slot)
        if turn.rows:
            replica.turns[place].append((turn.number, turn.chain))
        elif turn.barriers[0].kind == SAVEPOINT:
            replica.stopped[place] = turn.number
        original(core, turn)

    with patch.object(opening, "make_slot", made), patch.object(TurnCore, "deliver", deliver):
        yield


COMPARED = 50  # turns, at the least, by the end: on a machine that is busy they take longer
NEAR_US = 1_000_000  # a machine that is busy makes one replica late, and then another one


class Application:
    """That of a replica whose query is in this process, of ``run``. ``dies``: before its Spark is there."""

    def __init__(self, run: Run, dies: bool = False) -> None:
        self._run, self._dies, self.isActive, self.did = run, dies, True, list[str]()

    def await_ready(self) -> None:
        if self._dies:
            raise ServiceUnavailable("injected: its Spark is gone")
        self.did.append("ready")

    def give_way_no_more(self) -> None:
        self.did.append("important")

    def kill(self) -> None:
        self.did.append("struck")
        self.isActive = False
        if hasattr(self._run.engine, "query"):
            self._run.engine.query.die(RuntimeError("injected: the replica was killed"))

    end = strike = kill


@dataclass
class Replicas:
    """What ``Return`` asks: of ``all`` those that live write their state down; ``following``: the next incarnations, by
    number. ``fails``: so many applications die before they are ready.
    """

    all: list[Any]
    following: dict[int, Run]
    fails: int = 0
    captured: int = 0
    before_stop: list[Any] = field(default_factory=list)
    struck: list[Any] = field(default_factory=list)
    order: None = None
    capturing: Any = field(default_factory=Lock)
    chains: Chains = field(default_factory=lambda: Chains(2, NEAR_US))
    differences: list[Difference] = field(default_factory=list)
    spares: Any = field(default_factory=Mock)  # there are none
    services: Any = field(default_factory=Mock)

    @property
    def living(self) -> list[Any]:
        return [each for each in self.all if each.lives]

    @property
    def standings(self) -> Any:
        return self.chains.standings()

    def capture(self, replica: Any, check: Callable[[], None]) -> Any:
        with self.capturing:
            self.captured += 1
            return capture(replica.job.config, replica.job.stages, check, f"capture-{self.captured}")

    def leave(self, replica: Any) -> None:
        replica.job.stop()

    def begin_next(self, replica: Any) -> None:
        replica.application, self.fails = Application(self.following[replica.number], self.fails > 0), self.fails - 1

    def say(self, doing: Any) -> None:
        """Nobody hears it."""

    def lead_next(self, replica: Any, saved: Savepoint, of: str, other: Any) -> None:
        following = self.following[replica.number]
        replica.job, replica.system.check = following.job, following.job.check
        _restore(following, saved, of)
        replica.job.start([stage.assignment for stage in other.job.stages], saved)
        replica.lives = True

    @contextmanager
    def told(self, numbers: dict[int, int]) -> Iterator[None]:
        """Inside, turns are compared as the collector does. ``numbers``: of replicas, by the identity of an engine."""
        original, lock = Engine.collect, Lock()

        def collect(engine: Engine, slot: int, values: Any, schema: Any) -> None:
            for value in values:
                _, facts = frames.decode(value.as_buffer(), schema)
                if facts.turn:
                    with lock:
                        found = self.chains.told(numbers[id(engine)], slot, facts.turn, now_us())
                        self.differences += [found] if found else []
            original(engine, slot, values, schema)

        with patch.object(Engine, "collect", collect):
            yield


def _led(number: int, run: Run) -> Any:
    """A replica."""
    system = SimpleNamespace(plans=SimpleNamespace(busy=False), busy=False, owners={}, check=run.job.check)
    given = {"job": run.job, "system": system, "application": Application(run)}
    return SimpleNamespace(number=number, lives=True, deaths=0, **given)


def dies_and_returns(
    seed: int, workload: str = "keycount", kept: bool = False, **pinned: Any
) -> tuple[Any, Return, Replicas]:
    """One of two replicas dies, and comes back from what the other one has written, or from what it had written itself
    (``kept``). ``pinned``: see ``run``.
    """
    numbers = (0, 1, 1)
    with _incarnations(seed, numbers, workload, **pinned) as runs:
        first, second, third = runs
        replicas = Replicas([_led(0, first)], {1: third})
        with replicas.told({id(each.engine): number for each, number in zip(runs, numbers, strict=True)}):
            _begin(runs[:2])
            time.sleep(LOAD_S / 2)
            point = _point(second) if kept else None
            time.sleep(LATE_S)
            second.engine.query.die(RuntimeError("injected: the replica was killed"))
            time.sleep(LOAD_S / 2)
            dead = _led(1, second)
            dead.lives = False
            way = Return(dead, replicas, lambda: point)
            chains = replicas.chains
            first.await_that("it is over", lambda: way.over and chains.compared > COMPARED, lambda: chains.compared)
    return dead, way, replicas


def two_die(seed: int, workload: str = "keycount", **pinned: Any) -> tuple[Replicas, list[int], list[str]]:
    """Two of three replicas die at one moment, and come back. The first way back fails. Gives how many were full, each
    time that this changed, and what is told, too.
    """
    numbers, told = (0, 1, 2, 0, 1), list[str]()
    with _incarnations(seed, numbers, workload, **pinned) as runs:
        replicas = Replicas([_led(*each) for each in enumerate(runs[:3])], dict(enumerate(runs[3:])), 1)
        job = LiveReplicas(make_spec({"replicas": 3, "ordering": "live_robin"}), replicas, told.append)
        with replicas.told({id(each.engine): number for each, number in zip(runs, numbers, strict=True)}):
            _begin(runs[:3])
            time.sleep(LOAD_S / 2)
            for fault in parse(f"kill:{REPLICA}@4, kill:{REPLICA}@4"):
                job.hit(fault)
            compared = lambda: replicas.chains.compared  # noqa: E731
            runs[2].await_that("all are full", lambda: job.check() or not job.returning, compared)
    return replicas, [full for _, full in job._returns.strength], told


class Frame(NamedTuple):
    """In a log of results of a ``replica``."""

    replica: int
    slot: int
    log_offset: int
    turn: int
    rows: pd.DataFrame


def driver_dies(seed: int, **pinned: Any) -> tuple[list[Frame], Superseded, int]:
    """Two replicas die with the process that drives them: after the first has written its state down, and both have
    moved theirs since. Two others go on from there. Gives all frames of results, one log after the other, what is
    superseded, and how many results there have to be.
    """
    order = OrderServices(seed)
    with _incarnations(seed, (0, 1, 0, 1), "keycount", order=order, **(OF_MOVES | pinned)) as runs:
        before, after, living = runs[:2], runs[2:], {0, 1}
        first = before[0]
        first.load_s = math.inf
        _agree(before, lambda: set(living))
        _begin(before)
        _await_results(first)
        saved, assignments = _capture(first), [stage.assignment for stage in first.job.stages]
        for each in before:
            _move(each)
        for each in before:
            _await_moved(each)
            _await_results(each)
        for each in before:
            each.engine.query.die(RuntimeError("injected: the driver was killed"))
            each.job.stop()
        for each in before:
            _loses(each, 1, 10)
        begins = order.ends(first.job.config)
        for each in after:
            _restore(each, saved, first.job.config.job)
            each.job.config = dataclasses.replace(each.job.config, order_begins=begins)
            each.job.start(assignments, saved)
        for each in after:
            _await_results(each)
        with first.loading:
            first.loaded = True
        for each in after:
            each.due = first.due - _answered_until(saved, first)
            each.await_answered()
    ends = tuple(Counter(slot for slot, _, _ in each.engine.by_turn) for each in before)
    frames = [frame for number in range(2) for frame in _log(number, before[number], after[number])]
    return frames, Superseded(ends, saved.turns), first.due


def _loses(run: Run, slot: int, frames: int) -> None:
    """So many of the last ones of a slot have not come out: slots do not die at the same turn."""
    engine = run.engine
    for at in [at for at, (of, _, _) in enumerate(engine.by_turn) if of == slot][: -frames - 1 : -1]:
        del engine.by_turn[at], engine.results[at]


def _log(replica: int, *runs: Run) -> Iterator[Frame]:
    """Of all incarnations of one."""
    ends: dict[int, int] = defaultdict(int)
    for run in runs:
        for (slot, turn, _), rows in zip(run.engine.by_turn, run.engine.results, strict=True):
            yield Frame(replica, slot, ends[slot], turn, rows)
            ends[slot] += 1
