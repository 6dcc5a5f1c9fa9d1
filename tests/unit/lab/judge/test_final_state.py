from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from small_bucket import ENDPOINTS, VALUE, state, store_of, write

from keyshift.driver.completed import CompletedSnapshots
from keyshift.driver.stage_history import StageHistory
from keyshift.lab.judge import final_state
from keyshift.lab.judge.final_state import FinalState, StageEnd
from keyshift.lab.judge.sequential import run_sequentially
from keyshift.model.errors import Damaged, NotThere, ServiceUnavailable, Undelivered
from keyshift.model.keys import ALL_UNITS, Assignment, Assignments, SomeUnits, Versions
from keyshift.model.notes import Note
from keyshift.results import verdict
from keyshift.results.verdict import Inventory, Ownership
from keyshift.runtime.snapshots import SnapshotPart
from keyshift.state.timers import EVENT
from keyshift.wire import savepoint
from keyshift.wire.nodes import SlotSaved
from keyshift.wire.savepoint import Savepoint, SavepointManifest
from keyshift.workloads import workloads

AFTER = Assignment(3, (2, 1, 1))
UNITS = {1: [(1, state(1)), (2, state(2, keys=0))], 2: [(0, state(0, timers=1))]}  # of each slot


def commit(store, name, assignment, places, offset=0, **more):
    """What slots have written, by their numbers, is a savepoint from now on."""
    manifest = SavepointManifest(**more)
    manifest.offsets[0] = offset
    manifest.add("counter", {f"slot-{slot}": SlotSaved(tuple(each)) for slot, each in places.items()}, assignment)
    store.commit(name, manifest)


def of_job(savepoints, history, **job):
    """The final state of a job of one stage, which keeps its snapshots."""
    same = {"revoked": (), "notes": [], "snapshots": CompletedSnapshots(), "keep_snapshots": True} | job
    config = SimpleNamespace(endpoints=ENDPOINTS, job="job", keep_snapshots=same["keep_snapshots"], in_turns=False)
    stages = [SimpleNamespace(name="counter", history=history)]
    made = SimpleNamespace(config=config, savepoints=savepoints, stages=stages, **same)
    return final_state.of_job(made, {"counter": {(1, 0)}}, planned_s=0.5)


def ended(monkeypatch, units, store, gone=""):
    """Of a job with two savepoints, of which the last one has values and timers; the store has lost one if ``gone``."""
    monkeypatch.setattr(final_state, "SavepointStore", lambda *told: store)
    for name, assignment in (("first", Assignment(1, (1, 1, 1))), ("last", AFTER)):
        places = {slot: write(store, name, slot, of_slot, 10_000) for slot, of_slot in units.items()}
        commit(store, name, assignment, places)
    if gone:
        del store.client.objects[f"savepoints/job/{gone}/manifest.json"]
    sizes = {"counter": {0: 10, 1: 20, 2: 0}}
    savepoints = [Savepoint("first", {0: 5}, {"counter": {}}), Savepoint("last", {0: 9}, sizes)]
    known = {"notes": [Note("late")], "snapshots": SimpleNamespace(taken=["one that is complete"])}
    history = StageHistory(Assignments([AFTER]), [1], [])
    return of_job(savepoints, history, revoked={2}, keep_snapshots=False, **known)


@pytest.fixture
def final(monkeypatch):
    return ended(monkeypatch, UNITS, store_of())


def test_the_final_state_has_the_values_and_the_timers_of_every_unit_with_the_slot_that_wrote_it(final):
    timers = []
    parts = list(final.parts(timers, ALL_UNITS))
    assert sorted({(int(p["unit"].iloc[0]), int(p["slot"].iloc[0]), len(p)) for p in parts}) == [(0, 2, 3), (1, 1, 3)]
    assert len(timers) == 2, "units of a slot are looked at together"
    due = pd.concat([each[each["kind"] == EVENT] for each in timers])[["unit", "slot", "time"]]
    due = sorted(due.itertuples(index=False, name=None))
    assert due == [(0, 2, 0), (1, 1, 100), (1, 1, 101), (2, 1, 200), (2, 1, 201)]


