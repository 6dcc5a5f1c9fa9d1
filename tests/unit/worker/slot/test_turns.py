"""A slot that works in turns, from batch to batch: what waits in its order machine goes with its state."""

from dataclasses import replace

import pytest
from small_slots import BEGIN_US, SmallJob, until

from keyshift.model.errors import KeyshiftError
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


def test_a_slot_with_too_much_that_waits_says_so_and_ends(job, monkeypatch):
    job.config = replace(job.config, queue_bytes=100)
    task = job.opened(0, job.process())
    until(lambda: task.shared.core.machine.settled)
    with pytest.raises(KeyshiftError, match="slot 0: 0 MiB of rows wait for the marks of routers that are behind"):
        data(job, task, 0, 0, 1, job.keys_of(0))
