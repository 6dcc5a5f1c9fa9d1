"""What operators of several workloads share: results from rows, and an operator that only passes events on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.state import UnitState
from keyshift.workloads.contract import Operator

_OF_EVENT = (*EVENT_FIELDS, pa.field("position", pa.int32()))


class Results:
    """Makes results of rows, each of which has the values of ``fields``, the stage's ``result_fields``."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._fields = tuple(fields)
        self._schema = pa.schema((*_OF_EVENT, *self._fields))

    def of_events(self, events: pa.RecordBatch, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """A row for each of ``events``."""
        return self._made([events[field.name] for field in _OF_EVENT], rows)

    def of_timers(self, due: list[tuple[int, int]], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch | None:
        """A row for each key and time in ``due``; None if there is none."""
        if not due:
            return None
        keys, times = (pa.array(column, pa.int64()) for column in zip(*due, strict=True))
        return self._made([keys, times, pa.repeat(pa.scalar(-1, pa.int32()), len(due))], rows)

    def _made(self, of_event: list[pa.Array], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        return pa.RecordBatch.from_arrays([*of_event, *arrays], schema=self._schema)


class MapOperator(Operator):
    """Passes events on, or those that are ``due``, with these ``fields``. Its units have no keys, so a migration moves
    nothing but ownership.
    """

    state_schema = pa.schema([])

    def __init__(
        self, fields: Iterable[pa.Field] = (), due: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]] | None = None
    ) -> None:
        self._names, self._due = [field.name for field in (*_OF_EVENT, *fields)], due

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """One result per event that is due."""
        results = events.select(self._names)
        return results if self._due is None else results.filter(pa.array(self._due(events)))
