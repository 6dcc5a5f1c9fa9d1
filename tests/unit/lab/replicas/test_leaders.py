"""Who has led, of an order log by hand."""

from types import SimpleNamespace

from keyshift.lab.replicas.leaders import leaders
from keyshift.model import messages
from keyshift.ordering import Record


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
