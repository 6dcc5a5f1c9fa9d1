"""Snapshots of one slot, over batches: the whole of ``SlotTask``; the bucket and ZooKeeper are dictionaries."""

import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
from minio.error import MinioException
from small_bucket import read

from keyshift.model.errors import Damaged, ServiceUnavailable
from keyshift.model.keys import Assignment, Move, Step
from keyshift.model.markers import SlotMarker, StateWritten
from keyshift.runtime.snapshots import WHOLE
from keyshift.state.memory import MemoryState
from keyshift.wire import nodes
from keyshift.wire.savepoint import SavepointManifest
from keyshift.worker.slot import snapshots as slot_snapshots
from memory_bucket import MemoryBucket
from waits import until

KEYS = range(8)


@pytest.fixture
def job(make):
    return make(slots=1, routers=2)


def begin(job, version, name):
    job.publish(version, Step((), snapshot=name))


def answer(job, name):
    until(lambda: job.nodes.read(nodes.saved(name)["slot-0"]))
    return job.nodes.read(nodes.saved(name)["slot-0"])


def counts(job, name):
    """What a snapshot has of all keys."""
    by_unit = {}
    for place in answer(job, name).locations:
        by_unit.setdefault(place.unit, []).append(place)
    assert sorted(by_unit) == [0, 1, 2, 3]
    batches = [batch for places in by_unit.values() for batch in read(job.store(), *places)[0]]
    return {row["key"]: row["count"] for batch in batches for row in batch.to_pylist()}


def markers(job, task):
    return [each.said for _, each in job.frames(task.wait()) if each.said and each.said.marker.kind == "sealed"]


def captured(job, task, version, name):
    """The coordinator has begun it, and every slot has captured it; for it the step is over."""
    begin(job, version, name)
    for router in (0, 1):
        job.snapshot(task, version, name, router)
    assert job.nodes.read(nodes.ack(version, "captured", 0)) is not None


def snapshot(job, task, version, name):
    captured(job, task, version, name)
    return counts(job, name)


def test_a_snapshot_has_what_came_before_its_barriers_and_what_comes_behind_waits_for_the_last_one(job):
    task = job.begun(keys=KEYS)
    begin(job, 2, "one")
    until(lambda: job.nodes.read(nodes.ack(2, "prepared", 0)) is not None)
    assert job.snapshot(task, 2, "one", router=0) == []
    assert job.data(task, [0, 1], version=2, router=0) == [], "it is kept back"
    assert len(job.data(task, [0], version=1, router=1)) == 1, "it belongs to the time before"
    results = job.snapshot(task, 2, "one", router=1)
    assert [(row["key"], row["version"]) for row in results] == [(0, 2), (1, 2)]
    assert job.nodes.read(nodes.ack(2, "captured", 0)) is not None
    assert counts(job, "one") == dict.fromkeys(KEYS, 1) | {0: 2}


def test_later_snapshots_write_only_what_has_changed_and_can_be_read_after_a_batch_boundary(job):
    host = job.process()
    task = job.begun(host, KEYS)
    snapshot(job, task, 2, "one")
    first = answer(job, "one")
    job.data(task, [3], version=2)
    assert snapshot(job, task, 3, "two") == dict.fromkeys(KEYS, 1) | {3: 2}
    second = answer(job, "two")
    assert second.bytes < first.bytes / 2 and len(second.locations) == len(first.locations) + 1
    job.end(task)
    task = job.begun(host, version=3)
    job.data(task, [4], version=3)
    assert snapshot(job, task, 4, "three") == dict.fromkeys(KEYS, 1) | {3: 2, 4: 2}
    assert answer(job, "three").bytes < first.bytes / 2, "the state is in the same process"
    job.end(task)
    task = job.begun(version=4)
    assert snapshot(job, task, 5, "four") == dict.fromkeys(KEYS, 1) | {3: 2, 4: 2}
    assert len(answer(job, "four").locations) == 4, "all anew, from another process"


def test_a_snapshot_that_is_to_have_all_state_anew_refers_to_none_before(job):
    task, again = job.begun(keys=KEYS), f"two{WHOLE}"
    snapshot(job, task, 2, "one")
    assert snapshot(job, task, 3, again) == dict.fromkeys(KEYS, 1)
    assert {(place.segment.split("/")[0], place.follows) for place in answer(job, again).locations} == {(again, 0)}


