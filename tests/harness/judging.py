"""The verdict on a run, as ``lab.course`` asks for it."""

from collections.abc import Collection, Iterator

import pandas as pd

from keyshift.executor.job import Job, Savepoint
from keyshift.executor.savepoint import SavepointStore
from keyshift.lab.course import _final_state, _inventory
from keyshift.results.verdict import judge
from keyshift.runtime.router import TICK_US
from keyshift.workloads import Workload
from keyshift.workloads.times import Times

KINDS = ("lost", "duplicated", "reordered", "wrong", "foreign", "unexpected", "unread")  # of the verdict


def problems(
    workload: Workload,
    topic: tuple[pd.DataFrame, pd.DataFrame],
    offered: int,
    results: pd.DataFrame,
    job: Job,
    savepoints: list[Savepoint],
    left_behind: Collection[tuple[int, int]],
) -> Iterator[tuple[str, str]]:
    """The kinds of mistakes that were found, and what. The last of the savepoints is the final state."""
    store = SavepointStore(job.config.endpoints, job.config.job)
    final = savepoints[-1]
    events, frames = topic
    timers: list[pd.DataFrame] = []
    times = Times(
        frames,
        timers,
        job.assignments,
        ends=final.offsets,
        begins=job.begins,
        lending={record.version for record in job.records if record.step.mode.fetch_back},
        lag_us=TICK_US,
    )
    found = judge(
        workload,
        events,
        results,
        _final_state(store, final, timers),
        job.assignments,
        job.revoked,
        times,
        [_inventory(saved.name, store.manifest(saved.name)) for saved in savepoints],
        left_behind,
        unread=offered - int(frames["events"].sum()),
    )
    for kind in KINDS:
        if count := getattr(found, kind):
            yield kind, f"{count}: {'; '.join(line for line in found.examples if line.startswith(kind))}"
