"""What frames and the final state say about time, on runs small enough to see it at a glance."""

import numpy as np
import pandas as pd
import pytest

from keyshift.model.keys import Assignment
from keyshift.state.timers import CLOCK, EVENT, PROCESSING, WATERMARK
from keyshift.workloads.times import Times

STAYS, MOVED = 0, 1  # units: one is in slot 1 all the time, the other comes there with version 2
ASSIGNMENTS = [Assignment(1, (1, 0)), Assignment(2, (1, 1))]
# Router 0 is ahead of router 1 by 5, and one of its frames was cut: the first part has no watermark.
FRAMES = pd.DataFrame(
    [(0, 0, 10), (0, 1, 20), (0, 2, 0), (0, 3, 40), (1, 7, 5), (1, 8, 15), (1, 9, 25), (1, 10, 35)],
    columns=["router", "offset", "watermark"],
)


def times(timers=(), **given) -> Times:
    parts = [pd.DataFrame(timers, columns=["unit", "slot", "kind", "time", "key"], dtype=np.int64)]
    return Times(**({"frames": FRAMES, "timers": parts, "assignments": ASSIGNMENTS} | given))


def lowest(*rows: tuple[int, ...], slots: list[int] | None = None, turn: int = 1, **given) -> list[int]:
    """Of rows of unit, router, offset, version and watermark, all of slot 1 if nothing else is said.

    Before them each router has had a row of its first frame, under version 1.
    """
    columns = ["unit", "router", "offset", "version", "watermark"]
    table = pd.DataFrame([(STAYS, 0, 0, 1, 0), (STAYS, 1, 7, 1, 0), *rows], columns=columns, dtype=np.int64)
    table["slot"] = [1, 1, *(slots or [1] * len(rows))]
    found = times(**given).lowest(table.iloc[::turn])[::turn].tolist()
    assert found[:2] == [0, 0]
    return found[2:]


def test_an_event_meets_at_most_what_its_router_had_reached_and_no_slot_comes_further_than_the_slowest_had_at_the_end():
    router, offset = np.array([0, 0, 0, 0, 1, 1, 5]), np.array([0, 1, 2, 3, 7, 9, 0])
    assert times().highest(router, offset).tolist() == [0, 10, 20, 20, 0, 15, 0]
    assert times().least == 35
    assert times(ends={0: 3, 1: 10}).least == 20
    assert times(ends={0: 3, 1: 7}).least == 0
    assert times(frames=FRAMES.iloc[:0]).least == 0


def test_where_no_unit_knows_of_time_frames_are_not_looked_at():
    untimed = [(STAYS, 1, WATERMARK, 0, 0), (STAYS, 1, CLOCK, 0, 0)]
    assert [*times(untimed, frames=None).wrong()] == []
    assert len([*times([*untimed, (STAYS, 1, PROCESSING, 0, 7)]).wrong()]) == 1


def test_a_watermark_that_no_frame_has_or_beyond_the_slowest_router_or_between_heartbeats_of_turns_is_strange():
    given = pd.Series([0, 10, 11, 35, 40])
    assert times().strange(given).tolist() == [False, False, True, False, True]
    assert times(ends={0: 2, 1: 9}).strange(given).tolist() == [False, False, True, True, True]
    turns = times(heartbeat_us=20)
    assert turns.least == 20, "router 1 has come to 35"
    assert turns.strange(pd.Series([0, 10, 20, 35, 40])).tolist() == [False, True, False, True, True]
    router, offset = np.array([0, 0, 0, 1, 1]), np.array([1, 2, 3, 9, 10])
    assert turns.highest(router, offset).tolist() == [0, 20, 20, 0, 20]


def test_what_a_row_has_met_bounds_all_later_rows_of_its_router_in_its_slot_and_those_beside_it():
    rows = [
        (STAYS, 0, 1, 1, 5),
        (STAYS, 0, 2, 1, 0),  # lost
        (MOVED, 0, 3, 2, 0),  # lost while its unit was on its way
        (STAYS, 0, 3, 2, 15),
        (STAYS, 1, 9, 2, 0),  # of another router: nothing is known
    ]
    assert lowest(*rows) == [5, 5, 15, 15, 0]
    assert lowest(*rows, slots=[1, 1, 2, 1, 1]) == [5, 5, 0, 15, 0]
    assert lowest(*rows, turn=-1) == [5, 5, 15, 15, 0], "the order of the table does not matter"


