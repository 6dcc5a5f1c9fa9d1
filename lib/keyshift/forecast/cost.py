"""What an event of a workload costs: the CPU of its computation alone, measured here and now in this process."""

import math
import time
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from keyshift.clock import SECOND_US
from keyshift.workloads import KeyedStage, Source, Workload
from keyshift.workloads.alone import StageAlone
from keyshift.workloads.keyed import Keyed

TRIES = 3  # to measure it: what comes between, such as a garbage collection, is none of it
COST_KEYS = 4096  # that the cost of an event is measured with: enough to be as many, few enough to be made at once
COST_BYTES = 64 << 20  # of their payloads at the most, whatever backend the run has
_FRAME_US = 20_000
_NOWHERE = {"router": np.int32(0), "offset": np.int64(0)}


def cpu_us_per_event(workload: Workload, frames: int = 40, events_per_frame: int = 50) -> float:
    """CPU time in microseconds per event of the sources, of all maps and operators, with state in memory.

    The first source offers ``events_per_frame``, others as many more as they do beside it by themselves. Without the
    sources, and without the frames, sockets, Kafka and Spark around them, which cost the same for every
    workload with results of that size. The first half of the frames is not measured.
    """
    sources = [_Source(source, events_per_frame) for source in workload.sources]
    stages = [StageAlone(workload, stage) for stage in workload.stages]
    spent = events = 0
    for number in range(frames):
        offered = [source.take(number) for source in sources]
        begun = time.process_time_ns()
        given = [source.mapped(batch) for source, batch in zip(workload.sources, offered, strict=True)]
        for place, stage in enumerate(stages):
            given = [_events_of(stage.stage, results) for results in given] if place else given
            given = _results(stage, given, 0 if place else (number + 1) * _FRAME_US)
        if number >= frames // 2:
            spent += time.process_time_ns() - begun
            events += sum(batch.num_rows for batch in offered)
    return spent / 1000 / events


class _Source:
    """A partition of a source, which offers the same number of events per second all the time."""

    def __init__(self, source: Source, events_per_frame: int) -> None:
        self._partition = source.partition(0)
        self._per_frame = events_per_frame if source.rate is None else source.rate * _FRAME_US / SECOND_US

    def take(self, frame: int) -> pa.RecordBatch:
        """The events of the ``frame``-th frame."""
        events = math.floor((frame + 1) * self._per_frame) - math.floor(frame * self._per_frame)
        return self._partition.take(frame * _FRAME_US + np.arange(events, dtype=np.int64) * _FRAME_US // max(1, events))


def event_us(workload: Workload) -> float:
    """Microseconds that an event takes of its slots: the CPU of its computation, measured once, and ``told_us``."""
    return _computation_us(_alone(workload)) + _told_us(workload)


def event_cpu_us(workload: Workload) -> float:
    """Return what of ``event_us`` takes a core: not what an event waits."""
    return _computation_us(_alone(workload)) + _told_cpu_us(workload)


def more_cpu_us(workload: Workload, than: Workload) -> float:
    """By how much ``event_cpu_us`` is more ``than`` another's, 0 if less; what computes the same is not measured."""
    alone, other = _alone(workload), _alone(than)
    computation_us = 0.0 if alone == other else _computation_us(alone) - _computation_us(other)
    return max(0.0, computation_us + _told_cpu_us(workload) - _told_cpu_us(than))


def _told_us(workload: Workload) -> float:
    return float(getattr(workload, "told_us", 0.0))


def _told_cpu_us(workload: Workload) -> float:
    return 0.0 if getattr(workload, "work_by", "") == "waiting" else _told_us(workload)


def _alone(workload: Workload) -> Any:
    """The workload whose events have the same computation, and nothing that they are told to take."""
    given: Any = workload  # a pydantic model, too, which has a hash
    lighter: dict[str, Any] = {"seed": 1}
    if isinstance(workload, Keyed):
        lighter["keys"] = min(workload.keys, max(1, min(COST_KEYS, COST_BYTES // workload.state_bytes)))
    if hasattr(workload, "told_us"):
        lighter |= {"work_us": 0.0, "stage_work_us": ""}
    for name, value in lighter.items():
        if name in type(given).model_fields:
            with suppress(ValidationError):  # bounds of its own: then it is measured as it is
                given = type(given)(**given.model_dump() | {name: value})  # a copy would keep the stages it has
    return given


@cache
def _computation_us(workload: Workload) -> float:
    return min(cpu_us_per_event(workload) for _ in range(TRIES))


def _events_of(stage: KeyedStage, results: pa.RecordBatch) -> pa.RecordBatch:
    """The events of ``stage`` that results of the stage before make."""
    for name, value in _NOWHERE.items():
        results = results.append_column(name, pa.array(np.full(results.num_rows, value)))
    return stage.from_results(results)


def _results(alone: StageAlone, given: list[pa.RecordBatch], watermark: int) -> list[pa.RecordBatch]:
    """Results of batches of events, and of the timers that are due."""
    results = []
    if alone.operator.uses_time:
        for state in alone.states:
            state.timers.reach(watermark, watermark)
        due = [state for state in alone.states if state.timers.overdue()]
        fired = alone.operator.advance(due) if due else None
        results += [] if fired is None else [fired]
    return results + [alone.process(alone.placed(events)) for events in given]
