"""The queries of ``nexmark``: stages and rules. What they have to give is in ``sql``, which knows nothing of this."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.frames import EVENT_FIELDS
from keyshift.workloads.contract import ORIGIN, KeyedStage
from keyshift.workloads.nexmark.operators import (
    KIND,
    NOT_DUE,
    ROW,
    EntriesOperator,
    Entry,
    Fold,
    FoldOperator,
    MapOperator,
    Rule,
    without_due,
)
from keyshift.workloads.nexmark.source import AUCTION, BID, PERSON

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

SKIP = 123  # Q2: bids for auctions whose number is a multiple of it
STATES = ("OR", "ID", "CA")  # Q3: where sellers live
CATEGORY = 10  # Q3: of their auctions
CENTS_PER_EURO = 89  # Q1: euro cents for a dollar, as published


def _ints(*names: str) -> tuple[pa.Field, ...]:
    return tuple(pa.field(name, pa.int64()) for name in names)


def _texts(*names: str) -> tuple[pa.Field, ...]:
    return tuple(pa.field(name, pa.string()) for name in names)


class Query(NamedTuple):
    """``what``: in words. ``stages``: of a workload with this query."""

    what: str
    stages: Callable[["Nexmark"], tuple[KeyedStage, ...]]


# -- events of the first stage -----------------------------------------------------------------------------------------


def _bids(columns: Sequence[str], events: pa.RecordBatch) -> pa.RecordBatch:
    """Bids; the key is the first of ``columns``."""
    bids = events.filter(pc.equal(events["kind"], BID))
    key, *others = columns
    names = ["key", "t", *others]
    return pa.RecordBatch.from_arrays([bids[name] for name in (key, "t", *others)], names=names)


def _in_euro(events: pa.RecordBatch) -> pa.RecordBatch:
    bids = _bids(("auction", "bidder", "price", "at"), events)
    price = pa.array(bids["price"].to_numpy() * CENTS_PER_EURO // 100)
    return bids.set_column(bids.schema.get_field_index("price"), "price", price)


def _persons_and_auctions(events: pa.RecordBatch) -> pa.RecordBatch:
    """Persons, and auctions by their sellers: what one kind does not have is 0 or empty."""
    some = events.filter(pc.less(events["kind"], BID))
    key = pc.if_else(pc.equal(some["kind"], PERSON), some["id"], some["seller"])
    auction = pc.if_else(pc.equal(some["kind"], AUCTION), some["id"], 0)
    ints = [pc.fill_null(some[name], 0) for name in ("category", "reserve")]
    texts = [pc.fill_null(some[name], "") for name in ("name", "city", "state")]
    columns = [key, some["t"], some["at"], some["kind"], auction, *ints, *texts]
    return pa.RecordBatch.from_arrays(columns, schema=SELLERS)


BIDS = pa.schema([*EVENT_FIELDS, *_ints("at", "bidder", "price")])
BIDS_BY_BIDDER = pa.schema([*EVENT_FIELDS, *_ints("at")])
SELLERS = pa.schema(
    [
        *(*EVENT_FIELDS, *_ints("at"), KIND),
        *(*_ints("auction", "category", "reserve"), *_texts("name", "city", "state")),
    ]
)


def _entries(name: str, events: pa.Schema, rule: Rule, map_: Callable[[pa.RecordBatch], pa.RecordBatch]) -> KeyedStage:
    return KeyedStage(name, events, (KIND, *rule.row_fields), partial(EntriesOperator, rule, events), map_)


# -- Q1 and Q2: without state ------------------------------------------------------------------------------------------


def _q1(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = _ints("bidder", "price", "at")
    return (
        KeyedStage("bids", pa.schema([*EVENT_FIELDS, *fields]), fields, partial(MapOperator, fields, None), _in_euro),
    )


def _skipped(events: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return np.asarray(events["key"].to_numpy() % SKIP == 0)


def _q2(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = _ints("price")
    events, operator = pa.schema([*EVENT_FIELDS, *fields]), partial(MapOperator, fields, _skipped)
    return (KeyedStage("bids", events, fields, operator, partial(_bids, ("auction", "price")), _skipped),)


# -- Q3 and Q8: joins of persons and their auctions --------------------------------------------------------------------


def _q3(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """An entry for the person (auction 0), which stays, and one for each auction, until its row is told."""
    behind = workload.delay_us + 1

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        _, _, at, kind, auction, category, _, *person = event
        if kind == PERSON:
            if person[-1] not in STATES:
                return entries
            matched = [(max(at, waits[2]) + behind, *waits[1:3], *person) for waits in entries]
            return [*matched, (NOT_DUE, 0, at, *person)]
        if category != CATEGORY:
            return entries
        for _, of, came, *known in entries:
            if not of:
                return [*entries, (max(at, came) + behind, auction, at, *known)]
        return [*entries, (NOT_DUE, auction, at, "", "", "")]

    def close(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        return [(auction, *person) for _, auction, _, *person in entries], []

    person = _texts("name", "city", "state")
    rule = Rule((*_ints("auction", "at"), *person), (*_ints("auction"), *person), add, close)
    return (_entries("sellers", SELLERS, rule, _persons_and_auctions),)


def _q8(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """In each window an entry for the person (auction 0), and one for each auction."""
    window_us, behind = workload.window_us, workload.window_us + workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        _, _, at, _, auction, _, reserve, name, *_ = event
        start = at - at % window_us
        return [*entries, (start + behind, start, auction, reserve, name)]

    def close(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        names = [name for _, _, auction, _, name in entries if not auction]
        return [
            (start, auction, reserve, name) for name in names for _, start, auction, reserve, _ in entries if auction
        ], []

    fields = (*_ints("start", "auction", "reserve"), *_texts("name"))
    return (_entries("sellers", SELLERS, Rule(fields, fields, add, close), _persons_and_auctions),)


# -- Q5 and Q7: windows of each auction, and the best of all auctions --------------------------------------------------


def _best(stages: KeyedStage, fields: tuple[str, ...], value: str) -> KeyedStage:
    """Keyed by the start of a window: the largest ``value`` so far, and the auctions that have it."""
    events = pa.schema([*EVENT_FIELDS, KIND, *_ints("auction", *fields)])
    place = events.get_field_index(value)

    def map_(results: pa.RecordBatch) -> pa.RecordBatch:
        key = pc.if_else(pc.equal(results["kind"], ROW), results["start"], results["key"])
        names = ("t", "kind", "key", *fields, *(field.name for field in ORIGIN))
        whole = pa.schema([*events, *ORIGIN])
        return pa.RecordBatch.from_arrays([key, *(results[name] for name in names)], schema=whole)

    def add(state: Entry | None, event: Sequence[Any]) -> Entry:
        best, leaders = state or (-1, [])
        if event[place] < best:
            return best, leaders
        others = leaders if event[place] == best else []
        return event[place], sorted({*others, event[3]})

    def row(state: Entry, event: Sequence[Any]) -> Entry:
        return (*event[3:], state[0])

    known = (*_ints("best"), pa.field("leaders", pa.list_(pa.int64())))
    fold = Fold(known, _ints("auction", *fields, "best"), add, row)
    return KeyedStage("best", events, (KIND, *fold.row_fields), partial(FoldOperator, fold, events), map_)


def _q5(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """An entry for each window that has a bid."""
    window_us, slide_us, behind = workload.window_us, workload.slide_us, workload.window_us + workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        at = event[2]
        counts = {start: count for _, start, count in entries}
        for start in range(at - at % slide_us, at - window_us, -slide_us):
            counts[start] = counts.get(start, 0) + 1
        return [(start + behind, start, count) for start, count in counts.items()]

    fields = _ints("start", "count")
    rule = Rule(fields, fields, add, without_due)
    first = _entries("auctions", BIDS, rule, partial(_bids, ("auction", "at", "bidder", "price")))
    return first, _best(first, ("count",), "count")


def _q7(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """In each window an entry for each bid of the highest price."""
    window_us, behind = workload.window_us, workload.window_us + workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        _, _, at, bidder, price = event
        start = at - at % window_us
        best = max((known for _, of, known, _ in entries if of == start), default=-1)
        if price < best:
            return entries
        kept = entries if price == best else [entry for entry in entries if entry[1] != start]
        return [*kept, (start + behind, start, price, bidder)]

    fields = _ints("start", "price", "bidder")
    rule = Rule(fields, fields, add, without_due)
    first = _entries("auctions", BIDS, rule, partial(_bids, ("auction", "at", "bidder", "price")))
    return first, _best(first, ("price", "bidder"), "price")


# -- Q11: sessions of bidders ------------------------------------------------------------------------------------------


def _q11(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """An entry for each session: bids of which each is less than the gap behind another one."""
    gap_us, delay_us = workload.gap_us, workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        first = last = event[2]
        count, kept = 1, []
        for entry in entries:
            _, start, end, many = entry
            if start - gap_us < event[2] < end + gap_us:
                first, last, count = min(first, start), max(last, end), count + many
            else:
                kept.append(entry)
        return [*kept, (last + gap_us + delay_us, first, last, count)]

    fields = _ints("start", "last", "count")
    rule = Rule(fields, fields, add, without_due)
    return (_entries("bidders", BIDS_BY_BIDDER, rule, partial(_bids, ("bidder", "at"))),)


QUERIES = {
    "q1": Query("prices of bids in euro, without state", _q1),
    "q2": Query("bids for some auctions, without state", _q2),
    "q3": Query("who sells in some states: persons joined with their auctions", _q3),
    "q5": Query("auctions with the most bids in a sliding window", _q5),
    "q7": Query("the highest bid of a tumbling window", _q7),
    "q8": Query("new persons who have sold something in the same tumbling window", _q8),
    "q11": Query("bids of a bidder in each session", _q11),
}
