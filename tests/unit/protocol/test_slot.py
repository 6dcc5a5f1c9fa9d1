"""Router and slot alone, one sentence of the protocol at a time; how all behave together is in tests/property."""

import re
from collections.abc import Sequence

import pytest
from small_steps import assignment, drain, step

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Step
from keyshift.protocol import RouterMachine, SlotMachine
from keyshift.protocol.router import Barrier, Resume, SavepointBarrier
from keyshift.protocol.slot import (
    Capture,
    Complete,
    Forget,
    Freeze,
    Hurry,
    Installed,
    Prepared,
    Released,
    Request,
    Send,
    Skip,
)

# -- router ------------------------------------------------------------------------------------------------------------


def test_an_older_or_repeated_assignment_is_ignored():
    router = RouterMachine(assignment(3, 0, 0))
    router.announce(assignment(2, 1, 1))
    router.announce(assignment(3, 1, 1))
    assert router.boundary() == [Barrier(3)]
    router.announce(assignment(5, 0, 1))
    router.announce(assignment(4, 1, 1))
    assert router.boundary() == [Barrier(5)]
    assert router.assignment == assignment(5, 0, 1)
    router.announce(assignment(5, 1, 1))
    assert router.boundary() == []


def test_a_savepoint_makes_one_barrier_and_stops_the_data():
    router = RouterMachine(assignment(1, 0))
    router.boundary()
    router.request_savepoint("a")
    assert router.stopped_for is None
    router.request_savepoint("a")
    assert router.boundary() == [SavepointBarrier("a")]
    assert router.stopped_for == "a"
    router.request_savepoint("a")
    assert router.boundary() == []


def test_a_router_says_at_which_switch_a_snapshot_is_and_not_if_it_begins_with_it_or_has_missed_it():
    router = RouterMachine(assignment(1, 0))
    router.boundary()
    router.announce(assignment(2, 0), snapshot="a")
    assert router.boundary() == [Barrier(2, "a")]
    assert router.stopped_for is None
    router.announce(assignment(3, 0), snapshot="b")
    router.announce(assignment(4, 1))
    assert router.boundary() == [Barrier(4)]
    assert RouterMachine(assignment(3, 0)).boundary() == [Barrier(3)]


def test_a_router_adopts_assignments_before_and_after_it_stops_for_a_savepoint():
    router = RouterMachine(assignment(1, 0))
    router.request_savepoint("a")
    assert router.boundary() == [Barrier(1), SavepointBarrier("a")]
    router.announce(assignment(2, 1))
    assert router.boundary() == [Barrier(2)]


def paused() -> RouterMachine:
    router = RouterMachine(assignment(1, 0, 0, 2))
    router.boundary()
    router.announce(assignment(2, 0, 1, 2), frozenset({0, 1}))
    assert router.boundary() == [Barrier(2)]
    return router


def test_an_assignment_is_adopted_and_its_slots_are_paused_at_a_boundary_and_not_before():
    router = RouterMachine(assignment(1, 0, 0))
    router.boundary()
    router.announce(assignment(2, 0, 1), frozenset({0, 1}))
    assert router.assignment.version == 1 and router.paused == frozenset()
    assert router.boundary() == [Barrier(2)]
    assert router.assignment == assignment(2, 0, 1)
    assert router.paused == {0, 1} and not router.may_resume
    assert router.boundary() == [], "and stay so"
    assert router.paused == {0, 1}


def test_what_was_kept_back_goes_out_when_the_same_assignment_is_published_without_pauses():
    router = paused()
    router.announce(assignment(2, 0, 1, 2))
    assert router.may_resume and router.paused == {0, 1}
    assert router.boundary() == [Resume()], "the slots know the version already"
    assert router.paused == frozenset()
    assert router.boundary() == []


def test_the_pauses_of_an_older_assignment_are_ignored():
    router = paused()
    router.announce(assignment(1, 0, 0, 2))
    assert router.boundary() == []
    assert router.paused == {0, 1}


