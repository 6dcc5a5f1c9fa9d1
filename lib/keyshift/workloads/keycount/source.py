"""What goes into ``keycount``."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.frames import EVENT_FIELDS
from keyshift.workloads.keyed import Keyed, key_draw

EVENTS = pa.schema(EVENT_FIELDS)


class KeyCountPartition:
    """See ``Partition``."""

    def __init__(self, workload: Keyed, router: int) -> None:
        self._keys = key_draw(workload, router)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        keys = self._keys.draw(len(times))
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(times)], schema=EVENTS)