def test_of_some_units_values_and_timers_alone_are_read(final):
    timers = []
    [only] = final.parts(timers, SomeUnits(((0, 1), (2, 3))))
    assert {*only["unit"]} == {0} and {*pd.concat(timers)["unit"]} == {0, 2}, "unit 2 has no values"


def test_a_million_units_are_looked_at_some_at_a_time(final, monkeypatch):
    whole, timers, one_by_one = [], [], []
    whole += final.parts(timers, ALL_UNITS)
    monkeypatch.setattr(savepoint, "PORTION_UNITS", 1)
    parts = list(final.parts(one_by_one, ALL_UNITS))
    assert len(one_by_one) == 3 and len(timers) == 2
    for some, others in ((parts, whole), (one_by_one, timers)):
        assert pd.concat(some, ignore_index=True).equals(pd.concat(others, ignore_index=True))


def test_units_that_are_large_together_are_looked_at_some_at_a_time_too(monkeypatch):
    store, units = store_of(), [(unit, state(unit)) for unit in range(3)]
    final = ended(monkeypatch, {1: units}, store)
    [place] = write(store, "one", 1, units[:1], 10_000)
    monkeypatch.setattr(savepoint, "PORTION_BYTES", 1.5 * place.length)
    assert [sorted({*part["unit"]}) for part in final.parts([], ALL_UNITS)] == [[0, 1], [2]]


def test_every_savepoint_is_in_it_with_what_was_in_force_and_the_last_one_is_the_final_state(final):
    (counter,) = final.stages
    first, last = counter.ownership.savepoints
    assert (first.name, last.name) == ("savepoint first", "savepoint last")
    assert (last.assignment, sorted(last.units)) == (AFTER, [(0, 2), (1, 1), (2, 1)])
    assert final.offsets == {0: 9} and counter.unit_bytes == {0: 10, 1: 20, 2: 0}
    assert (counter.ownership.left_behind, final.revoked, final.notes) == ({(1, 0)}, {2}, ["late"])
    assert final.planned_s == 0.5 and final.snapshots == ["one that is complete"]


@pytest.mark.parametrize("delivered", [True, False], ids=["lost", "not delivered"])
def test_a_savepoint_that_cannot_be_read_is_told_and_the_last_one_is_judged_all_the_same(monkeypatch, delivered):
    store = store_of()
    if not delivered:
        store.client.rotten.add("savepoints/job/first/manifest.json")
    final = ended(monkeypatch, UNITS, store, gone="first" * delivered)
    assert [each.name for each in final.stages[0].ownership.savepoints] == ["savepoint last"]
    assert list(final.parts([], ALL_UNITS)) and len(final.notes) == 2
    assert "it is not known what was in a savepoint: savepoints/job/first/manifest.json" in final.notes[1]
    with pytest.raises(NotThere):
        ended(monkeypatch, UNITS, store_of(), gone="last")


# -- snapshots ---------------------------------------------------------------------------------------------------------

PARAMETERS = {"key_groups": 8, "keys": 60, "skew": 0.5, "state_bytes": 32, "seed": 3}
KEYED = pa.schema([pa.field("key", pa.int64()), *VALUE])
ROUTERS, FRAMES, BEFORE = 2, 10, 4  # frames of each router, and those before the snapshot
HERE, LATER = Assignment.contiguous(8, 2), Assignment(2, Assignment.contiguous(8, 2).owner)


def parts_of(state):
    return lambda timers, units: (part[units.have(part["unit"])] for part in state)


