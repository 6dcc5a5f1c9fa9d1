"""Who takes snapshots: when one is complete, what it keeps, and what becomes of one that fails."""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_bucket import state, store_of, write
from small_job import CONFIG

from keyshift.driver import snapshotter as module
from keyshift.driver.completed import CompletedSnapshots
from keyshift.driver.questions import Questions
from keyshift.driver.snapshotter import MARK, Snapshotter
from keyshift.model.errors import Deposed, ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Assignment, Step
from keyshift.waiting import wait_until
from keyshift.wire.nodes import STEPS, WRITING, PublishedSteps, RouterSaved, SlotSaved, Writing, saved

OWNERS = {0: (0, 1), 1: (2, 3)}  # units by slot


class Job:
    """Routers and slots that answer at once, and the coordinator that begins what is wanted at once."""

    def __init__(self, store):
        self.store, self.assignment = store, Assignment.contiguous(4, 2)
        self.snapshots, self.late_snapshots, self.answers, self.withdrawn = {}, set(), {}, []
        self.records = {5: "of a step that moves something"}
        self.nodes = {"acks": {"5"}, "savepoints": {"0-of-a-stop"}}  # folders, and what is in them
        self.writing = {}  # what slots say of that
        self.silent, self.failing = set(), {}  # who does not answer, and what who cannot write says
        self.said_by = {0, 1}
        self.under_way = []  # versions
        self.deposed_at = None  # the number of the snapshot at which another driver has claimed the job

    @property
    def log(self):
        return self

    def snapshot(self, name):
        version = self.snapshots[name] = 10 + len(self.snapshots)
        self.nodes["acks"].add(str(version))
        self.nodes["savepoints"].add(name)
        answers = {"router-0": RouterSaved(version)}
        for slot, units in OWNERS.items():
            places = write(self.store, name, slot, [(unit, state(unit)) for unit in units])
            answers[f"slot-{slot}"] = SlotSaved(tuple(places), sum(place.length for place in places))
        answers |= {who: SlotSaved(failed=why) for who, why in self.failing.items()}
        self.answers[saved(name).path] = {who: said for who, said in answers.items() if who not in self.silent}

    def assignment_of(self, version):
        return replace(self.assignment, version=version)

    def said(self, what):
        return self.said_by if what.savepoint in self.snapshots else set()

    def watch_children(self, folder, call):
        call(sorted(self.answers[folder.path]))

    def read_below(self, folder):
        return dict(self.writing) if folder == WRITING else self.answers[folder.path]

    def read(self, node):
        assert node == STEPS
        return PublishedSteps(9 + len(self.snapshots), tuple((version, Step(())) for version in self.under_way), 0, "")

    def children(self, folder):
        return sorted(self.nodes[folder.path])

    def withdraw(self, node):
        folder, _, name = node.path.partition("/")
        self.nodes[folder].discard(name)
        self.withdrawn.append(node.path)

    def check(self):
        pass

    def require_epoch(self):
        if self.deposed_at is not None and len(self.snapshots) >= self.deposed_at:
            raise Deposed("another one drives")


class Stage(SimpleNamespace):
    """As much of one as is asked for; who leads it may change."""

    led = property(lambda stage: stage.made.job)


@pytest.fixture
def made(monkeypatch):
    """``made.complete``, ``made.notes``; ``made.job`` before ``made.begin()``."""
    store = store_of()
    monkeypatch.setattr(module, "SavepointStore", lambda *_: store)
    one = SimpleNamespace(job=Job(store), store=store, notes=[], snapshotters=[])
    one.complete = CompletedSnapshots()

    def begin(deadline_s=10.0, revoked=(), **settings):
        config = replace(CONFIG, snapshot_s=0.02, deadline_s=deadline_s, **settings)
        ask = Questions(SimpleNamespace(participant=one.job, config=config), lambda: None)
        stage = Stage(config=config, name="counter", participant=one.job, ask=ask, made=one)
        snapshotter = Snapshotter(config, [stage], one.job, one.complete, one.notes.append, revoked)
        one.snapshotters.append(snapshotter)
        return snapshotter

    one.begin = begin
    yield one
    for snapshotter in one.snapshotters:
        snapshotter.end()
        snapshotter.join(60)
        assert not snapshotter._thread.is_alive()


def until(done):
    assert wait_until(done, 60, 0.01), "it did not happen"


def test_what_slots_have_acknowledged_stays_while_a_leader_may_wait_for_it(made):
    """One that takes over before the last one has said that the snapshot is over."""
    made.job.under_way = [10]
    made.begin()
    until(lambda: len(made.complete.taken) > 2)
    until(lambda: "acks/11" in made.job.withdrawn)
    assert "acks/10" not in made.job.withdrawn
    made.job.under_way = []
    until(lambda: "acks/10" in made.job.withdrawn)


