"""Nexmark: queries over an auction house, where persons open auctions and bid for things of others.

Event time is ``at`` (the published dateTime), up to ``delay_ms`` before ``t``. Windows wait as long for events that are
out of order, so none is late, and what a query gives depends on the input alone. ``sql`` has it in SQL.
"""

from functools import cached_property, partial
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from keyshift.registry import unknown
from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.keyed import MOST_DELAY_MS, MOST_MS, Grouped
from keyshift.workloads.nexmark import oracle
from keyshift.workloads.nexmark.queries import QUERIES
from keyshift.workloads.nexmark.source import EVENTS, NexmarkPartition


def _on_the_clock(parameter: str) -> property:
    """A parameter, which is in milliseconds of event time, in microseconds of the clock."""

    def of(workload: "Nexmark") -> int:
        return max(1, round(getattr(workload, parameter) * 1000 / workload.dilation))

    return property(of)


class Nexmark(Grouped):
    """Parameters of the workload. A key exists as soon as something of it has come."""

    name: ClassVar[str] = "nexmark"
    summary: ClassVar[str] = "queries over persons, auctions and bids: joins, windows and sessions in event time"
    skew: ClassVar[float] = 0.0  # which auctions and persons are hot changes all the time

    query: str = Field(default="q5", description="which query: " + ", ".join(QUERIES))
    window_ms: int = Field(
        default=2000, ge=1, le=MOST_MS, description="length of the windows of q5, q7 and q8, in milliseconds"
    )
    slide_ms: int = Field(default=500, ge=1, le=MOST_MS, description="milliseconds from one window of q5 to the next")
    gap_ms: int = Field(
        default=500, ge=1, le=MOST_MS, description="milliseconds without a bid that end a session of q11"
    )
    session_bids: int = Field(
        default=100_000,
        ge=1,
        le=10**9,
        description="bids of a session of q11 that are told as soon as there are so many; others when it ends",
    )
    delay_ms: int = Field(
        default=100,
        ge=0,
        le=MOST_DELAY_MS,
        description="largest delay of an event, in milliseconds; so long windows wait",
    )
    auction_ms: int = Field(
        default=2000, ge=1, le=MOST_MS, description="how long an auction is open on average, in milliseconds"
    )
    dilation: float = Field(
        default=1.0, ge=1, le=1e6, description="event time runs so many times as fast as the clock: long windows close"
    )

    @field_validator("query")
    @classmethod
    def _known(cls, query: str) -> str:
        if query not in QUERIES:
            raise ValueError(str(unknown("query", query, list(QUERIES))))
        return query

    @model_validator(mode="after")
    def _fits(self) -> "Nexmark":
        if self.query == "q5" and (self.slide_ms > self.window_ms or self.window_ms > 1000 * self.slide_ms):
            raise ValueError(
                f"slide_ms = {self.slide_ms}: must be at most window_ms = {self.window_ms}, and a thousandth at least"
            )
        return self

    window_us = _on_the_clock("window_ms")
    slide_us = _on_the_clock("slide_ms")
    gap_us = _on_the_clock("gap_ms")
    auction_us = _on_the_clock("auction_ms")

    @property
    def delay_us(self) -> int:
        """How far event time lags behind the watermark of frames, which is about ``t``."""
        return self.delay_ms * 1000

    @property
    def sources(self) -> tuple[Source, ...]:
        """Persons, auctions and bids."""
        map_, _ = QUERIES[self.query]
        return (
            Source(
                "events",
                EVENTS,
                partial(NexmarkPartition, self),
                map=map_,
                times=("at", "expires"),
                drawn_with=("seed", "delay_ms", "auction_ms", "dilation"),
            ),
        )

    @cached_property
    def stages(self) -> tuple[KeyedStage, ...]:  # type: ignore[override]
        """The stages of the query."""
        _, stages = QUERIES[self.query]
        return stages(self)

    wrong = oracle.wrong
