"""A job whose ZooKeeper is in memory and whose query is a stand-in: what it asks of them, and what it writes down."""

import itertools
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from small_job import CONFIG

from keyshift import objects
from keyshift.driver import attempt, questions
from keyshift.driver import job as module
from keyshift.driver.completed import CompletedSnapshot
from keyshift.driver.job import GAP, Job
from keyshift.driver.leader import Coordinator
from keyshift.driver.snapshotter import SNAPSHOT_PREFIX, capture
from keyshift.driver.spark import interval
from keyshift.driver.stage import history_of
from keyshift.driver.step_log import StepLog
from keyshift.model.errors import Deposed, MigrationFailed, NotThere, QueryDied, ServiceUnavailable, Undelivered
from keyshift.model.keys import NO_VERSION, Assignment, Mode, Move, SlotId, Step, UnitId, Versions
from keyshift.model.markers import SlotStarted
from keyshift.model.records import Measured, StepRecord, UnitCame, UnitsCame, UnitsLeft
from keyshift.ordering import ChannelPlace, Position
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.protocol_log import LogEvent
from keyshift.runtime.snapshots import WHOLE
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.faults import parse
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.savepoint import Savepoint, SavepointManifest, SavepointStore
from keyshift.worker.slot.snapshots import SAY_S
from memory_bucket import MemoryBucket

START = Assignment.contiguous(4, 2)
MOVED = tuple(SlotId(slot) for slot in (0, 1, 1, 1))
CAME = [UnitCame(unit, 5_000_000, end_us) for unit, end_us in enumerate((6_000_000, 7_000_000, 7_500_000, 8_000_000))]
RESTORES = {0: nodes.Restored(tuple(CAME[:1])), 1: nodes.Restored(tuple(CAME[1:]))}


class Output:
    """Every slot says at once what it is asked to say; all calls are kept."""

    def __init__(self):
        self.received, self.calls, self.awaited, self.gone = 0, [], [], False

    def await_slots(self, slots, said, check, replica):
        check()
        self.calls.append((said.kind, sorted(slots)))
        self.awaited.append(said)

    def revoke(self, versions):
        self.calls.append(("revoke", versions))

    def require_input(self, offsets):
        if self.gone:
            raise NotThere("gone")


class Query:
    """Lives until it is stopped."""

    def __init__(self):
        self.isActive = True

    def exception(self):
        return None

    def stop(self):
        self.isActive = False


class Snapshots:
    """Takes none. ``ending`` is called at the end."""

    def __init__(self):
        self.writes, self.ended = False, 0
        self.check, self.ending, self.join = (lambda: None), (lambda: None), lambda within_s: None

    def end(self):
        self.ended += 1
        self.ending()


class Participant(MemoryCoordination):
    """Slots and a router answer each question at once; ``memory`` has what they say, and what was published."""

    def publish(self, node, value):
        super().publish(node, value)
        self.memory.published.append((node.path, value))
        for each, said in self.answers(node.path, value):
            self.acknowledge(each, said)

    def answers(self, path, value):
        match path:
            case "assignment":
                return [(nodes.RESTORED[slot], said) for slot, said in self.memory.restores.items()]
            case "savepoint":
                saved, places = nodes.saved(value.id), [nodes.Location(u, "segment", 0, 100 + u, 0) for u in range(4)]
                slots = [(saved[nodes.of_slot(n)], nodes.SlotSaved(tuple(places[2 * n : 2 * n + 2]))) for n in (0, 1)]
                return [*slots, (saved[nodes.of_router(0)], nodes.RouterSaved(10))]
            case "log":
                places = "slot-0", "slot-1", "router-0"
                return [(nodes.logs(value)[place], (LogEvent(1, place, "begin", (0,), 3),)) for place in places]
            case "measure":
                left, said = self.memory.left.pop() if self.memory.left else (), nodes.measured(value)
                return [(said[0], Measured(left_behind=tuple(left))), (said[1], Measured())]
        return []


@pytest.fixture
def job(monkeypatch):
    """A job that has started; ``job.memory`` has what goes through ZooKeeper."""
    memory, queries, offsets, snapshotters, output = Memory(), [], [], [], Output()
    memory.published, memory.left, memory.restores = [], [], RESTORES
    bucket = MemoryBucket()
    bucket.objects |= {f"savepoints/{name}/segment": b"" for name in ("job", "another", "lives")}
    monkeypatch.setattr(objects, "Minio", lambda *_, **__: bucket)
    for each in (module, attempt):
        monkeypatch.setattr(each, "Coordination", lambda _, root, secret, epoch=None: Participant(memory, root, epoch))

    def start_query(*arguments):
        offsets.append(arguments[-1])
        queries.append(Query())
        return queries[-1]

    def snapshotter(*given):
        snapshotters.append(Snapshots())
        snapshotters[-1].forget = given[-1]
        return snapshotters[-1]

    monkeypatch.setattr(module, "Snapshotter", snapshotter)
    made = Job(start_query, replace(CONFIG, deadline_s=60.0, snapshot_s=1.0), Path("nowhere"), 1.0, output)
    made.memory, made.output, made.others, made.start_query = memory, output, [], start_query
    made.bucket = bucket
    made.queries, made.offsets, made.snapshotters = queries, offsets, snapshotters
    made.start([START])
    (made.counter,) = made.stages
    yield made
    for each in (made, *made.others):
        each.stop()


def at(job, number):
    """A participant of an attempt of the job."""
    return Participant(job.memory, f"{nodes.of_job('job')}/{nodes.of_stage(number, CONFIG.stage)}")


def successor(job):
    """The same job in another process."""
    job.others.append(Job(job.start_query, job.config, Path("nowhere"), 1.0, job.output))
    return job.others[-1]


def resumed(job, past):
    """In another process."""
    other = successor(job)
    other.resume(past)
    return other


def publish_assignment(job, number, assignment):
    """Of an attempt, which has begun with that if it was not there."""
    participant = at(job, number)
    participant.begin()
    participant.publish(nodes.ASSIGNMENT, PublishAssignment(assignment))


