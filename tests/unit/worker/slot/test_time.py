"""How time passes in a slot at a savepoint and from one batch to the next."""

import time

import pytest
from small_bucket import read
from small_job import CONFIG

from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.nodes import saved
from keyshift.workloads.windowcount.operator import ANSWER, WINDOW
from waits import until

MS = 1000
TIMED = {
    "workload": "windowcount",
    "stage": "windows",
    "parameters": CONFIG.parameters | {"window_ms": 20, "delay_ms": 10, "idle_ms": 60_000},
}


@pytest.fixture
def job(make):
    return make(routers=2, slots=1, **TIMED)


@pytest.fixture
def host(job):
    return job.process()


def opened(job, host, *watermarks):
    """The slot in a new batch, with the rows that each router begins with."""
    task = job.begun(host)
    for router, watermark in enumerate(watermarks):
        job.tick(task, watermark, router)
    return task


def written(job, task):
    """The kinds of the timers that are in the savepoint, once the slot has said that it is written; and its results
    meanwhile.
    """
    frames = []
    until(
        lambda: any(facts.said and facts.said.marker.kind == "sealed" for _, facts in frames),
        lambda: frames.extend(job.frames(task.wait())),
    )
    *_, (_, last) = frames
    assert last.said.marker.kind == "sealed", "behind the results"
    places = job.nodes.read(saved("sp")["slot-0"]).locations
    assert len(places) == 4
    kinds = [kind for place in places for kind in read(job.store(), place)[1]["kind"].to_pylist()]
    return kinds, [row for frame, _ in frames for row in frame.to_pylist()]


def of_kind(results, kind):
    return [row for row in results if row["kind"] == kind]


def test_time_goes_on_in_the_next_batch_where_it_was(job, host):
    task = opened(job, host, 1000 * MS, 1000 * MS)
    first = job.data(task, [1], watermark=1010 * MS, at=1005 * MS) + job.end(task)
    task = opened(job, host)
    second = job.data(task, [2], watermark=1020 * MS, at=985 * MS) + job.end(task)
    assert [row["watermark"] for row in of_kind(first + second, ANSWER)] == [1000 * MS] * 2
    assert of_kind(second, ANSWER)[0]["late"]


def test_what_is_due_at_a_savepoint_is_done_before_the_state_is_written_and_its_results_come_first(job, host):
    task = opened(job, host)
    results = job.tick(task, 1000 * MS, router=1)
    results += job.data(task, range(8), watermark=1000 * MS, at=1005 * MS)  # of windows that close at 1030
    results += job.tick(task, 1100 * MS) + job.savepoint(task)
    results += job.tick(task, 1029 * MS, router=1)
    results += job.tick(task, 1050 * MS, router=1)
    assert not of_kind(results, WINDOW), "a router stands at the savepoint"
    fired = job.savepoint(task, router=1)
    kinds, more = written(job, task)
    assert {row["watermark"] for row in of_kind(fired + more, WINDOW)} == {1050 * MS}
    assert len(of_kind(fired + more, WINDOW)) == 8 and len(results + fired + more) == 16
    assert EVENT not in kinds


def test_nothing_happens_behind_a_savepoint_whose_barriers_come_again_in_the_next_batch(job, host, monkeypatch):
    task = opened(job, host, 1000 * MS, 1000 * MS)
    job.data(task, range(8), watermark=1010 * MS, at=1005 * MS)
    for router in (0, 1):
        job.savepoint(task, router=router)
    assert written(job, task)[0].count(PROCESSING) == 8
    job.end(task)
    for module in ("slot.intake", "slot.task", "state.arrivals"):
        monkeypatch.setattr(f"keyshift.worker.{module}.now_us", lambda: time.time_ns() // 1000 + 120_000 * MS)
    task, results = opened(job, host), []  # two minutes later
    for router in (0, 1):
        results += job.savepoint(task, router=router) + job.tick(task, 2000 * MS, router)
    assert not results + job.end(task)
