"""What workloads over a fixed set of keys have in common: their parameters, a payload per key, and which keys come.

Every key exists from the beginning; its payload gives the state the wanted size and can be checked byte for byte.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from keyshift.model.keys import MAX_UNITS, SomeUnits, hash_keys, units_of

DRAWN_WITH = ("key_groups", "seed", "keys", "skew")  # what the keys of ``Keyed`` depend on
WORD = 8  # bytes of the count, and of the key, at the beginning of a payload
INDEX_BYTES = 32  # of a key, in each process that has to know which keys there are
MOST_DELAY_MS = 86_400_000  # a day
MOST_MS = 365 * MOST_DELAY_MS  # of windows and gaps: times have 64 bits of microseconds
_UNIT_BYTES = (1 << 31) - 1  # of payloads in a unit: Arrow's offsets within a column have 32 bits
_FEW_KEYS = 1 << 22  # that are counted by their units in a moment
_MOST_KEYS = 1 << 53  # of more a draw, which has so many bits, would leave some out
_SLICE_BYTES = 1 << 25  # payloads are made and compared this many bytes at a time
Draw = Callable[[int], npt.NDArray[np.int64]]  # gives the next so many keys, whatever was drawn at once before


class Grouped(BaseModel):
    """Parameters of every workload. A user sets all but ``bins``, which the strategy says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_groups: int = Field(default=128, ge=1, le=MAX_UNITS, description="number of key groups")
    seed: int = Field(default=1, ge=0, description="seed of the events")
    bins: int = Field(default=1, ge=1, description="bins per key group; a unit of migration is a bin")

    def units_of(self, keys: npt.NDArray[np.int64] | pd.Series) -> npt.NDArray[np.int32]:
        """The unit of each of ``keys``."""
        return units_of(np.asarray(keys, np.int64), self.key_groups, self.bins)

    def only(self, units: SomeUnits) -> Self | None:
        """See ``Workload.only``."""
        return None