def test_a_snapshot_has_all_state_and_where_routers_continue(made):
    made.begin()
    until(lambda: made.complete)
    made.snapshotters[0].end()
    snapshot = made.complete[0]
    assert snapshot.version == 10 and snapshot.offsets == {0: 10}
    assert sum(snapshot.unit_bytes["counter"].values()) == snapshot.bytes > 0
    first = made.complete.taken[0]
    assert len(made.complete.taken) == len(made.complete) and 0 < first.begun_us <= first.completed_us
    assert first.written == first.state == {"counter": snapshot.bytes}
    manifest = made.store.manifest(made.complete[-1].name)
    assert manifest.workload == CONFIG.workload
    assert manifest.stages["counter"].assignment.owner == (0, 0, 1, 1)
    assert sorted(made.store.places(made.complete[-1].name, "counter")) == [0, 1, 2, 3]
    assert made.notes == []


def test_the_two_newest_are_kept_and_their_nodes_go(made):
    made.begin()
    until(lambda: len(made.complete.taken) > 3)
    made.snapshotters[0].end()
    made.snapshotters[0]._thread.join(60)
    kept = {name.split("/")[2] for name in made.store._bucket._client.objects}
    assert {snapshot.name for snapshot in made.complete} <= kept and len(made.complete) == 2
    assert len(kept) <= 3, "the last one may have come to its end just now"
    first = next(iter(made.job.snapshots))
    assert f"savepoints/{first}" in made.job.withdrawn and "acks/10" in made.job.withdrawn
    assert "acks/5" not in made.job.withdrawn and "savepoints/0-of-a-stop" not in made.job.withdrawn


def test_what_a_journal_has_is_not_removed_before_another_one_is_on_disk(made):
    made.begin()
    until(lambda: made.complete)
    first = made.complete[0].name
    made.complete.for_journal()
    until(lambda: len(made.complete.taken) > 4)
    assert sorted(made.store.places(first, "counter")) == [0, 1, 2, 3]
    made.complete.journaled([])
    until(lambda: not any(first in name for name in made.store._bucket._client.objects))


def test_nodes_of_one_that_failed_go_with_the_next(made):
    made.job.failing = {"slot-1": "MinIO is away"}
    made.begin()
    until(lambda: made.notes)
    failed = next(iter(made.job.snapshots))
    until(lambda: failed not in made.job.nodes["savepoints"] and "10" not in made.job.nodes["acks"])


def test_one_that_is_being_written_is_waited_for_however_long_it_takes(made):
    """The deadline is for silence."""
    sizes = itertools.count()
    slow, there = made.job.read_below, threading.Event()

    def read_below(folder):
        if folder == WRITING:
            return {} if there.is_set() else {"1": Writing("first", next(sizes))}
        return slow(folder)

    made.job.read_below = read_below
    made.job.silent = {"slot-1"}
    watched = []

    def watch_children(folder, call):
        watched.append((folder.path, call))
        call(sorted(made.job.answers[folder.path]))

    made.job.watch_children = watch_children
    there.set()
    made.begin(deadline_s=0.3)
    until(lambda: watched)
    there.clear()
    assert not wait_until(lambda: made.notes, 1.0, 0.01), "more than its deadline"
    path, call = watched[0]
    name = path.split("/")[1]
    made.job.silent = set()
    made.job.snapshots.clear()
    made.job.snapshot(name)
    there.set()
    call(sorted(made.job.answers[path]))
    until(lambda: made.complete)
    assert not made.notes


def test_none_is_requested_while_one_that_was_given_up_is_being_written(made):
    made.job.silent = {"slot-1"}
    made.job.writing = {"1": Writing("first", 7, over=True)}
    made.begin(deadline_s=0.1)
    until(lambda: made.job.snapshots)
    made.job.writing = {"1": Writing("second", 7)}
    until(lambda: made.notes)
    asked = len(made.job.snapshots)
    assert not wait_until(lambda: len(made.job.snapshots) > asked, 0.5, 0.01)
    made.job.silent, made.job.writing = set(), {"1": Writing("second", 9, over=True)}
    until(lambda: made.complete)


