"""Two jobs on one input, as replicas are, in one process: ``run(seed, ordering)`` gives what the slots of each did.

They have batches, processes and delays of their own, and the second begins late. If it ``moves``, units do so in the
second alone, unit by unit. If it ``returns``, the second begins from what the first has written down while it ran.
``dies_and_returns`` has the whole way back, with the threads that it has in a run.
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from engine import Bucket, Engine
from flaky_flight import Failures
from leading import Fate
from nodes import Ensemble
from one_run import Outcome, Run, _installed
from order_services import OrderServices
from shape import draw

from keyshift.clock import now_us
from keyshift.driver.job import Job
from keyshift.driver.snapshotter import capture
from keyshift.lab.replicas.returning import Return
from keyshift.lab.replicas.system import TOGETHER_US
from keyshift.model import frames
from keyshift.model.keys import Assignment, SlotId
from keyshift.planner import make_plan, strategies
from keyshift.runtime.row import SAVEPOINT
from keyshift.runtime.turn import Turn
from keyshift.runtime.turns import TurnCore
from keyshift.traffic.copies import Chains, Difference
from keyshift.wire.config import JobConfig
from keyshift.wire.savepoint import Savepoint
from keyshift.worker import tasks
from keyshift.worker.slot.task import SlotTask

LATE_S, LOAD_S = 0.4, 2.0
HERE_ONLY = ["version", "slot", "log_offset", "arrived_us"]  # columns of results in which replicas may differ
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
    moves: bool = False,
    returns: bool = False,
    **pinned: Any,
) -> list[Replica]:
    """Until all of the input has come out of both. ``pinned``: more of their shape."""
    ensemble, bucket = Ensemble(seed, 0.005), Bucket(seed)
    outcomes = [Outcome(2 * seed + number, _shape(seed, ordering, workload, **pinned), {}) for number in range(2)]
    common, order = (ensemble, bucket, Fate(ensemble, 0.0), "both"), OrderServices(seed)
    runs = [Run(outcome, *common, number) for number, outcome in enumerate(outcomes)]
    first, second = runs
    second._topic = second._engine.topic = first._topic
    replicas = [Replica() for _ in runs]
    with (
        _installed(ensemble, bucket, Failures(seed, 0.0, 0.0), Fate(ensemble, 0.0)),
        order.installed(),
        _recorded(replicas),
    ):
        try:
            Thread(target=first._load, daemon=True).start()
            assignments = [Assignment.contiguous(8, stage.config.slots) for stage in first._job.stages]
            first._job.start(assignments)
            time.sleep(LATE_S)
            begin = _captured(first, second) if returns else None
            second._job.start(assignments, begin)
            time.sleep(LATE_S)
            if moves:
                _move(second)
            time.sleep(LOAD_S)
            with first._loading:
                first._loaded, second._due = True, first._due
            if begin:
                first._await("all is answered", lambda: not first._unanswered())
                answered = set().union(*first._engine.answered.values())
                second._due -= sum(offset < begin.offsets[router] for router, offset, _ in answered)
            for each in runs:
                each._await("nothing moves", lambda each=each: not any(stage.busy for stage in each._job.stages))
                each._await("every event has its result", lambda each=each: not each._unanswered())
            at_us = now_us() + TOGETHER_US
            for each in runs:
                each._job.call_savepoint(at_us)
            for each in runs:
                each._job.savepoint()
        finally:
            first._over.set()
            for each in runs:
                each._job.stop()
                each._engine.end()
    for each, replica in zip(runs, replicas, strict=True):
        table, replica.batches = pd.concat(each._engine.results), each._engine.batches
        for slot, rows in table.groupby("slot", sort=False):
            kept = rows.drop(columns=HERE_ONLY).itertuples(index=False, name=None)
            replica.results[slot] = [tuple(map(_plain, row)) for row in kept]
    return replicas


def _plain(value: Any) -> Any:
    """Lists, as ``saas`` has them, can be compared like all else."""
    return tuple(value) if isinstance(value, np.ndarray) else value


def _captured(first: Run, second: Run) -> Savepoint:
    """What ``first`` has written down, from which ``second`` is to begin."""
    time.sleep(LOAD_S / 2)
    saved = capture(first._job.config, first._job.stages, first._job.check)
    restore = {"restore": saved.name, "restore_of": first._job.config.job}
    second._job.config = dataclasses.replace(second._job.config, **restore)
    return saved


def _move(run: Run) -> None:
    """All units of the last stage change their slots: of another one, whoever is behind it would get the events of a
    key from other senders, and in another order.
    """
    stage = run._job.stages[-1]
    target = Assignment(stage.assignment.version, tuple(SlotId(1 - owner) for owner in stage.assignment.owner))
    stage.request(lambda current: make_plan(strategies.get("fluid"), current, target).steps)


def _shape(seed: int, ordering: str, workload: str, **pinned: Any) -> Any:
    calm = {"moves": 1.0, "batch_s": 0.3, "expires_s": None, "fails": 0.0, "leader_dies": 0.0, "snapshot_s": 0.0}
    fixed = {"routers": 2, "slots": 2, "begin_slots": 2, "strategy": "all_at_once", "slow_s": (0.04, 0.01)}
    return draw(seed, kind="push", workload=workload, ordering=ordering, queue_bytes=1 << 26, **calm, **fixed, **pinned)


@contextmanager
def _recorded(replicas: list[Replica]) -> Iterator[None]:
    """Turns are worked on in any thread of a slot: whose a core is, is known when it is made."""
    make_slot, original, of = tasks.make_slot, TurnCore.deliver, dict[Any, tuple[int, int]]()

    def made(config: JobConfig, slot: int) -> SlotTask:
        task = make_slot(config, slot)
        of[task.shared.core] = config.replica, config.number
        return task

    def deliver(core: TurnCore[Any, Any], turn: Turn) -> None:
        number, stage = of[core]
        replica, place = replicas[number], (stage, core.machine.slot)
        if turn.rows:
            replica.turns[place].append((turn.number, turn.chain))
        elif turn.control[0].kind == SAVEPOINT:
            replica.stopped[place] = turn.number
        original(core, turn)

    with patch.object(tasks, "make_slot", made), patch.object(TurnCore, "deliver", deliver):
        yield


NEAR_US = 1_000_000  # a machine that is busy makes one replica late, and then another one


class Application:
    """Has nothing to do: the query is in this process."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def await_ready(self) -> None:
        self.did.append("ready")

    def give_way_no_more(self) -> None:
        self.did.append("important")

    def strike(self) -> None:
        self.did.append("struck")

    end = strike


