"""The timers of a unit: when event time or processing time reaches one, something is due for its key.

They belong to the unit like its values, and travel with it: with them how far the unit has come in both times, so that
whoever has the unit next neither repeats nor forgets anything, and calls no record late that was not. A slot has an
``Agenda`` of all its units' timers, so that those of which none is due cost nothing.
"""

import heapq
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import UnitId

EVENT, PROCESSING = 0, 1  # kinds of timers
TIMER_SCHEMA = pa.schema([pa.field("kind", pa.int8()), pa.field("time", pa.int64()), pa.field("key", pa.int64())])

Timer = tuple[int, int]  # time in microseconds, key
Keys = set[int]  # by a name of its own: within the class ``set`` is the method
WATERMARK, CLOCK = -1, -2  # kinds of two rows that are no timers, but say how far the unit has come
_SLACK = 64  # a heap may hold so many deleted timers beyond twice the living ones before it is built anew


class _Queue:
    """The timers of one kind. A deleted one stays in the heap until it comes to the top, or too many have gathered."""

    __slots__ = ("heap", "live")  # there may be a million units

    def __init__(self) -> None:
        self.live: set[Timer] = set()
        self.heap: list[Timer] = []

    def first(self) -> Timer | None:
        while self.heap and self.heap[0] not in self.live:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def rebuild(self) -> None:
        self.heap = list(self.live)
        heapq.heapify(self.heap)


class Timers:
    """The timers of one unit. Times are microseconds; every ``kind`` is ``EVENT`` or ``PROCESSING`` (else KeyError).

    Not thread-safe: one owner at a time, as for the values of the unit.
    """

    __slots__ = ("_queues", "clock", "edits", "watermark")

    def __init__(self) -> None:
        self.watermark = 0  # the event time the unit has reached; 0: none yet
        self.clock = 0  # the processing time it has reached
        self.edits = 0  # grows with each change
        self._queues = {EVENT: _Queue(), PROCESSING: _Queue()}

    def __len__(self) -> int:
        return sum(len(queue.live) for queue in self._queues.values())

    def reach(self, watermark: int, now_us: int = 0) -> None:
        """Bring the unit to ``watermark`` and to processing time ``now_us``, unless it was further already.

        Both only grow, also when the unit moves to a slot that lags behind, or whose clock does.
        """
        if watermark > self.watermark or now_us > self.clock:
            self.edits += 1
            self.watermark = max(self.watermark, watermark)
            self.clock = max(self.clock, now_us)

    def copy(self) -> "Timers":
        """Other timers that are like these now."""
        other = Timers()
        other.watermark, other.clock = self.watermark, self.clock
        for kind, queue in self._queues.items():
            other._queues[kind].live = queue.live.copy()
            other._queues[kind].rebuild()
        return other

    def set(self, kind: int, time_us: int, key: int) -> None:
        """Let ``key`` be due at ``time_us``. A timer that is set twice is one timer."""
        queue, timer = self._queues[kind], (time_us, key)
        if timer not in queue.live:
            self.edits += 1
            queue.live.add(timer)
            heapq.heappush(queue.heap, timer)

    def delete(self, kind: int, time_us: int, key: int) -> None:
        """Take a timer back; nothing happens if there is none."""
        queue = self._queues[kind]
        self.edits += 1
        queue.live.discard((time_us, key))
        if len(queue.heap) > 2 * len(queue.live) + _SLACK:
            queue.rebuild()

    def keys_due(self, kind: int, until_us: int) -> Keys:
        """The keys of the timers that ``due`` would give; nothing is removed."""
        found = self.due(kind, until_us)
        for time_us, key in found:
            self.set(kind, time_us, key)
        return {key for _, key in found}

    def due(self, kind: int, until_us: int) -> list[Timer]:
        """Removes and returns the timers up to ``until_us`` inclusive, as (time, key), ascending."""
        queue = self._queues[kind]
        found = []
        while (timer := queue.first()) is not None and timer[0] <= until_us:
            heapq.heappop(queue.heap)
            queue.live.remove(timer)
            found.append(timer)
        self.edits += bool(found)
        return found

    def next(self, kind: int) -> int | None:
        """The time of the first timer, None if there is none."""
        first = self._queues[kind].first()
        return None if first is None else first[0]

    def overdue(self) -> bool:
        """Whether there is a timer up to the times that the unit has reached."""
        event, processing = self.next(EVENT), self.next(PROCESSING)
        return (event is not None and event <= self.watermark) or (processing is not None and processing <= self.clock)

    def export(self) -> pa.RecordBatch:
        """All timers and both times, as a batch of ``TIMER_SCHEMA`` in no particular order; they stay here, too."""
        rows = [(WATERMARK, self.watermark, 0), (CLOCK, self.clock, 0)]
        for kind, queue in self._queues.items():
            rows += [(kind, time_us, key) for time_us, key in queue.live]
        kinds, times, keys = zip(*rows, strict=True)
        columns = np.array(kinds, np.int8), np.array(times, np.int64), np.array(keys, np.int64)
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=TIMER_SCHEMA)

    def install(self, batch: pa.RecordBatch) -> None:
        """Add what ``export`` gave. Raises ProtocolViolation, and changes nothing, if it is something else."""
        if not batch.schema.equals(TIMER_SCHEMA):
            raise ProtocolViolation(
                f"timers have columns {batch.schema.names}, expected {TIMER_SCHEMA.names} with their types"
            )
        kinds, times, keys = (column.to_numpy().tolist() for column in batch.columns)
        came: dict[int, list[Timer]] = {kind: [] for kind in (*self._queues, WATERMARK, CLOCK)}
        if strange := set(kinds) - came.keys():
            raise ProtocolViolation(f"timers are of kinds {sorted(strange)}, expected {EVENT} (event) or {PROCESSING}")
        for kind, time_us, key in zip(kinds, times, keys, strict=True):
            came[kind].append((time_us, key))
        self.reach(*(max((time_us for time_us, _ in came[kind]), default=0) for kind in (WATERMARK, CLOCK)))
        for kind, queue in self._queues.items():
            queue.live.update(came[kind])
            queue.rebuild()


