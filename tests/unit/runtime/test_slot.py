"""What a slot decides around the protocol's machine: how much it drains, when it is full, what it asks for again."""

from types import SimpleNamespace

import numpy as np
import pytest

from keyshift.model.keys import Mode, Move, Step
from keyshift.model.messages import encode
from keyshift.protocol.slot import Request, SlotMachine
from keyshift.runtime.row import DATA, MOVED, SNAPSHOT, Row
from keyshift.runtime.slot import DRAIN_RECORDS, Cut, SlotCore
from keyshift.runtime.succession import ChangeOfHands, UnitsMoved

COME = 3 * DRAIN_RECORDS  # records with each row: more than a slice has at least
MOST = 1 << 20


class Core(SlotCore):
    """Beside a computation that does what it is given with events and records."""

    def __init__(self, machine, operator=None, routers=1, **computed):
        keys = SimpleNamespace(waiting_bytes=0, drain=lambda most, now: ([], []), ask=lambda: None, errands=[])
        nothing = dict.fromkeys(("process_all", "timers_due", "came", "checkpoint"), lambda *_, **__: [])
        computation = SimpleNamespace(**nothing | computed)
        super().__init__(machine, operator, keys, computation, {}, MOST, [0] * routers)


class Slot(Core):
    """Slot 1 of a job, to which unit 0 is on its way; all it does with records is to count them."""

    def __init__(self):
        machine = SlotMachine(1, routers=1, version=1)
        super().__init__(machine, process_all=lambda records, *_, **__: self.done.extend(records) or [])
        self.done, self.sent = [], 0
        self.published(2, [(2, Step((Move(0, 0, 1),)))])
        self.machine.barrier(0, 2)

    def go_on(self):
        self.drain(0, lambda: False)  # no time at all

    def row(self):
        self.go_on()
        for _ in range(COME):
            if self.machine.admit(0, 2, {0}):
                self.machine.hold(0, 0, self.sent, 100)
            else:
                self.done.append(self.sent)
            self.sent += 1


@pytest.fixture
def slot():
    return Slot()


def test_what_has_waited_is_done_in_the_end_even_if_more_comes_than_there_is_time_for(slot):
    for _ in range(10):
        slot.row()
    assert slot.done == []
    slot.machine.arrived(0)
    for _ in range(11):
        slot.row()
    assert slot.machine.queued_bytes == 0
    assert slot.done == list(range(21 * COME))


def test_as_long_as_there_is_time_more_of_what_has_waited_is_done(slot):
    slot.row()
    slot.go_on()
    slot.machine.arrived(0)
    time = iter([True, False, False])
    slot.drain(0, lambda: next(time))
    assert slot.done == list(range(2 * DRAIN_RECORDS))


def test_records_whose_rows_would_have_to_wait_for_keys_stay_where_they_are_while_there_is_no_room(slot):
    slot.row()
    slot.machine.arrived(0)
    slot.keys.waiting_bytes = MOST
    slot.go_on()
    assert slot.done == []
    slot.keys.waiting_bytes = 0
    for _ in range(COME // DRAIN_RECORDS):
        slot.go_on()
    assert slot.done == list(range(COME))


def test_a_unit_is_not_kept_for_good_because_of_what_was_said_of_an_earlier_step(slot):
    slot.machine = SlotMachine(1, routers=2, version=4)
    slot.published(5, [(5, Step((Move(0, 0, 1),), Mode(transfer="fetch", fetch_back=2)))])
    slot.machine.barrier(0, 5)
    slot.machine.arrived(0, frozenset({0}))
    slot.opened(0, 2)
    assert slot.machine.is_lent(0, 5)
    slot.opened(0, 5)
    assert not slot.machine.is_lent(0, 5)


def test_a_slot_is_full_while_more_waits_than_there_is_room_for(slot):
    slot.row()
    assert not slot.full
    slot.machine.hold(0, 0, slot.sent, MOST)
    assert slot.full
    slot.machine.arrived(0)
    slot.drain(0, lambda: True)
    assert not slot.full


def test_a_slot_that_is_full_asks_for_what_records_wait_for_also_if_it_was_fuller_before(slot):
    def requests():
        slot.on_rows([], 0, lambda: False)
        return [effect.unit for effect in slot.take_effects() if isinstance(effect, Request)]

    slot.machine.hold(0, 0, slot.sent, 2 * MOST)
    assert requests() == [0]
    slot.arrived(0, 2, 1, None, object(), None)
    slot.drain(0, lambda: True)
    assert slot.machine.settled and slot.queue_peak_bytes == 2 * MOST
    slot.published(3, [(3, Step((Move(1, 0, 1),)))])
    slot.machine.barrier(0, 3)
    slot.machine.hold(1, 0, slot.sent, MOST + 1)
    assert requests() == [1]


def test_what_a_router_says_behind_a_snapshot_keeps_its_order_if_a_unit_moves_to_it_meanwhile():
    """In the stage before, from router 1 to router 0, which stands at the snapshot while router 1 does not."""
    done, machine = [], SlotMachine(0, routers=2, serving=[0], version=1)
    operator = SimpleNamespace(events=bytes.decode, units=lambda events: np.array([0]))
    core = Core(machine, operator, 2, process=lambda events, where, now: done.append(events) or [])
    core.published(2, [(2, Step((), snapshot="s"))])

    def take(router, kind, payload=b""):
        core.on_rows([Row(kind, router, 2, 0, 0, payload)], 0, lambda: True)

    def moved(router, left):
        changes = [(ChangeOfHands(7, 3, 1),), ()]
        take(router, MOVED, encode(UnitsMoved(*(reversed(changes) if left else changes))))

    take(0, SNAPSHOT)
    take(0, DATA, b"first")
    moved(0, left=False)
    take(0, DATA, b"third")
    assert done == []
    take(1, SNAPSHOT)
    take(1, DATA, b"second")
    moved(1, left=True)
    assert done == ["first", "second", "third"]


def test_what_waited_before_a_snapshot_is_processed_under_the_version_before_it():
    """Its timers' results say so: the snapshot has the state behind them, and they would count twice or not at all."""
    machine, versions = SlotMachine(0, routers=1, expected=[0], version=1), []
    core = Core(machine, process_all=lambda found, *_, **__: [versions.append(machine.version_of(0)) for _ in found])
    core.published(2, [(2, Step((), snapshot="s"))])
    machine.barrier(0, 1)
    machine.admit(0, 1, {0})
    machine.hold(0, 0, "a record", 1)
    core.on_rows([Row(SNAPSHOT, 0, 2, 0, 0, b"")], 0, lambda: True)
    machine.arrived(0)
    core.on_rows([], 0, lambda: True)
    assert versions == [1]
    assert core.take_results() == [None, Cut("s", True)]
    assert machine.version_of(0) == 2
