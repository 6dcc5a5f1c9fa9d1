"""What goes into ``micro``."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.frames import EVENT_FIELDS
from keyshift.keys import units_of
from keyshift.workloads.keyed import key_draw

if TYPE_CHECKING:
    from keyshift.workloads.micro import Micro

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("writes", pa.bool_())])
_SECOND_US = 1_000_000


class MicroPartition:
    """Keys of two distributions, one behind the other; see ``Partition``.

    The key groups in an order drawn from the seed make a circle. The active ones are an arc of it, and each second has
    the next arc: all routers agree on it, and every group has its turn.
    """

    def __init__(self, workload: "Micro", router: int) -> None:
        self._keys = key_draw(workload, router)
        self._later = key_draw(workload.model_copy(update={"skew": workload.later_skew}), router)
        self._left = workload.later_events or None  # events until the later skew; None: never
        self._groups, self._active = workload.key_groups, workload.active_groups
        self._place = np.random.default_rng((workload.seed, 2)).permutation(self._groups)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        keys = self._draw(len(times))
        begin = times // _SECOND_US * self._active % self._groups
        place = self._place[units_of(keys, self._groups)]
        writes = (place - begin) % self._groups < self._active
        return pa.RecordBatch.from_arrays([pa.array(column) for column in (keys, times, writes)], schema=EVENTS)

    def _draw(self, count: int) -> npt.NDArray[np.int64]:
        if self._left is None:
            return self._keys.draw(count)
        first = min(count, self._left)
        self._left -= first
        return np.concatenate([self._keys.draw(first), self._later.draw(count - first)])