@pytest.fixture(params=["keycount", "keycount in parts", "micro in parts", "chain in parts"])
def judged(request, monkeypatch):
    """Judges a snapshot of a run, which has the state as a recovery would read it, unless something is changed."""
    name, _, in_parts = request.param.partition(" in ")
    monkeypatch.setattr(verdict, "PART_EVENTS", 50 if in_parts else 1000)
    workload = workloads.get(name)(**PARAMETERS, **({"active_share": 1} if name == "micro" else {}))
    both = [HERE] * BEFORE + [LATER] * (FRAMES - BEFORE)
    run = run_sequentially(workload, both, routers=ROUTERS, frames=FRAMES)
    there = run_sequentially(workload, [HERE], routers=ROUTERS, frames=BEFORE).final
    ownership = Ownership([HERE, LATER], [Inventory("snapshot-a", LATER, list(enumerate(HERE.owner)))])
    stages = [StageEnd(stage.name, ownership, [1], {}, []) for stage in workload.stages]
    cut = FinalState(dict.fromkeys(range(ROUTERS), BEFORE), parts_of(there), stages, (), (), stopped=False)
    frames = run.frames.assign(events=len(run.events) // len(run.frames))

    def judged(**changes):
        final = replace(cut, cuts={"snapshot-a": replace(cut, **changes)})
        return final_state.judged_cuts(workload, run.events, frames, run.results, final)["snapshot-a"]

    judged.in_the_end, judged.parts = run.final, cut.parts
    return judged


def test_a_snapshot_is_right_that_has_what_a_run_up_to_its_offsets_leaves_and_no_other(judged):
    assert judged().ok, judged().examples
    found = judged(parts=parts_of(judged.in_the_end))
    assert found.wrong > 10 and found.lost == found.unexpected == 0
    assert all("final state of key" in line and "expected count" in line for line in found.examples)
    assert judged(offsets=dict.fromkeys(range(ROUTERS), BEFORE + 1)).lost > 0
    assert judged(offsets=dict.fromkeys(range(ROUTERS), BEFORE - 1)).unexpected > 0


def test_of_a_process_that_was_gone_only_snapshots_are_judged_of_which_all_steps_are_known(monkeypatch):
    """It had written down version 2, and moved units with 4; the next one went on with version 9."""
    store = store_of()
    monkeypatch.setattr(final_state, "SavepointStore", lambda *told: store)
    for name, version in (("a", 2), ("b", 3), ("c", 5), ("d", 6), ("e", 11), ("last", 12)):
        name = name if name == "last" else f"snapshot-{name}"
        commit(store, name, Assignment(version, (0,)), {0: write(store, name, "counter-0", [(0, state(0))], 10_000)})
    versions = Assignments(Assignment(version, (0,)) for version in (1, 2, 6, 9, 10, 11))
    final = of_job([Savepoint("last", {}, {"counter": {}})], StageHistory(versions, [1, 9], [], [2]))
    assert list(final.cuts) == ["snapshot-a", "snapshot-b", "snapshot-e"]
    assert final.notes == ["2 snapshots of a process that was gone are not judged: its steps are not known"]


def test_a_snapshot_that_cannot_be_read_is_bad(judged):
    def gone(timers, units):
        raise NotThere("its segment is not there")
        yield

    found = judged(parts=gone)
    assert not found.ok and found.examples == ("wrong: it cannot be read: its segment is not there",)


@pytest.mark.parametrize("times", [1, 2])
def test_a_snapshot_with_a_rotten_segment_is_bad_and_one_connection_that_broke_is_no_damage(judged, times):
    broken, whole = [None] * times, judged.parts

    def breaks_off(timers, units):
        if broken:
            broken.pop()
            raise Damaged("it is damaged")
        yield from whole(timers, units)

    found = judged(parts=breaks_off)
    assert found.ok == (times == 1) and not broken


def test_a_snapshot_is_not_bad_because_the_store_is_away(judged):
    def away(timers, units):
        raise Undelivered("MinIO does not answer")
        yield

    with pytest.raises(Undelivered):
        judged(parts=away)


FIRST, SECOND = "snapshot-000-000001-aa", "snapshot-001-000002-bb"


@pytest.fixture
def store(monkeypatch):
    """Of a job that keeps its snapshots. It has two of them, and the final savepoint."""
    store = store_of()
    monkeypatch.setattr(final_state, "SavepointStore", lambda *told: store)
    whole, change = state(0, keys=3), SnapshotPart(0, 2, 1, state(0, timers=1).timers, None, [(1, (9, b"x"))], [2])
    places = [*write(store, FIRST, "counter-0", [(0, whole)], 10_000)]
    places += store.write(SECOND, "counter-0", [change], KEYED, 10_000)
    for name, version, offset, some, revoked in (
        (FIRST, 2, 5, places[:1], Versions()),
        (SECOND, 5, 8, places, Versions(((2, 4),))),
        ("final", 6, 9, places[:1], Versions()),
    ):
        commit(store, name, Assignment(version, (0,)), {0: some}, offset, revoked=revoked)
    return store


def of_job_that_keeps_them():
    versions = Assignments(Assignment(version, (0,)) for version in range(1, 7))
    return of_job([Savepoint("final", {0: 9}, {"counter": {}})], StageHistory(versions, [1, 4], []), revoked={2, 3})


@pytest.mark.usefixtures("store")
def test_every_snapshot_of_a_job_that_keeps_them_is_in_its_final_state():
    """With what counted then: versions before its own, and results that were not revoked by then."""
    final = of_job_that_keeps_them()
    first, second = final.cuts.values()
    assert list(final.cuts) == [FIRST, SECOND]
    assert final.stopped and not first.stopped
    assert (first.offsets, [*first.revoked], second.offsets, [*second.revoked]) == ({0: 5}, [], {0: 8}, [2, 3])
    one, other = first.stages[0], second.stages[0]
    versions = [[each.version for each in stage.ownership.assignments] for stage in (one, other)]
    assert versions == [[1, 2], [1, 2, 3, 4, 5]]
    assert (one.begins, other.begins) == ([1], [1, 4])
    assert other.ownership.savepoints[0].units == [(0, 0)], "of two parts"
    timers = []
    (found,) = [pd.concat(second.parts(timers, ALL_UNITS))]
    assert dict(zip(found["key"], found["count"], strict=True)) == {0: 0, 1: 9}
    assert len(timers) == 1 and timers[0]["kind"].tolist().count(EVENT) == 1


@pytest.mark.parametrize("broken_off", [False, True])
def test_a_snapshot_whose_manifest_is_damaged_is_bad_and_all_else_is_judged(store, broken_off):
    """A job that could not be stopped for it could never be."""
    manifest = f"savepoints/job/{FIRST}/manifest.json"
    if broken_off:
        store.client.rotten.add(manifest)
    else:
        store.client.objects[manifest] = b"{"
    final = of_job_that_keeps_them()
    assert list(final.cuts) == [FIRST, SECOND] and final.cuts[SECOND].offsets == {0: 8}
    bad = replace(final, cuts={FIRST: final.cuts[FIRST]})
    found = final_state.judged_cuts(None, None, None, None, bad)[FIRST]
    (words,) = found.examples
    why = "answers otherwise" if broken_off else "is no JSON"
    assert found.wrong == 1 and words.startswith("wrong: it cannot be read: ") and why in words


def test_a_segment_that_the_store_does_not_deliver_is_told_to_be_damaged(store):
    first = of_job_that_keeps_them().cuts[FIRST]
    store.client.rotten = {name for name in store.client.objects if not name.endswith("manifest.json")}
    with pytest.raises(Damaged, match="answers otherwise: it is damaged"):
        list(first.parts([], ALL_UNITS))
    store.client.error = ConnectionResetError()
    with pytest.raises(Undelivered):
        list(first.parts([], ALL_UNITS))


def test_while_the_store_is_away_nothing_is_judged(store):
    store.client.error = ConnectionResetError()
    with pytest.raises(ServiceUnavailable):
        of_job_that_keeps_them()
