"""Who takes snapshots: when one is complete, what it keeps, and what becomes of one that fails."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_bucket import state, store_of
from small_job import CONFIG

from keyshift.errors import Deposed, ServiceUnavailable
from keyshift.executor import snapshotter as module
from keyshift.executor.snapshotter import Snapshotter
from keyshift.keys import Assignment, Move, SlotId, Step
from keyshift.waiting import wait_until

OWNERS = {0: (0, 1), 1: (2, 3)}  # units by slot

STEP = Step((Move(1, SlotId(0), SlotId(1)),))


class Job:
    """Routers and slots that answer at once, and the coordinator that begins what is wanted at once."""

    def __init__(self, store):
        self.store, self.assignment = store, Assignment.contiguous(4, 2)
        self.snapshots, self.late_snapshots, self.answers, self.withdrawn = {}, set(), {}, []
        self.to_come = dict.fromkeys(range(10, 1000), (STEP,))  # every one comes in the middle of a plan
        self.silent, self.failing = set(), {}  # who does not answer, and what who cannot write says
        self.said_by = {0, 1}
        self.under_way = []  # versions
        self.deposed_at = None  # the number of the snapshot at which another driver has claimed the job

    def snapshot(self, name):
        version = self.snapshots[name] = 10 + len(self.snapshots)
        answers = {"router-0": {"offset": version}}
        for slot, units in OWNERS.items():
            places = self.store.write(name, slot, [(unit, state(unit)) for unit in units], 100)
            rows = [[p.unit, p.segment, p.offset, p.length, p.crc] for p in places]
            answers[f"slot-{slot}"] = {"places": rows, "bytes": sum(place.length for place in places)}
        answers |= {who: {"failed": why} for who, why in self.failing.items()}
        self.answers[f"savepoints/{name}"] = {who: said for who, said in answers.items() if who not in self.silent}

    def assignment_of(self, version):
        return replace(self.assignment, version=version)

    def said(self, what):
        return self.said_by if what["savepoint"] in self.snapshots else set()

    def watch_children(self, path, call):
        call(sorted(self.answers[path]))

    def read_below(self, path):
        return self.answers[path]

    def read(self, path):
        return {"steps": [{"version": version} for version in self.under_way]} if path == "steps" else None

    def withdraw(self, path):
        self.withdrawn.append(path)

    def check(self):
        pass

    def require_epoch(self):
        if self.deposed_at is not None and len(self.snapshots) >= self.deposed_at:
            raise Deposed("another one drives")


@pytest.fixture
def made(monkeypatch):
    """``made.complete``, ``made.troubles``; ``made.job`` before ``made.begin()``."""
    store = store_of()
    monkeypatch.setattr(module, "SavepointStore", lambda *_: store)
    one = SimpleNamespace(job=Job(store), store=store, complete=[], taken=[], troubles=[], snapshotters=[])

    def begin(deadline_s=10.0):
        config = replace(CONFIG, snapshot_s=0.02, deadline_s=deadline_s)
        stage = SimpleNamespace(config=config, name="counter", participant=one.job, led=lambda: one.job)
        snapshotter = Snapshotter(config, [stage], one.job, one.complete, one.taken, one.troubles.append)
        one.snapshotters.append(snapshotter)
        return snapshotter

    one.begin = begin
    yield one
    for snapshotter in one.snapshotters:
        snapshotter.end()
        snapshotter._thread.join(60)
        assert not snapshotter._thread.is_alive()


def until(done):
    assert wait_until(done, 60, 0.01), "it did not happen"


def test_what_slots_have_acknowledged_stays_while_a_leader_may_wait_for_it(made):
    """One that takes over before the last one has said that the snapshot is over."""
    made.job.under_way = [10]
    made.begin()
    until(lambda: len(made.complete) > 2)
    assert "acks/11" in made.job.withdrawn and "acks/10" not in made.job.withdrawn
    made.job.under_way = []
    until(lambda: "acks/10" in made.job.withdrawn)


def test_a_snapshot_has_all_state_and_where_routers_continue(made):
    made.begin()
    until(lambda: made.complete)
    made.snapshotters[0].end()
    snapshot = made.complete[0]
    assert snapshot.version == 10 and snapshot.offsets == {0: 10}
    assert sum(snapshot.unit_bytes["counter"].values()) == snapshot.bytes > 0
    first = made.taken[0]
    assert len(made.taken) == len(made.complete) and 0 < first.begun_us <= first.completed_us
    assert first.written == first.state == {"counter": snapshot.bytes}
    manifest = made.store.manifest(made.complete[-1].name)
    assert manifest["workload"] == CONFIG.workload
    assert manifest["stages"]["counter"]["assignment"]["owner"] == [0, 0, 1, 1]
    assert [Step.from_json(step) for step in manifest["stages"]["counter"]["plan"]] == [STEP]
    assert sorted(made.store.places(made.complete[-1].name, "counter")) == [0, 1, 2, 3]
    assert made.troubles == []


def test_the_two_newest_are_kept_and_their_nodes_go(made):
    made.begin()
    until(lambda: len(made.complete) > 3)
    made.snapshotters[0].end()
    made.snapshotters[0]._thread.join(60)
    kept = {name.split("/")[2] for name in made.store._bucket._client.objects}
    assert {snapshot.name for snapshot in made.complete[-2:]} <= kept
    assert {snapshot.name for snapshot in made.complete[:-2]}.isdisjoint(kept)
    assert f"savepoints/{made.complete[0].name}" in made.job.withdrawn and "acks/10" in made.job.withdrawn


def test_a_snapshot_does_not_exist_before_the_results_before_it_have_come_out(made):
    made.job.said_by = {0}
    made.begin()
    until(lambda: made.job.snapshots)
    threading.Event().wait(0.2)
    assert made.complete == []
    assert not [name for name in made.store._bucket._client.objects if "manifest" in name]
    made.job.said_by = {0, 1}
    until(lambda: made.complete)


def test_a_slot_that_cannot_write_is_named_and_the_next_snapshot_is_taken(made):
    made.job.failing = {"slot-1": "MinIO is away"}
    made.begin()
    until(lambda: made.troubles)
    assert made.troubles[0] == "snapshot 1: slot-1 of counter: MinIO is away; the job goes on, the one before counts"
    made.job.failing = {}
    until(lambda: made.complete)


def test_a_snapshot_that_the_coordinator_has_given_up_is_not_waited_for(made):
    made.job.silent = {"slot-1"}
    made.begin()
    until(lambda: made.job.snapshots)
    made.job.late_snapshots = set(made.job.snapshots)
    until(lambda: made.troubles)
    assert "snapshot 1: not every slot of counter was ready within 10 s" in made.troubles[0]
    made.job.silent = set()
    until(lambda: made.complete)


def test_who_does_not_answer_is_named(made):
    made.job.silent = {"slot-1"}
    made.begin(deadline_s=0.1)
    until(lambda: made.troubles)
    assert made.troubles[0].startswith("snapshot 1: snapshot 1 of counter: slot-1 did not answer within 0.1 s")


def test_behind_the_end_nothing_becomes_complete(made):
    made.job.said_by = set()
    snapshotter = made.begin()
    until(lambda: made.job.snapshots)
    snapshotter.end()
    made.job.said_by = {0, 1}
    snapshotter._thread.join(60)
    assert made.complete == made.troubles == []


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
    until(lambda: made.troubles)
    assert "nothing can be written" in made.troubles[0]


def test_a_driver_that_was_deposed_commits_and_removes_nothing_and_says_nothing_of_it(made):
    made.job.deposed_at = 4
    made.begin()
    until(lambda: len(made.job.snapshots) > 5)
    committed = {name.split("/")[2] for name in made.store._bucket._client.objects if "manifest" in name}
    assert [snapshot.name for snapshot in made.complete] == list(made.job.snapshots)[:3]
    assert committed == {snapshot.name for snapshot in made.complete[-2:]}
    assert made.troubles == []


def test_a_driver_that_is_deposed_while_it_commits_removes_nothing(made):
    """What it would remove is older than its own, and the other one may have begun from there."""
    made.begin()
    until(lambda: len(made.complete) > 1)
    commit = made.store.commit

    def commit_then_lose(*arguments, **more):
        commit(*arguments, **more)
        made.job.deposed_at = 0

    made.store.commit = commit_then_lose
    until(lambda: made.job.deposed_at == 0)
    before, last = {snapshot.name for snapshot in made.complete[-3:]}, len(made.job.snapshots)
    until(lambda: len(made.job.snapshots) > last + 1)
    assert before <= {name.split("/")[2] for name in made.store._bucket._client.objects}