def test_a_router_does_not_stop_for_a_savepoint_while_it_keeps_records_back():
    """They were read before the savepoint, and would come behind its barrier."""
    router = paused()
    router.request_savepoint("a")
    assert router.boundary() == [] and router.stopped_for is None
    router.announce(assignment(2, 0, 1, 2))
    assert router.boundary() == [Resume(), SavepointBarrier("a")]


# -- slot --------------------------------------------------------------------------------------------------------------


def test_a_source_sends_when_all_routers_switched_and_forgets_when_the_destination_has_it():
    slot = SlotMachine[str](0, routers=2, serving=[0, 1], version=1)
    assert slot.prepare(2, step((0, 0, 1))) == [Prepared(2)]
    assert slot.barrier(0, 2) == []
    slot.barrier(1, 1)
    assert slot.admit(1, 1, {0, 1}) == frozenset(), "the slow router's records are still ours"
    assert slot.barrier(1, 2) == [Send(0, 1, 2)]
    with pytest.raises(ProtocolViolation, match="a record of unit 0 under version 2, not ours"):
        slot.admit(1, 2, {0})
    assert slot.acknowledged(0) == [Forget(0), Released(2, frozenset({0}))]
    assert slot.settled and slot.version == 2 and slot.serving == {1}


def test_a_destination_queues_until_the_state_is_here_and_drains_in_order():
    slot = SlotMachine[str](1, routers=1, serving=[5], version=1)
    assert slot.prepare(2, step((0, 0, 1))) == [Prepared(2)]
    slot.barrier(0, 2)
    assert slot.admit(0, 2, {0, 5}) == {0}
    assert slot.hold(0, 0, "a", 10) == [], "nobody is asked: the state comes by itself"
    slot.hold(0, 0, "b", 5)
    assert slot.queued_bytes == 15
    assert drain(slot, 9) == ([], [])
    assert slot.arrived(0) == []
    assert slot.admit(0, 2, {0, 5}) == {0}, "the queue is not empty: new records go behind it"
    slot.hold(0, 0, "c")
    assert drain(slot, 2) == (["a", "b"], [])
    assert drain(slot, 2) == (["c"], [Installed(2, frozenset({0}))])
    assert slot.queued_bytes == 0
    assert slot.admit(0, 2, {0, 5}) == frozenset()


def test_repeated_outdated_and_foreign_steps_change_nothing():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=3)
    assert slot.prepare(3, step((0, 0, 1))) == []
    assert slot.prepare(4, step((7, 1, 2))) == []
    assert slot.prepare(5, step((0, 0, 1))) == [Prepared(5)]
    assert slot.prepare(5, step((0, 0, 1))) == []
    assert slot.prepare(4, step((0, 0, 2))) == []
    assert slot.barrier(0, 5) == [Send(0, 1, 5)]


def test_a_cancelled_step_leaves_no_trace():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1), (1, 1, 0)))
    assert slot.cancel(2) == []
    assert slot.settled and slot.serving == {0} and slot.version == 1
    assert slot.cancel(2) == []
    assert slot.barrier(0, 3) == []


def test_a_step_whose_cancellation_was_missed_ends_with_the_next_step():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((1, 1, 0)))
    assert slot.prepare(3, step((1, 1, 0), (0, 0, 1))) == [Prepared(3)]
    assert slot.barrier(0, 3) == [Send(0, 1, 3)]


def test_a_barrier_beyond_its_version_tells_that_a_step_was_cancelled():
    """The next step is one of other slots, so this one may hear of it by the routers first."""
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1), (1, 1, 0)))
    assert slot.barrier(0, 3) == []
    assert slot.barrier(1, 3) == [], "nothing is sent"
    assert slot.settled and slot.serving == {0} and not slot.expected
    assert slot.admit(0, 3, {0}) == frozenset()
    assert slot.prepare(3, step((1, 1, 2))) == [], "and now it hears of that step"
    assert slot.settled


def test_a_cancelled_step_that_is_heard_of_after_the_routers_went_on_is_not_prepared():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.barrier(0, 3)
    assert slot.prepare(2, step((0, 0, 1))) == []
    assert slot.barrier(1, 3) == []
    assert slot.serving == {0} and slot.settled


