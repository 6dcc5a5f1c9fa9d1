"""A workload run in this process, one frame after the other: no service, no engine, no migration protocol.

What a new workload is tried with before it meets a cluster, and what the tests of the verdict start from:

    >>> from keyshift.keys import Assignment
    >>> from keyshift.lab.sequential import run_offline
    >>> from keyshift.results.verdict import judge
    >>> from keyshift.workloads import workloads
    >>> w = workloads.get("keycount")(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
    >>> run = run_offline(w, [Assignment.contiguous(8, 2)])
    >>> judge(w, run.events, run.results, run.final, run.assignments, times=run.times).ok
    True
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.frames import RESULT_FIELDS
from keyshift.keys import Assignment, units_of
from keyshift.state import UnitState, backends
from keyshift.traffic.topics import positions
from keyshift.workloads import Workload
from keyshift.workloads.times import Times

_FRAME_US = 10_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class OfflineRun:
    """What a run leaves behind, in the form ``judge`` takes."""

    events: pd.DataFrame
    results: pd.DataFrame
    final: list[pd.DataFrame]
    assignments: list[Assignment]
    frames: pd.DataFrame
    timers: list[pd.DataFrame]

    @property
    def times(self) -> Times:
        """What frames and timers say."""
        return Times(self.frames, self.timers, self.assignments)


def run_offline(
    workload: Workload,
    assignments: list[Assignment],
    routers: int = 2,
    frames: int = 10,
    events_per_frame: int = 20,
    backend: str = "memory",
) -> OfflineRun:
    """Put ``frames`` frames per router through the operators, under each assignment in turn for an equal share of them.

    State and timers are handed over between assignments by export and install, into fresh state. A slot's watermark is
    the least of those of the frames that came before, one per router; every unit hears of it before each frame, and
    behind the last one. Timers that are not due by then stay. Raises BadInput for an unknown backend.
    """
    [source], [stage] = workload.sources, workload.stages
    operator, kind = stage.operator(), backends.get(backend)
    store = kind.open("sequential", operator.state_schema, kind.settings())
    units = workload.key_groups * workload.bins
    partitions = [source.partition(router) for router in range(routers)]
    states: list[UnitState] = [store.unit(unit) for unit in range(units)]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    watermarks = [0] * routers
    events: list[pd.DataFrame] = []
    ends: list[tuple[int, int, int]] = []  # of frames: router, offset, watermark
    current = assignments[0]
    results = _Results()

    def time_passes(now_us: int) -> None:
        for unit, state in enumerate(states):
            state.timers.reach(min(watermarks), now_us)
            fired = operator.advance([state])
            if fired is not None:
                results.add(fired, current, current.owner[unit], now_us, router=-1, offset=-1)

    for offset in range(frames):
        due = assignments[offset * len(assignments) // frames]
        for move in current.moves_to(due):
            states[move.unit], left = store.unit(move.unit), states[move.unit]
            states[move.unit].install(left.export(_CHUNK_BYTES))
            states[move.unit].timers.install(left.timers.export())
        current = due
        times = offset * _FRAME_US + np.arange(events_per_frame, dtype=np.int64) * _FRAME_US // events_per_frame
        now_us = int(times[-1]) + 1
        for router, partition in enumerate(partitions):
            time_passes(now_us)
            batch = stage.mapped(partition.take(times))
            position = positions(np.array([batch.num_rows]))
            events.append(batch.to_pandas().assign(router=np.int32(router), offset=offset, position=position))
            unit_of = units_of(batch.column("key").to_numpy(), workload.key_groups, workload.bins)
            slots = current.slot_of[unit_of]
            keys = batch.column("key").to_numpy()
            store.load((states[unit], set(keys[unit_of == unit].tolist())) for unit in np.unique(unit_of).tolist())
            batch = batch.append_column("position", pa.array(position)).append_column("unit", pa.array(unit_of))
            for slot in np.unique(slots).tolist():
                answer = operator.process(batch.filter(pa.array(slots == slot)), states.__getitem__)
                results.add(answer, current, slot, now_us, router, offset)
            watermarks[router] = int(times[-1])  # for what comes behind this frame
            ends.append((router, offset, watermarks[router]))
    time_passes(now_us)
    store.checkpoint()
    final = [
        part.to_pandas().assign(unit=unit, slot=current.owner[unit])
        for unit, state in enumerate(states)
        for part in state.export(_CHUNK_BYTES)
    ]
    timers = [
        state.timers.export().to_pandas().assign(unit=unit, slot=current.owner[unit])
        for unit, state in enumerate(states)
    ]
    store.close()
    columns = [field.name for field in (*RESULT_FIELDS, *stage.result_fields)]
    columns += ["slot", "log_offset", "arrived_us"]
    return OfflineRun(
        pd.concat(events, ignore_index=True),
        results.table()[columns],
        final,
        assignments,
        pd.DataFrame(ends, columns=["router", "offset", "watermark"]),
        timers,
    )


class _Results:
    """What all slots gave, one log per slot."""

    def __init__(self) -> None:
        self._parts: list[pd.DataFrame] = []
        self._log_ends: Counter[int] = Counter()

    def add(
        self, answer: pa.RecordBatch, current: Assignment, slot: int, arrived_us: int, router: int, offset: int
    ) -> None:
        origin = {"router": np.int32(router), "offset": offset, "version": current.version}
        where = {"slot": np.int32(slot), "log_offset": self._log_ends[slot], "arrived_us": arrived_us}
        self._parts.append(answer.to_pandas().assign(**origin, **where))
        self._log_ends[slot] += 1

    def table(self) -> pd.DataFrame:
        return pd.concat(self._parts, ignore_index=True)
