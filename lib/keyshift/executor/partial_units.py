"""Units whose ownership came to a slot without their keys: asks for keys, holds records back, writes back.

``protocol.remainder`` decides; here are the rows, the threads and the state. All public methods but ``close`` are to be
called under the slot's lock.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from keyshift.executor.flight.client import StateClients
from keyshift.executor.flight.messages import Parcel, Stay, Written
from keyshift.executor.outbox import Courier
from keyshift.executor.slot_host import SLICE_KEYS, SlotHost
from keyshift.keys import Mode
from keyshift.protocol.remainder import Remainders
from keyshift.state import UnitState, rows
from keyshift.state.timers import EVENT, PROCESSING

Record = tuple[pa.RecordBatch, Any]  # events of one unit, and where they came from
RECORD_BYTES = 2048  # of memory for a record that waits, beside its rows: measured, between 1.6 and 3.4 KiB


@dataclass(frozen=True, slots=True)
class _Home:
    address: str
    mode: Mode
    stay: Stay


@dataclass(frozen=True, slots=True)
class _Errand:
    """Something to be done at a home: to fetch ``keys``, to write what changed, to fetch the rest, to drop it all."""

    stay: Stay
    what: Literal["fetch", "write", "rest", "drop"]
    keys: tuple[int, ...] = ()


class PartialUnits:
    """The partial units of one slot; false if there is none."""

    def __init__(
        self,
        host: SlotHost,
        clients: StateClients,
        states: dict[int, UnitState],
        lock: Lock,
        uses_time: bool,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._uses_time = uses_time
        self._host, self._clients, self._states, self._lock, self._failed = host, clients, states, lock, failed
        self._remainders: Remainders[Record] = Remainders()
        self._homes: dict[int, _Home] = {}
        # If time counts, records wait in the order of their unit: for their own key, or that of a timer that is due.
        self._stalled: dict[int, deque[Record]] = {}
        self._stalled_bytes = 0
        # Keys whose value at home is old, with the numbers of their last changes; an errand to write them is queued.
        self._unwritten: dict[Stay, dict[int, int]] = {}
        self._changes = itertools.count(1)
        self._rests: dict[Stay, int | None] = {}  # that are to come: the last key that has, as they come ascending
        self._moved: dict[str, list[tuple[int, int, list[int]]]] = {}  # address -> keys that it need not keep
        self._couriers: dict[str, Courier[_Errand]] = {}
        self._fetched_bytes = self._fetched_keys = self._written_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._homes)

    @property
    def waiting_bytes(self) -> int:
        """Memory of the records that wait for keys, about."""
        return self._remainders.waiting * RECORD_BYTES + self._stalled_bytes

    def open(self, parcel: Parcel, mode: Mode) -> None:
        """A unit has come without its keys."""
        self._remainders.open(parcel.unit)
        self._homes[parcel.unit] = _Home(parcel.home, mode, (parcel.unit, parcel.version))

    def opened(self, unit: int, state: UnitState) -> None:
        """Its state is in place now."""
        home = self._homes[unit]
        if home.mode.transfer == "remote":
            state.track()
        if home.mode.background:
            self.fetch_rest(unit)

    def hold_back(self, events: pa.RecordBatch, where: Any, watermark: int, now_us: int) -> pa.RecordBatch:
        """The events that can be processed now; the others wait for their keys, and for those of due timers."""
        units, keys = events["unit"].to_numpy(), events["key"].to_numpy()
        ready = np.ones(len(units), bool)
        waiting: list[int] = []  # rows, of records that wait for their own key
        for unit in [unit for unit in np.unique(units).tolist() if unit in self._remainders]:
            stalls = self._uses_time and not self.may_advance(unit, watermark, now_us)
            its_rows = np.flatnonzero(units == unit)
            if self._uses_time:
                if self._lacks(unit, set(keys[its_rows].tolist())) or stalls:
                    record = events.take(pa.array(its_rows))
                    self._stalled.setdefault(unit, deque()).append((record, where))
                    self._stalled_bytes += record.nbytes + RECORD_BYTES
                    ready[its_rows] = False
                continue
            missing = self._remainders.admit(unit, keys[its_rows].tolist())
            waiting += (row for row in its_rows.tolist() if keys[row] in missing)
        if waiting:
            held = events.take(pa.array(waiting))  # a slice of the events would keep all of them in memory
            for at, row in enumerate(waiting):
                self._remainders.hold(int(units[row]), int(keys[row]), (held.slice(at, 1), where))
            ready[waiting] = False
        return events if ready.all() else events.filter(pa.array(ready))

    def may_advance(self, unit: int, watermark: int, now_us: int) -> bool:
        """Whether no record of ``unit`` waits, and the keys of all timers that are due are here (asked for if not)."""
        return unit not in self._stalled and not self._misses_timers(unit, watermark, now_us)

    def _misses_timers(self, unit: int, watermark: int, now_us: int) -> bool:
        timers = self._states[unit].timers
        return self._lacks(unit, timers.keys_due(EVENT, watermark) | timers.keys_due(PROCESSING, now_us))

    def _lacks(self, unit: int, keys: AbstractSet[int]) -> bool:
        """Whether any of ``keys`` is elsewhere; then it is asked for."""
        if unit not in self._remainders:
            return False
        missing = self._remainders.lacks(unit, keys)
        for key in missing:
            self._remainders.want(unit, key)
        return bool(missing)

    def used(self, units: Iterable[int]) -> None:
        """These units were worked on: what changed of keys that live elsewhere is written back."""
        for unit in units:
            home = self._homes.get(unit)
            if home is None or home.mode.transfer != "remote" or not (changed := self._states[unit].changes()):
                continue
            self._remainders.arrived(unit, changed)  # new keys are here, and known
            unwritten = self._unwritten.setdefault(home.stay, {})
            if not unwritten:
                self._at(home).send(_Errand(home.stay, "write"))
            unwritten |= dict.fromkeys(changed, next(self._changes))

    def ask(self) -> None:
        """Ask for the keys that records began to wait for since the last call."""
        if not self._homes:
            return
        for unit, keys in self._remainders.requests().items():
            home = self._homes[unit]
            self._at(home).send(_Errand(home.stay, "fetch", tuple(keys)))

    def fetch_rest(self, unit: int) -> None:
        """Ask for all keys that are still elsewhere, once."""
        if self._remainders.fetch_rest(unit):
            home = self._homes[unit]
            self._rests[home.stay] = None
            self._at(home).send(_Errand(home.stay, "rest"))

    def drain(self, most: int, now_us: int) -> tuple[list[Record], list[int]]:
        """Records to be processed now and in this order, about ``most``; and the units that are whole after them."""
        if not self._homes:
            return [], []
        records, whole = self._remainders.drain(most)
        for unit, queue in list(self._stalled.items()):
            while queue and not self._waits(unit, queue[0], now_us):
                record = queue.popleft()
                records.append(record)
                self._stalled_bytes -= record[0].nbytes + RECORD_BYTES
                if unit in self._remainders:
                    break  # what this record does to its unit decides about the next one
            if not queue:
                del self._stalled[unit]
        for unit in whole:
            home = self._homes.pop(unit)
            self._unwritten.pop(home.stay, None)  # all is here: nobody reads there any more
            self._at(home).send(_Errand(home.stay, "drop"))
        return records, whole

    def _waits(self, unit: int, record: Record, now_us: int) -> bool:
        events, (*_, watermark) = record
        return self._lacks(unit, set(events["key"].to_pylist())) or self._misses_timers(unit, watermark, now_us)

    def measures(self) -> dict[str, int]:
        """What went over the wire, apart from whole units."""
        return {
            "fetched_bytes": self._fetched_bytes,
            "fetched_keys": self._fetched_keys,
            "written_bytes": self._written_bytes,
        }

    def close(self) -> None:
        """Stop the threads."""
        for courier in self._couriers.values():
            courier.close()

    # -- the couriers' threads ----------------------------------------------------------------------------------------

    def _at(self, home: _Home) -> Courier[_Errand]:
        if home.address not in self._couriers:

            def run(errands: list[_Errand]) -> None:
                self._run(home.address, errands)

            pause_s = home.mode.fetch_interval_ms / 1000
            self._couriers[home.address] = Courier(f"keys of {home.address}", run, self._failed, pause_s)
        return self._couriers[home.address]

    def _run(self, address: str, errands: list[_Errand]) -> None:
        """May break anywhere and be called again: nothing is taken away there before it is here, and what has come or
        gone by then is not asked for or given again.
        """
        asked = [(*e.stay, list(e.keys)) for e in errands if e.what == "fetch"]
        with self._lock:
            news = list(self._news(dict.fromkeys(e.stay for e in errands if e.what == "write")))
        if news or asked:
            moved = self._moved.get(address, [])
            answer = self._clients.keys(address, asked, moved, [written for written, _ in news])
            self._moved[address] = []
            with self._lock:
                self._fetched_bytes += answer.nbytes
                self._written_bytes += answer.written_bytes
                for (stay, *_), changes in news:
                    self._written(stay, changes)
                for found, (unit, version, keys) in zip(answer.found, asked, strict=True):
                    if self._arrived((unit, version), keys, found):
                        self._moved[address].append((unit, version, keys))
        errands[:] = [e for e in errands if e.what in ("rest", "drop")]
        if rests := [(e.stay, self._rests[e.stay]) for e in errands if e.what == "rest" and e.stay in self._rests]:
            self._clients.rest(address, rests, self._rest_arrived)
        if done := [e.stay for e in errands if e.what == "drop"]:
            self._clients.tell(address, "drop", {"stays": done})

    def _news(self, stays: Iterable[Stay]) -> Iterator[tuple[Written, dict[int, int]]]:
        """The values to be written back, as they are now, and the numbers of their changes; a slice of each unit."""
        for stay in stays:
            if (unwritten := self._unwritten.get(stay)) is None:
                continue
            changes = dict(itertools.islice(unwritten.items(), SLICE_KEYS))
            found = rows.take(self._states[stay[0]], changes)
            yield (stay, sorted(changes.keys() - {key for key, _ in found}), found), changes

    def _arrived(self, stay: Stay, keys: list[int], found: Iterable[rows.Row]) -> bool:
        """Whether the keys live here from now on."""
        unit, home = stay[0], self._homes.get(stay[0])
        if home is None or home.stay != stay:
            return False
        self._install(unit, self._remainders.lacks(unit, keys), found)
        self._remainders.arrived(unit, keys)
        return home.mode.transfer == "access"

    def _install(self, unit: int, lacking: set[int], found: Iterable[rows.Row]) -> None:
        state = self._states[unit]
        for key, value in found:
            self._fetched_keys += 1
            if key in lacking:
                state.values[key] = value
        if self._homes[unit].mode.transfer == "remote":
            state.changes()  # what came is not what has to be written back

    def _rest_arrived(self, stay: Stay, batch: pa.RecordBatch, last: bool) -> None:
        """A slice at a time: nobody waits long for the lock."""
        unit, keys = stay[0], batch["key"].to_pylist()
        with self._lock:
            home = self._homes.get(unit)
            if home is None or home.stay != stay:
                return
            self._fetched_bytes += batch.nbytes
            self._install(unit, self._remainders.lacks(unit, keys), rows.unpack(batch))
            self._remainders.arrived(unit, keys)
            if last:
                del self._rests[stay]
                self._remainders.arrived_whole(unit)
            elif keys:
                self._rests[stay] = keys[-1]

    def _written(self, stay: Stay, changes: dict[int, int]) -> None:
        unit, home = stay[0], self._homes.get(stay[0])
        if home is None or home.stay != stay:
            return
        unwritten = self._unwritten[stay]
        written = [key for key, change in changes.items() if unwritten[key] == change]
        for key in written:
            del unwritten[key]
        if unwritten:
            self._at(home).send(_Errand(stay, "write"))
        if home.mode.cache:
            return
        state = self._states[unit]
        for key in self._remainders.evict(unit, written):
            state.delete(key)
        state.changes()
