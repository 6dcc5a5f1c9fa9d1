"""An order book as two byte strings, one for each side: what a state can hand over without looking into it.

A side has 32 bytes for each order that waits: security, rank, number and open volume, 64 bits each. Orders are in the
order of their securities, and those of a security in the order in which they trade: the best price first, which has
the lowest rank (a bid's rank is its price, negative), and at the same price the oldest first. So an order is put in by
bisection and one copy of the side, and what trades is at the beginning of the security's orders.
"""

import struct
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

_ORDER = struct.Struct("<4q")
BYTES = _ORDER.size
_FIELDS = 4  # of an order, which are numbered: security, rank, number, volume


class Trade(NamedTuple):
    """``maker``: the order that waited. ``price``: its limit."""

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
    """What is left of the other side, and the trades: no rank above ``worst``, not more than ``volume``."""
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
