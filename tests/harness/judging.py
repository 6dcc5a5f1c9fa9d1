"""What is wrong with a run: the verdict on it, and what that does not look at."""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from keyshift.executor.job import Job, Savepoint
from keyshift.executor.savepoint import Place, SavepointStore
from keyshift.lab.verdict import judge
from keyshift.state.timers import EVENT
from keyshift.workloads import Workload

KINDS = ("lost", "duplicated", "reordered", "wrong", "foreign", "unexpected")  # of the verdict
WATERMARK = -1  # kind of the row of a unit's timers that says how far it has come


def problems(
    workload: Workload, events: pd.DataFrame, results: pd.DataFrame, job: Job, final: Savepoint
) -> Iterator[tuple[str, str]]:
    """The checks that found something, and what."""
    store = SavepointStore(job.config.endpoints, job.config.job)
    manifest = store.manifest(final.name)["places"]
    places = [(int(slot), Place(*row)) for slot, rows in manifest.items() for row in rows]
    units = sorted(place.unit for _, place in places)
    if units != list(range(len(job.assignments[-1].owner))):
        yield "savepoint", f"has units {units}"
    saved = [(slot, place.unit, *store.read(place)) for slot, place in places]
    parts = [batch.to_pandas().assign(unit=unit, slot=slot) for slot, unit, values, _ in saved for batch in values]
    found = judge(workload, events, results, parts, job.assignments, job.revoked)
    for kind in KINDS:
        if count := getattr(found, kind):
            yield kind, f"{count}: {'; '.join(line for line in found.examples if line.startswith(kind))}"
    if workload.operator().uses_time:
        yield from _of_timers(workload, parts, {unit: timers for _, unit, _, timers in saved})


def _of_timers(
    workload: Workload, parts: list[pd.DataFrame], timers: dict[int, pa.RecordBatch]
) -> Iterator[tuple[str, str]]:
    """Every open window has its timer, and none is overdue."""
    closes_us = workload.window_us + workload.lag_us
    waiting: dict[int, set[tuple[int, int]]] = {}
    for unit, batch in timers.items():
        rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        waiting[unit] = {(time_us, key) for kind, time_us, key in rows if kind == EVENT}
        watermark = max(time_us for kind, time_us, _ in rows if kind == WATERMARK)
        if late := [timer for timer in waiting[unit] if timer[0] <= watermark]:
            yield "timer overdue", f"unit {unit}: {late[:3]} at {watermark}"
    for unit, key, starts in pd.concat(parts)[["unit", "key", "starts"]].itertuples(index=False):
        for start in starts:
            if (start + closes_us, key) not in waiting[unit]:
                yield "timer lost", f"unit {unit}, key {key}: window {start}"
