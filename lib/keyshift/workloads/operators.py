"""What operators of several workloads share: results from rows, and an operator that only passes events on."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.frames import EVENT_FIELDS
from keyshift.model.keys import UnitId
from keyshift.state import UnitState
from keyshift.workloads.contract import Operator

_OF_EVENT = (*EVENT_FIELDS, pa.field("position", pa.int32()))
_NAMES = [field.name for field in _OF_EVENT]


class ResultMaker:
    """Makes results of rows of the values of ``fields``, the stage's ``result_fields``."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._schema = pa.schema((*_OF_EVENT, *fields))

    def of_events(self, events: pa.RecordBatch, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """A row for each of ``events``."""
        fields = list(self._schema)[len(_OF_EVENT) :]
        columns = zip(*rows, strict=True) if rows else [()] * len(fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays([*(events[name] for name in _NAMES), *arrays], schema=self._schema)

    def of_timers(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch | None:
        """Results of rows that begin with a key and the time to which its timer was set; None if there are none."""
        if not rows:
            return None
        keys, times, *columns = zip(*rows, strict=True)
        arrays = [keys, times, [-1] * len(rows), *columns]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(arrays, self._schema, strict=True)],
            schema=self._schema,
        )


class Work:
    """For ``us`` microseconds an event occupies its slot: ``by`` waiting, which takes no core, or spinning."""

    def __init__(self, us: float, by: str) -> None:
        self._seconds, self._spins = us / 1e6, by == "spinning"

    def begin(self, events: int) -> Callable[[], None]:
        """Give what returns when so many events have taken their time from now on, all together: a pause for each would
        be longer than was asked.
        """
        until = time.perf_counter() + events * self._seconds

        def end() -> None:
            while (left := until - time.perf_counter()) > 0:
                if not self._spins:
                    time.sleep(left)

        return end


class MapOperator(Operator):
    """Passes events on, or those that are ``due``, with these ``fields``, after the ``work`` that each takes. Its units
    have no keys, so a migration moves nothing but ownership.
    """

    state_schema = pa.schema([])

    def __init__(
        self,
        fields: Iterable[pa.Field] = (),
        due: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]] | None = None,
        work: Work | None = None,
    ) -> None:
        self._names, self._due, self._work = [*_NAMES, *(field.name for field in fields)], due, work

    def process(self, events: pa.RecordBatch, state_of: Callable[[UnitId], UnitState]) -> pa.RecordBatch:
        """One result per event that is due."""
        if self._work:
            self._work.begin(events.num_rows)()
        results = events.select(self._names)
        return results if self._due is None else results.filter(pa.array(self._due(events)))
