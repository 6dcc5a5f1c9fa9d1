"""Window count: tumbling event-time windows per key, and a notice for each key that falls idle. All about timers.

Events come late, up to ``delay_ms`` regularly and a few of them much more, so what is late depends on the watermark an
event meets, and that on how the routers' frames interleave, with or without a migration. The result of an event
therefore says which watermark it met; the oracle checks that everything else follows from that.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.contract import KeyedStage, Source
from keyshift.workloads.keyed import DRAWN_WITH, MOST_DELAY_MS, MOST_MS, Keyed
from keyshift.workloads.times import Times
from keyshift.workloads.windowcount import oracle
from keyshift.workloads.windowcount.operator import RESULT_FIELDS, WindowCountOperator

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("at", pa.int64())])  # at: the event time, microseconds since the epoch
LATE_BY = 4  # an event that is much too late is so by up to that many windows beyond the regular delay


class WindowCountPartition:
    """Keys as in every keyed workload, and a delay for each event; see ``Partition``."""

    def __init__(self, workload: "WindowCount", router: int) -> None:
        self._draw = workload.key_draw(router)
        self._regular, self._late = workload.lag_us, LATE_BY * workload.window_us
        self._late_share = workload.late_share
        # Generators of their own for each column: what is drawn must not depend on how many are taken at once.
        self._delay, self._more, self._whether = np.random.default_rng((workload.seed, router, 1)).spawn(3)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        n = len(times)
        delay = self._delay.random(n) * self._regular
        delay += (self._whether.random(n) < self._late_share) * (1 + self._more.random(n) * self._late)
        at = times - delay.astype(np.int64)
        columns = [pa.array(column) for column in (self._draw(n), times, at)]
        return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


class WindowCount(Keyed):
    """Parameters of the workload; every key exists from the beginning, without a window."""

    name: ClassVar[str] = "windowcount"
    summary: ClassVar[str] = "count and sum in tumbling event-time windows per key, and tell which keys fall idle"

    window_ms: int = Field(
        default=500, ge=1, le=MOST_MS, description="length of a window in event time, in milliseconds"
    )
    delay_ms: int = Field(
        default=200,
        ge=0,
        le=MOST_DELAY_MS,
        description="largest regular delay of an event, in milliseconds; so far lags the watermark",
    )
    late_share: float = Field(default=0.01, ge=0, le=1, description="fraction of events delayed by some windows more")
    idle_ms: int = Field(
        default=1000,
        ge=0,
        le=MOST_MS,
        description="milliseconds without events after which a key is told to be idle; 0: never",
    )

    @property
    def window_us(self) -> int:
        """Length of a window."""
        return self.window_ms * 1000

    @property
    def lag_us(self) -> int:
        """How far event time lags behind the watermark of frames, which is about ``t``."""
        return self.delay_ms * 1000

    @property
    def idle_us(self) -> int:
        """Processing time without events that makes a key idle; 0: never."""
        return self.idle_ms * 1000

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events with a key and an event time."""
        drawn_with = *DRAWN_WITH, "window_ms", "delay_ms", "late_share"
        partition = partial(WindowCountPartition, self)
        return (Source("events", EVENTS, partition, times=("at",), drawn_with=drawn_with),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The windows."""
        return (KeyedStage("windows", EVENTS, RESULT_FIELDS, partial(WindowCountOperator, self)),)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong`` and ``oracle``."""
        assert times is not None  # it uses time
        return oracle.wrong(self, events, results, final, times)
