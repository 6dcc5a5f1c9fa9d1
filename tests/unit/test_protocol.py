"""Each machine alone, one sentence of the protocol at a time; how they behave together is in tests/property."""

import pytest

from keyshift.errors import ProtocolViolation
from keyshift.keys import Assignment, Move, SlotId, Step, UnitId
from keyshift.protocol import CoordinatorMachine, RouterMachine, SlotMachine
from keyshift.protocol.coordinator import CancelStep, MigrationDone, MigrationFailed, PublishAssignment, PublishStep
from keyshift.protocol.router import Barrier, SavepointBarrier
from keyshift.protocol.slot import Forget, Freeze, Installed, Prepared, Released, Send


def step(*moves: tuple[int, int, int]) -> Step:
    return Step(tuple(Move(UnitId(u), SlotId(s), SlotId(d)) for u, s, d in moves))


def assignment(version: int, *owner: int) -> Assignment:
    return Assignment(version, tuple(map(SlotId, owner)))


# -- router ------------------------------------------------------------------------------------------------------------


def test_the_first_boundary_announces_the_assignment_a_router_begins_with():
    router = RouterMachine(assignment(4, 0, 1))
    assert router.boundary() == [Barrier(4)]
    assert router.boundary() == []


def test_an_assignment_is_adopted_at_a_boundary_and_not_before():
    router = RouterMachine(assignment(1, 0, 0))
    router.boundary()
    router.announce(assignment(2, 0, 1))
    assert router.assignment.version == 1
    assert router.boundary() == [Barrier(2)]
    assert router.assignment == assignment(2, 0, 1)


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


def test_assignments_between_two_boundaries_make_one_barrier():
    router = RouterMachine(assignment(1, 0))
    router.announce(assignment(2, 1))
    router.announce(assignment(3, 2))
    assert router.boundary() == [Barrier(3)]


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


def test_a_router_adopts_assignments_before_and_after_it_stops_for_a_savepoint():
    router = RouterMachine(assignment(1, 0))
    router.request_savepoint("a")
    assert router.boundary() == [Barrier(1), SavepointBarrier("a")]
    router.announce(assignment(2, 1))
    assert router.boundary() == [Barrier(2)]


# -- coordinator -------------------------------------------------------------------------------------------------------

SWAP = step((0, 0, 1), (3, 1, 2))
BACK = step((0, 1, 0))


def coordinator() -> CoordinatorMachine:
    return CoordinatorMachine(assignment(7, 0, 0, 1, 1), deadline_ms=100)


def switched() -> CoordinatorMachine:
    machine = coordinator()
    machine.start((SWAP, BACK), now_ms=0)
    for slot in (0, 1, 2):
        machine.acknowledged("prepared", 8, slot, now_ms=10)
    return machine


def test_a_step_is_prepared_published_and_acknowledged_before_the_next_begins():
    machine = coordinator()
    assert machine.start((SWAP, BACK), 0) == [PublishStep(8, SWAP)]
    assert machine.busy
    assert machine.acknowledged("prepared", 8, 0, 1) == []
    assert machine.acknowledged("prepared", 8, 2, 1) == []
    assert machine.assignment.version == 7, "nothing is switched before all are prepared"
    assert machine.acknowledged("prepared", 8, 1, 1) == [PublishAssignment(assignment(8, 1, 0, 1, 2))]
    assert machine.assignment == assignment(8, 1, 0, 1, 2)
    for phase, slot in (("installed", 1), ("released", 0), ("released", 1)):
        assert machine.acknowledged(phase, 8, slot, 2) == []
    assert machine.acknowledged("installed", 8, 2, 2) == [PublishStep(9, BACK)]
    machine.acknowledged("prepared", 9, 0, 3)
    assert machine.acknowledged("prepared", 9, 1, 3) == [PublishAssignment(assignment(9, 0, 0, 1, 2))]
    assert machine.acknowledged("released", 9, 1, 4) == []
    assert machine.acknowledged("installed", 9, 0, 4) == [MigrationDone()]
    assert not machine.busy


def test_a_migration_without_steps_is_done_at_once():
    machine = coordinator()
    assert machine.start((), 0) == [MigrationDone()]
    assert not machine.busy


