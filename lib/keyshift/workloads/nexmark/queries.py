"""The queries of ``nexmark``: stages and rules. What they have to give is in ``sql``, which knows nothing of this.

First stages get some kinds of events, some of their fields, and a key. Their entries depend on time; what is behind
them does not.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.contract import KeyedStage
from keyshift.workloads.nexmark.operators import KIND, NOT_DUE, ROW, EntriesOperator, Entry, Fold, FoldOperator, Rule
from keyshift.workloads.nexmark.source import AUCTION, BID, PERSON
from keyshift.workloads.operators import MapOperator

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

CENTS_PER_EURO = 89  # Q1: euro cents for a dollar, as published
SKIP = 123  # Q2: bids for auctions whose number is a multiple of it
STATES = ("OR", "ID", "CA")  # Q3: where sellers live
CATEGORY = 10  # Q3: of their auctions
LAST_SALES = 10  # Q6: auctions of a seller that count


# -- what stages get ---------------------------------------------------------------------------------------------------


def ints(*names: str) -> tuple[pa.Field, ...]:
    """Fields of integers."""
    return tuple(pa.field(name, pa.int64()) for name in names)


def texts(*names: str) -> tuple[pa.Field, ...]:
    """Fields of texts."""
    return tuple(pa.field(name, pa.string()) for name in names)


def bids(columns: Sequence[str], events: pa.RecordBatch) -> pa.RecordBatch:
    """Bids; the key is the first of ``columns``."""
    key, *others = columns
    some = events.filter(pc.equal(events["kind"], BID)).select([key, "t", *others])
    return some.rename_columns(["key", "t", *others])


def bids_in_euro(events: pa.RecordBatch) -> pa.RecordBatch:
    """Bids by auction, with the price in euro cents."""
    made = bids(("auction", "bidder", "price", "at"), events)
    price = pa.array(made["price"].to_numpy() * CENTS_PER_EURO // 100)
    return made.set_column(made.schema.get_field_index("price"), "price", price)


def persons_and_auctions(events: pa.RecordBatch) -> pa.RecordBatch:
    """Persons, and auctions by their sellers: what one kind does not have is 0 or empty."""
    some = events.filter(pc.less(events["kind"], BID))
    key = pc.if_else(pc.equal(some["kind"], PERSON), some["id"], some["seller"])
    auction = pc.if_else(pc.equal(some["kind"], AUCTION), some["id"], 0)
    numbers = [pc.fill_null(some[name], 0) for name in ("category", "reserve")]
    words = [pc.fill_null(some[name], "") for name in ("name", "city", "state")]
    columns = [key, some["t"], some["at"], some["kind"], auction, *numbers, *words]
    return pa.RecordBatch.from_arrays(columns, schema=SELLERS)


def auctions_and_bids(events: pa.RecordBatch) -> pa.RecordBatch:
    """Auctions and the bids for them: what one kind does not have is 0."""
    some = events.filter(pc.greater(events["kind"], PERSON))
    key = pc.if_else(pc.equal(some["kind"], BID), some["auction"], some["id"])
    numbers = [pc.fill_null(some[name], 0) for name in ("price", "expires", "category", "seller")]
    return pa.RecordBatch.from_arrays([key, some["t"], some["at"], some["kind"], *numbers], schema=AUCTIONS)


BIDS = pa.schema([*EVENT_FIELDS, *ints("at", "bidder", "price")])
BIDS_BY_BIDDER = pa.schema([*EVENT_FIELDS, *ints("at")])
AUCTIONS = pa.schema([*EVENT_FIELDS, *ints("at"), KIND, *ints("price", "expires", "category", "seller")])
SELLERS = pa.schema(
    [
        *(*EVENT_FIELDS, *ints("at"), KIND),
        *(*ints("auction", "category", "reserve"), *texts("name", "city", "state")),
    ]
)


def entries_stage(name: str, events: pa.Schema, rule: Rule) -> KeyedStage:
    """The first stage of a query: its rule about the ``events`` that the query's map makes."""
    return KeyedStage(name, events, (KIND, *rule.row_fields), partial(EntriesOperator, rule, events))


def folded(
    name: str,
    by: str,
    fields: tuple[str, ...],
    fold: Fold,
    state_fields: tuple[pa.Field, ...],
    row_fields: tuple[pa.Field, ...],
) -> KeyedStage:
    """A stage behind one keyed by auction: rows with these ``fields``, keyed by the field ``by`` of the row."""
    events = pa.schema([*EVENT_FIELDS, KIND, *ints("auction", *fields)])

    def map_(results: pa.RecordBatch) -> pa.RecordBatch:
        key = pc.if_else(pc.equal(results["kind"], ROW), results[by], results["key"])
        return results.set_column(0, "key", key).append_column("auction", results["key"])

    operator = partial(FoldOperator, fold, state_fields, row_fields, events)
    return KeyedStage(name, events, (KIND, *row_fields), operator, map_)


