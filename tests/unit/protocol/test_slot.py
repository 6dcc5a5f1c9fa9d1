"""Router and slot alone, one sentence of the protocol at a time; how all behave together is in tests/property."""

import re

import pytest
from small_steps import assignment, step

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Step
from keyshift.protocol import RouterMachine, SlotMachine
from keyshift.protocol.router import Barrier, Resume, SavepointBarrier
from keyshift.protocol.slot import Freeze, Hurry, Prepared, Request, Send, Skip

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


def test_a_savepoint_makes_one_barrier_and_stops_the_data_and_assignments_are_adopted_before_and_after_it():
    router = RouterMachine(assignment(1, 0))
    for _ in range(2):
        router.request_savepoint("a")
    assert router.stopped_for is None
    assert router.boundary() == [Barrier(1), SavepointBarrier("a")]
    assert router.stopped_for == "a"
    router.request_savepoint("a")
    assert router.boundary() == []
    router.announce(assignment(2, 1))
    assert router.boundary() == [Barrier(2)]


def test_slots_are_paused_from_one_boundary_to_another_and_meanwhile_no_savepoint_is_said():
    """What is kept back was read before the savepoint, and would come behind its barrier."""
    router = RouterMachine(assignment(1, 0, 0, 2))
    router.boundary()
    router.announce(assignment(2, 0, 1, 2), frozenset({0, 1}))
    assert router.assignment.version == 1 and router.paused == frozenset()
    assert router.boundary() == [Barrier(2)] and router.assignment == assignment(2, 0, 1, 2)
    router.announce(assignment(1, 0, 0, 2))  # an older one
    router.request_savepoint("a")
    assert not router.may_resume
    assert router.boundary() == [] and router.paused == {0, 1} and router.stopped_for is None
    router.announce(assignment(2, 0, 1, 2))
    assert router.may_resume and router.paused == {0, 1}
    assert router.boundary() == [Resume(), SavepointBarrier("a")], "the slots know the version already"
    assert router.paused == frozenset() and router.boundary() == []


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


# -- slot --------------------------------------------------------------------------------------------------------------


def test_repeated_outdated_and_foreign_steps_change_nothing():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=3)
    assert slot.prepare(3, step((0, 0, 1))) == []
    assert slot.prepare(4, step((7, 1, 2))) == []
    assert slot.prepare(5, step((0, 0, 1))) == [Prepared(5)]
    assert slot.prepare(5, step((0, 0, 1))) == []
    assert slot.prepare(4, step((0, 0, 2))) == []
    assert slot.barrier(0, 5) == [Send(0, 1, 5)]


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


def test_a_step_ahead_that_does_not_fit_is_a_violation_at_once():
    source = SlotMachine(0, 2, {4, 5}, version=1)
    first = (2, step((4, 0, 1), (6, 1, 0)))
    for moves, words in (((4, 0, 1), "takes units [4] that are not"), ((6, 1, 0), "brings units [6] that are here")):
        with pytest.raises(ProtocolViolation, match=re.escape(words)):
            source.published(3, [first, (3, step(moves))])
    assert source.published(3, [first, (3, step((4, 1, 0), (6, 0, 1)))]) == []


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda slot: slot.barrier(1, 3), "router 1 is at version 3 while step 2 is active"),
        (lambda slot: slot.barrier(2, 2), "router 2 is unknown, there are 2"),
        (lambda slot: slot.cancel(2), "step 2 cancelled after a router switched"),
        (lambda slot: slot.prepare(3, step((0, 0, 2))), "step 3 prepared while step 2 is active"),
        (lambda slot: slot.published(3, [(3, Step((), snapshot="a"))]), "snapshot 3 prepared while step 2 is active"),
        (lambda slot: slot.admit(1, 1, {3}), "router 1 sent records under version 1, its last barrier was 0"),
        (lambda slot: slot.admit(0, 1, {3}), "router 0 sent records under version 1, its last barrier was 2"),
        (lambda slot: slot.admit(0, 2, {3, 7}), "router 0 sent a record of unit 7 under version 2, not ours"),
        (lambda slot: slot.admit(0, 2, {0}), "unit 0 under version 2, which belongs to the other slot of its move"),
        (lambda slot: slot.hold(3, 0, "a"), "a record of unit 3 is held, which has no queue"),
        (lambda slot: slot.completed(3), "unit 3 completed, which was not partial"),
        (lambda slot: [slot.savepoint_barrier(0, each) for each in "ab"], "stands at savepoint b, others at a"),
    ],
)
def test_what_cannot_be_is_a_violation_and_the_step_goes_on(happens, words):
    slot = SlotMachine[str](0, routers=2, serving=[0, 3], version=1)
    slot.prepare(2, step((0, 0, 1)))
    slot.barrier(0, 2)
    with pytest.raises(ProtocolViolation, match=words):
        happens(slot)
    assert slot.admit(0, 2, {3}) == frozenset()
    assert slot.barrier(1, 2) == [Send(0, 1, 2)]


@pytest.mark.parametrize(
    ("happens", "version"),
    [
        (lambda slot: slot.barrier(1, 2), 2),  # in a batch that began behind it
        (lambda slot: slot.barrier(1, 3), 3),
        (lambda slot: slot.published(2, []), 2),  # given up
        (lambda slot: slot.published(3, [(3, Step((), snapshot="b"))])[:1], 2),
        (lambda slot: slot.skip(), 2),  # too much waits
    ],
)
def test_a_snapshot_that_cannot_happen_here_keeps_nothing_back(happens, version):
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [Prepared(2)]
    slot.snapshot_barrier(0, 2)
    assert happens(slot) == [Skip("a", 2)]
    assert not slot.standing(0)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [], "it is over"
    assert slot.snapshot_barrier(1, version) == [], "like any other barrier"


def test_a_snapshot_at_which_no_router_stands_outlasts_the_end_of_a_batch():
    slot = SlotMachine[str](0, routers=2, expected=[0], version=1)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == []
    slot.forget_snapshot()
    slot.end_of_input()
    assert slot.arrived(0) == [Prepared(2)]


def test_a_slot_that_opens_behind_a_snapshot_skips_it():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.barrier(0, 2)
    assert slot.published(2, [(2, Step((), snapshot="a"))]) == [Skip("a", 2)]
    assert slot.version == 1


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
