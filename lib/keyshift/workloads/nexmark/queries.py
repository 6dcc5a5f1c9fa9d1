"""The queries of ``nexmark``: stages and rules. What they have to give is in ``sql``, which knows nothing of this."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.contract import KeyedStage
from keyshift.workloads.nexmark.closing import q4, q6
from keyshift.workloads.nexmark.operators import NOT_DUE, Entry, Fold, Rule, without_due
from keyshift.workloads.nexmark.source import PERSON
from keyshift.workloads.nexmark.stages import (
    BIDS,
    BIDS_BY_BIDDER,
    SELLERS,
    bids,
    bids_in_euro,
    entries_stage,
    folded,
    ints,
    persons_and_auctions,
    texts,
)
from keyshift.workloads.operators import MapOperator

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

SKIP = 123  # Q2: bids for auctions whose number is a multiple of it
STATES = ("OR", "ID", "CA")  # Q3: where sellers live
CATEGORY = 10  # Q3: of their auctions


# -- Q1 and Q2: without state ------------------------------------------------------------------------------------------


def _q1(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = ints("bidder", "price", "at")
    events = pa.schema([*EVENT_FIELDS, *fields])
    return (KeyedStage("bids", events, fields, partial(MapOperator, fields), bids_in_euro),)


def _skipped(events: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return np.asarray(events["key"].to_numpy() % SKIP == 0)


def _q2(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    fields = ints("price")
    events, operator = pa.schema([*EVENT_FIELDS, *fields]), partial(MapOperator, fields, _skipped)
    return (KeyedStage("bids", events, fields, operator, partial(bids, ("auction", "price")), _skipped),)


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

    person = texts("name", "city", "state")
    rule = Rule((*ints("auction", "at"), *person), (*ints("auction"), *person), add, close)
    return (entries_stage("sellers", SELLERS, rule, persons_and_auctions),)


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

    fields = (*ints("start", "auction", "reserve"), *texts("name"))
    return (entries_stage("sellers", SELLERS, Rule(fields, fields, add, close), persons_and_auctions),)


# -- Q5 and Q7: windows of each auction, and the best of all auctions --------------------------------------------------


def _best(*fields: str) -> KeyedStage:
    """Keyed by the start of a window: the largest value so far of the first of ``fields``, and whose it is."""

    def add(state: Entry | None, event: Sequence[Any]) -> Entry:
        _, _, _, auction, value, *_ = event
        best, leaders = state or (-1, [])
        if value < best:
            return best, leaders
        return value, sorted({*(leaders if value == best else []), auction})

    def row(state: Entry, event: Sequence[Any]) -> Entry:
        return (*event[3:], state[0])

    known = (*ints("best"), pa.field("leaders", pa.list_(pa.int64())))
    return folded("best", "start", fields, Fold(known, ints("auction", *fields, "best"), add, row))


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
    rule = Rule(fields, fields, add, without_due)
    first = entries_stage("auctions", BIDS, rule, partial(bids, ("auction", "at", "bidder", "price")))
    return first, _best("count")


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
    rule = Rule(fields, fields, add, without_due)
    first = entries_stage("auctions", BIDS, rule, partial(bids, ("auction", "at", "bidder", "price")))
    return first, _best("price", "bidder")


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

    def close(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        return [entry[1:] for entry in entries if entry[-1]], []

    fields = ints("start", "last", "count")
    rule = Rule(fields, fields, add, close, at_once)
    return (entries_stage("bidders", BIDS_BY_BIDDER, rule, partial(bids, ("bidder", "at"))),)


# By name, the stages of a workload with this query.
QUERIES: dict[str, Callable[["Nexmark"], tuple[KeyedStage, ...]]] = {
    "q1": _q1,  # prices of bids in euro, without state
    "q2": _q2,  # bids for some auctions, without state
    "q3": _q3,  # who sells in some states: persons joined with their auctions
    "q4": q4,  # the average closing price of each category
    "q5": _q5,  # auctions with the most bids in a sliding window
    "q6": q6,  # the average price of the last ten auctions of each seller
    "q7": _q7,  # the highest bid of a tumbling window
    "q8": _q8,  # new persons who have sold something in the same tumbling window
    "q11": _q11,  # bids of a bidder in each session, and whenever there are many of them
}
