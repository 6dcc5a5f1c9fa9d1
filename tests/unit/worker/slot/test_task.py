"""What a slot does when its input ends, when ZooKeeper is away, and beside the rows."""

import threading
import time
from dataclasses import replace
from unittest.mock import Mock, PropertyMock, patch

import pytest
from small_job import CONFIG

from keyshift.model.errors import Damaged, MigrationFailed, ProtocolViolation, ServiceUnavailable
from keyshift.model.keys import Move, Step
from keyshift.runtime.slot import SlotCore
from keyshift.state.memory import MemoryState
from keyshift.wire import nodes
from keyshift.worker.flight.messages import OfStep, Shipment, Wanted
from keyshift.worker.slot import task as slot_task
from keyshift.worker.slot.host import host_for
from waits import until


@pytest.fixture
def job(make, monkeypatch):
    monkeypatch.setattr(slot_task, "ASIDE_S", 0.001)
    return make()


@pytest.fixture
def slot(job):
    return job.opened(0, job.process())


def test_a_slot_that_would_not_hear_of_a_step_ends(slot, monkeypatch):
    monkeypatch.setattr(slot.shared.coordination, "check", Mock(side_effect=ServiceUnavailable("away")))
    for call in (lambda: slot.on_rows([]), slot.wait):
        with pytest.raises(ServiceUnavailable):
            call()


@pytest.mark.parametrize("who", ["comes", "goes", "units"])
def test_behind_its_input_a_slot_waits_as_long_as_something_comes_or_goes(job, slot, who):
    """A large unit takes its time, and so do many."""
    job.publish(2, Step((Move(2, 1, 0), Move(3, 1, 0))))
    job.barrier(slot, 2)
    assert not slot.settled()
    slot.deadline = time.monotonic() - 1
    match who:
        case "comes":
            slot.shared.host.server.moved_at += 1
        case "goes":
            slot.shared.clients.moved_at += 1
        case "units":
            assert slot.shipments_arrived([Shipment(2, 2, hop=1)]) == [True]
    slot.settled()
    assert slot.wait() == []
    slot.deadline = time.monotonic() - 1
    slot.settled()
    with pytest.raises(MigrationFailed, match=r"3\] is elsewhere, and nothing has come or gone for 30 s"):
        slot.wait()


def over(slot):
    """Its deadline is, behind its rows."""
    slot.deadline = time.monotonic() - 1


def test_behind_its_rows_a_slot_waits_for_one_that_has_more_but_not_for_one_that_waits_for_it(job, slot):
    """A barrier may be behind the rows of that one, and so the state that this one waits for."""
    other = job.opened(1, job.process())
    over(slot)
    slot.wait()
    assert slot.deadline > time.monotonic()
    over(other)
    with pytest.raises(MigrationFailed, match="slot 1: the batch is over"):
        other.wait()


def test_a_slot_behind_its_rows_waits_for_one_to_which_something_has_come_since(job, slot):
    other = job.opened(1, job.process())
    job.publish(2, Step((Move(2, 1, 0),)))
    job.barrier(slot, 2)
    assert not slot.settled()
    over(slot)
    slot.wait()
    slot.shared.host.server.moved_at += 1
    assert not slot.settled()
    over(other)
    other.wait()
    assert other.deadline > time.monotonic()


def test_a_slot_behind_its_rows_does_not_wait_for_one_whose_batch_is_over(job, slot):
    other = job.opened(1, job.process())
    over(slot)
    slot.wait()
    job.end(slot)
    assert not job.nodes.children(nodes.WAITING)
    over(other)
    with pytest.raises(MigrationFailed):
        other.wait()


def test_a_slot_behind_its_rows_does_not_wait_for_one_of_its_own_process_which_has_no_more_either(job, slot):
    """Nor says one that has all its state that some is elsewhere."""
    job.opened(1, slot.shared.host)
    over(slot)
    with pytest.raises(MigrationFailed, match="over, a step, rows or results wait for others, and nothing"):
        slot.wait()


@pytest.fixture
def something_waits():
    with patch.object(SlotCore, "waits", PropertyMock(return_value=True)):
        yield


def test_what_can_be_done_is_done_without_a_row(slot, monkeypatch, something_waits):
    """Another slot may have stopped the routers until this one has done it."""
    drained = threading.Event()
    monkeypatch.setattr(slot.shared.core, "drain", lambda *_: drained.set())
    with slot.effects.turn():
        pass
    assert drained.wait(60)
    assert slot.shared.background.error is None


def test_trouble_beside_the_rows_is_told(slot, monkeypatch, something_waits):
    error = ValueError("a bug")
    monkeypatch.setattr(slot.shared.core, "drain", Mock(side_effect=error))
    with slot.effects.turn():
        pass
    until(lambda: slot.shared.background.error is error)
    with pytest.raises(ValueError, match="a bug"):
        slot.wait()


def test_a_unit_that_another_slot_asks_for_while_it_waits_to_be_sent_goes_next(job, slot, monkeypatch):
    hurried = []
    monkeypatch.setattr(slot.effects.departures, "hurry", hurried.append)
    job.publish(2, Step((Move(0, 0, 1),)))
    job.barrier(slot, 2)  # slot 1 has no address yet
    slot.message(OfStep(0, (Wanted(0, 2, 0, 0),)))
    assert hurried == [0]


@pytest.mark.parametrize(
    ("error", "ends"),
    [(OSError("no space left on device"), True), (ServiceUnavailable("away"), False), (Damaged("it is damaged"), True)],
    ids=["for good", "for now", "damaged"],
)
def test_state_that_comes_and_cannot_be_built_ends_the_slot_unless_it_is_sent_again_with_success(
    job, slot, monkeypatch, error, ends
):
    job.publish(2, Step((Move(2, 1, 0),)))
    shipment = Shipment(2, 2, hop=1)
    with monkeypatch.context() as broken:
        broken.setattr(MemoryState, "install", Mock(side_effect=error))
        with pytest.raises(type(error)):
            slot.shipments_arrived([shipment])
    assert slot.shared.background.error is (error if ends else None)
    assert slot.shipments_arrived([shipment]) == [True] and 2 in slot.shared.core.states


def test_what_cannot_be_built_when_it_comes_twice_at_the_same_time_is_no_trouble(job, slot, monkeypatch):
    """What came first may have taken from it what it is made of."""
    job.publish(2, Step((Move(2, 1, 0),)))
    shipment, install = Shipment(2, 2, hop=1), MemoryState.install

    def late(state, batches):
        monkeypatch.setattr(MemoryState, "install", install)
        assert slot.shipments_arrived([shipment]) == [True]
        raise ProtocolViolation("it has gone")

    monkeypatch.setattr(MemoryState, "install", late)
    with pytest.raises(ProtocolViolation):
        slot.shipments_arrived([shipment])
    assert slot.shared.background.error is None


def test_a_process_has_one_host_for_a_stage_and_another_one_for_the_next_attempt():
    first = host_for(CONFIG)
    assert host_for(CONFIG) is first
    second = host_for(replace(CONFIG, attempt=1))
    third = host_for(CONFIG)
    assert len({first, second, third}) == 3, "one at a time"
    third.close()
