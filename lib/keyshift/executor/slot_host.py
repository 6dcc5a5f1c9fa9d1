"""What outlives a batch in a Python worker: its Flight server, and the state that is here for others to fetch."""

import os
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from keyshift.errors import KeyshiftError
from keyshift.executor.config import JobConfig
from keyshift.executor.transfer import Parcel, StateServer, Stay
from keyshift.state import UnitState, backends, rows

POD_ADDRESS = "SPARK_EXECUTOR_POD_IP"  # Spark sets it in the executors it makes on Kubernetes
SLICE_KEYS = 256  # read from or written to live state at a time, so that nobody waits long for it


class Tenant(Protocol):
    """The slot that works in this process during a batch."""

    slot: int

    def parcels_arrived(self, parcels: list[Parcel]) -> list[bool]:
        """See ``transfer.Holder.receive``."""

    def message(self, body: dict[str, Any]) -> None:
        """See ``transfer.StateClients.tell``, kind ``units``."""


class Copies:
    """Copies of units that other slots own, kept here for a slot that may get them. Parts come in order, or anew."""

    def __init__(self, config: JobConfig, state_schema: pa.Schema) -> None:
        self._make = backends.get(config.backend)[0]
        self._schema = state_schema
        self._lock = threading.Lock()
        self._copies: dict[tuple[int, int], tuple[int, UnitState]] = {}

    def add(self, slot: int, unit: int, number: int, batches: list[pa.RecordBatch], deleted: list[int]) -> None:
        """See ``transfer.Holder.copy``. Raises KeyshiftError for a part that does not follow the one before."""
        with self._lock:
            last, copy = self._copies.pop((slot, unit), (-1, self._make(self._schema)))
        if number == 0 and last >= 0:
            last, copy = -1, self._make(self._schema)
        if number != last + 1:
            raise KeyshiftError(f"part {number} of the copy of unit {unit} came after part {last}")
        copy.install(batches)
        for key in deleted:
            copy.delete(key)
        with self._lock:
            self._copies[slot, unit] = number, copy

    def take(self, slot: int, unit: int, number: int) -> UnitState | None:
        """The copy, if it is here and has all parts up to ``number``, perhaps more; it is not kept."""
        with self._lock:
            last, copy = self._copies.pop((slot, unit), (-1, None))
        return copy if last >= number else None


class SlotHost:
    """One per worker process and attempt of a job; see ``transfer.Holder`` for most methods."""

    def __init__(self, config: JobConfig) -> None:
        self.key = (config.job, config.attempt)
        operator = config.make_workload().operator()
        self.uses_time = operator.uses_time
        self.value_schema = operator.state_schema
        self.state_schema = pa.schema([pa.field("key", pa.int64()), *operator.state_schema])
        self.left: dict[int, dict[int, UnitState]] = {}  # slot -> units it left here at the end of a batch
        self.lent: dict[Stay, UnitState] = {}  # units whose ownership has left, with the keys that did not
        self._written: dict[Stay, int] = {}  # number of the last values that came back
        self.copies = Copies(config, self.value_schema)
        self.warm = False  # whether what is slow the first time was done
        self.tenants: dict[int, Tenant] = {}
        self._lock = threading.Lock()  # of what is lent
        host = os.environ.get(POD_ADDRESS) or config.host
        self.server = StateServer(self, host, config.token, config.chunk_bytes)

    def receive(self, slot: int, parcels: list[Parcel]) -> list[bool]:  # noqa: D102
        return self._tenant(slot).parcels_arrived(parcels)

    def sealed(self, slot: int, unit: int) -> UnitState:  # noqa: D102
        return self.left[slot][unit]

    def taken(self, slot: int, unit: int) -> None:  # noqa: D102
        del self.left[slot][unit]

    def keys(self, stay: Stay, keys: list[int]) -> list[rows.Row]:  # noqa: D102
        with self._lock:
            state = self.lent.get(stay)
            return rows.take(state, keys) if state is not None else []

    def rest(self, stay: Stay, after: int | None) -> Iterator[pa.RecordBatch]:  # noqa: D102
        with self._lock:
            state = self.lent.get(stay)
            keys = state.keys() if state is not None else []
        keys = sorted(key for key in keys if after is None or key > after)
        for begin in range(0, len(keys), SLICE_KEYS):
            yield rows.pack(self.state_schema, self.keys(stay, keys[begin : begin + SLICE_KEYS]))

    def forget(self, stay: Stay, keys: list[int]) -> None:  # noqa: D102
        with self._lock:
            if (state := self.lent.get(stay)) is not None:
                for key in keys:
                    state.delete(key)

    def write(self, stay: Stay, number: int, written: list[rows.Row], deleted: list[int]) -> None:  # noqa: D102
        with self._lock:
            if (state := self.lent.get(stay)) is not None and number > self._written.get(stay, 0):
                self._written[stay] = number
                for key, value in written:
                    state.values[key] = value
                for key in deleted:
                    state.delete(key)

    def copy(self, slot: int, unit: int, number: int, batches: list[pa.RecordBatch], deleted: list[int]) -> None:  # noqa: D102
        self.copies.add(slot, unit, number, batches, deleted)

    def message(self, kind: str, body: dict[str, Any]) -> None:  # noqa: D102
        if kind == "units":
            self._tenant(body["slot"]).message(body)
            return
        with self._lock:
            for unit, version in body["stays"]:
                self.lent.pop((unit, version), None)
                self._written.pop((unit, version), None)

    def _tenant(self, slot: int) -> Tenant:
        tenant = self.tenants.get(slot)
        if tenant is None:
            raise KeyshiftError(f"slot {slot} is not in this process")
        return tenant


_host: SlotHost | None = None


def host_for(config: JobConfig) -> SlotHost:
    """The host of this process; a worker that is reused for another job starts afresh."""
    global _host
    if _host is None or _host.key != (config.job, config.attempt):
        if _host is not None:  # not waited for: it ends when the last of those who still ask there has given up
            threading.Thread(target=_host.server.shutdown, name="keyshift-old-server", daemon=True).start()
        _host = SlotHost(config)
    return _host
