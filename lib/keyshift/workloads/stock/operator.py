"""What the slots of ``stock`` compute."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.state import UnitState
from keyshift.workloads.contract import Operator
from keyshift.workloads.operators import Results
from keyshift.workloads.stock.book import Book, Trade
from keyshift.workloads.stock.opening import books

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

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
    """The state of a key is its order book, and how many events it has had; see ``Operator`` and ``book``."""

    state_schema = pa.schema(
        [pa.field("seq", pa.int64()), pa.field("bids", pa.binary()), pa.field("asks", pa.binary())]
    )

    def __init__(self, workload: "Stock") -> None:
        self._workload = workload
        self._results = Results(RESULT_FIELDS)

    def initial(self, unit: int, state: UnitState) -> None:
        """The books with which the exchange opens."""
        if (opening := self._opening.get(unit)) is not None:
            state.install([opening])

    @cached_property
    def _opening(self) -> dict[int, pa.RecordBatch]:
        """By unit; drawn when the first unit is filled, since an operator is also made to look at its schema."""
        return books(self._workload, self.state_schema)

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
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
