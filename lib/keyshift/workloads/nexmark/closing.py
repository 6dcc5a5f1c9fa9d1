"""Q4 and Q6 of ``nexmark``: prices of auctions that have closed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyshift.workloads.contract import KeyedStage
from keyshift.workloads.nexmark.operators import NOT_DUE, Entry, Fold, Rule
from keyshift.workloads.nexmark.source import BID
from keyshift.workloads.nexmark.stages import AUCTIONS, auctions_and_bids, entries_stage, folded, ints

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

LAST_SALES = 10  # Q6: auctions of a seller that count

# Of an entry: a bid that came before its auction, an auction that is open, one that has closed (which stays, so that
# later bids are known as such).
_WAITS, _OPEN, _CLOSED = range(3)


def _closing(workload: "Nexmark", name: str, row: Callable[[Entry], Entry]) -> KeyedStage:
    """The highest bid of each auction while it was open, as a row when it closes."""
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

    def close(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        return [row(entry) for entry in entries if entry[-1] >= 0], [(NOT_DUE, _CLOSED, 0, 0, 0, 0, 0)]

    fields = ("category", "price") if name == "category" else ("seller", "expires", "price")
    rule = Rule(ints("what", "at", "expires", "category", "seller", "price"), ints(*fields), add, close)
    return entries_stage("auctions", AUCTIONS, rule, auctions_and_bids)


def q4(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """Behind the auctions, the sum and the number of prices of each category."""

    def add(state: Entry | None, event: Sequence[Any]) -> Entry:
        total, count = state or (0, 0)
        return total + event[-1], count + 1

    def row(state: Entry, event: Sequence[Any]) -> Entry:
        return event[3], event[-1], *state

    first = _closing(workload, "category", lambda entry: (entry[4], entry[6]))
    fold = Fold(ints("total", "count"), ints("auction", "price", "total", "count"), add, row)
    return first, folded("categories", "category", ("price",), fold)


def q6(workload: "Nexmark") -> tuple[KeyedStage, ...]:
    """Behind the auctions, the prices of the last ten of each seller, in the order in which they closed."""

    def add(state: Entry | None, event: Sequence[Any]) -> Entry:
        _, _, _, auction, expires, price = event
        known = list(zip(*state, strict=True)) if state else []
        return tuple(map(list, zip(*sorted([*known, (expires, auction, price)])[-LAST_SALES:], strict=True)))

    def row(state: Entry, event: Sequence[Any]) -> Entry:
        return *event[3:], sum(state[2]), len(state[2])

    first = _closing(workload, "seller", lambda entry: (entry[5], entry[3], entry[6]))
    known = tuple(pa.field(name, pa.list_(pa.int64())) for name in ("expires", "auctions", "prices"))
    fold = Fold(known, ints("auction", "expires", "price", "total", "count"), add, row)
    return first, folded("sellers", "seller", ("expires", "price"), fold)
