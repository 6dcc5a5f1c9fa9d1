"""Micro: the micro-benchmark of Spacker. One value per key; a record writes it if its key group is active, or reads it.

How much of the state changes while it is copied or moved is thus a parameter (``active_share``), apart from the rate.
All else is as in ``keycount``: key groups from a Zipf distribution, the keys of a group in turn, ``state_bytes`` per
key, and ``work_us`` with ``work_by`` for the CPU of a record. Several sources of events are several ``routers``.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field, model_validator

from keyshift.model.frames import EVENT_FIELDS
from keyshift.model.keys import units_of
from keyshift.workloads.contract import ORIGIN_NAMES, KeyedStage, Source
from keyshift.workloads.keycount import RESULT_FIELDS, KeyCount, KeyCounts, StateCheck, wrong_results
from keyshift.workloads.keyed import DRAWN_WITH
from keyshift.workloads.tables import RESULT, lines
from keyshift.workloads.times import Times

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("writes", pa.bool_())])
_SECOND_US = 1_000_000


class MicroPartition:
    """Keys of two distributions, one behind the other; see ``Partition``.

    The key groups in an order drawn from the seed make a circle. The active ones are an arc of it, and each second of
    the load has the next arc: all routers agree on it, and every group has its turn.
    """

    def __init__(self, workload: "Micro", router: int) -> None:
        self._draw = self._later = workload.key_draw(router)
        self._left = workload.later_events or math.inf  # events until the later skew
        if workload.later_events:
            self._later = workload.model_copy(update={"skew": workload.later_skew}).key_draw(router)
        self._groups, self._active = workload.key_groups, workload.active_groups
        self._place = np.random.default_rng((workload.seed, 2)).permutation(self._groups)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        first = int(min(len(times), self._left))
        self._left -= first
        keys = self._draw(first)
        if first < len(times):
            keys = np.concatenate([keys, self._later(len(times) - first)])
        begin = times // _SECOND_US * self._active % self._groups
        place = self._place[units_of(keys, self._groups)]
        writes = (place - begin) % self._groups < self._active
        return pa.RecordBatch.from_arrays([pa.array(column) for column in (keys, times, writes)], schema=EVENTS)


class Micro(KeyCount):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    name: ClassVar[str] = "micro"
    summary: ClassVar[str] = "read one value per key, and write it in the seconds in which the key group is active"
    apart: ClassVar[bool] = True

    active_share: float = Field(
        default=0.02, gt=0, le=1, description="share of the key groups that are active in each second, one at least"
    )
    later_events: int = Field(
        default=0, ge=0, description="events of each router behind which keys follow later_skew; 0: never"
    )
    later_skew: float = Field(default=0.6, ge=0, le=10, description="Zipf exponent from later_events on")

    @model_validator(mode="after")
    def _follows_a_skew(self) -> Self:
        if self.exist == "once used" and self.later_events:
            raise ValueError(
                f"later_events = {self.later_events}: must be 0 with exist = once used, where keys come uniformly"
            )
        return self

    @property
    def active_groups(self) -> int:
        """How many key groups are active in any second."""
        return max(1, round(self.active_share * self.key_groups))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events with a key, that write or only read."""
        drawn_with = *DRAWN_WITH, "exist", "active_share", "later_events", "later_skew"
        drifts, keys = self.later_events > 0, partial(MicroPartition, self)
        return (Source("events", EVENTS, keys, drawn_with=drawn_with, drifts=drifts, later_skew=self.later_skew),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The map from keys to values."""
        return (KeyedStage("map", EVENTS, RESULT_FIELDS, self.counter),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``."""
        yield from self.wrong_results(events, results)
        yield from StateCheck(self, self._writes(events)).whole(final)

    def _writes(self, events: pd.DataFrame) -> KeyCounts:
        return KeyCounts(events.loc[events["writes"], "key"])

    def wrong_results(self, events: pd.DataFrame, results: pd.DataFrame) -> Iterator[str]:
        """One line per wrong result. Records that write are counted as in ``keycount``.

        One that reads has the count of writes that its payload has, too, at most as many as there are; and for the
        events of a router and key the count never shrinks, and grows with each write.
        """
        counts = self._writes(events)
        results = results.merge(events[[*ORIGIN_NAMES, "writes"]], on=ORIGIN_NAMES)
        writes = results["writes"]
        yield from wrong_results(counts, results[writes])

        most = pd.Series(counts.of(results["key"]), results.index)
        odd = (results["count"] != results["stamp"]) | ~results["count"].between(0, most)
        text = RESULT + ", which reads: key {key} has count {count} and stamp {stamp}; expected both the same, and not"
        text += " more than {most} writes"
        yield from lines(results.assign(most=most), ~writes & odd, text)
        ordered = results.sort_values(["key", *ORIGIN_NAMES])
        of_router = ordered.groupby(["key", "router"])
        behind = of_router["count"].diff() < ordered["writes"]
        told = ordered["writes"] & of_router["writes"].shift(fill_value=True)  # a write behind a write: with all writes
        text = RESULT + ": key {key} has count {count}, which its router had left behind"
        yield from lines(ordered, behind & ~told, text)
