"""What a slot that works in turns says to the next stage, and when."""

from itertools import chain

import pytest

from keyshift.model.keys import Assignment, SlotId
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, SAVEPOINT, TICK
from keyshift.runtime.slot import Cut, Moved
from keyshift.runtime.turn_sender import Sender, TurnSender
from keyshift.runtime.turns import TurnEnd

H = 20_000
FIRST, SECOND = Assignment(1, (SlotId(0), SlotId(1))), Assignment(2, (SlotId(1), SlotId(0)))


def sender(turn=0, epoch=0):
    """Results are lists of units."""

    def split(events, assignment):
        return {assignment.owner[unit]: b"%d" % unit for unit in events}

    begins = Sender(3, turn, epoch * H)
    core = TurnSender(begins, PublishAssignment(FIRST), 2, 1 << 20, split, H, lambda results: [*chain(*results)])
    begun(core, turn, epoch)
    return core


def begun(core, turn, epoch):
    """Its batch: the first row has a barrier behind it."""
    core.give([TurnEnd(turn + 1, (epoch + 1) * H, 7)])


def say(core, *results):
    """What slots 0 and 1 get: kind, version, offset."""
    rows = core.give(results)
    assert {row.router for _, row in rows} <= {3}
    return [[(row.kind, row.version, row.offset) for slot, row in rows if slot == each] for each in range(2)]


def test_a_turn_says_its_time_and_its_chain_also_if_it_closes_no_epoch_and_units_that_move_need_no_word():
    core = sender()
    for end in (TurnEnd(2, 5 * H, 5), TurnEnd(3, 5 * H, 6), TurnEnd(4, 6 * H, None)):
        rows = core.give([[0], Moved(0, 2, 0, True), Moved(1, 2, 0, False), end])
        assert [(row.watermark, row.chain) for _, row in rows] == [(end.reached, end.chain or 0)] * 2


@pytest.mark.parametrize(("snapshot", "kind"), [(False, SAVEPOINT), (True, CAPTURE)])
def test_what_the_slot_has_come_to_stands_behind_the_row_of_its_last_turn(snapshot, kind):
    core = sender()
    rows = say(core, [0], TurnEnd(2, 2 * H, 5), Cut("s", snapshot), [0], TurnEnd(3, 3 * H, 6))
    assert rows[0] == [(DATA, 1, 2), (kind, 1, 2), (DATA if snapshot else TICK, 1, 3)]
    assert rows[1] == [(TICK, 1, 2), (kind, 1, 2), (TICK, 1, 3)]


def test_a_turn_says_the_time_that_it_has_reached_also_if_channels_had_come_further_in_the_batch_before():
    again = TurnSender(Sender(3, 9, 9 * H + 5), PublishAssignment(FIRST), 2, 1 << 20, lambda *_: {}, H, list)
    assert {row.watermark for _, row in again.give([TurnEnd(10, 9 * H, 5)]) if row.kind == TICK} == {9 * H}


def test_a_turn_waits_until_it_is_known_whether_what_is_appointed_before_its_end_holds():
    core = sender()
    told = PublishAssignment(SECOND, appointment=Appointment(3), before=FIRST)
    assert core.switch(told) is True
    assert say(core, [0], TurnEnd(2, 2 * H, 5))[0] == [(DATA, 1, 2)] and not core.holds
    assert say(core, [0], TurnEnd(3, 3 * H, 6), [0], TurnEnd(4, 4 * H, 7)) == [[], []] and core.holds
    core.switch(PublishAssignment(SECOND, appointment=Appointment(3, holds=True), before=FIRST))
    assert say(core) == [[(DATA, 1, 3), (BARRIER, 2, 3), (TICK, 2, 4)], [(TICK, 1, 3), (BARRIER, 2, 3), (DATA, 2, 4)]]
    assert not core.holds
