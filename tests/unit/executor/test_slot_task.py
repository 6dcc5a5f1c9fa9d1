import threading
import time
from types import SimpleNamespace

import pytest
from small_job import CONFIG

from keyshift.errors import MigrationFailed, ServiceUnavailable
from keyshift.executor import slot_task
from keyshift.executor.slot_task import DRAIN_RECORDS, SlotTask
from keyshift.keys import Mode, Move, Step
from keyshift.protocol.slot import SlotMachine

COME = 3 * DRAIN_RECORDS  # records with each row: more than a slice has at least


@pytest.fixture
def slot(monkeypatch):
    """Slot 1 of a job, to which unit 0 is on its way; all it does with records is to count them."""
    monkeypatch.setattr(slot_task, "DRAIN_S", -1.0)  # no time at all
    made = object.__new__(SlotTask)
    made.slot, made._lock, made._trouble, made._marker = 1, threading.Lock(), None, None
    made._deadline, made._progress, made._parting = 0.0, (), []
    made._coordination = SimpleNamespace(check=lambda: None)
    made._clients, made._host = SimpleNamespace(moved_at=0.0), SimpleNamespace(server=SimpleNamespace(moved_at=0.0))
    made._config, made._undrained_bytes, made._drained, made.done = CONFIG, 0, [], []
    made._machine = SlotMachine(1, routers=1, version=1)
    made._waits, made._closed = threading.Event(), threading.Event()
    made._partial = SimpleNamespace(waiting_bytes=0, drain=lambda most, now: ([], []), ask=lambda: None)
    made._operation = SimpleNamespace(process_all=lambda records, now=None: made.done.extend(records) or [])
    made._acknowledge = lambda *_: None
    made._incoming = {0: [0, 0]}
    made._machine.prepare(2, Step((Move(0, 0, 1),)))
    made._machine.barrier(0, 2)
    made.sent = 0
    return made


def row(slot):
    slot._drain()
    for _ in range(COME):
        if slot._machine.admit(0, 2, {0}):
            slot._machine.hold(0, 0, slot.sent, 100)
        else:
            slot.done.append(slot.sent)
        slot.sent += 1


def test_what_has_waited_is_done_in_the_end_even_if_more_comes_than_there_is_time_for(slot):
    for _ in range(10):
        row(slot)
    assert slot.done == []
    slot._machine.arrived(0)
    for _ in range(11):
        row(slot)
    assert slot._machine.queued_bytes == 0
    assert slot.done == list(range(21 * COME))


def test_records_whose_rows_would_have_to_wait_for_keys_stay_where_they_are_while_there_is_no_room(slot):
    row(slot)
    slot._machine.arrived(0)
    slot._partial.waiting_bytes = CONFIG.queue_bytes
    slot._drain()
    assert slot.done == []
    slot._partial.waiting_bytes = 0
    for _ in range(COME // DRAIN_RECORDS):
        slot._drain()
    assert slot.done == list(range(COME))


def test_a_slot_that_would_not_hear_of_a_step_ends(slot):
    def lost():
        raise ServiceUnavailable("away")

    slot._coordination = SimpleNamespace(check=lost)
    for call in (lambda: slot.on_rows([]), slot.wait):
        with pytest.raises(ServiceUnavailable):
            call()


def test_a_unit_is_not_kept_for_good_because_of_what_was_said_of_an_earlier_step(slot):
    slot._lock = threading.Lock()
    slot._machine = SlotMachine(1, routers=2, version=4)
    slot._machine.prepare(5, Step((Move(0, 0, 1),), Mode(transfer="fetch", fetch_back=2)))
    slot._machine.barrier(0, 5)
    slot._machine.arrived(0, frozenset({0}))
    slot.message({"slot": 1, "wanted": [], "opened": [[0, 2]]})
    assert slot._machine.is_lent(0, 5)
    slot.message({"slot": 1, "wanted": [], "opened": [[0, 5]]})
    assert not slot._machine.is_lent(0, 5)


def test_a_slot_stops_reading_while_more_waits_than_there_is_room_for(slot):
    row(slot)
    assert not slot.stalled()
    slot._machine.hold(0, 0, slot.sent, CONFIG.queue_bytes)
    assert slot.stalled()
    slot._machine.arrived(0)
    slot._drain()
    assert not slot.stalled()


def test_records_that_wait_for_keys_stop_a_slot_whatever_step_is_prepared(slot):
    """Their keys come from where nobody reads, and the next step may be long in coming."""
    slot._machine.arrived(0)
    slot._machine.prepare(3, Step((Move(0, 1, 0),)))
    assert not slot._machine.may_stall
    slot._partial.waiting_bytes = CONFIG.queue_bytes
    assert slot.stalled()
    slot._partial.waiting_bytes -= 1
    assert not slot.stalled()


@pytest.mark.parametrize("who", ["comes", "goes", "units"])
def test_behind_its_input_a_slot_waits_as_long_as_something_comes_or_goes(slot, who):
    """A large unit takes its time, and so do many."""
    assert not slot.settled()
    slot._deadline = time.monotonic() - 1
    match who:
        case "comes":
            slot._host.server.moved_at += 1
        case "goes":
            slot._clients.moved_at += 1
        case "units":
            slot._machine.arrived(0)
    slot.settled()
    assert slot.wait() == []
    slot._deadline = time.monotonic() - 1
    slot.settled()
    with pytest.raises(MigrationFailed, match="nothing has come or gone for 30 s"):
        slot.wait()


def test_what_can_be_done_is_done_without_a_row(slot, monkeypatch):
    """Another slot may have stopped the routers until this one has done it."""
    monkeypatch.setattr(slot_task, "ASIDE_S", 0.001)
    asked = threading.Event()
    slot._partial.ask = asked.set
    row(slot)
    slot._machine.arrived(0)
    slot._waits.set()
    worker = threading.Thread(target=slot._go_on)
    worker.start()
    assert asked.wait(10)
    slot._end()
    worker.join()
    assert slot.done == list(range(COME)) and slot._trouble is None


def test_trouble_beside_the_rows_is_told(slot, monkeypatch):
    monkeypatch.setattr(slot_task, "ASIDE_S", 0.001)
    error = ValueError("a bug")
    slot._waits.set()

    def fails():
        raise error

    slot._partial.ask = fails
    slot._go_on()
    assert slot._trouble is error