def test_a_snapshot_whose_barriers_do_not_all_come_in_a_batch_fails_in_the_next_one(job):
    host = job.process()
    task = job.begun(host)
    begin(job, 2, "one")
    job.snapshot(task, 2, "one", router=0)
    job.data(task, KEYS, version=2, router=0)
    assert len(job.end(task)) == len(KEYS), "what was kept back is not lost"
    task = job.begun(host, version=2)
    assert "did not come to all routers" in answer(job, "one").failed
    assert job.nodes.read(nodes.ack(2, "captured", 0)) is not None
    assert len(job.data(task, [0], version=2)) == 1


def test_a_slot_does_not_keep_back_more_than_it_may_wait(make):
    job = make(slots=1, routers=2, queue_bytes=10_000)
    task = job.begun()
    begin(job, 2, "one")
    job.snapshot(task, 2, "one", router=0)
    rows = []
    while not rows:
        rows = job.data(task, KEYS, version=2, router=0)
    assert 10_000 / 5000 < len(rows) / len(KEYS) < 10_000 / 2000
    assert "too much waited" in answer(job, "one").failed
    assert job.snapshot(task, 2, "one", router=1) == []


def test_a_batch_does_not_end_before_its_snapshot_is_written_and_said_once(job, monkeypatch):
    task, goes_on, put = job.begun(), threading.Event(), job.bucket.put_object
    monkeypatch.setattr(job.bucket, "put_object", lambda *what, **more: goes_on.wait(60) and put(*what, **more))
    job.data(task, KEYS)
    captured(job, task, 2, "one")
    said = markers(job, task)
    assert not task.settled() and not said
    goes_on.set()
    until(task.settled, lambda: said.extend(markers(job, task)))
    assert said == [SlotMarker(0, StateWritten("counter", "one"))] and not markers(job, task)


@pytest.fixture
def hung(job, monkeypatch):
    """Name of a snapshot -> an event for which the store waits before it takes a segment of it."""
    events, put = {}, job.bucket.put_object

    def slow(bucket, name, *rest, **more):
        for snapshot, event in events.items():
            assert f"/{snapshot}/" not in name or event.wait(60)
        put(bucket, name, *rest, **more)

    monkeypatch.setattr(job.bucket, "put_object", slow)
    yield events
    for event in events.values():
        event.set()


def committed(job, name):
    manifest = SavepointManifest()
    manifest.add("counter", {"slot-0": answer(job, name)}, Assignment(1, (0,) * 4))
    job.store().commit(name, manifest)


def test_while_one_is_being_written_another_one_fails_and_the_next_one_is_right(job, hung):
    """The store hangs for longer than anybody waits: the first one of all, which is large, or a later one."""
    task, all_of = job.begun(), dict.fromkeys(KEYS, 1)
    job.data(task, KEYS)
    for late, failed, following, key in (("one", "two", "three", 3), ("four", "five", "six", 5)):
        version = 2 if late == "one" else 6
        hung[late] = threading.Event()
        if late == "four":
            assert snapshot(job, task, 5, "between") == all_of
            job.data(task, [7], version=5)
            all_of |= {7: 2}
        captured(job, task, version, late)
        job.data(task, [key], version=version)
        captured(job, task, version + 1, failed)
        assert answer(job, failed) == nodes.SlotSaved(failed="the one before is still being written")
        hung[late].set()
        assert counts(job, late) == all_of, "as it was then"
        until(lambda: not task.snapshots.busy)
        job.data(task, [key + 1], version=version + 1)
        all_of |= {key: 2, key + 1: 2}
        assert snapshot(job, task, version + 2, following) == all_of
        committed(job, following)
        until(lambda: not task.snapshots.busy)
    job.end(task)


def test_what_follows_one_that_failed_is_the_whole(job):
    task = job.begun(keys=KEYS)
    snapshot(job, task, 2, "one")
    job.data(task, KEYS, version=2)
    job.bucket.error = MinioException("away")
    until(lambda: not task.snapshots.busy)
    captured(job, task, 3, "two")
    assert "away" in answer(job, "two").failed
    job.bucket.error = None
    until(lambda: not task.snapshots.busy)
    assert snapshot(job, task, 4, "three") == dict.fromkeys(KEYS, 2)
    assert [place.follows for place in answer(job, "three").locations] == [0] * 4, "parts that follow nothing"


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [(MemoryBucket, "put_object", ZeroDivisionError), (MemoryState, "export", Damaged)],
    ids=["nobody has thought of it", "damaged where it lives"],
)
def test_whatever_goes_wrong_while_one_is_written_is_the_tasks(job, monkeypatch, owner, name, error):
    task = job.begun(keys=KEYS)
    monkeypatch.setattr(owner, name, Mock(side_effect=error))
    captured(job, task, 2, "one")
    until(lambda: not task.snapshots.busy)
    with pytest.raises(error):
        task.settled()


