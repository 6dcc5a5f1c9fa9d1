"""What the slots of ``stock`` compute, on order books that are two byte strings, one for each side.

So a state can hand a book over without looking into it. A side has 32 bytes for each order that waits: security, rank,
number and open volume, 64 bits each. Orders are in the order of their securities, and those of a security in the order
in which they trade: the best price first, which has the lowest rank (a bid's rank is its price, negative), and at the
same price the oldest first. So an order is put in by bisection and one copy of the side, and what trades is at the
beginning of the security's orders.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.model.keys import UnitId
from keyshift.state import UnitState
from keyshift.workloads.contract import Operator
from keyshift.workloads.operators import ResultMaker

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

_ORDER = struct.Struct("<4q")
BYTES = _ORDER.size
_FIELDS = 4  # of an order, which are numbered: security, rank, number, volume


class Trade(NamedTuple):
    """A trade. ``maker``: the order that waited. ``price``: its limit."""

    maker: int
    price: int
    volume: int


class Book(NamedTuple):
    """The orders that wait: those that buy, and those that sell."""

    bids: bytes = b""
    asks: bytes = b""

    def without(self, security: int, order: int) -> tuple["Book", int]:
        """The book without an order, and the volume that was open of it: 0 if it is not there."""
        bids, removed = _without(self.bids, security, order)
        if removed:
            return Book(bids, self.asks), removed
        asks, removed = _without(self.asks, security, order)
        return Book(self.bids, asks), removed

    def enter(self, security: int, order: int, buys: bool, price: int, volume: int) -> tuple["Book", list[Trade], int]:
        """The book behind a new order, what it traded, and what of it waits now."""
        own, other = (self.bids, self.asks) if buys else (self.asks, self.bids)
        other, trades = _traded(other, security, price if buys else -price, volume)
        left = volume - sum(trade.volume for trade in trades)
        if left:
            own = _put(own, security, -price if buys else price, order, left)
        return (Book(own, other) if buys else Book(other, own)), trades, left


def _of(side: bytes, security: int) -> tuple[memoryview, int, int]:
    """The numbers of a side, and between which orders those of ``security`` are."""
    numbers = memoryview(side).cast("q")
    securities = numbers[0::_FIELDS]
    begin = bisect_left(securities, security)
    return numbers, begin, bisect_right(securities, security, begin)


def _without(side: bytes, security: int, order: int) -> tuple[bytes, int]:
    if not side:
        return side, 0
    numbers = np.frombuffer(side, np.int64)
    found = numbers[2::_FIELDS] == order
    row = int(found.argmax())
    if not found[row]:  # most often: one comparison of the whole side is all
        return side, 0
    found &= numbers[0::_FIELDS] == security
    row = int(found.argmax())
    if not found[row]:
        return side, 0
    return side[: row * BYTES] + side[(row + 1) * BYTES :], int(numbers[row * _FIELDS + 3])


def _traded(side: bytes, security: int, worst: int, volume: int) -> tuple[bytes, list[Trade]]:
    """Return what is left of the other side, and the trades: no rank above ``worst``, not more than ``volume``."""
    numbers, begin, end = _of(side, security)
    trades: list[Trade] = []
    at, rest = begin, b""
    while at < end and volume:
        _, rank, order, waiting = numbers[at * _FIELDS : (at + 1) * _FIELDS]
        if rank > worst:
            break
        traded = min(volume, waiting)
        trades.append(Trade(order, abs(rank), traded))
        volume -= traded
        at += 1
        if traded < waiting:
            rest = _ORDER.pack(security, rank, order, waiting - traded)
    return (side[: begin * BYTES] + rest + side[at * BYTES :] if trades else side), trades


def _put(side: bytes, security: int, rank: int, order: int, volume: int) -> bytes:
    numbers, begin, end = _of(side, security)
    at = bisect_right(numbers[1::_FIELDS], rank, begin, end) * BYTES
    return side[:at] + _ORDER.pack(security, rank, order, volume) + side[at:]


EVENTS = pa.schema(
    [
        *EVENT_FIELDS,
        pa.field("order", pa.int64()),
        pa.field("deletes", pa.bool_()),
        pa.field("buys", pa.bool_()),
        pa.field("price", pa.int64()),
        pa.field("volume", pa.int64()),
        pa.field("security", pa.int64()),  # a hash of its text
    ]
)
_NUMBERS = pa.list_(pa.int64())
RESULT_FIELDS = (
    pa.field("seq", pa.int64()),  # events of the key so far, this one included: in which order they were taken in
    pa.field("removed", pa.int64()),  # open volume of the order that was deleted, or replaced by another of its number
    pa.field("rest", pa.int64()),  # what of the new order waits in the book
    pa.field("makers", _NUMBERS),  # of each trade: the order that waited,
    pa.field("prices", _NUMBERS),  # its price,
    pa.field("volumes", _NUMBERS),  # and the volume traded
)


class StockOperator(Operator):
    """The state of a key is its order book, and how many events it has had."""

    state_schema = pa.schema(
        [pa.field("seq", pa.int64()), pa.field("bids", pa.binary()), pa.field("asks", pa.binary())]
    )

    def __init__(self, workload: "Stock") -> None:
        self._workload = workload
        self._results = ResultMaker(RESULT_FIELDS)

    def initial(self, unit: int, state: UnitState) -> None:
        """The books with which the exchange opens."""
        if (opening := self._opening.get(unit)) is not None:
            state.install([opening])

    @cached_property
    def _opening(self) -> dict[int, pa.RecordBatch]:
        """The books with which the exchange opens, where no order meets another: the state of each unit that has any.

        Drawn when the first is filled: an operator is also made for its schema alone.
        """
        orders = self._workload.opening()
        keys, of_order = np.unique(orders["key"].to_numpy(), return_inverse=True)
        unit = self._workload.units_of(keys)
        by_unit = np.argsort(unit, kind="stable")
        place = np.empty_like(by_unit)
        place[by_unit] = np.arange(len(keys))
        buys = orders["buys"].to_numpy(zero_copy_only=False)
        sides = [_side(orders, place[of_order], len(keys), mine, sign) for mine, sign in ((buys, -1), (~buys, 1))]
        columns = [pa.array(keys[by_unit]), pa.array(np.zeros(len(keys), np.int64)), *sides]
        whole = pa.RecordBatch.from_arrays(columns, schema=pa.schema([pa.field("key", pa.int64()), *self.state_schema]))
        found, begin, count = np.unique(unit[by_unit], return_index=True, return_counts=True)
        places = zip(found.tolist(), begin.tolist(), count.tolist(), strict=True)
        return {number: whole.slice(first, many) for number, first, many in places}

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event. An order whose number waits already in its book replaces that one."""
        names = ("unit", "key", "security", "order", "deletes", "buys", "price", "volume")
        rows: list[tuple[Any, ...]] = []
        for unit, key, security, order, deletes, *offer in zip(*(events[n].to_pylist() for n in names), strict=True):
            values = state_of(unit).values
            seq, bids, asks = values[key] or (0, b"", b"")
            book, removed = Book(bids, asks).without(security, order)
            trades: list[Trade] = []
            rest = 0
            if not deletes:
                book, trades, rest = book.enter(security, order, *offer)
            values[key] = seq + 1, book.bids, book.asks
            rows.append((seq + 1, removed, rest, *(zip(*trades, strict=True) if trades else ((), (), ()))))
        return self._results.of_events(events, rows)


def _side(
    orders: pa.RecordBatch, place: npt.NDArray[np.int64], keys: int, mine: npt.NDArray[np.bool_], sign: int
) -> pa.Array:
    """The orders of each key that are ``mine``, as bytes. ``place``: of the key of each order. ``sign``: of ranks."""
    place = place[mine]
    security, price, number, volume = (orders[n].to_numpy()[mine] for n in ("security", "price", "order", "volume"))
    rank = sign * price
    trading = np.lexsort((np.arange(len(place)), rank, security, place))
    rows = np.stack([security, rank, number, volume], axis=1)[trading].astype("<i8")
    ends = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=keys))]).astype(np.int32) * BYTES
    return pa.Array.from_buffers(pa.binary(), keys, [None, pa.py_buffer(ends), pa.py_buffer(rows.tobytes())])
