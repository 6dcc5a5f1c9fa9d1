"""What must come out of ``stock``, told from the orders that went in. Not by the operator's code.

Events of several routers have no single order, so any order of a key's events is right that keeps the order of each
router. The results say which one it was (``seq``). What each event then has to give, and what is left in the end, is
found by doing it all again, in books that are dictionaries: security and side, then price, then orders, oldest first.
SQL has no short way to say this, since what an order trades depends on what all orders before it have left.

A key of which an event has no result, or whose ``seq`` cannot be, is counted for that alone.
"""

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from keyshift.workloads.contract import ORIGIN_NAMES
from keyshift.workloads.tables import RESULT, lines
from keyshift.workloads.times import Times

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

_ASKED = ["security", "order", "deletes", "buys", "price", "volume"]
_TOLD = ["removed", "rest", "makers", "prices", "volumes"]
_BYTES = 32  # of an order in the state: security, rank (its price, that of a bid negative), number, open volume

Told = tuple[int, int, list[int], list[int], list[int]]  # the values of a result, as in ``_TOLD``


class Exchange:
    """The books of one key."""

    def __init__(self) -> None:
        self._books: dict[tuple[int, bool], dict[int, dict[int, int]]] = defaultdict(dict)
        self._known: dict[tuple[int, int], tuple[bool, int]] = {}  # side and price of each order that waits

    def tell(self, security: int, order: int, deletes: bool, buys: bool, price: int, volume: int) -> Told:
        """Take an event. Gives what must come of it."""
        removed, left = self._forget(security, order), 0 if deletes else volume
        makers, prices, volumes = list[int](), list[int](), list[int]()
        against = self._books[security, not buys]
        while left and against:
            best = min(against) if buys else max(against)
            if (best > price) if buys else (best < price):
                break
            oldest = next(iter(against[best]))
            traded = min(left, against[best][oldest])
            makers.append(oldest)
            prices.append(best)
            volumes.append(traded)
            left -= traded
            against[best][oldest] -= traded
            if not against[best][oldest]:
                self._forget(security, oldest)
        if left:
            self.rest(security, order, buys, price, left)
        return removed, left, makers, prices, volumes

    def _forget(self, security: int, order: int) -> int:
        """Forget an order. Gives the volume that was open of it."""
        if (security, order) not in self._known:
            return 0
        buys, price = self._known.pop((security, order))
        waiting = self._books[security, buys]
        volume = waiting[price].pop(order)
        if not waiting[price]:
            del waiting[price]
        return volume

    def rest(self, security: int, order: int, buys: bool, price: int, volume: int) -> None:
        """Add an order that waits before the first event: behind those at its price that came before."""
        self._books[security, buys].setdefault(price, {})[order] = volume
        self._known[security, order] = buys, price

    def left(self, buys: bool) -> list[tuple[int, int, int, int]]:
        """Security, rank, number and open volume of all that waits on a side, in the order in which it would trade."""
        return [
            (security, -price if buys else price, order, volume)
            for security in sorted(security for security, side in self._books if side == buys)
            for price, orders in sorted(self._books[security, buys].items(), reverse=buys)
            for order, volume in orders.items()
        ]


def wrong(
    workload: "Stock",
    events: pd.DataFrame,
    results: pd.DataFrame,
    final: Iterator[pd.DataFrame],
    times: Times | None = None,
) -> Iterator[str]:
    """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state."""
    told = events[[*ORIGIN_NAMES, "key", *_ASKED]].merge(results[[*ORIGIN_NAMES, "seq", *_TOLD]], on=ORIGIN_NAMES)
    told = told.sort_values(ORIGIN_NAMES, ignore_index=True)
    offered = events.groupby("key").size()
    impossible = ~told["seq"].between(1, told["key"].map(offered)) | told.duplicated(["key", "seq"], keep=False)
    impossible |= told.groupby(["key", "router"])["seq"].diff() <= 0
    text = RESULT + ", key {key}: "
    more = "seq {seq}; expected 1 to the number of the key's events, each once, in event order"
    yield from lines(told, impossible, text + more)
    given = told.groupby("key").size().reindex(offered.index, fill_value=0)
    unsure = set(offered.index[given != offered]) | set(told.loc[impossible, "key"])

    exchanges = _opened(workload)
    expected_keys = offered.index.union(list(exchanges))
    for key in unsure:
        exchanges.pop(key, None)
    told = told[~told["key"].isin(unsure)].sort_values(["key", "seq"])
    columns = (told[name].to_list() for name in ("key", *_ASKED, *_TOLD))
    for place, (key, *row) in enumerate(zip(*columns, strict=True)):
        removed, rest, *trades = row[len(_ASKED) :]
        found = removed, rest, *map(list, trades)
        expected = exchanges[key].tell(*row[: len(_ASKED)])
        if found != expected:
            yield text.format_map(told.iloc[place]) + f"{', '.join(_TOLD)} are {found}, expected {expected}"
    seen = Counter[int]()
    for part in final:
        seen.update(part["key"].to_list())
        yield from _wrong_part(workload, part, offered, exchanges)
    for key in expected_keys.union(list(seen)):
        if seen[key] != 1:
            yield f"final state of key {key}: in {seen[key]} places, expected 1"


def _opened(workload: "Stock") -> dict[int, Exchange]:
    """The books with which the exchange opens, by key."""
    exchanges: dict[int, Exchange] = defaultdict(Exchange)
    orders = workload.opening().to_pydict()
    for key, *order in zip(*(orders[n] for n in ("key", "security", "order", "buys", "price", "volume")), strict=True):
        exchanges[key].rest(*order)
    return exchanges


def _wrong_part(
    workload: "Stock", part: pd.DataFrame, offered: pd.Series, exchanges: dict[int, Exchange]
) -> Iterator[str]:
    homes = workload.units_of(part["key"])
    for row, home in zip(part.to_dict("records"), homes.tolist(), strict=True):
        key, where = row["key"], "final state of key {key} in unit {unit}, slot {slot}: ".format_map(row)
        if row["unit"] != home:
            yield where + f"expected unit {home}"
        if key in exchanges:
            if row["seq"] != offered.get(key, 0):
                yield where + f"{row['seq']} events, expected {offered.get(key, 0)}"
            for name, buys in (("bids", True), ("asks", False)):
                expected = b"".join(struct.pack("<4q", *order) for order in exchanges[key].left(buys))
                if row[name] != expected:
                    yield where + f"{name} {_first_other(row[name], expected)}"
        elif key not in offered:
            yield where + "no event of it was offered, and no order rested"


def _first_other(found: bytes, expected: bytes) -> str:
    """Say where the bytes of two sides that differ begin to do so."""
    begins = range(0, max(len(found), len(expected)), _BYTES)
    orders = [(found[begin : begin + _BYTES], expected[begin : begin + _BYTES]) for begin in begins]
    place = next(number for number, (one, other) in enumerate(orders) if one != other)
    said = [
        f"the order {struct.unpack('<4q', order)}" if len(order) == _BYTES else f"{len(order)} bytes of an order"
        for order in orders[place]
    ]
    return f"has {said[0]} in place {place}, expected {said[1]} (security, rank, number, volume)"
