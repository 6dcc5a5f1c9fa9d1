"""The slot in the other modes of a step (gate, fetch, access, remote), one sentence of the protocol at a time."""

from small_steps import drain, step

from keyshift.model.keys import Mode
from keyshift.protocol import SlotMachine
from keyshift.protocol.slot import Complete, Forget, Freeze, Installed, Open, Prepared, Released, Request, Send

BACK = frozenset[int]()
ONE = frozenset({1})


# -- gate: the affected slots block ------------------------------------------------------------------------------------

BLOCK = Mode(gate="slots")


def test_a_source_that_blocks_takes_nothing_behind_a_barrier_until_its_state_is_acknowledged():
    slot = SlotMachine[str](0, routers=2, serving=[0, 1], version=1)
    slot.prepare(2, step((0, 0, 1), mode=BLOCK))
    slot.barrier(1, 1)
    assert slot.admit(1, 1, {0, 1}) == frozenset()
    slot.barrier(0, 2)
    assert slot.admit(0, 2, {1}) == {1}, "unit 1 stays, and waits all the same"
    assert slot.hold(1, 0, "new") == []
    assert slot.admit(1, 1, {0, 1}) == {1}, "what comes before the other barrier is served, but not past a queue"
    slot.hold(1, 1, "old")
    assert drain(slot, 9) == ([], [])
    assert slot.idle([0, 1]) == [], "no time passes either"
    assert slot.barrier(1, 2) == [Send(0, 1, 2)]
    assert drain(slot, 9) == ([], [])
    assert slot.acknowledged(0) == [Forget(0), Released(2, frozenset({0}))]
    assert drain(slot, 9) == (["new", "old"], [])
    assert slot.admit(0, 2, {1}) == frozenset()


def test_a_destination_that_blocks_takes_nothing_until_its_state_is_here():
    slot = SlotMachine[str](1, routers=1, serving=[5], version=1)
    slot.prepare(2, step((0, 0, 1), mode=BLOCK))
    slot.barrier(0, 2)
    assert slot.admit(0, 2, {0, 5}) == {0, 5}
    slot.hold(5, 0, "a")
    slot.hold(0, 0, "b")
    assert drain(slot, 9) == ([], [])
    assert slot.arrived(0) == []
    assert drain(slot, 9) == (["a", "b"], [Installed(2, frozenset({0}))])
    assert slot.settled


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


# -- transfer: fetch ---------------------------------------------------------------------------------------------------

FETCH = Mode(transfer="fetch")
LEND = Mode(transfer="fetch", fetch_back=2)


def destination(mode: Mode, routers: int = 2) -> SlotMachine[str]:
    """Slot 1, where units 0 and 3 of slot 0 are to arrive; router 1 has switched."""
    slot = SlotMachine[str](1, routers=routers, serving=[5], version=1)
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


def test_a_unit_is_lent_for_the_records_of_the_routers_that_switched():
    slot = source(LEND)
    assert slot.requested(0, 2, 1, 0) == [], "as far as this slot knows, router 1 has not switched"
    assert slot.barrier(1, 2) == [Send(0, 1, 2, ONE, 1)]
    assert slot.serving == {3, 5}
    assert slot.acknowledged(0) == [Forget(0)]
    assert not slot.settled


def test_a_unit_that_was_lent_meets_the_records_of_the_routers_it_was_lent_for():
    slot = destination(LEND)
    slot.admit(1, 2, {0})
    slot.hold(0, 1, "one")
    assert slot.arrived(0, ONE) == []
    assert slot.is_lent(0, 2) and not slot.is_lent(5, 2)
    assert not slot.is_lent(0, 1), "what is said late of an earlier step is not said of this one"
    slot.barrier(0, 2)
    assert slot.admit(0, 2, {0}) == {0}
    assert slot.hold(0, 0, "zero") == [], "it is here: nobody is asked"
    slot.admit(1, 2, {0})
    slot.hold(0, 1, "two")
    assert drain(slot, 9) == (["one", "two"], [])
    assert slot.idle([0]) == [] and slot.stands(0), "no time passes for it"
    assert slot.opened(0) == []
    assert drain(slot, 9) == (["zero"], [])
    assert not slot.is_lent(0, 2) and slot.idle([0]) == [0]
    assert slot.admit(0, 2, {0}) == frozenset()


def lent() -> SlotMachine[str]:
    """The source, when the destination has acknowledged unit 0 for router 1; unit 3 is still here."""
    slot = source(LEND)
    slot.requested(0, 2, 1, 0)
    slot.barrier(1, 2)
    slot.acknowledged(0)
    return slot


def test_a_late_record_calls_a_unit_back_and_is_the_first_to_meet_it():
    slot = lent()
    assert slot.admit(0, 1, {0}) == {0}
    assert slot.hold(0, 0, "late") == [Request(0, 1, 2, 0, 1)]
    slot.admit(0, 1, {0})
    assert slot.hold(0, 0, "later") == []
    assert slot.awaits(0, 2, 2) and not slot.awaits(0, 2, 1)
    assert slot.arrived(0, BACK) == []
    assert drain(slot, 9) == (["late", "later"], [])
    assert slot.admit(0, 1, {0}) == frozenset()


