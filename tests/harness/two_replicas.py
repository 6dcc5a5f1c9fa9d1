"""Two jobs on one input, as replicas are, in one process: ``run(seed, ordering)`` gives what the slots of each did.

They have batches, processes and delays of their own, and the second begins late. If it ``moves``, units do so in the
second alone, unit by unit.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from unittest.mock import patch

import pandas as pd
from engine import Bucket
from flaky_flight import Failures
from leading import Fate
from nodes import Ensemble
from one_run import Outcome, Run, _installed
from order_services import OrderServices
from shape import draw

from keyshift.clock import now_us
from keyshift.lab.replicas.system import TOGETHER_US
from keyshift.model.keys import Assignment, SlotId
from keyshift.planner import make_plan, strategies
from keyshift.runtime.row import SAVEPOINT
from keyshift.runtime.turn import Turn
from keyshift.runtime.turns import TurnCore
from keyshift.wire.config import JobConfig
from keyshift.worker import tasks
from keyshift.worker.slot.task import SlotTask

LATE_S, LOAD_S = 0.4, 2.0
HERE_ONLY = ["version", "slot", "log_offset", "arrived_us"]  # columns of results in which replicas may differ


@dataclass
class Replica:
    """By slot: ``turns`` with number and chain, and rows of ``results``, each in their order. ``stopped``: the turn
    behind which the last savepoint was.
    """

    stopped: dict[int, int] = field(default_factory=dict)
    turns: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    results: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    batches: int = 0


def run(seed: int, ordering: str, workload: str = "keycount", moves: bool = False) -> list[Replica]:
    """Until all of the input has come out of both."""
    ensemble, bucket = Ensemble(seed, 0.005), Bucket(seed)
    outcomes = [Outcome(2 * seed + number, _shape(seed, ordering, workload), {}) for number in range(2)]
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
            for each in runs:
                each._job.start([Assignment.contiguous(8, each.shape.slots)])
                time.sleep(LATE_S)
            if moves:
                _move(second)
            time.sleep(LOAD_S)
            with first._loading:
                first._loaded, second._due = True, first._due
            for each in runs:
                each._await("nothing moves", lambda each=each: not each._job.stages[0].busy)
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
            replica.results[slot] = list(rows.drop(columns=HERE_ONLY).itertuples(index=False, name=None))
    return replicas


def _move(run: Run) -> None:
    """All units change their slots."""
    [stage] = run._job.stages
    target = Assignment(stage.assignment.version, tuple(SlotId(1 - owner) for owner in stage.assignment.owner))
    stage.request(lambda current: make_plan(strategies.get("fluid"), current, target).steps)


def _shape(seed: int, ordering: str, workload: str) -> Any:
    calm = {"moves": 1.0, "batch_s": 0.3, "expires_s": None, "fails": 0.0, "leader_dies": 0.0, "snapshot_s": 0.0}
    fixed = {"routers": 2, "slots": 2, "begin_slots": 2, "strategy": "all_at_once", "slow_s": (0.04, 0.01)}
    return draw(seed, kind="push", workload=workload, ordering=ordering, queue_bytes=1 << 26, **calm, **fixed)


@contextmanager
def _recorded(replicas: list[Replica]) -> Iterator[None]:
    """Turns are worked on in any thread of a slot: whose a core is, is known when it is made."""
    make_slot, original, of = tasks.make_slot, TurnCore.deliver, dict[Any, int]()

    def made(config: JobConfig, slot: int) -> SlotTask:
        task = make_slot(config, slot)
        of[task.shared.core] = config.replica
        return task

    def deliver(core: TurnCore[Any, Any], turn: Turn) -> None:
        replica, slot = replicas[of[core]], core.machine.slot
        if turn.rows:
            replica.turns[slot].append((turn.number, turn.chain))
        elif turn.control[0].kind == SAVEPOINT:
            replica.stopped[slot] = turn.number
        original(core, turn)

    with patch.object(tasks, "make_slot", made), patch.object(TurnCore, "deliver", deliver):
        yield
