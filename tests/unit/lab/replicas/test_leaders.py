"""Who has led, of an order log by hand."""

from types import SimpleNamespace

from keyshift.lab.replicas.leaders import leaders, leading
from keyshift.model import messages
from keyshift.ordering import Record
from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination


def record(replica, *fields):
    return SimpleNamespace(key=str(replica).encode(), value=messages.encode(Record(*fields)))


def test_replicas_are_told_term_by_term_and_what_came_too_late():
    first = [record(0, 1, 0), record(0, 1, 1, 5, ((0, 9),)), record(1, 2, 0), record(0, 1, 2, 6, ((0, 17),))]
    again = [record(0, 1, 0), record(1, 2, 1, 7, ((0, 17),)), record(0, 3, 0)]
    log = SimpleNamespace(records=lambda: [(1, [record(1, 1, 0)]), (0, first), (0, again)])
    told = "leaders, term by term: slot 0: 0, 1, 0; slot 1: 1; records of terms that were over: 2"
    assert leaders(log, {"counter": 2}) == told


def test_slots_of_several_stages_are_told_with_their_stage():
    log = SimpleNamespace(records=lambda: [(0, [record(1, 1, 0)]), (2, [record(0, 1, 0)])])
    told = leaders(log, {"map": 2, "counter": 1})
    assert "term by term: map slot 0: 1; counter slot 0: 0; records" in told


def test_in_each_slot_the_one_leads_that_has_stood_for_longest_of_those_that_live():
    memory = Memory()
    participant = MemoryCoordination(memory, f"{nodes.of_job('run-r1')}/3/map")

    def stand(stage, slot, *candidates):
        for name in candidates:
            memory.put(f"{nodes.of_job('run')}/{nodes.of_order(stage, slot)}/election/{name}", b"")

    stand("map", 0, "2-f00d-0000000004", "0-beef-0000000011")
    stand("counter", 0, "0-0bad-0000000009", "2-cafe-0000000007", "1-dead-0000000002")
    slots = {"map": 1, "counter": 2}
    assert leading(participant, "run", slots, {0, 1, 2}) == {2: 1, 1: 1}, "nobody stands in the last slot"
    assert leading(participant, "run", slots, {0, 2}) == {2: 2}, "the session of one that was killed lasts"
