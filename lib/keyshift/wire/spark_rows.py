"""Rows between router and slot as Spark carries them.

A row has one column beside the number of its slot. Each further column would cost the JVM and Python more than its
bytes do, once per row (docs/performance.md).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from keyshift.runtime.row import Row

# Kinds of rows that are not for the slot's core. A primer says nothing: the first row of a slot, which Spark would keep
# back with what follows it. A marker is what a slot of the stage before says to the job; it is passed on.
PRIMER, MARKER = 7, 8
ROUTED = "slot int, value binary"  # what the router's task gives, and
ANSWERED = "value binary"  # what the slot's task gives: a result frame or a marker, for the partition of the slot
VALUES = pa.schema([pa.field("value", pa.binary())])
_HEADER = struct.Struct("<iiqqqQ")
_KIND = struct.Struct("<i")  # with which a header begins
KIND_BYTES, PRIMER_KIND = _KIND.size, _KIND.pack(PRIMER)


def packed(row: Row) -> bytes:
    """The value of a row whose payload is bytes."""
    return _HEADER.pack(*row[:5], row.chain) + row.payload  # type: ignore[no-any-return]


def routed(rows: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Slot and value of each row, as ``ROUTED``."""
    slots, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), pa.array(values, pa.binary())], ["slot", "value"])


def received(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch whose only column is their value. Rows without a value only push others, and are left out."""
    for value in batch.column(0):
        if value.is_valid:
            raw = value.as_buffer()
            kind, router, version, offset, watermark, chain = _HEADER.unpack_from(raw)
            yield Row(kind, router, version, offset, watermark, raw.slice(_HEADER.size), chain)


def in_batches(rows: Iterable[Row], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows as ``received`` takes them; a batch has at most so many bytes, or a single row."""
    values: list[bytes] = []
    size = 0
    for row in rows:
        value = packed(row._replace(payload=bytes(row.payload)))
        if values and size + len(value) > most_bytes:
            yield answered(values)
            values, size = [], 0
        values.append(value)
        size += len(value)
    if values:
        yield answered(values)


def answered(values: list[bytes]) -> pa.RecordBatch:
    """Result frames and markers, as ``ANSWERED``."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=VALUES)
