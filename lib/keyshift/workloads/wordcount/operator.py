"""What the slots of ``wordcount`` compute."""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from keyshift.frames import EVENT_FIELDS
from keyshift.state import UnitState
from keyshift.state.timers import EVENT

WORD, WINDOW = 0, 1  # kinds of results: of a word that came, and of one in a window that closed

EVENTS = pa.schema([*EVENT_FIELDS, pa.field("word", pa.string())])
RESULT_FIELDS = (
    pa.field("kind", pa.int8()),  # WORD or WINDOW; for a window, t is its end
    pa.field("word", pa.string()),
    pa.field("start", pa.int64()),  # of the window; 0 if there is none
    pa.field("count", pa.int64()),  # of the word so far, in the window if there is one; this one included
)


class WordCountOperator:
    """The state of a key is three lists side by side: an element for each word and window of it; see ``Operator``.

    ``window_us``: length of a window; 0: one that never ends.
    """

    state_schema = pa.schema(
        [
            pa.field("words", pa.list_(pa.string())),
            pa.field("starts", pa.list_(pa.int64())),
            pa.field("counts", pa.list_(pa.int64())),
        ]
    )

    def __init__(self, window_us: int) -> None:
        self._window_us, self.uses_time = window_us, window_us > 0
        self._result_schema = pa.schema((*EVENT_FIELDS, pa.field("position", pa.int32()), *RESULT_FIELDS))

    def initial(self, unit: int, state: UnitState) -> None:
        """No word is known in advance."""

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """One result per word."""
        columns = (events[name].to_pylist() for name in ("unit", "key", "t", "word"))
        rows = [self._count(state_of(unit), *event) for unit, *event in zip(*columns, strict=True)]
        return self._results([events[name] for name in ("key", "t", "position")], rows)

    def _count(self, state: UnitState, key: int, t: int, word: str) -> tuple[Any, ...]:
        start = t - t % self._window_us if self._window_us else 0
        words, starts, counts = state.values[key] or ([], [], [])
        for i, known in enumerate(words):
            if known == word and starts[i] == start:
                count = counts[i] + 1
                state.values[key] = words, starts, [*counts[:i], count, *counts[i + 1 :]]
                return WORD, word, start, count
        state.values[key] = [*words, word], [*starts, start], [*counts, 1]
        if self._window_us:
            state.timers.set(EVENT, start + self._window_us, key)
        return WORD, word, start, 1

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """One result per word of each window that closes. A key without an open window is forgotten."""
        due: list[tuple[int, int]] = []
        rows: list[tuple[Any, ...]] = []
        for state in states:
            for end, key in state.timers.due(EVENT, state.timers.watermark):
                entries = list(zip(*(state.values[key] or ([], [], [])), strict=True))
                closed = [entry for entry in entries if entry[1] + self._window_us == end]
                left = [entry for entry in entries if entry[1] + self._window_us != end]
                if left:
                    words, starts, counts = map(list, zip(*left, strict=True))
                    state.values[key] = words, starts, counts
                else:
                    state.delete(key)
                due += [(key, end)] * len(closed)
                rows += [(WINDOW, *entry) for entry in closed]
        if not rows:
            return None
        keys, times = (pa.array(column, pa.int64()) for column in zip(*due, strict=True))
        return self._results([keys, times, pa.repeat(pa.scalar(-1, pa.int32()), len(due))], rows)

    def _results(self, of_event: list[pa.Array], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else [()] * len(RESULT_FIELDS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RESULT_FIELDS, strict=True)]
        return pa.RecordBatch.from_arrays([*of_event, *arrays], schema=self._result_schema)