def ahead() -> SlotMachine:
    """A source whose step has switched, with the next one published."""
    source = SlotMachine(0, 2, {4, 5}, version=1)
    source.published(2, [(2, step((4, 0, 1)))])
    source.barrier(0, 2)
    assert source.published(3, [(2, step((4, 0, 1))), (3, step((5, 0, 1), (6, 1, 0)))]) == []
    return source


def test_a_step_ahead_is_prepared_when_the_one_before_it_has_ended_here():
    source = ahead()
    assert source.barrier(1, 2) == [Send(4, 1, 2)]
    assert source.acknowledged(4) == [Forget(4), Released(2, frozenset({4})), Prepared(3)]
    assert source.version == 2 and source.expected == {6}
    source.barrier(0, 3)
    assert source.barrier(1, 3) == [Send(5, 1, 3)]


def test_a_step_ahead_that_was_taken_back_is_not_prepared_and_the_one_before_ends():
    source = ahead()
    assert source.published(3, [(2, step((4, 0, 1)))]) == []
    source.barrier(1, 2)
    assert source.acknowledged(4) == [Forget(4), Released(2, frozenset({4}))]
    assert source.settled


def test_a_step_ahead_is_forgotten_at_the_end_of_input():
    source = ahead()
    assert source.end_of_input() == [Send(4, 1, 2)]
    assert source.acknowledged(4) == [Forget(4), Released(2, frozenset({4}))]
    assert source.settled


def test_a_step_ahead_that_does_not_fit_is_a_violation_at_once():
    source = SlotMachine(0, 2, {4, 5}, version=1)
    first = (2, step((4, 0, 1), (6, 1, 0)))
    for moves, words in (((4, 0, 1), "takes units [4] that are not"), ((6, 1, 0), "brings units [6] that are here")):
        with pytest.raises(ProtocolViolation, match=re.escape(words)):
            source.published(3, [first, (3, step(moves))])
    assert source.published(3, [first, (3, step((4, 1, 0), (6, 0, 1)))]) == []


def test_no_router_goes_on_while_a_step_that_switched_is_active():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    slot.barrier(0, 2)
    with pytest.raises(ProtocolViolation, match="router 1 is at version 3 while step 2 is active"):
        slot.barrier(1, 3)
    assert slot.barrier(1, 2) == [Send(0, 1, 2)]


def test_a_step_that_switched_cannot_be_cancelled():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    slot.barrier(0, 2)
    with pytest.raises(ProtocolViolation, match="step 2 cancelled after a router switched"):
        slot.cancel(2)
    with pytest.raises(ProtocolViolation, match="step 3 prepared while step 2 is active"):
        slot.prepare(3, step((0, 0, 2)))


def test_a_record_that_is_not_routed_under_its_routers_last_barrier_is_a_violation():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    with pytest.raises(ProtocolViolation, match="router 1 sent records under version 1, its last barrier was 0"):
        slot.admit(1, 1, {0})
    slot.barrier(1, 2)
    with pytest.raises(ProtocolViolation, match="under version 1, its last barrier was 2"):
        slot.admit(1, 1, {0})
    assert slot.admit(1, 2, {0}) == frozenset()


def test_strange_units_routers_and_records_are_violations():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    with pytest.raises(ProtocolViolation, match=r"step 2 takes units \[4\] that are not here"):
        slot.prepare(2, step((4, 0, 1)))
    with pytest.raises(ProtocolViolation, match=r"step 2 brings units \[0\] that are here already"):
        slot.prepare(2, step((0, 1, 0)))
    with pytest.raises(ProtocolViolation, match="router 1 is unknown, there are 1"):
        slot.barrier(1, 2)
    with pytest.raises(ProtocolViolation, match="a record of unit 0 is held, which has no queue"):
        slot.hold(0, 0, "a")
    with pytest.raises(ProtocolViolation, match="unit 0 acknowledged, which was not sent"):
        slot.acknowledged(0)
    with pytest.raises(ProtocolViolation, match="unit 0 opened, which is not lent to us"):
        slot.opened(0)
    with pytest.raises(ProtocolViolation, match="unit 0 completed, which was not partial"):
        slot.completed(0)


