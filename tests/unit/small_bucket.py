"""A store of savepoints whose bucket is a dictionary, and state to put into it."""

from types import SimpleNamespace

import pyarrow as pa
from minio.error import S3Error

from keyshift.endpoints import Endpoints
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.savepoint import SavepointStore, wholes

ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
VALUE = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])

KEYED = pa.schema([pa.field("key", pa.int64()), *VALUE])


class Bucket:
    """The one stand-in for MinIO's client, as much of it as our code uses.

    ``error``: what every call raises; ``failures``: what the next looks for the bucket raise, one each.
    """

    def __init__(self, error=None, failures=()):
        self.objects, self.sizes, self.buckets = {}, {}, set()
        self.error, self.failures = error, list(failures)

    def _called(self):
        if self.error:
            raise self.error

    def put_object(self, bucket, name, data, length, part_size):
        self._called()
        self.objects[name] = data.read()
        assert len(self.objects[name]) == length
        self.sizes[name] = length, part_size

    def get_object(self, bucket, name, offset=0, length=0):
        self._called()
        if name not in self.objects:
            raise s3_error("NoSuchKey")
        if (offset or length) and offset >= len(self.objects[name]):
            raise s3_error("InvalidRange")
        data = self.objects[name][offset : offset + length if length else None]
        return SimpleNamespace(read=lambda: bytes(data), close=lambda: None, release_conn=lambda: None)

    def list_objects(self, bucket, prefix, recursive):
        self._called()
        names = [name for name in self.objects if name.startswith(prefix)]
        if not recursive:
            below = (name.removeprefix(prefix).partition("/") for name in names)
            names = sorted({prefix + first + slash for first, slash, _ in below})
        return [SimpleNamespace(object_name=name) for name in names]

    def remove_object(self, bucket, name):
        self._called()
        self.objects.pop(name, None)

    def bucket_exists(self, bucket):
        if self.failures:
            raise self.failures.pop(0)
        return bucket in self.buckets

    def make_bucket(self, bucket):
        self._called()
        self.buckets.add(bucket)


def s3_error(code):
    """What MinIO's client raises for this answer of the store."""
    return S3Error(response=None, code=code, message="so it is", resource=None, request_id=None, host_id=None)


def store_of(job="job"):
    store = SavepointStore(ENDPOINTS, job)
    store._bucket._client = Bucket()
    return store


def write(store, name, slot, states, chunk_bytes=100, **more):
    """The whole state of these units."""
    return store.write(name, slot, wholes(states), KEYED, chunk_bytes, **more)


def state(unit, keys=3, timers=2):
    made = MemoryState(VALUE)
    for key in range(keys):
        made.values[key] = (unit, bytes([unit]) * 50)
    for number in range(timers):
        made.timers.set(EVENT, 100 * unit + number, number)
        made.timers.set(PROCESSING, 7 * unit + number, number)
    made.timers.reach(unit, 2 * unit)
    return made


def read(store, *places):
    """The values and the timers of one unit, from all its parts in their order."""
    [[found]] = store.read({places[0].unit: places})
    return found.values, found.timers
