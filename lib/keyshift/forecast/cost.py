"""What an event of a workload costs: the CPU of its computation alone, measured here and now in this process."""

import time
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from keyshift.model.keys import units_of
from keyshift.state import UnitState
from keyshift.state.memory import MemoryState
from keyshift.workloads import KeyedStage, Operator, Workload

TRIES = 3  # to measure it: what comes between, such as a garbage collection, is none of it
COST_KEYS = 4096  # that the cost of an event is measured with: enough to be as many, few enough to be made at once
_FRAME_US = 20_000
_NOWHERE = {"router": np.int32(0), "offset": np.int64(0)}


def cpu_us_per_event(workload: Workload, frames: int = 40, events_per_frame: int = 50) -> float:
    """CPU time in microseconds per event of the source, of the maps and operators of all stages, with state in memory.

    Without the source, and without the frames, sockets, Kafka and Spark around them, which cost the same for every
    workload with results of that size. The first half of the frames is not measured.
    """
    [source] = workload.sources
    partition, stages = source.partition(0), [_Stage(workload, stage) for stage in workload.stages]
    spent = 0
    for number in range(frames):
        times = number * _FRAME_US + np.arange(events_per_frame, dtype=np.int64) * _FRAME_US // events_per_frame
        batch = partition.take(times)
        begun = time.process_time_ns()
        given = [workload.stages[0].mapped(batch)]
        for place, stage in enumerate(stages):
            given = stage.process(given, int(times[-1]) if place == 0 else 0)
            if place + 1 < len(stages):
                given = [stages[place + 1].events_of(results) for results in given]
        if number >= frames // 2:
            spent += time.process_time_ns() - begun
    return spent / 1000 / (events_per_frame * (frames - frames // 2))


def event_us(workload: Workload) -> float:
    """What an event takes of its slots, in microseconds: the CPU of its computation, measured here once, and the time
    that it is told to take (``work_us``).
    """
    given: Any = workload  # a pydantic model, too
    told_us = getattr(given, "work_us", 0.0)
    lighter = {"seed": 1, "keys": min(getattr(given, "keys", 0), COST_KEYS), "work_us": 0.0}
    update = {name: value for name, value in lighter.items() if name in type(given).model_fields}
    return _computation_us(given.model_copy(update=update)) + told_us


@cache
def _computation_us(workload: Workload) -> float:
    return min(cpu_us_per_event(workload) for _ in range(TRIES))


class _Stage:
    """All units of a stage in one place."""

    def __init__(self, workload: Workload, stage: KeyedStage) -> None:
        self._workload, self._stage = workload, stage
        self._operator: Operator = stage.operator()
        units = workload.key_groups * workload.bins
        self._states: list[UnitState] = [MemoryState(self._operator.state_schema) for _ in range(units)]
        for unit, state in enumerate(self._states):
            self._operator.initial(unit, state)

    def events_of(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """The events of this stage that results of the stage before make."""
        for name, value in _NOWHERE.items():
            results = results.append_column(name, pa.array(np.full(results.num_rows, value)))
        return self._stage.from_results(results)

    def process(self, given: list[pa.RecordBatch], watermark: int) -> list[pa.RecordBatch]:
        """Results of batches of events, and of the timers that are due."""
        results = []
        if self._operator.uses_time:
            for state in self._states:
                state.timers.reach(watermark, watermark)
            due = [state for state in self._states if state.timers.overdue()]
            fired = self._operator.advance(due) if due else None
            results += [] if fired is None else [fired]
        for events in given:
            units = units_of(events["key"].to_numpy(), self._workload.key_groups, self._workload.bins)
            placed = events.append_column("unit", pa.array(units))
            if "position" not in events.schema.names:
                placed = placed.append_column("position", pa.array(np.arange(events.num_rows, dtype=np.int32)))
            results.append(self._operator.process(placed, self._states.__getitem__))
        return results
