"""What a slot computes: records and due timers in, results out, with the state of the units that are here.

Which records may be processed now, and which have to wait for their unit, the slot decides.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from keyshift.model.keys import UnitId, Version
from keyshift.protocol.slot import SlotMachine
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.operator import Events, FrameOperator, WaitingRecord, Where
from keyshift.state import Store, UnitState
from keyshift.state.timers import EVENT, PROCESSING, Agenda

Result = TypeVar("Result")

TIMERS_EVERY_US = 10_000  # how often timers fire of units without records


class Computation(Generic[Events, Result]):
    """The operator of one slot during one batch. ``states`` is the slot's own dictionary, by unit, of ``store``.

    ``units``: how many there are in the job. All moments ``now_us`` are microseconds since the epoch.
    """

    def __init__(
        self,
        operator: FrameOperator[Events, Result],
        machine: SlotMachine[WaitingRecord[Events]],
        keys: KeyAccess[Events],
        store: Store,
        states: dict[UnitId, UnitState],
        units: int,
    ) -> None:
        self._operator, self._machine, self._keys = operator, machine, keys
        self._store, self._states = store, states
        self._agenda = Agenda()
        for unit in states:
            self.came(unit)
        self._timers_at_us = 0
        self.heat = np.zeros(units, np.int64)  # records of each unit so far

    def begin(self, unit: UnitId) -> None:
        """Begin with ``unit``, which is here from the beginning of the job."""
        self._states[unit] = self._store.unit(unit)
        self._operator.initial(unit, self._states[unit])
        self.came(unit)

    def came(self, unit: UnitId) -> None:
        """Take note that the state of ``unit`` is here from now on."""
        self._agenda.note(unit, self._states[unit].timers)

    def checkpoint(self) -> None:
        """Tell the store that the states are about to be written down."""
        self._store.checkpoint()

    def left(self, unit: UnitId) -> None:
        """Forget ``unit``, whose state is not here any more."""
        self._agenda.forget(unit)

    def process(self, events: Events, where: Where, now_us: int) -> list[Result]:
        """Results of ``events``, and of the timers that were due before; what misses its key waits."""
        if self._keys:
            *_, watermark = where
            some = self._keys.hold_back(events, where, watermark, now_us)
            if some is None:
                return []
            events = some
        return self._process_round([(events, where)], now_us)

    def process_all(self, records: list[WaitingRecord[Events]], now_us: int, keys_here: bool = False) -> list[Result]:
        """Results of records that have waited; see ``process``. ``keys_here``: all their keys are known to be here."""
        if self._keys and not keys_here:
            return [result for events, where in records for result in self.process(events, where, now_us)]
        rounds = self._rounds(records) if self._operator.uses_time else [records] if records else []
        return [result for each in rounds for result in self._process_round(each, now_us)]

    def _process_round(self, records: list[WaitingRecord[Events]], now_us: int) -> list[Result]:
        """Process all of ``records`` at once. If time counts, each of their units meets one watermark only."""
        events, (*origin, met) = self._together(records)
        units = self._operator.units(events)
        np.add.at(self.heat, units, 1)
        results: list[Result] = []
        if self._operator.uses_time:
            stands = self._machine.stands
            watermarks = dict(zip(units.tolist(), np.broadcast_to(met, units.shape).tolist(), strict=True))
            results += self._advance({unit: 0 if stands(unit) else met for unit, met in watermarks.items()}, now_us)
        self._store.load(self._used(events, units))  # last: some stores have nothing of the loads before
        results.append(self._operator.process(events, origin, self._state_of))
        if self._operator.uses_time:
            for unit in watermarks:
                self._agenda.note(unit, self._states[unit].timers)
        if self._keys:
            self._keys.used(set(units.tolist()))
        return results

    def _used(self, events: Events, units: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[UnitState, Collection[int]]]:
        """The states and keys of ``events``."""
        keys: dict[UnitId, set[int]] = {}
        for unit, key in zip(units.tolist(), self._operator.keys(events).tolist(), strict=True):
            keys.setdefault(unit, set()).add(key)  # a unit has few events: numpy takes longer
        for unit, some in keys.items():
            yield self._state_of(unit), some

    def _advance(self, watermarks: dict[UnitId, int], now_us: int) -> list[Result]:
        """Bring these units to their watermark, and to processing time ``now_us``. Gives results of their timers."""
        due: dict[Version, list[UnitState]] = {}  # the slot owns them under one of two versions
        for unit, watermark in watermarks.items():
            state = self._state_of(unit)
            state.timers.reach(watermark, now_us)
            if state.timers.overdue():
                due.setdefault(self._machine.version_of(unit), []).append(state)
        if due:
            self._store.load((state, _keys_due(state)) for states in due.values() for state in states)
        fired = (self._operator.advance(states, version) for version, states in due.items())
        return [result for result in fired if result is not None]

    def timers_due(self, watermark: int, now_us: int, at_once: bool = False) -> list[Result]:
        """Results of timers of units that got no record: the watermark has grown, and time has passed.

        Nothing if that was looked at just before, except ``at_once``.
        """
        if 0 <= now_us - self._timers_at_us < TIMERS_EVERY_US and not at_once:
            return []
        self._timers_at_us = now_us
        found = [unit for unit in self._agenda.due(watermark, now_us) if unit in self._states]
        units = self._machine.idle(found)
        if self._keys:
            units = [unit for unit in units if self._keys.may_advance(unit, watermark, now_us)]
        results = self._advance(dict.fromkeys(units, watermark), now_us)
        if self._keys:
            self._keys.used(units)
        for unit in found:  # what may not fire yet is due again at once
            self._agenda.note(unit, self._states[unit].timers)
        return results

    def _state_of(self, unit: UnitId) -> UnitState:
        state = self._states.get(unit)
        if state is None:  # only a deliberate fault gets here: it works on nothing
            state = self._states[unit] = self._store.unit(unit)
        return state

    def _rounds(self, records: list[WaitingRecord[Events]]) -> list[list[WaitingRecord[Events]]]:
        """``records`` in rounds, in each of which every unit meets one watermark; those of a unit keep their order."""
        rounds: list[list[WaitingRecord[Events]]] = []
        last: dict[int, tuple[int, int]] = {}  # unit -> its last round so far, and the watermark that it meets there
        for record in records:
            events, (*_, met) = record
            unit = int(self._operator.units(events)[0])
            number, before = last.get(unit, (0, met))
            number += met != before
            last[unit] = number, met
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(record)
        return rounds

    def _together(self, records: list[WaitingRecord[Events]]) -> tuple[Events, Sequence[int | npt.NDArray[np.int64]]]:
        """The events of all records, and where they came from: one value for all of them, or one for each."""
        if len(records) == 1:
            return records[0]
        parts, wheres = zip(*records, strict=True)
        sizes = [len(self._operator.units(events)) for events in parts]
        return self._operator.together(parts), [np.repeat(column, sizes) for column in zip(*wheres, strict=True)]


def _keys_due(state: UnitState) -> set[int]:
    """The keys of the timers that are due."""
    timers = state.timers
    return timers.keys_due(EVENT, timers.watermark) | timers.keys_due(PROCESSING, timers.clock)
