"""What a slot leaves at the end of a batch, and what the next holder finds: the whole of ``SlotTask``, over Flight."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from small_behind import Behind
from small_bucket import read
from small_job import DEADLINE_S, state
from small_slots import BEGIN_US

from keyshift.clock import now_us
from keyshift.model.errors import KeyshiftError, ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Assignment, Mode, Move, SlotId, Step, Version
from keyshift.model.markers import SlotStarted
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime import computation
from keyshift.state.memory import MemoryStore
from keyshift.state.redis_server import RemoteSettings, served
from keyshift.state.remote import RemoteState
from keyshift.wire import nodes
from keyshift.wire.faults import Fault
from keyshift.wire.memory import MemoryCoordination
from keyshift.wire.savepoint import SavepointManifest
from keyshift.worker import attempt as worker_attempt
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import OfStep, Opened, Shipment, Taken, Wanted
from keyshift.worker.slot import answers, intake, opening
from keyshift.worker.slot import host as slot_host
from keyshift.worker.slot import task as slot_task
from keyshift.worker.slot.host import EndedSlot, await_takers
from keyshift.worker.state import arrivals
from keyshift.workloads.windowcount.operator import IDLE, WINDOW
from waits import Clock, until

KEYS = range(8)
ONE_SLOT = {"slots": 1, "routers": 1}
WINDOWS = {"key_groups": 4, "keys": 8, "skew": 0, "state_bytes": 32, "seed": 0, "window_ms": 1, "delay_ms": 0}
STEP = Step((Move(0, 0, 1),))
TIMED = {"workload": "windowcount", "stage": "windows", "parameters": WINDOWS | {"idle_ms": 1}}


@pytest.fixture(params=["the same process", "another process"])
def following(request):
    """The process of the next batch, given the job and that of the one before."""
    return lambda job, host: host if request.param == "the same process" else job.process()


def test_no_thread_of_a_slot_stays_whose_batch_ends_while_it_waits_for_its_turn(make, monkeypatch):
    before = set(threading.enumerate())
    job = make(**ONE_SLOT)
    task = job.begun()
    turn, ended = task.effects.turn, threading.Event()

    def ends_meanwhile():
        task.close()
        ended.set()
        return turn()

    monkeypatch.setattr(task.effects, "turn", ends_meanwhile)
    task.shared.waits.set()  # as somebody who leaves work behind
    assert ended.wait(DEADLINE_S)
    until(lambda: not [each for each in threading.enumerate() if each.name == "keyshift-slot-0" and each not in before])


def test_a_slot_says_in_each_batch_at_which_version_it_begins(make, following):
    def said(task):
        return [facts.said.marker for _, facts in job.frames(task.wait()) if facts.said]

    job = make()
    first, other = job.settled(), job.settled(slot=1)
    assert said(first) == said(other) == [SlotStarted("counter", 0, 1)]
    job.publish(2, STEP)
    for task in (first, other):
        job.barrier(task, 2)
    job.end(first)
    assert said(job.settled(following(job, first.shared.host))) == [SlotStarted("counter", 0, 2)]


# -- state -------------------------------------------------------------------------------------------------------------


def test_the_next_holder_goes_on_where_the_last_one_stopped_though_its_server_of_zookeeper_is_behind(
    make, following, monkeypatch
):
    job = make(**ONE_SLOT)
    first = job.process()
    task, then = job.opened(0, first), dict(job.memory.nodes)
    job.barrier(task)
    assert [row["count"] for row in job.data(task, KEYS)] == [1] * 8
    job.end(task)
    monkeypatch.setattr(opening, "Coordination", lambda _, root, secret: Behind(job.memory, root, then))
    task = job.opened(0, following(job, first))
    job.barrier(task)
    results = job.data(task, [*KEYS, 3]) + job.end(task)
    assert sorted((row["key"], row["count"]) for row in results) == sorted([*((key, 2) for key in KEYS), (3, 3)])
    until(lambda: task.shared.host is first or not first.left.get(0))


@pytest.fixture
def closed(monkeypatch):
    """Stores that were closed."""
    stores = []
    monkeypatch.setattr(MemoryStore, "close", lambda store: stores.append(store))
    return stores


def test_a_process_closes_the_store_of_a_slot_when_all_of_its_state_has_gone_to_another_one(make, closed):
    job = make(**ONE_SLOT)
    first, second = job.process(), job.process()
    job.end(job.begun(first, KEYS))
    left = first.store(0)
    job.begun(second, KEYS)
    until(lambda: closed)
    assert closed == [left]


def test_a_store_stays_open_as_long_as_some_of_its_state_is_here_or_its_slot_is_back(make, closed):
    host = make(**ONE_SLOT).process()
    store = host.store(0)
    host.seal(0, 1, {0: state({1: 1}), 1: state({})})
    host.message(Taken(0, (0,)))
    assert not closed
    host.begin([0])
    host.message(Taken(0, (0, 1)))  # late: the slot has come back
    assert not closed and host.store(0) is store
    host.seal(0, 2, {0: state({1: 1})})
    host.message(Taken(0, (0,)))
    assert closed == [store]


def test_a_process_that_does_not_hear_that_state_was_taken_closes_the_store_a_batch_later(make, closed):
    host = make(**ONE_SLOT).process()
    host.begin([0])
    store = host.store(0)
    host.seal(0, 1, {0: state({1: 1})})
    host.begin([1])
    assert not closed and 0 in host.left, "now it is being fetched"
    host.begin([1])
    assert closed == [store] and 0 not in host.left


@pytest.fixture
def ending(make, monkeypatch):
    """A job, and a process of it that ends as soon as nobody has to fetch anything from there."""
    job = make(slots=2, routers=1)
    host = job.process()
    monkeypatch.setattr(slot_host, "_hosts", {job.config.stage: host})
    monkeypatch.setattr(slot_host, "LOOK_S", 0.01)
    return job, host


def test_a_process_that_spark_has_left_stays_until_the_next_holder_has_its_state(ending):
    job, first = ending
    assert await_takers(DEADLINE_S), "nothing was left there"
    job.end(job.begun(first, job.keys_of(0)))
    assert not await_takers(0.0), "nobody comes"
    found = []
    staying = threading.Thread(target=lambda: found.append((await_takers(DEADLINE_S), dict(first.left))))
    staying.start()
    job.begun()
    staying.join(DEADLINE_S)
    assert found == [(True, {})]


@pytest.mark.parametrize("later", [True, False], ids=["a later attempt has begun", "all of it is removed"])
def test_it_does_not_stay_when_the_attempt_is_over(ending, later):
    """Else the processes of each run would stay behind it, with all of its state."""
    job, first = ending
    job.end(job.begun(first, job.keys_of(0)))
    staying = threading.Thread(target=await_takers, args=(10 * DEADLINE_S,))
    staying.start()
    staying.join(0.1)
    assert staying.is_alive()
    end_attempt(job, later)
    staying.join(DEADLINE_S)
    assert not staying.is_alive() and first.left


def end_attempt(job, later):
    root = nodes.of_job(job.config.job)
    if later:
        MemoryCoordination(job.memory, f"{root}/{job.config.attempt + 1}").begin()
    else:
        MemoryCoordination(job.memory, root).withdraw(nodes.ALL)


@pytest.mark.parametrize("later", [True, False], ids=["a later attempt has begun", "all of it is removed"])
def test_a_slot_that_waits_for_state_ends_with_its_attempt(make, monkeypatch, later):
    """Its source is dead, and Spark has closed a socket that nobody reads or writes. Its process would stay, too."""
    monkeypatch.setattr(worker_attempt, "LOOK_S", 0.01)
    job = make(queue_bytes=1)
    task = job.begun()
    job.publish(2, Step((Move(2, 1, 0),)))
    job.barrier(task, 2)
    job.data(task, job.keys_of(2), 2)
    for _ in range(50):
        assert task.stalled() and task.wait() == []
    end_attempt(job, later)
    with pytest.raises(ServiceUnavailable, match="attempt 0 of job job is over"):
        until(lambda: False, task.wait)


def test_a_slot_that_gives_results_does_not_ask_whether_its_attempt_is_over(make, monkeypatch):
    """Spark would have told it, and ZooKeeper may be away."""
    monkeypatch.setattr(worker_attempt, "time", clock := Clock())
    job = make(**ONE_SLOT)
    task = job.begun()
    monkeypatch.setattr(task.shared.coordination, "children", lambda folder: pytest.fail(f"it asks for {folder}"))
    for _ in range(10):
        clock.pass_by(0.9 * worker_attempt.LOOK_S)
        assert job.data(task, KEYS)
        task.wait()


def test_it_hears_that_its_state_has_come_though_the_next_batch_ends_at_that_moment(ending, monkeypatch):
    job, first = ending
    job.end(job.begun(first, job.keys_of(0)))
    disconnected, pull, close = threading.Event(), StateClients.pull, StateClients.close

    def come(*what):
        pull(*what)
        disconnected.wait(0.3)

    monkeypatch.setattr(StateClients, "pull", come)
    monkeypatch.setattr(StateClients, "close", lambda clients: (close(clients), disconnected.set()))
    job.end(job.begun())
    until(lambda: not first.left)


def test_it_does_not_stay_for_a_slot_that_has_no_state(ending):
    job, first = ending
    job.nodes.publish(nodes.ASSIGNMENT, PublishAssignment(Assignment(Version(1), (SlotId(0),) * 4)))
    job.end(job.settled(first, slot=1))
    assert first.left == {1: {}}
    job.settled(slot=1)
    until(lambda: await_takers(0.0))


def test_it_does_not_stay_if_its_task_has_failed_and_so_the_query_nor_for_keys_that_nobody_asks_for_any_more(ending):
    _, host = ending
    host.lent[3, 7] = state({1: 1})
    host.begin([0])
    assert not host.lent, "what stayed behind in a batch that is over"
    host.lent[3, 7] = state({1: 1})
    assert not await_takers(DEADLINE_S)
    host.seal(0, 1, {})
    assert not await_takers(0.0)
    host.message(Taken(0, ()))  # in the next batch, so all units were whole before
    assert await_takers(0.0)


def test_copies_are_made_of_units_that_come_from_another_process(make, monkeypatch):
    job, goes_on, pull = make(), threading.Event(), StateClients.pull
    job.end(job.begun(keys=job.keys_of(0)))
    job.nodes.publish(nodes.COPIES, nodes.CopiesWanted("one", (Move(0, 0, 1),), 0.01, 0, whole=False))
    monkeypatch.setattr(StateClients, "pull", lambda *what: goes_on.wait(DEADLINE_S) and pull(*what))
    job.opened(0, job.process())
    until(lambda: job.listens(nodes.LOG))  # and so it has the order
    job.opened(1, job.process())
    goes_on.set()
    until(lambda: job.nodes.read(nodes.copied("one")[0]))
    close = job.nodes.read(nodes.copied("one")[0])
    assert close.units == 1 and close.bytes > 0


def test_a_process_that_is_gone_with_the_state_ends_the_query(make):
    job = make(**ONE_SLOT)
    gone = job.process()
    job.end(job.opened(0, gone))
    job.ends(gone)
    job.config = replace(job.config, deadline_s=0.2)
    task = job.opened(0, job.process())
    with pytest.raises(ServiceUnavailable, match=gone.server.address):
        until(lambda: False, lambda: job.barrier(task))


@pytest.fixture
def clock_of_task(monkeypatch):
    """By which it measures its deadline: passes only while the task waits, however slow the machine is."""
    clock = Clock()
    monkeypatch.setattr(slot_task, "time", clock)
    return clock


def test_a_slot_that_is_done_waits_for_another_one_of_its_process_however_long_that_takes(make, clock_of_task):
    job = make(**ONE_SLOT, deadline_s=0.1)
    task = job.begun()
    until(task.settled, task.wait)
    late = clock_of_task.now + 3 * job.config.deadline_s
    while clock_of_task.now < late:  # as the task of both does
        task.settled(), task.wait()
    assert task.settled()


def test_a_unit_is_lent_while_nobody_looks_which_ones_are(make):
    job = make()
    host, locked = job.process(), []

    class Noted(dict):
        def __setitem__(self, stay, state):
            locked.append(host._lock.locked())
            super().__setitem__(stay, state)

    host.lent = Noted()
    task = job.begun(host)
    job.publish(2, Step((Move(0, 0, 1),), mode=Mode(transfer="access")))
    job.barrier(task, 2)
    until(lambda: host.left_behind() == [0])
    assert locked == [True]


# -- state that slots share --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with served(RemoteSettings(), "job", Path("/")) as settings:
        yield {"backend_settings": settings.model_dump(), "backend_secret": settings.secret}


@pytest.fixture(params=["remote", "hybrid"])
def sharing(request, server, monkeypatch):
    """What the configuration of a job has whose slots share their state, of which no values may travel."""
    exported = []
    monkeypatch.setattr(RemoteState, "export", lambda state, chunk_bytes: exported.append(state) or iter(()))
    yield {"backend": request.param, **server}
    assert not exported


def test_the_next_holder_goes_on_with_state_that_slots_share(make, following, sharing):
    job = make(**ONE_SLOT, **sharing)
    first = job.process()
    job.end(job.begun(first, KEYS))
    task = job.begun(following(job, first))
    results = job.data(task, KEYS) + job.end(task)
    assert sorted((row["key"], row["count"]) for row in results) == [(key, 2) for key in KEYS]


@pytest.mark.parametrize("mode", [Mode(), Mode(transfer="remote", background=False)], ids=["push", "remote"])
def test_a_unit_whose_state_slots_share_moves_whole_and_without_a_copy(make, sharing, mode):
    job = make(slots=2, routers=1, **sharing)
    source, destination = tasks = [job.begun(slot=slot) for slot in (0, 1)]
    keys = job.keys_of(0)
    job.data(source, keys)
    job.nodes.publish(nodes.COPIES, nodes.CopiesWanted("one", (Move(0, 0, 1),), 0.01, 0, whole=False))
    until(lambda: job.nodes.read(nodes.copied("one")[0]))
    job.publish(2, Step((Move(0, 0, 1),), mode=mode))
    for task in tasks:
        job.barrier(task, 2)
    until(lambda: {"installed-1", "released-0"} <= set(job.nodes.children(nodes.acks(2))))
    assert job.nodes.read(nodes.copied("one")[0]).units == 0 and not source.shared.host.left_behind()
    results = job.data(destination, keys, 2)
    assert [(row["key"], row["count"]) for row in results] == [(key, 2) for key in keys]


# -- measures ----------------------------------------------------------------------------------------------------------


def measured(job, name):
    job.nodes.publish(nodes.MEASURE, name)
    until(lambda: job.nodes.read(nodes.measured(name)[0]))
    return job.nodes.read(nodes.measured(name)[0])


def test_what_a_slot_has_measured_is_not_lost_at_a_batch_boundary(make, following):
    job = make(**ONE_SLOT)
    first = job.process()
    task = job.begun(first, KEYS)
    task.effects.couriers.measures = {"fetched_bytes": 1000, "fetched_keys": 10, "written_bytes": 70}
    with patch.object(type(task.shared.core), "queued_bytes", 12345):
        job.tick(task, BEGIN_US)
    before = measured(job, "one")
    job.end(task)
    task = job.begun(following(job, first), [3])
    task.effects.couriers.measures = {"fetched_bytes": 5}
    after = measured(job, "two")
    job.end(task)
    assert (after.fetched_bytes, after.fetched_keys, after.written_bytes) == (1005, 10, 70)
    assert after.queue_peak_bytes == before.queue_peak_bytes == 12345
    assert sum(count for _, count in before.records) == 8 and sum(count for _, count in after.records) == 9
    assert after.seconds >= before.seconds > 0


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_is_sent_of_a_unit_before_the_last_time_is_measured(make, comes_back):
    job = make(routers=2)
    source, destination = job.begun(keys=job.keys_of(0)), job.begun(slot=1)
    key, *_ = job.keys_of(0)
    job.publish(2, Step((Move(0, 0, 1),), mode=Mode(transfer="fetch", fetch_back=2)))
    until(lambda: {"prepared-0", "prepared-1"} <= set(job.nodes.children(nodes.acks(2))))
    for task in (source, destination):
        job.barrier(task, 2)
    job.data(destination, [key], version=2)  # waits for the unit, so that it is lent
    until(lambda: 0 in destination.shared.core.machine.serving)
    if comes_back:
        job.data(source, [key], version=1, router=1)
        until(lambda: 0 in source.shared.core.machine.serving, source.wait)
    for task in (source, destination):
        job.barrier(task, 2, router=1)
    until(lambda: {"installed-1", "released-0"} <= set(job.nodes.children(nodes.acks(2))), source.wait)
    (left,) = job.nodes.read(nodes.acks(2)["released-0"]).units
    job.nodes.publish(nodes.MEASURE, "one")
    until(lambda: len(job.nodes.children(nodes.measured("one"))) == 2)
    lent = [job.nodes.read(nodes.measured("one")[slot]).lent_bytes for slot in range(2)]
    assert left.bytes > 0 and lent == [left.bytes * comes_back] * 2


def test_a_slot_fails_when_it_is_asked_to_and_no_other_nor_later(make, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *what: ended.append(what))
    job, fault, before = make(**ONE_SLOT), Fault("kill", "slot", "", None), now_us()
    job.opened(0, job.process())
    until(lambda: job.listens(nodes.FAULT))
    job.nodes.publish(nodes.FAULT, nodes.FaultNow(1, fault, now_us()))
    job.nodes.publish(nodes.FAULT, nodes.FaultNow(0, fault, before - 2_000_000))  # of a batch before
    assert not ended
    monkeypatch.setattr(answers, "now_us", lambda: now_us() + 10_000_000)  # ZooKeeper may be slow to tell
    job.nodes.publish(nodes.FAULT, nodes.FaultNow(0, fault, now_us()))
    assert ended == [(os.getpid(), signal.SIGKILL)]


def test_a_slot_fails_in_the_phase_of_its_fault(make, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *what: ended.append(what))
    job = make(**ONE_SLOT, faults=(Fault("kill", "slot", "snapshot", None),))
    task = job.begun()
    job.publish(2, Step((), snapshot="one"))
    assert not ended
    job.snapshot(task, 2, "one")
    assert len(ended) == 1


def test_a_fault_happens_once_though_batches_end_and_slots_come_to_its_phase_at_once(make, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *what: ended.append(what))
    faults = tuple(Fault("kill", "slot", phase, None) for phase in ("batch", "snapshot"))
    job = make(slots=2, routers=1, faults=faults)
    host = job.process()
    task = job.opened(0, host)
    job.nodes.acknowledge(nodes.FAULTS[1], nodes.of_slot(1))  # meanwhile
    task.shared.faults.reached("snapshot")
    assert not ended
    for _ in range(2):
        until(task.settled, task.wait)
        task.seal()
        task = job.opened(0, host)
    assert len(ended) == 1


def test_who_has_ended_its_batch_leaves_the_answer_to_the_next_holder(make):
    job = make(**ONE_SLOT)
    host = job.process()
    task = job.opened(0, host)
    until(lambda: job.listens(nodes.MEASURE))
    until(task.settled, task.wait)
    task.seal()
    job.nodes.publish(nodes.MEASURE, "one")
    assert job.nodes.read(nodes.measured("one")[0]) is None
    job.opened(0, host)
    until(lambda: job.nodes.read(nodes.measured("one")[0]))


# -- protocol log ------------------------------------------------------------------------------------------------------


def told(events):
    """Events without their times; the place is that of the log."""
    assert all(event.at_us for event in events)
    return [event[2:] for event in events]


def asked(job, name, place):
    job.nodes.publish(nodes.LOG, name)
    until(lambda: job.nodes.read(nodes.logs(name)[place]))
    return told(job.nodes.read(nodes.logs(name)[place]))


def test_both_slots_of_a_move_tell_of_it_when_they_are_asked(make):
    job = make(slots=2, routers=1)
    tasks = [job.begun(slot=slot) for slot in (0, 1)]
    job.publish(2, STEP)
    for task in tasks:
        job.barrier(task, 2)
    until(lambda: {"installed-1", "released-0"} <= set(job.nodes.children(nodes.acks(2))))
    source, destination = (asked(job, "one", f"slot-{slot}") for slot in (0, 1))
    begin = [
        ("begin", (), 1, 0, ""),
        ("barrier", (), 1, 0, "router-0"),
        ("published", (), 2, 0, ""),
        ("prepared", (), 2, 0, ""),
    ]
    assert source == [
        *begin,
        ("barrier", (), 2, 0, "router-0"),
        ("send", (0,), 2, 1, "slot-1"),
        ("acknowledged", (0,), 2, 1, ""),
        ("released", (0,), 2, 0, ""),
    ]
    assert destination[:4] == begin
    assert sorted(destination[4:]) == [
        ("arrived", (0,), 2, 1, ""),
        ("barrier", (), 2, 0, "router-0"),
        ("installed", (0,), 2, 0, ""),
    ]


def test_a_slots_log_goes_on_in_the_next_batch(make, following):
    job = make(**ONE_SLOT)
    first = job.process()
    task = job.begun(first)
    job.end(task)
    task = job.begun(following(job, first))
    events = [event for event, *_ in asked(job, "one", "slot-0") if event != "arrived"]
    assert events == ["begin", "barrier", "end of input", "begin", "barrier"]


def test_a_task_that_fails_tells_what_led_to_that(make, capfd):
    job = make(**ONE_SLOT)
    task = job.begun()
    with pytest.raises(ProtocolViolation):
        job.barrier(task, router=7)
    task.report()
    ((_, events),) = job.nodes.read_below(nodes.ENDED_LOGS).items()
    assert {event.place for event in events} == {"slot-0"}
    assert told(events)[-2:] == [("barrier", (), 1, 0, "router-0"), ("barrier", (), 1, 0, "router-7")]
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("slot-0 fails")
    assert json.loads(said[-1])["other"] == "router-7"


# -- savepoints --------------------------------------------------------------------------------------------------------


def acknowledged(job, slot=0):
    answer = job.nodes.read(nodes.saved("sp")[nodes.of_slot(slot)])
    return answer and answer.locations


def test_what_a_slot_has_acknowledged_of_a_savepoint_can_be_read_if_it_spans_a_batch_boundary(make, following):
    job = make(**ONE_SLOT)
    host = job.process()
    task = job.begun(host, KEYS)
    job.savepoint(task)
    until(lambda: acknowledged(job))
    first = acknowledged(job)
    (name,) = job.bucket.objects
    job.end(task)
    task = job.settled(following(job, host))
    for unit, key in enumerate(map(job.keys_of, range(4))):  # as nobody does it, but then it is seen what is read
        task.shared.core.states[unit].values[key[0]] = (99, b"")
    job.barrier(task)
    job.savepoint(task)
    until(lambda: len(job.bucket.objects) == 2)
    assert acknowledged(job) == first and {f"savepoints/job/{place.segment}" for place in first} == {name}
    counts = [row["count"] for place in first for batch in read(job.store(), place)[0] for row in batch.to_pylist()]
    assert counts == [1] * 8


def test_a_batch_does_not_end_before_its_savepoint_is_written_and_said(make, monkeypatch, clock_of_task):
    """Otherwise a savepoint that takes longer than a batch would begin anew for ever."""
    job = make(**ONE_SLOT, deadline_s=0.2)
    task, goes_on, put = job.opened(0, job.process()), threading.Event(), job.bucket.put_object
    monkeypatch.setattr(job.bucket, "put_object", lambda *what, **more: goes_on.wait(60) and put(*what, **more))
    job.barrier(task)
    job.data(task, KEYS)
    said = []

    def wait():
        said.extend(facts.said and facts.said.marker.kind for _, facts in job.frames(task.wait()))

    job.savepoint(task)
    slow = clock_of_task.now + 2 * job.config.deadline_s
    while clock_of_task.now < slow:
        wait()
        assert not task.settled(), "it is not written"
    assert "sealed" not in said
    goes_on.set()
    until(task.settled, wait)
    assert "sealed" in said


@pytest.fixture
def clock(monkeypatch):
    """Processing time, in microseconds: what is set to a moment in the first batch is due in the second."""

    class Clock:
        now_us = 7 * BEGIN_US

    for module in (arrivals, intake, slot_task):
        monkeypatch.setattr(module, "now_us", lambda: Clock.now_us)
    monkeypatch.setattr(computation, "TIMERS_EVERY_US", 0)
    return Clock


def test_timers_fire_in_a_new_batch_when_each_router_has_told_the_time(make, following, clock):
    job = make(slots=1, routers=2, **TIMED)
    host = job.process()
    task = job.begun(host, KEYS)
    job.end(task)
    task = job.settled(following(job, host))
    clock.now_us += BEGIN_US
    for router in (0, 1):
        assert not job.barrier(task, router=router)
    assert not job.tick(task, BEGIN_US * 2, router=0), "router 1 may stand at a savepoint"
    fired = job.tick(task, BEGIN_US * 2, router=1)
    for kind in (WINDOW, IDLE):
        assert sorted(row["key"] for row in fired if row["kind"] == kind) == [*KEYS]


def test_times_of_what_was_restored_are_those_of_the_restored_units_whatever_else_arrives(make, monkeypatch):
    """What comes from other slots meanwhile is written down by other threads."""
    job = make(slots=1, routers=1)
    task = job.begun(keys=KEYS)
    job.savepoint(task)
    until(lambda: acknowledged(job))
    manifest = SavepointManifest()
    said = {"slot-0": job.nodes.read(nodes.saved("sp")["slot-0"])}
    manifest.add("counter", said, job.nodes.read(nodes.ASSIGNMENT).assignment)
    job.store().commit("sp", manifest)
    job.end(task)
    job.nodes.withdraw(nodes.HANDOVERS[0])
    job.config = replace(job.config, restore="sp")
    looked = []

    def made(shared, turn, times):
        class Incoming(dict):
            def __contains__(self, unit):
                looked.append(shared.lock.locked())
                return super().__contains__(unit)

        return arrivals.Arrivals(shared, turn, Incoming({99: (0, 0)}))  # a unit that came with a step

    monkeypatch.setattr(opening, "Arrivals", made)
    task = job.opened(0, job.process())
    until(lambda: job.nodes.read(nodes.RESTORED[0]))
    assert [unit for unit, *_ in job.nodes.read(nodes.RESTORED[0]).units] == [0, 1, 2, 3]
    assert looked and all(looked)
    assert [row["count"] for row in job.barrier(task) + job.data(task, KEYS)] == [2] * 8


# -- moves that end with a batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2])
def test_an_acknowledgement_that_is_lost_as_the_destination_ends_its_batch_is_given_again(make, monkeypatch, lost):
    """However often: the source cannot end its own before, and without that the next one does not begin."""
    sealed, calls = threading.Event(), []

    class Losing(StateClients):
        def push(self, *what):
            calls.append(what)
            if len(calls) > 1:
                assert sealed.wait(DEADLINE_S)
            if len(calls) > lost:
                return super().push(*what)
            super().push(*what[:-1], lambda _: None)
            raise ServiceUnavailable("the acknowledgement is lost")

    monkeypatch.setattr(opening, "StateClients", Losing)
    job = make(slots=2, routers=1, deadline_s=60.0)
    tasks = [job.begun(slot=slot) for slot in (0, 1)]
    key = job.keys_of(0)[0]
    job.data(tasks[0], [key])
    job.publish(2, STEP)
    for task in tasks:
        job.barrier(task, 2)
    results = job.data(tasks[1], [key], 2) + job.end(tasks[1])
    sealed.set()
    job.end(tasks[0])
    assert len(calls) == lost + 1
    assert job.nodes.read(nodes.HANDOVERS[1]).units == (0, 2, 3) and job.nodes.read(nodes.HANDOVERS[0]).units == (1,)
    assert {"installed-1", "released-0"} <= set(job.nodes.children(nodes.acks(2)))
    assert [row["count"] for row in results] == [2]


def test_a_slot_whose_batch_is_over_has_what_came_before_and_takes_nothing_newer():
    slot = EndedSlot(1, 7)
    assert slot.shipments_arrived([Shipment(3, 6), Shipment(4, 7)]) == [True, True]
    slot.message(OfStep(1, (Wanted(3, 7, 0, 1),), (Opened(4, 6),)))
    for shipments in ([Shipment(3, 8)], [Shipment(3, 7), Shipment(4, 8)]):
        with pytest.raises(KeyshiftError, match="slot 1 ended its batch at version 7, this is of 8"):
            slot.shipments_arrived(shipments)
    for newer in (OfStep(1, (Wanted(3, 8, 0, 1),)), OfStep(1, (), (Opened(4, 6), Opened(5, 8)))):
        with pytest.raises(KeyshiftError, match="this is of 8"):
            slot.message(newer)
