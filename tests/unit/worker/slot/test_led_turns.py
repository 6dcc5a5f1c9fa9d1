"""A slot whose order comes from a leader: what it appends, when it delivers, and what is left at the end of a batch."""

import pyarrow as pa
import pytest
from small_slots import BEGIN_US

from keyshift.ordering import Record
from keyshift.ordering.model import sequence_of
from keyshift.runtime.row import DATA, SAVEPOINT, Row
from keyshift.wire import nodes
from keyshift.worker.slot import opening
from waits import until

H = 20_000


class Following:
    """The log and the election, as the test has them."""

    def __init__(self, _config, slot, offset):
        self.slot, self.offset, self.appended, self.resigned = slot, offset, [], 0
        self.stands, self.closed = True, False
        self.append = self.appended.append

    def works(self, follower, turn):
        self.follower, self.turn = follower, turn
        return ()

    def hear(self, *records):
        with self.turn():
            self.follower.heard(records)

    def elect(self, term):
        with self.turn():
            self.follower.elected(term)

    def resign(self):
        self.resigned += 1

    def withdraw(self):
        self.stands = False

    def close(self):
        self.closed = True


@pytest.fixture
def job(make, monkeypatch):
    monkeypatch.setattr(opening, "Following", Following)
    return make(routers=2, ordering="kazoo", heartbeat_us=H, session_ms=300)


def opened(job):
    task = job.settled()
    return task, task.following


def rows(job, task, router, offset, *keys):
    """A frame of a router has come; gives what is given out."""
    row = Row(DATA, router, 1, offset, BEGIN_US + offset * H, pa.py_buffer(job.events(list(keys), BEGIN_US)))
    return given(job, task.on_rows([row]))


def given(job, batches):
    return [(row["router"], row["offset"], row["key"]) for row in job.rows(batches)]


def test_a_leader_delivers_what_it_has_read_back_and_gives_it_out_with_what_comes_next(job):
    task, log = opened(job)
    assert (log.slot, log.offset) == (0, 0)
    first, second = job.keys_of(0)[0], job.keys_of(1)[0]
    log.elect(3)
    assert log.appended == [Record(3, 0)]
    assert rows(job, task, 0, 0, first) == [], "nobody has ordered it"
    log.hear((0, Record(3, 0)))
    begins, record = log.appended
    assert (record.term, record.number, len(record.entries)) == (3, 1, 1) and record.clock_us > begins.clock_us
    assert given(job, task.wait()) == [], "it is only appended"
    log.hear((1, record))
    assert rows(job, task, 1, 0, second) == [(0, 0, first)]


def test_a_follower_delivers_in_the_order_of_the_log_and_appends_nothing(job):
    task, log = opened(job)
    first, second = job.keys_of(0)[0], job.keys_of(1)[0]
    assert rows(job, task, 0, 0, first) == rows(job, task, 1, 0, second) == []
    log.hear((0, Record(1, 0)), (1, Record(1, 1, BEGIN_US, ((1, 1), (0, 1)))))
    assert given(job, task.wait()) == [(1, 0, second), (0, 0, first)]
    assert log.appended == [] and log.resigned == 0


def test_who_reads_of_a_later_term_stands_again(job):
    _, log = opened(job)
    log.elect(3)
    log.hear((0, Record(4, 0)))
    assert log.resigned == 1
    log.elect(4)
    assert log.resigned == 2, "that term is another one's"


def test_what_was_not_ordered_in_a_batch_is_in_the_next_one_and_the_log_is_read_on(job):
    task, log = opened(job)
    first, second = job.keys_of(0)[0], job.keys_of(1)[0]
    rows(job, task, 0, 0, first)
    log.hear((0, Record(1, 0)), (1, Record(1, 1, BEGIN_US, ((0, 1),))))
    assert rows(job, task, 1, 0, second) == [(0, 0, first)]

    def late():
        assert not log.stands, "another replica may have more to order"
        log.hear((2, Record(1, 2, BEGIN_US, ((1, 1),))))
        log.elect(2)
        assert log.appended == [] and task.shared.core.results == [], "the batch is over"

    assert job.end(task, late) == []
    until(lambda: log.closed)
    assert job.nodes.read(nodes.HANDOVERS[0]).position.log.offset == 1
    task, log = opened(job)
    assert log.offset == 2
    log.hear((2, Record(1, 2, BEGIN_US, ((1, 1),))))
    until(lambda: given(job, task.wait()) == [(1, 0, second)])


def test_a_batch_does_not_end_before_a_barrier_that_all_channels_have(job):
    task, log = opened(job)
    rows(job, task, 0, 0, job.keys_of(0)[0])
    rows(job, task, 1, 0, job.keys_of(1)[0])
    barriers = [Row(SAVEPOINT, router, 1, 0, BEGIN_US, b"name") for router in range(2)]
    task.on_rows(barriers)
    with log.turn():
        assert not task.intake.over() and log.stands
    log.hear((0, Record(1, 0)), (1, Record(1, 1, BEGIN_US, tuple((n, sequence_of(barriers[n])) for n in range(2)))))
    with log.turn():
        assert task.intake.over() and not log.stands
    assert "name" in task.intake.stood


def test_a_barrier_that_a_router_says_in_the_next_batch_is_waited_for_there(job):
    task, log = opened(job)
    rows(job, task, 0, 0, job.keys_of(0)[0])
    task.on_rows([Row(SAVEPOINT, 0, 1, 0, BEGIN_US, b"name")])
    rows(job, task, 1, 0, job.keys_of(1)[0])
    with log.turn():
        assert task.intake.over()
