"""The order log in Kafka and elections in ZooKeeper, as replicas of a slot have them."""

import contextlib
import secrets
import threading

import pytest

from keyshift.model.errors import BadInput
from keyshift.ordering import Record
from keyshift.traffic.topics import Topic
from keyshift.wire.coordination import Coordination
from keyshift.wire.election import Election, candidates, require_session
from keyshift.wire.nodes import of_job
from keyshift.worker.order.log import OrderLog
from waits import until

SESSION_S = 30.0  # the machine may be busy: none is to end by itself
DEADLINE_S = 60.0


def read(log, count):
    found = []
    until(lambda: found.extend(log.read(0.1)) or len(found) >= count)
    return found


class Candidate:
    """Of one replica; ``terms``: in which it has led."""

    def __init__(self, stack, job, replica, sessions):
        self.terms = []
        self.election = Election(stack.zookeeper, "secret", job, ("counter", 0), replica, SESSION_S)
        self.client = sessions[-1]
        works = [(self.election.stand, (self.terms.append,)), (self.election.keep, ())]
        self.threads = [threading.Thread(target=work, args=given, daemon=True) for work, given in works]
        for thread in self.threads:
            thread.start()

    def await_turn(self):
        """Until it stands behind another one, which it watches."""
        until(lambda: self.client._data_watchers)

    def close(self):
        self.election.close()
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def queue(stack, job):
    """Who stands, as the driver of the first replica sees it."""
    with contextlib.closing(Coordination(stack.zookeeper, of_job(f"{job}-r0"), "secret")) as participant:
        return candidates(participant, job, "counter", 0)


@pytest.fixture
def job(stack):
    """A job whose root is there."""
    name = f"test-{secrets.token_hex(4)}"
    root = Coordination(stack.zookeeper, of_job(name), "secret")
    root.begin()
    yield name
    root.close()


def test_one_leads_until_it_resigns_ends_or_has_no_session_and_terms_grow(stack, job, sessions, expire):
    first = Candidate(stack, job, 0, sessions)
    until(lambda: len(first.terms) == 1)
    second = Candidate(stack, job, 1, sessions)
    second.await_turn()
    assert (len(first.terms), second.terms) == (1, []), "the first one is alive"
    assert queue(stack, job) == [0, 1]
    first.election.resign()
    until(lambda: len(second.terms) == 1)
    first.await_turn()
    assert queue(stack, job) == [1, 0]
    expire(second.client)
    until(lambda: len(first.terms) == 2)
    first.close()
    until(lambda: len(second.terms) == 2)
    third = Candidate(stack, job, 2, sessions)
    second.election.withdraw()
    until(lambda: len(third.terms) == 1)
    for each in (second, third):
        each.close()
    [*terms] = first.terms[0], second.terms[0], first.terms[1], second.terms[1], third.terms[0]
    assert terms == sorted(set(terms)) and terms[0] > 0


def test_a_session_shorter_than_two_ticks_is_refused(stack):
    require_session(stack.zookeeper, 1000)
    with pytest.raises(BadInput, match=r"session_ms = 1: ZooKeeper at .* has no session below \d+ ms"):
        require_session(stack.zookeeper, 1)


def test_all_read_what_anybody_has_appended_in_one_order_from_any_place_on(stack):
    topic = Topic.at(stack, f"test-{secrets.token_hex(4)}-order", 2)
    topic.create()
    try:
        logs = [OrderLog(stack, topic.name, 1, 0, replica) for replica in range(2)]
        records = [Record(1, 0), Record(1, 1, 1_700_000_000_000_000, ((0, 9), (1, 17))), Record(2, 0)]
        for number, record in enumerate(records):
            logs[number % 2].append(record)
            for log in logs:
                assert read(log, 1) == [(number, record)]
        later = OrderLog(stack, topic.name, 1, 1, 1)
        assert (later.next, later.end(), logs[0].next) == (1, 3, 3)
        assert read(later, 2) == [(1, records[1]), (2, records[2])] and later.read(0.1) == []
        for log in (*logs, later):
            log.close()
    finally:
        topic.delete()
