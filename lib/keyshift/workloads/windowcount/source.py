"""What goes into ``windowcount``."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.workloads.keyed import key_draw

if TYPE_CHECKING:
    from keyshift.workloads.windowcount import WindowCount

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("at", pa.int64())])  # at: the event time, microseconds since the epoch
LATE_BY = 4  # an event that is much too late is so by up to that many windows beyond the regular delay


class WindowCountPartition:
    """Keys as in every keyed workload, and a delay for each event; see ``Partition``."""

    def __init__(self, workload: "WindowCount", router: int) -> None:
        self._keys = key_draw(workload, router)
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
        columns = [pa.array(column) for column in (self._keys.draw(n), times, at)]
        return pa.RecordBatch.from_arrays(columns, schema=EVENTS)
