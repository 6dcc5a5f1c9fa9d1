"""What the first stages of ``nexmark`` get of the events: some kinds, some fields, and a key."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.nexmark.operators import KIND
from keyshift.workloads.nexmark.source import AUCTION, BID, PERSON

CENTS_PER_EURO = 89  # Q1: euro cents for a dollar, as published


def ints(*names: str) -> tuple[pa.Field, ...]:
    """Fields of integers."""
    return tuple(pa.field(name, pa.int64()) for name in names)


def texts(*names: str) -> tuple[pa.Field, ...]:
    """Fields of texts."""
    return tuple(pa.field(name, pa.string()) for name in names)


def bids(columns: Sequence[str], events: pa.RecordBatch) -> pa.RecordBatch:
    """Bids; the key is the first of ``columns``."""
    some = events.filter(pc.equal(events["kind"], BID))
    key, *others = columns
    names = ["key", "t", *others]
    return pa.RecordBatch.from_arrays([some[name] for name in (key, "t", *others)], names=names)


def bids_in_euro(events: pa.RecordBatch) -> pa.RecordBatch:
    """Bids by auction, with the price in euro cents."""
    made = bids(("auction", "bidder", "price", "at"), events)
    price = pa.array(made["price"].to_numpy() * CENTS_PER_EURO // 100)
    return made.set_column(made.schema.get_field_index("price"), "price", price)


def persons_and_auctions(events: pa.RecordBatch) -> pa.RecordBatch:
    """Persons, and auctions by their sellers: what one kind does not have is 0 or empty."""
    some = events.filter(pc.less(events["kind"], BID))
    key = pc.if_else(pc.equal(some["kind"], PERSON), some["id"], some["seller"])
    auction = pc.if_else(pc.equal(some["kind"], AUCTION), some["id"], 0)
    numbers = [pc.fill_null(some[name], 0) for name in ("category", "reserve")]
    words = [pc.fill_null(some[name], "") for name in ("name", "city", "state")]
    columns = [key, some["t"], some["at"], some["kind"], auction, *numbers, *words]
    return pa.RecordBatch.from_arrays(columns, schema=SELLERS)


def auctions_and_bids(events: pa.RecordBatch) -> pa.RecordBatch:
    """Auctions and the bids for them: what one kind does not have is 0."""
    some = events.filter(pc.greater(events["kind"], PERSON))
    key = pc.if_else(pc.equal(some["kind"], BID), some["auction"], some["id"])
    numbers = [pc.fill_null(some[name], 0) for name in ("price", "expires", "category", "seller")]
    return pa.RecordBatch.from_arrays([key, some["t"], some["at"], some["kind"], *numbers], schema=AUCTIONS)


BIDS = pa.schema([*EVENT_FIELDS, *ints("at", "bidder", "price")])
BIDS_BY_BIDDER = pa.schema([*EVENT_FIELDS, *ints("at")])
AUCTIONS = pa.schema([*EVENT_FIELDS, *ints("at"), KIND, *ints("price", "expires", "category", "seller")])
SELLERS = pa.schema(
    [
        *(*EVENT_FIELDS, *ints("at"), KIND),
        *(*ints("auction", "category", "reserve"), *texts("name", "city", "state")),
    ]
)
