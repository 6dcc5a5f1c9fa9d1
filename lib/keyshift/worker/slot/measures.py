"""What a slot measures in an attempt of its job, from batch to batch."""

import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.histogram import class_of
from keyshift.model.records import Measured


class Measures:
    """The measurements of one batch, added to ``before``: those of ``so_far`` at the end of the batch before, if any.

    ``units``: how many there are in the job.
    """

    def __init__(self, units: int, before: Measured | None) -> None:
        before = before or Measured()
        self._before = before
        self._began = time.monotonic() - before.seconds
        self._busy_s = before.busy_s
        self._records = np.zeros(units, np.int64)
        for unit, count in before.records:
            self._records[unit] = count
        self._latency = Counter(dict(before.latency))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count the slot as at work inside, with one thread at a time. It is not while it waits for rows, or for
        whoever takes what it gives out.
        """
        begin = time.monotonic()
        try:
            yield
        finally:
            self._busy_s += time.monotonic() - begin

    def answered(self, results: Iterable[pa.RecordBatch], now_us: int) -> None:
        """Measure results that go out now. Of each frame the first and the last event count: they have waited for the
        longest and for the shortest time, and to look at each would cost as much as the slot's own work.
        """
        for result in results:
            if not result.num_rows:  # none of its events is due a result
                continue
            due, position = result.column("t"), result.column("position")
            for row in (0, result.num_rows - 1):
                if position[row].as_py() >= 0:  # nobody waits for a timer's
                    self._latency[class_of((now_us - due[row].as_py()) / 1000)] += 1

    def so_far(self, heat: npt.NDArray[np.int64], queue_peak_bytes: int, sent: Mapping[str, int]) -> Measured:
        """All that was measured so far, but for what is only so now.

        Of this batch: ``heat``, records of each unit; the longest queue; ``sent``, other counts by name.
        """
        records = self._records + heat
        served = np.flatnonzero(records)
        unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
        rss_peak_bytes, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, self._before
        return Measured(
            seconds=time.monotonic() - self._began,
            busy_s=self._busy_s,
            records=tuple(zip(served.tolist(), records[served].tolist(), strict=True)),
            latency=tuple(self._latency.items()),
            queue_peak_bytes=max(queue_peak_bytes, before.queue_peak_bytes),
            rss_peak_bytes=max(rss_peak_bytes, before.rss_peak_bytes),
            fetched_bytes=before.fetched_bytes + sent.get("fetched_bytes", 0),
            fetched_keys=before.fetched_keys + sent.get("fetched_keys", 0),
            written_bytes=before.written_bytes + sent.get("written_bytes", 0),
            copied_bytes=before.copied_bytes + sent.get("copied_bytes", 0),
            lent_bytes=before.lent_bytes + sent.get("lent_bytes", 0),
        )
