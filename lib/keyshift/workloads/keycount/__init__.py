"""Key count: count the events of each key, beside a payload of a chosen size. The plainest job that has state.

The payload begins with the count, so a result that carries the count read back from the payload (``stamp``) shows
state that was stale, mixed up or half moved at the moment it was used, and the final payload shows it at the end.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

import pandas as pd
from pydantic import Field

from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.keycount import oracle
from keyshift.workloads.keycount.operator import RESULT_FIELDS, KeyCountOperator
from keyshift.workloads.keycount.source import EVENTS, KeyCountPartition
from keyshift.workloads.keyed import Keyed
from keyshift.workloads.times import Times


class KeyCount(Keyed):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    name: ClassVar[str] = "keycount"
    summary: ClassVar[str] = "count the events of each key, beside a payload of state_bytes per key"

    work_us: float = Field(
        default=0.0, ge=0, le=1e6, description="microseconds for which each event occupies its slot, at least"
    )
    work_by: Literal["waiting", "spinning"] = Field(
        default="waiting",
        description="how: waiting takes the slot but no core, like a call to another service; spinning takes a core",
    )

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events that are nothing but a key."""
        return (Source("events", EVENTS, partial(KeyCountPartition, self)),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The counter."""
        operator = partial(KeyCountOperator, self, self.work_us, self.work_by == "spinning")
        return (KeyedStage("counter", EVENTS, RESULT_FIELDS, operator),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong`` and ``oracle``."""
        return oracle.wrong(self, events, results, final)
