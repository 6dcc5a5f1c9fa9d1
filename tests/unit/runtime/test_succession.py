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


def said_by(rng, done):
    """The rows of a slot that has ``done`` this. Changes that are neighbours may be in one, but not the end of a unit
    behind its beginning, as ``NextStage`` has it.
    """
    rows = []
    for kind, what in done:
        if kind == "row":
            rows.append((kind, what))
            continue
        beside = rows and rows[-1][0] == "moved" and rng.random() < 0.7
        if not beside or (kind == "ended" and what[0] in [unit for unit, *_ in rows[-1][1]["begun"]]):
            rows.append(("moved", {"begun": [], "ended": []}))
        rows[-1][1][kind].append(what)
    return rows


@given(seed=st.integers(0, 1 << 32), units=st.integers(1, 4), hops=st.integers(1, 5))
def test_results_of_each_unit_come_in_their_order_however_routers_are_interleaved(seed, units, hops):
    """Units hop over three slots, with results at most of them; each slot's rows arrive in their order, at any time."""
    rng = random.Random(seed)
    done = {router: [] for router in range(3)}  # offset of the row, or what is said of a change
    expected = {unit: [] for unit in range(units)}
    at, hop, left = dict.fromkeys(range(units), 0), dict.fromkeys(range(units), 0), [hops] * units
    number = 0
    while any(left):
        unit = rng.choice([unit for unit in range(units) if left[unit]])
        if rng.random() < 0.5:
            number += 1
            done[at[unit]].append(("row", number))
            expected[unit].append(number)
        if rng.random() < 0.6:
            left[unit] -= 1
            change = (unit, 1, hop[unit])
            done[at[unit]].append(("ended", change))
            at[unit], hop[unit] = rng.randrange(3), hop[unit] + 1
            done[at[unit]].append(("begun", change))
    succession, came = Succession(), {unit: [] for unit in range(units)}
    unit_of = {n: unit for unit, numbers in expected.items() for n in numbers}
    saying = {}  # by offset, of rows that say something
    sent = {router: said_by(rng, what) for router, what in done.items()}

    def take(each):
        if succession.keep(each):
            return
        if each.offset in saying:
            for again in succession.told(each.router, **saying[each.offset]):
                take(again)
        else:
            came[unit_of[each.offset]].append(each.offset)

    while any(sent.values()):
        router = rng.choice([router for router, rows in sent.items() if rows])
        kind, what = sent[router].pop(0)
        if kind == "row":
            take(row(router, what))
        else:
            number += 1
            saying[number] = what
            take(row(router, number))
    assert came == expected
