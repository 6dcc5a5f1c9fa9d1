"""Savepoints in MinIO: segments of state written by the slots, a manifest written last by the coordinator.

A segment holds many units, one after the other: the length of an Arrow IPC stream with the unit's timers, that stream,
and one with its values if it has any. The slot's index has beginning, length and CRC of each unit, so that the slots of
a query with another number of slots read just the units they own.
"""

import json
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyshift import frames
from keyshift.endpoints import Endpoints
from keyshift.errors import ProtocolViolation, ServiceUnavailable
from keyshift.objects import Bucket
from keyshift.state import UnitState
from keyshift.state.timers import TIMER_SCHEMA

SEGMENT_BYTES = 64 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Location:
    """Where the state of one unit is: a stretch of a segment."""

    unit: int
    segment: str
    offset: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A committed savepoint: where each router continues, and how much state it holds."""

    name: str
    offsets: dict[int, int]
    state_bytes: int
    unit_bytes: dict[int, int]


class SavepointStore:
    """The savepoints of one job, below ``savepoints/JOB/`` in the bucket."""

    def __init__(self, endpoints: Endpoints, job: str) -> None:
        self._bucket = Bucket(endpoints, f"savepoints/{job}/")

    def write(
        self, savepoint: str, slot: int, states: Iterable[tuple[int, UnitState]], chunk_bytes: int
    ) -> list[Location]:
        """Write the state of a slot's units; a unit without keys has only its timers. Raises ServiceUnavailable.

        A slot may write the same savepoint again in its next batch, and the first of its acknowledgements counts: what
        is written has names of its own each time.
        """
        places: list[Location] = []
        segment = bytearray()
        prefix = f"{savepoint}/slot-{slot}-{secrets.token_hex(4)}"
        name = f"{prefix}-0"
        for unit, state in states:
            if len(segment) > SEGMENT_BYTES:
                self._bucket.put(name, segment, in_parts=True)
                segment, name = bytearray(), f"{prefix}-{len(places)}"
            data = _to_bytes(state, chunk_bytes)
            places.append(Location(unit, name, len(segment), len(data), zlib.crc32(data)))
            segment += data
        if segment:
            self._bucket.put(name, segment, in_parts=True)
        return places

    def read(self, place: Location) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
        """The values and the timers of one unit. Raises ServiceUnavailable if it is not there as it was written."""
        data = self._bucket.get(place.segment, place.offset, place.length)
        if zlib.crc32(data) != place.crc:
            raise ServiceUnavailable(f"savepoint segment {place.segment}: unit {place.unit} does not have its checksum")
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
        timers, _ = frames.decode(data[_LENGTH_BYTES:end], TIMER_SCHEMA)
        return (list(pa.ipc.open_stream(data[end:])) if len(data) > end else []), timers

    def commit(self, savepoint: str, manifest: dict[str, Any]) -> None:
        """Write the manifest: only now does the savepoint exist.

        Raises ProtocolViolation unless the slots have written every unit of the assignment exactly once.
        """
        written = Counter(unit for rows in manifest["places"].values() for unit, *_ in rows)
        units = Counter(range(len(manifest["assignment"]["owner"])))
        if wrong := sorted((written - units) + (units - written)):
            raise ProtocolViolation(f"savepoint {savepoint}: units {wrong[:5]} are missing, or in it more than once")
        self._bucket.put(f"{savepoint}/manifest.json", json.dumps(manifest).encode())

    def manifest(self, savepoint: str) -> dict[str, Any]:
        """What was committed. Raises ServiceUnavailable if there is no such savepoint."""
        return json.loads(self._bucket.get(f"{savepoint}/manifest.json"))  # type: ignore[no-any-return]

    def places(self, savepoint: str) -> dict[int, Location]:
        """Where the state of each unit is."""
        rows = self.manifest(savepoint)["places"]
        return {row[0]: Location(*row) for slot_rows in rows.values() for row in slot_rows}

    def delete_all(self) -> None:
        """Remove every savepoint of the job. Raises ServiceUnavailable."""
        self._bucket.remove(self._bucket.names())


def _to_bytes(state: UnitState, chunk_bytes: int) -> bytes:
    timers = frames.encode(state.timers.export())
    return len(timers).to_bytes(_LENGTH_BYTES, "big") + timers + _stream(state.export(chunk_bytes))


def _stream(batches: Iterable[pa.RecordBatch]) -> bytes:
    """One Arrow IPC stream; nothing at all if there is no batch."""
    sink, writer = pa.BufferOutputStream(), None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
