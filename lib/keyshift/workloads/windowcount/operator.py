"""What the slots of ``windowcount`` compute."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyshift.model.keys import UnitId
from keyshift.state import UnitState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.workloads.contract import Operator
from keyshift.workloads.operators import ResultMaker

if TYPE_CHECKING:
    from keyshift.workloads.windowcount import WindowCount

ANSWER, WINDOW, IDLE = 0, 1, 2  # kinds of results: of an event, of a window that closed, of a key that fell idle

RESULT_FIELDS = (
    pa.field("kind", pa.int8()),  # ANSWER, WINDOW or IDLE; for the last two, t is the time the timer was set to
    pa.field("start", pa.int64()),  # of the window; IDLE: the processing time of the key's last event
    pa.field("late", pa.bool_()),  # the event came too late for its window, and changed nothing
    pa.field("count", pa.int64()),  # events in the window, this one included; 0 if late, or IDLE
    pa.field("sum", pa.int64()),  # of their delays t - at, in microseconds
    pa.field("watermark", pa.int64()),  # that the unit had reached
    pa.field("clock", pa.int64()),  # the processing time that the unit had reached
)


class WindowCountOperator(Operator):
    """Windows of a key are three lists side by side; see ``Operator``.

    Event-time timers are on the scale of the caller's watermark: that of a window is its end plus the lag. A window is
    open as long as its timer is there, and an event that is not late is always in an open window or in a new one.
    """

    uses_time = True
    state_schema = pa.schema(
        [
            pa.field("starts", pa.list_(pa.int64())),
            pa.field("counts", pa.list_(pa.int64())),
            pa.field("sums", pa.list_(pa.int64())),
            pa.field("last", pa.int64()),  # processing time of the last event; 0: none yet
            pa.field("payload", pa.binary()),
        ]
    )

    def __init__(self, workload: "WindowCount") -> None:
        self._workload = workload
        self._window_us, self._lag_us, self._idle_us = workload.window_us, workload.lag_us, workload.idle_us
        self._results = ResultMaker(RESULT_FIELDS)

    def initial(self, unit: int, state: UnitState) -> None:
        """Every key of ``unit``, without a window."""
        state.install([self._workload.fresh(unit, self.state_schema, ([], [], [], 0))])

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event. A key whose state is missing begins anew: the verdict tells, the job goes on."""
        columns = (events[name].to_numpy().tolist() for name in ("unit", "key", "t", "at"))
        rows = [self._answer(state_of(unit), *event) for unit, *event in zip(*columns, strict=True)]
        return self._results.of_events(events, rows)

    def _answer(self, state: UnitState, key: int, t: int, at: int) -> tuple[Any, ...]:
        timers, start, delay = state.timers, at - at % self._window_us, t - at
        starts, counts, sums, last, payload = state.values[key] or self._fresh(key)
        late = at < timers.watermark - self._lag_us
        count = total = 0
        if not late:
            if start in starts:
                i = starts.index(start)
                count, total = counts[i] + 1, sums[i] + delay
                counts, sums = [*counts[:i], count, *counts[i + 1 :]], [*sums[:i], total, *sums[i + 1 :]]
            else:
                count, total = 1, delay
                starts, counts, sums = [*starts, start], [*counts, count], [*sums, total]
                timers.set(EVENT, start + self._window_us + self._lag_us, key)
        if self._idle_us and timers.clock != last:
            timers.delete(PROCESSING, last + self._idle_us, key)
            timers.set(PROCESSING, timers.clock + self._idle_us, key)
        state.values[key] = starts, counts, sums, timers.clock, payload
        return ANSWER, start, late, count, total, timers.watermark, timers.clock

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """One result per window that closes and per key that falls idle."""
        rows: list[tuple[Any, ...]] = []
        for state in states:
            timers = state.timers
            reached = timers.watermark, timers.clock
            for time_us, key in timers.due(EVENT, timers.watermark):
                if window := self._close(state, key, time_us - self._lag_us - self._window_us):
                    rows.append((key, time_us, WINDOW, *window, *reached))
            for time_us, key in timers.due(PROCESSING, timers.clock):
                rows.append((key, time_us, IDLE, time_us - self._idle_us, False, 0, 0, *reached))
        return self._results.of_timers(rows)

    def _close(self, state: UnitState, key: int, start: int) -> tuple[int, bool, int, int] | None:
        """Takes a window out of the state; None if it is not there, which the verdict will notice."""
        starts, counts, sums, last, payload = state.values[key] or self._fresh(key)
        if start not in starts:
            return None
        i = starts.index(start)
        others = ([*column[:i], *column[i + 1 :]] for column in (starts, counts, sums))
        state.values[key] = *others, last, payload
        return start, False, counts[i], sums[i]

    def _fresh(self, key: int) -> tuple[Any, ...]:
        return [], [], [], 0, self._workload.fresh_payload(key)
