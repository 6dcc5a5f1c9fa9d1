"""Snapshots of one slot, over batches: the whole of ``SlotTask``; the bucket and ZooKeeper are dictionaries."""

import threading

import pytest
from minio.error import MinioException
from small_slots import SmallJob, until

from keyshift import frames
from keyshift.executor.config import result_schema
from keyshift.executor.savepoint import Location
from keyshift.keys import Step

KEYS = range(8)


@pytest.fixture
def job(monkeypatch):
    made = SmallJob(monkeypatch, slots=1, routers=2)
    yield made
    made.close()


def begin(job, version, name):
    job.publish(version, Step((), snapshot=name))


def opened(job, host, batch="0", version=1):
    task = job.opened(0, host, batch)
    for router in (0, 1):
        job.barrier(task, version, router=router)
    return task


def answer(job, name):
    until(lambda: job.nodes.get(f"savepoints/{name}/slot-0"))
    return job.nodes.get(f"savepoints/{name}/slot-0")


def counts(job, name):
    """What a snapshot has of all keys."""
    by_unit = {}
    for row in answer(job, name)["places"]:
        by_unit.setdefault(row[0], []).append(Location(*row))
    assert sorted(by_unit) == [0, 1, 2, 3]
    batches = [batch for places in by_unit.values() for batch in job.store().read(*places)[0]]
    return {row["key"]: row["count"] for batch in batches for row in batch.to_pylist()}


def markers(job, task):
    schema = result_schema(job.workload.stages[0])
    return [meta for value in task.wait() if (meta := frames.decode(value, schema)[1]).get("marker") == "sealed"]


def snapshot(job, task, version, name):
    begin(job, version, name)
    for router in (0, 1):
        job.snapshot(task, version, name, router)
    return counts(job, name)


def test_a_snapshot_has_what_came_before_its_barriers_and_what_comes_behind_waits_for_the_last_one(job):
    task = opened(job, job.process())
    job.data(task, KEYS)
    begin(job, 2, "one")
    until(lambda: job.nodes.get("acks/2/prepared-0") is not None)
    assert job.snapshot(task, 2, "one", router=0) == []
    assert job.data(task, [0, 1], version=2, router=0) == [], "it is kept back"
    assert len(job.data(task, [0], version=1, router=1)) == 1, "it belongs to the time before"
    results = job.snapshot(task, 2, "one", router=1)
    assert [(row["key"], row["version"]) for row in results] == [(0, 2), (1, 2)]
    assert job.nodes.get("acks/2/captured-0") is not None
    assert counts(job, "one") == dict.fromkeys(KEYS, 1) | {0: 2}


def test_it_is_said_behind_the_results_when_it_is_written(job):
    task = opened(job, job.process())
    job.data(task, KEYS)
    snapshot(job, task, 2, "one")
    said = []
    until(lambda: said, lambda: said.extend(markers(job, task)))
    assert said == [{"marker": "sealed", "savepoint": "one", "stage": "counter", "slot": 0}]
    assert markers(job, task) == [], "once"


def test_later_snapshots_write_only_what_has_changed_and_can_be_read_after_a_batch_boundary(job):
    host = job.process()
    task = opened(job, host)
    job.data(task, KEYS)
    snapshot(job, task, 2, "one")
    first = answer(job, "one")
    job.data(task, [3], version=2)
    assert snapshot(job, task, 3, "two") == dict.fromkeys(KEYS, 1) | {3: 2}
    second = answer(job, "two")
    assert second["bytes"] < first["bytes"] / 2 and len(second["places"]) == len(first["places"]) + 1
    job.end(task)
    task = opened(job, host, "1", version=3)
    job.data(task, [4], version=3)
    assert snapshot(job, task, 4, "three") == dict.fromkeys(KEYS, 1) | {3: 2, 4: 2}
    assert answer(job, "three")["bytes"] < first["bytes"] / 2, "the state is in the same process"
    job.end(task)
    task = opened(job, job.process(), "2", version=4)
    until(lambda: task._core.machine.settled)
    assert snapshot(job, task, 5, "four") == dict.fromkeys(KEYS, 1) | {3: 2, 4: 2}
    assert len(answer(job, "four")["places"]) == 4, "all anew, from another process"


def test_a_snapshot_that_cannot_be_written_fails_and_the_slot_goes_on(job):
    task = opened(job, job.process())
    job.data(task, KEYS)
    snapshot(job, task, 2, "one")
    job.data(task, [3], version=2)
    job.bucket.error = MinioException("away")
    begin(job, 3, "two")
    for router in (0, 1):
        job.snapshot(task, 3, "two", router)
    assert "away" in answer(job, "two")["failed"]
    job.bucket.error = None
    job.data(task, [4], version=3)
    assert snapshot(job, task, 4, "three") == dict.fromkeys(KEYS, 1) | {3: 2, 4: 2}


def test_a_snapshot_whose_barriers_do_not_all_come_in_a_batch_fails_in_the_next_one(job):
    host = job.process()
    task = opened(job, host)
    begin(job, 2, "one")
    job.snapshot(task, 2, "one", router=0)
    job.data(task, KEYS, version=2, router=0)
    assert len(job.end(task)) == len(KEYS), "what was kept back is not lost"
    task = opened(job, host, "1", version=2)
    assert "did not come to all routers" in answer(job, "one")["failed"]
    assert job.nodes.get("acks/2/captured-0") is not None
    assert len(job.data(task, [0], version=2)) == 1


def test_a_slot_does_not_keep_back_more_than_it_may_wait(monkeypatch):
    job = SmallJob(monkeypatch, slots=1, routers=2, queue_bytes=10_000)
    try:
        task = opened(job, job.process())
        begin(job, 2, "one")
        job.snapshot(task, 2, "one", router=0)
        rows = []
        while not rows:
            rows = job.data(task, KEYS, version=2, router=0)
        assert 10_000 / 5000 < len(rows) / len(KEYS) < 10_000 / 2000
        assert "too much waited" in answer(job, "one")["failed"]
        assert job.snapshot(task, 2, "one", router=1) == []
    finally:
        job.close()


def test_a_batch_does_not_end_before_its_snapshot_is_written(job, monkeypatch):
    task, goes_on, put = opened(job, job.process()), threading.Event(), job.bucket.put_object
    monkeypatch.setattr(job.bucket, "put_object", lambda *what, **more: goes_on.wait(60) and put(*what, **more))
    job.data(task, KEYS)
    begin(job, 2, "one")
    for router in (0, 1):
        job.snapshot(task, 2, "one", router)
    said = markers(job, task)
    assert not task.settled() and not said
    goes_on.set()
    until(task.settled, lambda: said.extend(markers(job, task)))
    assert len(said) == 1