# -- Q1 and Q2: without state ------------------------------------------------------------------------------------------


def _q1(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = ints("bidder", "price", "at")
    events = pa.schema([*EVENT_FIELDS, *fields])
    return (KeyedStage("bids", events, fields, partial(MapOperator, fields)),)


def _skipped(events: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return np.asarray(events["key"].to_numpy() % SKIP == 0)


def _q2(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = ints("price")
    events, operator = pa.schema([*EVENT_FIELDS, *fields]), partial(MapOperator, fields, _skipped)
    return (KeyedStage("bids", events, fields, operator, due=_skipped),)


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

    def close(entries: list[Entry]) -> list[Entry]:
        return [(auction, *person) for _, auction, _, *person in entries]

    person = texts("name", "city", "state")
    rule = Rule((*ints("auction", "at"), *person), (*ints("auction"), *person), add, close)
    return (entries_stage("sellers", SELLERS, rule),)


def _q8(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """In each window an entry for the person (auction 0), and one for each auction."""
    window_us, behind = workload.window_us, workload.window_us + workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        _, _, at, _, auction, _, reserve, name, *_ = event
        start = at - at % window_us
        return [*entries, (start + behind, start, auction, reserve, name)]

    def close(entries: list[Entry]) -> list[Entry]:
        names = [name for _, _, auction, _, name in entries if not auction]
        auctions = [entry[1:-1] for entry in entries if entry[2]]
        return [(*auction, name) for name in names for auction in auctions]

    fields = (*ints("start", "auction", "reserve"), *texts("name"))
    return (entries_stage("sellers", SELLERS, Rule(fields, fields, add, close)),)


# -- Q4 and Q6: prices of auctions that have closed --------------------------------------------------------------------

# Of an entry: a bid that came before its auction, an auction that is open, one that has closed (which stays, so that
# later bids are known as such).
_WAITS, _OPEN, _CLOSED = range(3)


def _closing(workload: "Nexmark", fields: tuple[str, ...], row: Callable[[Entry], Entry]) -> KeyedStage:
    """The highest bid of each auction while it was open, as a row with these ``fields`` when it closes."""
    behind = workload.delay_us + 1  # a bid in the last moment counts

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        _, _, at, kind, price, expires, category, seller = event
        if kind == BID:
            if not entries or entries[0][1] == _WAITS:
                return [*entries, (NOT_DUE, _WAITS, at, 0, 0, 0, price)]
            due, what, start, end, group, owner, best = entries[0]
            if what == _OPEN and start <= at <= end and price > best:
                return [(due, what, start, end, group, owner, price)]
            return entries
        best = max((bid for _, _, moment, *_, bid in entries if at <= moment <= expires), default=-1)
        return [(expires + behind, _OPEN, at, expires, category, seller, best)]

    def close(entries: list[Entry]) -> list[Entry]:
        return [row(entry) for entry in entries if entry[-1] >= 0]

    left = ((NOT_DUE, _CLOSED, 0, 0, 0, 0, 0),)
    rule = Rule(ints("what", "at", "expires", "category", "seller", "price"), ints(*fields), add, close, left)
    return entries_stage("auctions", AUCTIONS, rule)


def _q4(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """Behind the auctions, the sum and the number of prices of each category."""

    def fold(state: Entry | None, event: Sequence[Any]) -> tuple[Entry, Entry]:
        _, _, _, auction, price = event
        total, count = state or (0, 0)
        sums = total + price, count + 1
        return sums, (auction, price, *sums)

    first = _closing(workload, ("category", "price"), lambda entry: (entry[4], entry[6]))
    return first, folded(
        "categories", "category", ("price",), fold, ints("total", "count"), ints("auction", "price", "total", "count")
    )


def _q6(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """Behind the auctions, the prices of the last ten of each seller, in the order in which they closed.

    ``seq``, the number of all sales so far, shows a loss that ten later sales would hide.
    """

    def fold(state: Entry | None, event: Sequence[Any]) -> tuple[Entry, Entry]:
        _, _, _, auction, expires, price = event
        seq, *sales = state or (0,)
        last = sorted([*zip(*sales, strict=True), (expires, auction, price)])[-LAST_SALES:]
        row = auction, expires, price, sum(sale[-1] for sale in last), len(last), seq + 1
        return (seq + 1, *map(list, zip(*last, strict=True))), row

    first = _closing(workload, ("seller", "expires", "price"), lambda entry: (entry[5], entry[3], entry[6]))
    known = *ints("seq"), *(pa.field(name, pa.list_(pa.int64())) for name in ("expires", "auctions", "prices"))
    row = ints("auction", "expires", "price", "total", "count", "seq")
    return first, folded("sellers", "seller", ("expires", "price"), fold, known, row)


# -- Q5 and Q7: windows of each auction, and the best of all auctions --------------------------------------------------


def _best(*fields: str) -> KeyedStage:
    """Keyed by the start of a window: the largest value so far of the first of ``fields``, and whose it is.

    ``seq``, the number of all rows so far, shows a loss that a larger value would hide.
    """

    def fold(state: Entry | None, event: Sequence[Any]) -> tuple[Entry, Entry]:
        _, _, _, auction, value, *_ = event
        seq, best, leaders = state or (0, -1, [])
        if value >= best:
            leaders = sorted({*(leaders if value == best else []), auction})
            best = value
        return (seq + 1, best, leaders), (*event[3:], best)

    known = (*ints("seq", "best"), pa.field("leaders", pa.list_(pa.int64())))
    return folded("best", "start", fields, fold, known, ints("auction", *fields, "best"))


def _q5(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """An entry for each window that has a bid."""
    window_us, slide_us, behind = workload.window_us, workload.slide_us, workload.window_us + workload.delay_us

    def add(entries: list[Entry], event: Sequence[Any]) -> list[Entry]:
        at = event[2]
        counts = {start: count for _, start, count in entries}
        for start in range(at - at % slide_us, at - window_us, -slide_us):
            counts[start] = counts.get(start, 0) + 1
        return [(start + behind, start, count) for start, count in counts.items()]

    fields = ints("start", "count")
    return entries_stage("auctions", BIDS, Rule(fields, fields, add)), _best("count")


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

    fields = ints("start", "price", "bidder")
    return entries_stage("auctions", BIDS, Rule(fields, fields, add)), _best("price", "bidder")


# -- Q11: sessions of bidders ------------------------------------------------------------------------------------------


def _q11(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """An entry for each session: bids of which each is less than the gap behind another one, and which were not told.

    Published is a trigger that fires again and again once a session has ``session_bids`` bids that were not told, and
    discards them; what is left is told when the session ends. There it may tell more at once, if a bid joins two
    sessions, which depends on the order in which bids come. Here each row that is told at once has exactly so many, as
    the query is "limit the session to at most" that. So how many rows a session gives, and with how many bids each,
    depends on the input alone. Only how far the session had come (``start``, ``last``) does not, until it has ended.
    """
    gap_us, delay_us, most = workload.gap_us, workload.delay_us, workload.session_bids

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

    def at_once(entries: list[Entry]) -> tuple[Entry | None, list[Entry]]:
        *others, (due, start, last, count) = entries  # that of the bid; fewer than twice as many, if it joined two
        if count < most:
            return None, entries
        return (start, last, most), [*others, (due, start, last, count - most)]

    def close(entries: list[Entry]) -> list[Entry]:
        return [entry[1:] for entry in entries if entry[-1]]

    fields = ints("start", "last", "count")
    rule = Rule(fields, fields, add, close, at_once=at_once)
    return (entries_stage("bidders", BIDS_BY_BIDDER, rule),)


_PRICED_BIDS = partial(bids, ("auction", "at", "bidder", "price"))
# By name: what makes the first stage's events from those of the source, and the stages of a workload with the query.
QUERIES: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], Callable[["Nexmark"], tuple[KeyedStage, ...]]]] = {
    "q1": (bids_in_euro, _q1),  # prices of bids in euro, without state
    "q2": (partial(bids, ("auction", "price")), _q2),  # bids for some auctions, without state
    "q3": (persons_and_auctions, _q3),  # who sells in some states: persons joined with their auctions
    "q4": (auctions_and_bids, _q4),  # the average closing price of each category
    "q5": (_PRICED_BIDS, _q5),  # auctions with the most bids in a sliding window
    "q6": (auctions_and_bids, _q6),  # the average price of the last ten auctions of each seller
    "q7": (_PRICED_BIDS, _q7),  # the highest bid of a tumbling window
    "q8": (persons_and_auctions, _q8),  # new persons who have sold something in the same tumbling window
    "q11": (partial(bids, ("bidder", "at")), _q11),  # bids of a bidder in each session, and whenever there are many
}
