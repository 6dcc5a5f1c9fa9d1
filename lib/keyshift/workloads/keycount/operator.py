"""What the slots of ``keycount`` and ``micro`` compute."""

import time
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from keyshift.state import UnitState
from keyshift.workloads.keyed import WORD, Keyed

RESULT_FIELDS = (
    pa.field("count", pa.int64()),  # events of the key so far, this one included
    pa.field("stamp", pa.int64()),  # the count in the payload before this event
)


class KeyCountOperator:
    """Counts, one event after the other; see ``Operator``. Events may have a column ``writes`` (bool): those that do
    not write read the count, and leave the state as it was.
    """

    uses_time = False
    state_schema = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])

    def __init__(self, workload: Keyed, work_us: float = 0.0, spins: bool = False) -> None:
        self._workload, self._work_s, self._spins = workload, work_us / 1e6, spins

    def initial(self, unit: int, state: UnitState) -> None:
        """Every key of ``unit``, with count 0."""
        state.install([self._workload.fresh(unit, self.state_schema, (0,))])

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """One result per event. A key whose state is missing counts from 0: the verdict tells, the job goes on.

        Returns when the events have taken their time, all together: a pause for each would be longer than was asked.
        """
        until = time.perf_counter() + events.num_rows * self._work_s
        counts, stamps = [], []
        keys, units = (events.column(name).to_numpy().tolist() for name in ("key", "unit"))
        writes = events["writes"].to_pylist() if "writes" in events.schema.names else [True] * events.num_rows
        values_of = {unit: state_of(unit).values for unit in set(units)}
        for key, values, write in zip(keys, map(values_of.__getitem__, units), writes, strict=True):
            count, payload = values[key] or self._fresh(key)
            stamps.append(int.from_bytes(payload[:WORD], "little"))
            if write:
                count += 1
                values[key] = count, count.to_bytes(WORD, "little") + payload[WORD:]
            counts.append(count)
        self._occupy(until)
        return pa.RecordBatch.from_arrays(
            [
                *(events.column(name) for name in ("key", "t", "position")),
                pa.array(np.array(counts, np.int64)),
                pa.array(np.array(stamps, np.int64)),
            ],
            names=["key", "t", "position", "count", "stamp"],
        )

    def _occupy(self, until: float) -> None:
        """The slot, as long as ``perf_counter`` is below ``until``."""
        while (left := until - time.perf_counter()) > 0:
            if not self._spins:
                time.sleep(left)

    def _fresh(self, key: int) -> tuple[int, bytes]:
        return 0, self._workload.payloads(np.array([key]), np.array([0])).tobytes()

    def advance(self, states: Iterable[UnitState]) -> None:
        """Nothing waits for a time here."""
