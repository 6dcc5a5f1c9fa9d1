"""Key count: count the events of each key, beside a payload of a chosen size. The plainest job that has state.

The payload begins with the count, so a result that carries the count read back from the payload (``stamp``) shows
state that was stale, mixed up or half moved at the moment it was used, and the final payload shows it at the end.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from keyshift.model.frames import EVENT_FIELDS
from keyshift.model.keys import ALL_UNITS, SomeUnits, UnitId
from keyshift.state import UnitState
from keyshift.workloads.contract import KeyedStage, Operator, Source
from keyshift.workloads.keyed import DRAWN_WITH, WORD, Draw, Keyed
from keyshift.workloads.operators import Work
from keyshift.workloads.times import Times

EVENTS = pa.schema(EVENT_FIELDS)


# -- what goes in ------------------------------------------------------------------------------------------------------


class KeyCountPartition:
    """See ``Partition``."""

    def __init__(self, workload: Keyed, router: int) -> None:
        self._draw = workload.key_draw(router)

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        keys = self._draw(len(times))
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

    def __init__(self, workload: "KeyCount", work_us: float | None = None) -> None:
        self._workload = workload
        self._work = Work(workload.work_us if work_us is None else work_us, workload.work_by)

    def initial(self, unit: int, state: UnitState) -> None:
        """Every key of ``unit``, with count 0, if keys exist from the start."""
        if self._workload.from_start:
            state.install([self._workload.fresh(unit, self.state_schema, (0,))])

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event. A key without state counts from 0; if it should have some, the verdict tells."""
        end_of_work = self._work.begin(events.num_rows)
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
        end_of_work()
        return pa.RecordBatch.from_arrays(
            [
                *(events.column(name) for name in ("key", "t", "position")),
                pa.array(np.array(counts, np.int64)),
                pa.array(np.array(stamps, np.int64)),
            ],
            names=["key", "t", "position", "count", "stamp"],
        )


# -- the workload ------------------------------------------------------------------------------------------------------


class KeyCount(Keyed):
    """Parameters of the workload. A key has count 0 when it begins to exist."""

    name: ClassVar[str] = "keycount"
    summary: ClassVar[str] = "count the events of each key, beside a payload of state_bytes per key"
    apart: ClassVar[bool] = True  # units are judged; of this class, not of those derived from it, which judge otherwise

    exist: Literal["from the start", "once used"] = Field(
        default="from the start",
        description="since when a key has state. With 'once used' any number of keys costs no memory: they come "
        "uniformly, as nobody knows which of them are in a key group (skew = 0)",
    )
    work_us: float = Field(
        default=0.0, ge=0, le=1e6, description="microseconds for which each event occupies its slot, at least"
    )
    work_by: Literal["waiting", "spinning"] = Field(
        default="waiting",
        description="how: waiting takes the slot but no core, like a call to another service; spinning takes a core",
    )

    _judged: SomeUnits = PrivateAttr(ALL_UNITS)

    @model_validator(mode="after")
    def _uniform(self) -> Self:
        if self.exist == "once used" and self.skew:
            raise ValueError(f"skew = {self.skew:g}: must be 0 with exist = once used, where keys come uniformly")
        return self

    @property
    def from_start(self) -> int:
        """How many keys have state before the first event."""
        return 0 if self.exist == "once used" else self.keys

    def key_draw(self, router: int) -> Draw:
        """Return where the keys of a router's events come from."""
        if self.from_start:
            return super().key_draw(router)
        random = np.random.default_rng((self.seed, router))
        return lambda count: (random.random(count) * self.keys).astype(np.int64)

    def only(self, units: SomeUnits) -> Self | None:
        """See ``Workload.only``."""
        if not vars(type(self)).get("apart"):
            return None
        some = self.model_copy()
        some._judged = units
        return some

    @property
    def judged_keys(self) -> npt.NDArray[np.int64]:
        """The keys that exist from the start, of those units that are judged."""
        return np.flatnonzero(self._judged.have(self.units))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Events that are nothing but a key."""
        return (Source("events", EVENTS, partial(KeyCountPartition, self), drawn_with=(*DRAWN_WITH, "exist")),)

    @property
    def stages(self) -> tuple[KeyedStage, ...]:
        """The counter."""
        return (KeyedStage("counter", EVENTS, RESULT_FIELDS, self.counter),)

    @property
    def told_us(self) -> float:
        """Microseconds that an event occupies slots, in all stages together."""
        return self.work_us

    def counter(self, work_us: float | None = None) -> KeyCountOperator:
        """Make what counts, and occupies its slot with each event, for ``work_us`` if not for that of all counters."""
        return KeyCountOperator(self, work_us)

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """See ``Workload.wrong``. One line per wrong result, then one per wrong key of the final state.

        Events of several routers have no single order, so any order of a key's events is right that keeps the order of
        each router: the counts of a key are 1..n, each once, growing along each router's events.
        """
        counts = KeyCounts(events["key"])
        yield from wrong_results(counts, results)
        yield from StateCheck(self, counts).whole(final)


# -- what must come out, told from the events: not by the code of the operator -----------------------------------------


class KeyCounts:
    """How many events each key has, of those in ``events``; as much memory as there are different ones."""

    def __init__(self, events: Any) -> None:
        self.keys, self._counts = np.unique(np.asarray(events, np.int64), return_counts=True)

    def of(self, keys: Any) -> npt.NDArray[np.int64]:
        """The counts of each of ``keys``; 0 for one that has none."""
        at, found = find_keys(self.keys, np.asarray(keys, np.int64))
        return np.where(found, np.append(self._counts, 0)[at], 0)


def find_keys(
    ascending: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Find where each of ``keys`` is in ``ascending``, and whether it is there at all."""
    at = np.searchsorted(ascending, keys)
    return at, (at < len(ascending)) & (np.append(ascending, 0)[at] == keys)


