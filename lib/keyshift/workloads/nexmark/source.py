"""What goes into ``nexmark``: persons, auctions and bids, of which 50 events in a row have 1, 3 and 46.

Written from the published description of the benchmark and its generator. What is known of it: a bid is for the hot
auction with one half, else for one of the last hundred; a bidder, and a seller, is the hot person with three quarters,
else one of the last thousand; the hot one changes every hundred. Prices are 10 to the power of a uniform number.

A router does not know how many others there are. So each makes persons and auctions of its own, whose numbers are
multiples of ``ROUTERS`` apart, and bids for its own, but the hot ones are those of router 0, for all routers.

Source: Tucker, Tufte, Papadimos, Maier, "NEXMark - A Benchmark for Queries over Data Streams" (2002); the ratios are
those of the generator in Apache Beam, as it documents them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from keyshift.workloads.nexmark import Nexmark

PERSON, AUCTION, BID = 0, 1, 2  # kinds of events
PROPORTIONS = (1, 3, 46)
ROUND = sum(PROPORTIONS)
ROUTERS = 64  # as many as a job may have
FIRST = 1000  # number of the first person, and of the first auction
CATEGORIES = range(10, 15)
HOT_EVERY, LAST_AUCTIONS, LAST_PERSONS = 100, 100, 1000

_INTS, _TEXTS = pa.int64(), pa.string()
EVENTS = pa.schema(
    [
        pa.field("t", _INTS),
        pa.field("at", _INTS),  # the published dateTime: the event time, microseconds since the epoch
        pa.field("kind", pa.int8()),  # PERSON, AUCTION or BID; what the others have is null
        pa.field("id", _INTS),  # of a person or an auction
        pa.field("name", _TEXTS),
        pa.field("email", _TEXTS),
        pa.field("credit_card", _TEXTS),
        pa.field("city", _TEXTS),
        pa.field("state", _TEXTS),
        pa.field("item_name", _TEXTS),
        pa.field("description", _TEXTS),
        pa.field("initial_bid", _INTS),
        pa.field("reserve", _INTS),
        pa.field("expires", _INTS),
        pa.field("seller", _INTS),
        pa.field("category", _INTS),
        pa.field("auction", _INTS),
        pa.field("bidder", _INTS),
        pa.field("price", _INTS),
        pa.field("extra", _TEXTS),  # fills the three kinds up to about the published 200, 500 and 100 bytes
    ]
)

_FIRST_NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Fritz", "Gerta", "Hugo", "Ines", "Jona", "Karl", "Lena"]
_LAST_NAMES = ["Abel", "Bauer", "Cramer", "Dorn", "Ebert", "Falk", "Gross", "Hahn", "Jansen"]
_PLACES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
)
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_THINGS = ["lamp", "clock", "chair", "globe", "radio", "piano", "kettle", "mirror", "ladder", "violin"]
_EXTRA = pa.array(["p" * 100, "a" * 350, "b" * 60])
_DRAWS = 7  # uniform numbers per event: always as many, so that it does not matter how many events are taken at once


class NexmarkPartition:
    """Events of one router, by columns; see ``Partition``."""

    def __init__(self, workload: "Nexmark", router: int) -> None:
        self._router, self._next = router, 0
        self._delay_us, self._auction_us = workload.delay_us, workload.auction_us
        self._random = np.random.default_rng((workload.seed, router))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        number = np.arange(self._next, self._next + len(times))
        self._next += len(times)
        draws = self._random.random((len(times), _DRAWS)).T
        turn, place = np.divmod(number, ROUND)
        persons, auctions, _ = PROPORTIONS
        kind = np.select([place < persons, place < persons + auctions], [PERSON, AUCTION], BID).astype(np.int8)
        at = times - (draws[6] * self._delay_us).astype(np.int64)
        latest = auctions * turn + np.clip(place - persons, -1, auctions - 1)  # number of the auction made last
        number = np.where(kind == PERSON, self._numbered(turn), self._numbered(latest))
        columns: dict[str, Any] = {"t": times, "at": at, "kind": kind, "extra": _EXTRA.take(pa.array(kind))}
        columns["id"] = pa.array(number, mask=kind == BID)
        of = [np.flatnonzero(kind == each) for each in (PERSON, AUCTION, BID)]
        made = (
            self._persons(draws[:, of[PERSON]]),
            self._auctions(turn[of[AUCTION]], at[of[AUCTION]], draws[:, of[AUCTION]]),
            self._bids(latest[of[BID]], turn[of[BID]], draws[:, of[BID]]),
        )
        for where, some in zip(of, made, strict=True):
            columns |= _spread(len(times), where, some)
        arrays = [_array(columns[name]) for name in EVENTS.names]
        return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)

    @staticmethod
    def _persons(draws: npt.NDArray[np.float64]) -> dict[str, Any]:
        first, last = _pick(_FIRST_NAMES, draws[0]), _pick(_LAST_NAMES, draws[1])
        cards = (draws[4] * 1e16).astype(np.int64).tolist()
        return {
            "name": pa.array([f"{a} {b}" for a, b in zip(first, last, strict=True)], _TEXTS),
            "email": pa.array([f"{a}@{b}.example".lower() for a, b in zip(first, last, strict=True)], _TEXTS),
            "credit_card": pa.array([f"{card:016d}" for card in cards], _TEXTS),
            "city": _PLACES.take(pa.array((draws[2] * len(_PLACES)).astype(np.int64))),
            "state": _STATES.take(pa.array((draws[3] * len(_STATES)).astype(np.int64))),
        }

    def _auctions(
        self, turn: npt.NDArray[np.int64], at: npt.NDArray[np.int64], draws: npt.NDArray[np.float64]
    ) -> dict[str, Any]:
        things, initial = _pick(_THINGS, draws[1]), _prices(draws[4])
        return {
            "item_name": pa.array(things, _TEXTS),
            "description": pa.array([f"a {thing}, used but in order" for thing in things], _TEXTS),
            "initial_bid": initial,
            "reserve": initial + _prices(draws[5]),
            "expires": at + 1000 + (draws[3] * 2 * self._auction_us).astype(np.int64),
            "seller": self._person(turn, draws[0], draws[1], 0),
            "category": CATEGORIES[0] + (draws[2] * len(CATEGORIES)).astype(np.int64),
        }

    def _bids(
        self, auction: npt.NDArray[np.int64], turn: npt.NDArray[np.int64], draws: npt.NDArray[np.float64]
    ) -> dict[str, Any]:
        hot = FIRST + auction // HOT_EVERY * HOT_EVERY * ROUTERS
        cold = self._numbered(_one_of_last(auction, LAST_AUCTIONS, draws[1]))
        return {
            "auction": np.where(draws[0] < 1 / 2, hot, cold),
            "bidder": self._person(turn, draws[2], draws[3], 1),
            "price": _prices(draws[4]),
        }

    def _person(
        self, turn: npt.NDArray[np.int64], whether: npt.NDArray[np.float64], which: npt.NDArray[np.float64], plus: int
    ) -> npt.NDArray[np.int64]:
        """A seller, or a bidder, who is the hot seller's neighbour (``plus`` 1)."""
        hot = FIRST + (turn // HOT_EVERY * HOT_EVERY + plus) * ROUTERS
        return np.where(whether < 3 / 4, hot, self._numbered(_one_of_last(turn, LAST_PERSONS, which)))

    def _numbered(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return FIRST + number * ROUTERS + self._router


def _array(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)


def _spread(count: int, where: npt.NDArray[np.int64], columns: dict[str, Any]) -> dict[str, pa.Array]:
    """Columns of ``count`` rows that have these values at ``where``, and are null elsewhere."""
    places, nowhere = np.zeros(count, np.int64), np.ones(count, bool)
    places[where], nowhere[where] = np.arange(len(where)), False
    indices = pa.array(places, mask=nowhere)
    return {name: _array(column).take(indices) for name, column in columns.items()}


def _pick(names: list[str], draws: npt.NDArray[np.float64]) -> list[str]:
    return [names[number] for number in (draws * len(names)).astype(int).tolist()]


def _prices(draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.rint(10 ** (draws * 6) * 100).astype(np.int64)  # cents


def _one_of_last(number: npt.NDArray[np.int64], most: int, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """One of the last ``most`` up to ``number``, of which there are fewer in the beginning."""
    latest = np.maximum(number, 0)
    return latest - (draws * np.minimum(latest + 1, most)).astype(np.int64)
