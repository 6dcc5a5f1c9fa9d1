"""Savepoints in MinIO: segments of state written by the slots, a manifest written last by the coordinator.

A segment holds many units, one after the other: the length of an Arrow IPC stream with the unit's timers, that stream,
and one with its values if it has any. The slot's index says where each begins, how long
it is and its CRC, so that a query with another number of slots reads just the units it owns.
"""

import io
import json
import secrets
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.error import MinioException

from keyshift import frames
from keyshift.endpoints import Endpoints
from keyshift.errors import ProtocolViolation, ServiceUnavailable
from keyshift.state import UnitState
from keyshift.state.timers import TIMER_SCHEMA

SEGMENT_BYTES = 64 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where the state of one unit is."""

    unit: int
    segment: str
    offset: int
    length: int
    crc: int


class SavepointStore:
    """The savepoints of one job, below ``savepoints/JOB/`` in the bucket."""

    def __init__(self, endpoints: Endpoints, job: str) -> None:
        retries = urllib3.Retry(total=2, backoff_factor=0.2)
        self._client = Minio(
            endpoints.minio,
            access_key=endpoints.access_key,
            secret_key=endpoints.secret_key,
            secure=endpoints.secure,
            http_client=urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=60), retries=retries),
        )
        self._where = endpoints.minio
        self._bucket = endpoints.bucket
        self._prefix = f"savepoints/{job}/"

    def write(
        self, savepoint: str, slot: int, states: Iterable[tuple[int, UnitState]], chunk_bytes: int
    ) -> list[Place]:
        """Write the state of a slot's units; a unit without keys has only its timers. Raises ServiceUnavailable.

        A slot may write the same savepoint again in its next batch, and the first of its acknowledgements counts: what
        is written has names of its own each time.
        """
        places: list[Place] = []
        segment = bytearray()
        prefix = f"{savepoint}/slot-{slot}-{secrets.token_hex(4)}"
        name = f"{prefix}-0"
        for unit, state in states:
            if len(segment) > SEGMENT_BYTES:
                self._put(name, segment)
                segment, name = bytearray(), f"{prefix}-{len(places)}"
            data = _to_bytes(state, chunk_bytes)
            places.append(Place(unit, name, len(segment), len(data), zlib.crc32(data)))
            segment += data
        if segment:
            self._put(name, segment)
        return places

    def read(self, place: Place) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
        """The values and the timers of one unit. Raises ServiceUnavailable if it is not there as it was written."""
        try:
            response = self._client.get_object(
                self._bucket, self._prefix + place.segment, offset=place.offset, length=place.length
            )
            try:
                data = response.read()
            finally:
                response.close()
                response.release_conn()
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            raise ServiceUnavailable(
                f"savepoint segment {place.segment} cannot be read: {self._words(error)}"
            ) from error
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
        self._put(f"{savepoint}/manifest.json", json.dumps(manifest).encode())

    def manifest(self, savepoint: str) -> dict[str, Any]:
        """What was committed. Raises ServiceUnavailable if there is no such savepoint."""
        try:
            response = self._client.get_object(self._bucket, f"{self._prefix}{savepoint}/manifest.json")
            try:
                return json.loads(response.read())  # type: ignore[no-any-return]
            finally:
                response.close()
                response.release_conn()
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            raise ServiceUnavailable(f"savepoint {savepoint} cannot be read: {self._words(error)}") from error

    def places(self, savepoint: str) -> dict[int, Place]:
        """Where the state of each unit is."""
        rows = self.manifest(savepoint)["places"]
        return {row[0]: Place(*row) for slot_rows in rows.values() for row in slot_rows}

    def delete_all(self) -> None:
        """Remove every savepoint of the job."""
        try:
            names = self._client.list_objects(self._bucket, prefix=self._prefix, recursive=True)
            doomed = [DeleteObject(item.object_name) for item in names]
            for error in self._client.remove_objects(self._bucket, doomed):
                raise ServiceUnavailable(f"a savepoint object could not be removed: {error}")
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            raise ServiceUnavailable(f"savepoints could not be removed: {self._words(error)}") from error

    def _words(self, error: Exception) -> str:
        if isinstance(error, urllib3.exceptions.HTTPError):
            return f"MinIO at {self._where} does not answer ({type(error).__name__}); see its log"
        return str(error)

    def _put(self, name: str, data: bytes | bytearray) -> None:
        try:
            self._client.put_object(self._bucket, self._prefix + name, io.BytesIO(data), len(data))
        except (MinioException, urllib3.exceptions.HTTPError) as error:
            raise ServiceUnavailable(f"savepoint object {name} cannot be written: {self._words(error)}") from error


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