def test_a_savepoint_freezes_once_when_all_routers_stand_at_it_and_all_state_is_here():
    slot = SlotMachine[str](0, routers=2, serving=[0], expected=[1], version=1)
    assert slot.savepoint_barrier(0, "a") == []
    assert slot.stopped(0) and not slot.stopped(1)
    assert slot.savepoint_barrier(1, "a") == []
    assert slot.arrived(1) == [Freeze("a")]
    assert slot.savepoint_barrier(1, "a") == []
    with pytest.raises(ProtocolViolation, match="router 0 stands at savepoint b, others at a"):
        slot.savepoint_barrier(0, "b")


def with_snapshot(serving: Sequence[int] = (0,), expected: Sequence[int] = ()) -> SlotMachine[str]:
    slot = SlotMachine[str](0, routers=2, serving=serving, expected=expected, version=1)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == ([] if expected else [Prepared(2)])
    return slot


def test_a_slot_is_behind_a_snapshot_when_every_router_stands_at_it():
    slot = with_snapshot()
    assert slot.snapshot_barrier(0, 2) == []
    assert slot.standing(0) and not slot.standing(1) and not slot.stopping
    assert slot.snapshot_barrier(1, 2) == [Capture("a", 2)]
    assert not slot.standing(0) and slot.version == 2
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [], "it has been there"
    assert slot.admit(0, 2, {0}) == set()


def test_all_state_is_to_be_here_before_a_snapshot():
    slot = with_snapshot([], [0])
    assert slot.snapshot_barrier(0, 2) == slot.snapshot_barrier(1, 2) == []
    assert slot.arrived(0) == [Prepared(2), Capture("a", 2)]
    slot = SlotMachine[str](0, routers=1, serving=[], expected=[0], version=1)
    slot.arrived(0, partial=True)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [Complete(0)]
    assert slot.completed(0) == [Prepared(2)]


@pytest.mark.parametrize(
    "happens",
    [
        lambda slot: slot.barrier(1, 2),  # in a batch that began behind it
        lambda slot: slot.barrier(1, 3),
        lambda slot: slot.published(2, []),  # given up
        lambda slot: slot.published(3, [(3, Step((), snapshot="b"))])[:1],
        lambda slot: slot.skip(),  # too much waits
    ],
)
def test_a_snapshot_that_cannot_happen_here_keeps_nothing_back(happens):
    slot = with_snapshot()
    slot.snapshot_barrier(0, 2)
    assert happens(slot) == [Skip("a", 2)]
    assert not slot.standing(0)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [], "it is over"
    assert slot.snapshot_barrier(1, max(slot._heard.values())) == [], "like any other barrier"


def test_a_slot_that_opens_behind_a_snapshot_skips_it():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.barrier(0, 2)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [Skip("a", 2)]
    assert slot.version == 1


def test_at_the_end_of_a_batch_only_a_snapshot_at_which_a_router_stands_is_forgotten():
    slot = with_snapshot([], [0])
    slot.forget_snapshot()
    slot.end_of_input()
    assert slot.arrived(0) == [Prepared(2)]
    slot = with_snapshot()
    slot.snapshot_barrier(0, 2)
    slot.forget_snapshot()
    assert not slot.standing(0)
    assert slot.end_of_input() == []


def test_a_step_that_was_cancelled_unheard_does_not_keep_a_snapshot_from_happening():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    assert slot.published(3, [(3, Step((), snapshot="a"))]) == [Prepared(3)]
    assert slot.snapshot_barrier(0, 3) == [Capture("a", 3)]
    slot.prepare(4, step((0, 0, 1)))
    slot.barrier(0, 4)
    with pytest.raises(ProtocolViolation, match="snapshot 5 prepared while step 4 is active"):
        slot.published(5, [(5, Step((), snapshot="b"))])


