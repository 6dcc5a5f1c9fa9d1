"""Micro: the micro-benchmark of Spacker. One value per key; a record writes it if its key group is active, or reads it.

How much of the state changes while it is copied or moved is thus a parameter (``active_share``), apart from the rate.
All else is as in ``keycount``: key groups from a Zipf distribution, the keys of a group in turn, ``state_bytes`` per
key, and ``work_us`` with ``work_by`` for the CPU of a record. Several sources are several ``routers``.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import pandas as pd
from pydantic import Field

from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.keycount import KeyCount
from keyshift.workloads.keycount.operator import RESULT_FIELDS, KeyCountOperator
from keyshift.workloads.micro import oracle
from keyshift.workloads.micro.source import EVENTS, MicroPartition
from keyshift.workloads.times import Times


class Micro(KeyCount):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    name: ClassVar[str] = "micro"
    summary: ClassVar[str] = "read one value per key, and write it in the seconds in which the key group is active"

    active_share: float = Field(
        default=0.02, gt=0, le=1, description="share of the key groups that are active in each second, one at least"
    )
    later_events: int = Field(
        default=0, ge=0, description="events of each router behind which keys follow later_skew; 0: never"
    )
    later_skew: float = Field(default=0.6, ge=0, le=10, description="Zipf exponent from later_events on")

    @property
    def active_groups(self) -> int:
        """How many key groups are active in any second."""
        return max(1, round(self.active_share * self.key_groups))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events with a key, that write or only read."""
        return (Source("events", EVENTS, partial(MicroPartition, self)),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The map from keys to values."""
        operator = partial(KeyCountOperator, self, self.work_us, self.work_by == "spinning")
        return (KeyedStage("map", EVENTS, RESULT_FIELDS, operator),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong`` and ``oracle``."""
        return oracle.wrong(self, events, results, final)
