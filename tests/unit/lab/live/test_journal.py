"""What is written down of a live job is read as it was."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from keyshift.driver.completed import CompletedSnapshot, CompletedSnapshots
from keyshift.driver.job import Past
from keyshift.driver.stage_history import StageHistory
from keyshift.experiment.commands import Migration
from keyshift.lab.live import failover
from keyshift.lab.live import journal as module
from keyshift.lab.live.failover import JobFailover
from keyshift.lab.live.journal import Journal, JournalWriter, journal_from_json, journal_to_json
from keyshift.lab.plans.stage_plans import PlansPast
from keyshift.model.errors import BadInput, Damaged, InputLost, NotThere, Undelivered
from keyshift.model.keys import NO_VERSION, Assignment, Assignments, Mode, Move, SlotId, Step, UnitId, Versions
from keyshift.model.notes import Note, NoteKind
from keyshift.model.records import StepRecord, UnitCame, UnitLeft, UnitsCame, UnitsLeft
from keyshift.planner import Decision
from keyshift.wire.savepoint import Savepoint

STEP = Step((Move(UnitId(3), SlotId(0), SlotId(1)),), Mode(gate="slots"))
SAVED = Savepoint("0-abc", {0: 7, 1: 8}, {"counter": {3: 12}, "second": {}})
LEFT, CAME = UnitsLeft((UnitLeft(3, 5, 1, 2),)), UnitsCame((UnitCame(3, 4, 5),), 6)
BEGUN = Assignment.contiguous(4, 2)
COUNTER = StageHistory(
    assignments=Assignments([BEGUN, Assignment(2, BEGUN.owner), Assignment(5, (SlotId(1),) * 4)]),
    begins=[0],
    records=[StepRecord(1, STEP, 10, 11, 12, None, "late", {0: LEFT}, {1: CAME}), StepRecord(2, STEP, 20)],
    known_until=[2],
)
PAST = Past(
    stages={"counter": COUNTER, "second": replace(COUNTER, records=[])},
    savepoints=[SAVED],
    snapshots=[CompletedSnapshot("snapshot-1", 2, {0: 3, 1: 4}, 9, {"counter": {0: 20, 3: 30}, "second": {0: 5}})],
    notes=[Note("one line", "counter", NoteKind.MIGRATION), Note("another")],
    revoked=Versions(((2, 3), (5, 9))),
    begun_from=SAVED,
    first_version=1,
)
WHAT = {"stage": "counter", "what": "fluid", "slots": 4, "planned_steps": 3, "planned_moves": 9}
MIGRATION = Migration(number=0, requested_at=2.5, took_s=None, outcome="under way", why=None, **WHAT)
DECISIONS = [(0, Decision(UnitId(3), 1, "hot")), (1, Decision(UnitId(4), None, "put off"))]
JOURNAL = Journal(
    run_id="run",
    token="secret",
    attempt=3,
    slots={"counter": 5, "second": 3},
    past=PAST,
    plans={"counter": PlansPast(2, DECISIONS, {3, 4}), "second": PlansPast(0, [], None)},
    began_at=1.5,
    trigger=0.0,
    rates={"events": 300.0, "other": 20.0},
    migrations=[MIGRATION],
    targets={"counter 0": [0, 1, 2, 3]},
)


@pytest.mark.parametrize(
    "journal",
    [JOURNAL, replace(JOURNAL, past=replace(PAST, begun_from=None, savepoints=[], snapshots=[]), rate_changed=True)],
)
def test_a_journal_is_read_as_it_was_written(journal):
    raw = json.loads(json.dumps({"format": 1} | journal_to_json(journal)))
    assert journal_from_json(raw) == journal


def test_a_journal_says_up_to_where_the_input_is_in_what_it_goes_on_from():
    assert JOURNAL.offsets == {0: 3, 1: 4}
    restarted = replace(JOURNAL, past=replace(PAST, snapshots=[]))
    assert restarted.offsets == SAVED.offsets
    assert replace(JOURNAL, past=replace(PAST, snapshots=[], begun_from=None)).offsets == {}


def failover_of(kept, **config):
    """That of a job whose input Kafka has kept up to this offset."""

    def require_input(offsets):
        if offsets and offsets[0] > kept:
            raise InputLost(f"it ends at offset {kept}")

    output, told = SimpleNamespace(require_input=require_input), SimpleNamespace(endpoints=None, job="run", **config)
    return JobFailover(SimpleNamespace(output=output, config=told), None)


@pytest.mark.parametrize("kept", [6, 5, 4, 2, 0])
def test_what_has_read_events_that_kafka_has_lost_is_left_out_down_to_the_beginning_of_the_input(kept):
    """All results behind what is left are revoked, also those of the events that are lost."""
    some = [replace(PAST.snapshots[0], name=f"snapshot-{at}", offsets={0: at}) for at in (3, 5, 6)]
    past = replace(PAST, snapshots=some, begun_from=replace(SAVED, offsets={0: 1}))
    made, journal = failover_of(kept, keep_snapshots=False), replace(JOURNAL, past=past)
    left = replace(past, snapshots=[each for each in some if each.offsets[0] <= kept])
    gone = [each.name for each in reversed(some) if each not in left.snapshots]
    if not kept:
        left, gone = replace(left, begun_from=None, first_version=NO_VERSION), [*gone, SAVED.name]
    notes = [Note(f"{name} counts no more: it ends at offset {kept}") for name in gone]
    assert made.readable(journal) == replace(journal, past=replace(left, notes=[*past.notes, *notes]))
    assert (made.readable(journal) is journal) is (kept == 6)


@pytest.mark.parametrize("damaged", [None, Damaged("no JSON"), NotThere("gone"), Undelivered("cut off")])
@pytest.mark.parametrize("kept", [6, 5])
def test_where_each_snapshot_is_to_be_judged_none_may_have_read_what_kafka_has_lost_also_if_no_journal_has_it(
    monkeypatch, kept, damaged
):
    """One whose manifest is damaged keeps nobody from going on: its verdict is bad."""

    def manifest(name):
        if name.endswith("1"):
            raise damaged
        return SimpleNamespace(offsets={0: int(name[-1])})

    store = Mock(committed=lambda of: [f"{of}{at}" for at in ((1, 4, 6) if damaged else (4, 6))], manifest=manifest)
    monkeypatch.setattr(failover, "SavepointStore", lambda endpoints, job: store)
    journal = replace(JOURNAL, past=replace(PAST, snapshots=[], begun_from=None))
    with pytest.raises(InputLost) if kept == 5 else nullcontext():
        assert failover_of(kept, keep_snapshots=True).readable(journal) is journal


def test_a_damaged_journal_is_refused_with_the_field_and_without_values():
    raw = journal_to_json(JOURNAL)
    raw["past"]["snapshots"] = "secret"
    with pytest.raises(BadInput, match=r"the journal is damaged: .*past\.snapshots") as refused:
        journal_from_json(raw)
    assert "secret" not in str(refused.value)


def test_one_that_takes_long_is_written_less_often_for_newer_snapshots_alone_or_when_it_has_gone(monkeypatch):
    """It has every step that was ever made, and there is a snapshot every few seconds."""
    clock, kept = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def keep(journal):
        kept.append(journal)
        clock.now += 0.5

    keeper = SimpleNamespace(keep=keep, resumed=None, is_kept=lambda: there)
    writer, there = JournalWriter(keeper, lambda: None, kept.append), True

    def newest(of, snapshots, after_s=0.0):
        clock.now += after_s
        writer.keep(of, snapshots, lambda: (of, snapshots))
        return kept[-1]

    assert newest("begun", 1) == newest("begun", 2) == ("begun", 1)
    assert newest("asked", 2) == newest("asked", 3, after_s=9.9) == ("asked", 2)
    assert newest("asked", 3, after_s=0.2) == ("asked", 3)
    written = len(kept)
    newest("asked", 3, after_s=60.0)
    assert len(kept) == written, "it is there"
    there = False
    newest("asked", 3)
    newest("asked", 3, after_s=9.9)
    assert len(kept) == written + 1, "it was not there any more"


@pytest.mark.parametrize(
    ("past", "superseded"),
    [
        ({}, ["0-a", "1-b"]),
        ({"snapshots": []}, []),
        ({"begun_from": None}, []),
        ({"begun_from": replace(SAVED, name="of another job")}, []),
    ],
    ids=["snapshots came behind a restart", "none came", "no restart", "begun elsewhere"],
)
def test_what_was_written_before_the_last_restart_is_needed_until_a_journal_has_a_snapshot_behind_it(past, superseded):
    names = ("0-a", "1-b", "2-c", "3-of a restart that died")
    made = {"savepoints": [replace(SAVED, name=name) for name in names], "begun_from": replace(SAVED, name="2-c")}
    config = SimpleNamespace(job="job", token="", attempt=4, chain=lambda: [])
    job = SimpleNamespace(
        require_driver=lambda: None,
        config=config,
        past=lambda: replace(PAST, **{**made, **past}),
        snapshots=CompletedSnapshots(),
    )
    failover = JobFailover(job, SimpleNamespace(of={}))
    failover.journal()
    assert job.snapshots.superseded == [], "it is not on disk yet"
    failover.journal_written()
    assert job.snapshots.superseded == superseded
