"""Key count: count the events of each key, beside a payload of a chosen size. The plainest job that has state.

The payload begins with the count, so a result that carries the count read back from the payload (``stamp``) shows
state that was stale, mixed up or half moved at the moment it was used, and the final payload shows it at the end.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field

from keyshift.model.frames import EVENT_FIELDS
from keyshift.state import UnitState
from keyshift.workloads.contract import KeyedStage, Operator, Source
from keyshift.workloads.keyed import WORD, Keyed, key_draw
from keyshift.workloads.times import Times

EVENTS = pa.schema(EVENT_FIELDS)


# -- what goes in ------------------------------------------------------------------------------------------------------


class KeyCountPartition:
    """See ``Partition``."""

    def __init__(self, workload: Keyed, router: int) -> None:
        self._keys = key_draw(workload, router)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        keys = self._keys.draw(len(times))
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(times)], schema=EVENTS)


RESULT_FIELDS = (
    pa.field("count", pa.int64()),  # events of the key so far, this one included
    pa.field("stamp", pa.int64()),  # the count in the payload before this event
)


# -- what slots compute ------------------------------------------------------------------------------------------------


class KeyCountOperator(Operator):
    """Counts, one event after the other; see ``Operator``. Events may have a column ``writes`` (bool): those that do
    not write read the count, and leave the state as it was.
    """

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
            count, payload = values[key] or (0, self._workload.fresh_payload(key))
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


# -- the workload ------------------------------------------------------------------------------------------------------


class KeyCount(Keyed):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    name: ClassVar[str] = "keycount"
    summary: ClassVar[str] = "count the events of each key, beside a payload of state_bytes per key"

    work_us: float = Field(
        default=0.0, ge=0, le=1e6, description="microseconds for which each event occupies its slot, at least"
    )
    work_by: Literal["waiting", "spinning"] = Field(
        default="waiting",
        description="how: waiting takes the slot but no core, like a call to another service; spinning takes a core",
    )

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events that are nothing but a key."""
        return (Source("events", EVENTS, partial(KeyCountPartition, self)),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The counter."""
        return (KeyedStage("counter", EVENTS, RESULT_FIELDS, self.counter),)

    def counter(self) -> KeyCountOperator:
        """What counts, and occupies its slot with each event."""
        return KeyCountOperator(self, self.work_us, self.work_by == "spinning")

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state.

        Events of several routers have no single order, so any order of a key's events is right that keeps the order of
        each router: the counts of a key are 1..n, each once, growing along each router's events.
        """
        counts = np.bincount(events["key"], minlength=self.keys)
        yield from wrong_results(counts, results)
        yield from StateCheck(self, counts).whole(final)


# -- what must come out, told from the events: not by the code of the operator -----------------------------------------


def wrong_results(counts: npt.NDArray[np.int64], results: pd.DataFrame) -> Iterator[str]:
    """One line for each result that cannot be. ``counts``: of the events of each key."""
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


class StateCheck:
    """The final state of one counter, part by part: every key is in its unit, with the ``counts`` it must have."""

    def __init__(self, workload: Keyed, counts: npt.NDArray[np.int64]) -> None:
        self._workload, self._counts = workload, counts
        self._seen = np.zeros(workload.keys, dtype=np.int64)

    def wrong(self, part: pd.DataFrame) -> Iterator[str]:
        """One line for each key of ``part`` that is not as it must be."""
        workload, counts = self._workload, self._counts
        for rows in workload.slices(iter([part])):
            key, unit, count = (rows[c].to_numpy() for c in ("key", "unit", "count"))
            known = (key >= 0) & (key < workload.keys)
            home = np.where(known, key, 0)
            np.add.at(self._seen, key[known], 1)
            bad = ~known | (workload.units[home] != unit) | (counts[home] != count) | workload.damaged(rows, count)
            for row in np.flatnonzero(bad):
                k = key[row]
                expected = f"count {counts[k]} in unit {workload.units[k]}" if known[row] else "no such key"
                yield (
                    f"final state of key {k} in unit {unit[row]}, slot {rows['slot'].iloc[row]}: count {count[row]}"
                    f" and payload {rows['payload'].iloc[row][:16].hex()}...; expected {expected}"
                )

    def whole(self, final: Iterator[pd.DataFrame]) -> Iterator[str]:
        """One line for each key that is not as it must be, of all parts."""
        for part in final:
            yield from self.wrong(part)
        yield from self.missing()

    def missing(self) -> Iterator[str]:
        """One line for each key that was not seen once, behind all parts."""
        for k in np.flatnonzero(self._seen != 1):
            yield f"final state of key {k}: in {self._seen[k]} places, expected 1"
