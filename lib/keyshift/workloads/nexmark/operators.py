"""What the slots of ``nexmark`` compute: rules about the entries of a key, driven by events and by their due times."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyshift.model.keys import UnitId
from keyshift.state import UnitState
from keyshift.state.timers import EVENT
from keyshift.workloads.contract import Operator
from keyshift.workloads.operators import ResultMaker

TAKEN, ROW = 0, 1  # kinds of results: an event was taken in (all else is 0 or empty), a row of the query
KIND = pa.field("kind", pa.int8())
NOT_DUE = 0  # due time of an entry that waits for no time

Entry = tuple[Any, ...]
_BLANK: dict[pa.DataType, Any] = {pa.string(): "", pa.list_(pa.int64()): []}


@dataclass(frozen=True)
class Rule:
    """What becomes of the entries of a key.

    Entries begin with the watermark at which they are due; the fields say what is behind that. ``add``: the entries of
    a key with one event more, from the entries and the event's columns (those of the stage's events, in their order).
    ``close``: the rows (values of ``row_fields``) that entries give which are due; by default each is one. ``left``:
    the entries that are then in their place. ``at_once``: behind an event, the row that its result is then, if any, and
    the entries that stay. None: there never is one.
    """

    entry_fields: tuple[pa.Field, ...]
    row_fields: tuple[pa.Field, ...]
    add: Callable[[list[Entry], Sequence[Any]], list[Entry]]
    close: Callable[[list[Entry]], list[Entry]] = lambda entries: [entry[1:] for entry in entries]
    left: tuple[Entry, ...] = ()
    at_once: Callable[[list[Entry]], tuple[Entry | None, list[Entry]]] | None = None


class EntriesOperator(Operator):
    """State: the entries of a key as lists side by side. Event-time timers: their due times.

    No event is late: its event time is at most ``delay_ms`` before its ``t``, and entries are due so long behind.
    """

    uses_time = True

    def __init__(self, rule: Rule, events: pa.Schema) -> None:
        self._rule, self._events = rule, events.names
        fields = (pa.field("due", pa.int64()), *rule.entry_fields)
        self.state_schema = pa.schema([pa.field(field.name, pa.list_(field.type)) for field in fields])
        self._results = ResultMaker((KIND, *rule.row_fields))
        self._taken = taken(rule.row_fields)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event: that it was taken in, or the row that it gives at once."""
        results = []
        for unit, *event in zip(*(events[name].to_pylist() for name in ("unit", *self._events)), strict=True):
            state, key = state_of(unit), event[0]
            before = self._entries(state, key)
            row, after = None, self._rule.add(before, event)
            if self._rule.at_once is not None:
                row, after = self._rule.at_once(after)
            self._set(state, key, before, after)
            results.append(self._taken if row is None else (ROW, *row))
        return self._results.of_events(events, results)

    def advance(self, states: Iterable[UnitState]) -> pa.RecordBatch | None:
        """The rows of all entries that are due."""
        rows: list[Entry] = []
        for state in states:
            for time_us, key in state.timers.due(EVENT, state.timers.watermark):
                entries = self._entries(state, key)
                closed = self._rule.close([entry for entry in entries if entry[0] == time_us])
                rows += [(key, time_us, ROW, *row) for row in closed]
                kept = [entry for entry in entries if entry[0] != time_us]
                self._set(state, key, entries, [*kept, *self._rule.left])
        return self._results.of_timers(rows)

    def _entries(self, state: UnitState, key: int) -> list[Entry]:
        value = state.values[key]
        return list(zip(*value, strict=True)) if value else []

    def _set(self, state: UnitState, key: int, before: list[Entry], after: list[Entry]) -> None:
        """Replace the entries of a key; there is a timer for each of their due times, and for no other."""
        if after == before:
            return
        if after:
            state.values[key] = tuple(map(list, zip(*after, strict=True)))
        else:
            state.delete(key)
        old, new = ({entry[0] for entry in entries} - {NOT_DUE} for entries in (before, after))
        for time_us in old - new:
            state.timers.delete(EVENT, time_us, key)
        for time_us in new - old:
            state.timers.set(EVENT, time_us, key)


# What a stage without time makes of the rows that come for a key, in whatever order they come: the new state and the
# values of a result, from the state (None: the first row) and the columns of the row.
Fold = Callable[[Entry | None, Sequence[Any]], tuple[Entry, Entry]]


class FoldOperator(Operator):
    """An operator behind a stage of entries: rows change the state of their key, all else passes."""

    def __init__(
        self, fold: Fold, state_fields: Iterable[pa.Field], row_fields: Sequence[pa.Field], events: pa.Schema
    ) -> None:
        self._fold, self._events = fold, events.names
        self.state_schema = pa.schema(state_fields)
        self._results = ResultMaker((KIND, *row_fields))
        self._taken = taken(row_fields)

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event."""
        rows = []
        for unit, *event in zip(*(events[name].to_pylist() for name in ("unit", *self._events)), strict=True):
            key, _, kind, *_ = event
            if kind == TAKEN:
                rows.append(self._taken)
            else:
                values = state_of(unit).values
                values[key], row = self._fold(values[key], event)
                rows.append((ROW, *row))
        return self._results.of_events(events, rows)


def taken(fields: Iterable[pa.Field]) -> Entry:
    """The values of ``KIND`` and ``fields`` in a result that only says that an event was taken in."""
    return TAKEN, *(_BLANK.get(field.type, 0) for field in fields)
