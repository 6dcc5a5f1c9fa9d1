from dataclasses import astuple
from types import SimpleNamespace

import pytest
from small_bucket import ENDPOINTS, state, store_of

from keyshift.executor.savepoint import Manifest, Savepoint
from keyshift.keys import Assignment
from keyshift.lab import final_state
from keyshift.state.timers import EVENT

AFTER = Assignment(3, (2, 1, 1))


@pytest.fixture
def final(monkeypatch):
    """Of a job with two savepoints, of which the last one has values and timers."""
    store = store_of()
    monkeypatch.setattr(final_state, "SavepointStore", lambda endpoints, job: store)
    for name, assignment in (("first", Assignment(1, (1, 1, 1))), ("last", AFTER)):
        rows = {
            str(slot): [list(astuple(place)) for place in store.write(name, slot, units, 10_000)]
            for slot, units in ((1, [(1, state(1)), (2, state(2, keys=0))]), (2, [(0, state(0, timers=1))]))
        }
        manifest = Manifest()
        manifest.add("counter", {f"slot-{slot}": {"places": of} for slot, of in rows.items()}, assignment)
        store.commit(name, manifest)
    sizes = {"counter": {0: 10, 1: 20, 2: 0}}
    job = SimpleNamespace(
        config=SimpleNamespace(endpoints=ENDPOINTS, job="job"),
        savepoints=[Savepoint("first", {0: 5}, {"counter": {}}), Savepoint("last", {0: 9}, sizes)],
        stages=[SimpleNamespace(name="counter", assignments=[AFTER], begins=[1], records=[])],
        revoked={2},
        troubles=["late"],
        snapshots_taken=["one that is complete"],
    )
    return final_state.of_job(job, {"counter": {"left_behind": {(1, 0)}, "to_move": {1}}}, planned_s=0.5)


def test_the_final_state_has_the_values_and_the_timers_of_every_unit_with_the_slot_that_wrote_it(final):
    timers = []
    parts = list(final.parts(timers))
    assert sorted({(int(p["unit"].iloc[0]), int(p["slot"].iloc[0]), len(p)) for p in parts}) == [(0, 2, 3), (1, 1, 3)]
    found = [(int(t["unit"].iloc[0]), int(t["slot"].iloc[0]), t[t["kind"] == EVENT]["time"].tolist()) for t in timers]
    assert sorted((unit, slot, sorted(times)) for unit, slot, times in found) == [
        (0, 2, [0]),
        (1, 1, [100, 101]),
        (2, 1, [200, 201]),
    ]


def test_every_savepoint_is_in_it_with_what_was_in_force_and_the_last_one_is_the_final_state(final):
    (counter,) = final.stages
    first, last = counter.course.savepoints
    assert (first.name, last.name) == ("savepoint first", "savepoint last")
    assert (last.assignment, sorted(last.units)) == (AFTER, [(0, 2), (1, 1), (2, 1)])
    assert final.offsets == {0: 9} and counter.unit_bytes == {0: 10, 1: 20, 2: 0}
    assert counter.to_move == {1}
    assert (counter.course.left_behind, final.revoked, final.troubles) == ({(1, 0)}, {2}, ["late"])
    assert final.planned_s == 0.5 and final.snapshots == ["one that is complete"]
