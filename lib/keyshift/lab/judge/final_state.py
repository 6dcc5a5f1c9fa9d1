"""What a system under test tells of itself when it has ended: for the verdict, and for the tables."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.driver.job import Job
from keyshift.driver.snapshotter import SNAPSHOT_PREFIX
from keyshift.driver.stage import LedStage
from keyshift.model.errors import Damaged, NotThere, ServiceUnavailable
from keyshift.model.keys import SomeUnits
from keyshift.model.notes import Note
from keyshift.model.records import Measured, SnapshotRecord, StepRecord
from keyshift.objects import damage_told, surely
from keyshift.planner import Decision
from keyshift.results import verdict
from keyshift.results.copies import repeated
from keyshift.results.verdict import Inventory, Judgement, JudgeSome, Ownership, due_in, judge, judge_in_parts
from keyshift.runtime.router import TICK_US
from keyshift.traffic.copies import Incarnation
from keyshift.wire.savepoint import SavedStage, SavepointManifest, SavepointStore
from keyshift.workloads import Workload
from keyshift.workloads.times import Times


@dataclass(frozen=True)
class StageEnd:
    """The end of one keyed stage, with the way there."""

    name: str
    ownership: Ownership
    begins: Sequence[int]
    unit_bytes: Mapping[int, int]
    records: Sequence[StepRecord]
    decisions: Sequence[tuple[int, Decision]] = ()  # with the number of the migration
    to_move: Collection[int] = ()  # units that were requested to change their slot
    measures: Mapping[int, Measured] = field(default_factory=dict)  # of each slot
    incomplete: bool = False  # whether units are known not to be where the last plan wants them


class CopiedAhead(NamedTuple):
    """What was copied ahead of migrations: ``bytes_copied``, and ``replicate_s`` until copies were close; None if
    nobody has told of any. ``ordered``: whether there were copies, whose attempt may have ended.
    """

    bytes_copied: int | None = None
    replicate_s: float | None = None
    ordered: bool = False


NOTHING_COPIED = CopiedAhead()


@dataclass(frozen=True)
class FinalState:
    """The end of a job, with the way there. See ``results.verdict.judge`` and ``workloads.times.Times``."""

    offsets: Mapping[int, int]  # of each router: what is before it was answered, and nothing else; empty: nobody knows
    # Of the state, as far as it is of some units; timers of these go into the list.
    parts: Callable[[list[pd.DataFrame], SomeUnits], Iterator[pd.DataFrame]]
    stages: Sequence[StageEnd]
    revoked: Collection[int]
    notes: Sequence[str]  # a line for each migration that did not go as planned, and each death
    measured_at: float = 0.0  # seconds since the epoch
    planned_s: float | None = None  # how long the first plan took, if there was one
    copied: CopiedAhead = NOTHING_COPIED
    snapshots: Sequence[SnapshotRecord] = ()
    # The same at each snapshot by name, if they are to be judged; the verdict on one that cannot be read.
    cuts: Mapping[str, "FinalState | Judgement"] | None = None
    heartbeat_us: int = 0  # of an epoch, if slots worked in turns
    stopped: bool = True  # no: a cut, behind which the job went on
    struck: Sequence[tuple[float, str]] = ()  # see ``driver.job_faults``
    replicas: Mapping[int, "FinalState"] = field(default_factory=dict)  # of those that lived to the end, if there are
    replica: int = 0  # ... and that whose stages these are
    began: Mapping[int, Sequence[Incarnation]] = field(default_factory=dict)  # of all of them
    judged: int | None = None  # of replicas that moved one after the other, that whose results are; None: first copies
    # When (microseconds since the epoch) it went on from a checkpoint, and gave once more what came behind that.
    repeats: Sequence[int] = ()
    told_of: Callable[[pd.DataFrame], Sequence[str]] | None = None  # notes on what the verdict on these events knows
    strength: Sequence[tuple[float, int]] = ()  # since when (seconds since the epoch) so many of them were full


def of_job(job: Job, left_behind: Mapping[str, Collection[tuple[int, int]]], **more: Any) -> FinalState:
    """The final state of a job that has stopped: its last savepoint. ``left_behind``: of each stage, see ``Questions``.
    ``more``: fields that the job does not know.

    Of an earlier savepoint, which nobody needs any more, the store may have lost what is in it: then it is not judged.
    """
    store, final = SavepointStore(job.config.endpoints, job.config.job), job.savepoints[-1]
    manifests: dict[str, SavepointManifest] = {}
    for saved in job.savepoints:
        try:
            manifests[saved.name] = surely(store.manifest, saved.name, store.committed)
        except (Damaged, NotThere) as error:
            if saved is final:
                raise
            job.notes.append(Note(f"it is not known what was in a savepoint: {error}"))

    def end(stage: LedStage) -> StageEnd:
        name, past = stage.name, stage.history
        saved = [_inventory(f"savepoint {at}", each.stages[name]) for at, each in manifests.items()]
        return StageEnd(
            name=name,
            ownership=Ownership(past.assignments, saved, left_behind[name]),
            begins=past.begins,
            unit_bytes=final.unit_bytes[name],
            records=past.records,
        )

    state = FinalState(
        offsets=final.offsets,
        parts=partial(_parts, store, manifests[final.name]),
        stages=list(map(end, job.stages)),
        revoked=job.revoked,
        notes=list(map(str, job.notes)),
        snapshots=job.snapshots.taken,
        heartbeat_us=job.config.heartbeat_us if job.config.in_turns else 0,
        **more,
    )
    if not job.config.keep_snapshots:
        return state
    cuts = cuts_of(store, state)
    known = {name: cut for name, cut in cuts.items() if _has_known_past(job, cut)}
    notes = [*state.notes]
    if unknown := len(cuts) - len(known):
        notes.append(f"{unknown} snapshots of a process that was gone are not judged: its steps are not known")
    return replace(state, cuts=known, notes=notes)


def _has_known_past(job: Job, cut: FinalState | Judgement) -> bool:
    """Whether it is known who had each unit until then, or the snapshot is bad anyway."""
    if isinstance(cut, Judgement):
        return True
    versions = {stage.name: stage.ownership.assignments[-1].version for stage in cut.stages}
    return all(stage.history.knows_until(versions[stage.name]) for stage in job.stages)


def cuts_of(store: SavepointStore, final: FinalState) -> dict[str, FinalState | Judgement]:
    """The state at every snapshot that is in the ``store`` of a job, as if the job, which ended as ``final``, had ended
    there; the verdict if that is not there as it was written. Raises ServiceUnavailable.
    """
    return {name: _cut(store, name, final) for name in store.committed(SNAPSHOT_PREFIX)}


def _cut(store: SavepointStore, name: str, final: FinalState) -> FinalState | Judgement:
    try:
        manifest = surely(store.manifest, name, store.committed)
    except (Damaged, NotThere) as error:
        return _unreadable(error)

    def end(stage: StageEnd) -> StageEnd:
        found = _inventory(name, manifest.stages[stage.name])
        last = found.assignment.version
        before = [each for each in stage.ownership.assignments if each.version < last]
        once = replace(found, units=sorted(set(found.units)))  # it has several parts
        return replace(
            stage,
            ownership=Ownership([*before, found.assignment], [once]),
            begins=[each for each in stage.begins if each <= last],
        )

    return replace(
        final,
        offsets=manifest.offsets,
        parts=partial(_parts, store, manifest),
        stages=[end(stage) for stage in final.stages],
        revoked=manifest.revoked,
        stopped=False,
    )


def processed(workload: Workload, events: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The ``events`` that a job has processed which does not tell its offsets: of each key of a router, those up to the
    last one that has a result. One before that without a result is lost.
    """
    origin = ["router", "offset", "position"]
    events = events.sort_values(origin, ignore_index=True)
    answered = pd.MultiIndex.from_frame(events[origin]).isin(pd.MultiIndex.from_frame(results[origin]))
    reached = pd.Series(answered)[::-1].groupby([events["router"], events["key"]]).cummax()
    return events[reached.sort_index() | ~due_in(workload.stages, events)]


