"""What goes into ``stock``: a tape that is played over and over again, or orders drawn from the seed.

Drawn orders are as on a real tape in what matters to a migration. Some securities are traded much more than others; in
a burst half of the orders are for one of them. Prices are near one that all routers agree on, and moves slowly: one
order in five meets another one at once, and takes all or a part of it. Every order is deleted in the end, if nothing
is left of it, too, so the books do not grow for ever. Under them are the orders with which the exchange opens: of days
before, deep on both sides, until they trade. They are drawn at once, as columns: a book of a thousand orders per
security would take events for minutes to build.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.workloads.stock.tape import ORDERS

if TYPE_CHECKING:
    from keyshift.workloads.stock import Stock

EVENTS = pa.schema([pa.field("t", pa.int64()), *ORDERS])
ROUTERS = 64  # as many as a job may have: numbers of orders of each are so far apart
TICK = 100  # a cent, in units of prices
LOT = 100  # shares
BLOCK = 2048  # orders that are drawn, or given, at once
STRETCH = 64  # orders, of which a burst has one or more
AWAY = 100.0  # ticks of orders that rest from the first price, on average: most are near it, some far
TRADERS = 8  # accounts that trade a security


class Played:
    """Blocks of orders, as events; see ``Partition``."""

    def __init__(self, blocks: Iterator[pa.RecordBatch]) -> None:
        self._blocks, self._left = blocks, next(blocks)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        while self._left.num_rows < len(times):
            self._left = pa.concat_batches([self._left, next(self._blocks)])
        whole, self._left = self._left.slice(0, len(times)), self._left.slice(len(times))
        return pa.RecordBatch.from_arrays([pa.array(times), *whole.columns], schema=EVENTS)


def laps(orders: pa.RecordBatch, seed: int, router: int) -> Iterator[pa.RecordBatch]:
    """A tape, over and over again. Router 0 begins at its beginning, the others elsewhere, so that none is in step.

    When it is through, the exchange closes: what was not deleted is. In the next lap orders have other numbers.
    """
    count = orders.num_rows
    first = int(np.random.default_rng((seed, router)).integers(count)) if router else 0
    turned = pa.concat_batches([orders.slice(first), orders.slice(0, first)])
    lines = pa.Table.from_batches([turned.append_column("line", pa.array(np.arange(count)))])
    of_order = lines.group_by(["order", "security", "account"]).aggregate([("line", "max")])  # in a book of its own
    last, deletes = np.sort(of_order["line_max"].to_numpy()), turned["deletes"].to_numpy(zero_copy_only=False)
    still = turned.take(pa.array(last[~deletes[last]]))
    lap = pa.concat_batches([turned, _deletions(still)])
    numbers = lap["order"].to_numpy()
    distinct = int(numbers.max()) + 1
    begin = 0
    while True:
        numbered = lap.set_column(0, ORDERS.field(0), pa.array((begin + numbers) * ROUTERS + router))
        for place in range(0, lap.num_rows, BLOCK):
            yield numbered.slice(place, BLOCK)
        begin += distinct


def _deletions(orders: pa.RecordBatch) -> pa.RecordBatch:
    nothing = np.zeros(orders.num_rows, np.int64)
    no = [pa.array(nothing.astype(bool)), *[pa.array(nothing)] * 2]
    return pa.RecordBatch.from_arrays(
        [orders["order"], pa.array(nothing == 0), *no, orders["security"], orders["account"]], schema=ORDERS
    )


def _names(workload: "Stock") -> tuple[pa.Array, pa.Array]:
    """The names of the securities and of the accounts of drawn orders."""
    securities = [f"{600_000 + number}" for number in range(workload.securities)]
    return pa.array(securities), pa.array([f"A{number:09d}" for number in range(workload.accounts)])


def _market(workload: "Stock") -> tuple[np.random.Generator, npt.NDArray[np.int64]]:
    """Return what moves prices, the same for all routers, and the first price of each security in ticks."""
    market = np.random.default_rng(workload.seed)
    return market, market.integers(500, 5000, workload.securities)


def drawn(workload: "Stock", router: int) -> Iterator[pa.RecordBatch]:
    """Orders and deletions without end, in blocks."""
    market, price = _market(workload)
    random = np.random.default_rng((workload.seed, router))
    securities, accounts = _names(workload)
    cumulated = np.cumsum(1 / np.arange(1, workload.securities + 1) ** workload.security_skew)
    numbers = np.arange(BLOCK)
    waiting = np.empty((4, 0), np.int64)  # of orders that are not deleted: when they are, number, security, account
    while True:
        price = np.maximum(price + market.integers(-1, 2, workload.securities), 100)

        def some(count: int) -> npt.NDArray[np.int64]:
            return np.searchsorted(cumulated, random.random(count) * cumulated[-1], side="right")

        stretch = numbers % BLOCK // STRETCH
        bursts = random.random(BLOCK // STRETCH) < workload.burst_share
        in_burst = bursts[stretch] & (random.random(BLOCK) < 0.5)
        security = np.where(in_burst, some(BLOCK // STRETCH)[stretch], some(BLOCK))
        account = (security * 31 + (random.random(BLOCK) ** 2 * TRADERS).astype(np.int64)) % workload.accounts
        buys = random.random(BLOCK) < 0.5
        away = random.integers(-2, 8, BLOCK)  # ticks on the side where an order waits; below 0 it meets another
        limit = (price[security] + np.where(buys, -away, away)) * TICK
        volume = LOT * (1 + random.exponential(3.0, BLOCK).astype(np.int64))
        until = numbers + 1 + (random.random(BLOCK) * 2 * workload.open_orders).astype(np.int64)

        waiting = np.concatenate([waiting, [until, numbers, security, account]], axis=1)
        now = waiting[0] <= numbers[-1]
        gone, waiting = waiting[:, now], waiting[:, ~now]
        zeros, deletes = np.zeros(gone.shape[1], np.int64), np.repeat([False, True], [BLOCK, gone.shape[1]])
        when = np.concatenate([numbers, gone[0]])
        both = np.concatenate([[numbers, security, account, buys, limit, volume], [*gone[1:], *[zeros] * 3]], axis=1)
        order = np.lexsort((both[0], deletes, when))
        number, security, account, buys, limit, volume = both[:, order]
        yield pa.RecordBatch.from_arrays(
            [
                *(pa.array(number * ROUTERS + router), pa.array(deletes[order]), pa.array(buys.astype(bool))),
                *(pa.array(limit), pa.array(volume)),
                *(securities.take(pa.array(security)), accounts.take(pa.array(account))),
            ],
            schema=ORDERS,
        )
        numbers = numbers + BLOCK


def resting(workload: "Stock") -> pa.RecordBatch:
    """``resting`` orders for each security, of ``ORDERS``, in the order in which they were entered.

    Those that buy are below the first price, those that sell above, so none meets another. Their accounts are any.
    Numbers are below 0: none is a router's.
    """
    random = np.random.default_rng((workload.seed, 1 << 17))  # not that of a router
    security = random.permutation(np.repeat(np.arange(workload.securities), workload.resting))
    count = len(security)
    _, price = _market(workload)
    securities, accounts = _names(workload)
    first, buys = price[security], random.random(count) < 0.5
    away = 1 + random.exponential(AWAY, count).astype(np.int64)
    price = np.where(buys, np.maximum(first - away, 1), first + away) * TICK
    columns = [
        *(pa.array(-1 - np.arange(count)), pa.array(np.zeros(count, bool)), pa.array(buys), pa.array(price)),
        pa.array(LOT * (1 + random.exponential(3.0, count).astype(np.int64))),
        securities.take(pa.array(security)),
        accounts.take(pa.array(random.integers(0, workload.accounts, count))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ORDERS)
