"""Replicas that have given other results are found, wherever they are."""

import numpy as np
import pandas as pd
import pytest

from keyshift.model.keys import units_of
from keyshift.results.copies import UNIT, by_unit, repeated, unlike


def results(rows, replica=0, first=True):
    """Of (slot, epoch, value) each."""
    table = pd.DataFrame(rows, columns=["slot", "slot_turn", "state"])
    numbers = range(len(table))
    return table.assign(
        router=0, offset=numbers, position=0, key=7, log_offset=[9 * replica + n for n in numbers], arrived_us=numbers
    ).assign(replica=replica, first=first)


ROWS = [(0, 1, b"a"), (1, 1, b"b"), (0, 2, b"c"), (1, 3, b"d"), (0, 4, b"e")]
FIRSTS = results(ROWS)


@pytest.mark.parametrize("came_to", [0, 1, 3, 5])
def test_a_replica_that_came_so_far_has_given_the_same(came_to):
    assert list(unlike(FIRSTS, results(ROWS, 1, first=False).iloc[:came_to])) == []


ANOTHER = "slot {} gave another result than the first copy in turn {}: router 0 offset {} position 0 key 7"
NO_FIRST = "slot {} gave results from turn {} on of which there is no first copy"


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        pytest.param([*ROWS[:2], (0, 2, b"x"), *ROWS[3:]], [ANOTHER.format(0, 2, 2)], id="another value"),
        pytest.param([*ROWS[:2], (0, 3, b"c"), *ROWS[3:]], [ANOTHER.format(0, 3, 2)], id="another turn"),
        pytest.param(
            [(slot, turn, b"x") for slot, turn, _ in ROWS],
            [ANOTHER.format(0, 1, 0), ANOTHER.format(1, 1, 1)],
            id="each slot once",
        ),
        pytest.param([*ROWS, (0, 6, b"f")], [NO_FIRST.format(0, 6)], id="a turn more"),
        pytest.param([(5, 1, b"a")], [NO_FIRST.format(5, 1)], id="a slot more"),
    ],
)
def test_what_a_replica_has_given_that_the_first_one_has_not_is_named(rows, lines):
    assert list(unlike(FIRSTS, results(rows, 1, first=False))) == lines


def test_replicas_have_given_the_same_whatever_their_assignments_if_each_unit_has_and_results_may_have_lists():
    firsts = FIRSTS.assign(leaders=[np.array(each) for each in ([1], [], [1, 2], [3], [])])
    same, other = firsts.copy(), firsts.assign(leaders=[np.array(each) for each in ([1], [], [2, 1], [3], [])])
    assert list(unlike(firsts, same)) == []
    [line] = unlike(firsts, other)
    assert line.startswith("slot 0 gave another result than the first copy in turn 2")
    keys = np.arange(5) % 2
    unit, other = units_of(keys[:2], 4).tolist()
    assert unit != other
    firsts = by_unit(FIRSTS.assign(key=keys, version=1), 4, 1)
    moved = FIRSTS.assign(key=keys, slot=[0, 1, 2, 2, 2], version=[1, 1, 2, 2, 2])
    assert list(unlike(firsts, by_unit(moved, 4, 1), UNIT)) == []
    assert list(unlike(firsts, by_unit(moved.iloc[[0, 2, 1, 3, 4]], 4, 1), UNIT)) == [], "one slot was earlier"
    [line] = unlike(firsts, by_unit(moved.assign(state=[b"a", b"b", b"c", b"x", b"e"]), 4, 1), UNIT)
    assert line.startswith(f"unit {other} gave another result than the first copy in turn 3: router 0 offset 3 ")
    [line] = unlike(firsts.iloc[:-1], by_unit(moved, 4, 1), UNIT)
    assert line == f"unit {unit} gave results from turn 4 on of which there is no first copy"


@pytest.mark.parametrize(
    ("arrived", "restarts", "expected"),
    [
        ([10, 200], [100], [True, False]),
        ([10, 20], [100], [False, False]),  # before any restart: a mistake
        ([10, 200, 210], [100], [False, True, False]),  # once too often
        ([10, 200, 400], [300, 100], [True, True, False]),
        ([10, 20, 400], [100, 300], [False, True, False]),
        ([10, 400], [100, 300], [True, False]),
        ([10, 200, 210], [100, 300], [False, True, False]),
        ([10, 200], [], [False, False]),
    ],
)
def test_a_result_counts_for_nothing_if_it_came_once_more_behind_a_restart(arrived, restarts, expected):
    copies = pd.DataFrame({"router": 0, "offset": 3, "position": 0, "arrived_us": arrived, "log_offset": arrived})
    others = copies[:1].assign(offset=4)
    assert repeated(pd.concat([copies, others]), restarts).tolist() == [*expected, False]