def test_a_watermark_that_a_unit_may_have_brought_along_proves_nothing():
    # Router 0 has switched before its frame 2, router 1 before its frame 9: it may have come with 15, not with 20.
    switched, later = [(STAYS, 0, 1, 1, 0), (STAYS, 1, 9, 2, 0)], (STAYS, 0, 3, 2, 10)
    assert lowest(*switched, (MOVED, 0, 2, 2, 15), later) == [0, 0, 0, 10]
    assert lowest(*switched, (MOVED, 0, 2, 2, 20), later) == [0, 0, 20, 20]
    assert lowest((MOVED, 0, 2, 2, 20), later) == [0, 10], "router 1 may have switched at any time"


def test_time_may_stand_for_a_unit_that_is_about_to_leave_or_is_lent():
    assert lowest((STAYS, 0, 1, 1, 5), (MOVED, 0, 1, 1, 0)) == [5, 0]
    lent = [(STAYS, 0, 2, 2, 15), (MOVED, 0, 2, 2, 0)]
    assert lowest(*lent) == [15, 15]
    assert lowest(*lent, lending={2}) == [15, 0]
    over = [(STAYS, 0, 2, 3, 15), (MOVED, 0, 2, 3, 0)]
    assert lowest(*over, lending={2}) == [15, 15]


def test_an_attempt_begins_without_any_watermark_and_nothing_is_known_of_no_answers():
    rows = [(STAYS, 0, 1, 1, 10), (STAYS, 1, 8, 1, 10), (STAYS, 0, 2, 2, 0), (MOVED, 1, 9, 2, 0)]
    assert lowest(*rows) == [10, 10, 10, 10]
    assert lowest(*rows, begins=[1, 2]) == [10, 10, 0, 0]
    columns = ["unit", "slot", "router", "offset", "version", "watermark"]
    assert times().lowest(pd.DataFrame(columns=columns, dtype=np.int64)).tolist() == []


HERE = [(STAYS, 1, WATERMARK, 35, 0), (STAYS, 1, CLOCK, 90, 0), (MOVED, 1, WATERMARK, 20, 0), (MOVED, 1, CLOCK, 80, 0)]


@pytest.mark.parametrize(
    "timer, given, told",
    [
        ((STAYS, 1, EVENT, 36, 4), {}, 0),
        ((STAYS, 1, EVENT, 35, 4), {}, 1),
        ((MOVED, 1, EVENT, 20, 4), {"lag_us": 100}, 1),  # by its own watermark
        ((MOVED, 1, EVENT, 30, 4), {}, 1),  # by what it should have reached
        ((MOVED, 1, EVENT, 30, 4), {"lag_us": 5}, 1),
        ((MOVED, 1, EVENT, 31, 4), {"lag_us": 5}, 0),
        ((MOVED, 1, PROCESSING, 91, 4), {}, 0),
        ((MOVED, 1, PROCESSING, 90, 4), {}, 1),  # another unit of the slot has come so far
        ((MOVED, 2, PROCESSING, 90, 4), {}, 0),
    ],
)
def test_a_timer_up_to_which_time_has_come_is_overdue(timer, given, told):
    lines = list(times([*HERE, timer], **given).wrong())
    assert [f"timer of key 4 set to {timer[3]} has not fired" in line for line in lines] == [True] * told


@pytest.mark.parametrize("watermark, told", [(36, 1), (40, 1), (21, 1), (25, 0), (0, 0)])
def test_a_unit_that_has_come_to_no_frames_watermark_or_too_far_is_told(watermark, told):
    lines = list(times([(STAYS, 1, WATERMARK, watermark, 0)]).wrong())
    assert [f"unit 0, slot 1: watermark {watermark}" in line for line in lines] == [True] * told


def test_clocks_are_those_of_slots_and_what_is_nowhere_has_none():
    assert times(HERE).clocks.tolist() == [90, 90]
    assert times([(MOVED, 1, CLOCK, 7, 0), (9, 1, CLOCK, 8, 0)]).clocks.tolist() == [0, 8]
    assert times().clocks.tolist() == [0, 0]
    assert times(HERE).homes() == {(STAYS, 1), (MOVED, 1)}
