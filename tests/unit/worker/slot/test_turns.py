"""A slot that works in turns, from batch to batch: what waits in its order machine goes with its state."""

from dataclasses import replace

import pyarrow as pa
import pytest
from small_slots import BEGIN_US, SmallJob, until

from keyshift.model.errors import KeyshiftError
from keyshift.runtime.row import DATA, SAVEPOINT, Row
from keyshift.wire import nodes

H = 20_000
BEGIN = BEGIN_US // H * H


@pytest.fixture
def job(monkeypatch):
    job = SmallJob(monkeypatch, routers=2, ordering="live_robin", heartbeat_us=H)
    yield job
    job.close()


def data(job, task, router, offset, epoch, keys=()):
    """A frame that closes the epoch; gives the results."""
    rows = job.data(task, list(keys), router=router, watermark=BEGIN + epoch * H, offset=offset)
    return [(row["router"], row["offset"], row["key"]) for row in rows]


@pytest.mark.parametrize("same", [True, False])
def test_rows_of_an_open_turn_are_worked_on_in_the_next_batch_wherever_that_is(job, same):
    here = job.process()
    first, second = job.keys_of(0)[0], job.keys_of(1)[0]
    task = job.opened(0, here)
    until(lambda: task.shared.core.machine.settled)
    assert data(job, task, 0, 0, 1, [first]) == [], "router 1 has not come so far"
    assert data(job, task, 1, 0, 1, [second]) == [(1, 0, second), (0, 0, first)]
    assert data(job, task, 0, 1, 2, [second]) == []
    assert job.end(task) == []
    assert job.nodes.read(nodes.HANDOVERS[0]).position.turn == 1
    task = job.opened(0, here if same else job.process())
    until(lambda: task.shared.core.machine.settled)
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
    task = job.opened(0, job.process())
    until(lambda: task.shared.core.machine.settled)
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
    task = job.opened(0, job.process())
    until(lambda: task.shared.core.machine.settled)
    closing(job, task, 1)
    for router in range(2):
        payload = b"sp"
        task.on_rows([Row(SAVEPOINT, router, 1, 1, BEGIN + H, pa.py_buffer(payload))])
    batches = [each for epoch in range(2, 32) for each in closing(job, task, epoch)]
    assert told(job, batches) == []


def test_a_slot_with_too_much_that_waits_says_so_and_ends(job, monkeypatch):
    job.config = replace(job.config, queue_bytes=100)
    task = job.opened(0, job.process())
    until(lambda: task.shared.core.machine.settled)
    with pytest.raises(KeyshiftError, match="slot 0: 0 MiB of rows wait for the marks of routers that are behind"):
        data(job, task, 0, 0, 1, job.keys_of(0))
