"""Writes tapes: the orders that ``source`` draws, and beside each trade what a real tape tells of it.

An order is told as ``A``, its deletion as ``D`` with the volume executed until then. Both orders of a trade are told
once more as ``X`` with what has been executed of them: those lines are for people, since who reads the tape trades
again.

A tape begins with the orders that rest: ``seconds`` count from when the others begin.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from keyshift.workloads.stock.operator import BYTES, Book
from keyshift.workloads.stock.source import BLOCK, resting
from keyshift.workloads.stock.tape import DELETES, END, FORMS, PRICE_UNITS, SLICE_US

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

OPENS = datetime(2026, 1, 5, 9, 30)  # a Monday; every tape begins then
ENTERS, EXECUTED = "A", "X"
BURSTS = 2.0  # of a negative binomial distribution: the lines of a slice scatter much more than by chance

StockOrder = dict[str, Any]  # an event of a tape (``ORDERS``), and how much of it is ``executed``


def write(workload: "Stock", form: str, rate: float, seconds: float) -> Iterator[str]:
    """The lines of a tape of router 0, without their ends. ``rate``: orders and deletions per second, on average,
    before those are left out whose order was executed whole.
    """
    books, known = dict[str, Book](), dict[int, StockOrder]()
    mean = rate * SLICE_US / 1e6
    random = np.random.default_rng((workload.seed, 1 << 16))  # not that of a router

    def drawn() -> int:
        return int(random.negative_binomial(BURSTS, BURSTS / (BURSTS + mean)))

    for number, events in enumerate(_slices(workload, round(seconds * 1e6 / SLICE_US), drawn)):
        at = OPENS + timedelta(microseconds=number * SLICE_US)
        for event in events.to_pylist():
            for code, order in _told(event, books, known):
                yield _line(form, code, at, order)
        yield END


def _slices(workload: "Stock", slices: int, draw: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """Give what is told in each slice: the orders that rest, as many as are drawn, then ``slices`` of others."""
    orders, partition = resting(workload), workload.partition(0)
    while orders.num_rows:
        count = draw()
        yield orders.slice(0, count)
        orders = orders.slice(count)
    for _ in range(slices):
        yield partition.take(np.zeros(draw(), np.int64))


def _told(event: StockOrder, books: dict[str, Book], known: dict[int, StockOrder]) -> Iterator[tuple[str, StockOrder]]:
    """The lines that follow from an event. A deletion of an order that was executed whole is not told."""
    number, security = event["order"], event["security"]
    book = books.get(security, Book())
    if event["deletes"]:
        books[security], removed = book.without(0, number)
        order = known.pop(number)
        if removed:
            yield DELETES, order
        return
    order = known[number] = event | {"executed": 0}
    yield ENTERS, order
    books[security], trades, _ = book.enter(0, number, event["buys"], event["price"], event["volume"])
    for trade in trades:
        for each in (order, known[trade.maker]):
            each["executed"] += trade.volume
            yield EXECUTED, each


def waiting(orders: pa.RecordBatch) -> int:
    """Count the ``orders`` of a tape (``ORDERS``) that wait in the books at its end, of all securities."""
    books = dict[str, Book]()
    names = ("security", "deletes", "order", "buys", "price", "volume")
    for first in range(0, orders.num_rows, BLOCK):
        part = orders.slice(first, BLOCK)
        for security, deletes, *new in zip(*(part[name].to_pylist() for name in names), strict=True):
            books[security], _ = books.get(security, Book()).without(0, new[0])
            if not deletes:
                books[security], _, _ = books[security].enter(0, *new)
    return sum(len(side) for book in books.values() for side in book) // BYTES


def _line(form: str, code: str, at: datetime, order: StockOrder) -> str:
    told = order | {
        "code": code,
        "date": f"{at:%Y%m%d}",
        "time": f"{at:%H:%M:%S}",
        "updated": f"{at:%Y%m%d %H:%M:%S}",
        "price": f"{order['price'] / PRICE_UNITS:.2f}",
        "side": "B" if order["buys"] else "S",
    }
    columns = [""] * FORMS[form].width
    for name, column in FORMS[form].columns.items():
        columns[column] = str(told[name])
    return "|".join(columns)