@dataclass
class Replicas:
    """What ``Return`` asks: ``lives`` writes its state down, and ``following`` is the next incarnation."""

    lives: Run
    following: Run
    chains: Chains = field(default_factory=lambda: Chains(2, NEAR_US))
    differences: list[Difference] = field(default_factory=list)

    @property
    def living(self) -> list[Any]:
        return [SimpleNamespace(job=self.lives._job)]

    @property
    def standings(self) -> Any:
        return self.chains.standings()

    def begin_next(self, replica: Any) -> None:
        replica.application = Application()

    def lead_next(self, replica: Any, saved: Savepoint, of: Job) -> None:
        replica.job = self.following._job
        replica.job.config = dataclasses.replace(replica.job.config, restore=saved.name, restore_of=of.config.job)
        replica.job.start([stage.assignment for stage in of.stages], saved)
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


def dies_and_returns(seed: int, workload: str = "keycount", **pinned: Any) -> tuple[Any, Return, Replicas]:
    """One of two replicas dies, and comes back from what the other one has written. ``pinned``: see ``run``."""
    ensemble, bucket = Ensemble(seed, 0.005), Bucket(seed)
    runs = [
        Run(
            Outcome(3 * seed + number, _shape(seed, "live_robin", workload, **pinned), {}),
            ensemble,
            bucket,
            Fate(ensemble, 0.0),
        )
        for number in range(3)
    ]
    first, second, third = runs
    for each, number in zip(runs, (0, 1, 1), strict=True):
        each._topic = each._engine.topic = first._topic
        each._job.config = each._job.config.of_replica(number)
    replicas = Replicas(first, third)
    numbers = {id(each._engine): number for each, number in zip(runs, (0, 1, 1), strict=True)}
    with _installed(ensemble, bucket, Failures(seed, 0.0, 0.0), Fate(ensemble, 0.0)), replicas.told(numbers):
        try:
            Thread(target=first._load, daemon=True).start()
            for each in (first, second):
                each._job.start([Assignment.contiguous(8, stage.config.slots) for stage in each._job.stages])
            time.sleep(LOAD_S / 2)
            second._engine.query.die(RuntimeError("injected: the replica was killed"))
            time.sleep(LOAD_S / 2)
            dead = SimpleNamespace(number=1, lives=False, job=second._job, application=Application())
            way = Return(dead, replicas)
            first._await("it is over", lambda: way.over, lambda: replicas.chains.compared)
        finally:
            first._over.set()
            for each in runs:
                each._job.stop()
                each._engine.end()
    return dead, way, replicas
