"""Chain: events go through several keyed stages, each of which gives them another key. Stages count, or only pass on.

What a chain of stages costs, and whether each of its stages can move its state while the others go on.
"""

import math
from collections import Counter
from collections.abc import Iterator
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field, field_validator

from keyshift.workloads.chain import oracle
from keyshift.workloads.chain.operator import MapOperator
from keyshift.workloads.contract import ORIGIN, KeyedStage, Source
from keyshift.workloads.keycount.operator import RESULT_FIELDS, KeyCountOperator
from keyshift.workloads.keycount.source import EVENTS, KeyCountPartition
from keyshift.workloads.keyed import Keyed
from keyshift.workloads.times import Times

MOST = 4
_STRIDE = 7919  # how far apart neighbouring keys of a stage are in the next one, about


class Chain(Keyed):
    """Parameters of the workload. Every key exists from the beginning in each counter, with count 0."""

    name: ClassVar[str] = "chain"
    summary: ClassVar[str] = (
        "several keyed stages, each with another key for every event: counters, and maps without state"
    )

    chain: str = Field(default="counter,counter", description="one to four keyed stages: counter or map, with commas")

    @field_validator("chain")
    @classmethod
    def _known(cls, chain: str) -> str:
        kinds = chain.split(",")
        if not 1 <= len(kinds) <= MOST or set(kinds) - {"counter", "map"}:
            raise ValueError(f"must be one to {MOST} of counter and map, with commas between them")
        return chain

    @property
    def kinds(self) -> list[str]:
        """``counter`` or ``map``, of each stage."""
        return self.chain.split(",")

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events that are nothing but a key."""
        return (Source("events", EVENTS, partial(KeyCountPartition, self)),)

    @cached_property
    def stages(self) -> tuple[KeyedStage, ...]:  # type: ignore[override]
        """The counters and maps, numbered where there are several of a kind."""
        several, seen = Counter(self.kinds), Counter[str]()
        stages = []
        for number, kind in enumerate(self.kinds):
            seen[kind] += 1
            name = kind if several[kind] == 1 else f"{kind}-{seen[kind]}"
            fields, operator = ((), MapOperator) if kind == "map" else (RESULT_FIELDS, partial(KeyCountOperator, self))
            stages.append(KeyedStage(name, EVENTS, fields, operator, self._rekeyed if number else None))
        return tuple(stages)

    @cached_property
    def _factor(self) -> int:
        return next(each for each in range(_STRIDE, _STRIDE + self.keys + 1) if math.gcd(each, self.keys) == 1)

    def key_at(self, stage: int, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The key at the ``stage``-th stage of events with these keys at the first: other keys stay other keys."""
        for _ in range(stage):
            keys = (keys * self._factor + 1) % self.keys
        return keys

    def _rekeyed(self, results: pa.RecordBatch) -> pa.RecordBatch:
        keys = pa.array(self.key_at(1, results["key"].to_numpy()))
        names = ["t", *(field.name for field in ORIGIN)]
        return pa.RecordBatch.from_arrays([keys, *(results[name] for name in names)], names=["key", *names])

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong`` and ``oracle``."""
        return oracle.wrong(self, self.kinds, self.key_at, events, results, final)