def test_a_job_that_cannot_reach_its_tasks_any_more_ends(job):
    job.check()
    job.counter.participant.lose()
    with pytest.raises(ServiceUnavailable):
        job.check()


def test_what_ends_the_coordinator_is_the_controlling_threads(job):
    planned = threading.Event()

    def impossible(current):
        planned.set()
        raise RuntimeError("no such plan")

    job.counter.request(impossible)
    assert planned.wait(60)
    with pytest.raises(RuntimeError, match="no such plan"):
        wait_until(job.check, 60, 0.01)
    assert job.counter.busy


def test_a_job_that_has_stopped_takes_no_request(job):
    job.stop()
    with pytest.raises(ServiceUnavailable, match="is not running"):
        job.counter.request(lambda current: ())
    with pytest.raises(ServiceUnavailable, match="is not running"):
        job.counter.cancel()


def test_a_plan_that_waits_ends_with_the_query(job):
    """Otherwise it would go on with the next attempt."""
    said, waiting = [], threading.Event()

    def waits(current):
        waiting.set()
        try:
            while True:
                job.check()
                threading.Event().wait(0.01)
        except QueryDied as death:
            said.append(str(death))
            raise

    job.counter.request(waits)
    assert waiting.wait(60)
    job.stop()
    assert said == ["the Spark query has ended: stopped"]


def test_a_restart_is_one_step_in_which_every_unit_leaves_its_slot_and_arrives(job):
    job.restart("counter", Assignment(START.version, MOVED))
    assert job.config.attempt == 1 and job.config.slots == 2
    assert job.counter.assignment == Assignment(START.version + 1, MOVED)
    (record,) = job.counter.history.records
    assert record.step.moves == ((0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 1, 1))
    assert record.step.mode.gate == "query" and record.outcome == "complete"
    released = [unit for slot in (0, 1) for unit in record.released[slot].units]
    assert {left.unit: left.bytes for left in released} == {unit: 100 + unit for unit in range(4)}
    assert all(record.published_us <= left.aligned_us <= left.sent_us for left in released)
    assert {unit.unit for said in record.installed.values() for unit in said.units} == set(range(4))
    assert {said.drained_us for said in record.installed.values()} == {8_000_000}
    assert job.output.calls == [("ready", [0, 1]), ("sealed", [0, 1]), ("ready", [0, 1])]


def test_whoever_asks_while_an_attempt_ends_is_told_its_newest_assignment(job, monkeypatch):
    """Its history is written down only when all slots have said what they moved."""
    told = []
    monkeypatch.setattr(StepLog, "read_acknowledgements", lambda *_: told.append(job.counter.assignment))
    job.counter.end()
    assert told == [START] == [job.counter.assignment]


def test_of_earlier_attempts_only_what_may_still_write_snapshots_is_waited_for(job):
    """It would come behind the removal of all that the job has left."""
    waited, bucket = [], objects.Bucket(job.config.endpoints, f"savepoints/{job.config.job}/")
    for number in range(4):
        job.snapshotters[-1].writes = number == 1
        job.snapshotters[-1].join = lambda within_s, number=number: (waited.append(number), bucket.put("late", b""))
        job.recover()
    job.stop()
    job.clean()
    assert waited == [1] and [each.ended for each in job.snapshotters] == [1] * 5
    assert not list(bucket.names())


def test_what_zookeeper_has_of_attempts_before_the_last_one_goes_and_another_process_goes_on_all_the_same(job):
    """A job may be scaled by restarts for days."""

    def attempts():
        return {name for name in Participant(job.memory, nodes.of_job("job")).children(nodes.ALL) if name.isdigit()}

    for _ in range(3):
        job.recover()
    assert attempts() == {"0", "1", "2", "3"}
    job.snapshotters[-1].forget()
    assert attempts() == {"2", "3"}
    past = job.past()
    job.stop()
    assert resumed(job, past).config.attempt == 4


def test_snapshots_of_a_job_that_is_over_go_though_zookeeper_is_away(job, monkeypatch):
    bucket = objects.Bucket(job.config.endpoints, f"savepoints/{job.config.job}/")
    bucket.put("snapshot", b"")
    job.stop()

    def away(*given):
        raise ServiceUnavailable("ZooKeeper is away")

    monkeypatch.setattr(module, "Coordination", away)
    with pytest.raises(ServiceUnavailable, match="ZooKeeper is away"):
        job.clean()
    assert not list(bucket.names())


@pytest.mark.parametrize("over", [False, True])
def test_what_a_slot_still_writes_goes_behind_the_removal_of_all_that_the_job_has_left(job, monkeypatch, over):
    """It finds out with its next word."""
    waited, bucket = [], objects.Bucket(job.config.endpoints, f"savepoints/{job.config.job}/")

    def sleep(seconds):
        waited.append(seconds)
        bucket.put("late", b"")

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    at(job, 0).publish(nodes.WRITING[0], nodes.Writing("snapshot", 9, over=True))
    at(job, 0).publish(nodes.WRITING[1], nodes.Writing("snapshot", 7, over))
    job.stop()
    job.clean()
    assert waited == ([] if over else [2 * SAY_S])
    assert not list(bucket.names())


def test_a_restart_takes_as_long_as_slots_say_that_they_restore(job, monkeypatch):
    """A large state takes longer than a phase of a migration may be silent. At each look more is there."""
    job.config, job.memory.restores = replace(job.config, deadline_s=1.0), {0: RESTORES[0]}
    looks, read_below = itertools.count(), Participant.read_below

    def restoring(participant, folder):
        if folder.path != nodes.RESTORING.path:
            return read_below(participant, folder)
        if (look := next(looks)) == 8:  # that took more than the deadline
            at(job, 1).acknowledge(nodes.RESTORED[1], RESTORES[1])
        return {"1": look}

    with monkeypatch.context() as patch:
        patch.setattr(Participant, "read_below", restoring)
        job.restart("counter", Assignment(START.version, MOVED))
    assert job.counter.history.records[0].outcome == "complete"
    job.memory.restores = {}
    with pytest.raises(MigrationFailed, match="the restore: 0, 1 did not answer within 1 s"):
        job.restart("counter", job.counter.assignment)