def test_a_unit_that_came_back_is_lent_again_if_it_is_asked_for_again_but_not_for_ever():
    slot = lent()
    slot.admit(0, 1, {0})
    slot.hold(0, 0, "late")
    slot.arrived(0, BACK)
    drain(slot, 1)
    assert slot.requested(0, 2, 1, 2) == [Send(0, 1, 2, ONE, 3)], "twice: fetch_back = 2"
    slot.acknowledged(0)
    slot.admit(0, 1, {0})
    assert slot.hold(0, 0, "late again") == [Request(0, 1, 2, 0, 3)]
    slot.arrived(0, BACK)
    drain(slot, 1)
    assert slot.requested(0, 2, 1, 4) == []
    assert slot.admit(0, 1, {0}) == frozenset(), "now it stays until it is final"
    assert slot.barrier(0, 2) == [Send(0, 1, 2, None, 5), Send(3, 1, 2)]


def test_the_source_of_a_lent_unit_stops_reading_when_it_has_all_barriers():
    slot = lent()
    slot.admit(0, 1, {0})
    slot.hold(0, 0, "late")
    assert not slot.may_stall, "the barrier of router 0 makes unit 3 final, and slot 1 waits for it"
    slot.barrier(0, 2)
    assert slot.may_stall
    slot.acknowledged(3)
    slot.arrived(0, BACK)
    drain(slot, 1)
    slot.acknowledged(0)
    assert not slot.may_stall


def test_what_is_still_lent_when_it_is_final_is_opened_for_good():
    slot = lent()
    assert slot.barrier(0, 2) == [Open(0, 1, 2), Send(3, 1, 2)]
    assert slot.acknowledged(0) == [Forget(0)]
    assert slot.acknowledged(3) == [Forget(3), Released(2, frozenset({0, 3}))]
    assert slot.settled


def test_a_destination_gives_back_what_is_called_back_and_asks_for_it_if_records_wait():
    slot = destination(LEND)
    slot.arrived(0, ONE)
    slot.barrier(0, 2)
    slot.admit(0, 2, {0})
    slot.hold(0, 0, "zero")
    back = [Send(0, 0, 2, BACK, 2), Request(0, 0, 2, 0, 2)]
    assert slot.requested(0, 2, 0, 1) == back
    assert not slot.is_lent(0, 2) and slot.stands(0)
    assert slot.admit(1, 2, {0}) == {0}, "it is expected again"
    slot.hold(0, 1, "one")
    assert slot.acknowledged(0) == [Forget(0)]
    assert slot.arrived(0) == []
    assert drain(slot, 9) == (["zero", "one"], [])


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


def test_a_request_that_comes_twice_does_not_lend_a_unit_again():
    slot = lent()
    slot.admit(0, 1, {0})
    slot.hold(0, 0, "late")
    slot.arrived(0, BACK)
    drain(slot, 1)
    assert slot.requested(0, 2, 1, 0) == []
    assert 0 in slot.serving


# -- transfer: access and remote ---------------------------------------------------------------------------------------

LAZY = Mode(transfer="access", background=False)


def partial(version: int = 1) -> SlotMachine[str]:
    """Slot 0 with unit 0, whose keys are elsewhere."""
    slot = SlotMachine[str](0, routers=1, version=version)
    slot.prepare(version + 1, step((0, 2, 0), mode=LAZY))
    slot.barrier(0, version + 1)
    assert slot.arrived(0, None, True) == [Installed(version + 1, frozenset({0}))], "the step ends, the keys may stay"
    return slot


def test_a_partial_unit_is_served_and_does_not_settle():
    slot = partial()
    assert slot.partial == {0} and slot.serving == {0}
    assert slot.admit(0, 2, {0}) == frozenset()
    assert not slot.settled
    assert slot.may_stall, "what waits for keys is bounded too"
    assert slot.completed(0) == []
    assert slot.settled
    assert not slot.may_stall


def test_a_partial_unit_cannot_leave_before_all_its_keys_are_here():
    slot = partial()
    slot.prepare(3, step((0, 0, 1)))
    assert slot.barrier(0, 3) == [Complete(0)]
    assert slot.requested(0, 3, 0, 0) == [], "said once"
    assert slot.completed(0) == [Send(0, 1, 3)]


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


def test_the_keys_of_partial_units_are_fetched_at_the_end_of_input():
    slot = partial()
    assert slot.end_of_input() == [Complete(0)]
    assert not slot.settled
    assert slot.completed(0) == [] and slot.settled


def test_the_keys_of_partial_units_are_fetched_for_a_savepoint():
    slot = partial()
    assert slot.savepoint_barrier(0, "a") == [Complete(0)]
    assert slot.completed(0) == [Freeze("a")]
