"""What must come out of ``stock``, told from the orders that went in. Not by the operator's code.

Events of several routers have no single order, so any order of a key's events is right that keeps the order of each
router. The results say which one it was (``seq``). What each event then has to give, and what is left in the end, is
found by doing it all again, in books that are dictionaries: security and side, then price, then orders, oldest first.

A key of which an event has no result, or whose ``seq`` cannot be, is counted for that alone.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from keyshift.workloads.times import lines

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

_EVENT = ["router", "offset", "position"]
_TOLD = ["seq", "removed", "rest", "makers", "prices", "volumes"]
_ASKED = ["security", "order", "deletes", "buys", "price", "volume"]


class Answer(NamedTuple):
    """What an event has to give: maker, price and volume of each trade."""

    removed: int
    rest: int
    trades: list[tuple[int, ...]]


class Exchange:
    """The books of one key."""

    def __init__(self) -> None:
        self._books: dict[tuple[int, bool], dict[int, dict[int, int]]] = defaultdict(dict)
        self._known: dict[tuple[int, int], tuple[bool, int]] = {}  # side and price of each order that waits

    def tell(self, security: int, order: int, deletes: bool, buys: bool, price: int, volume: int) -> Answer:
        """An event, and what it gives."""
        removed = self._forget(security, order)
        if deletes:
            return Answer(removed, 0, [])
        trades: list[tuple[int, ...]] = []
        against = self._books[security, not buys]
        while volume and against:
            best = min(against) if buys else max(against)
            if (best > price) if buys else (best < price):
                break
            oldest = next(iter(against[best]))
            traded = min(volume, against[best][oldest])
            trades.append((oldest, best, traded))
            volume -= traded
            against[best][oldest] -= traded
            if not against[best][oldest]:
                self._forget(security, oldest)
        if volume:
            self.rest(security, order, buys, price, volume)
        return Answer(removed, volume, trades)

    def _forget(self, security: int, order: int) -> int:
        """The volume that was open of an order."""
        if (security, order) not in self._known:
            return 0
        buys, price = self._known.pop((security, order))
        waiting = self._books[security, buys]
        volume = waiting[price].pop(order)
        if not waiting[price]:
            del waiting[price]
        return volume

    def rest(self, security: int, order: int, buys: bool, price: int, volume: int) -> None:
        """An order that waits before the first event: behind those at its price that came before."""
        self._books[security, buys].setdefault(price, {})[order] = volume
        self._known[security, order] = buys, price

    def left(self, buys: bool) -> list[tuple[int, int, int, int]]:
        """Security, price, number and open volume of all that waits on a side, in the order in which it would trade."""
        rows = []
        for security in sorted(security for security, side in self._books if side == buys):
            prices = self._books[security, buys]
            for price in sorted(prices, reverse=buys):
                rows += [(security, price, order, volume) for order, volume in prices[price].items()]
        return rows


def wrong(
    workload: "Stock", events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame]
) -> Iterator[str]:
    """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state."""
    of_event = results["position"] >= 0
    yield from lines(results, ~of_event, "timer of key {key} set to {t}: there are no timers")
    asked = events[[*_EVENT, "key", *_ASKED]]
    told = asked.merge(results.loc[of_event, [*_EVENT, *_TOLD]], on=_EVENT).sort_values(_EVENT, ignore_index=True)
    offered = asked.groupby("key").size()
    given = told.groupby("key").size().reindex(offered.index, fill_value=0)
    impossible = _impossible(told, offered)
    text = "result of router {router} offset {offset} position {position}, key {key}: "
    more = "seq {seq}; expected 1 to the number of the key's events, each once, in event order"
    yield from lines(told, impossible, text + more)
    unsure = set(offered.index[given != offered]) | set(told.loc[impossible, "key"])

    exchanges = _opened(workload)
    expected_keys = offered.index.union(list(exchanges))
    for key in unsure:
        exchanges.pop(key, None)
    told = told[~told["key"].isin(unsure)].sort_values(["key", "seq"])
    keys, rows = told["key"].to_list(), [_rows(told, names) for names in (_ASKED, _TOLD[1:])]
    for place, (key, event, answer) in enumerate(zip(keys, *rows, strict=True)):
        expected, found = exchanges[key].tell(*event), _answer(*answer)
        if found != expected:
            yield text.format_map(told.iloc[place]) + f"{found}, expected {expected}"
    seen: dict[int, int] = defaultdict(int)
    for part in final:
        for key in part["key"].to_list():
            seen[key] += 1
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


def _rows(table: pd.DataFrame, names: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_list() for name in names), strict=True)


def _answer(removed: int, rest: int, *trades: Iterable[int]) -> Answer:
    """What a result says. Of a trade that is not told whole, -1 is what is missing."""
    makers, prices, volumes = ([int(number) for number in part] for part in trades)
    return Answer(removed, rest, list(zip_longest(makers, prices, volumes, fillvalue=-1)))


def _impossible(told: pd.DataFrame, offered: pd.Series) -> Any:
    """Which results say a place among the events of their key that cannot be."""
    bad = ~told["seq"].between(1, told["key"].map(offered)) | told.duplicated(["key", "seq"], keep=False)
    return bad | (told.groupby(["key", "router"])["seq"].diff() <= 0)


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
                found, expected = _orders(row[name], buys), exchanges[key].left(buys)
                if found != expected:
                    yield where + f"{name} {_first_other(found, expected)}"
        elif key not in offered:
            yield where + "no event of it was offered, and no order rested"


def _orders(side: bytes, buys: bool) -> list[tuple[int, int, int, int]]:
    """Security, price, number and open volume, from the bytes that the state has: a bid's price is negative there."""
    if len(side) % 32:
        return [(len(side), 0, 0, 0)]  # like no order
    return [
        (security, -rank if buys else rank, order, volume)
        for security, rank, order, volume in struct.iter_unpack("<qqqq", side)
    ]


def _first_other(found: list[Any], expected: list[Any]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if place is None:
        return f"has {len(found)} orders, expected {len(expected)}"
    return (
        f"has the order {found[place]} in place {place}, expected {expected[place]} (security, price, number, volume)"
    )