def test_repeated_and_outdated_acknowledgements_change_nothing():
    machine = switched()
    for version, slot in ((8, 0), (8, 1), (7, 0), (6, 2)):
        assert machine.acknowledged("prepared", version, slot, 11) == []
    assert machine.acknowledged("installed", 7, 1, 11) == []
    for _ in range(2):
        assert machine.acknowledged("released", 8, 0, 12) == []
        assert machine.acknowledged("released", 8, 1, 12) == []
        assert machine.acknowledged("installed", 8, 1, 12) == []
    assert machine.acknowledged("installed", 8, 2, 12) == [PublishStep(9, BACK)]
    assert machine.acknowledged("installed", 8, 2, 13) == []
    assert coordinator().acknowledged("prepared", 8, 0, 0) == [], "nothing is under way"


def test_state_that_moved_before_the_switch_is_a_violation():
    machine = coordinator()
    machine.start((SWAP,), 0)
    with pytest.raises(ProtocolViolation, match="slot 1 reports 'installed' before the switch to 8"):
        machine.acknowledged("installed", 8, 1, 1)
    assert machine.tick(101) != [], "still preparing"


def test_a_second_migration_is_refused_while_one_is_under_way():
    machine = switched()
    with pytest.raises(ProtocolViolation, match="another is under way"):
        machine.start((BACK,), 11)
    assert machine.acknowledged("released", 8, 0, 12) == []


def test_a_step_that_is_not_prepared_in_time_is_rolled_back():
    machine = coordinator()
    machine.start((SWAP, BACK), 0)
    machine.acknowledged("prepared", 8, 1, 5)
    assert machine.tick(100) == [], "the deadline itself is still in time"
    assert machine.tick(101) == [CancelStep(8), MigrationFailed(8, "prepare", (0, 2), rolled_back=True)]
    assert machine.assignment == assignment(7, 0, 0, 1, 1)
    assert not machine.busy
    assert machine.acknowledged("prepared", 8, 0, 102) == []
    assert machine.tick(1000) == []


def test_a_version_is_not_used_again_after_a_rollback():
    """A slot that missed the cancellation, or an old acknowledgement, would take one step for the other."""
    machine = coordinator()
    machine.start((SWAP,), 0)
    machine.tick(101)
    again = step((1, 0, 2))
    assert machine.start((again,), 200) == [PublishStep(9, again)]
    assert machine.acknowledged("prepared", 8, 0, 201) == []
    assert machine.acknowledged("prepared", 8, 2, 201) == []
    machine.acknowledged("prepared", 9, 0, 201)
    assert machine.acknowledged("prepared", 9, 2, 201) == [PublishAssignment(assignment(9, 0, 2, 1, 1))]


def test_a_step_that_is_late_after_its_switch_has_failed():
    machine = switched()
    machine.acknowledged("released", 8, 0, 20)
    machine.acknowledged("installed", 8, 2, 20)
    assert machine.tick(110) == [], "the deadline is counted from the switch"
    assert machine.tick(111) == [MigrationFailed(8, "transfer", (1,), rolled_back=False)]
    assert machine.assignment.version == 8
    assert not machine.busy


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
    slot.hold(0, "a")
    slot.hold(0, "b")
    assert slot.drain(9) == ([], [])
    assert slot.arrived(0) == []
    assert slot.admit(0, 2, {0, 5}) == {0}, "the queue is not empty: new records go behind it"
    slot.hold(0, "c")
    assert slot.drain(2) == (["a", "b"], [])
    assert slot.drain(2) == (["c"], [Installed(2, frozenset({0}))])
    assert slot.admit(0, 2, {0, 5}) == frozenset()


def test_a_unit_that_leaves_again_is_sent_after_its_queue_is_drained():
    slot = SlotMachine[str](0, routers=1, expected=[0], version=1)
    slot.barrier(0, 1)
    assert slot.admit(0, 1, {0}) == {0}
    slot.hold(0, "a")
    slot.prepare(2, step((0, 0, 1)))
    assert slot.barrier(0, 2) == []
    assert slot.arrived(0) == []
    assert slot.drain(9) == (["a"], [Send(0, 1, 2)])