def test_a_restart_whose_new_attempt_dies_is_written_down_by_the_one_behind_it(job):
    job.config, job.memory.restores = replace(job.config, deadline_s=1.0), {}
    with pytest.raises(MigrationFailed, match="the restore"):
        job.restart("counter", Assignment(START.version, MOVED))
    job.memory.restores = RESTORES
    for _ in range(2):
        job.recover()
    (record,) = job.counter.history.records
    assert record.step.moves == ((0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 1, 1))
    assert (record.version, record.outcome) == (START.version + 1, "complete")
    assert job.counter.assignment.owner == MOVED


def test_a_restart_does_not_begin_with_the_version_of_a_snapshot_that_was_taken_while_it_began(job):
    """Results of both would have that version, and the owners of one of them."""
    savepoint = job.savepoint

    def with_a_snapshot():
        switch_to(job, START.version + 1)
        return savepoint()

    job.savepoint = with_a_snapshot
    job.restart("counter", Assignment(START.version, MOVED))
    assert job.counter.history.begins == [START.version, START.version + 2]
    (record,) = job.counter.history.records
    assert record.version == START.version + 2


def test_a_switch_while_a_dead_query_is_cleared_away_keeps_its_version(job):
    job.snapshotters[-1].ending = lambda: switch_to(job, START.version + 1)
    job.recover()
    assert job.counter.history.begins == [START.version, START.version + 2]


def test_after_the_death_of_its_query_a_job_goes_on_from_its_savepoint_and_what_came_since_is_revoked(job):
    job.snapshots.replace([snapshot(START.version, 5)])  # which is older
    job.restart("counter", Assignment(START.version, MOVED))
    job.queries[-1].stop()
    job.recover()
    assert job.config.attempt == 2 and job.config.restore == job.savepoints[0].name
    assert set(job.revoked) == {START.version + 1}
    assert job.counter.assignment == Assignment(START.version + 2, (0, 1, 1, 1))
    assert job.counter.history.begins == [START.version, START.version + 1, START.version + 2]
    assert job.output.calls[-2:] == [("revoke", job.revoked), ("ready", [0, 1])]
    job.check()


def snapshot(version, offset):
    return CompletedSnapshot(f"{SNAPSHOT_PREFIX}{version}", version, {0: offset}, 10, {"counter": {0: 100}})


def switch_to(job, *versions):
    for version in versions:
        job.counter.led.log.switched(Assignment(version, START.owner))


def prepare(job):
    """The slots get ready for the first step, so that it switches."""
    for slot in (0, 1):
        job.counter.participant.acknowledge(nodes.ack(START.version + 1, "prepared", slot), nodes.PhaseDone(1))
    assert wait_until(lambda: job.counter.assignment.version == START.version + 1, 60, 0.01)


def test_a_savepoint_that_was_not_awaited_before_a_death_is_called_anew_by_the_next_attempt(job):
    job.config = replace(job.config, deadline_s=1.0)
    job.call_savepoint()
    job.recover()
    assert job.savepoint().name.startswith("1-")


def test_a_savepoint_may_be_written_for_longer_than_the_deadline(job, monkeypatch):
    """At each look more was written."""
    attempt, answers, writers = job.counter.ask.attempt, Participant.answers, questions.Questions.writers
    attempt.config, late, sizes = replace(attempt.config, deadline_s=0.5), [], itertools.count()

    def asked(participant, path, value):
        said = answers(participant, path, value)
        if path != "savepoint":
            return said
        late.extend(said)
        return []

    def written(ask):
        size = next(sizes)
        at(job, 0).publish(nodes.WRITING[0], nodes.Writing("sp", size))
        for node, what in late if size == 5 else ():  # that took more than the deadline
            at(job, 0).acknowledge(node, what)
        return writers(ask)

    monkeypatch.setattr(Participant, "answers", asked)
    monkeypatch.setattr(questions.Questions, "writers", written)
    assert job.savepoint() == job.savepoints[0]


def test_a_question_is_taken_back_when_it_is_answered_and_what_is_said_later_goes_with_the_next_one(job):
    job.counter.ask.measure()
    heard = []
    at(job, 0).watch(nodes.MEASURE, heard.append)  # as a slot of the next batch, which would answer again
    assert heard == []
    [question] = [value for path, value in job.memory.published if path == nodes.MEASURE.path]
    at(job, 0).acknowledge(nodes.measured(question)[0], Measured())  # by a slot that hung
    job.counter.ask.measure()
    assert at(job, 0).children(nodes.ALL_MEASURED) == []


def test_a_savepoint_that_could_not_be_called_is_called_anew(job, monkeypatch):
    def late(*_):
        raise MigrationFailed("router 0 did not answer")

    with monkeypatch.context() as patch, pytest.raises(MigrationFailed):
        patch.setattr(questions.Questions, "call_savepoint", late)
        job.savepoint()
    name = job.savepoint().name
    assert [value.id for path, value in job.memory.published if path == "savepoint"] == [name]


def test_after_the_death_of_its_query_a_job_goes_on_from_its_newest_snapshot(job):
    first, version = START.version, START.version + 4
    switch_to(job, first + 2, version, first + 5)
    job.snapshots.replace([snapshot(first + 2, 5), snapshot(version, 9)])
    job.recover()
    assert job.config.restore == f"{SNAPSHOT_PREFIX}{version}" and job.offsets[-1] == {0: 9}
    assert set(job.revoked) == {version, first + 5}, "what came out before it counts"
    assert job.output.calls[-2] == ("revoke", job.revoked)


def unreadable(job, version):
    """A slot has said so of the snapshot of ``version``."""
    job.counter.participant.acknowledge(
        nodes.UNREADABLE[1], nodes.Unreadable(f"{SNAPSHOT_PREFIX}{version}", "no checksum")
    )


