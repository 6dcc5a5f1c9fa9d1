"""Access to the keys of partial units, whose ownership came to a slot without them.

Records that miss a key are held back, the key is asked for at its *home*, and what changed is written back there. Which
keys are here, ``protocol.absent_keys`` knows. What has to be done at a home goes out as an errand; whoever carries it
says what has come of it.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, Literal

import numpy as np

from keyshift.model.keys import Mode, UnitId, Version
from keyshift.protocol.absent_keys import AbsentKeys
from keyshift.runtime.operator import Events, FrameOperator, WaitingRecord, Where
from keyshift.state import UnitState, rows
from keyshift.state.timers import EVENT, PROCESSING

# A unit, and the version with which its ownership left the place where its keys still are.
Stay = tuple[UnitId, Version]
WrittenKeys = tuple[Stay, list[int], list[rows.KeyValue]]  # keys that are deleted, and those that have new values
ChangeNumbers = dict[int, int]  # key -> number of its last change

RECORD_BYTES = 2048  # of memory for a record that waits, beside its rows: measured, between 1.6 and 3.4 KiB
HOME = "home"  # of whom the changes are tracked for that are to be written back
SLICE_KEYS = 256  # read from or written to live state at a time, so that nobody waits long for it


@dataclass(frozen=True, slots=True)
class Home:
    """Where the keys of a partial unit are: an ``address`` that the shell knows."""

    address: Any
    mode: Mode
    stay: Stay


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to be done at a home: to fetch ``keys``, to write what changed, to fetch the rest, to drop it all.

    Errands for one address are carried in their order, those of one kind together if several wait. One that fails is
    carried again.
    """

    home: Home
    what: Literal["fetch", "write", "rest", "drop"]
    keys: tuple[int, ...] = ()