def waited_for(workload: Workload, events: pd.DataFrame, offsets: Mapping[int, int]) -> pd.DataFrame:
    """The ``events`` that a job was to process which has processed those before its ``offsets``, if they are known. One
    behind them is lost if it must have a result; nobody waits for another one.
    """
    behind = events[events["offset"] >= events["router"].map(offsets)]
    return events.drop(index=behind.index[~due_in(workload.stages, behind)]) if len(behind) else events


def judged(
    workload: Workload,
    offered: int,
    events: pd.DataFrame,
    frames: pd.DataFrame,
    results: pd.DataFrame,
    final: FinalState,
) -> Judgement:
    """The verdict. ``offered``: how many events, as the generator says; ``events``, ``frames``: see ``Topic.read``."""
    if final.repeats:
        results = results[~repeated(results, final.repeats)]
    parts = -(-len(events) // verdict.PART_EVENTS)
    return judge_in_parts(parts, workload, events, results, judging(offered, frames, final))


def judging(offered: int, frames: pd.DataFrame, final: FinalState) -> JudgeSome:
    """Make what gives the verdict on some units; see ``judged``."""
    first = final.stages[0]
    unread = offered - int(frames["events"].sum())

    def judge_some(alone: Workload, mine: pd.DataFrame, given: pd.DataFrame, units: SomeUnits) -> Judgement:
        timers: list[pd.DataFrame] = []
        times = Times(
            frames,
            timers,
            first.ownership.assignments,
            ends=dict(final.offsets),
            begins=first.begins,
            lending={record.version for record in first.records if record.step.mode.fetch_back},
            lag_us=TICK_US,
            heartbeat_us=final.heartbeat_us,
            stopped=final.stopped,
        )
        state = final.parts(timers, units)
        owners = [stage.ownership for stage in final.stages]
        return judge(alone, mine, given, state, owners, final.revoked, times, unread)

    return judge_some


def judged_cuts(
    workload: Workload, events: pd.DataFrame, frames: pd.DataFrame, results: pd.DataFrame, final: FinalState
) -> dict[str, Judgement]:
    """The verdict on each of the ``cuts`` of ``final``, by the name of the snapshot; see ``judged``.

    Each is that on a run which has ended there: of the input before its offsets, and of the results under versions
    before its own. So it takes as long as so many verdicts, on half of the run on average.
    """
    return {
        name: cut if isinstance(cut, Judgement) else _judged_cut(workload, events, frames, results, cut)
        for name, cut in (final.cuts or {}).items()
    }


def _judged_cut(
    workload: Workload, events: pd.DataFrame, frames: pd.DataFrame, results: pd.DataFrame, cut: FinalState
) -> Judgement:
    events, frames = (each[each["offset"] < each["router"].map(cut.offsets)] for each in (events, frames))
    before = results[results["version"] < cut.stages[-1].ownership.assignments[-1].version]
    given = workload, int(frames["events"].sum()), events, frames, before, cut
    try:
        with suppress(Damaged):  # a connection may have broken
            return judged(*given)
        return judged(*given)
    except (Damaged, NotThere) as error:
        return _unreadable(error)


def _unreadable(error: ServiceUnavailable) -> Judgement:
    return Judgement(0, 0, 0, 1, 0, 0, 0, (("wrong", f"it cannot be read: {error}"),))


def _parts(
    store: SavepointStore, manifest: SavepointManifest, timers: list[pd.DataFrame], units: SomeUnits
) -> Iterator[pd.DataFrame]:
    """See ``FinalState.parts``. Some units of a slot at a time, as a table for each of a million would take an hour."""
    with damage_told(store.committed, SNAPSHOT_PREFIX):
        for number, saved in enumerate(manifest.stages.values()):
            for slot, locations in saved.locations.items():
                mine = units.have(np.array([location.unit for location in locations], np.int32))
                of_slot = SavedStage(saved.assignment, {slot: [*compress(locations, mine)]}).by_unit()
                for some in store.read(of_slot):
                    values = [(each.unit, batch) for each in some for batch in each.values]
                    yield from _tables(values, stage=number, slot=slot)
                    if number == 0:
                        timers += _tables([(each.unit, each.timers) for each in some], slot=slot)


def _tables(of_units: Sequence[tuple[int, pa.RecordBatch]], **more: int) -> Iterator[pd.DataFrame]:
    """Make one table of what there is of some units, if there is any."""
    if of_units:
        units = np.repeat([unit for unit, _ in of_units], [batch.num_rows for _, batch in of_units])
        yield pa.Table.from_batches([batch for _, batch in of_units]).to_pandas().assign(unit=units, **more)


def _inventory(name: str, saved: SavedStage) -> Inventory:
    units = [(location.unit, slot) for slot, locations in saved.locations.items() for location in locations]
    return Inventory(name, saved.assignment, units)
