"""A router whose slots work in turns answers for what is appointed, from batch to batch; ZooKeeper is in memory."""

import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from small_behind import Behind
from small_job import CONFIG

from keyshift.model import frames
from keyshift.model.errors import ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Assignment, SlotId
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, SAVEPOINT
from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.spark_rows import answered, received
from keyshift.worker import attempt as worker_attempt
from keyshift.worker import router as routing
from keyshift.worker.turn_router import make_router

H = 20_000
CONFIG = replace(CONFIG, ordering="live_robin", heartbeat_us=H)
FIRST, SECOND = (Assignment(version, (SlotId(0), SlotId(1)) * 2) for version in (1, 2))


@pytest.fixture
def driver(monkeypatch):
    driver = MemoryCoordination(Memory(), CONFIG.root)
    monkeypatch.setattr(routing, "Coordination", lambda _, root, secret: MemoryCoordination(driver.memory, root))
    driver.begin()
    driver.publish(nodes.ASSIGNMENT, PublishAssignment(FIRST))
    return driver


def appoint(driver, epoch, holds=False):
    driver.publish(nodes.ASSIGNMENT, PublishAssignment(SECOND, appointment=Appointment(epoch, holds), before=FIRST))


def say(task, offset, epoch):
    """Kind and version of the barriers that slot 0 gets with a frame without events."""
    value = frames.encode(frames.empty(CONFIG.make_source().schema), frames.Facts(epoch * H))
    rows = task.frame(0, offset, pa.py_buffer(value))
    barriers = [row for slot, value in rows if slot == 0 for row in received(answered([value])) if row.kind >= BARRIER]
    return [(row.kind, row.version) for row in barriers if row.kind in (BARRIER, SAVEPOINT)]


def confirmed(driver, what="2"):
    return {nodes.epoch_and_router(name): said for name, said in driver.read_below(nodes.confirmed(what)).items()}


@pytest.fixture
def task(driver):
    """A router that has come to epoch 5."""
    task = make_router(CONFIG)
    say(task, 0, 5)
    return task


def test_a_router_confirms_what_is_ahead_and_says_so_if_it_has_come_further(driver, task):
    appoint(driver, 5)
    appoint(driver, 8)
    assert confirmed(driver) == {(5, 0): False, (8, 0): True}
    appoint(driver, 8, holds=True)
    assert say(task, 1, 7) == [] and say(task, 2, 8) == [(BARRIER, 2)]


def test_a_frame_waits_until_it_is_known_whether_what_comes_before_it_holds(driver, task):
    said = []
    appoint(driver, 6)
    waiting = threading.Thread(target=lambda: said.append(say(task, 1, 6)))
    waiting.start()
    waiting.join(0.05)
    assert not said
    appoint(driver, 6, holds=True)
    waiting.join(60)
    assert said == [[(BARRIER, 2)]]


def test_a_frame_does_not_wait_for_what_nobody_decides_any_more(driver, monkeypatch):
    """The query is over, and with it who would decide: the process would stay until Spark ends."""
    monkeypatch.setattr(worker_attempt, "LOOK_S", 0.01)
    task, ends = make_router(CONFIG), []

    def wait():
        with pytest.raises(ServiceUnavailable, match="attempt 0 of job job is over"):
            say(task, 1, 6)
        ends.append(True)

    say(task, 0, 5)
    appoint(driver, 6)
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    MemoryCoordination(driver.memory, nodes.of_job(CONFIG.job)).withdraw(nodes.ALL)
    waiting.join(60)
    assert ends


def test_between_two_batches_a_router_confirms_nothing_and_what_it_has_left_says_how_far_it_came(driver, task):
    task.hand_over()
    assert driver.read(nodes.ROUTERS[0]) == 5 * H
    appoint(driver, 7)
    assert confirmed(driver) == {}
    following = make_router(CONFIG)
    assert driver.read(nodes.ROUTERS[0]) == 5 * H, "it does not know yet which router it is"
    assert say(following, 1, 6) == [(BARRIER, 1)], "with which each batch begins"
    assert driver.read(nodes.ROUTERS[0]) is None and confirmed(driver) == {(7, 0): True}
    appoint(driver, 7, holds=True)
    following.hand_over()
    third = make_router(CONFIG)
    assert say(third, 2, 7) == [(BARRIER, 2)]
    third.hand_over()
    assert say(make_router(CONFIG), 3, 8) == [(BARRIER, 2)], "it has switched in the batch before"


def test_a_router_whose_server_of_zookeeper_is_behind_knows_how_far_it_came_and_what_is_appointed(
    driver, task, monkeypatch
):
    then = dict(driver.memory.nodes)
    task.hand_over()
    appoint(driver, 7)
    monkeypatch.setattr(routing, "Coordination", lambda _, root, secret: Behind(driver.memory, root, then))
    say(make_router(CONFIG), 1, 6)
    assert confirmed(driver) == {(7, 0): True}


def test_a_router_that_was_not_asked_and_has_passed_what_holds_ends(driver, task):
    say(task, 1, 7)
    appoint(driver, 6, holds=True)
    with pytest.raises(ProtocolViolation, match="2 comes behind epoch 6, and the router is at 7"):
        say(task, 2, 8)


def test_a_router_without_a_session_ends_as_it_would_never_hear_what_is_appointed(driver, task):
    task.coordination.lose()
    with pytest.raises(ServiceUnavailable):
        say(task, 1, 6)


def test_a_savepoint_is_said_once_and_the_next_frame_is_the_first_behind_it(driver, task):
    driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("s", Appointment(6)))
    assert confirmed(driver, "s") == {(6, 0): True}
    driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("s", Appointment(6, holds=True)))
    assert say(task, 1, 6) == [(SAVEPOINT, 1)]
    assert driver.read(nodes.saved("s")[nodes.of_router(0)]) == nodes.RouterSaved(2, 6 * H)
    task.hand_over()
    assert say(make_router(CONFIG), 2, 7) == [(BARRIER, 1)]


def test_a_capture_is_said_in_one_batch_and_no_frame_waits_for_one_that_was_taken_back(driver, task):
    for holds in (False, True):
        driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("c", Appointment(6, holds), stops=False))
    say(task, 1, 6)
    assert driver.read(nodes.saved("c")[nodes.of_router(0)]) == nodes.RouterSaved(2, 6 * H)
    task.hand_over()
    following = make_router(CONFIG)
    assert say(following, 2, 7) == [(BARRIER, 1)]
    driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("d", Appointment(8), stops=False))
    driver.publish(nodes.SAVEPOINT, nodes.SavepointCalled("d", stops=False))
    assert say(following, 3, 8) == [] and driver.read_below(nodes.saved("d")) == {}
