"""Single rows of a unit's state, as they travel when not the whole unit does."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from keyshift.state.tracking import Value

KeyValue = tuple[int, Value]


def pack(schema: pa.Schema, rows: Iterable[KeyValue]) -> pa.RecordBatch:
    """Rows of key and value as one batch of ``schema``, whose first column is the key."""
    columns: list[list[Any]] = [[] for _ in schema]
    for key, value in rows:
        for column, item in zip(columns, (key, *value), strict=True):
            column.append(item)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpack(batch: pa.RecordBatch) -> Iterator[KeyValue]:
    """The inverse of ``pack``."""
    for key, *value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield key, tuple(value)


def join(schema: pa.Schema, parts: Sequence[Sequence[KeyValue]]) -> tuple[pa.RecordBatch, list[int]]:
    """The rows of all parts as one batch, and how many belong to each: a batch of its own for each would cost more."""
    return pack(schema, chain.from_iterable(parts)), [len(part) for part in parts]


def split(batch: pa.RecordBatch, sizes: Iterable[int]) -> list[list[KeyValue]]:
    """The inverse of ``join``."""
    rows = unpack(batch)
    return [list(islice(rows, size)) for size in sizes]
