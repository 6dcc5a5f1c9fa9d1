"""State in the memory of the Python worker.

State that arrives stays in its columns, and a row becomes a Python value when its key is first touched: a unit is
installed in the time it takes to index its keys, and rows nobody touched leave again without any work per value.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from keyshift.model.errors import ProtocolViolation
from keyshift.state.tracking import Noting, TrackedState, Value, ValueDict

_FIRST_ROWS = 64  # built to learn how large a row is
_GROWTH = 64  # a chunk has at most so many times the rows of the one before: sizes are only known once it is built


class MemoryStore:
    """All values are where they are used: nothing to load, to write down or to close. See ``Store``."""

    def __init__(self, slot: str, schema: pa.Schema, settings: object) -> None:
        self._schema = schema

    def unit(self, unit: int) -> "MemoryState":  # noqa: D102
        return MemoryState(self._schema)

    def adopt(self, unit: int, reference: str) -> "MemoryState":
        """Never called: nobody else reaches these states."""
        raise ProtocolViolation(f"unit {unit} cannot be taken over by reference: its values are in another process")

    def load(self, wanted: Iterable[Any]) -> None:  # noqa: D102
        pass

    def checkpoint(self) -> None:  # noqa: D102
        pass

    def close(self) -> None:  # noqa: D102
        pass


@cache
def _nothing(schema: pa.Schema) -> pa.Table:
    """A table without rows, with the key before the columns of ``schema``. To make it takes longer than all the rest of
    an empty unit, and its schema as much memory.
    """
    return pa.schema([pa.field("key", pa.int64()), *schema]).empty_table()


class _Values(ValueDict[Value]):
    """The values that were touched or set, and behind them the rows that were not touched since they arrived."""

    def __init__(self, nothing: pa.Table) -> None:
        super().__init__()
        self._nothing = self.arrived = nothing
        self.untouched: dict[int, int] = {}  # key -> row of ``arrived``; a key that was set meanwhile may still be here

    def __missing__(self, key: int) -> Value | None:
        row = self.untouched.pop(key, None)
        if row is None:
            return None
        value = tuple(column[row].as_py() for column in self.arrived.columns[1:])
        dict.__setitem__(self, key, value)  # it was touched, but nobody changed it
        if not self.untouched:
            self.arrived = self._nothing
        return value

    def arrived_rows(self) -> pa.Table:
        """The rows that were neither touched nor replaced."""
        if not self.untouched:
            return self._nothing
        if not self and len(self.untouched) == self.arrived.num_rows:
            return self.arrived
        rows = pa.array((row for key, row in self.untouched.items() if key not in self), pa.int64())
        return self.arrived if len(rows) == self.arrived.num_rows else self.arrived.take(rows)


class MemoryState(TrackedState[_Values]):
    """One dictionary per unit; see ``UnitState`` for the meaning of the methods.

    The columns that arrived are let go when the last of their rows has been touched; until then a unit may take its
    size twice.
    """

    def __init__(self, schema: pa.Schema) -> None:
        nothing = _nothing(schema)
        self._schema = nothing.schema
        super().__init__(_Values(nothing))

    def take(self, keys: Iterable[int]) -> list[tuple[int, Value]]:  # noqa: D102
        values = self.values
        return [(key, value) for key in keys if (value := values[key]) is not None]

    def delete(self, key: int) -> None:  # noqa: D102
        self.values.pop(key, None)
        self.values.untouched.pop(key, None)
        if isinstance(self.values, Noting):
            self.values.changed.add(key)

    def copy(self) -> "MemoryState":  # noqa: D102
        other = MemoryState(self._schema.remove(0))
        other.values.update(self.values)
        other.values.arrived, other.values.untouched = self.values.arrived, dict(self.values.untouched)
        return other

    def keys(self) -> list[int]:  # noqa: D102
        return list(self.values.keys() | self.values.untouched.keys())

    def __len__(self) -> int:
        return len(self.values.keys() | self.values.untouched.keys())

    def export(self, chunk_bytes: int) -> Iterator[pa.RecordBatch]:  # noqa: D102
        if (arrived := self.values.arrived_rows()).num_rows:
            for batch in arrived.to_batches():
                yield from _cut(batch, chunk_bytes)
        keys, values, rows = iter(self.values), iter(self.values.values()), _FIRST_ROWS
        while some := list(islice(keys, rows)):
            batch = self._build(some, list(islice(values, rows)))
            yield from _cut(batch, chunk_bytes)
            fit = chunk_bytes * batch.num_rows // max(1, batch.nbytes)
            rows = max(1, min(fit, rows * _GROWTH))

    def _build(self, keys: Sequence[int], values: Sequence[Value]) -> pa.RecordBatch:
        fields = len(self._schema) - 1
        if other := set(map(len, values)) - {fields}:
            raise ValueError(f"a value has {other.pop()} fields, its schema {fields}")
        # Column by column: zip(*values) would make an iterator per value, and with it the garbage collector's work.
        columns = [keys, *(list(map(itemgetter(i), values)) for i in range(fields))]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def install(self, batches: Iterable[pa.RecordBatch]) -> None:  # noqa: D102
        values = self.values
        arriving = pa.Table.from_batches(batches, self._schema)
        kept = values.arrived_rows()
        first = kept.num_rows
        values.arrived = pa.concat_tables([kept, arriving]) if first else arriving  # an empty chunk makes rows dear
        values.untouched = dict(zip(values.arrived["key"].to_pylist(), range(first + arriving.num_rows), strict=True))
        for key in values.keys() & values.untouched.keys():
            del values[key]  # the newcomer counts


def _cut(batch: pa.RecordBatch, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """``batch`` in pieces of at most ``chunk_bytes``, as far as single rows allow."""
    most = batch.get_total_buffer_size()  # that of the whole, if this is a part of it; its own costs ten times as much
    if most <= chunk_bytes or batch.nbytes <= chunk_bytes or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half), chunk_bytes)
    yield from _cut(batch.slice(half), chunk_bytes)
