"""Who takes snapshots: when one is complete, what it keeps, and what becomes of one that fails."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_bucket import state, store_of, write
from small_job import CONFIG

from keyshift.driver import snapshotter as module
from keyshift.driver.completed import CompletedSnapshots
from keyshift.driver.questions import Questions
from keyshift.driver.snapshotter import SNAPSHOT_PREFIX, Snapshotter, clear_acknowledgements
from keyshift.driver.step_log import StepLog
from keyshift.model.errors import Deposed, ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Assignment, Move, SlotId, Step, UnitId, Versions
from keyshift.model.records import StepRecord, UnitsCame, UnitsLeft
from keyshift.runtime.snapshots import WHOLE
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.savepoint import SavepointManifest
from waits import until

OWNERS = {0: (0, 1), 1: (2, 3)}  # units by slot
MOVES = 5  # the version of a step that moves something
STEP = Step((Move(UnitId(2), SlotId(1), SlotId(0)),))


class Leader(StepLog):
    """A coordinator that begins what is wanted at once, with routers and slots that answer at once; what it has
    published is ``nodes``.
    """

    def __init__(self, nodes, store):
        self.nodes, self.store, self.assignment = nodes, store, Assignment.contiguous(4, 2)
        super().__init__(self.assignment)
        self.records = {MOVES: StepRecord(MOVES, STEP, 1, outcome="complete")}
        self.silent, self.failing = set(), {}  # who does not answer, and what who cannot write says
        self.said_by = {0, 1}
        self.under_way = []  # versions
        self.deposed_at = None  # the number of the snapshot at which another driver claims the job

    @property
    def log(self):
        return self

    def snapshot(self, name):
        version = self.snapshots[name] = 10 + len(self.snapshots)
        steps = tuple((each, Step(())) for each in self.under_way)
        self.nodes.publish(nodes.STEPS, nodes.PublishedSteps(version, steps, 0, ""))
        self.nodes.acknowledge(nodes.ack(version, "captured", 0), nodes.PhaseDone(1))
        self.answer(name)
        if self.deposed_at == len(self.snapshots):
            self.nodes.claim("job")

    def answer(self, name):
        """All who are not silent."""
        answers = {"router-0": nodes.RouterSaved(self.snapshots[name])}
        for slot, units in OWNERS.items():
            places = write(self.store, name, slot, [(unit, state(unit)) for unit in units])
            answers[f"slot-{slot}"] = nodes.SlotSaved(tuple(places), sum(place.length for place in places))
        answers |= {who: nodes.SlotSaved(failed=why) for who, why in self.failing.items()}
        for who in answers.keys() - self.silent:
            self.nodes.acknowledge(nodes.saved(name)[who], answers[who])

    def assignment_of(self, version):
        return replace(self.assignment, version=version)

    def slots_that_said(self, what):
        return self.said_by if what.savepoint in self.snapshots else set()


class Stage(SimpleNamespace):
    """As much of one as is asked for; who leads it may change."""

    led = property(lambda stage: stage.made.leader)


@pytest.fixture
def made(monkeypatch):
    """``made.complete``, ``made.notes``; ``made.leader`` before ``made.begin()``."""
    store, memory = store_of(), Memory()
    monkeypatch.setattr(module, "SavepointStore", lambda *_: store)
    one = SimpleNamespace(store=store, notes=[], snapshotters=[], complete=CompletedSnapshots(), forgot=[])
    one.nodes = MemoryCoordination(memory, epoch=MemoryCoordination(memory).claim("job", first=True))
    one.nodes.begin()
    one.nodes.acknowledge(nodes.ack(MOVES, "installed", 0), UnitsCame((), 1))
    one.nodes.acknowledge(nodes.ack(MOVES, "released", 1), UnitsLeft(()))
    one.nodes.acknowledge(nodes.saved("0-of-a-stop")["router-0"], nodes.RouterSaved(1))
    one.leader = Leader(one.nodes, store)

    def begin(deadline_s=10.0, revoked=Versions(), **settings):  # noqa: B008 - nobody changes it
        config = replace(CONFIG, snapshot_s=0.02, deadline_s=deadline_s, **settings)
        ask = Questions(SimpleNamespace(participant=one.nodes, config=config), lambda: None)
        stage = Stage(config=config, name="counter", participant=one.nodes, ask=ask, made=one)
        given = one.complete, one.notes.append, revoked, lambda: one.forgot.append("attempts")
        snapshotter = Snapshotter(config, [stage], one.leader, *given)
        one.snapshotters.append(snapshotter)
        return snapshotter

    one.begin = begin
    yield one
    for snapshotter in one.snapshotters:
        over(snapshotter)


def of(unit):
    return unit, state(unit)


def over(snapshotter):
    snapshotter.end()
    snapshotter.join(60)
    assert not snapshotter.writes


def names_in(made):
    """Of savepoints and snapshots in the store."""
    return {name.split("/")[2] for name in [*made.store.client.objects]}  # which change meanwhile


def acknowledged(made):
    """Versions of which ZooKeeper still has what slots have said."""
    return set(map(int, made.nodes.children(nodes.ALL_ACKS)))


def test_what_slots_have_acknowledged_stays_while_a_leader_may_wait_for_it(made):
    """One that takes over before the last one has said that the snapshot is over."""
    made.leader.under_way = [10]
    made.begin()
    until(lambda: len(made.complete.taken) > 2)
    until(lambda: 11 not in acknowledged(made))
    assert 10 in acknowledged(made)
    made.leader.under_way = []
    until(lambda: 10 not in acknowledged(made))


def test_a_snapshot_has_all_state_and_where_routers_continue(made):
    made.leader.slots_that_said = lambda what: {0, 1} if what.savepoint == next(iter(made.leader.snapshots)) else set()
    made.begin()
    until(lambda: made.complete.last)
    made.snapshotters[0].end()
    snapshot = made.complete.newest[0]
    assert snapshot.version == 10 and snapshot.offsets == {0: 10}
    assert sum(snapshot.unit_bytes["counter"].values()) == snapshot.bytes > 0
    first = made.complete.taken[0]
    assert len(made.complete.taken) == len(made.complete.newest) and 0 < first.begun_us <= first.completed_us
    assert first.written == first.state == {"counter": snapshot.bytes}
    manifest = made.store.manifest(made.complete.newest[-1].name)
    assert manifest.workload == CONFIG.workload
    assert manifest.stages["counter"].assignment.owner == (0, 0, 1, 1)
    assert sorted(made.store.locations(made.complete.newest[-1].name, "counter")) == [0, 1, 2, 3]
    assert made.notes == []


def test_the_two_newest_are_kept_and_their_nodes_go(made):
    made.begin()
    until(lambda: len(made.complete.taken) > 3)
    over(made.snapshotters[0])
    kept = names_in(made)
    assert {snapshot.name for snapshot in made.complete.newest} <= kept and len(made.complete.newest) == 2
    assert len(kept) <= 3, "the last one may have come to its end just now"
    there = made.nodes.children(nodes.ALL_SAVED)
    assert next(iter(made.leader.snapshots)) not in there and "0-of-a-stop" in there
    assert 10 not in acknowledged(made) and MOVES in acknowledged(made)


def test_what_slots_have_said_of_a_step_is_written_down_and_goes_when_a_journal_on_disk_has_that(made):
    """An attempt may move for days. Of a step that is under way it stays."""
    record, under_way = made.leader.records[MOVES], StepRecord(MOVES + 1, STEP, 1)
    made.leader.records[MOVES + 1] = under_way
    made.nodes.acknowledge(nodes.ack(MOVES + 1, "installed", 0), UnitsCame((), 1))
    made.begin()
    until(lambda: len(made.complete.taken) > 3)
    assert record.released == {1: UnitsLeft(())} and record.installed == {0: UnitsCame((), 1)}
    assert MOVES in acknowledged(made) and not made.forgot, "another process would look for it"

    def journaled():
        snapshots, taken = made.complete.for_journal(), len(made.complete.taken)
        until(lambda: len(made.complete.taken) > taken + 2)  # so long it takes
        made.complete.journaled({each.name for each in snapshots})
        return MOVES not in acknowledged(made)

    until(journaled)
    assert made.forgot == ["attempts"]
    assert MOVES + 1 in acknowledged(made) and not under_way.installed


def test_what_slots_have_said_of_steps_goes_in_a_replica_as_soon_as_it_is_written_down(made):
    """It has a journal of all replicas, and takes no snapshots."""
    stage, log = SimpleNamespace(participant=made.nodes), made.leader
    for version in (MOVES + 1, MOVES + 2):
        log.records[version] = StepRecord(version, STEP, 1)
        made.nodes.acknowledge(nodes.ack(version, "installed", 0), UnitsCame((), 1))
    made.nodes.publish(nodes.STEPS, nodes.PublishedSteps(MOVES + 2, ((MOVES + 2, STEP),), 0, ""))
    clear_acknowledgements(stage, log, log.told_by_all)
    assert acknowledged(made) == {MOVES + 1, MOVES + 2}, "one has had another end, and one is under way"
    assert log.records[MOVES].released == {1: UnitsLeft(())}


def test_what_a_journal_has_is_not_removed_before_another_one_is_on_disk(made):
    made.begin()
    until(lambda: made.complete.last)
    first = made.complete.for_journal()[0].name
    until(lambda: len(made.complete.taken) > 4)
    assert sorted(made.store.locations(first, "counter")) == [0, 1, 2, 3]
    made.complete.journaled([])
    until(lambda: first not in names_in(made))


def test_the_state_of_a_savepoint_that_nobody_goes_on_from_any_more_goes_and_what_it_was_stays(made):
    """A job may be scaled by restarts for days, and each of them writes all of its state."""
    for name in ("1-old", "2-new"):
        manifest = SavepointManifest()
        said = {f"slot-{n}": nodes.SlotSaved(tuple(write(made.store, name, n, map(of, OWNERS[n])))) for n in OWNERS}
        manifest.add("counter", said, made.leader.assignment)
        made.store.commit(name, manifest)
    made.complete.supersede(["1-old"])
    made.begin()
    until(lambda: not made.complete.superseded)
    left = [name for name in [*made.store.client.objects] if "/1-old/" in name]  # others come meanwhile
    assert left == ["savepoints/job/1-old/manifest.json"]
    made.complete.supersede(["1-old"])
    assert made.complete.superseded == [], "it is asked for with each journal"
    made.store.require_whole("2-new")
    assert list(made.store.manifest("1-old").stages) == ["counter"]


def test_one_that_is_being_written_is_waited_for_however_long_it_takes(made, monkeypatch):
    """The deadline is for silence. At each look more was written."""
    sizes, writers = [], Questions.writers

    def written(ask):
        sizes.append(len(sizes))
        if made.leader.snapshots:
            made.nodes.publish(nodes.WRITING[1], nodes.Writing("first", sizes[-1]))
        return writers(ask)

    monkeypatch.setattr(Questions, "writers", written)
    made.leader.silent = {"slot-1"}
    made.begin(deadline_s=0.3)
    until(lambda: len(sizes) > 5)  # that took more than its deadline
    made.leader.silent = set()
    made.leader.answer(next(iter(made.leader.snapshots)))
    until(lambda: made.complete.last)
    assert not made.notes


def test_none_is_requested_while_one_that_was_given_up_is_being_written(made):
    begins = made.leader.snapshot
    made.leader.snapshot = lambda name: made.nodes.publish(nodes.WRITING[1], nodes.Writing("first", 7)) or begins(name)
    made.leader.silent = {"slot-1"}
    made.begin(deadline_s=0.1)
    until(lambda: made.notes)
    assert made.notes[0].startswith("snapshot 1: snapshot 1 of counter: slot-1 did not answer within 0.1 s")
    asked = len(made.leader.snapshots)
    assert not wait_until(lambda: len(made.leader.snapshots) > asked, 0.5, 0.01)
    made.leader.silent = set()
    made.nodes.publish(nodes.WRITING[1], nodes.Writing("first", 9, over=True))
    until(lambda: made.complete.last)


def test_a_snapshot_whose_parts_do_not_fit_together_is_told_and_ends_the_job(made, monkeypatch):
    """Something is wrong with keyshift then: to go on in silence would be to have no snapshots."""
    monkeypatch.setitem(OWNERS, 1, (2,))
    snapshotter = made.begin()
    until(lambda: not snapshotter.writes)
    assert "ProtocolViolation" in made.notes[0] and "there are no more snapshots" in made.notes[0]
    assert not made.complete.last
    with pytest.raises(ProtocolViolation, match=r"units \[3\] of counter are missing"):
        snapshotter.check()


def test_a_snapshot_of_which_the_store_has_lost_a_part_does_not_come_to_exist_and_the_next_has_all_anew(made):
    answer = made.leader.answer

    def loses(name):
        answer(name)
        if not name.endswith(WHOLE):
            made.store.client.objects.clear()

    made.leader.answer = loses
    made.begin()
    until(lambda: made.complete.last)
    over(made.snapshotters[0])
    first, second, *_ = made.leader.snapshots
    assert not first.endswith(WHOLE) and made.complete.taken[0].name == second
    assert "2 of its segments are in the store no more" in made.notes[0]
    assert "the job goes on, and writes all of its state anew" in made.notes[0]


def test_those_that_are_to_be_judged_are_all_kept_with_what_was_revoked_by_then(made):
    revoked = Versions(((5, 6), (7, 8)))
    made.begin(revoked=revoked, keep_snapshots=True)
    until(lambda: len(made.complete.taken) > 3)
    over(made.snapshotters[0])
    names = [record.name for record in made.complete.taken]
    assert made.store.committed(SNAPSHOT_PREFIX)[: len(names)] == names
    assert made.store.manifest(names[0]).revoked == revoked


def test_a_snapshot_does_not_exist_before_the_results_before_it_have_come_out(made):
    made.leader.said_by = {0}
    made.begin()
    until(lambda: made.leader.snapshots)
    threading.Event().wait(0.2)
    assert not made.complete.last
    assert not [name for name in made.store.client.objects if "manifest" in name]
    made.leader.said_by = {0, 1}
    until(lambda: made.complete.last)


def test_a_slot_that_cannot_write_is_named_and_the_next_snapshot_is_taken(made):
    made.leader.failing = {"slot-1": "MinIO is away"}
    made.begin()
    until(lambda: made.notes)
    assert made.notes[0] == "snapshot 1: slot-1 of counter: MinIO is away; the job goes on, the one before counts"
    failed = next(iter(made.leader.snapshots))
    made.leader.failing = {}
    until(lambda: made.complete.last)
    until(lambda: failed not in made.nodes.children(nodes.ALL_SAVED) and 10 not in acknowledged(made))


def test_that_snapshots_fail_is_told_once_until_one_is_complete(made):
    """A store may be away for hours, and a journal is written for each note."""
    made.leader.failing = {"slot-1": "MinIO is away"}
    made.begin()
    until(lambda: len(made.leader.snapshots) > 3)
    made.leader.failing = {"slot-0": "another object cannot be written"}
    until(lambda: len(made.leader.snapshots) > 6)
    assert len(made.notes) == 1
    made.leader.failing = {}
    until(lambda: made.complete.last)
    made.leader.failing = {"slot-0": "MinIO is away"}
    until(lambda: len(made.notes) > 1)
    assert "slot-0 of counter: MinIO is away" in made.notes[1]


def test_a_snapshot_that_fails_in_another_way_is_told_as_well(made):
    made.leader.failing = {"slot-1": "MinIO is away"}
    made.begin(deadline_s=0.1)
    until(lambda: any("MinIO is away" in note for note in made.notes))
    made.leader.silent = {"slot-1"}
    until(lambda: any("slot-1 did not answer within 0.1 s" in note for note in made.notes))


def test_that_older_snapshots_cannot_be_removed_is_told_once_until_they_can(made):
    def away(*_):
        raise ServiceUnavailable("MinIO is away")

    removes, made.store.keep_only = made.store.keep_only, away
    made.begin()
    until(lambda: len(made.complete.taken) > 3)
    assert len(made.notes) == 1 and made.notes[0].endswith("older ones stay where they are: MinIO is away")
    made.store.keep_only, before = removes, len(made.complete.taken)
    until(lambda: len(made.complete.taken) > before + 2)
    made.store.keep_only = away
    until(lambda: len(made.notes) > 1)


def test_so_is_that_zookeeper_does_not_say_whose_the_job_is_and_snapshots_go_on(made, monkeypatch):
    requires, asked = made.nodes.require_epoch, []

    def require_epoch():
        asked.append(len(made.complete.taken))
        if asked.count(asked[-1]) == 1 and asked[-1]:  # first of all to remove what is older
            raise ServiceUnavailable("ZooKeeper was lost")
        requires()

    monkeypatch.setattr(made.nodes, "require_epoch", require_epoch)
    snapshotter = made.begin()
    until(lambda: len(made.complete.taken) > 3 or not snapshotter.writes)
    snapshotter.check()
    (note,) = made.notes
    assert note.endswith("it is complete, and older ones stay where they are: ZooKeeper was lost")


def test_a_snapshot_that_the_coordinator_has_given_up_is_not_waited_for(made):
    made.leader.silent = {"slot-1"}
    made.begin()
    until(lambda: made.leader.snapshots)
    made.leader.late_snapshots = set(made.leader.snapshots)
    until(lambda: made.notes)
    assert "snapshot 1: not every slot of counter was ready within 10 s" in made.notes[0]
    made.leader.silent = set()
    until(lambda: made.complete.last)


def test_behind_the_end_nothing_becomes_complete(made):
    made.leader.said_by = set()
    snapshotter = made.begin()
    until(lambda: made.leader.snapshots)
    snapshotter.end()
    made.leader.said_by = {0, 1}
    over(snapshotter)
    assert not made.complete.last and not made.notes


def test_a_successor_of_the_coordinator_is_asked_again(made):
    first, wanted = made.leader, []
    first.snapshot = wanted.append
    made.begin()
    until(lambda: wanted)
    made.leader = Leader(made.nodes, made.store)
    first.slots_that_said = made.leader.slots_that_said
    until(lambda: made.complete.taken)
    assert made.complete.taken[0].name == wanted[0]


def test_a_driver_that_was_deposed_commits_and_removes_nothing_and_says_nothing_of_it(made):
    made.leader.deposed_at = 4
    snapshotter = made.begin()
    until(lambda: not snapshotter.writes)
    assert [snapshot.name for snapshot in made.complete.newest] == list(made.leader.snapshots)[1:3]
    assert set(made.store.committed(SNAPSHOT_PREFIX)) == {snapshot.name for snapshot in made.complete.newest}
    assert made.notes == []
    with pytest.raises(Deposed):
        snapshotter.check()


def test_a_driver_that_is_deposed_while_it_commits_removes_nothing(made):
    """What it would remove is older than its own, and the other one may have begun from there."""
    snapshotter = made.begin()
    until(lambda: len(made.complete.newest) > 1)
    commit = made.store.commit

    def commit_then_lose(*arguments, **more):
        commit(*arguments, **more)
        made.nodes.claim("job")

    made.store.commit = commit_then_lose
    until(lambda: not snapshotter.writes)
    assert {each.name for each in made.complete.taken[-3:]} <= names_in(made), "the oldest would have gone"
