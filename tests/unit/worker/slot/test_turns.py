"""A slot that works in turns, from batch to batch: what waits in its order machine goes with its state."""

from dataclasses import replace

import pyarrow as pa
import pytest
from small_slots import BEGIN_US

from keyshift.model.errors import KeyshiftError
from keyshift.model.keys import Assignment, Move, SlotId, Step, UnitId
from keyshift.runtime.row import CAPTURE, DATA, SAVEPOINT, Row
from keyshift.wire import nodes
from keyshift.wire.savepoint import SavepointManifest
from waits import until

H = 20_000
BEGIN = BEGIN_US // H * H


@pytest.fixture
def job(make):
    return make(routers=2, ordering="live_robin", heartbeat_us=H)


def data(job, task, router, offset, epoch, keys=()):
    """A frame that closes the epoch; gives the results."""
    rows = job.data(task, list(keys), router=router, watermark=BEGIN + epoch * H, offset=offset)
    return [(row["router"], row["offset"], row["key"]) for row in rows]


@pytest.mark.parametrize("same", [True, False])
def test_rows_of_an_open_turn_are_worked_on_in_the_next_batch_wherever_that_is(job, same):
    here = job.process()
    first, second = job.keys_of(0)[0], job.keys_of(1)[0]
    task = job.settled(here)
    assert data(job, task, 0, 0, 1, [first]) == [], "router 1 has not come so far"
    assert data(job, task, 1, 0, 1, [second]) == [(1, 0, second), (0, 0, first)]
    assert data(job, task, 0, 1, 2, [second]) == []
    assert job.end(task) == []
    assert job.nodes.read(nodes.HANDOVERS[0]).position.turn == 1
    task = job.settled(here if same else None)
    assert data(job, task, 1, 1, 2, [first]) == [(0, 1, second), (1, 1, first)]
    assert data(job, task, 1, 1, 2, [first]) == [], "it was there"


def told(job, batches):
    """Of each frame: its results, and which turn they are of."""
    return [(frame["key"].to_pylist(), facts.turn) for frame, facts in job.frames(batches) if not facts.said]


def closing(job, task, epoch, keys=()):
    """Both routers close the epoch, the first one with ``keys``."""
    batches = []
    for router, mine in enumerate((keys, ())):
        payload = job.events(list(mine), BEGIN + epoch * H)
        row = Row(DATA, router, 1, epoch, BEGIN + epoch * H, pa.py_buffer(payload))
        batches += task.on_rows([row])
    return batches


@pytest.mark.parametrize("replicated", [False, True])
def test_each_frame_says_of_which_turn_it_is_and_one_of_ten_without_results_is_told_to_be_compared(job, replicated):
    if replicated:
        job.config = job.config.of_replica(1)
        job.publish_assignment()
    task = job.settled()
    keys = job.keys_of(0)[:2]
    batches = [each for epoch in range(1, 22) for each in closing(job, task, epoch, keys if epoch == 3 else ())]
    found = told(job, batches)
    quiet = [[], []] if replicated else []
    assert sorted(keys for keys, _ in found) == [*quiet, keys]
    assert [turn.number for _, turn in found] == ([3, 10, 20] if replicated else [3])
    assert [turn.epoch - BEGIN // H for _, turn in found] == [turn.number for _, turn in found]
    assert len({turn.chain for _, turn in found}) == len(found)


def test_behind_a_savepoint_no_turn_is_told(job):
    job.config = job.config.of_replica(0)
    job.publish_assignment()
    task = job.settled()
    closing(job, task, 1)
    for router in range(2):
        payload = b"sp"
        task.on_rows([Row(SAVEPOINT, router, 1, 1, BEGIN + H, pa.py_buffer(payload))])
    batches = [each for epoch in range(2, 32) for each in closing(job, task, epoch)]
    assert told(job, batches) == []


def test_a_slot_with_too_much_that_waits_says_so_and_ends(job, monkeypatch):
    job.config = replace(job.config, queue_bytes=100)
    task = job.settled()
    with pytest.raises(KeyshiftError, match="slot 0: 0 MiB of rows wait for the marks of routers that are behind"):
        data(job, task, 0, 0, 1, job.keys_of(0))


def captured(job, task, offset, name="c"):
    for router in range(2):
        task.on_rows([Row(CAPTURE, router, 1, offset, 0, pa.py_buffer(name.encode()))])
    until(lambda: job.nodes.read(nodes.saved(name)["slot-0"]))
    return job.nodes.read(nodes.saved(name)["slot-0"])


def test_from_a_capture_another_replica_goes_on_with_the_same_turns_and_results(make):
    job = make(slots=1, routers=2, ordering="live_robin", heartbeat_us=H)
    alone, keys = job.config, range(8)
    job.config = alone.of_replica(0)
    job.publish_assignment()
    lives = job.opened(0, job.process())
    closing(job, lives, 1, keys)
    answer = captured(job, lives, 1)
    assert answer.position.turn == 1 and not answer.failed
    first = [each for epoch in (2, 3) for each in closing(job, lives, epoch, keys[epoch:])]
    manifest, store = SavepointManifest("keycount"), job.store()
    said = {"slot-0": answer} | {f"router-{router}": nodes.RouterSaved(2, BEGIN + H) for router in range(2)}
    manifest.add("counter", said, Assignment.contiguous(4, 1))
    store.commit("c", manifest)
    assert (manifest.turns, manifest.watermarks) == ({"counter": {0: 1}}, {0: BEGIN + H, 1: BEGIN + H})
    job.config = replace(alone.of_replica(1), restore="c", restore_of="job-r0")
    job.publish_assignment()
    [place] = store.manifest("c").stages["counter"].placed(1, 2).values()
    job.nodes.publish(nodes.POSITIONS[0], place.under(1))
    returns = job.settled()
    second = [each for epoch in (2, 3) for each in closing(job, returns, epoch, keys[epoch:])]
    assert told(job, second) == told(job, first) and [turn.number for _, turn in told(job, first)] == [2, 3]
    assert job.rows(second) == job.rows(first) and {row["count"] for row in job.rows(second)} == {2, 3}


@pytest.mark.parametrize(("snapshot_s", "again"), [(0.0, True), (10.0, False)], ids=["now and then", "often"])
def test_a_replica_that_writes_its_state_down_often_writes_what_has_changed_and_otherwise_all(make, snapshot_s, again):
    job = make(slots=1, routers=2, ordering="live_robin", heartbeat_us=H, snapshot_s=snapshot_s)
    job.config = job.config.of_replica(0)
    job.publish_assignment()
    task = job.opened(0, job.process())
    closing(job, task, 1, range(8))
    assert captured(job, task, 1, "one").bytes > 0
    until(lambda: not task.snapshots.busy)
    closing(job, task, 2)
    second = captured(job, task, 2, "two")
    assert not second.failed and (second.bytes > 0) is again and len(second.locations) == 4


def test_a_capture_fails_where_a_step_is_under_way_and_the_slot_goes_on(job):
    task = job.settled()
    closing(job, task, 1)
    job.publish(2, Step((Move(UnitId(0), SlotId(0), SlotId(1)),)))
    until(lambda: not task.shared.core.machine.settled)
    assert "state was on its way" in captured(job, task, 1).failed
    keys = job.keys_of(0)
    assert [found for found, _ in told(job, closing(job, task, 2, keys))] == [keys]
