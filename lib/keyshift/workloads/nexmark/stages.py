"""Stages of ``nexmark``: what the first ones get of the events, and operators made of rules.

First stages get some kinds of events, some of their fields, and a key. Their entries depend on time; what is behind
them does not.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.contract import ORIGIN, KeyedStage
from keyshift.workloads.nexmark.operators import KIND, ROW, EntriesOperator, Fold, FoldOperator, Rule
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


def entries_stage(
    name: str, events: pa.Schema, rule: Rule, map_: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> KeyedStage:
    """The first stage of a query: its rule about the ``events`` that ``map_`` makes."""
    return KeyedStage(name, events, (KIND, *rule.row_fields), partial(EntriesOperator, rule, events), map_)


def folded(name: str, by: str, fields: tuple[str, ...], fold: Fold) -> KeyedStage:
    """Behind a stage keyed by auction: rows with these ``fields``, keyed by the field ``by`` of the row."""
    events = pa.schema([*EVENT_FIELDS, KIND, *ints("auction", *fields)])

    def map_(results: pa.RecordBatch) -> pa.RecordBatch:
        key = pc.if_else(pc.equal(results["kind"], ROW), results[by], results["key"])
        names = ("t", "kind", "key", *fields, *(field.name for field in ORIGIN))
        whole = pa.schema([*events, *ORIGIN])
        return pa.RecordBatch.from_arrays([key, *(results[name] for name in names)], schema=whole)

    return KeyedStage(name, events, (KIND, *fold.row_fields), partial(FoldOperator, fold, events), map_)
