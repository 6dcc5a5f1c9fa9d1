"""Frames: Arrow IPC bytes of many events (or results), the row that Kafka and Spark carry.

A frame is a complete IPC stream with one record batch, so a reader can check its schema. What is true of the whole
frame travels as schema metadata. A frame without rows is a *tick* (from a generator) or a *marker* (from a slot).

Whoever makes frames cuts them (``cut``), so that what piles up somewhere becomes more frames, not larger ones.

A frame of events says in which *epoch* it was offered: that of the driver whose generator it comes from. Behind the
first frame of an epoch, those of earlier ones in the same partition are *stale*: they come from a generator whose
driver was deposed, count for nothing, and are offered once more by the next one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from keyshift.model import messages
from keyshift.model.errors import ProtocolViolation
from keyshift.model.markers import SlotMarker

EVENT_FIELDS = (
    pa.field("key", pa.int64()),
    pa.field("t", pa.int64()),  # microseconds since the epoch at which the generator was scheduled to create the event
)
RESULT_FIELDS = (
    pa.field("key", pa.int64()),
    pa.field("t", pa.int64()),
    pa.field("router", pa.int32()),  # with offset and position: which event this is the result of
    pa.field("offset", pa.int64()),
    pa.field("position", pa.int32()),
    pa.field("version", pa.int64()),  # assignment version the event was routed under
)
ARRIVAL_FIELDS = (  # what the collector says of each result; see ``traffic.collector``
    pa.field("slot", pa.int32()),
    pa.field("log_offset", pa.int64()),
    pa.field("arrived_us", pa.int64()),
    pa.field("replica", pa.int16()),
    pa.field("slot_turn", pa.int64()),
    pa.field("attempt", pa.int32()),
    pa.field("first", pa.bool_()),
)

FIRST_EPOCH = 1  # of a job
MOST_BYTES = 512 << 10  # of an encoded frame with more than one row
MAX_FRAME_BYTES = 16 << 20  # of any frame: what topics and producers are told to take, for rows that are larger

_META = b"keyshift"
_SCHEMA_BYTES = 8 << 10  # room for what an encoded frame has beside its record batch: columns and facts


@dataclass(frozen=True, slots=True)
class OfTurn:
    """Which turn results are of: the ``number``-th one of their slot, behind which it is in ``epoch`` (of its order)
    and has this ``chain``. ``piece``: so many frames of the turn come before this one. ``attempt``: of its job.
    """

    number: int
    epoch: int
    chain: int
    piece: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a whole frame: ``watermark`` (microseconds since the epoch) and ``epoch`` of one of events, what
    a marker says, and of which ``turn`` results are, if their slot works in turns. A frame without rows may tell of a
    turn, too, that has no results.
    """

    watermark: int = 0
    epoch: int = FIRST_EPOCH
    said: SlotMarker | None = None
    turn: OfTurn | None = None


NO_FACTS = Facts()


def encode(batch: pa.RecordBatch, facts: Facts = NO_FACTS) -> bytes:
    """The bytes of one frame."""
    schema = batch.schema.with_metadata(None if facts is NO_FACTS else {_META: messages.encode(facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut ``batch`` into pieces, in order, each of which makes a frame of at most ``MOST_BYTES``, or has a single row.

    A batch that is small enough, also one without rows, is its only piece. Nothing is copied.
    """
    rows = batch.num_rows
    if rows < 2 or pa.ipc.get_record_batch_size(batch) + _SCHEMA_BYTES <= MOST_BYTES:
        yield batch
    else:
        yield from cut(batch.slice(0, rows // 2))
        yield from cut(batch.slice(rows // 2))


def decode(value: Any, expected: pa.Schema) -> tuple[pa.RecordBatch, Facts]:
    """The batch and the facts of a frame. Raises ProtocolViolation if they are not those expected."""
    try:
        reader = pa.ipc.open_stream(value)
        batch = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise ProtocolViolation(f"a frame cannot be read as Arrow IPC: {error}") from error
    if not reader.schema.equals(expected):
        raise ProtocolViolation(
            f"a frame has columns {reader.schema.names}, expected {expected.names} with their types"
        )
    raw = (reader.schema.metadata or {}).get(_META)
    try:
        return batch, messages.decode(Facts, raw) if raw else NO_FACTS
    except ValueError as error:
        raise ProtocolViolation(f"what a frame says of itself cannot be read: {error}") from error


def row_count(value: Any) -> int:
    """Count the rows of a frame, whatever its columns are."""
    return int(pa.ipc.open_stream(value).read_next_batch().num_rows)


def keys_of(values: pa.Array) -> pa.Array:
    """The 64-bit key of each value, the same on every machine and release.

    An integer is its own key. Text, bytes, times and other numbers have a hash of their bytes or their text: two values
    share a key by chance only, one pair in 2**64. No value may be null. Lists and structs have no text, and no key.
    """
    types = pa.types
    if types.is_integer(values.type):
        return values.cast(pa.int64(), safe=False)
    if types.is_binary_view(values.type) or types.is_string_view(values.type):
        values = pa.array(values.to_pylist(), pa.binary())  # of views Arrow makes no dictionary
    distinct = values.dictionary_encode()
    found = distinct.dictionary
    if not (types.is_binary(found.type) or types.is_large_binary(found.type) or types.is_fixed_size_binary(found.type)):
        found = found.cast(pa.string()).cast(pa.binary())
    hashed = [blake2b(value, digest_size=8).digest() for value in found.to_pylist()]
    return pa.array(np.frombuffer(b"".join(hashed), "<i8")).take(distinct.indices)


@cache
def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of ``schema`` without rows: what ticks and markers are made of."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
