"""Runs of workloads in this process, and what the verdict and the oracle say of them."""

import numpy as np
import pyarrow as pa

from keyshift.lab.judge.sequential import run_sequentially
from keyshift.model.keys import Assignment
from keyshift.results.verdict import judge


def run(workload, slots=(2, 3), **changes):
    """A run whose state moves: an assignment for each number in ``slots``."""
    units = workload.key_groups * workload.bins
    assignments = [Assignment.contiguous(units, number, version) for version, number in enumerate(slots, 1)]
    return run_sequentially(workload, assignments, **changes)


def with_sources(base, sources):
    """A workload like another one; ``sources`` makes its sources of the only one of that."""

    class Changed(base):
        @property
        def sources(self):
            [plain] = super().sources
            return tuple(sources(plain))

    return Changed


def slot_events(schema, rows) -> pa.RecordBatch:
    """Events of unit 0 as a slot gets them, from rows of the columns of ``schema``."""
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    events = pa.RecordBatch.from_arrays(columns, schema=schema)
    events = events.append_column("position", pa.array(np.arange(len(rows), dtype=np.int32)))
    return events.append_column("unit", pa.array(np.zeros(len(rows), np.int32)))


def verdict(workload, made, **changes):
    """The verdict on a run, of which some tables may be others."""
    names = ("events", "results", "final", "ownership", "times")
    return judge(workload, **{name: getattr(made, name) for name in names} | changes)


def wrong(workload, made, **changes) -> list[str]:
    """What the oracle alone says."""
    given = {name: getattr(made, name) for name in ("events", "results", "final", "times")} | changes
    return list(workload.wrong(given["events"], given["results"], iter(given["final"]), given["times"]))
