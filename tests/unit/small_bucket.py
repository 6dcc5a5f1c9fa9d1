"""A store of savepoints whose bucket is a dictionary, and state to put into it."""

import pyarrow as pa

from keyshift.endpoints import Endpoints
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.savepoint import SavepointStore, wholes
from memory_bucket import MemoryBucket

ENDPOINTS = Endpoints("k:1", "z:1", "m:1", access_key="a", secret_key="s")
VALUE = pa.schema([pa.field("count", pa.int64()), pa.field("payload", pa.binary())])

KEYED = pa.schema([pa.field("key", pa.int64()), *VALUE])


def store_of(job="job", client=None):
    """``store.client``: that of its bucket."""
    client = client or MemoryBucket()
    store = SavepointStore(ENDPOINTS, job, client)
    store.client = client
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