def test_a_snapshot_that_a_slot_found_to_be_damaged_counts_no_more(job):
    first = START.version
    switch_to(job, first + 2, first + 4)
    job.snapshots.replace([snapshot(first + 2, 5), snapshot(first + 4, 9)])
    job.recover()
    unreadable(job, first + 4)
    job.recover()
    assert job.config.restore == f"{SNAPSHOT_PREFIX}{first + 2}" and job.offsets[-1] == {0: 5}
    assert set(job.revoked) == set(range(first + 2, job.counter.history.begins[1] + 1))
    assert f"{SNAPSHOT_PREFIX}{first + 4} counts no more: no checksum" in job.notes[-1].text
    assert f"goes on from {SNAPSHOT_PREFIX}{first + 2}" in job.notes[-1].text
    unreadable(job, first + 2)
    job.recover()
    assert "goes on from the beginning of the input" in job.notes[-1].text
    assert job.config.restore is None and job.offsets[-1] is None
    assert {first, first + 2} < set(job.revoked)


def test_a_savepoint_that_is_gone_gives_way_to_the_beginning_of_the_input(job):
    """Of a restart, from which a job goes on that has no snapshot: otherwise each attempt would die of it."""
    job.restart("counter", Assignment(START.version, MOVED))
    job.recover()
    job.counter.participant.acknowledge(
        nodes.UNREADABLE[1], nodes.Unreadable(job.savepoints[0].name, "it does not exist")
    )
    job.recover()
    assert job.config.restore is None and job.offsets[-1] is None and job.past().begun_from is None
    assert job.revoked == Versions(((NO_VERSION, job.counter.assignment.version),))
    assert "it does not exist; the job goes on from the beginning of the input" in job.notes[-1].text


def test_what_a_slot_found_to_be_damaged_costs_no_snapshot_while_the_driver_can_read_it_or_the_store_is_away(job):
    newest = snapshot(START.version + 4, 9)
    switch_to(job, START.version + 2, newest.version)
    SavepointStore(CONFIG.endpoints, "job").commit(newest.name, SavepointManifest("keycount"))
    job.snapshots.replace([snapshot(START.version + 2, 5), newest])
    for error in (None, ConnectionResetError()):
        job.recover()
        unreadable(job, newest.version)
        job.bucket.error = error
        job.recover()
        assert job.config.restore == newest.name and job.notes == []


def past_of(job):
    """Of a job that has taken two snapshots behind a restart, and is gone."""
    job.restart("counter", Assignment(START.version, MOVED))
    past = replace(job.past(), snapshots=[snapshot(job.counter.assignment.version + later, later) for later in (4, 7)])
    job.stop()
    return past


def found_unreadable(job, number, name):
    """An attempt of another process, which has died of it before there was a journal."""
    publish_assignment(job, number, Assignment(job.counter.assignment.version + number, MOVED))
    at(job, number).acknowledge(nodes.UNREADABLE[1], nodes.Unreadable(name, f"{name} is rotten"))


@pytest.mark.parametrize("found", range(4))
def test_another_process_leaves_out_what_slots_have_found_to_be_damaged_since_the_journal_was_written(job, found):
    """Otherwise each resume would die of it, and end for good where none may."""
    past = past_of(job)
    first, second = past.snapshots
    in_order = [second, first, past.begun_from]
    for number, each in enumerate(in_order[:found], 2):
        found_unreadable(job, number, each.name)
    other = resumed(job, past)
    left = [*in_order, None][found]
    assert other.config.restore == (left and left.name) and job.offsets[-1] == (left and left.offsets)
    assert (other.snapshots.last, other.past().begun_from) == ((left, past.begun_from) if found < 2 else (None, left))
    begin = [second.version, first.version, past.first_version, NO_VERSION][found]
    assert begin in other.revoked and begin - 1 not in other.revoked
    names = [*(each.name for each in in_order), "the beginning of the input"]
    assert [note.text for note in other.notes] == [
        f"{name} counts no more: {name} is rotten; the job goes on from {then}"
        for name, then in itertools.pairwise(names[: found + 1])
    ]
    assert {first.name, second.name} <= other.snapshots.needed, "the journal on disk names them"


def test_what_slots_found_to_be_damaged_and_the_store_has_back_is_what_another_process_goes_on_from(job):
    past = past_of(job)
    newest = past.snapshots[-1]
    found_unreadable(job, 2, newest.name)
    SavepointStore(CONFIG.endpoints, "job").commit(newest.name, SavepointManifest("keycount"))
    other = resumed(job, past)
    assert other.config.restore == newest.name and other.notes == []


@pytest.mark.parametrize("restores", [RESTORES, {0: nodes.Restored(())}], ids=["has restored", "restores"])
def test_the_death_of_an_attempt_that_restores_or_has_restored_costs_no_snapshot(job, restores):
    """Killed workers, or a store that is away, say nothing about it."""
    switch_to(job, START.version + 2, START.version + 4)
    job.snapshots.replace([snapshot(START.version + 2, 5), snapshot(START.version + 4, 9)])
    job.memory.restores = restores
    for _ in range(3):
        job.recover()
        assert job.offsets[-1] == {0: 9}
    assert len(job.snapshots.newest) == 2


def test_a_job_whose_input_is_gone_does_not_begin_later_in_it(job):
    job.output.gone = True
    with pytest.raises(NotThere, match="gone"):
        job.recover()
    assert not job.revoked, "nothing takes the place of what came out"
    job.stop()
    assert not any(query.isActive for query in job.queries)


def steps_of(job, number):
    """What was published in an attempt: moves of its steps that were under way, and of the plan."""
    steps, plan = (at(job, number).read(node) for node in (nodes.STEPS, nodes.PLAN))
    under_way = [step.moves for _, step in steps.steps] if steps else []
    return [under_way, [step.moves for step in plan.steps] if plan else []]


MOVES = [((0, 0, 1),), ((1, 0, 1),), ((2, 1, 0),)]


def plan_of(current):
    return tuple(Step((Move(UnitId(unit), SlotId(here), SlotId(there)),)) for ((unit, here, there),) in MOVES)


def test_steps_that_had_not_switched_when_the_query_died_come_in_the_next_attempt(job):
    job.counter.request(plan_of)
    assert wait_until(lambda: steps_of(job, 0) == [MOVES[:1], MOVES], 60, 0.01)
    job.recover()
    assert wait_until(lambda: steps_of(job, 1) == [MOVES[:1], MOVES], 60, 0.01)
    assert job.counter.busy
    assert [record.outcome for record in job.counter.history.records] == ["cancelled"], "there is another one of it"