class Agenda:
    """Which units of a slot have timers that are due, without a look at the others.

    A unit is to be noted whenever it may have a new timer. A timer that was deleted since costs one look too many.
    """

    def __init__(self) -> None:
        self._event, self._processing = _Firsts(), _Firsts()

    def note(self, unit: UnitId, timers: Timers) -> None:
        """Note that ``unit`` is here, with these timers."""
        self._event.note(unit, timers.next(EVENT), timers.watermark)
        self._processing.note(unit, timers.next(PROCESSING), timers.clock)

    def forget(self, unit: UnitId) -> None:
        """Forget ``unit``, which is not here any more."""
        self._event.forget(unit)
        self._processing.forget(unit)

    def due(self, watermark: int, now_us: int) -> list[UnitId]:
        """Removes and returns the units to be looked at by then, ascending: they are to be noted again."""
        return sorted({*self._event.due(watermark), *self._processing.due(now_us)})


class _Firsts:
    """The first timer of each unit, in one of the two times. Only the earliest entry of a unit in the heap counts."""

    def __init__(self) -> None:
        self._of: dict[UnitId, int] = {}
        self._heap: list[tuple[int, UnitId]] = []

    def note(self, unit: UnitId, first: int | None, reached: int) -> None:
        if first is None:
            return
        at = first if first > reached else 0  # set to a time that the unit, though perhaps not its slot, has reached
        known = self._of.get(unit)
        if known is None or at < known:
            self._of[unit] = at
            heapq.heappush(self._heap, (at, unit))

    def forget(self, unit: UnitId) -> None:
        self._of.pop(unit, None)

    def due(self, until_us: int) -> Iterator[UnitId]:
        while self._heap and self._heap[0][0] <= until_us:
            at, unit = heapq.heappop(self._heap)
            if self._of.get(unit) == at:
                del self._of[unit]
                yield unit
