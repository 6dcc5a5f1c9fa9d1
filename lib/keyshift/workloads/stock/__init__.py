"""A stock exchange: limit orders come in, are matched by price and time in an order book per key, and are deleted.

Events are those of a tape (``tape``), or drawn from the seed; then the exchange opens with deep books (``resting``), as
real ones do. Routers interleave in the books as they like, and each result says the place of its event among those of
its key, so that the oracle can do the same once more.
"""

from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from keyshift.model.errors import BadInput
from keyshift.model.frames import empty, keys_of
from keyshift.progress import tell
from keyshift.workloads.contract import KeyedStage, Partition, Source
from keyshift.workloads.files import InputFile, shown
from keyshift.workloads.keyed import Grouped
from keyshift.workloads.stock import oracle
from keyshift.workloads.stock.operator import EVENTS, RESULT_FIELDS, StockOperator
from keyshift.workloads.stock.source import EVENTS as OFFERED
from keyshift.workloads.stock.source import Played, drawn, laps, resting
from keyshift.workloads.stock.tape import ORDERS, Tape, read

MOST_RESTING = 10**7  # orders, in all books: 320 MB


class Stock(Grouped):
    """Parameters of the workload. A key exists if orders of it rest, or as soon as one has come."""

    name: ClassVar[str] = "stock"
    summary: ClassVar[str] = "an exchange: limit orders matched by price and time in a book per security or account"
    skew: ClassVar[float] = 0.0  # in which key groups the hot securities are is not known

    tape: InputFile = Field(default="", description="tape file, over and over again; empty: orders drawn from the seed")
    on_bad_line: Literal["stop", "skip"] = Field(
        default="stop", description="what follows from a line of the tape that cannot be read"
    )
    keyed_by: Literal["security", "account"] = Field(default="security", description="what has an order book")
    securities: int = Field(default=200, ge=1, le=100_000, description="securities, if there is no tape")
    accounts: int = Field(default=20_000, ge=1, le=10**6, description="accounts, if there is no tape")
    resting: int = Field(
        default=100,
        ge=0,
        description="orders of each security that wait in the books when the exchange opens and stay until they trade, "
        "if there is no tape; 32 bytes of state each",
    )
    security_skew: float = Field(
        default=1.0, ge=0, le=10, description="Zipf exponent over securities, if there is no tape; 0 is uniform"
    )
    burst_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the time in which half of the orders are for one security, if there is no tape",
    )
    open_orders: int = Field(
        default=5000, ge=1, le=10**7, description="orders of each router that are not deleted yet, if there is no tape"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Stock":
        if self.resting * self.securities > MOST_RESTING:
            raise ValueError(
                f"resting = {self.resting}: with securities = {self.securities} that are "
                f"{self.resting * self.securities} orders, at most {MOST_RESTING}"
            )
        return self

    def opening(self) -> pa.RecordBatch:
        """The orders that wait before the first event, as slots would get them (``t`` is 0); none with a tape."""
        orders = empty(ORDERS) if self.tape else resting(self)
        at = pa.array(np.zeros(orders.num_rows, np.int64))
        return with_keys(self.keyed_by, pa.RecordBatch.from_arrays([at, *orders.columns], schema=OFFERED))

    @cached_property
    def read_tape(self) -> Tape:
        """The tape, read from its file. Raises BadInput."""
        return read(self.tape)

    def require(self) -> None:
        """Refuse a tape that cannot be played: BadInput. Tells of lines that are left out."""
        if not self.tape:
            return
        tape = self.read_tape
        if tape.bad:
            many = f"{tape.bad} of {tape.lines} lines cannot be read"
            if self.on_bad_line == "stop":
                raise BadInput(
                    f"tape = {self.tape!r}: {many}; the first: {tape.examples[0]}; set on_bad_line=skip to leave them "
                    "out, `keyshift tape check` shows more of them"
                )
            first = "; ".join(tape.examples[:3])
            tell(f"tape {shown(self.tape)}: {many} and are left out, the first: {first}")
        if self.keyed_by == "account" and tape.form == "short":
            raise BadInput(
                f"keyed_by = account: the tape {self.tape!r} has the form of 8 columns, which has no account; set "
                "keyed_by=security"
            )

    def partition(self, router: int) -> Partition:
        """Return what a router is offered."""
        return Played(laps(self.read_tape.orders, self.seed, router) if self.tape else drawn(self, router))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Orders and deletions."""
        map_ = partial(with_keys, self.keyed_by)
        drawn_with = tuple(name for name in type(self).model_fields if name not in ("key_groups", "keyed_by"))
        return (Source("orders", OFFERED, self.partition, self.require, map=map_, drawn_with=drawn_with),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The order books, behind routers that know the key."""
        return (KeyedStage("books", EVENTS, RESULT_FIELDS, partial(StockOperator, self)),)

    wrong = oracle.wrong


def with_keys(keyed_by: str, offered: pa.RecordBatch) -> pa.RecordBatch:
    """The events of the order books; key and security are hashes of texts."""
    security = keys_of(offered["security"])
    key = security if keyed_by == "security" else keys_of(offered[keyed_by])
    kept = (offered[name] for name in ("t", "order", "deletes", "buys", "price", "volume"))
    return pa.RecordBatch.from_arrays([key, *kept, security], schema=EVENTS)
