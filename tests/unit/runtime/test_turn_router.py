"""Where a router of slots that work in turns says its barriers, and what it confirms."""

import pytest

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Assignment, SlotId
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, SAVEPOINT, SNAPSHOT, TICK
from keyshift.runtime.turn_router import TurnRouter

H = 20_000
FIRST, SECOND = Assignment(1, (SlotId(0), SlotId(1))), Assignment(2, (SlotId(1), SlotId(0)))


def split(events, assignment):
    """``events``: units."""
    return {assignment.owner[unit]: b"%d" % unit for unit in events}


def router(told=None, watermark=0):
    return TurnRouter(told or PublishAssignment(FIRST), 2, 1 << 20, split, H, watermark)


def appointed(epoch, holds=False, snapshot=""):
    return PublishAssignment(SECOND, frozenset(), snapshot, Appointment(epoch, holds), FIRST)


def say(core, offset, epoch, *units, more_us=0):
    """What slot 0 and slot 1 get of a frame."""
    rows, reached = core.frame(0, offset, list(units), epoch * H + more_us)
    return [[(row.kind, row.version, row.offset) for slot, row in rows if slot == each] for each in range(2)], reached


def test_each_slot_gets_a_row_of_each_frame_that_crosses_an_epoch_and_no_tick_of_others():
    core = router()
    for offset, epoch in enumerate((5, 200)):  # soon after its first barrier each slot gets something of every frame
        say(core, offset, epoch)
    assert say(core, 2, 200, 0, more_us=3) == ([[(DATA, 1, 2)], []], [])
    assert say(core, 3, 201, 0) == ([[(DATA, 1, 3)], [(TICK, 1, 3)]], [])
    assert say(core, 4, 201, more_us=5) == ([[], []], [])


def test_the_barrier_stands_behind_the_mark_that_closes_the_epoch_and_the_next_frame_is_routed_anew():
    core = router()
    say(core, 0, 5)
    assert core.switch(appointed(7)) is True
    assert core.switch(appointed(7, holds=True)) is None
    assert say(core, 1, 6, 0)[0] == [[(DATA, 1, 1)], [(TICK, 1, 1)]]
    assert say(core, 2, 9, 0)[0] == [[(DATA, 1, 2), (BARRIER, 2, 2)], [(TICK, 1, 2), (BARRIER, 2, 2)]]
    assert say(core, 3, 9, 0, more_us=1)[0][1] == [(DATA, 2, 3)]


def test_a_router_takes_no_frame_behind_an_epoch_of_which_it_does_not_know_whether_it_holds():
    core = router()
    say(core, 0, 5)
    core.switch(appointed(7))
    assert core.may_take(7 * H - 1) and not core.may_take(7 * H)
    core.switch(appointed(9))
    assert core.may_take(8 * H), "another epoch was appointed"
    core.switch(appointed(9, holds=True))
    assert core.may_take(10 * H)


def test_a_router_that_has_come_further_does_not_confirm_and_ends_if_it_is_told_that_it_holds():
    core = router()
    say(core, 0, 7)
    assert core.switch(appointed(7)) is False
    assert core.may_take(9 * H) and say(core, 1, 8, 0)[0] == [[(DATA, 1, 1)], [(TICK, 1, 1)]]
    with pytest.raises(ProtocolViolation, match="2 comes behind epoch 8, and the router is at 8"):
        core.switch(appointed(8, holds=True))


def test_a_snapshot_begins_with_the_frame_behind_its_barrier():
    core = router()
    say(core, 0, 5)
    core.switch(appointed(6, holds=True, snapshot="s"))
    rows, reached = say(core, 1, 6)
    assert rows[0] == [(TICK, 1, 1), (SNAPSHOT, 2, 1)] and reached == ["s"] and core.behind == 1


def test_behind_a_savepoint_come_marks_without_events_and_what_was_appointed_for_later():
    core = router()
    say(core, 0, 5)
    assert core.savepoint("s", Appointment(6)) is True
    core.savepoint("s", Appointment(6, holds=True))
    core.switch(appointed(7, holds=True))
    assert say(core, 1, 6, 0) == ([[(DATA, 1, 1), (SAVEPOINT, 1, 1)], [(TICK, 1, 1), (SAVEPOINT, 1, 1)]], ["s"])
    assert say(core, 2, 7, 0) == ([[(TICK, 1, 2), (BARRIER, 2, 2)]] * 2, [])
    again = router(watermark=7 * H)
    again.said_before("s", Appointment(6, holds=True))
    assert say(again, 3, 8, 0)[0][0][0] == (TICK, 1, 3) and again.savepoint("s", Appointment(6, holds=True)) is None
    ahead = router(watermark=5 * H)
    ahead.said_before("s", Appointment(6, holds=True))
    assert say(ahead, 1, 5, 0, more_us=1)[0][0] == [(DATA, 1, 1)], "it has not come so far"


def test_a_capture_is_said_behind_its_mark_and_the_router_goes_on_under_the_same_assignment():
    core = router()
    say(core, 0, 5)
    assert core.savepoint("c", Appointment(6), stops=False) is True
    core.savepoint("c", Appointment(6, holds=True), stops=False)
    assert say(core, 1, 6, 0) == ([[(DATA, 1, 1), (CAPTURE, 1, 1)], [(TICK, 1, 1), (CAPTURE, 1, 1)]], ["c"])
    assert core.savepoint("c", Appointment(6, holds=True), stops=False) is None, "it is told once more"
    assert say(core, 2, 7, 0) == ([[(DATA, 1, 2)], [(TICK, 1, 2)]], [])
    again = router(watermark=7 * H)
    again.said_before("c", Appointment(6, holds=True), stops=False)
    assert again.savepoint("c", Appointment(6, holds=True), stops=False) is None
    assert say(again, 3, 8, 0)[0][0][0] == (DATA, 1, 3), "it does not stop"


def test_a_capture_that_was_said_is_known_though_a_snapshot_was_said_behind_it():
    core = router()
    say(core, 0, 5)
    core.savepoint("c", Appointment(6, holds=True), stops=False)
    core.switch(appointed(7, holds=True, snapshot="s"))
    assert say(core, 1, 7)[1] == ["c", "s"]
    assert core.savepoint("c", Appointment(6, holds=True), stops=False) is None, "it is told once more"


@pytest.mark.parametrize("told", ["of the next one", "that another one was taken back"])
def test_no_frame_waits_for_a_capture_that_was_taken_back_while_the_router_heard_nothing(told):
    core = router()
    say(core, 0, 5)
    core.savepoint("held", Appointment(9, holds=True))
    core.savepoint("given up", Appointment(6), stops=False)
    core.switch(appointed(7))
    if told == "of the next one":
        core.savepoint("c", Appointment(8), stops=False)
        core.savepoint("c", Appointment(8, holds=True), stops=False)
    else:
        core.take_back("c")
    assert core.may_take(7 * H - 1) and not core.may_take(7 * H), "a switch is another thing"
    core.switch(appointed(7, holds=True))
    assert core.may_take(10 * H)
    assert say(core, 1, 9)[1] == (["c", "held"] if told == "of the next one" else ["held"])


def test_behind_a_savepoint_no_capture_is_said():
    core = router()
    say(core, 0, 5)
    core.savepoint("c", Appointment(7, holds=True), stops=False)
    core.savepoint("s", Appointment(6, holds=True))
    assert say(core, 1, 8)[1] == ["s"]
