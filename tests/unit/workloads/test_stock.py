"""Order books: what must hold whatever comes, and that the verdict sees what does not."""

import struct
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyshift.checks import check_workload
from keyshift.model.keys import units_of
from keyshift.state.memory import MemoryState
from keyshift.workloads.stock import Stock
from keyshift.workloads.stock.operator import EVENTS, StockOperator
from keyshift.workloads.stock.oracle import Exchange
from workload_runs import run as run_of
from workload_runs import slot_events, verdict

# Events: security, order, deletes, buys, price, volume.
# Few of everything, so that orders meet, are deleted, and are replaced by others of their number.
NUMBERS = st.integers(-1, 1), st.integers(0, 12), st.booleans(), st.booleans(), st.integers(1, 6), st.integers(0, 5)
TOLD = st.lists(st.tuples(*NUMBERS), max_size=60)


def answered(told):
    """What the operator gives for events of one key, and what the book is left with: a list for each side."""
    state = MemoryState(StockOperator.state_schema)
    events = slot_events(EVENTS, [(4, 0, *more, security) for security, *more in told])
    results = StockOperator(Stock()).process(events, lambda unit: state).to_pylist()
    _, bids, asks = state.values[4] or (0, b"", b"")
    left = [
        [tuple(memoryview(side).cast("q")[i : i + 4]) for i in range(0, len(side) // 8, 4)] for side in (bids, asks)
    ]
    return results, left


@given(told=TOLD)
def test_volume_is_conserved_a_book_is_never_crossed_and_no_order_waits_twice(told):
    results, (bids, asks) = answered(told)
    entered, gone = defaultdict(int), defaultdict(int)
    for (security, _, deletes, _, _, volume), result in zip(told, results, strict=True):
        traded = sum(result["volumes"])
        assert all(each > 0 for each in result["volumes"])
        if deletes:
            assert (traded, result["rest"]) == (0, 0)
        else:
            assert traded + result["rest"] == volume
            entered[security] += volume
        gone[security] += result["removed"] + 2 * traded
    assert all(volume > 0 for *_, volume in bids + asks)
    for security in entered.keys() | {of for of, *_ in bids + asks}:
        left = [row for row in bids + asks if row[0] == security]
        assert entered[security] == gone[security] + sum(volume for *_, volume in left)
        best_bid = max((-rank for of, rank, *_ in bids if of == security), default=0)
        best_ask = min((rank for of, rank, *_ in asks if of == security), default=99)
        assert best_bid < best_ask
        assert len({order for _, _, order, _ in left}) == len(left)


@given(told=TOLD)
def test_the_best_price_trades_first_and_at_a_price_the_oldest(told):
    """Each trade against a list of all that wait, in the order in which they came."""
    results, _ = answered(told)
    waiting: list[list] = []  # security, order, buys, price, volume: in the order in which they came
    for (security, order, deletes, buys, price, _), result in zip(told, results, strict=True):
        waiting = [each for each in waiting if each[:2] != [security, order]]
        for maker, at, traded in zip(result["makers"], result["prices"], result["volumes"], strict=True):
            against = [each for each in waiting if each[0] == security and each[2] != buys]
            best = min(against, key=lambda each: each[3] if buys else -each[3])  # of several, the first
            assert best[1] == maker and best[3] == at and (at <= price if buys else at >= price)
            best[4] -= traded
            assert best[4] >= 0
            waiting = [each for each in waiting if each[4]]
        if not deletes and result["rest"]:
            waiting.append([security, order, buys, price, result["rest"]])


@given(told=TOLD)
def test_operator_and_oracle_agree(told):
    results, (bids, asks) = answered(told)
    exchange = Exchange()
    for number, (event, result) in enumerate(zip(told, results, strict=True), 1):
        found = tuple(result[name] for name in ("seq", "removed", "rest", "makers", "prices", "volumes"))
        assert found == (number, *exchange.tell(*event))
    assert (bids, asks) == (exchange.left(True), exchange.left(False))


# -- books with which the exchange opens -------------------------------------------------------------------------------


def opened(workload):
    """Of each key its sides as rows of security, rank, number and volume, and the unit it is in."""
    operator, found = StockOperator(workload), {}
    for unit in range(workload.key_groups * workload.bins):
        state = MemoryState(operator.state_schema)
        operator.initial(unit, state)
        for key in sorted(state.keys()):
            seq, *sides = state.values[key]
            assert seq == 0 and key not in found
            found[key] = unit, [list(struct.iter_unpack("<4q", side)) for side in sides]
    return found


@pytest.mark.parametrize("keyed_by", ["security", "account"])
@given(securities=st.integers(1, 8), resting=st.integers(0, 30), accounts=st.integers(1, 9), seed=st.integers(0, 99))
def test_books_open_deep_uncrossed_and_in_the_order_in_which_they_trade(keyed_by, securities, resting, accounts, seed):
    given_ = {"securities": securities, "resting": resting, "accounts": accounts, "seed": seed, "keyed_by": keyed_by}
    workload = Stock(key_groups=4, bins=2, **given_)
    books, drawn = opened(workload), workload.opening()
    assert sum(len(side) for _, sides in books.values() for side in sides) == securities * resting == drawn.num_rows
    keys = np.array(sorted(books))
    assert units_of(keys, 4, 2).tolist() == [books[key][0] for key in keys.tolist()]
    volumes = [volume for _, sides in books.values() for side in sides for *_, volume in side]
    assert sum(volumes) == sum(drawn["volume"].to_pylist()) and all(volume > 0 for volume in volumes)
    best: dict[int, list[int]] = defaultdict(lambda: [0, 10**9])  # of a security over all books: bid and ask
    for _, (bids, asks) in books.values():
        for side in (bids, asks):
            assert side == sorted(side, key=lambda row: (row[0], row[1], -row[2])), "best first, then oldest"
        for security, rank, *_ in bids:
            best[security][0] = max(best[security][0], -rank)
        for security, rank, *_ in asks:
            best[security][1] = min(best[security][1], rank)
    assert all(bid < ask for bid, ask in best.values())


def test_new_orders_meet_those_that_rest_and_every_router_leaves_them_alone():
    workload = Stock(securities=3, open_orders=10, resting=1000, key_groups=4)
    made = run_of(workload, (2,), frames=40, events_per_frame=50)
    assert verdict(workload, made).ok, verdict(workload, made).examples
    makers = [maker for row in made.results["makers"] for maker in row]
    assert sum(maker < 0 for maker in makers) > 20, "numbers below 0 rest"
    assert not (made.events["order"] < 0).any()
    with pytest.raises(ValidationError, match="resting = 100000: with securities = 200 that are 20000000 orders, at"):
        Stock(resting=100_000)


@pytest.mark.parametrize("keyed_by", ["security", "account"])
def test_a_book_that_nobody_touched_must_be_there_in_the_end(keyed_by):
    workload, made = run(securities=200, accounts=500, keyed_by=keyed_by, resting=3)
    assert verdict(workload, made).ok, verdict(workload, made).examples
    silent = next(part for part in made.final if (part["seq"] == 0).any())
    key = silent.index[silent["seq"] == 0][0]
    missing = [part.drop(index=key) if part is silent else part for part in made.final]
    found = verdict(workload, made, final=missing)
    assert found.wrong == 1 and "in 0 places, expected 1" in found.examples[0]
    side = "bids" if silent.at[key, "bids"] else "asks"
    silent.at[key, side] = silent.at[key, side][32:]
    found = verdict(workload, made)
    assert found.wrong == 1 and side in found.examples[0]


# -- the verdict -------------------------------------------------------------------------------------------------------

SMALL = {"key_groups": 8, "securities": 30, "open_orders": 40, "accounts": 20, "resting": 4, "seed": 3}


def run(**changes):
    workload = Stock(**(SMALL | changes))
    return workload, run_of(workload, frames=20)


@pytest.mark.parametrize("keyed_by", ["security", "account"])
def test_orders_meet_wherever_the_books_are(keyed_by):
    workload, made = run(keyed_by=keyed_by)
    assert verdict(workload, made).ok, verdict(workload, made).examples
    assert (made.results["makers"].str.len() > 0).mean() > 0.01
    assert (made.results["removed"] > 0).mean() > 0.1
    check_workload(workload)


def test_an_event_without_a_result_is_lost_and_its_key_is_not_judged_beyond_that():
    workload, made = run()
    found = verdict(workload, made, results=made.results.drop(index=5))
    assert (found.lost, found.wrong) == (1, 0)


@pytest.mark.parametrize("column", ["bids", "asks"])
@pytest.mark.parametrize(
    "other",
    [
        lambda side: side[32:],
        lambda side: side[32:64] + side[:32] + side[64:],  # who was first is second
        lambda side: side[:24] + b"\7" + side[25:],
        lambda side: side[:-1],
    ],
    ids=["an order less", "out of turn", "another volume", "a byte less"],
)
def test_another_book_in_the_end_is_wrong(column, other):
    workload, made = run(securities=3)
    part = next(part for part in made.final if (part[column].str.len() > 64).any())
    row = part.index[part[column].str.len() > 64][0]
    part.at[row, column] = other(part.at[row, column])
    found = verdict(workload, made)
    assert found.wrong == 1 and column in found.examples[0]


def test_a_key_that_is_missing_or_twice_or_elsewhere_or_unknown_is_wrong():
    workload, made = run()
    first, *others = [part for part in made.final if len(part)]
    missing = verdict(workload, made, final=[first.iloc[1:], *others])
    assert missing.wrong == 1 and "in 0 places, expected 1" in missing.examples[0]
    twice = verdict(workload, made, final=[first, first.iloc[:1], *others])
    assert twice.wrong == 1 and "in 2 places" in twice.examples[0]
    unit = (first["unit"].iloc[0] + 1) % 8
    assert verdict(workload, made, final=[first.assign(unit=unit), *others]).wrong >= len(first)
    stranger = first.iloc[:1].assign(key=99, unit=int(units_of(pd.Series([99]).to_numpy(), 8)[0]))
    found = verdict(workload, made, final=[first, stranger, *others])
    assert any("no event of it was offered" in line for line in found.examples)
