"""Copies of units, made before they move: the whole once, then what changed, off the processing thread.

When the unit moves to where its copy is, only what changed since has to travel (Rhino; Spacker resends the whole unit
if anything in it has changed).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from keyshift.errors import ServiceUnavailable
from keyshift.executor.slot_host import SLICE_KEYS
from keyshift.executor.transfer import Parcel, StateClients
from keyshift.state import UnitState, rows


@dataclass(slots=True)
class _Copy:
    holder: int
    number: int = -1  # of the last part that is there
    pending: set[int] = field(default_factory=set)  # keys of the part that is on its way, perhaps


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    every_s: float
    lag_keys: int
    whole: bool


class Replicator:
    """The copies of the units of one slot. ``acknowledge(request, measures)`` is called once, when all are close."""

    def __init__(
        self,
        state_schema: pa.Schema,
        clients: StateClients,
        states: dict[int, UnitState],
        lock: threading.Lock,
        address_of: Callable[[int], str],
        acknowledge: Callable[[str, dict[str, Any]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._schema = state_schema  # with the key
        self._clients, self._states, self._lock = clients, states, lock
        self._address_of, self._acknowledge, self._failed = address_of, acknowledge, failed
        self._copies: dict[int, _Copy] = {}
        self._request: _Request | None = None
        self._closed = threading.Event()
        self._bytes = 0

    def start(self, request: str, units: list[tuple[int, int]], every_s: float, lag_keys: int, whole: bool) -> None:
        """Keep a copy of each unit at its holder from now on; under the slot's lock.

        It is close when a round over all of them had at most ``lag_keys`` changed keys; ``every_s`` between rounds.
        """
        if self._request is not None and self._request.id == request:
            return
        begin = self._request is None
        self._request = _Request(request, every_s, lag_keys, whole)
        self._copies = {unit: _Copy(holder) for unit, holder in units if unit in self._states}
        for unit in self._copies:
            self._states[unit].track()
        if begin:
            threading.Thread(target=self._work, name="keyshift-copies", daemon=True).start()

    def shrink(self, parcel: Parcel, destination: int) -> Parcel:
        """The unit leaves: only what changed, if its copy is where it goes; under the slot's lock."""
        copy = self._copies.pop(parcel.unit, None)
        if copy is None or copy.holder != destination or copy.number < 0 or parcel.routers is not None:
            return parcel
        assert parcel.state is not None and self._request is not None
        changed = parcel.state.changes() | copy.pending
        if changed and self._request.whole:
            return parcel
        return replace(parcel, delta_of=copy.number, changed=frozenset(changed))

    def forget(self, unit: int) -> None:
        """The unit is gone."""
        self._copies.pop(unit, None)

    def close(self) -> None:
        """Stop."""
        self._closed.set()

    def _work(self) -> None:
        told, rounds, began = "", 0, time.time_ns() // 1000
        try:
            while not self._closed.is_set():
                request = self._request
                assert request is not None
                rounds += 1
                changed = sum(self._round(unit) for unit in list(self._copies))
                if told != request.id and changed <= request.lag_keys and rounds > 1:
                    told = request.id
                    answer = {"began_us": began, "rounds": rounds, "bytes": self._bytes, "units": len(self._copies)}
                    self._acknowledge(request.id, answer)
                self._closed.wait(0.0 if told != request.id and rounds == 1 else request.every_s)
        except BaseException as error:
            if not self._closed.is_set():
                self._failed(error)

    def _round(self, unit: int) -> int:
        """Bring one copy up to date; how many keys that took."""
        with self._lock:
            copy, state = self._copies.get(unit), self._states.get(unit)
            if copy is None or state is None:
                return 0
            first = copy.number < 0
            changes = state.changes() | copy.pending
            keys = state.keys() if first else sorted(changes)
            copy.pending = changes
        if not keys and not first:
            return 0
        batches, gone = [], []
        for begin in range(0, len(keys), SLICE_KEYS):
            with self._lock:  # what leaves meanwhile is not ours to read any more
                if self._states.get(unit) is not state:
                    return 0
                part = keys[begin : begin + SLICE_KEYS]
                found = rows.take(state, part)
            batches.append(rows.pack(self._schema, found))
            gone += sorted(set(part) - {key for key, _ in found})
        try:
            self._clients.copy(self._address_of(copy.holder), copy.holder, unit, copy.number + 1, batches, gone)
        except ServiceUnavailable:  # the holder is gone or has begun anew: so does the copy
            with self._lock:
                copy.number, copy.pending = -1, set()
            return len(keys)
        with self._lock:
            copy.number, copy.pending = copy.number + 1, set()
            self._bytes += sum(batch.nbytes for batch in batches)
        return len(keys)
