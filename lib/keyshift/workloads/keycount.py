"""Key count: count the events of each key, beside a payload of a chosen size. The plainest job that has state.

The payload begins with the count, so a result that carries the count read back from the payload (``stamp``) shows
state that was stale, mixed up or half moved at the moment it was used, and the final payload shows it at the end.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from keyshift.frames import EVENT_FIELDS
from keyshift.state import UnitState
from keyshift.workloads.keyed import WORD, KeyDraw, Keyed
from keyshift.workloads.times import Times


class KeyCount(Keyed):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    name: ClassVar[str] = "keycount"
    summary: ClassVar[str] = "count the events of each key, beside a payload of state_bytes per key"
    event_schema: ClassVar[pa.Schema] = pa.schema(EVENT_FIELDS)
    result_fields: ClassVar[tuple[pa.Field, ...]] = (
        pa.field("count", pa.int64()),  # events of the key so far, this one included
        pa.field("stamp", pa.int64()),  # the count in the payload before this event
    )

    def operator(self) -> "KeyCountOperator":
        """A new operator, for one slot."""
        return KeyCountOperator(self)

    def source(self, router: int) -> "KeyCountSource":
        """The input of one router."""
        return KeyCountSource(self, router)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state.

        Events of several routers have no single order, so any order of a key's events is right that keeps the order of
        each router: the counts of a key are 1..n, each once, growing along each router's events.
        """
        counts = np.bincount(events["key"], minlength=self.keys)
        yield from self._wrong_results(counts, results)
        yield from self._wrong_state(counts, final)

    def _wrong_results(self, counts: npt.NDArray[np.int64], results: pd.DataFrame) -> Iterator[str]:
        key, router, count, stamp = (results[c].to_numpy() for c in ("key", "router", "count", "stamp"))
        known = (key >= 0) & (key < len(counts))
        bad = ~known | (count < 1) | (count > counts[np.where(known, key, 0)]) | (stamp != count - 1)
        order = np.lexsort((count, key))
        bad[order[1:]] |= (np.diff(key[order]) == 0) & (np.diff(count[order]) == 0)
        order = np.lexsort((results["position"], results["offset"], router, key))
        same = (np.diff(key[order]) == 0) & (np.diff(router[order]) == 0)
        bad[order[1:]] |= same & (np.diff(count[order]) <= 0)
        for row in np.flatnonzero(bad):
            r = results.iloc[row]
            offered = counts[key[row]] if known[row] else 0
            yield (
                f"result of router {r.router} offset {r.offset} position {r.position}: key {r.key} has count"
                f" {r['count']} and stamp {r.stamp}; expected stamp = count - 1, and counts 1..{offered}, each once,"
                " in event order"
            )

    def _wrong_state(self, counts: npt.NDArray[np.int64], final: Iterator[pd.DataFrame]) -> Iterator[str]:
        seen = np.zeros(self.keys, dtype=np.int64)
        for part in self.slices(final):
            key, unit, count = (part[c].to_numpy() for c in ("key", "unit", "count"))
            known = (key >= 0) & (key < self.keys)
            home = np.where(known, key, 0)
            np.add.at(seen, key[known], 1)
            bad = ~known | (self.units[home] != unit) | (counts[home] != count) | self.damaged(part, count)
            for row in np.flatnonzero(bad):
                k = key[row]
                expected = f"count {counts[k]} in unit {self.units[k]}" if known[row] else "no such key"
                yield (
                    f"final state of key {k} in unit {unit[row]}, slot {part['slot'].iloc[row]}: count {count[row]}"
                    f" and payload {part['payload'].iloc[row][:16].hex()}...; expected {expected}"
                )
        for k in np.flatnonzero(seen != 1):
            yield f"final state of key {k}: in {seen[k]} places, expected 1"


class KeyCountOperator:
    """Counts, one event after the other; see ``Operator``."""

    uses_time = False
    state_schema = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])

    def __init__(self, workload: KeyCount) -> None:
        self._workload = workload

    def initial(self, unit: int, state: UnitState) -> None:
        """Every key of ``unit``, with count 0."""
        state.install([self._workload.fresh(unit, self.state_schema, (0,))])

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """One result per event. A key whose state is missing counts from 0: the verdict tells, the job goes on."""
        counts, stamps = [], []
        keys, units = (events.column(name).to_numpy().tolist() for name in ("key", "unit"))
        values_of = {unit: state_of(unit).values for unit in set(units)}
        for key, values in zip(keys, map(values_of.__getitem__, units), strict=True):
            count, payload = values[key] or self._fresh(key)
            stamps.append(int.from_bytes(payload[:WORD], "little"))
            count += 1
            values[key] = count, count.to_bytes(WORD, "little") + payload[WORD:]
            counts.append(count)
        return pa.RecordBatch.from_arrays(
            [
                *(events.column(name) for name in ("key", "t", "position")),
                pa.array(np.array(counts, np.int64)),
                pa.array(np.array(stamps, np.int64)),
            ],
            names=["key", "t", "position", "count", "stamp"],
        )

    def _fresh(self, key: int) -> tuple[int, bytes]:
        return 0, self._workload.payloads(np.array([key]), np.array([0])).tobytes()

    def advance(self, states: Iterable[UnitState]) -> None:
        """Nothing waits for a time here."""


class KeyCountSource:
    """See ``Source``."""

    def __init__(self, workload: KeyCount, router: int) -> None:
        self._keys = KeyDraw(workload, router)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        keys = self._keys.draw(len(times))
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(times)], schema=KeyCount.event_schema)
