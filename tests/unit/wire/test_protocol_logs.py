"""How protocol logs come to the job: from tasks that are asked, and from those that have ended."""

import pytest

from keyshift.model.keys import Move, Step
from keyshift.model.records import StepRecord
from keyshift.runtime.protocol_log import EVENTS, ProtocolLog
from keyshift.wire import protocol_logs
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import LOG
from keyshift.wire.protocol_logs import answer, gather, keep, report


def log(place, *events):
    made = ProtocolLog(place)
    for at_us, event, version in events:
        made.note(event, version=version)
        made.stamp(at_us)
    return made


STEP = StepRecord(5, Step((Move(3, 0, 1),)), 10, 20, 21, 30, "complete")


@pytest.fixture
def tasks():
    """Gives a participant; ``logs`` are of the tasks that answer at once."""

    def made(*logs):
        nodes = MemoryCoordination(Memory())
        nodes.begin()
        for each in logs:
            nodes.watch(LOG, lambda question, each=each: answer(nodes, question, each))
        return nodes

    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(protocol_logs, "ANSWER_S", 0.0)


def test_those_of_all_who_answer_and_of_the_coordinator_become_one(tasks):
    nodes = tasks(log("slot-0", (11, "published", 5), (12, "prepared", 5)), log("router-0", (25, "switch", 5)), log(""))
    events = gather(nodes, 3, [STEP], alive=True)
    assert [(e.at_us, e.place, e.event, e.units) for e in events] == [
        (10, "coordinator", "publish", (3,)),
        (11, "slot-0", "published", ()),
        (12, "slot-0", "prepared", ()),
        (21, "coordinator", "switched", (3,)),
        (25, "router-0", "switch", ()),
        (30, "coordinator", "complete", (3,)),
    ]


def test_what_a_router_left_in_earlier_batches_comes_before_what_it_says_now(tasks):
    nodes = tasks(log("router-0", (30, "switch", 5)))
    for at_us in (10, 20):
        keep(nodes, log("router-0", (at_us, "switch", 1)))
    keep(nodes, log(""))
    assert [e.at_us for e in gather(nodes, 1, [], alive=True)] == [10, 20, 30]


def test_what_a_task_tells_that_fails_and_then_ends_is_there_once(tasks, monkeypatch):
    monkeypatch.setattr(protocol_logs, "now_us", lambda: 20)
    nodes, failed = tasks(), log("router-0", (10, "switch", 1))
    failed.note("savepoint")
    report(nodes, failed)
    assert [e.at_us for e in gather(nodes, 1, [], alive=False)] == [10, 20]
    keep(nodes, failed)
    assert [e.at_us for e in gather(nodes, 1, [], alive=False)] == [10, 20]


def test_of_many_batches_of_a_router_the_last_events_are_kept(tasks):
    nodes = tasks()
    for at_us in range(EVENTS + 5):
        keep(nodes, log("router-0", (at_us, "snapshot", 1)))
    assert [e.at_us for e in gather(nodes, 1, [], alive=False)] == list(range(5, EVENTS + 5))


def test_of_a_query_that_is_dead_nobody_is_asked_and_no_task_fails_for_being_without_zookeeper(tasks):
    nodes = tasks(log("slot-1", (30, "barrier", 5)))
    keep(nodes, log("slot-0", (10, "barrier", 5)))
    assert [e.place for e in gather(nodes, 2, [], alive=False)] == ["slot-0"]
    nodes.lose()
    keep(nodes, log("slot-0", (10, "barrier", 5)))