def test_a_step_that_had_switched_when_the_query_died_does_not_come_again(job):
    """Though the leader dies before it tells the routers: its units begin where it has brought them."""
    job.counter.at_phase = Mock(side_effect=[None, ServiceUnavailable("gone"), None])  # prepare, switch; prepare
    job.counter.request(plan_of)
    prepare(job)
    job.recover()
    assert job.counter.assignment.owner == (1, 0, 1, 1)
    assert wait_until(lambda: steps_of(job, 1) == [MOVES[1:2], MOVES[1:]], 60, 0.01)


def test_a_request_that_had_not_begun_when_the_query_died_is_done_in_the_next_attempt(job):
    planned = []

    def plan(current):
        planned.append(current.version)
        while len(planned) == 1:  # until the death is seen
            job.check()
            threading.Event().wait(0.01)
        return plan_of(current)

    job.counter.request(plan)
    job.counter.request(lambda current: ())
    assert wait_until(lambda: planned, 60, 0.01)
    job.queries[-1].stop()
    job.recover()
    assert wait_until(lambda: steps_of(job, 1) == [MOVES[:1], MOVES], 60, 0.01)
    _, waiting = job.counter.led.unfinished(job.counter.participant, job.counter.assignment.version)
    assert (len(planned), len(waiting)) == (2, 1), "the second one waits"


def test_a_stage_that_is_not_busy_says_whether_units_of_a_late_step_are_still_to_come(job):
    other, version = another(job, ordering="none", deadline_s=0.2), START.version + 1
    other.start([START])
    (counter,) = other.stages
    for slot in (0, 1):
        counter.participant.acknowledge(nodes.ack(version, "prepared", slot), nodes.PhaseDone(1))
    counter.request(lambda current: plan_of(current)[:1])
    assert wait_until(lambda: not counter.busy, 60, 0.01)
    assert counter.late and counter.assignment.version == version
    counter.participant.acknowledge(nodes.ack(version, "released", 0), UnitsLeft((), 1))
    counter.participant.acknowledge(nodes.ack(version, "installed", 1), UnitsCame((), 1))
    assert wait_until(lambda: not counter.late, 60, 0.01)
    other.stop()
    assert not counter.late


def test_another_process_goes_on_with_the_steps_that_had_not_switched(job):
    job.counter.request(plan_of)
    assert wait_until(lambda: steps_of(job, 0)[0] == MOVES[:1], 60, 0.01)
    past = job.past()
    job.stop()
    resumed(job, past)
    assert wait_until(lambda: steps_of(job, 1) == [MOVES[:1], MOVES], 60, 0.01)


def test_what_is_known_of_a_stage_is_the_past_of_a_replica_that_begins_where_this_one_stands(job):
    job.counter.request(plan_of)
    prepare(job)
    assert wait_until(lambda: len(job.counter.log.records) == 2, 60, 0.01), "it has told of that, and of the next step"
    now, history = job.counter.assignment, history_of(job.counter)
    assert history.assignments[-1] == now
    before = history.before_the_newest()
    assert [each.version for each in before.assignments] == list(range(START.version, now.version))
    assert before.begins == job.counter.history.begins
    assert [record.step for record in before.records] == [record.step for record in job.counter.log.records.values()]
    assert before.with_attempt(StepLog(now)).assignments[-1] == now, "with which its own attempt begins"


def test_what_a_journal_on_disk_may_have_is_not_removed(job):
    older, newer = snapshot(START.version + 2, 5), snapshot(START.version + 4, 9)
    job.snapshots.replace([older])
    job.snapshots.journaled({older.name})
    job.past()
    job.snapshots.replace([newer])
    job.past()
    assert job.snapshots.needed == {older.name, newer.name}, "the second one is not on disk yet"
    job.snapshots.journaled({newer.name})
    assert job.snapshots.needed == {newer.name}


def test_what_ends_the_snapshots_is_the_controlling_threads(job):
    def broken():
        raise RuntimeError("no snapshot any more")

    job.snapshotters[-1].check = broken
    with pytest.raises(RuntimeError, match="no snapshot any more"):
        job.check()


@pytest.fixture
def clock_is_behind(monkeypatch):
    """It says less than the versions, as if it had been set back."""
    monkeypatch.setattr(module, "now_us", lambda: 0)


@pytest.mark.usefixtures("clock_is_behind")
def test_another_process_goes_on_with_a_job_from_its_newest_snapshot_and_revokes_all_that_came_behind_it(job):
    """The driver died in the attempt behind the one that its journal knows, at a version that nobody wrote down."""
    past = job.past()
    step = Step((Move(UnitId(0), SlotId(0), SlotId(1)),))
    counter = replace(past.stages["counter"], records=[StepRecord(START.version + 1, step, 5)])
    snapshots = [CompletedSnapshot("snapshot-000-1", START.version + 2, {0: 40}, 9, {"counter": {}})]
    past = replace(past, snapshots=snapshots, stages={"counter": counter})
    job.stop()
    newest = Assignment(START.version + 6, (SlotId(1),) * 4)
    publish_assignment(job, 1, newest)
    at(job, 1).acknowledge(nodes.ack(START.version + 1, "installed", 1), UnitsCame((), 3))
    other = resumed(job, past)
    assert (other.config.attempt, other.config.restore) == (2, "snapshot-000-1")
    counter = other.stage("counter")
    assert counter.assignment == Assignment(START.version + 7 + GAP, newest.owner)
    assert other.revoked == Versions(((START.version + 2, START.version + 7 + GAP),))
    assert job.output.calls[-2] == ("revoke", other.revoked)
    assert job.offsets[-1] == {0: 40}
    assert counter.history.records[0].installed == {1: UnitsCame((), 3)}
    assert counter.history.begins == [START.version, START.version + 7 + GAP]
    other.stop()
    other.clean()
    with pytest.raises(ServiceUnavailable, match="ZooKeeper has nothing of job"):
        successor(job).resume(past)