class KeyAccess(Generic[Events]):
    """The key access of one slot; false without partial units. ``errands``: those not given to the shell yet."""

    def __init__(
        self,
        operator: FrameOperator[Events, Any],
        states: dict[UnitId, UnitState],
        absent: AbsentKeys[WaitingRecord[Events]] | None = None,
    ) -> None:
        self._operator, self._states = operator, states
        self._absent: AbsentKeys[WaitingRecord[Events]] = absent or AbsentKeys()
        self._homes: dict[UnitId, Home] = {}
        # If time counts, records wait in the order of their unit: for their own key, or that of a timer that is due.
        self._stalled: dict[UnitId, deque[WaitingRecord[Events]]] = {}
        self._stalled_bytes = 0
        # Keys whose value at home is old, with the numbers of their last changes; an errand to write them is queued.
        self._unwritten: dict[Stay, ChangeNumbers] = {}
        self._changes = itertools.count(1)
        self._rests: dict[Stay, int | None] = {}  # that are to come: the last key that has, as they come ascending
        self.errands: list[Errand] = []

    def __bool__(self) -> bool:
        return bool(self._homes)

    @property
    def waiting_bytes(self) -> int:
        """Memory of the records that wait for keys, about."""
        return self._absent.waiting * RECORD_BYTES + self._stalled_bytes

    # -- the slot asks ------------------------------------------------------------------------------------------------

    def open(self, home: Home) -> None:
        """Begin with a unit that has come without its keys; its state is in place."""
        unit = home.stay[0]
        self._absent.open(unit)
        self._homes[unit] = home
        if home.mode.transfer == "remote":
            self._states[unit].track(HOME)
        if home.mode.background:
            self.fetch_rest(unit)

    def hold_back(self, events: Events, where: Where, watermark: int, now_us: int) -> Events | None:
        """The events that can be processed now; the others wait for their keys, and for those of due timers."""
        units, keys = self._operator.units(events), self._operator.keys(events)
        ready, waiting = np.ones(len(units), bool), np.zeros(len(units), bool)  # waiting: for their own key
        for unit in [unit for unit in np.unique(units).tolist() if unit in self._absent]:
            its = units == unit
            if self._operator.uses_time:
                stalls = not self.may_advance(unit, watermark, now_us)
                if self._lacks(unit, set(keys[its].tolist())) or stalls:
                    record = self._operator.filter(events, its)
                    self._stalled.setdefault(unit, deque()).append((record, where))
                    self._stalled_bytes += self._operator.nbytes(record) + RECORD_BYTES
                    ready &= ~its
            elif missing := self._absent.admit(unit, keys[its].tolist()):
                waiting |= its & np.isin(keys, list(missing))
        if waiting.any():  # by themselves, as parts of the events would keep all of them in memory
            held = self._operator.one_by_one(self._operator.filter(events, waiting))
            for unit, key, event in zip(units[waiting].tolist(), keys[waiting].tolist(), held, strict=True):
                self._absent.hold(unit, key, (event, where))
            ready &= ~waiting
        if ready.all():
            return events
        return self._operator.filter(events, ready) if ready.any() else None

    def may_advance(self, unit: UnitId, watermark: int, now_us: int) -> bool:
        """Whether no record of ``unit`` waits, and the keys of all timers that are due are here (asked for if not)."""
        return unit not in self._stalled and not self._misses_timers(unit, watermark, now_us)

    def _misses_timers(self, unit: UnitId, watermark: int, now_us: int) -> bool:
        timers = self._states[unit].timers
        return self._lacks(unit, timers.keys_due(EVENT, watermark) | timers.keys_due(PROCESSING, now_us))

    def _lacks(self, unit: UnitId, keys: AbstractSet[int]) -> bool:
        """Whether any of ``keys`` is elsewhere; then it is asked for."""
        if unit not in self._absent:
            return False
        missing = self._absent.lacks(unit, keys)
        for key in missing:
            self._absent.want(unit, key)
        return bool(missing)

    def used(self, units: Iterable[UnitId]) -> None:
        """Write back what changed in these units, which were worked on, of keys that live elsewhere."""
        for unit in units:
            home = self._homes.get(unit)
            if home is None or home.mode.transfer != "remote" or not (changed := self._states[unit].changed_keys(HOME)):
                continue
            self._absent.arrived(unit, changed)  # new keys are here, and known
            unwritten = self._unwritten.setdefault(home.stay, {})
            if not unwritten:
                self.errands.append(Errand(home, "write"))
            unwritten |= dict.fromkeys(changed, next(self._changes))

    def ask(self) -> None:
        """Ask for the keys that records began to wait for since the last call."""
        if self._homes:
            for unit, keys in self._absent.requests().items():
                self.errands.append(Errand(self._homes[unit], "fetch", tuple(keys)))

    def fetch_rest(self, unit: UnitId) -> None:
        """Ask for all keys that are still elsewhere, once."""
        if self._absent.fetch_rest(unit):
            home = self._homes[unit]
            self._rests[home.stay] = None
            self.errands.append(Errand(home, "rest"))

    def drain(self, most: int, now_us: int) -> tuple[list[WaitingRecord[Events]], list[UnitId]]:
        """Records to be processed now and in this order, about ``most``; and the units that are whole after them."""
        if not self._homes:
            return [], []
        records, whole = self._absent.drain(most)
        for unit, queue in list(self._stalled.items()):
            while queue and not self._waits(unit, queue[0], now_us):
                record = queue.popleft()
                records.append(record)
                self._stalled_bytes -= self._operator.nbytes(record[0]) + RECORD_BYTES
                if unit in self._absent:
                    break  # what this record does to its unit decides about the next one
            if not queue:
                del self._stalled[unit]
        for unit in whole:
            home = self._homes.pop(unit)
            self._unwritten.pop(home.stay, None)  # all is here: nobody reads there any more
            self._states[unit].untrack(HOME)
            self.errands.append(Errand(home, "drop"))
        return records, whole

    def _waits(self, unit: UnitId, record: WaitingRecord[Events], now_us: int) -> bool:
        events, (*_, watermark) = record
        keys = set(self._operator.keys(events).tolist())
        return self._lacks(unit, keys) or self._misses_timers(unit, watermark, now_us)

    # -- who carries errands ------------------------------------------------------------------------------------------

    def unwritten(self, stays: Iterable[Stay]) -> Iterator[tuple[WrittenKeys, ChangeNumbers]]:
        """The values to be written back, as they are now, and the numbers of their changes; a slice of each unit."""
        for stay in stays:
            if (unwritten := self._unwritten.get(stay)) is None:
                continue
            changes = dict(itertools.islice(unwritten.items(), SLICE_KEYS))
            found = self._states[stay[0]].take(changes)
            yield (stay, sorted(changes.keys() - {key for key, _ in found}), found), changes

    def written(self, stay: Stay, changes: ChangeNumbers) -> None:
        """Note that what ``unwritten`` gave is at its home."""
        if (home := self._home(stay)) is None:
            return
        unit, unwritten = stay[0], self._unwritten[stay]
        written = [key for key, change in changes.items() if unwritten[key] == change]
        for key in written:
            del unwritten[key]
        if unwritten:
            self.errands.append(Errand(home, "write"))
        if home.mode.cache:
            return
        state = self._states[unit]
        for key in self._absent.evict(unit, written):
            state.delete(key)
        state.changed_keys(HOME)

    def arrived(self, stay: Stay, keys: list[int], found: Iterable[rows.KeyValue]) -> bool:
        """Take the answer for ``keys``: those that exist. Gives whether they live here from now on."""
        if (home := self._home(stay)) is None:
            return False
        self._install(home, keys, found)
        return home.mode.transfer == "access"

    def rests(self, stays: Iterable[Stay]) -> list[tuple[Stay, int | None]]:
        """Find which of the rests are still to come, and behind which key."""
        return [(stay, self._rests[stay]) for stay in stays if stay in self._rests]

    def rest_arrived(self, stay: Stay, keys: list[int], found: Iterable[rows.KeyValue], last: bool) -> None:
        """Take a slice of the rest: ``keys`` ascending."""
        if (home := self._home(stay)) is None:
            return
        self._install(home, keys, found)
        if last:
            del self._rests[stay]
            self._absent.arrived_whole(stay[0])
        elif keys:
            self._rests[stay] = keys[-1]

    def _home(self, stay: Stay) -> Home | None:
        """The home of that stay; None if it is over, as the unit has become whole."""
        home = self._homes.get(stay[0])
        return home if home is not None and home.stay == stay else None

    def _install(self, home: Home, keys: list[int], found: Iterable[rows.KeyValue]) -> None:
        unit = home.stay[0]
        state, lacking = self._states[unit], self._absent.lacks(unit, keys)
        for key, value in found:
            if key in lacking:
                state.values[key] = value
        if home.mode.transfer == "remote":
            state.changed_keys(HOME)  # what came is not what has to be written back
        self._absent.arrived(unit, keys)
