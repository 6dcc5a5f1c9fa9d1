"""What a slot computes: records and due timers in, results out, with the state of the units that are here.

Called under the slot's lock. Which records may be processed now, and which have to wait, the slot decides.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.executor.config import JobConfig, result_schema
from keyshift.executor.partial_units import PartialUnits
from keyshift.protocol.slot import SlotMachine
from keyshift.state import UnitState
from keyshift.state.timers import Agenda

Where = tuple[int, int, int, int]  # router, version, offset, and the watermark that the record met
Waiting = tuple[pa.RecordBatch, Where]  # events of one unit, where they came from

TIMERS_EVERY_S = 0.01  # how often timers fire of units without records


def now_us() -> int:
    """Microseconds since the epoch, the clock of all measurements."""
    return time.time_ns() // 1000


class Operation:
    """The operator of one slot during one batch. ``states`` is the slot's own dictionary, by unit."""

    def __init__(
        self, config: JobConfig, states: dict[int, UnitState], partial: PartialUnits, machine: SlotMachine[Waiting]
    ) -> None:
        workload = config.make_workload()
        self._operator = workload.operator()
        self.result_schema = result_schema(workload)
        self._states, self._partial, self._machine = states, partial, machine
        self._backend = config.new_state
        self._agenda = Agenda()
        for unit in states:
            self.came(unit)
        self._timers_at = 0.0
        self.heat = np.zeros(config.key_groups * config.bins, np.int64)  # records of each unit so far

    def new_state(self) -> UnitState:
        """A state without keys."""
        return self._backend(self._operator.state_schema)

    def begin(self, unit: int) -> None:
        """``unit`` is here from the beginning of the job."""
        self._states[unit] = self.new_state()
        self._operator.initial(unit, self._states[unit])

    def came(self, unit: int) -> None:
        """The state of ``unit`` is here from now on."""
        self._agenda.note(unit, self._states[unit].timers)

    def left(self, unit: int) -> None:
        """The state of ``unit`` is not here any more."""
        self._agenda.forget(unit)

    def process(self, events: pa.RecordBatch, where: Where) -> list[pa.RecordBatch]:
        """Results of ``events``, and of the timers that were due before; what misses its key waits."""
        now = now_us()
        if self._partial:
            *_, watermark = where
            events = self._partial.hold_back(events, where, watermark, now)
            if not events.num_rows:
                return []
        return self._process_round([(events, where)], now)

    def process_all(self, records: list[Waiting], now: int | None = None) -> list[pa.RecordBatch]:
        """Results of records that have waited; see ``process``. With ``now`` (us), all keys are known to be here."""
        if self._partial and now is None:
            return [result for record in records for result in self.process(*record)]
        now = now or now_us()
        rounds = _rounds(records) if self._operator.uses_time else [records] if records else []
        return [result for each in rounds for result in self._process_round(each, now)]

    def _process_round(self, records: list[Waiting], now: int) -> list[pa.RecordBatch]:
        """All of ``records`` at once. If time counts, each of their units meets one watermark only."""
        events, (router, version, offset, met) = _together(records)
        units = events["unit"].to_numpy()
        np.add.at(self.heat, units, 1)
        results: list[pa.RecordBatch] = []
        if self._operator.uses_time:
            stands = self._machine.stands
            watermarks = dict(zip(units.tolist(), np.broadcast_to(met, units.shape).tolist(), strict=True))
            results += self._advance({unit: 0 if stands(unit) else met for unit, met in watermarks.items()}, now)
        out = self._operator.process(events, self._state_of)
        results.append(self._labelled(out, router=router, version=version, offset=offset))
        if self._operator.uses_time:
            for unit in watermarks:
                self._agenda.note(unit, self._states[unit].timers)
        if self._partial:
            self._partial.used(set(units.tolist()))
        return results

    def _labelled(self, out: pa.RecordBatch, **labels: int | npt.NDArray[np.int64]) -> pa.RecordBatch:
        """``out`` with more columns, of one value for all rows or one for each."""
        columns = []
        for field in self.result_schema:
            if field.name not in labels:
                columns.append(out[field.name])
            elif isinstance(label := labels[field.name], int):
                columns.append(pa.repeat(pa.scalar(label, field.type), out.num_rows))
            else:
                columns.append(pa.array(label, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.result_schema)

    def _advance(self, watermarks: dict[int, int], now: int) -> list[pa.RecordBatch]:
        """These units come to their watermark, and to processing time ``now``: results of their timers."""
        due: dict[int, list[UnitState]] = {}  # by the version under which the slot owns them, of which there are two
        for unit, watermark in watermarks.items():
            state = self._state_of(unit)
            state.timers.reach(watermark, now)
            if state.timers.overdue():
                due.setdefault(self._machine.version_of(unit), []).append(state)
        results = []
        for version, states in due.items():
            if (fired := self._operator.advance(states)) is not None:
                results.append(self._labelled(fired, router=-1, offset=-1, version=version))
        return results

    def timers_due(self, watermark: int, at_once: bool = False) -> list[pa.RecordBatch]:
        """Results of timers of units that got no record: the watermark has grown, and time has passed.

        Nothing if that was looked at just before, except ``at_once``.
        """
        if time.monotonic() < self._timers_at and not at_once:
            return []
        self._timers_at, now = time.monotonic() + TIMERS_EVERY_S, now_us()
        found = [unit for unit in self._agenda.due(watermark, now) if unit in self._states]
        units = self._machine.idle(found)
        if self._partial:
            units = [unit for unit in units if self._partial.may_advance(unit, watermark, now)]
        results = self._advance(dict.fromkeys(units, watermark), now)
        if self._partial:
            self._partial.used(units)
        for unit in found:  # what may not fire yet is due again at once
            self._agenda.note(unit, self._states[unit].timers)
        return results

    def _state_of(self, unit: int) -> UnitState:
        state = self._states.get(unit)
        if state is None:  # only a deliberate fault gets here: it works on nothing
            state = self._states[unit] = self.new_state()
        return state


def by_unit(events: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The events of each unit, in their order; units ascending."""
    units = events["unit"].to_numpy()
    order = np.argsort(units, kind="stable")
    sorted_ = events.take(pa.array(order))
    found, begins = np.unique(units[order], return_index=True)
    ends = [*begins[1:].tolist(), len(units)]
    for unit, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
        yield unit, sorted_.slice(begin, end - begin)


def _rounds(records: list[Waiting]) -> list[list[Waiting]]:
    """``records`` in rounds, in each of which every unit meets one watermark; those of a unit keep their order."""
    rounds: list[list[Waiting]] = []
    last: dict[int, tuple[int, int]] = {}  # unit -> its last round so far, and the watermark that it meets there
    for record in records:
        events, (*_, met) = record
        unit = events["unit"][0].as_py()
        number, before = last.get(unit, (0, met))
        number += met != before
        last[unit] = number, met
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(record)
    return rounds


def _together(records: list[Waiting]) -> tuple[pa.RecordBatch, Sequence[int | npt.NDArray[np.int64]]]:
    """The events of all records, and where they came from: one value for all of them, or one for each."""
    if len(records) == 1:
        return records[0]
    parts, wheres = zip(*records, strict=True)
    sizes = [events.num_rows for events in parts]
    return pa.concat_batches(parts), [np.repeat(column, sizes) for column in zip(*wheres, strict=True)]
