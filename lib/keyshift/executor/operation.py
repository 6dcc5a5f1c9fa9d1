"""What a slot computes: records and due timers in, results out, with the state of the units that are here.

Called under the slot's lock. Which records may be processed now, and which have to wait, the slot decides.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyshift.executor.config import JobConfig, result_schema
from keyshift.executor.partial_units import PartialUnits
from keyshift.protocol.slot import SlotMachine
from keyshift.state import UnitState, backends

Where = tuple[int, int, int, int]  # router, version, offset, and the watermark that the record met
Waiting = tuple[pa.RecordBatch, Where]

TIMERS_EVERY_S = 0.01  # how often units without records are looked through for timers that are due


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
        self._label_types = {name: self.result_schema.field(name).type for name in ("router", "offset", "version")}
        self._states, self._partial, self._machine = states, partial, machine
        self._backend: Callable[[pa.Schema], UnitState] = backends.get(config.backend)[0]
        self._timed = {unit for unit, state in states.items() if len(state.timers)}
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
        if len(self._states[unit].timers):
            self._timed.add(unit)

    def left(self, unit: int) -> None:
        """The state of ``unit`` is not here any more."""
        self._timed.discard(unit)

    def process(self, events: pa.RecordBatch, where: Where, now: int | None = None) -> list[pa.RecordBatch]:
        """Results of ``events``, and of the timers that were due before; what misses its key waits.

        With ``now`` (microseconds) it is known that no key is missing.
        """
        router, version, offset, watermark = where
        if self._operator.uses_time and watermark:
            units = pc.unique(events["unit"]).to_pylist()
            if still := [unit for unit in units if self._machine.stands(unit)]:  # no time passes for these
                mask = pc.is_in(events["unit"], pa.array(still, pa.int32()))
                rest = events.filter(pc.invert(mask))
                results = self.process(events.filter(mask), (router, version, offset, 0), now)
                return results + (self.process(rest, where, now) if rest.num_rows else [])
        known, now = now is not None, now or now_us()
        if self._partial and not known:
            events = self._partial.hold_back(events, where, watermark, now)
            if not events.num_rows:
                return []
        counts = self.counts(events["unit"])
        units = np.flatnonzero(counts).tolist()
        uses_time = self._operator.uses_time
        results = [fired for unit in units for fired in self._advance(unit, watermark, now)] if uses_time else []
        self.heat += counts
        out = self._operator.process(events, self._state_of, watermark)
        results.append(self._result(out, router, version, offset))
        if uses_time:
            self._timed.update(unit for unit in units if len(self._states[unit].timers))
        if self._partial:
            self._partial.used(units)
        return results

    def counts(self, units: pa.Array) -> npt.NDArray[np.int64]:
        """How many records of each unit: shape (units,)."""
        return np.bincount(units.to_numpy(), minlength=len(self.heat))

    def process_all(self, records: list[Waiting], now: int | None = None) -> list[pa.RecordBatch]:
        """Results of records that have waited: at once, if they meet no watermark and miss no key; see ``process``."""
        if len(records) < 2 or self._operator.uses_time or (self._partial and now is None):
            return [result for record in records for result in self.process(*record, now)]
        sizes = [events.num_rows for events, _ in records]
        events = pa.concat_batches([events for events, _ in records])
        router, version, offset, _ = (np.repeat(part, sizes) for part in zip(*(w for _, w in records), strict=True))
        counts = self.counts(events["unit"])
        self.heat += counts
        out = self._operator.process(events, self._state_of, 0)
        self._partial.used(np.flatnonzero(counts).tolist())
        labels = {"router": router, "offset": offset, "version": version}
        return [self._labelled(out, {name: pa.array(labels[name], kind) for name, kind in self._label_types.items()})]

    def _result(self, out: pa.RecordBatch, router: int, version: int, offset: int) -> pa.RecordBatch:
        labels = {"router": router, "offset": offset, "version": version}
        types = self._label_types
        return self._labelled(
            out, {name: pa.repeat(pa.scalar(labels[name], types[name]), out.num_rows) for name in types}
        )

    def _labelled(self, out: pa.RecordBatch, labels: dict[str, pa.Array]) -> pa.RecordBatch:
        columns = [labels[name] if name in labels else out[name] for name in self.result_schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.result_schema)

    def _advance(self, unit: int, watermark: int, now: int) -> list[pa.RecordBatch]:
        fired = self._operator.advance(unit, self._state_of(unit), watermark, now)
        return [self._result(fired, -1, self._machine.version_of(unit), -1)] if fired is not None else []

    def timers_due(self, watermark: int) -> list[pa.RecordBatch]:
        """Results of timers of units that got no record: the watermark has grown, and time has passed."""
        if not self._timed or time.monotonic() < self._timers_at:
            return []
        self._timers_at, now = time.monotonic() + TIMERS_EVERY_S, now_us()
        results = []
        for unit in self._machine.idle(self._timed):
            if self._partial and not self._partial.may_advance(unit, watermark, now):
                continue
            results += self._advance(unit, watermark, now)
            if self._partial:
                self._partial.used([unit])
            if not len(self._states[unit].timers):
                self._timed.discard(unit)
        return results

    def _state_of(self, unit: int) -> UnitState:
        state = self._states.get(unit)
        if state is None:  # only a deliberate fault gets here: it works on nothing
            state = self._states[unit] = self.new_state()
        return state
