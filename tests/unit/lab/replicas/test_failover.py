"""What another process goes on from: what was written last, or if that is damaged, what was written before."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from keyshift.lab.live.failover import Written
from keyshift.lab.live.journal import Journal, journal_from_json, journal_to_json
from keyshift.lab.replicas import failover
from keyshift.lab.replicas.failover import ReplicasFailover, point_of
from keyshift.lab.replicas.resume_points import ResumePoint, ResumePoints
from keyshift.model.errors import Damaged, InputLost, NotThere, ServiceUnavailable, Undelivered
from keyshift.ordering.model import LogPlace
from keyshift.traffic.copies import Superseded
from keyshift.wire.savepoint import Savepoint


def point(of, name, turn):
    return ResumePoint(of, Savepoint(name, {0: 7}, {}, {"counter": {0: turn}}), {}, {}, at=5.0)


OLD, BEFORE, LAST = point("run-r1", "capture-0", 30), point("run-r1", "capture-1", 40), point("run-r0", "capture-2", 50)


@pytest.fixture
def stores(monkeypatch):
    """Of what jobs have written."""
    made = Mock()
    monkeypatch.setattr(failover, "SavepointStore", made)
    return made


def failover_of(*written, kept=9, order=None):
    """``kept``: records of the input that Kafka has."""

    def require_input(offsets):
        if offsets[0] > kept:
            raise InputLost(f"it ends at offset {kept}")

    config = SimpleNamespace(shared="run", token="secret", attempt=3, chain=lambda: [], endpoints=None)
    replica = SimpleNamespace(number=0, job=SimpleNamespace(config=config), began=[])
    traffic = SimpleNamespace(require_input=require_input, result_logs=[SimpleNamespace(ends=lambda: {0: 5})])
    replicas = SimpleNamespace(all=[replica], require_driver=lambda: None, traffic=traffic, order=order)
    points = ResumePoints(replicas, 0.0, None, set, print)
    points.written = written
    return ReplicasFailover(replicas, points, lambda: {"counter": 2}, list, lambda journal, epochs: None), points


def test_a_journal_names_the_last_two_and_what_it_names_stays():
    made, points = failover_of(BEFORE, LAST)
    points.in_journals = (OLD,)
    journal = made.journal()
    assert points.in_journals == (OLD, BEFORE, LAST), "either journal may be on disk"
    made.journal_written()
    assert points.in_journals == (BEFORE, LAST)
    assert point_of(journal).savepoint == LAST.savepoint and journal.of_replicas.before == BEFORE
    rest = {"began_at": 1.0, "trigger": 2.0, "rates": {}, "migrations": [], "targets": {}}
    read = journal_from_json(journal_to_json(Journal(**vars(journal), **rest)))
    assert read.of_replicas.before == Written("run-r1", BEFORE.savepoint, {}, {})


@pytest.mark.parametrize("wrong", [Damaged("a checksum"), NotThere("gone"), Undelivered("cut off")])
def test_if_what_was_written_last_is_damaged_the_journal_is_that_of_what_was_written_before(stores, wrong):
    made, _ = failover_of(BEFORE, LAST)
    stores.return_value.require_whole.side_effect = wrong
    journal = made.readable(made.journal())
    assert (journal.of_replicas.of, journal.past.begun_from) == ("run-r1", BEFORE.savepoint)
    assert journal.of_replicas.before is None and journal.of_replicas.requested == {"counter": 2}
    (note,) = journal.past.notes
    assert "capture-2, cannot be read" in note.text and str(wrong) in note.text
    assert note.text.endswith("the job went on from what was written before, capture-1")


@pytest.mark.parametrize(("written", "read"), [((), 0), ((LAST,), 0), ((BEFORE, LAST), 1)])
def test_otherwise_it_stays_as_it_is_and_is_read_only_if_there_is_another_one(stores, written, read):
    made, _ = failover_of(*written)
    journal = made.journal()
    assert made.readable(journal) is journal
    assert stores.mock_calls == [call(None, "run-r0"), call().require_whole("capture-2")] * read


LOST = "what was written last, capture-{}, counts no more (it ends at offset {})"
TO_BEFORE, TO_BEGIN = "what was written before, capture-1", "the beginning of the input"


@pytest.mark.parametrize(
    ("kept", "left", "words"),
    [
        (7, BEFORE, f"{LOST.format(2, 7)}; the job went on from {TO_BEFORE}"),
        (6, None, f"{LOST.format(2, 6)}; {LOST.format(1, 6)}; the job went on from {TO_BEGIN}"),
    ],
)
def test_what_has_read_events_that_kafka_has_lost_counts_no_more(stores, kept, left, words):
    last = replace(LAST, savepoint=replace(LAST.savepoint, offsets={0: 8}))
    made, _ = failover_of(BEFORE, last, kept=kept)
    journal = made.readable(made.journal())
    assert journal.past.begun_from == (left and left.savepoint) and journal.of_replicas.before is None
    assert (journal.of_replicas.of, [note.text for note in journal.past.notes]) == (left.of if left else "", [words])
    superseded = Superseded(({0: 5},), left.savepoint.turns if left else {})
    assert made.supersede(journal) == [superseded], "all behind that comes once more"
    longer = replace(journal.of_replicas, superseded=[superseded._replace(ends=({0: 8},))])
    again = made.supersede(replace(journal, of_replicas=longer))
    assert again == [superseded, superseded], "the end of that log is lost, too, and another process gives what comes"


@pytest.mark.parametrize("end", [3, 4])
def test_what_has_read_more_of_the_order_log_than_kafka_has_kept_counts_no_more(stores, end):
    position = SimpleNamespace(log=LogPlace(3, 1, 2))
    stage = SimpleNamespace(positions={0: position})
    stores.return_value.manifest.return_value = SimpleNamespace(stages={"counter": stage})
    made, _ = failover_of(LAST, order=SimpleNamespace(ends=lambda: {0: end}))
    journal = made.readable(made.journal())
    assert journal.past.begun_from == (LAST.savepoint if end == 4 else None)


def test_a_service_that_is_away_is_no_damage(stores):
    made, _ = failover_of(BEFORE, LAST)
    stores.return_value.require_whole.side_effect = Undelivered("MinIO")
    stores.return_value.committed.side_effect = ServiceUnavailable("nor this")
    with pytest.raises(ServiceUnavailable, match="MinIO"):
        made.readable(made.journal())
