"""What a system under test tells of itself when it has ended: for the verdict, and for the tables."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd

from keyshift.executor.job import Job
from keyshift.executor.led_stage import LedStage
from keyshift.executor.savepoint import Location, SavepointStore
from keyshift.keys import Assignment
from keyshift.planner import Decision
from keyshift.protocol.record import SnapshotRecord, StepRecord
from keyshift.results.verdict import Course, Inventory, Judgement, judge
from keyshift.runtime.router import TICK_US
from keyshift.workloads import Workload
from keyshift.workloads.times import Times


@dataclass(frozen=True)
class StageEnd:
    """The end of one keyed stage, with the way there. ``course``: see ``results.verdict``."""

    name: str
    course: Course
    begins: Sequence[int]
    unit_bytes: Mapping[int, int]
    records: Sequence[StepRecord]
    decisions: Sequence[tuple[int, Decision]] = ()  # with the number of the migration
    to_move: Collection[int] = ()  # units that were requested to change their slot
    measures: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of each slot


@dataclass(frozen=True)
class FinalState:
    """The end of a job, with the way there. See ``results.verdict.judge`` and ``workloads.times.Times``."""

    offsets: Mapping[int, int]  # of each router: what is before it was answered, and nothing else
    parts: Callable[[list[pd.DataFrame]], Iterator[pd.DataFrame]]  # of the state; gives it timers into a list, too
    stages: Sequence[StageEnd]
    revoked: Collection[int]
    troubles: Sequence[str]  # a line for each migration that did not go as planned, and each death
    measured_at: float = 0.0  # seconds since the epoch
    planned_s: float = 0.0  # how long the first plan took
    replicate_s: float | None = None  # until copies were close
    bytes_copied: int | None = None
    snapshots: Sequence[SnapshotRecord] = ()
    struck: Sequence[tuple[float, str]] = ()  # see ``executor.strikes``


def of_job(job: Job, of_stages: Mapping[str, Mapping[str, Any]], **told: Any) -> FinalState:
    """Of a job that has stopped; its last savepoint is the final state.

    ``of_stages``: what else is known of each stage, by its name: fields of ``StageEnd``, and ``left_behind``, see
    ``LedStage.left_behind``. ``told``: other fields.
    """
    store, final = SavepointStore(job.config.endpoints, job.config.job), job.savepoints[-1]
    manifests = {saved.name: store.manifest(saved.name) for saved in job.savepoints}

    def end(stage: LedStage, left_behind: Collection[tuple[int, int]], **fields: Any) -> StageEnd:
        saved = [_inventory(name, manifest["stages"][stage.name]) for name, manifest in manifests.items()]
        course = Course(stage.assignments, saved, left_behind)
        return StageEnd(stage.name, course, stage.begins, final.unit_bytes[stage.name], stage.records, **fields)

    return FinalState(
        offsets=final.offsets,
        parts=partial(_parts, store, manifests[final.name]),
        stages=[end(stage, **of_stages[stage.name]) for stage in job.stages],
        revoked=job.revoked,
        troubles=job.troubles,
        snapshots=job.snapshots_taken,
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
    first, last = final.stages[0], final.stages[-1]
    timers: list[pd.DataFrame] = []
    times = Times(
        frames,
        timers,
        first.course.assignments,
        ends=dict(final.offsets),
        begins=first.begins,
        lending={record.version for record in first.records if record.step.mode.fetch_back},
        lag_us=TICK_US,
    )
    return judge(
        workload,
        events,
        results,
        final.parts(timers),
        last.course.assignments,
        final.revoked,
        times,
        last.course.savepoints,
        last.course.left_behind,
        unread=offered - int(frames["events"].sum()),
        earlier=[stage.course for stage in final.stages[:-1]],
    )


def _parts(store: SavepointStore, manifest: dict[str, Any], timers: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The values of a savepoint, unit by unit; timers of the first stage go into ``timers``."""
    for number, stage in enumerate(manifest["stages"].values()):
        for slot, rows in stage["places"].items():
            for row in rows:
                values, timed = store.read(Location(*row))
                if number == 0:
                    timers.append(timed.to_pandas().assign(unit=row[0], slot=int(slot)))
                for batch in values:
                    yield batch.to_pandas().assign(stage=number, unit=row[0], slot=int(slot))


def _inventory(name: str, manifest: dict[str, Any]) -> Inventory:
    units = [(row[0], int(slot)) for slot, rows in manifest["places"].items() for row in rows]  # one part each
    return Inventory(f"savepoint {name}", Assignment.from_json(manifest["assignment"]), units)