@pytest.mark.usefixtures("clock_is_behind")
def test_of_versions_behind_the_last_journal_of_a_process_that_was_gone_only_the_newest_is_known(job):
    """All of the next one are."""
    past, known, unknown = job.past(), set(), set()
    job.stop()
    for number in (0, 1):
        last = past.stages["counter"].assignments[-1].version
        publish_assignment(job, number, Assignment(last + 4, START.owner))
        other = resumed(job, past)
        past = other.past()
        other.stop()
        history = past.stages["counter"]
        begin = history.begins[-1]
        assert begin == last + 5 + GAP
        known |= {last, last + 1, begin, begin + 1}
        unknown |= {last + 2, last + 4, begin - 1}
        assert {each for each in known | unknown if not history.knows_until(each)} == unknown


@pytest.mark.usefixtures("clock_is_behind")
@pytest.mark.parametrize(
    ("number", "newest", "slots"),
    [(1, Assignment(START.version + 1, (0, 1, 2, 3)), 4), (0, Assignment(START.version + 4, (1, 1, 1, 1)), 2)],
    ids=["in a restart to more slots", "before the attempt had an assignment"],
)
def test_a_job_whose_driver_died_while_an_attempt_began_goes_on_from_what_was_published(job, number, newest, slots):
    past = job.past()
    job.stop()
    at(job, 1).begin()
    publish_assignment(job, number, newest)
    other = resumed(job, past)
    assert (other.config.attempt, other.config.slots) == (2, slots)
    assert other.stage("counter").assignment.owner == newest.owner
    assert other.revoked == Versions(((NO_VERSION, newest.version + 1 + GAP),))


@pytest.mark.usefixtures("clock_is_behind")
def test_another_process_goes_on_with_what_its_journal_has_if_zookeeper_has_lost_that(job):
    """It had confirmed it, and its machine went down: of that and of all since it knows nothing."""
    past, newest = job.past(), Assignment(START.version + 4, MOVED)
    past.stages["counter"].assignments.append(newest)
    job.stop()
    at(job, 0).publish(nodes.PLAN, nodes.WrittenPlan("made before that", plan_of(START)))
    other = successor(job)
    other.config = replace(other.config, attempt=2)
    other.resume(past)
    counter = other.stage("counter")
    assert other.config.attempt == 3, "there were more than ZooKeeper has"
    assert counter.assignment == Assignment(newest.version + 1 + GAP, MOVED)
    assert at(job, 3).read(nodes.PLAN) is None and wait_until(lambda: not counter.busy, 60, 0.01)


@pytest.mark.parametrize("version", [None, START.version], ids=["from the beginning", "from a snapshot"])
def test_a_restart_that_no_journal_has_is_written_down_by_the_next_process_and_by_no_other_one(job, version):
    past = replace(job.past(), snapshots=[snapshot(version, 5)] if version else [])
    job.restart("counter", Assignment(START.version, MOVED))
    (known,) = job.counter.history.records
    job.stop()
    for _ in range(2):
        other = resumed(job, past)
        (record,) = other.stage("counter").history.records
        assert (record.version, record.step, record.released) == (known.version, known.step, known.released)
        assert record.outcome == "complete" and (record.completed_us == known.completed_us) == bool(version)
        installed = {slot: {unit.unit for unit in said.units} for slot, said in record.installed.items()}
        assert installed == {0: {0}, 1: {1, 2, 3}}
        past = other.past()
        other.stop()


def test_a_restart_that_had_not_switched_when_the_driver_died_did_not_happen(job):
    past = job.past()
    job.stop()
    at(job, 1).begin()
    at(job, 1).publish(nodes.RESTART, StepRecord(START.version + 1, Step((), Mode(gate="query")), 5))
    for _ in range(2):
        other = resumed(job, past)
        assert not other.stage("counter").history.records
        other.stop()


def test_the_last_protocol_events_of_an_attempt_that_died_come_before_those_of_the_next(job):
    at(job, 0).acknowledge(nodes.ENDED_LOGS["slot-1"], (LogEvent(5, "slot-1", "begin", (), 3),))
    job.queries[-1].stop()
    job.recover()
    assert [(event.place, event.at_us) for event in job.log] == [("slot-1", 5)], "nobody else answers any more"
    job.read_log()
    assert {event.place for event in job.log[1:]} == {"slot-0", "slot-1", "router-0"}
    job.stop()
    job.read_log()
    assert len(job.log) == 4


def test_a_coordinator_that_dies_has_a_successor_which_does_what_was_asked(job):
    first, planned = job.counter.led, []
    job.faults.hit(*parse("kill:coordinator@4"))
    job.counter.request(lambda current: planned.append(current.version) or ())
    assert wait_until(lambda: job.counter.led is not first and not job.counter.busy, 60)
    assert planned == [START.version]
    job.check()
    assert [str(fault) for fault in job.faults.done] == ["kill:coordinator@4"]


def test_a_fault_that_comes_while_the_coordinator_is_replaced_hits_the_next_one(job, monkeypatch):
    elected, inherit = [job.counter.led], Coordinator.inherit

    def inherits(coordinator, before):
        inherit(coordinator, before)
        elected.append(coordinator)
        if len(elected) == 2:
            again = threading.Thread(target=job.faults.hit, args=parse("kill:coordinator@5"))
            again.start()
            again.join(0.2)  # it may have to wait until this one leads

    monkeypatch.setattr(Coordinator, "inherit", inherits)
    job.faults.hit(*parse("kill:coordinator@4"))
    assert wait_until(lambda: len(elected) == 3, 60)
    job.check()


def test_what_slots_have_told_of_copies_goes_with_the_next_order_and_copies_with_their_attempt(job):
    moves, close = (Move(UnitId(0), SlotId(0), SlotId(1)),), nodes.CopiesClose(1, 2, 7, 1, 0, 5)
    for copies in (moves, (), moves):
        job.counter.ask.copy(copies, 1.0, 10, True)
        order = job.memory.published[-1][1].id
        assert job.counter.ask.kept == copies and at(job, 0).children(nodes.ALL_COPIED) == []
        at(job, 0).acknowledge(nodes.copied(order)[0], close)
        assert at(job, 0).children(nodes.ALL_COPIED) == [order]
    assert job.counter.ask.await_copies() == {0: close}
    job.recover()
    assert job.counter.ask.await_copies() is None
    assert job.counter.ask.kept == ()


