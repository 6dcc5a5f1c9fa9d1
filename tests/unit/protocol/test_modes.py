"""The slot in the other modes of a step, one sentence at a time; how all behave together is in tests/property."""

from small_steps import drain, step

from keyshift.model.keys import Mode
from keyshift.protocol import SlotMachine
from keyshift.protocol.slot import Prepared, Request, Send

BLOCK, FETCH = Mode(gate="slots"), Mode(transfer="fetch")
LEND, LAZY = Mode(transfer="fetch", fetch_back=2), Mode(transfer="access", background=False)
BACK, ONE = frozenset[int](), frozenset({1})


def test_the_gate_is_open_until_the_first_barrier():
    slot = SlotMachine[str](0, routers=2, serving=[0], expected=[1], version=1)
    slot.barrier(0, 1)
    slot.barrier(1, 1)
    slot.admit(0, 1, {1})
    slot.hold(1, 0, "a")
    slot.prepare(2, step((0, 0, 1), mode=BLOCK))
    slot.arrived(1)
    assert slot.idle([0]) == [0], "time passes"
    assert drain(slot, 9) == (["a"], [])
    assert slot.admit(1, 1, {0, 1}) == frozenset()
    slot.barrier(0, 2)
    assert slot.idle([0, 1]) == [] and slot.admit(0, 2, {1}) == {1}


def destination(mode: Mode) -> SlotMachine[str]:
    """Slot 1, where units 0 and 3 of slot 0 are to arrive; router 1 has switched."""
    slot = SlotMachine[str](1, routers=2, serving=[5], version=1)
    assert slot.prepare(2, step((0, 0, 1), (3, 0, 1), mode=mode)) == [Prepared(2)]
    slot.barrier(0, 1)
    slot.barrier(1, 2)
    return slot


def source(mode: Mode) -> SlotMachine[str]:
    """Slot 0, with the units 0 and 3 that are to leave for slot 1; of two routers none has switched."""
    slot = SlotMachine[str](0, routers=2, serving=[0, 3, 5], version=1)
    slot.barrier(0, 1)
    slot.barrier(1, 1)
    assert slot.prepare(2, step((0, 0, 1), (3, 0, 1), mode=mode)) == [Prepared(2)]
    return slot


def test_the_first_record_of_a_unit_asks_for_it():
    slot = destination(FETCH)
    slot.admit(1, 2, {0})
    assert slot.hold(0, 1, "a") == [Request(0, 0, 2, 1, 0)]
    assert slot.hold(0, 1, "b") == []
    slot.admit(1, 2, {3})
    assert slot.hold(3, 1, "c") == [Request(3, 0, 2, 1, 0)]
    assert slot.urge() == [], "both were asked for"


def test_what_is_asked_for_leaves_first_but_not_before_it_is_final():
    slot = source(FETCH)
    slot.barrier(1, 2)
    assert slot.requested(3, 2, 1, 0) == []
    assert slot.admit(0, 1, {0, 3}) == frozenset(), "the source serves on"
    assert slot.barrier(0, 2) == [Send(3, 1, 2), Send(0, 1, 2)]


def test_a_late_record_calls_a_unit_back_and_is_the_first_to_meet_it_and_a_request_that_comes_twice_lends_nothing():
    slot = source(LEND)
    assert slot.requested(0, 2, 1, 0) == [], "as far as this slot knows, router 1 has not switched"
    assert slot.barrier(1, 2) == [Send(0, 1, 2, ONE, 1)]
    slot.acknowledged(0)
    assert slot.admit(0, 1, {0}) == {0}
    assert slot.hold(0, 0, "late") == [Request(0, 1, 2, 0, 1)]
    slot.admit(0, 1, {0})
    assert slot.hold(0, 0, "later") == []
    assert slot.awaits(0, 2, 2) and not slot.awaits(0, 2, 1)
    assert slot.arrived(0, BACK) == []
    assert drain(slot, 9) == (["late", "later"], [])
    assert slot.requested(0, 2, 1, 0) == []
    assert slot.admit(0, 1, {0}) == frozenset()


def test_a_call_that_comes_twice_does_not_take_a_unit_back_that_was_lent_again():
    """The source may have given it up for good meanwhile, and would not know what to do with it."""
    slot = destination(LEND)
    slot.arrived(0, ONE)
    slot.requested(0, 2, 0, 1)
    slot.acknowledged(0)
    assert slot.requested(0, 2, 0, 1) == []
    assert slot.arrived(0, ONE) == []
    assert slot.requested(0, 2, 0, 1) == []
    assert slot.is_lent(0, 2)
    slot.opened(0)


def test_a_partial_unit_is_not_lent():
    slot = SlotMachine[str](0, routers=2, version=1)
    slot.prepare(2, step((0, 2, 0), mode=LAZY))
    slot.barrier(0, 2)
    slot.barrier(1, 2)
    slot.arrived(0, None, True)
    slot.prepare(3, step((0, 0, 1), mode=LEND))
    slot.barrier(1, 3)
    assert slot.requested(0, 3, 1, 0) == []
    assert slot.completed(0) == [Send(0, 1, 3, ONE, 1)]
