"""Results of a unit that moves in the stage before come in their order: those of its new slot wait for the old one."""

import random

from hypothesis import given
from hypothesis import strategies as st

from keyshift.runtime.row import DATA, Row
from keyshift.runtime.succession import ChangeOfHands, Succession

CHANGE = ChangeOfHands(3, 7, 0)


def row(router, offset):
    return Row(DATA, router, 1, offset, 0)


def test_an_end_counts_once():
    succession = Succession()
    succession.told(0, [], [CHANGE])
    succession.told(1, [CHANGE], [])
    succession.told(1, [CHANGE], [])
    assert succession.keep(row(1, 1))


def test_at_the_end_nothing_stays_behind():
    succession = Succession()
    succession.told(1, [CHANGE], [])
    waiting = row(1, 1)
    assert succession.keep(waiting)
    assert succession.end() == [waiting]
    assert not succession.keep(row(1, 2))


@given(seed=st.integers(0, 1 << 32), units=st.integers(1, 4), hops=st.integers(1, 5))
def test_results_of_each_unit_come_in_their_order_however_routers_are_interleaved(seed, units, hops):
    """Units hop over three slots, with a result at each; each slot's rows arrive in their order, at any time."""
    rng = random.Random(seed)
    sent = {router: [] for router in range(3)}  # offset of the row, or what is said of a change
    expected = {unit: [] for unit in range(units)}
    at, hop, left = dict.fromkeys(range(units), 0), dict.fromkeys(range(units), 0), [hops] * units
    number = 0
    while any(left):
        unit = rng.choice([unit for unit in range(units) if left[unit]])
        number += 1
        sent[at[unit]].append(("row", unit, number))
        expected[unit].append(number)
        if rng.random() < 0.6:
            left[unit] -= 1
            change = (unit, 1, hop[unit])
            sent[at[unit]].append(("ended", change))
            at[unit], hop[unit] = rng.randrange(3), hop[unit] + 1
            sent[at[unit]].append(("begun", change))
    succession, came = Succession(), {unit: [] for unit in range(units)}
    unit_of = {n: unit for unit, numbers in expected.items() for n in numbers}
    saying = {}  # by offset, of rows that say something

    def take(each):
        if succession.keep(each):
            return
        if each.offset in saying:
            kind, change = saying[each.offset]
            told = ([change], []) if kind == "begun" else ([], [change])
            for again in succession.told(each.router, *told):
                take(again)
        else:
            came[unit_of[each.offset]].append(each.offset)

    while any(sent.values()):
        router = rng.choice([router for router, rows in sent.items() if rows])
        kind, *what = sent[router].pop(0)
        if kind == "row":
            take(row(router, what[1]))
        else:
            number += 1
            saying[number] = kind, what[0]
            take(row(router, number))
    assert came == expected
