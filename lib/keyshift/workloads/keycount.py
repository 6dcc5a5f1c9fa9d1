"""Key count: count the events of each key, beside a payload of a chosen size. The plainest job that has state.

The payload begins with the count, so a result that carries the count read back from the payload (``stamp``) shows
state that was stale, mixed up or half moved at the moment it was used, and the final payload shows it at the end.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from keyshift.frames import EVENT_FIELDS
from keyshift.keys import hash_keys, units_of
from keyshift.state import UnitState

_WORD = 8  # bytes of the count, and of the key, at the beginning of a payload
_SLICE_BYTES = 1 << 25  # payloads are made and compared this many bytes at a time


class KeyCount(BaseModel):
    """Parameters of the workload; every key exists from the beginning, with count 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str] = "keycount"
    summary: ClassVar[str] = "count the events of each key, beside a payload of state_bytes per key"
    event_schema: ClassVar[pa.Schema] = pa.schema(EVENT_FIELDS)
    result_fields: ClassVar[tuple[pa.Field, ...]] = (
        pa.field("count", pa.int64()),  # events of the key so far, this one included
        pa.field("stamp", pa.int64()),  # the count in the payload before this event
    )

    key_groups: int = Field(ge=1, description="number of key groups")
    bins: int = Field(default=1, ge=1, description="bins per key group; a unit of migration is a bin")
    keys: int = Field(ge=1, description="number of keys: 0 to keys - 1")
    skew: float = Field(ge=0, description="Zipf exponent over key groups, 0 is uniform")
    state_bytes: int = Field(ge=2 * _WORD, description="bytes of payload per key")
    seed: int = Field(ge=0, description="seed of the events drawn")

    def operator(self) -> "KeyCountOperator":
        """A new operator, for one slot."""
        return KeyCountOperator(self)

    def source(self, router: int) -> "KeyCountSource":
        """The input of one router."""
        return KeyCountSource(self, router)

    @cached_property
    def units(self) -> npt.NDArray[np.int32]:
        """The unit of every key: shape (keys,)."""
        return units_of(np.arange(self.keys), self.key_groups, self.bins)

    @cached_property
    def _by_unit(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Keys ordered by unit (ascending within one), and where each unit's keys begin and end."""
        ends = np.cumsum(np.bincount(self.units, minlength=self.key_groups * self.bins))
        return np.argsort(self.units, kind="stable"), np.concatenate([[0], ends])

    def keys_of(self, unit: int) -> npt.NDArray[np.int64]:
        """The keys of one unit, ascending."""
        keys, bounds = self._by_unit
        return keys[bounds[unit] : bounds[unit + 1]]

    def payloads(self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The payload of each key at each count: shape (n, state_bytes): count, key, filler that depends on the key."""
        words = -(-self.state_bytes // _WORD)
        rows = np.empty((len(keys), words), dtype="<u8")
        rows[:, 0] = counts
        rows[:, 1] = keys
        rows[:, 2:] = hash_keys(keys[:, None] * words + np.arange(2, words))
        return rows.view(np.uint8)[:, : self.state_bytes]

    def wrong(self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame]) -> Iterator[str]:
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
        rows = max(1, _SLICE_BYTES // self.state_bytes)
        for whole in final:
            for start in range(0, len(whole), rows):
                part = whole.iloc[start : start + rows]
                key, unit, count = (part[c].to_numpy() for c in ("key", "unit", "count"))
                known = (key >= 0) & (key < self.keys)
                home = np.where(known, key, 0)
                np.add.at(seen, key[known], 1)
                bad = ~known | (self.units[home] != unit) | (counts[home] != count) | self._differs(part)
                for row in np.flatnonzero(bad):
                    k = key[row]
                    expected = f"count {counts[k]} in unit {self.units[k]}" if known[row] else "no such key"
                    yield (
                        f"final state of key {k} in unit {unit[row]}, slot {part['slot'].iloc[row]}: count {count[row]}"
                        f" and payload {part['payload'].iloc[row][:16].hex()}...; expected {expected}"
                    )
        for k in np.flatnonzero(seen != 1):
            yield f"final state of key {k}: in {seen[k]} places, expected 1"

    def _differs(self, part: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Which payloads are not exactly those that their own key and count should have."""
        payloads = part["payload"]
        bad = (payloads.str.len() != self.state_bytes).to_numpy(copy=True)
        good = part[~bad]
        found = np.frombuffer(b"".join(good["payload"]), np.uint8).reshape(len(good), self.state_bytes)
        bad[~bad] = (found != self.payloads(good["key"].to_numpy(), good["count"].to_numpy())).any(axis=1)
        return bad


class KeyCountOperator:
    """Counts, one event after the other; see ``Operator``."""

    state_schema = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])

    def __init__(self, workload: KeyCount) -> None:
        self._workload = workload

    def initial(self, unit: int, state: UnitState) -> None:
        """Every key of ``unit``, with count 0."""
        keys = self._workload.keys_of(unit)
        for key, payload in zip(keys.tolist(), self._workload.payloads(keys, np.zeros_like(keys)), strict=True):
            state.put(key, (0, payload.tobytes()))

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState], watermark: int) -> pa.RecordBatch:
        """One result per event. A key whose state is missing counts from 0: the verdict tells, the job goes on."""
        counts, stamps = [], []
        for key, unit in zip(
            events.column("key").to_numpy().tolist(), events.column("unit").to_numpy().tolist(), strict=True
        ):
            state = state_of(unit)
            count, payload = state.get(key) or self._fresh(key)
            stamps.append(int.from_bytes(payload[:_WORD], "little"))
            count += 1
            state.put(key, (count, count.to_bytes(_WORD, "little") + payload[_WORD:]))
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


class KeyCountSource:
    """Key groups from a Zipf distribution, the keys of a group in turn; see ``Source``."""

    def __init__(self, workload: KeyCount, router: int) -> None:
        groups = units_of(np.arange(workload.keys), workload.key_groups)
        self._keys = np.argsort(groups, kind="stable")  # ordered by group
        self._sizes = np.bincount(groups, minlength=workload.key_groups)
        self._begin = np.cumsum(self._sizes) - self._sizes
        weights = (self._sizes > 0) / np.arange(1, workload.key_groups + 1) ** workload.skew
        self._cumulated = np.cumsum(weights) / weights.sum()
        self._cumulated /= self._cumulated[-1]  # exactly 1 at the end, so that no draw falls behind it
        self._random = np.random.default_rng((workload.seed, router))
        # Every router begins elsewhere in each group, or all routers would walk the keys in step.
        self._turn = self._random.integers(0, np.maximum(self._sizes, 1))

    def take(self, times: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """The next ``len(times)`` events, whatever was taken at once before."""
        drawn = np.searchsorted(self._cumulated, self._random.random(len(times)), side="right")
        counts = np.bincount(drawn, minlength=len(self._sizes))
        nth = np.empty(len(times), np.int64)  # how many events of the same group come before, in this chunk
        nth[np.argsort(drawn, kind="stable")] = np.arange(len(times)) - np.repeat(np.cumsum(counts) - counts, counts)
        within = (self._turn[drawn] + nth) % self._sizes[drawn]
        self._turn += counts
        keys = self._keys[self._begin[drawn] + within]
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(times)], schema=KeyCount.event_schema)
