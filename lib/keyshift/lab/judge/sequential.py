"""A workload run in this process, one frame after the other: all that a job does, without a service or an engine.

What a new workload is tried with before it meets a cluster, and what the tests of the verdict start from:

    >>> from keyshift.model.keys import Assignment
    >>> from keyshift.lab.judge.sequential import run_sequentially
    >>> from keyshift.results.verdict import judge
    >>> from keyshift.workloads import workloads
    >>> w = workloads.get("keycount")(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
    >>> run = run_sequentially(w, [Assignment.contiguous(8, 2)])
    >>> judge(w, run.events, run.results, run.final, run.ownership, times=run.times).ok
    True
"""

import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from keyshift.lab.judge.driven import DrivenStage
from keyshift.model.keys import Assignment
from keyshift.results.verdict import Ownership
from keyshift.state import backends
from keyshift.traffic.topics import positions
from keyshift.wire.config import result_schema
from keyshift.workloads import Workload
from keyshift.workloads.times import Times

_FRAME_US = 10_000
_BYTES = 1 << 20  # of a piece of state


@dataclass(frozen=True)
class SequentialRun:
    """What a run leaves behind, in the form ``judge`` takes."""

    events: pd.DataFrame
    results: pd.DataFrame
    final: list[pd.DataFrame]
    assignments: list[Assignment]
    frames: pd.DataFrame
    timers: list[pd.DataFrame]  # of the first stage
    ownership: list[Ownership]  # of each stage

    @property
    def times(self) -> Times:
        """What frames and timers say."""
        return Times(self.frames, self.timers, self.assignments)


def run_sequentially(
    workload: Workload,
    assignments: list[Assignment],
    routers: int = 2,
    frames: int = 10,
    events_per_frame: int = 20,
    backend: str = "memory",
) -> SequentialRun:
    """Put ``frames`` frames of each router through slots, under each assignment in turn for an equal share of them.

    Each source has as many ``routers``. Routers and slots are those of a job, ``RouterCore`` and ``SlotCore``, with one
    frame under way at a time; state and timers are handed over by export and install, or by reference. At the end all
    routers stand at a savepoint: timers that are not due by then stay. With fewer frames than assignments, the later
    of these do not come. Raises BadInput for an unknown backend.
    """
    kind = backends.get(backend)
    partitions = [(source, source.partition(number)) for source in workload.sources for number in range(routers)]
    slots = 1 + max(max(each.owner) for each in assignments)
    chain: list[DrivenStage] = []
    events: list[pd.DataFrame] = []
    ends: list[tuple[int, int, int]] = []
    now_us = 0
    with ExitStack() as stack:
        settings = stack.enter_context(kind.served(kind.settings(), "sequential", Path(tempfile.gettempdir())))
        stores = [
            stack.enter_context(closing(kind.open(f"sequential/{each.name}", each.operator().state_schema, settings)))
            for each in workload.stages
        ]
        for number, stage in reversed([*enumerate(workload.stages)]):
            senders = slots if number else len(partitions)
            following = chain[0] if chain else None
            chain.insert(
                0, DrivenStage(workload, stage, stores[number], assignments[0], senders, slots, following, number)
            )
        for offset in range(frames):
            for each in chain:
                each.migrate(assignments[offset * len(assignments) // frames])
            times = offset * _FRAME_US + np.arange(events_per_frame, dtype=np.int64) * _FRAME_US // events_per_frame
            now_us, watermark = int(times[-1]) + 1, int(times[-1])
            for router, (source, partition) in enumerate(partitions):
                batch = source.mapped(partition.take(times))
                position = positions(np.array([batch.num_rows]))
                events.append(batch.to_pandas().assign(router=np.int32(router), offset=offset, position=position))
                chain[0].frame(router, offset, batch, watermark, now_us)
                ends.append((router, offset, watermark))
        chain[0].end(now_us)
        for store in stores:
            store.checkpoint()
        units = [
            (number, unit, slot, state)
            for number, each in enumerate(chain)
            for slot, core in enumerate(each.slots)
            for unit, state in sorted(core.states.items())
        ]
        *_, last = workload.stages
        return SequentialRun(
            pd.concat(events, ignore_index=True),
            chain[-1].results.table(result_schema(last)),
            [
                part.to_pandas().assign(stage=number, unit=unit, slot=slot)
                for number, unit, slot, state in units
                for part in state.export(_BYTES)
            ],
            assignments,
            pd.DataFrame(ends, columns=["router", "offset", "watermark"]),
            [
                state.timers.export().to_pandas().assign(unit=unit, slot=slot)
                for number, unit, slot, state in units
                if number == 0
            ],
            [Ownership(assignments)] * len(chain),
        )