def test_keys_that_were_left_behind_are_waited_for_and_told_if_they_stay(job, monkeypatch):
    job.memory.left = [[], [3], [3]]
    assert job.counter.ask.left_behind() == set()
    assert Counter(path for path, _ in job.memory.published)["measure"] == 3
    job.memory.left = [[3]] * 1000
    monkeypatch.setattr(questions, "SETTLE_S", 0.5)
    assert job.counter.ask.left_behind() == {(3, 0)}


def claimed_by_another(job):
    """Another process goes on with the job, while this one's query, coordinator and threads live."""
    other = successor(job)
    other.claim()
    other.resume(job.past())
    return other


def another(job, **config):
    """A job whose slots work in turns, beside that of the fixture."""
    config = replace(CONFIG, **{"job": "another", "ordering": "live_robin", "deadline_s": 60.0} | config)
    job.others.append(Job(job.start_query, config, Path("nowhere"), 1.0, job.output))
    return job.others[-1]


def in_zookeeper(job, of):
    root = nodes.of_job(of.config.job)
    return Participant(job.memory, f"{root}/{nodes.of_stage(of.config.attempt, CONFIG.stage)}")


STOOD = [Position((ChannelPlace(81, 60_000, 1),), turn=9, clock=60_000, chain=chain) for chain in (5, 6)]


def manifest_in_turns():
    """Of slots that stood like this, and a router at 70 ms."""
    places = [tuple(nodes.Location(unit, "segment", 0, 1, 0) for unit in units) for units in ((0, 1), (2, 3))]
    said = {nodes.of_slot(slot): nodes.SlotSaved(places[slot], position=STOOD[slot]) for slot in (0, 1)}
    manifest = SavepointManifest("keycount")
    manifest.add(CONFIG.stage, said | {nodes.of_router(0): nodes.RouterSaved(11, 70_000)}, START)
    return manifest


def test_what_another_job_has_written_is_where_routers_and_slots_go_on_in_their_order(job):
    manifest = manifest_in_turns()
    SavepointStore(CONFIG.endpoints, "lives").commit("capture-1", manifest)
    other = another(job, restore="capture-1", restore_of="lives")
    other.start([START], Savepoint("capture-1", manifest.offsets, {}, manifest.turns))
    assert job.offsets[-1] == {0: 11} and manifest.turns == {"counter": {0: 9, 1: 9}}
    there = in_zookeeper(job, other)
    assert there.read_below(nodes.ROUTERS) == {"0": 70_000}
    assert there.read_below(nodes.POSITIONS) == {"0": STOOD[0], "1": STOOD[1]}


def test_a_savepoint_that_is_gone_keeps_no_attempt_from_beginning(job):
    other = another(job, restore="gone", restore_of="lives")
    other.start([START], Savepoint("gone", {0: 7}, {}))
    assert job.offsets[-1] == {0: 7} and in_zookeeper(job, other).read_below(nodes.POSITIONS) == {}


def test_slots_that_work_in_turns_go_back_behind_a_snapshot_whose_manifest_has_rotted(job):
    """An attempt begins from it all the same: its slots say so."""
    older, newest = snapshot(START.version + 2, 5), snapshot(START.version + 4, 9)
    for each in (older, newest):
        SavepointStore(CONFIG.endpoints, "another").commit(each.name, manifest_in_turns())
    job.bucket.rotten.add(f"savepoints/another/{newest.name}/manifest.json")
    other = another(job, deadline_s=0.2)
    other.start([START])
    (counter,) = other.stages
    counter.led.log.switched(Assignment(older.version, START.owner))
    counter.led.log.switched(Assignment(newest.version, START.owner))
    other.snapshots.replace([older, newest])
    other.recover()
    assert other.config.restore == newest.name and in_zookeeper(job, other).read_below(nodes.POSITIONS) == {}
    counter.participant.acknowledge(nodes.UNREADABLE[1], nodes.Unreadable(newest.name, "it is damaged"))
    other.recover()
    assert other.config.restore == older.name and job.offsets[-1] == {0: 5}
    assert set(in_zookeeper(job, other).read_below(nodes.POSITIONS)) == {"0", "1"}


@pytest.mark.parametrize("lists", [True, False], ids=["it is busy", "it is away"])
def test_a_store_that_does_not_deliver_when_an_attempt_begins_is_asked_again_for_the_deadline(job, monkeypatch, lists):
    """Slots ask for so long, too, and one that got its state without its place would go on from nowhere."""
    asked, get, listed = itertools.count(), job.bucket.get_object, job.bucket.list_objects

    def away(*_, **__):
        raise ConnectionResetError

    def busy(*given, **more):
        return get(*given, **more) if next(asked) >= 4 else away()

    SavepointStore(CONFIG.endpoints, "lives").commit("capture-1", manifest_in_turns())
    monkeypatch.setattr(job.bucket, "get_object", busy)
    monkeypatch.setattr(job.bucket, "list_objects", listed if lists else away)
    other = another(job, restore="capture-1", restore_of="lives")
    other.start([START], Savepoint("capture-1", {0: 11}, {}))
    assert set(in_zookeeper(job, other).read_below(nodes.POSITIONS)) == {"0", "1"}


def test_an_attempt_does_not_begin_if_the_store_is_away_for_longer_than_the_deadline(job):
    other = another(job, restore="capture-1", restore_of="lives", deadline_s=0.2)
    job.bucket.error = ConnectionResetError()
    with pytest.raises(Undelivered):
        other.start([START], Savepoint("capture-1", {0: 11}, {}))
    job.bucket.error = None


