"""Frames as Arrow batches: what routers split, and what operators of workloads work on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyshift.model.keys import Assignment, UnitId, Version, units_of
from keyshift.runtime.operator import Origin
from keyshift.runtime.row import Row
from keyshift.state import UnitState
from keyshift.workloads import KeyedStage


def by_slot(
    slot_of: npt.NDArray[np.integer[Any]], slots: int, in_order: Callable[[npt.NDArray[np.intp]], pa.RecordBatch]
) -> dict[int, bytes]:
    """Give what each slot gets of some rows, as bytes, if it gets any. ``slot_of``: the slot of each row; ``in_order``
    gives the rows in the order of these places.
    """
    order = np.argsort(slot_of, kind="stable")
    edges = np.searchsorted(slot_of[order], np.arange(slots + 1))
    ordered = in_order(order)
    return {
        slot: ordered.slice(edges[slot], edges[slot + 1] - edges[slot]).serialize().to_pybytes()
        for slot in range(slots)
        if edges[slot] < edges[slot + 1]
    }


def by_time(rows: Sequence[Row], schema: pa.Schema) -> list[Row]:
    """Data rows, cut so that their events are in the order of (t, router, offset, place in the row).

    ``schema``: of what a slot gets. A row whose events stay together is left as it is.
    """
    if len(rows) < 2:
        return list(rows)
    batches = [pa.ipc.read_record_batch(row.payload, schema) for row in rows]
    events = pa.concat_batches(batches)
    places = [(row.router, row.offset) for row in rows]
    row_of = np.repeat(np.arange(len(rows)), [batch.num_rows for batch in batches])
    router, offset = np.array(places, np.int64)[row_of].T
    order = np.lexsort((offset, router, events["t"].to_numpy()))  # which is stable
    cuts = np.flatnonzero(np.diff(row_of[order])) + 1
    merged = []
    for piece in np.split(order, cuts):
        row, batch = rows[row_of[piece[0]]], batches[row_of[piece[0]]]
        whole = len(piece) == batch.num_rows and bool((np.diff(piece) == 1).all())
        cut = row.payload if whole else events.take(pa.array(piece)).serialize().to_pybytes()
        merged.append(row._replace(payload=cut))
    return merged


class ArrowSplit:
    """Splits a frame by slot: its events, their position in it and their unit, as bytes, in columns of ``schema``.

    ``placed``: the events have their position, and the rest of their origin, already.
    """

    def __init__(self, schema: pa.Schema, slots: int, key_groups: int, bins: int, placed: bool = False) -> None:
        self._schema, self._slots, self._key_groups, self._bins = schema, slots, key_groups, bins
        self._placed = placed

    def __call__(self, events: pa.RecordBatch, assignment: Assignment) -> dict[int, bytes]:
        """Give each slot's part of ``events``; see ``RouterCore``."""
        if not events.num_rows:
            return {}
        units = units_of(events["key"].to_numpy(), self._key_groups, self._bins)

        def in_order(order: npt.NDArray[np.intp]) -> pa.RecordBatch:
            taken = events.take(pa.array(order))
            position = [] if self._placed else [pa.array(order.astype(np.int32))]
            return pa.RecordBatch.from_arrays([*taken.columns, *position, pa.array(units[order])], schema=self._schema)

        return by_slot(assignment.slot_of[units], self._slots, in_order)


class ArrowOperator:
    """See ``FrameOperator``. ``events`` and ``results``: columns of what comes in and goes out. ``placed``: events say
    themselves where they come from; otherwise their row does.
    """

    def __init__(self, stage: KeyedStage, events: pa.Schema, results: pa.Schema, placed: bool = False) -> None:
        self._operator, self._due = stage.operator(), stage.due
        self._placed = placed
        self.uses_time = self._operator.uses_time
        self._events, self._results = events, results

    def initial(self, unit: UnitId, state: UnitState) -> None:  # noqa: D102
        self._operator.initial(unit, state)

    def events(self, payload: pa.Buffer | bytes) -> pa.RecordBatch:  # noqa: D102
        return pa.ipc.read_record_batch(payload, self._events)

    def units(self, events: pa.RecordBatch) -> npt.NDArray[np.integer[Any]]:  # noqa: D102
        return events["unit"].to_numpy()  # type: ignore[no-any-return]

    def keys(self, events: pa.RecordBatch) -> npt.NDArray[np.integer[Any]]:  # noqa: D102
        return events["key"].to_numpy()  # type: ignore[no-any-return]

    def nbytes(self, events: pa.RecordBatch) -> int:  # noqa: D102
        return events.nbytes  # type: ignore[no-any-return]

    def by_unit(self, events: pa.RecordBatch) -> Iterator[tuple[UnitId, pa.RecordBatch]]:  # noqa: D102
        units = events["unit"].to_numpy()
        order = np.argsort(units, kind="stable")
        sorted_ = events.take(pa.array(order))
        found, begins = np.unique(units[order], return_index=True)
        ends = [*begins[1:].tolist(), len(units)]
        for unit, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True):
            yield unit, sorted_.slice(begin, end - begin)

    def one_by_one(self, events: pa.RecordBatch) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return (events.slice(row, 1) for row in range(events.num_rows))

    def filter(self, events: pa.RecordBatch, which: npt.NDArray[np.bool_]) -> pa.RecordBatch:  # noqa: D102
        return events.filter(pa.array(which))

    def together(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:  # noqa: D102
        return pa.concat_batches(parts)

    def process(  # noqa: D102
        self, events: pa.RecordBatch, origin: Origin, state_of: Callable[[UnitId], UnitState]
    ) -> pa.RecordBatch:
        if self._placed:
            _, version, _ = origin
            origin = [events["router"].to_numpy(), version, events["offset"].to_numpy()]
        if self._due is not None:  # one value for each result, not for each event
            due = self._due(events)
            origin = [column if isinstance(column, int) else column[due] for column in origin]
        router, version, offset = origin
        return self._labelled(self._operator.process(events, state_of), router=router, version=version, offset=offset)

    def advance(self, states: Iterable[UnitState], version: Version) -> pa.RecordBatch | None:  # noqa: D102
        fired = self._operator.advance(states)
        return None if fired is None else self._labelled(fired, router=-1, offset=-1, version=version)

    def _labelled(self, out: pa.RecordBatch, **labels: int | npt.NDArray[np.int64]) -> pa.RecordBatch:
        """``out`` with more columns, of one value for all rows or one for each."""
        columns = []
        for field in self._results:
            if field.name not in labels:
                columns.append(out[field.name])
            elif isinstance(label := labels[field.name], int):
                columns.append(pa.repeat(pa.scalar(label, field.type), out.num_rows))
            else:
                columns.append(pa.array(label, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._results)
