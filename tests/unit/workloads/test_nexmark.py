"""The events have the published proportions, and each query gives what it should, worked out by hand and by SQL."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from keyshift.checks import check_workload
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import BadInput
from keyshift.model.keys import units_of
from keyshift.state.memory import MemoryState
from keyshift.workloads.keyed import MOST_DELAY_MS, MOST_MS
from keyshift.workloads.nexmark import Nexmark
from keyshift.workloads.nexmark.operators import ROW, TAKEN, FoldOperator
from keyshift.workloads.nexmark.queries import QUERIES
from keyshift.workloads.nexmark.source import AUCTION, BID, PERSON
from workload_runs import run as run_of
from workload_runs import slot_events, verdict, wrong

SMALL = {"key_groups": 8, "window_ms": 20, "slide_ms": 10, "gap_ms": 15, "delay_ms": 5, "auction_ms": 20, "seed": 11}
STATELESS = ("q1", "q2")
TIMED = [query for query in QUERIES if query not in STATELESS]
CHAINS = [query for query in QUERIES if len(Nexmark(query=query).stages) > 1]
MS = 1000


def make(**changes) -> Nexmark:
    return Nexmark(**(SMALL | changes))


def taken(count, router=0, **changes) -> pa.RecordBatch:
    times = 10**9 + np.arange(count, dtype=np.int64) * 500
    return make(**changes).sources[0].partition(router).take(times)


def of_kind(events, kind) -> pd.DataFrame:
    return events.filter(pc.equal(events["kind"], kind)).to_pandas()


# -- events ------------------------------------------------------------------------------------------------------------


def test_of_fifty_events_one_is_a_person_three_are_auctions_the_others_bids_and_each_has_its_fields():
    kinds = taken(5000)["kind"].to_numpy()
    assert np.bincount(kinds).tolist() == [100, 300, 4600]
    assert (kinds.reshape(-1, 50) == kinds[:50]).all()
    events = taken(500)
    shared = {"t", "at", "kind", "extra"}
    of_auction = {"id", "item_name", "description", "initial_bid", "reserve", "expires", "seller", "category"}
    of_person = {"id", "name", "email", "credit_card", "city", "state"}
    has = {PERSON: of_person, AUCTION: of_auction, BID: {"auction", "bidder", "price"}}
    for kind, names in has.items():
        rows = events.filter(pc.equal(events["kind"], kind))
        full = {name for name in events.schema.names if rows[name].null_count == 0}
        empty = {name for name in events.schema.names if rows[name].null_count == rows.num_rows}
        assert (full, empty) == (names | shared, set(events.schema.names) - names - shared)


def test_numbers_are_those_of_one_router_and_refer_to_what_was_made_before():
    routers = [taken(20_000, router) for router in range(3)]
    numbers = [set(of_kind(events, AUCTION)["id"]) for events in routers]
    assert all(len(each) == 1200 for each in numbers)
    assert not numbers[0] & numbers[1] and not numbers[1] & numbers[2]
    persons = set.union(*(set(of_kind(events, PERSON)["id"]) for events in routers))
    for events in routers:
        assert set(of_kind(events, BID)["auction"]) <= set.union(*numbers)
        assert set(of_kind(events, AUCTION)["seller"]) <= persons


def test_events_have_the_published_proportions_of_hot_auctions_and_persons_prices_and_delays():
    bids = of_kind(taken(100_000, router=2), BID)
    hot_auctions, hot_bidders = ((bids[name] - 1000) % 64 == 0 for name in ("auction", "bidder"))
    assert hot_auctions.mean() == pytest.approx(0.5, abs=0.01)
    assert hot_bidders.mean() == pytest.approx(0.75, abs=0.01)
    assert bids.loc[hot_auctions, "auction"].nunique() == 6000 / 100, "another one for every hundred auctions"
    assert bids.loc[~hot_auctions, "auction"].nunique() > 5000
    events = taken(50_000, delay_ms=7).to_pandas()
    prices = events["price"].dropna()
    assert 100 <= prices.min() < 200 and 9e7 < prices.max() <= 1e8
    assert np.median(prices) == pytest.approx(1e5, rel=0.1)
    late = events["t"] - events["at"]
    assert late.min() >= 0 and 6500 < late.max() <= 7000
    auctions = events[events["kind"] == AUCTION]
    assert (auctions["expires"] > auctions["at"]).all()
    assert set(auctions["category"]) == {10, 11, 12, 13, 14}


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, begin",
    [
        ({"query": "q12"}, "query = 'q12': unknown query 'q12': did you mean 'q2'? known: q1, q2, q3, q4, q5, q6, q7,"),
        ({"query": "q9"}, "query = 'q9': unknown query 'q9'"),
        ({"window_ms": 0}, "window_ms = 0: input should be greater than or equal to 1 (length of"),
        ({"window_ms": MOST_MS + 1}, "window_ms = 31536000001: input should be less than or equal to 31536000000"),
        ({"slide_ms": MOST_MS + 1}, "slide_ms = 31536000001: input should be less"),
        ({"gap_ms": MOST_MS + 1}, "gap_ms = 31536000001: input should be less"),
        ({"auction_ms": MOST_MS + 1}, "auction_ms = 31536000001: input should be less"),
        ({"delay_ms": MOST_DELAY_MS + 1}, "delay_ms = 86400001: input should be less than or equal to 86400000"),
        ({"gap_ms": 0}, "gap_ms = 0: input should be greater than or equal to 1"),
        ({"session_bids": 0}, "session_bids = 0: input should be greater than or equal to 1"),
        ({"dilation": 0.5}, "dilation = 0.5: input should be greater than or equal to 1"),
        ({"slide_ms": 5000}, "slide_ms = 5000: must be at most window_ms = 2000"),
        ({"slide_ms": 1, "window_ms": 1001}, "slide_ms = 1: must be at most window_ms = 1001, and a thousandth at"),
    ],
)
def test_an_unknown_query_and_a_window_that_cannot_be_are_refused_in_one_line(change, begin):
    with pytest.raises(BadInput) as refused:
        make_spec({"workload": "nexmark"} | change)
    assert str(refused.value).startswith(begin) and "\n" not in str(refused.value)


@pytest.mark.parametrize("query", TIMED)
def test_the_longest_times_fit_into_what_timers_have(query):
    longest = dict.fromkeys(("window_ms", "slide_ms", "gap_ms", "auction_ms"), MOST_MS) | {"delay_ms": MOST_DELAY_MS}
    workload, now_us = make(query=query, **longest), 18 * 10**14
    [source], stage = workload.sources, workload.stages[0]
    events = source.mapped(source.partition(0).take(now_us + np.arange(5000)))
    operator, state = stage.operator(), MemoryState(stage.operator().state_schema)
    rows = zip(*(events[name].to_pylist() for name in stage.events.names), strict=True)
    operator.process(slot_events(stage.events, list(rows)), lambda unit: state)
    assert len(state.timers) and max(state.timers.export()["time"].to_pylist()) > now_us


# -- queries by hand ---------------------------------------------------------------------------------------------------


def told(query, events, watermark, **changes):
    """The rows of the first stage for events, each as columns behind key and t, when all routers have come so far."""
    workload = make(query=query, delay_ms=0, **changes)
    stage = workload.stages[0]
    operator, state = stage.operator(), MemoryState(stage.operator().state_schema)
    results = operator.process(slot_events(stage.events, events), lambda unit: state)
    assert set(results["kind"].to_pylist()) == {TAKEN}
    state.timers.reach(watermark)
    rows = operator.advance([state])
    if rows is None:
        return [], state
    assert set(rows["kind"].to_pylist()) == {ROW}
    names = [name for name in rows.schema.names if name not in ("t", "position", "kind")]
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True)), state


def bid(auction, at, bidder=1, price=5):
    return auction, at * MS, at * MS, bidder, price


def test_q5_counts_the_bids_of_an_auction_in_every_window_that_has_them():
    events = [bid(7, 21), bid(7, 29), bid(7, 35), bid(8, 39)]
    rows, state = told("q5", events, 50 * MS)  # windows of 20 ms, every 10 ms
    expected = [(7, 10 * MS, 2), (7, 20 * MS, 3), (7, 30 * MS, 1), (8, 20 * MS, 1), (8, 30 * MS, 1)]
    assert rows == expected
    assert not state.keys() and not len(state.timers)
    assert told("q5", events, 50 * MS - 1)[0] == [row for row in expected if row[1] < 30 * MS]


def test_q7_keeps_every_bid_of_the_highest_price():
    events = [bid(7, 1, 1, 5), bid(7, 2, 2, 9), bid(7, 3, 3, 4), bid(7, 19, 4, 9), bid(7, 20, 5, 1)]
    rows, state = told("q7", events, 20 * MS)
    assert rows == [(7, 0, 9, 2), (7, 0, 9, 4)]
    assert state.keys() == [7], "the next window is open"


def offer(number, at, expires, category=10, seller=5):
    return number, at * MS, at * MS, AUCTION, 0, expires * MS, category, seller


def bid_for(number, at, price):
    return number, at * MS, at * MS, BID, price, 0, 0, 0


@pytest.mark.parametrize("query, row", [("q4", (7, 12, 30)), ("q6", (7, 5, 20 * MS, 30))])
def test_q4_and_q6_tell_the_highest_bid_of_an_auction_while_it_was_open(query, row):
    bids = [bid_for(7, 9, 99), bid_for(7, 10, 10), bid_for(7, 20, 30), bid_for(7, 21, 50), bid_for(7, 12, 30)]
    unsold = [offer(8, 10, 15), bid_for(8, 16, 70)]
    auction_first = [offer(7, 10, 20, category=12), *bids, *unsold]
    bids_first = [*bids, offer(7, 10, 20, category=12), *unsold]
    for events in (auction_first, bids_first):
        rows, state = told(query, events, 20 * MS + 1)
        assert rows == [row]
        assert [state.values[key][1] for key in (7, 8)] == [[2], [2]], "closed: later bids change nothing"
        assert told(query, events, 20 * MS)[0] == []


def test_q6_has_the_last_ten_of_a_seller_in_the_order_in_which_they_closed():
    operator = make(query="q6").stages[1].operator()
    state = MemoryState(operator.state_schema)
    schema = make(query="q6").stages[1].events
    closed = [3, 1, 2, *range(12, 3, -1)]  # in any order
    events = [(5, 0, ROW, number, number * MS, number) for number in closed]
    rows = operator.process(slot_events(schema, events), lambda unit: state)
    assert state.values[5] == (12, [n * MS for n in range(3, 13)], list(range(3, 13)), list(range(3, 13)))
    assert rows["total"].to_pylist()[-1] == sum(range(3, 13))
    assert rows["count"].to_pylist() == [*range(1, 11), 10, 10]


def test_q11_ends_a_session_behind_the_gap_and_joins_what_a_late_bid_connects():
    events = [(3, 0, at * MS) for at in (10, 20, 50, 36, 100)]  # a gap of 15 ms: 36 is near 50, but not 20
    rows, _ = told("q11", events, 90 * MS)
    assert rows == [(3, 10 * MS, 20 * MS, 2), (3, 36 * MS, 50 * MS, 2)]
    rows, _ = told("q11", [*events, (3, 0, 30 * MS)], 90 * MS)
    assert rows == [(3, 10 * MS, 50 * MS, 5)]
    apart, joined = ([(3, 0, 0), (3, 0, gap)] for gap in (15 * MS, 15 * MS - 1))
    assert [len(told("q11", events, 10**6)[0]) for events in (apart, joined)] == [2, 1]


@pytest.mark.parametrize("session_bids", [1, 3, 7])
def test_q11_tells_a_session_whenever_it_has_so_many_bids_and_the_others_when_it_ends(session_bids):
    stage = make(query="q11", delay_ms=0, session_bids=session_bids).stages[0]
    operator, state = stage.operator(), MemoryState(stage.operator().state_schema)
    moments = [10, 12, 11, 20, 40, 41, 30]  # a gap of 15 ms: the last one joins four and two

    def rows(batch):
        names = ("start", "last", "count")
        made = zip(*(batch[name].to_pylist() for name in ("kind", *names)), strict=True)
        return [[n // MS for n in row[:2]] + [row[2]] for kind, *row in made if kind == ROW]

    bids = slot_events(stage.events, [(3, at * MS, at * MS) for at in moments])
    at_once = rows(operator.process(bids, lambda unit: state))
    state.timers.reach((41 + 15) * MS)
    at_end = rows(operator.advance([state])) if session_bids > 1 and 7 % session_bids else []
    expected = {
        1: ([[10, 10, 1], [10, 12, 1], [10, 12, 1], [10, 20, 1], [40, 40, 1], [40, 41, 1], [10, 41, 1]], []),
        3: ([[10, 12, 3], [10, 41, 3]], [[10, 41, 1]]),
        7: ([[10, 41, 7]], []),
    }
    assert (at_once, at_end) == expected[session_bids]
    assert operator.advance([state]) is None and not state.keys(), "an ended session leaves nothing"


def person(number, at, state="OR", name="Ada"):
    return number, at * MS, at * MS, PERSON, 0, 0, 0, name, "Bend", state


def auction(number, seller, at, category=10, reserve=70):
    return seller, at * MS, at * MS, AUCTION, number, category, reserve, "", "", ""


def test_q3_finds_the_sellers_of_some_states_whoever_comes_first():
    events = [
        *(auction(1, 5, 1), person(5, 2), auction(2, 5, 3), auction(3, 5, 3, category=11)),
        *(person(6, 1, state="WY"), auction(4, 6, 2), auction(5, 9, 2)),
    ]
    rows, state = told("q3", events, 10 * MS)
    assert rows == [(5, 1, "Ada", "Bend", "OR"), (5, 2, "Ada", "Bend", "OR")]
    assert sorted(state.keys()) == [5, 6, 9], "persons stay, and auctions wait for theirs"
    assert state.values[5][1] == [0], "but auctions that were told do not"
    assert told("q3", events, 2 * MS)[0] == []


def test_q8_finds_who_is_new_and_sells_in_the_same_window():
    events = [person(5, 1), auction(1, 5, 19), auction(2, 5, 20), person(6, 15), auction(3, 7, 5), auction(4, 6, 12)]
    rows, state = told("q8", events, 20 * MS)
    assert rows == [(5, 0, 1, 70, "Ada"), (6, 0, 4, 70, "Ada")]
    assert state.keys() == [5], "the auction of the next window"


def test_q1_gives_prices_in_euro_and_q2_the_bids_for_some_auctions():
    events = taken(20_000)
    bids = of_kind(events, BID)
    made = make(query="q1").sources[0].mapped(events).to_pandas()
    assert (made["price"] == (bids["price"] * 89 // 100)).all()
    assert (made["key"] == bids["auction"]).all() and (made["bidder"] == bids["bidder"]).all()
    workload = make(query="q2")
    made = run_of(workload, (2,), frames=40, events_per_frame=100)
    assert 0 < len(made.results) < len(made.events)
    assert set(made.results["key"] % 123) == {0}


# -- bids of a session that are told at once ---------------------------------------------------------------------------

FIVE = {"query": "q11", "session_bids": 5}


def sessions(routers=2, slots=(2, 3), **changes):
    workload = make(**(FIVE | changes))
    return workload, run_of(workload, slots, routers=routers, frames=30, events_per_frame=100)


@pytest.mark.parametrize("session_bids", [1, 5])
def test_as_many_rows_are_told_at_once_whatever_moves_and_whoever_comes_first(session_bids):
    def counts(routers, slots):
        workload, made = sessions(routers, slots, session_bids=session_bids)
        assert verdict(workload, made).ok, verdict(workload, made).examples
        results = made.results[made.results["kind"] == ROW]
        at_once = results["position"] >= 0
        assert at_once.sum() > 20 and (results.loc[at_once, "count"] == session_bids).all()
        assert (results.loc[~at_once, "count"] < session_bids).all()
        return results[["key", "count"]].value_counts().sort_index()

    pd.testing.assert_series_equal(counts(2, (2,)), counts(2, (2, 4, 3)))
    bids = sum(key_count * many for (_, key_count), many in counts(2, (2,)).items())
    _, made = sessions(session_bids=session_bids)
    open_still = sum(sum(entries) for part in made.final for entries in part["count"])
    assert bids + open_still == len(made.events), "each bid is told once"


@pytest.mark.parametrize(
    "field, other",
    [
        ("count", lambda row: row["count"] - 1),
        ("start", lambda row: row["start"] - 1),
        ("start", lambda row: row["last"]),
        ("last", lambda row: row["last"] + 10**6),
        ("last", lambda row: row["start"]),
    ],
)
def test_a_row_told_at_once_that_cannot_be_is_wrong(field, other):
    workload, made = sessions()
    row = made.results.index[(made.results["kind"] == ROW) & (made.results["position"] >= 0)][3]
    made.results.loc[row, field] = other(made.results.loc[row])
    found = verdict(workload, made)
    assert found.wrong == 2, "what it tells, and that the right one is missing"
    assert "which cannot be" in found.examples[0]


def test_a_row_that_was_not_told_at_once_and_one_too_many_are_wrong():
    workload, made = sessions()
    told = made.results[(made.results["kind"] == ROW) & (made.results["position"] >= 0)]
    silent = made.results.copy()
    silent.loc[told.index[2], ["kind", "start", "last", "count"]] = 0
    assert verdict(workload, made, results=silent).wrong == 1
    taken_in = made.results.index[(made.results["kind"] == TAKEN) & (made.results["key"] == told["key"].iloc[2])][0]
    names = ["kind", "start", "last", "count"]
    made.results.loc[taken_in, names] = told.iloc[2][names].to_numpy(np.int64)
    assert verdict(workload, made).wrong >= 1


# -- whole runs against SQL --------------------------------------------------------------------------------------------


def run(query, delay_ms=5, **changes):
    workload = make(query=query, delay_ms=delay_ms)
    return workload, run_of(workload, **({"frames": 13} | changes))


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_keeps_the_contract_of_a_workload(query):
    # With 13 frames the last one has persons and auctions, too.
    check_workload(make(query=query, bins=2), frames=13, examples=5)


@pytest.mark.parametrize("query", TIMED)
def test_rows_are_those_of_sql_while_units_move_and_one_that_is_another_makes_the_verdict_bad(query):
    workload, made = run(query, slots=(2, 4, 3), frames=40, events_per_frame=100)
    found = verdict(workload, made)
    assert found.ok, found.examples
    rows = made.results.index[made.results["position"] == -1]
    assert len(rows) > 10
    for name in [field.name for field in workload.stages[-1].result_fields if field.name != "kind"]:
        results = made.results.copy()
        value = results.loc[rows[0], name]
        results.loc[rows[0], name] = f"{value}!" if isinstance(value, str) else value + 10**9
        assert verdict(workload, made, results=results).wrong, f"another {name} is not seen"


@pytest.mark.parametrize("query", ["q4", "q11"])
def test_an_answer_that_tells_more_is_wrong(query):
    workload, made = run(query)
    row = made.results.index[made.results["position"] >= 0][4]
    made.results.loc[row, "kind"] = ROW
    assert verdict(workload, made).wrong == 1


@pytest.mark.parametrize("query", CHAINS)
def test_an_answer_with_the_key_of_another_event_is_wrong(query):
    workload, made = run(query)
    unit = pd.Series(workload.units_of(made.results["key"]), made.results.index)
    row = made.results.index[made.results["position"] >= 0][4]
    others = made.results.loc[(unit == unit[row]) & (made.results["key"] != made.results.loc[row, "key"]), "key"]
    made.results.loc[row, "key"] = others.iloc[0]
    found = verdict(workload, made)
    assert found.wrong == 1 and f"key {others.iloc[0]}, expected" in found.examples[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lists: [[] for _ in lists], "lists of other lengths, or none"),
        (lambda lists: [*lists[:-1], lists[-1][1:]], "lists of other lengths, or none"),
        (lambda lists: [[None, *lists[0][1:]], *lists[1:]], "an entry lacks a value"),
    ],
)
@pytest.mark.parametrize("query", TIMED)
def test_an_entry_that_is_damaged_is_wrong_and_the_others_are_judged(query, change, why):
    workload, made = run(query, delay_ms=300)
    part = next(part for part in made.final if (part["stage"] == 0).all())
    names = workload.stages[0].operator().state_schema.names
    for name, value in zip(names, change([part[name].iloc[0] for name in names]), strict=True):
        part[name] = [value, *part[name].iloc[1:]]  # ``at`` would take a list of one value for the value
    key = part["key"].iloc[0]
    found = wrong(workload, made)
    assert found[0] == f"final state of key {key}: {why}"
    assert len(found) > 1 and all(f"key {key}" in line for line in found), "its entries are missing"


@pytest.mark.parametrize("query", TIMED)
def test_timers_and_entries_that_do_not_belong_together_are_wrong(query):
    workload, made = run(query, delay_ms=300, frames=30, events_per_frame=60)
    timers = [part.copy() for part in made.timers]
    table = next(part for part in timers if (part["kind"] == 0).any())
    of_event = table.index[table["kind"] == 0][0]
    without = [part.drop(index=of_event) if part is table else part for part in timers]
    assert verdict(workload, made, times=replace(made.times, timers=without)).wrong
    table.loc[of_event, "time"] += 1
    assert verdict(workload, made, times=replace(made.times, timers=timers)).wrong


@pytest.mark.parametrize("query", CHAINS)
def test_a_state_of_the_last_stage_that_is_another_is_wrong(query):
    workload, made = run(query, frames=30, events_per_frame=60)
    part = next(part for part in made.final if (part["stage"] == 1).any())
    assert units_of(part["key"].to_numpy(), 8).tolist() == part["unit"].tolist()
    name = {"q4": "total", "q6": "prices"}.get(query, "best")
    value = part[name].iloc[0]
    part.at[part.index[0], name] = value + 1 if query != "q6" else [*value[:-1], value[-1] + 1]
    assert verdict(workload, made).wrong


@pytest.mark.parametrize(("query", "name"), [("q5", "leaders"), ("q6", "prices"), ("q7", "leaders")])
def test_a_state_of_the_last_stage_that_lacks_a_list_is_wrong(query, name):
    workload, made = run(query, frames=30, events_per_frame=60)
    part = next(part for part in made.final if (part["stage"] == 1).any())
    part.at[part.index[0], name] = None
    found = wrong(workload, made)
    assert [line.partition(":")[0] for line in found] == ["final state of the last stage"] * 2, "it, and the right one"


@pytest.mark.parametrize("query", CHAINS)
def test_a_state_that_was_lost_in_mid_run_is_wrong_even_if_later_rows_hide_it(query):
    def lossy(fold, key, row):
        rows = Counter()

        def lost(state, event):
            rows[event[0]] += 1
            return fold(None if (event[0], rows[event[0]]) == (key, row) else state, event)

        return lost

    def made(key=None, row=0):
        workload = make(query=query)
        first, last = workload.stages
        fold, *others = last.operator.args
        last = replace(last, operator=partial(FoldOperator, lossy(fold, key, row), *others))
        workload.__dict__["stages"] = first, last
        return workload, run_of(workload, (2,), frames=30, events_per_frame=60)

    _, whole = made()
    told = whole.results[whole.results["position"] < 0]
    key, rows = told["key"].mode()[0], told["key"].value_counts().max()
    assert rows > 20
    assert verdict(*made()).ok
    for row in range(2, rows, 15):
        assert verdict(*made(key, row)).wrong, f"lost before row {row} of {rows}"


@pytest.mark.parametrize("query", TIMED)
def test_a_job_that_has_told_all_may_be_left_without_state(query):
    workload, made = run(query)
    times = replace(made.times, timers=[])
    nothing = made.events.iloc[:0], made.results.iloc[:0]
    assert list(workload.wrong(*nothing, iter([]), times)) == []
    if query in CHAINS:
        last = [part.iloc[:0] for part in made.final if (part["stage"] == 1).all()]
        assert list(workload.wrong(*nothing, iter(last), times)) == []
        first = [part for part in made.final if (part["stage"] == 0).all()]
        assert list(workload.wrong(made.events, made.results, iter(first), made.times)), "the last stage has nothing"


@pytest.mark.parametrize("query", ["q5", "q8", "q11"])
def test_long_windows_close_where_event_time_runs_faster_than_the_clock(query):
    """With 79 times as long windows in time that runs 79 times as fast, a query gives the same."""
    names = ("window_ms", "slide_ms", "gap_ms", "auction_ms")
    long = {name: SMALL[name] * 79 for name in names} | {"dilation": 79.0}
    for name in ("window_us", "slide_us", "gap_us", "auction_us"):
        assert getattr(make(query=query, **long), name) == getattr(make(query=query), name)
    assert taken(500, **long).equals(taken(500))