def test_a_capture_is_appointed_and_committed_and_the_job_goes_on(job):
    """What was answered of one that failed goes with it, and of a stop nothing."""
    other = another(job)
    other.start([START])
    there = in_zookeeper(job, other)
    there.publish(nodes.ROUTERS[0], 0)  # between two batches it answers like this
    for name in ("capture-000-000001-abc", "0-of-a-stop"):
        there.acknowledge(nodes.saved(name)[nodes.of_slot(0)], nodes.SlotSaved(failed="too late"))
    written, sizes = capture(other.config, other.stages, other.check, "capture-000-000002")
    called = [value for path, value in job.memory.published if path == "savepoint"]
    assert [(each.stops, each.appointment.holds) for each in called] == [(False, False), (False, True)]
    assert written.offsets == {0: 10} and written.unit_bytes == {"counter": {n: 100 + n for n in range(4)}}
    assert sizes == {"counter": 0}
    assert SavepointStore(CONFIG.endpoints, "another").manifest(written.name).offsets == {0: 10}
    assert other.savepoints == [] and there.children(nodes.ALL_SAVED) == ["0-of-a-stop"]
    other.check()


def test_a_capture_of_which_the_store_has_lost_a_part_is_made_once_more_with_all_state(job):
    other = another(job)
    other.start([START])
    in_zookeeper(job, other).publish(nodes.ROUTERS[0], 0)
    del job.bucket.objects["savepoints/another/segment"]  # and of that, too
    with pytest.raises(NotThere, match="1 of its segments are in the store no more, such as segment"):
        capture(other.config, other.stages, other.check, "capture-0")
    names = dict.fromkeys(value.id for path, value in job.memory.published if path == "savepoint")
    assert [name.endswith(WHOLE) for name in names] == [False, True]


def test_behind_a_capture_that_was_given_up_nothing_is_called_before_all_routers_have_said_it(job, monkeypatch):
    """A router that has not heard yet that it holds would hear of the next one alone."""
    other, answers, said = another(job), Participant.answers, {}
    other.start([START])
    there = in_zookeeper(job, other)
    there.publish(nodes.ROUTERS[0], 0)
    monkeypatch.setattr(Participant, "answers", lambda *told: answers(*told) if told[1] != "savepoint" else [])

    def unwanted():
        raise ServiceUnavailable("nobody wants it")

    with pytest.raises(ServiceUnavailable, match="nobody wants it"):
        capture(other.config, other.stages, unwanted, "capture-0")
    called = there.read(nodes.SAVEPOINT)
    there.watch(nodes.SAVEPOINT, lambda now: said.setdefault(now.id, there.children(nodes.saved(called.id))))
    late = threading.Timer(0.2, there.acknowledge, [nodes.saved(called.id)["router-0"], nodes.RouterSaved(10)])
    late.start()
    other.call_savepoint()
    late.join()
    assert called.appointment.holds and list(said.values()) == [[], ["router-0"]]


def test_a_capture_that_a_router_does_not_confirm_is_taken_back_so_that_the_others_do_not_wait(job):
    other = another(job, deadline_s=0.02)
    other.start([START])
    with pytest.raises(MigrationFailed, match="router 0 did not answer within"):
        capture(other.config, other.stages, other.check, "capture-0")
    *_, last = [value for path, value in job.memory.published if path == "savepoint"]
    assert last.appointment is None and not last.stops


def test_a_driver_that_was_deposed_asks_nothing_starts_nothing_and_publishes_nothing(job):
    assert job.config.epoch == job.counter.config.epoch == 1
    other = claimed_by_another(job)
    assert other.config.epoch == other.stage("counter").config.epoch == 2
    published, queries = len(job.memory.published), len(job.queries)
    job.queries[0].stop()  # and its query dies, too
    for act in (job.require_driver, job.counter.ask.measure, job.savepoint, job.recover, job.end):
        with pytest.raises(Deposed):
            act()
    assert (len(job.memory.published), len(job.queries)) == (published, queries)
    other.require_driver()
    other.check()


def test_a_driver_that_was_deposed_learns_it_from_its_coordinator(job):
    claimed_by_another(job)
    job.counter.request(lambda current: (Step((Move(UnitId(0), SlotId(0), SlotId(1)),)),))
    with pytest.raises(Deposed):
        wait_until(job.check, 60, 0.01)


@pytest.mark.usefixtures("clock_is_behind")
def test_the_version_of_the_next_driver_is_above_all_that_the_one_before_has_published(job):
    """Slots of the old query may go on under that one, and what they say under it is revoked."""
    later = PublishAssignment(Assignment(START.version + 3, START.owner))
    job.counter.ask.tell(nodes.ASSIGNMENT, later)
    other = successor(job)
    other.claim()
    with pytest.raises(Deposed):
        job.counter.ask.tell(nodes.ASSIGNMENT, later)
    other.resume(job.past())
    (begin,) = other.stage("counter").history.begins[1:]
    assert begin == START.version + 4 + GAP, "nor under what ZooKeeper has lost"
    assert START.version + 3 in other.revoked and begin - 1 in other.revoked and begin not in other.revoked


def test_a_resume_of_which_nothing_is_left_is_not_repeated_under_its_versions(job):
    """Its machine went down before its first journal, and ZooKeeper has lost that there was one."""
    past = job.past()
    job.stop()
    lost = resumed(job, past)
    lost.stop()
    at_root = Participant(job.memory, nodes.of_job("job"))
    at_root.withdraw(nodes.of_attempt(lost.config.attempt))
    other = resumed(job, past)
    assert other.config.attempt == lost.config.attempt, "nobody knows of it"
    (used,) = lost.stage("counter").history.begins[1:]
    begins = other.stage("counter").assignment.version
    assert used in other.revoked and begins > used
    *_, before, ready = job.output.awaited
    assert before != ready == SlotStarted("counter", other.config.attempt, begins), "Kafka still has the other one"


def test_nobody_goes_on_with_a_job_that_has_ended(job):
    job.stop()
    job.end()
    other = successor(job)
    with pytest.raises(NotThere):
        other.claim()


def test_spark_is_told_the_length_of_a_batch_in_whole_digits():
    """It does not read 2.592e+06."""
    told = [interval(seconds) for seconds in (5, 300.0, 0.25, 2_592_000.0)]
    assert told == [f"{number} milliseconds" for number in (5000, 300_000, 250, 2_592_000_000)]
