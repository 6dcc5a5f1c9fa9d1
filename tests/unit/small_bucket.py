"""A store of savepoints whose bucket is a dictionary, and state to put into it."""

from types import SimpleNamespace

import pyarrow as pa
from minio.error import S3Error

from keyshift.endpoints import Endpoints
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.savepoint import SavepointStore

ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
VALUE = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])


class Response:
    def __init__(self, data):
        self.data = data

    def read(self):
        return bytes(self.data)

    def close(self):
        pass

    def release_conn(self):
        pass


class Bucket:
    """As much of MinIO's client as a store uses."""

    def __init__(self):
        self.objects = {}
        self.error = None

    def put_object(self, bucket, name, data, length, part_size):
        if self.error:
            raise self.error
        self.objects[name] = data.read()
        assert len(self.objects[name]) == length

    def get_object(self, bucket, name, offset=0, length=0):
        if self.error:
            raise self.error
        if name not in self.objects:
            raise S3Error(None, "NoSuchKey", f"{name} does not exist", name, None, None)
        return Response(self.objects[name][offset : offset + length if length else None])

    def list_objects(self, bucket, prefix, recursive):
        names = [name for name in self.objects if name.startswith(prefix)]
        if not recursive:
            below = (name.removeprefix(prefix).partition("/") for name in names)
            names = sorted({prefix + first + slash for first, slash, _ in below})
        return [SimpleNamespace(object_name=name) for name in names]

    def remove_object(self, bucket, name):
        self.objects.pop(name, None)


def store_of(job="job"):
    store = SavepointStore(ENDPOINTS, job)
    store._bucket._client = Bucket()
    return store


def state(unit, keys=3, timers=2):
    made = MemoryState(VALUE)
    for key in range(keys):
        made.values[key] = (unit, bytes([unit]) * 50)
    for number in range(timers):
        made.timers.set(EVENT, 100 * unit + number, number)
        made.timers.set(PROCESSING, 7 * unit + number, number)
    made.timers.reach(unit, 2 * unit)
    return made