@pytest.mark.parametrize("end", [lambda slot: slot.cancel(2), lambda slot: slot.end_of_input()])
def test_a_savepoint_freezes_when_the_step_it_waits_for_does_not_happen(end):
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    assert slot.savepoint_barrier(0, "a") == []
    assert end(slot) == [Freeze("a")]


def test_units_with_waiting_records_are_wanted_first():
    slot = SlotMachine[str](0, routers=1, expected=[1, 2, 3], version=1)
    slot.barrier(0, 1)
    slot.admit(0, 1, {3})
    slot.hold(3, 0, "a")
    assert slot.wanted[0] == 3 and sorted(slot.wanted) == [1, 2, 3]


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_a_slot_whose_queues_are_long_urges_the_sources_of_what_is_waited_for_once():
    slot = SlotMachine[str](1, routers=1, expected=[7], version=1)
    slot.barrier(0, 1)
    slot.prepare(2, step((0, 0, 1), (3, 2, 1)))
    slot.barrier(0, 2)
    slot.admit(0, 2, {0, 7})
    slot.hold(0, 0, "a")
    slot.hold(7, 0, "b")
    assert slot.urge() == [Request(0, 0, 2, -1, 0)], "unit 7 is nobody's to give, and nothing waits for unit 3"
    assert slot.urge() == []
    slot.admit(0, 2, {3})
    slot.hold(3, 0, "c")
    assert slot.urge() == [Request(3, 2, 2, -1, 0)]


def test_what_is_urged_for_goes_first():
    slot = SlotMachine[str](0, routers=1, serving=[0, 1, 2], version=1)
    slot.prepare(2, step((0, 0, 1), (1, 0, 1), (2, 0, 1)))
    assert slot.requested(2, 2, -1, 0) == [], "not before it is final"
    assert slot.barrier(0, 2) == [Send(2, 1, 2), Send(0, 1, 2), Send(1, 1, 2)]
    assert slot.requested(1, 2, -1, 0) == [Hurry(1)], "it is on its way, or still among those to be sent"
    assert slot.requested(1, 1, -1, 0) == []
    slot.acknowledged(1)
    assert slot.requested(1, 2, -1, 0) == []


# -- what comes twice --------------------------------------------------------------------------------------------------


def test_state_of_a_batch_or_savepoint_before_is_awaited_under_version_0():
    slot = SlotMachine[str](0, routers=1, expected=[0], version=4)
    assert slot.awaits(0, 0, 0) and not slot.awaits(0, 4, 1) and not slot.awaits(1, 0, 0)
    slot.arrived(0)
    assert not slot.awaits(0, 0, 0)


# -- time --------------------------------------------------------------------------------------------------------------


def test_timers_of_a_unit_fire_unless_records_wait_for_it():
    slot = SlotMachine[str](0, routers=1, serving=[0], expected=[1], version=1)
    slot.barrier(0, 1)
    assert slot.idle([0, 1, 2]) == [0]
    slot.admit(0, 1, {1})
    slot.hold(1, 0, "a")
    slot.arrived(1)
    assert slot.idle([0, 1]) == [0]
    drain(slot, 1)
    assert slot.idle([0, 1]) == [0, 1]


def test_time_stands_still_for_what_leaves_from_the_first_barrier_on():
    """Records behind that barrier wait at the destination: no other router's progress may make them late."""
    slot = SlotMachine[str](0, routers=2, serving=[0, 1], version=1)
    slot.prepare(2, step((0, 0, 1)))
    assert slot.idle([0, 1]) == [0, 1] and not slot.stands(0)
    slot.barrier(0, 2)
    assert slot.idle([0, 1]) == [1]
    assert slot.stands(0) and not slot.stands(1)


def test_a_timer_is_a_result_of_the_version_that_brought_its_unit():
    slot = SlotMachine[str](1, routers=1, serving=[5], version=1)
    slot.prepare(2, step((0, 0, 1), (3, 0, 1)))
    slot.arrived(0)
    assert slot.version_of(0) == 2 and slot.version_of(5) == 1