def test_repeated_outdated_and_foreign_steps_change_nothing():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=3)
    assert slot.prepare(3, step((0, 0, 1))) == []
    assert slot.prepare(4, step((7, 1, 2))) == []
    assert slot.prepare(5, step((0, 0, 1))) == [Prepared(5)]
    assert slot.prepare(5, step((0, 0, 1))) == []
    assert slot.prepare(4, step((0, 0, 2))) == []
    assert slot.barrier(0, 5) == [Send(0, 1, 5)]


def test_after_the_end_of_input_nothing_is_prepared():
    """No barrier can come any more: the slot would wait for ever. The next holder of the slot prepares it."""
    slot = SlotMachine[str](0, routers=1, serving=[0], expected=[1], version=1)
    assert slot.end_of_input() == []
    assert slot.prepare(2, step((0, 0, 1))) == []
    slot.arrived(1)
    assert slot.settled


def test_a_step_nobody_switched_is_forgotten_at_the_end_of_input():
    slot = SlotMachine[str](1, routers=1, version=1)
    slot.prepare(2, step((0, 0, 1)))
    assert slot.end_of_input() == []
    assert slot.settled and slot.version == 1
    with pytest.raises(ProtocolViolation, match="unit 0 arrived, which is not expected"):
        slot.arrived(0)


def test_a_step_that_one_router_switched_is_final_at_the_end_of_input():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    assert slot.barrier(1, 2) == []
    assert slot.end_of_input() == [Send(0, 1, 2)]
    assert not slot.settled
    slot.acknowledged(0)
    assert slot.settled and slot.version == 2


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


def test_a_step_whose_cancellation_was_missed_ends_with_a_next_step_of_others():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((1, 1, 0)))
    assert slot.prepare(3, step((1, 1, 2))) == []
    assert slot.settled


def test_a_step_whose_cancellation_was_missed_ends_with_a_later_cancellation():
    slot = SlotMachine[str](0, routers=1, serving=[0], version=1)
    slot.prepare(2, step((1, 1, 0)))
    assert slot.cancel(3) == []
    assert slot.settled


def test_a_step_that_switched_cannot_be_cancelled():
    slot = SlotMachine[str](0, routers=2, serving=[0], version=1)
    slot.prepare(2, step((0, 0, 1)))
    slot.barrier(0, 2)
    with pytest.raises(ProtocolViolation, match="step 2 cancelled after a router switched"):
        slot.cancel(2)
    with pytest.raises(ProtocolViolation, match="step 3 prepared while step 2 is active"):
        slot.prepare(3, step((0, 0, 2)))


def test_state_that_came_means_that_the_routers_switched_even_if_their_barriers_are_late():
    slot = SlotMachine[str](1, routers=1, version=1)
    slot.prepare(2, step((0, 0, 1), (3, 0, 1)))
    slot.arrived(0)
    with pytest.raises(ProtocolViolation, match="cancelled after a router switched"):
        slot.cancel(2)
    assert slot.end_of_input() == []
    assert slot.arrived(3) == [Installed(2, frozenset({0, 3}))]


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
        slot.hold(0, "a")
    with pytest.raises(ProtocolViolation, match="unit 0 acknowledged, which was not sent"):
        slot.acknowledged(0)


def test_a_savepoint_freezes_once_when_all_routers_stand_at_it_and_all_state_is_here():
    slot = SlotMachine[str](0, routers=2, serving=[0], expected=[1], version=1)
    assert slot.savepoint_barrier(0, "a") == []
    assert slot.stopped(0) and not slot.stopped(1)
    assert slot.savepoint_barrier(1, "a") == []
    assert slot.arrived(1) == [Freeze("a")]
    assert slot.savepoint_barrier(1, "a") == []
    with pytest.raises(ProtocolViolation, match="router 0 stands at savepoint b, others at a"):
        slot.savepoint_barrier(0, "b")


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
    slot.hold(3, "a")
    assert slot.wanted[0] == 3 and sorted(slot.wanted) == [1, 2, 3]