def test_a_snapshot_whose_parts_do_not_fit_together_is_told_and_ends_the_job(made, monkeypatch):
    """Something is wrong with keyshift then: to go on in silence would be to have no snapshots."""
    monkeypatch.setitem(OWNERS, 1, (2,))
    snapshotter = made.begin()
    until(lambda: not snapshotter._thread.is_alive())
    assert "ProtocolViolation" in made.notes[0] and "there are no more snapshots" in made.notes[0]
    assert not made.complete
    with pytest.raises(ProtocolViolation, match=r"units \[3\] of counter are missing"):
        snapshotter.check()


def test_those_that_are_to_be_judged_are_all_kept_with_what_was_revoked_by_then(made):
    made.begin(revoked={7, 5}, keep_snapshots=True)
    until(lambda: len(made.complete.taken) > 3)
    made.snapshotters[0].end()
    made.snapshotters[0]._thread.join(60)
    names = [record.name for record in made.complete.taken]
    assert made.store.committed(MARK)[: len(names)] == names
    assert made.store.manifest(names[0]).revoked == [5, 7]


def test_a_snapshot_does_not_exist_before_the_results_before_it_have_come_out(made):
    made.job.said_by = {0}
    made.begin()
    until(lambda: made.job.snapshots)
    threading.Event().wait(0.2)
    assert not made.complete
    assert not [name for name in made.store._bucket._client.objects if "manifest" in name]
    made.job.said_by = {0, 1}
    until(lambda: made.complete)


def test_a_slot_that_cannot_write_is_named_and_the_next_snapshot_is_taken(made):
    made.job.failing = {"slot-1": "MinIO is away"}
    made.begin()
    until(lambda: made.notes)
    assert made.notes[0] == "snapshot 1: slot-1 of counter: MinIO is away; the job goes on, the one before counts"
    made.job.failing = {}
    until(lambda: made.complete)


def test_a_snapshot_that_the_coordinator_has_given_up_is_not_waited_for(made):
    made.job.silent = {"slot-1"}
    made.begin()
    until(lambda: made.job.snapshots)
    made.job.late_snapshots = set(made.job.snapshots)
    until(lambda: made.notes)
    assert "snapshot 1: not every slot of counter was ready within 10 s" in made.notes[0]
    made.job.silent = set()
    until(lambda: made.complete)


def test_who_does_not_answer_is_named(made):
    made.job.silent = {"slot-1"}
    made.begin(deadline_s=0.1)
    until(lambda: made.notes)
    assert made.notes[0].startswith("snapshot 1: snapshot 1 of counter: slot-1 did not answer within 0.1 s")


def test_behind_the_end_nothing_becomes_complete(made):
    made.job.said_by = set()
    snapshotter = made.begin()
    until(lambda: made.job.snapshots)
    snapshotter.end()
    made.job.said_by = {0, 1}
    snapshotter._thread.join(60)
    assert not made.complete and not made.notes


def test_a_successor_of_the_coordinator_is_asked_again(made):
    first, wanted = made.job, []
    first.snapshot = wanted.append
    made.begin()
    until(lambda: wanted)
    made.job = Job(made.store)
    first.watch_children, first.read_below = made.job.watch_children, made.job.read_below
    first.said = made.job.said
    until(lambda: made.complete)
    assert made.complete[0].name == wanted[0]


def test_a_store_that_is_away_costs_only_the_snapshot(made):
    made.begin()
    until(lambda: made.complete)
    made.store._bucket._client.error = OSError("away")
    made.job.snapshot = lambda name: (_ for _ in ()).throw(ServiceUnavailable("nothing can be written"))
    until(lambda: made.notes)
    assert "nothing can be written" in made.notes[0]


def test_a_driver_that_was_deposed_commits_and_removes_nothing_and_says_nothing_of_it(made):
    made.job.deposed_at = 4
    snapshotter = made.begin()
    until(lambda: not snapshotter._thread.is_alive())
    committed = {name.split("/")[2] for name in made.store._bucket._client.objects if "manifest" in name}
    assert [snapshot.name for snapshot in made.complete] == list(made.job.snapshots)[1:3]
    assert committed == {snapshot.name for snapshot in made.complete}
    assert made.notes == []
    with pytest.raises(Deposed):
        snapshotter.check()


def test_a_driver_that_is_deposed_while_it_commits_removes_nothing(made):
    """What it would remove is older than its own, and the other one may have begun from there."""
    snapshotter = made.begin()
    until(lambda: len(made.complete) > 1)
    commit = made.store.commit

    def commit_then_lose(*arguments, **more):
        commit(*arguments, **more)
        made.job.deposed_at = 0

    made.store.commit = commit_then_lose
    until(lambda: not snapshotter._thread.is_alive())
    before = {snapshot.name for snapshot in made.complete}
    assert before <= {name.split("/")[2] for name in made.store._bucket._client.objects}
