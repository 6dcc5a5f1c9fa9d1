"""The part of a Python worker that outlives a batch: its Flight server, and the state that others fetch from here."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.model.keys import SlotId, UnitId, Version
from keyshift.runtime.key_access import SLICE_KEYS, Stay
from keyshift.runtime.row import Row
from keyshift.runtime.snapshots import Snapshots
from keyshift.state import Store, UnitState, rows
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination, attempts
from keyshift.wire.nodes import Location
from keyshift.worker.attempt import over
from keyshift.worker.flight.messages import CopyDropped, CopyPart, KeysDropped, Message, OfStep, Shipment, Taken
from keyshift.worker.flight.server import StateServer
from keyshift.worker.used import POD_ADDRESS

if TYPE_CHECKING:
    from keyshift.worker.slot.task import SlotTask

LOOK_S = 1.0  # between two looks at whether all that was left here was taken


class EndedSlot:
    """A slot whose batch is over: it acknowledges again what arrived before, as an acknowledgement may have been lost.

    Newer messages are for the next holder of the slot, who may be in another process: they are refused here, and
    repeated there.
    """

    def __init__(self, slot: SlotId, version: Version) -> None:
        self.slot, self._version = slot, version

    def shipments_arrived(self, shipments: list[Shipment]) -> list[bool]:
        """See ``SlotHost.receive``. Raises KeyshiftError for a newer one."""
        self._refuse_newer(shipment.version for shipment in shipments)
        return [True] * len(shipments)

    def message(self, message: OfStep) -> None:
        """Raise KeyshiftError if it is newer."""
        self._refuse_newer([*(each.version for each in message.wanted), *(each.version for each in message.opened)])

    def _refuse_newer(self, versions: Iterable[Version]) -> None:
        if (newest := max(versions, default=0)) > self._version:
            raise KeyshiftError(f"slot {self.slot} ended its batch at version {self._version}, this is of {newest}")


class Copies:
    """Copies of units that other slots own, kept here for a slot that may get them. Parts come in order, or anew."""

    def __init__(self, make: Callable[[SlotId, UnitId], UnitState]) -> None:
        self._make = make  # from slot and unit, a state without keys
        self._lock = threading.Lock()
        self._copies: dict[tuple[SlotId, UnitId], tuple[CopyPart, UnitState]] = {}

    def add(
        self, slot: SlotId, unit: UnitId, part: CopyPart, batches: list[pa.RecordBatch], deleted: Sequence[int]
    ) -> None:
        """Add a part, see ``SlotHost.copy``. Raises KeyshiftError for one that does not follow the one before."""
        epoch, number = part
        with self._lock:
            if number:
                (begun, last), copy = self._copies.get((slot, unit), ((epoch, -1), None))
                if copy is None or (begun, last + 1) != (epoch, number):
                    other = "" if begun == epoch else " of another one"
                    raise KeyshiftError(f"part {number} of the copy of unit {unit} came after part {last}{other}")
                del self._copies[slot, unit]  # nobody may take it half done
            else:
                copy = self._make(slot, unit)
        copy.install(batches)
        for key in deleted:
            copy.delete(key)
        with self._lock:
            self._copies[slot, unit] = part, copy

    def take(self, slot: SlotId, unit: UnitId, part: CopyPart) -> UnitState | None:
        """The copy, if it is here and has all parts up to ``part``, perhaps more; it is not kept."""
        epoch, number = part
        with self._lock:
            (begun, last), copy = self._copies.pop((slot, unit), ((epoch, -1), None))
        return copy if begun == epoch and last >= number else None

    def drop(self, slot: SlotId, copy: tuple[UnitId, int] | None = None) -> None:
        """Drop this ``copy`` (unit, epoch; None: all), which ``slot`` does not need."""
        with self._lock:
            for (of, unit), ((epoch, _), _) in [*self._copies.items()]:
                if of == slot and copy in (None, (unit, epoch)):
                    del self._copies[of, unit]


class SlotHost:
    """The host of slots, one per worker process, attempt of a job, and stage."""

    def __init__(self, config: JobConfig) -> None:
        self.key = (config.job, config.attempt)
        self.at_root = partial(Coordination, config.endpoints.zookeeper, nodes.of_job(config.job), config.token)
        operator = config.make_stage().operator()
        self.state_schema = pa.schema([pa.field("key", pa.int64()), *operator.state_schema])
        self.left: dict[SlotId, dict[UnitId, UnitState]] = {}  # slot -> units it left here at the end of a batch
        self.left_rows: dict[SlotId, Sequence[Row]] = {}  # slot -> rows that it had not worked on then
        self.lent: dict[Stay, UnitState] = {}  # units whose ownership has left, with the keys that did not
        self._written: dict[Stay, int] = {}  # number of the last values that came back
        self._open_store = partial(config.open_store, schema=operator.state_schema)
        self._stores: dict[SlotId, Store] = {}
        self._last: frozenset[SlotId] = frozenset()  # slots of the last batch that has begun here
        self.working: set[SlotId] = set()  # those whose batch is not over
        self.copies = Copies(lambda slot, unit: self.store(slot).unit(unit))
        # By slot: what of its state was written down, and where.
        self.snapshots: dict[SlotId, tuple[Snapshots, dict[UnitId, list[Location]]]] = {}
        self.warm = False  # whether what is slow the first time was done
        # By number: the slots that work here during a batch, or did so in the batch before.
        self.tenants: dict[SlotId, SlotTask | EndedSlot] = {}
        self._lock = threading.Lock()  # of what is lent
        host = os.environ.get(POD_ADDRESS) or config.host
        self.server = StateServer(self, host, config.token, config.chunk_bytes, config.certificate)

    def store(self, slot: SlotId) -> Store:
        """The store of ``slot`` in this process: what it leaves here, and copies for it, outlast its batch."""
        if slot not in self._stores:
            self._stores[slot] = self._open_store(slot)
        return self._stores[slot]

    def close(self) -> None:
        """Close, as the process works for another job now. Waits until all who still ask here have given up."""
        self.server.shutdown()
        for store in self._stores.values():
            store.close()

    def begin(self, slots: Iterable[SlotId]) -> None:
        """Begin a batch here, with these slots. Earlier ones are over: nobody needs the keys of units that left in
        them, nor what is here of slots that have been elsewhere for a whole batch.
        """
        slots = frozenset(slots)
        for slot in self._stores.keys() - self._last - slots:
            self._gone(slot)
        self._last = slots
        self.working |= slots
        with self._lock:
            self.lent.clear()
            self._written.clear()

    def _gone(self, slot: SlotId) -> None:
        """Drop what is here of ``slot``: whoever has it by now has all of its state."""
        self.left.pop(slot, None)
        self.left_rows.pop(slot, None)
        if (store := self._stores.pop(slot, None)) is not None:
            store.close()

    def seal(
        self, slot: SlotId, version: Version, states: dict[UnitId, UnitState], left_rows: Sequence[Row] = ()
    ) -> None:
        """Keep the state of ``slot``, whose batch is over at ``version``, until the next holder has it, and rows that
        it has not worked on.
        """
        self.left[slot], self.left_rows[slot] = dict(states), left_rows
        self.tenants[slot] = EndedSlot(slot, version)
        self.copies.drop(slot)
        self.working.discard(slot)

    def lend(self, stay: Stay, state: UnitState) -> None:
        """Keep the keys of a unit that has left without them, for whoever asks."""
        with self._lock:
            self.lent[stay] = state

    def left_behind(self) -> list[UnitId]:
        """Units of other slots of which keys are here."""
        with self._lock:
            return sorted({unit for unit, _ in self.lent})

    # -- for its server, in Flight's threads ---------------------------------------------------------------------------

    def receive(self, slot: SlotId, shipments: list[Shipment]) -> list[bool]:
        """Take these units, which have come whole for ``slot``. False for a delta over a copy that is not here."""
        return self._tenant(slot).shipments_arrived(shipments)

    def sealed(self, slot: SlotId, unit: UnitId) -> UnitState:
        """State that ``slot`` left here at the end of a batch. Raises KeyError if it is not here."""
        return self.left[slot][unit]

    def sealed_rows(self, slot: SlotId) -> Sequence[Row]:
        """Rows of routers that ``slot`` left here at the end of a batch. Raises KeyError if there is nothing of it."""
        return self.left_rows[slot]

    def keys(self, stay: Stay, keys: list[int]) -> list[rows.KeyValue]:
        """Those of ``keys`` that are here, of a unit whose ownership has left."""
        with self._lock:
            state = self.lent.get(stay)
            return state.take(keys) if state is not None else []

    def rest(self, stay: Stay, after: int | None) -> Iterator[pa.RecordBatch]:
        """All keys that are still here, of a unit whose ownership has left, ascending: those behind ``after``."""
        with self._lock:
            state = self.lent.get(stay)
            keys = state.keys() if state is not None else []
        keys = sorted(key for key in keys if after is None or key > after)
        for begin in range(0, len(keys), SLICE_KEYS):
            yield rows.pack(self.state_schema, self.keys(stay, keys[begin : begin + SLICE_KEYS]))

    def forget(self, stay: Stay, keys: list[int]) -> None:
        """Forget these keys, which have come to live elsewhere."""
        with self._lock:
            if (state := self.lent.get(stay)) is not None:
                for key in keys:
                    state.delete(key)

    def write(self, stay: Stay, number: int, written: list[rows.KeyValue], deleted: list[int]) -> None:
        """Write keys that were used elsewhere: they come back with new values, or are nowhere any more. Does nothing if
        a greater number has come: this one was given up, and repeated with what is newer.
        """
        with self._lock:
            if (state := self.lent.get(stay)) is not None and number > self._written.get(stay, 0):
                self._written[stay] = number
                for key, value in written:
                    state.values[key] = value
                for key in deleted:
                    state.delete(key)

    def copy(
        self, slot: SlotId, unit: UnitId, part: CopyPart, batches: list[pa.RecordBatch], deleted: Sequence[int]
    ) -> None:
        """Keep a part of a copy of ``unit`` for ``slot``; number 0 begins it anew."""
        if isinstance(self._tenant(slot), EndedSlot):
            raise KeyshiftError(f"the batch of slot {slot} is over, copies for it are made anew in the next one")
        self.copies.add(slot, unit, part, batches, deleted)

    def message(self, message: Message) -> None:
        """Take what another slot says."""
        match message:
            case OfStep(slot):
                self._tenant(slot).message(message)
            case CopyDropped(slot, unit, epoch):
                self.copies.drop(slot, (unit, epoch))
            case Taken(slot, units):
                self.left_rows.pop(slot, None)  # they are fetched first
                left = self.left.get(slot, {})
                for unit in units:
                    left.pop(unit, None)
                if not left and slot not in self.working:  # it may be back, and this word late
                    self._gone(slot)
            case KeysDropped(stays):
                with self._lock:
                    for stay in stays:
                        self.lent.pop(stay, None)
                        self._written.pop(stay, None)

    def _tenant(self, slot: SlotId) -> "SlotTask | EndedSlot":
        tenant = self.tenants.get(slot)
        if tenant is None:
            raise KeyshiftError(f"slot {slot} is not in this process")
        return tenant


_hosts: dict[str, SlotHost] = {}  # by stage


def host_for(config: JobConfig) -> SlotHost:
    """The host of this process for slots of a stage; a worker that is reused for another job starts afresh."""
    key = (config.job, config.attempt)
    for stage in [stage for stage, host in _hosts.items() if host.key != key]:
        threading.Thread(target=_hosts.pop(stage).close, name="keyshift-old-host", daemon=True).start()
    if config.stage not in _hosts:
        _hosts[config.stage] = SlotHost(config)
    return _hosts[config.stage]


def await_takers(within_s: float) -> bool:
    """Wait, for so long at the most and while the attempt is not over, until others have what slots left here; gives
    whether they have. Keys that were lent are fetched before that, as the next batch begins when all units are whole.

    It is not awaited if the batch of a slot is not over here: its task has failed, and so has the query.
    """
    hosts = [*_hosts.values()]
    if any(host.working for host in hosts):
        return False

    def taken() -> bool:
        return not any(host.left for host in hosts)

    if not taken():
        (job, attempt), at_root = hosts[0].key, hosts[0].at_root  # all are of one job
        with contextlib.suppress(ServiceUnavailable), contextlib.closing(at_root()) as root:  # else nobody can go on
            wait_until(lambda: taken() or over(attempt, attempts(root, job)), within_s, LOOK_S)
    return taken()