def wrong_results(counts: KeyCounts, results: pd.DataFrame) -> Iterator[str]:
    """One line for each result that cannot be. ``counts``: of the events of each key."""
    key, router, count, stamp = (results[c].to_numpy() for c in ("key", "router", "count", "stamp"))
    offered = counts.of(key)
    bad = (count < 1) | (count > offered) | (stamp != count - 1)
    order = np.lexsort((count, key))
    bad[order[1:]] |= (np.diff(key[order]) == 0) & (np.diff(count[order]) == 0)
    order = np.lexsort((results["position"], results["offset"], router, key))
    same = (np.diff(key[order]) == 0) & (np.diff(router[order]) == 0)
    bad[order[1:]] |= same & (np.diff(count[order]) <= 0)
    for row in np.flatnonzero(bad):
        r = results.iloc[row]
        yield (
            f"result of router {r.router} offset {r.offset} position {r.position}: key {r.key} has count"
            f" {r['count']} and stamp {r.stamp}; expected stamp = count - 1, and counts 1..{offered[row]}, each once,"
            " in event order"
        )


class StateCheck:
    """The final state of one counter, part by part: every key is in its unit, with the ``counts`` it must have."""

    def __init__(self, workload: KeyCount, counts: KeyCounts) -> None:
        self._workload = workload
        self._keys = workload.judged_keys if workload.from_start else counts.keys
        self._units, self._counts = workload.units_of(self._keys), counts.of(self._keys)
        self._seen = np.zeros(len(self._keys), dtype=np.int64)

    def wrong(self, part: pd.DataFrame) -> Iterator[str]:
        """One line for each key of ``part`` that is not as it must be."""
        workload = self._workload
        for rows in workload.slices(iter([part])):
            key, unit, count = (rows[c].to_numpy() for c in ("key", "unit", "count"))
            at, known = find_keys(self._keys, key)
            np.add.at(self._seen, at[known], 1)
            bad = ~known | workload.damaged(rows, count)
            bad[known] |= (self._units[at[known]] != unit[known]) | (self._counts[at[known]] != count[known])
            for row in np.flatnonzero(bad):
                home = at[row]
                expected = f"count {self._counts[home]} in unit {self._units[home]}" if known[row] else "no such key"
                yield (
                    f"final state of key {key[row]} in unit {unit[row]}, slot {rows['slot'].iloc[row]}: "
                    f"count {count[row]} and payload {rows['payload'].iloc[row][:16].hex()}...; expected {expected}"
                )

    def whole(self, final: Iterator[pd.DataFrame]) -> Iterator[str]:
        """One line for each key that is not as it must be, of all parts."""
        for part in final:
            yield from self.wrong(part)
        yield from self.missing()

    def missing(self) -> Iterator[str]:
        """One line for each key that was not seen once, behind all parts."""
        for place in np.flatnonzero(self._seen != 1):
            yield f"final state of key {self._keys[place]}: in {self._seen[place]} places, expected 1"
