"""The order books with which an exchange opens: orders of days before, deep on both sides, that stay until they trade.

They are drawn at once, as columns: a book of a thousand orders per security would take events for minutes to build.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.workloads.stock.book import BYTES
from keyshift.workloads.stock.source import LOT, TICK, accounts_of, first_prices, securities_of
from keyshift.workloads.stock.tape import ORDERS

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

AWAY = 100.0  # ticks from the first price, on average: most orders are near it, some far


def resting(workload: "Stock") -> pa.RecordBatch:
    """``resting`` orders for each security, of ``ORDERS``, in the order in which they were entered.

    Those that buy are below the first price, those that sell above, so none meets another. Their accounts are any.
    Numbers are below 0: none is a router's.
    """
    random = np.random.default_rng((workload.seed, 1 << 17))  # not that of a router
    security = random.permutation(np.repeat(np.arange(workload.securities), workload.resting))
    count = len(security)
    first, buys = first_prices(workload)[security], random.random(count) < 0.5
    away = 1 + random.exponential(AWAY, count).astype(np.int64)
    price = np.where(buys, np.maximum(first - away, 1), first + away) * TICK
    columns = [
        *(pa.array(-1 - np.arange(count)), pa.array(np.zeros(count, bool)), pa.array(buys), pa.array(price)),
        pa.array(LOT * (1 + random.exponential(3.0, count).astype(np.int64))),
        securities_of(workload).take(pa.array(security)),
        accounts_of(workload).take(pa.array(random.integers(0, workload.accounts, count))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ORDERS)


def books(workload: "Stock", schema: pa.Schema) -> dict[int, pa.RecordBatch]:
    """The books with which the exchange opens, where no order meets another: the state of each unit that has any.

    ``schema``: of the state, whose columns behind the key are seq (0 here), bids and asks; see ``book``.
    """
    orders = workload.opening()
    keys, of_order = np.unique(orders["key"].to_numpy(), return_inverse=True)
    unit = workload.units_of(keys)
    by_unit = np.argsort(unit, kind="stable")
    place = np.empty_like(by_unit)
    place[by_unit] = np.arange(len(keys))
    buys = orders["buys"].to_numpy(zero_copy_only=False)
    sides = [_side(orders, place[of_order], len(keys), buys, -1), _side(orders, place[of_order], len(keys), ~buys, 1)]
    columns = [pa.array(keys[by_unit]), pa.array(np.zeros(len(keys), np.int64)), *sides]
    whole = pa.RecordBatch.from_arrays(columns, schema=pa.schema([pa.field("key", pa.int64()), *schema]))
    found, begin, count = np.unique(unit[by_unit], return_index=True, return_counts=True)
    places = zip(found.tolist(), begin.tolist(), count.tolist(), strict=True)
    return {number: whole.slice(first, many) for number, first, many in places}


def _side(
    orders: pa.RecordBatch, place: npt.NDArray[np.int64], keys: int, mine: npt.NDArray[np.bool_], sign: int
) -> pa.Array:
    """Of each key the orders that are ``mine``, as bytes. ``place``: of the key of each order. ``sign``: of ranks."""
    place = place[mine]
    security, price, number, volume = (orders[n].to_numpy()[mine] for n in ("security", "price", "order", "volume"))
    rank = sign * price
    trading = np.lexsort((np.arange(len(place)), rank, security, place))
    rows = np.stack([security, rank, number, volume], axis=1)[trading].astype("<i8")
    ends = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=keys))]).astype(np.int32) * BYTES
    return pa.Array.from_buffers(pa.binary(), keys, [None, pa.py_buffer(ends), pa.py_buffer(rows.tobytes())])