def test_what_is_written_so_far_is_told_and_also_its_end(job, hung, monkeypatch):
    monkeypatch.setattr(slot_snapshots, "SAY_S", 0.0)
    task, told = job.begun(), []
    job.nodes.watch(nodes.WRITING[0], told.append)
    job.data(task, KEYS)
    snapshot(job, task, 2, "one")
    until(lambda: told and told[-1].over)
    assert {each.name for each in told} == {"one"}
    assert [each.bytes for each in told] == sorted(each.bytes for each in told)
    assert told[0] == nodes.Writing("one", 0, over=False) and told[-1].bytes == 2 * answer(job, "one").bytes
    told.clear()
    for router in (0, 1):
        job.savepoint(task, "last", router)
    until(lambda: told and told[-1].over)
    assert {each.name for each in told} == {"last"} and len(told) > 4


def test_while_a_savepoint_is_written_no_copy_of_its_state_is_made(make, monkeypatch):
    """Both would read the same dictionaries, and to read may change them."""
    job, writing, looked = make(slots=2), threading.Event(), threading.Event()
    changes, export = MemoryState.changed_keys, MemoryState.export

    def looks(state, who):
        if writing.is_set():
            looked.set()
        return changes(state, who)

    def exported(*what):
        writing.set()
        looked.wait(0.2)
        yield from export(*what)
        writing.clear()

    job.settled(slot=1)
    task = job.begun(keys=job.keys_of(0))
    job.nodes.publish(nodes.COPIES, nodes.CopiesWanted("one", (Move(0, 0, 1),), 0.01, 0, whole=False))
    until(lambda: job.nodes.read(nodes.copied("one")[0]))
    monkeypatch.setattr(MemoryState, "changed_keys", looks)
    monkeypatch.setattr(MemoryState, "export", exported)
    job.savepoint(task)
    assert len(answer(job, "sp").locations) == 2 and not looked.is_set()
    until(looked.is_set, lambda: writing.set())  # copies go on


def stopped_behind_a_snapshot(job):
    task = job.begun(keys=KEYS)
    snapshot(job, task, 2, "one")
    committed(job, "one")
    job.end(task)
    job.nodes.withdraw(nodes.HANDOVERS[0])


def ended(job, deadline_s=0.2):
    """What ends a slot that begins from the snapshot."""
    job.config = replace(job.config, restore="one", deadline_s=deadline_s)
    task = job.opened(0, job.process())
    until(lambda: task.shared.background.error is not None)
    return str(task.shared.background.error)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda objects, name: objects.update({name: objects[name][:-1]}), "does not have its checksum"),
        (lambda objects, name: objects.update({name: b""}), "it is shorter"),
        (lambda objects, name: objects.pop(name), "does not exist"),
    ],
)
def test_a_slot_tells_that_what_it_begins_from_is_not_as_it_was_written(job, spoil, why):
    stopped_behind_a_snapshot(job)
    (segment,) = [name for name in job.bucket.objects if "manifest" not in name]
    spoil(job.bucket.objects, segment)
    assert why in ended(job, deadline_s=3600.0), "nobody waits for what cannot become better"
    said = job.nodes.read(nodes.UNREADABLE[0])
    assert said.name == "one" and why in said.why


@pytest.mark.parametrize("part", ["0-", "manifest"], ids=["a segment", "the manifest"])
def test_a_slot_tells_that_its_store_does_not_deliver_what_it_begins_from_and_answers_otherwise(job, part):
    """MinIO has found that it is damaged."""
    stopped_behind_a_snapshot(job)
    (rotten,) = job.bucket.rotten = {name for name in job.bucket.objects if part in name}
    why = f"{rotten} cannot be read, and the store answers otherwise: it is damaged"
    assert ended(job) == why
    assert job.nodes.read(nodes.UNREADABLE[0]) == nodes.Unreadable("one", why)


@pytest.mark.parametrize("away", ["redis", "MinIO"])
def test_a_service_that_is_away_says_nothing_about_what_a_slot_begins_from(job, monkeypatch, away):
    stopped_behind_a_snapshot(job)
    if away == "redis":
        monkeypatch.setattr(MemoryState, "install", Mock(side_effect=ServiceUnavailable("redis is away")))
    else:
        job.bucket.error = MinioException("MinIO is away")
    assert f"{away} is away" in ended(job)
    assert job.nodes.read(nodes.UNREADABLE[0]) is None
