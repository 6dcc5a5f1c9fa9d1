"""What another process goes on from: what was written last, or if that is damaged, what was written before."""

from types import SimpleNamespace

import pytest

from keyshift.lab.live.failover import Written
from keyshift.lab.live.journal import Journal, journal_from_json, journal_to_json
from keyshift.lab.replicas import failover
from keyshift.lab.replicas.failover import ReplicasFailover, point_of
from keyshift.lab.replicas.resume_points import ResumePoint
from keyshift.model.errors import Damaged, NotThere, ServiceUnavailable
from keyshift.wire.savepoint import SavedStage, Savepoint


def point(of, name, turn):
    return ResumePoint(of, Savepoint(name, {0: 7}, {}, {"counter": {0: turn}}), {}, {}, at=5.0)


BEFORE, LAST = point("run-r1", "capture-1", 40), point("run-r0", "capture-2", 50)


class Bucket:
    """``wrong``: by job and name, what is raised where that is read. ``read``: what was."""

    def __init__(self, **wrong):
        self.wrong, self.read = wrong, []

    def store(self, _, job):
        def manifest(name):
            self.read.append((job, name))
            if isinstance(error := self.wrong.get("manifest"), Exception) and name == LAST.savepoint.name:
                raise error
            return SimpleNamespace(stages={"counter": SavedStage(None, {})})

        def read(units):
            yield []
            if error := self.wrong.get("unit"):
                raise error

        return SimpleNamespace(manifest=manifest, read=read)


def failover_of(*written):
    config = SimpleNamespace(shared="run", token="secret", attempt=3, chain=lambda: [], endpoints=None)
    replica = SimpleNamespace(number=0, job=SimpleNamespace(config=config), began=[])
    replicas = SimpleNamespace(all=[replica], require_driver=lambda: None)
    points = SimpleNamespace(written=written, newest=written[-1] if written else None, kept=())
    return ReplicasFailover(replicas, points, lambda: {"counter": 2}, list, lambda journal, epochs: None), points


def test_a_journal_names_the_last_two_and_what_it_names_stays():
    made, points = failover_of(BEFORE, LAST)
    journal = made.journal()
    assert points.kept == ()
    made.kept()
    assert points.kept == (BEFORE, LAST)
    assert point_of(journal).savepoint == LAST.savepoint and journal.of_replicas.before == BEFORE
    rest = {"began_at": 1.0, "trigger": 2.0, "rates": {}, "migrations": [], "targets": {}}
    read = journal_from_json(journal_to_json(Journal(**vars(journal), **rest)))
    assert read.of_replicas.before == Written("run-r1", BEFORE.savepoint, {}, {})


@pytest.mark.parametrize(
    "wrong", [{"manifest": Damaged("no JSON")}, {"manifest": NotThere("gone")}, {"unit": Damaged("a checksum")}]
)
def test_if_what_was_written_last_is_damaged_the_journal_is_that_of_what_was_written_before(monkeypatch, wrong):
    made, _ = failover_of(BEFORE, LAST)
    monkeypatch.setattr(failover, "SavepointStore", Bucket(**wrong).store)
    journal = made.readable(made.journal())
    assert (journal.of_replicas.of, journal.past.begun_from) == ("run-r1", BEFORE.savepoint)
    assert journal.of_replicas.before is None and journal.of_replicas.requested == {"counter": 2}
    (note,) = journal.past.notes
    assert "capture-2, cannot be read" in note.text and str(*wrong.values()) in note.text
    assert note.text.endswith("the job went on from what was written before, capture-1")


@pytest.mark.parametrize(("written", "read"), [((), 0), ((LAST,), 0), ((BEFORE, LAST), 1)])
def test_otherwise_it_stays_as_it_is_and_is_read_only_if_there_is_another_one(monkeypatch, written, read):
    made, _ = failover_of(*written)
    bucket = Bucket()
    monkeypatch.setattr(failover, "SavepointStore", bucket.store)
    journal = made.journal()
    assert made.readable(journal) is journal
    assert bucket.read == [("run-r0", "capture-2")] * read


def test_a_service_that_is_away_is_no_damage(monkeypatch):
    made, _ = failover_of(BEFORE, LAST)
    monkeypatch.setattr(failover, "SavepointStore", Bucket(manifest=ServiceUnavailable("MinIO")).store)
    with pytest.raises(ServiceUnavailable, match="MinIO"):
        made.readable(made.journal())
