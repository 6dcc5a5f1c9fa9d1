"""What a slot measures in an attempt of its job, from batch to batch."""

import contextlib
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.histogram import class_of


class Measures:
    """The measurements of one batch, added to ``before``: those of ``so_far`` at the end of the batch before, if any.

    ``units``: how many there are in the job.
    """

    def __init__(self, units: int, before: Mapping[str, Any] | None) -> None:
        before = before or {}
        self._before = before
        self._began = time.monotonic() - before.get("seconds", 0.0)
        self._busy_s: float = before.get("busy_s", 0.0)
        self._records = np.zeros(units, np.int64)
        for unit, count in before.get("records", ()):
            self._records[unit] = count
        self._latency = Counter(dict(before.get("latency", ())))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """The slot is at work inside, with one thread at a time. It is not while it waits for rows, or for whoever
        takes what it gives out.
        """
        begin = time.monotonic()
        try:
            yield
        finally:
            self._busy_s += time.monotonic() - begin

    def answered(self, results: Iterable[pa.RecordBatch], now_us: int) -> None:
        """These results go out now. Of each frame the first and the last event count: they have waited for the longest
        and for the shortest time, and to look at each would cost as much as the slot's own work.
        """
        for result in results:
            if not result.num_rows:  # none of its events is due a result
                continue
            due, position = result.column("t"), result.column("position")
            for row in (0, result.num_rows - 1):
                if position[row].as_py() >= 0:  # nobody waits for a timer's
                    self._latency[class_of((now_us - due[row].as_py()) / 1000)] += 1

    def so_far(self, heat: npt.NDArray[np.int64], queue_peak_bytes: int, sent: Mapping[str, int]) -> dict[str, Any]:
        """``seconds``, ``busy_s`` of them at work, ``records`` (rows of unit, count), peaks in bytes, and ``sent``;
        ``latency`` from an event's due time to the result here (rows of class, count, see ``histogram``).

        Of this batch: ``heat``, records of each unit; the longest queue; ``sent``, other counts by name.
        """
        records = self._records + heat
        served = np.flatnonzero(records)
        peaks = {
            "queue_peak_bytes": queue_peak_bytes,
            "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        return {
            "seconds": time.monotonic() - self._began,
            "busy_s": self._busy_s,
            "records": np.stack([served, records[served]], axis=1).tolist(),
            "latency": list(map(list, self._latency.items())),
            **{name: max(peak, self._before.get(name, 0)) for name, peak in peaks.items()},
            **{name: count + self._before.get(name, 0) for name, count in sent.items()},
        }