class Keyed(Grouped):
    """Parameters, and what follows from them."""

    keys: int = Field(default=20_000, ge=1, le=_MOST_KEYS, description="number of distinct keys")
    skew: float = Field(default=0.8, ge=0, le=10, description="Zipf exponent over key groups; 0 is uniform")
    state_bytes: int = Field(default=1024, ge=2 * WORD, le=1 << 26, description="bytes of state per key")

    @model_validator(mode="after")
    def _units_have_room(self) -> Self:
        most = _UNIT_BYTES // self.state_bytes
        if self.from_start > most and (largest := self._largest_unit()) > most:
            or_once = ", or take exist = 'once used'" if "exist" in type(self).model_fields else ""
            raise ValueError(
                f"key_groups = {self.key_groups}: with keys = {self.keys} and state_bytes = {self.state_bytes} a unit "
                f"has up to {largest * self.state_bytes / (1 << 30):.2f} GiB of keys, and has room for less than 2 "
                f"GiB; raise key_groups, or lower keys or state_bytes{or_once}"
            )
        return self

    def _largest_unit(self) -> int:
        """Say how many keys the largest unit has, at most: very many keys are not looked at one by one."""
        units = self.key_groups * self.bins
        if self.keys <= _FEW_KEYS:
            return int(np.bincount(self.units_of(np.arange(self.keys)), minlength=units).max())
        mean = self.keys / units
        return round(mean + 10 * sqrt(mean) + 10)  # hashed: ten standard deviations are more than any unit has

    def key_draw(self, router: int) -> Draw:
        """Return where the keys of a router's events come from."""
        groups = units_of(np.arange(self.keys), self.key_groups)
        return KeyDraw(groups, self.key_groups, self.skew, (self.seed, router)).draw

    @property
    def from_start(self) -> int:
        """How many keys have state before the first event."""
        return self.keys

    @cached_property
    def units(self) -> npt.NDArray[np.int32]:
        """The unit of every key: shape (keys,)."""
        return self.units_of(np.arange(self.keys))

    @cached_property
    def _by_unit(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Keys ordered by unit (ascending within one), and where each unit's keys begin and end."""
        ends = np.cumsum(np.bincount(self.units, minlength=self.key_groups * self.bins))
        return np.argsort(self.units, kind="stable"), np.concatenate([[0], ends])

    def payloads(self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The payload of each key at each count: shape (n, state_bytes): count, key, filler that depends on the key."""
        words = -(-self.state_bytes // WORD)
        rows = np.empty((len(keys), words), dtype="<u8")
        rows[:, 0] = counts
        rows[:, 1] = keys
        rows[:, 2:] = hash_keys(keys[:, None] * words + np.arange(2, words))
        return rows.view(np.uint8)[:, : self.state_bytes]

    def fresh_payload(self, key: int) -> bytes:
        """The payload of a key at count 0."""
        return self.payloads(np.array([key]), np.array([0])).tobytes()

    def fresh(self, unit: int, schema: pa.Schema, value: Sequence[Any]) -> pa.RecordBatch:
        """Every key of ``unit`` with ``value`` and the payload of count 0, as a state installs it.

        As columns, so that a key which no event ever touches costs nothing but its bytes.
        """
        all_keys, bounds = self._by_unit
        keys = all_keys[bounds[unit] : bounds[unit + 1]]
        payloads = self.payloads(keys, np.zeros_like(keys))
        ends = pa.py_buffer(np.arange(len(keys) + 1, dtype=np.int32) * self.state_bytes)
        payload = pa.Array.from_buffers(pa.binary(), len(keys), [None, ends, pa.py_buffer(payloads.tobytes())])
        columns = [pa.array([part] * len(keys), field.type) for part, field in zip(value, schema, strict=False)]
        whole = pa.schema([pa.field("key", pa.int64()), *schema])
        return pa.RecordBatch.from_arrays([pa.array(keys), *columns, payload], schema=whole)

    def slices(self, final: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The final state in parts whose payloads are a few tens of MiB at most."""
        rows = max(1, _SLICE_BYTES // self.state_bytes)
        for whole in final:
            for start in range(0, len(whole), rows):
                yield whole.iloc[start : start + rows]

    def damaged(self, part: pd.DataFrame, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Find which payloads of a part are not exactly those of their key at that count."""
        payloads = part["payload"]
        bad = (payloads.str.len() != self.state_bytes).to_numpy(copy=True)
        good = part[~bad]
        found = np.frombuffer(b"".join(good["payload"]), np.uint8).reshape(len(good), self.state_bytes)
        bad[~bad] = (found != self.payloads(good["key"].to_numpy(), counts[~bad])).any(axis=1)
        return bad


class KeyDraw:
    """Key groups from a Zipf distribution, the keys of a group in turn. Every router draws its own.

    ``groups``: the key group of each thing that is drawn by its number.
    """

    def __init__(self, groups: npt.NDArray[np.int32], key_groups: int, skew: float, seed: tuple[int, ...]) -> None:
        self._keys = np.argsort(groups, kind="stable")  # ordered by group
        self._sizes = np.bincount(groups, minlength=key_groups)
        self._begin = np.cumsum(self._sizes) - self._sizes
        weights = (self._sizes > 0) / np.arange(1, key_groups + 1) ** skew
        self._cumulated = np.cumsum(weights) / weights.sum()
        self._cumulated /= self._cumulated[-1]  # exactly 1 at the end, so that no draw falls behind it
        self._random = np.random.default_rng(seed)
        # Every router begins elsewhere in each group, or all routers would walk the keys in step.
        self._turn = self._random.integers(0, np.maximum(self._sizes, 1))

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers of the next ``count`` events, whatever was drawn at once before."""
        drawn = np.searchsorted(self._cumulated, self._random.random(count), side="right")
        counts = np.bincount(drawn, minlength=len(self._sizes))
        nth = np.empty(count, np.int64)  # how many events of the same group come before, in this chunk
        nth[np.argsort(drawn, kind="stable")] = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
        within = (self._turn[drawn] + nth) % self._sizes[drawn]
        self._turn += counts
        return self._keys[self._begin[drawn] + within]
