"""What a system under test tells of itself when it has ended: for the verdict, and for the tables."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from keyshift.executor.job import Job
from keyshift.executor.savepoint import Location, SavepointStore
from keyshift.keys import Assignment
from keyshift.planner import Decision
from keyshift.protocol.record import StepRecord
from keyshift.results.verdict import Inventory, Judgement, judge
from keyshift.runtime.router import TICK_US
from keyshift.workloads import Workload
from keyshift.workloads.times import Times


@dataclass(frozen=True)
class FinalState:
    """The end of a job, with the way there. See ``results.verdict.judge`` and ``workloads.times.Times``."""

    offsets: Mapping[int, int]  # of each router: what is before it was answered, and nothing else
    unit_bytes: Mapping[int, int]
    parts: Callable[[list[pd.DataFrame]], Iterator[pd.DataFrame]]  # of the state; gives it timers into a list, too
    savepoints: Sequence[Inventory]
    left_behind: Collection[tuple[int, int]]
    assignments: list[Assignment]
    begins: list[int]
    revoked: Collection[int]
    records: Sequence[StepRecord]
    troubles: Sequence[str]  # a line for each migration that did not go as planned, and each death
    decisions: Sequence[tuple[int, Decision]] = ()  # with the number of the migration
    to_move: set[int] = field(default_factory=set)  # units that were requested to change their slot
    measures: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of each slot
    measured_at: float = 0.0  # seconds since the epoch
    planned_s: float = 0.0  # how long the first plan took
    replicate_s: float | None = None  # until copies were close
    bytes_copied: int | None = None


def of_job(job: Job, left_behind: Collection[tuple[int, int]], **told: Any) -> FinalState:
    """Of a job that has stopped; its last savepoint is the final state. ``told``: other fields."""
    store, final = SavepointStore(job.config.endpoints, job.config.job), job.savepoints[-1]
    return FinalState(
        offsets=final.offsets,
        unit_bytes=final.unit_bytes,
        parts=partial(_parts, store, store.manifest(final.name)),
        savepoints=[_inventory(saved.name, store.manifest(saved.name)) for saved in job.savepoints],
        left_behind=left_behind,
        assignments=job.assignments,
        begins=job.begins,
        revoked=job.revoked,
        records=job.records,
        troubles=job.troubles,
        **told,
    )


def judged(
    workload: Workload,
    offered: int,
    events: pd.DataFrame,
    frames: pd.DataFrame,
    results: pd.DataFrame,
    final: FinalState,
) -> Judgement:
    """The verdict. ``offered``: how many events, as the generator says; ``events``, ``frames``: see ``read_topic``."""
    timers: list[pd.DataFrame] = []
    times = Times(
        frames,
        timers,
        final.assignments,
        ends=dict(final.offsets),
        begins=final.begins,
        lending={record.version for record in final.records if record.step.mode.fetch_back},
        lag_us=TICK_US,
    )
    return judge(
        workload,
        events,
        results,
        final.parts(timers),
        final.assignments,
        final.revoked,
        times,
        final.savepoints,
        final.left_behind,
        unread=offered - int(frames["events"].sum()),
    )


def _parts(store: SavepointStore, manifest: dict[str, Any], timers: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The values of a savepoint, unit by unit; their timers go into ``timers``."""
    for slot, rows in manifest["places"].items():
        for row in rows:
            values, timed = store.read(Location(*row))
            timers.append(timed.to_pandas().assign(unit=row[0], slot=int(slot)))
            for batch in values:
                yield batch.to_pandas().assign(unit=row[0], slot=int(slot))


def _inventory(name: str, manifest: dict[str, Any]) -> Inventory:
    units = [(row[0], int(slot)) for slot, rows in manifest["places"].items() for row in rows]  # one part each
    return Inventory(f"savepoint {name}", Assignment.from_json(manifest["assignment"]), units)
