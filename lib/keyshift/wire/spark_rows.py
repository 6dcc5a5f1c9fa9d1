"""Rows between router and slot as Spark carries them.

A row has one column beside the number of its slot. Each further column would cost the JVM and Python more than its
bytes do, once per row (docs/performance.md).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from keyshift.model.keys import SlotId
from keyshift.runtime.row import DATA, Row

# Kinds of rows that are not for the slot's core. A primer says nothing: the first row of a slot, which Spark would keep
# back with what follows it. A marker is what a slot of the stage before says to the job; it is passed on.
PRIMER, MARKER = 7, 8
# What the router's task gives: a value for a task of slots. And what that gives: a result frame or a marker, for the
# partition of the slot; a task that has several slots says of which one it is.
ROUTED = "task int, value binary"
ANSWERED, ANSWERED_OF = "value binary", "value binary, partition int"
VALUES = pa.schema([pa.field("value", pa.binary())])
_HEADER = struct.Struct("<iiqqqQ")
_KIND = struct.Struct("<i")  # with which a header begins, and a bundle
_PLACE = struct.Struct("<ii")  # of a row in a bundle: its slot, and its length in bytes
KIND_BYTES, PRIMER_KIND, NO_PRIMER = _KIND.size, _KIND.pack(PRIMER), _KIND.pack(DATA)


def packed(row: Row) -> bytes:
    """The value of a row whose payload is bytes."""
    return _HEADER.pack(*row[:5], row.chain) + row.payload  # type: ignore[no-any-return]


def routed(rows: Sequence[tuple[int, bytes]], slots_per_process: int = 1) -> pa.RecordBatch:
    """Slot and value of each row, as ``ROUTED``. Rows to several slots of one process go as one: a bundle."""
    tasks, values = zip(*(_bundles(rows, slots_per_process) if slots_per_process > 1 else rows), strict=True)
    return pa.RecordBatch.from_arrays([pa.array(tasks, pa.int32()), pa.array(values, pa.binary())], ["task", "value"])


def _bundles(rows: Sequence[tuple[int, bytes]], slots_per_process: int) -> Iterator[tuple[int, bytes]]:
    """The rows of each task in their order. Primers are in a bundle of their own, which stands alone as they do."""
    bundles: dict[tuple[int, bool], list[bytes]] = {}
    for slot, value in rows:
        primes = value.startswith(PRIMER_KIND)
        bundle = bundles.setdefault((slot // slots_per_process, primes), [PRIMER_KIND if primes else NO_PRIMER])
        bundle += (_PLACE.pack(slot, len(value)), value)
    for (task, _), bundle in sorted(bundles.items(), key=lambda item: not item[0][1]):
        yield task, b"".join(bundle)


def received(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch whose only column is their value. Rows without a value only push others, and are left out."""
    for value in batch.column(0):
        if value.is_valid:
            yield _row(value.as_buffer())


def received_by(slots: Sequence[SlotId], batch: pa.RecordBatch, slots_per_process: int = 1) -> dict[SlotId, list[Row]]:
    """The rows of a batch, as ``received`` gives them, for each of these ``slots`` of a task."""
    if slots_per_process == 1:
        return {slots[0]: list(received(batch))}
    rows: dict[SlotId, list[Row]] = {slot: [] for slot in slots}
    for value in batch.column(0):
        if value.is_valid:
            bundle, at = value.as_buffer(), _KIND.size
            while at < bundle.size:
                slot, size = _PLACE.unpack_from(bundle, at)
                at += _PLACE.size
                rows[slot].append(_row(bundle.slice(at, size)))
                at += size
    return rows


def _row(raw: pa.Buffer) -> Row:
    kind, router, version, offset, watermark, chain = _HEADER.unpack_from(raw)
    return Row(kind, router, version, offset, watermark, raw.slice(_HEADER.size), chain)


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


def of_slot(slot: SlotId, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what ``slot`` answers, as ``ANSWERED_OF``."""
    return batch.append_column("partition", pa.repeat(pa.scalar(slot, pa.int32()), batch.num_rows))
