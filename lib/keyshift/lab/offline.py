"""A workload run in this process, one frame after the other: no service, no engine, no migration protocol.

What a new workload is tried with before it meets a cluster, and what the tests of the verdict start from:

    >>> from keyshift.keys import Assignment
    >>> from keyshift.lab.offline import run_offline
    >>> from keyshift.lab.verdict import judge
    >>> from keyshift.workloads import workloads
    >>> w = workloads.get("keycount")(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
    >>> run = run_offline(w, [Assignment.contiguous(8, 2)])
    >>> judge(w, run.events, run.results, run.final, run.assignments).ok
    True
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.frames import RESULT_FIELDS
from keyshift.keys import Assignment, units_of
from keyshift.lab.topics import positions
from keyshift.state import UnitState, backends
from keyshift.workloads import Workload

_FRAME_US = 10_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class OfflineRun:
    """What a run leaves behind, in the form ``judge`` takes."""

    events: pd.DataFrame
    results: pd.DataFrame
    final: list[pd.DataFrame]
    assignments: list[Assignment]


def run_offline(
    workload: Workload,
    assignments: list[Assignment],
    routers: int = 2,
    frames: int = 10,
    events_per_frame: int = 20,
    backend: str = "memory",
) -> OfflineRun:
    """Put ``frames`` frames per router through the operators, under each assignment in turn for an equal share of them.

    State is handed over between assignments by export and install, into fresh state. Raises BadInput for an unknown
    backend.
    """
    make_state, _ = backends.get(backend)
    operator = workload.operator()
    units = workload.key_groups * workload.bins
    sources = [workload.source(router) for router in range(routers)]
    states: list[UnitState] = [make_state(operator.state_schema) for _ in range(units)]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    log_ends = [0] * (max(max(a.owner) for a in assignments) + 1)
    events: list[pd.DataFrame] = []
    results: list[pd.DataFrame] = []
    current = assignments[0]
    for offset in range(frames):
        due = assignments[offset * len(assignments) // frames]
        for move in current.moves_to(due):
            states[move.unit], left = make_state(operator.state_schema), states[move.unit]
            states[move.unit].install(left.export(_CHUNK_BYTES))
        current = due
        for router, source in enumerate(sources):
            times = offset * _FRAME_US + np.arange(events_per_frame, dtype=np.int64) * _FRAME_US // events_per_frame
            batch = source.take(times)
            origin = {"router": np.int32(router), "offset": offset}
            position = positions(np.array([batch.num_rows]))
            events.append(batch.to_pandas().assign(**origin, position=position))
            unit_of = units_of(batch.column("key").to_numpy(), workload.key_groups, workload.bins)
            slots = current.slot_of[unit_of]
            batch = batch.append_column("position", pa.array(position)).append_column("unit", pa.array(unit_of))
            for slot in np.unique(slots).tolist():
                answer = operator.process(batch.filter(pa.array(slots == slot)), states.__getitem__, times[-1])
                where = {"version": current.version, "slot": np.int32(slot), "log_offset": log_ends[slot]}
                results.append(answer.to_pandas().assign(**origin, **where, arrived_us=times[-1] + 1))
                log_ends[slot] += 1
    final = [
        part.to_pandas().assign(unit=unit, slot=current.owner[unit])
        for unit, state in enumerate(states)
        for part in state.export(_CHUNK_BYTES)
    ]
    columns = [field.name for field in (*RESULT_FIELDS, *workload.result_fields)]
    columns += ["slot", "log_offset", "arrived_us"]
    return OfflineRun(
        pd.concat(events, ignore_index=True), pd.concat(results, ignore_index=True)[columns], final, assignments
    )
