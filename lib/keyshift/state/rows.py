"""Single rows of a unit's state, as they travel when not the whole unit does."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from keyshift.state import UnitState

Value = tuple[Any, ...]


def pack(schema: pa.Schema, rows: Iterable[tuple[int, Value]]) -> pa.RecordBatch:
    """Rows of key and value as one batch of ``schema``, whose first column is the key."""
    columns: list[list[Any]] = [[] for _ in schema]
    for key, value in rows:
        for column, item in zip(columns, (key, *value), strict=True):
            column.append(item)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpack(batch: pa.RecordBatch) -> Iterator[tuple[int, Value]]:
    """The inverse of ``pack``."""
    for key, *value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield key, tuple(value)


def take(state: "UnitState", keys: Iterable[int]) -> list[tuple[int, Value]]:
    """Those of ``keys`` that ``state`` has, with their values."""
    values = state.values
    return [(key, value) for key in keys if (value := values[key]) is not None]
