"""The slot in Spark: gives its core rows and state from several threads, and carries out what follows in couriers.

Several threads share one ``SlotTask``, one at a time in their *turn* under its lock: Spark's task thread (rows),
kazoo's (published steps), Flight's (what arrives) and those of its couriers. Everything slow happens outside the lock:
a unit's state is an object that one thread owns at a time, so extracting and installing never hold a frame back.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import pyarrow as pa

from keyshift import frames
from keyshift.errors import KeyshiftError, MigrationFailed
from keyshift.executor.addresses import Addresses
from keyshift.executor.channel import PRIMER
from keyshift.executor.config import JobConfig, result_schema
from keyshift.executor.cores import ArrowCore, make_core
from keyshift.executor.departures import Departures, Message
from keyshift.executor.expected_units import ExpectedUnits
from keyshift.executor.flight.client import StateClients
from keyshift.executor.flight.messages import Parcel
from keyshift.executor.key_couriers import KeyCouriers
from keyshift.executor.measures import Measures
from keyshift.executor.replicator import Replicator
from keyshift.executor.savepoint import SavepointStore
from keyshift.executor.slot_host import host_for
from keyshift.executor.zookeeper import Coordination, steps_of
from keyshift.keys import Assignment, Step
from keyshift.protocol import slot as protocol
from keyshift.runtime.key_access import Errand
from keyshift.runtime.row import Row
from keyshift.runtime.slot import Leave
from keyshift.state import UnitState

DRAIN_S = 0.003  # so long queued work is processed between two rows, at least
PULL_GROUPS = 8  # so many key groups, or as many bins, are fetched in one call after a batch boundary
MARKER_EVERY_S = 0.2
ASIDE_S = 0.02  # how often what waits is looked at, as long as something does, whether rows come or not


def now_us() -> int:
    """Microseconds since the epoch, the clock of all measurements."""
    return time.time_ns() // 1000


class SlotTask:
    """One slot during one batch."""

    def __init__(self, config: JobConfig, slot: int, batch_id: str) -> None:
        self.slot = slot
        self._config = config
        self._batch_id = batch_id
        self._host = host_for(config)
        self._result_schema = result_schema(config.make_stage())
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None
        self._closed = threading.Event()
        self._waits = threading.Event()  # something does, or the batch is over
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._greeted: set[str] = set()  # addresses
        self._aligned_us: dict[int, int] = {}
        self._outgoing: dict[int, list[int]] = {}  # unit -> bytes, aligned_us, sent_us
        self._incoming: dict[int, list[int]] = {}  # unit -> received_us, installed_us
        self._marker: dict[str, Any] | None = None
        self._marker_at = 0.0
        self._deadline = 0.0
        self._progress: tuple[Any, ...] = ()  # since the input has ended: what changes while something comes or goes

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the slot over from whoever held it: this process, another one, a savepoint, or nobody."""
        config, host = self._config, self._host
        self._coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self._addresses = Addresses(self._coordination, config.deadline_s)
        self._clients = StateClients(
            config.token, config.deadline_s, host.state_schema, config.chunk_bytes, config.certificate
        )
        handover = self._coordination.read(f"handover/{self.slot}")
        self._measures = Measures(config.key_groups * config.bins, handover and handover["measures"])
        self._store = host.store(self.slot)
        states: dict[int, UnitState] = {}
        fresh: Sequence[int] = ()
        expected: Sequence[int] = ()
        if handover is None:
            assignment = Assignment.from_json(self._coordination.require("assignment"))
            owned, version = assignment.units_of(self.slot), assignment.version
            if config.restore is None:
                fresh = owned
            else:
                expected = owned
                self._background(partial(self._restore, owned, config.restore))
        elif handover["address"] == host.server.address:
            version = handover["version"]
            states |= host.left.pop(self.slot)
        else:
            expected, version = handover["units"], handover["version"]
            self._background(partial(self._expected_units(expected).pull, self._clients, handover["address"]))
        self._core = make_core(config, self.slot, self._store, states, fresh, expected, version)
        if handover is not None:  # time goes on where it was: routers do not say again what they said before
            self._core.watermarks, self._core.savepoint = handover["watermarks"], handover["savepoint"]
        self._connect(states)
        # In this order: state may be pushed as soon as the address is known, and must be expected by then.
        host.open(self)
        self._coordination.watch("steps", self._steps_published)
        self._coordination.register(f"slots/{self.slot}", {"address": host.server.address})
        self._set_marker({"marker": "ready", "attempt": config.attempt, "batch": self._batch_id})
        if not host.warm:
            host.warm = True
            self._background(self._warm_up)
        for work in (self._work, self._listen, self._go_on):
            threading.Thread(target=work, name=f"keyshift-slot-{self.slot}", daemon=True).start()

    def _connect(self, states: dict[int, UnitState]) -> None:
        """Those who carry out what the core decides."""
        clients, addresses, failed = self._clients, self._addresses, self._failed
        self._couriers = KeyCouriers(clients, self._core.keys, self._turn, failed)
        self._departures = Departures(
            self.slot, self._host.server.address, clients, addresses, self._turn, self._sent, failed
        )
        self._replicator = Replicator(
            self._host.state_schema, clients, states, self._lock, addresses.of, self._acknowledge_copies, failed
        )

    def seal(self) -> None:
        """Leave the state in this process and say where it is."""
        with self._lock:
            core, machine = self._core, self._core.machine
            self._replicator.stop()
            self._host.seal(self.slot, machine.version, core.states)
            self._coordination.withdraw(f"slots/{self.slot}")
            handover = {
                "address": self._host.server.address,
                "units": sorted(machine.serving),
                "version": machine.version,
                "measures": self._measured(),
                "watermarks": core.watermarks,
                "savepoint": core.savepoint,
            }
            self._coordination.publish(f"handover/{self.slot}", handover)
            self._end()

    def _end(self) -> None:
        self._closed.set()
        self._waits.set()

    def close(self) -> None:
        """Stop the background threads and end the session. The task, and with it the batch, does not wait for that."""
        self._end()
        self._jobs.put(None)
        if self._host.tenants.get(self.slot) is self:
            del self._host.tenants[self.slot]
        threading.Thread(target=self._disconnect, name=f"keyshift-slot-{self.slot}-end", daemon=True).start()

    def _disconnect(self) -> None:
        if hasattr(self, "_replicator"):
            self._departures.close()
            self._couriers.close()
            self._coordination.close(prepare_next=True)
            self._clients.close()
            self._replicator.close()

    # -- turns --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[ArrowCore]:
        """The core, under the lock; at the end what follows is carried out."""
        with self._lock:
            yield self._core
            self._carry_out()
            if self._core.waits:
                self._waits.set()

    def _slice_of_time(self) -> Callable[[], bool]:
        until = time.monotonic() + DRAIN_S
        return lambda: time.monotonic() < until

    def _carry_out(self) -> None:
        leaving: dict[int, list[Parcel]] = {}  # by slot, as what goes together travels together
        messages: dict[int, list[Message]] = {}
        for effect in self._core.take_effects():
            match effect:
                case Leave():
                    leaving.setdefault(effect.send.destination, []).append(self._parcel(effect))
                case Errand():
                    self._couriers.send(effect)
                case protocol.Prepared(version):
                    self._acknowledge(version, "prepared", {})
                case protocol.Open():
                    messages.setdefault(effect.destination, []).append(effect)
                case protocol.Request():
                    messages.setdefault(effect.slot, []).append(effect)
                case protocol.Hurry(unit):
                    self._departures.hurry(unit)
                case protocol.Installed(version, units):
                    times = [[unit, *self._incoming.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "installed", {"units": times, "drained_us": now_us()})
                case protocol.Released(version, units):
                    times = [[unit, *self._outgoing.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "released", {"units": times})
                case protocol.Freeze(savepoint):
                    self._background(partial(self._freeze, savepoint, sorted(self._core.states.items())))
        for slot, parcels in leaving.items():
            self._departures.send(slot, parcels)
        for slot, some in messages.items():
            self._departures.tell(slot, some, self._core.modes[some[0].version])

    def _parcel(self, leave: Leave) -> Parcel:
        send = leave.send
        self._aligned_us[send.unit] = now_us()
        parcel = Parcel(send.unit, send.version, send.hop, send.routers, leave.keys_stay, state=leave.state)
        if leave.keys_stay:  # for whoever asks
            self._host.lent[send.unit, send.version] = leave.state
        return self._replicator.shrink(parcel, send.destination)

    def _sent(self, unit: int, size: int) -> None:
        self._outgoing[unit] = [size, self._aligned_us[unit], now_us()]

    def _acknowledge(self, version: int, phase: str, value: dict[str, Any]) -> None:
        self._coordination.acknowledge(f"acks/{version}/{phase}-{self.slot}", value | {"at_us": now_us()})

    def _acknowledge_copies(self, request: str, answer: dict[str, Any]) -> None:
        self._coordination.acknowledge(f"copied/{request}/{self.slot}", answer | {"at_us": now_us()})

    # -- the task's thread --------------------------------------------------------------------------------------------

    def on_rows(self, rows: Iterable[Row]) -> list[bytes]:
        """Handle rows of routers; gives the result frames and markers to emit now."""
        with self._turn() as core:
            self._raise_trouble()
            core.on_rows((row for row in rows if row.kind != PRIMER), now_us(), self._slice_of_time())
            return self._emit()

    def stalled(self) -> bool:
        """Whether more is queued here than should be: no further row is to be taken, they wait in Kafka."""
        with self._lock:
            return self._core.full

    def settled(self) -> bool:
        """Nothing is under way: the state can stay here and somebody else may continue."""
        with self._turn() as core:
            if not self._deadline:
                core.end_of_input()
            moved_at = self._clients.moved_at, self._host.server.moved_at
            if (progress := (len(core.machine.expected), core.queued_bytes, *moved_at)) != self._progress:
                self._progress, self._deadline = progress, time.monotonic() + self._config.deadline_s
            return core.settled

    def wait(self) -> list[bytes]:
        """Without a new row: wait a little for background work, drain, and give what is to be emitted."""
        time.sleep(0.002)
        with self._turn() as core:
            self._raise_trouble()
            if self._deadline and time.monotonic() > self._deadline:
                raise MigrationFailed(
                    f"slot {self.slot}: the batch is over, state of units {core.machine.wanted[:5]} is elsewhere, and "
                    f"nothing has come or gone for {self._config.deadline_s:g} s"
                )
            core.drain(now_us(), self._slice_of_time())
            return self._emit()

    def _emit(self) -> list[bytes]:
        values: list[bytes] = []
        if results := self._core.take_results():
            merged = results[0] if len(results) == 1 else pa.concat_batches(results)
            values += map(frames.encode, frames.cut(merged))
        if self._marker and time.monotonic() >= self._marker_at:
            values.append(frames.encode(frames.empty(self._result_schema), self._marker))
            self._marker_at = time.monotonic() + MARKER_EVERY_S
            if self._marker["marker"] == "ready":
                self._marker = None
        return values

    def _set_marker(self, marker: dict[str, Any]) -> None:
        self._marker, self._marker_at = marker | {"stage": self._config.stage, "slot": self.slot}, 0.0

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble
        self._coordination.check()

    # -- other threads ------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self._trouble = error

    def _steps_published(self, raw: dict[str, Any]) -> bool:
        """From kazoo's thread."""
        try:
            with self._turn() as core:
                new = core.published(*steps_of(raw))
            for step in new:
                self._background(partial(self._greet, step))
        except BaseException as error:
            self._trouble = error
            return False
        return True

    def _listen(self) -> None:
        """What can wait until rows flow."""
        try:
            self._coordination.watch("measure", self._measures_wanted)
            self._coordination.watch("copies", self._copies_wanted)
        except BaseException as error:
            self._trouble = error

    def _measures_wanted(self, raw: dict[str, Any]) -> None:
        """From kazoo's thread: what this slot has seen so far."""
        with self._lock:
            if self._closed.is_set():  # the next holder knows more
                return
            answer = self._measured() | {
                "host": self._host.server.address.rsplit(":", 1)[0],
                "left_behind": self._host.left_behind(),
            }
        self._coordination.acknowledge(f"measured/{raw['id']}/{self.slot}", answer)

    def _measured(self) -> dict[str, Any]:
        core = self._core
        return self._measures.so_far(core.computation.heat, core.queue_peak_bytes, self._couriers.measures())

    def _copies_wanted(self, raw: dict[str, Any]) -> None:
        """From kazoo's thread."""
        with self._lock:
            ours = [(unit, holder) for unit, owner, holder in raw["copies"] if owner == self.slot]
            self._replicator.start(raw["id"], ours, raw["every_s"], raw["lag_keys"], raw["whole"])

    def message(self, body: dict[str, Any]) -> None:
        """From Flight's thread; see ``StateClients.tell``."""
        with self._turn() as core:
            for wanted in body["wanted"]:
                core.requested(*wanted)
            for opened in body["opened"]:
                core.opened(*opened)

    def parcels_arrived(self, parcels: list[Parcel]) -> list[bool]:
        """From Flight's thread, or one that pulls: builds the states, then hands them to the core.

        False for a delta over a copy that is not here. What is not awaited (any more) came twice.
        """
        received = now_us()
        with self._lock:
            awaited = [parcel for parcel in parcels if self._awaits(parcel)]
        states = {parcel.unit: self._built(parcel) for parcel in awaited}
        try:
            with self._turn() as core:
                for parcel in awaited:
                    if (state := states[parcel.unit]) is not None and self._awaits(parcel):
                        home = parcel.home if parcel.partial else None
                        core.arrived(parcel.unit, parcel.version, parcel.routers, state, home)
                        self._incoming[parcel.unit] = [received, now_us()]
                core.drain(now_us(), self._slice_of_time())  # now: the step that ends with it does not wait for a row
        except BaseException as error:
            self._trouble = error  # what has arrived would not be taken again
            raise
        return [states.get(parcel.unit, True) is not None for parcel in parcels]

    def _awaits(self, parcel: Parcel) -> bool:
        return self._core.machine.awaits(parcel.unit, parcel.version, parcel.hop)

    def _built(self, parcel: Parcel) -> UnitState | None:
        """What has come, on top of the copy here if it is a delta; None if there is no such copy."""
        state: UnitState | None
        if parcel.delta_of is None:
            state = self._store.unit(parcel.unit)
        else:
            state = self._host.copies.take(self.slot, parcel.unit, parcel.delta_of)
            if state is None:
                return None
        state.install(parcel.batches)
        for key in parcel.deleted:
            state.delete(key)
        if parcel.timers is not None:
            state.timers.install(parcel.timers)
        return state

    def _background(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._trouble = error
                return

    def _go_on(self) -> None:
        """Without rows, too: they may wait, in a router that another slot has stopped, for what this one has to do."""
        try:
            while self._waits.wait() and not self._closed.wait(ASIDE_S):
                with self._turn() as core:
                    self._waits.clear()
                    if not self._closed.is_set() and core.waits:
                        core.drain(now_us(), self._slice_of_time())
        except BaseException as error:
            self._trouble = error

    def _warm_up(self) -> None:
        """Everything once that is slow the first time: calls, here to ourselves, and memory that was never touched."""
        reserve = b"\1" * self._config.reserve_bytes
        del reserve
        own = self._host.server.address
        self._clients.tell(own, "drop", {"stays": []})
        self._clients.keys(own, [])

    def _greet(self, step: Step) -> None:
        """Connect with those that units go to or come from, before anything waits for it."""
        pairs = {(move.source, move.destination) for move in step.moves if self.slot in (move.source, move.destination)}
        for slot in {slot for pair in pairs for slot in pair} - {self.slot}:
            with contextlib.suppress(KeyshiftError):  # whoever needs the slot will wait for it, and tell
                if (address := self._addresses.of(slot, within_s=0)) not in self._greeted:
                    self._clients.tell(address, "drop", {"stays": []})
                    self._greeted.add(address)

    def _restore(self, units: Sequence[int], savepoint: str) -> None:
        begin_us = now_us()
        self._expected_units(units).restore(SavepointStore(self._config.endpoints, self._config.job), savepoint)
        with self._lock:
            times = [[unit, *self._incoming[unit]] for unit in units if unit in self._incoming]
        self._coordination.acknowledge(f"restored/{self.slot}", {"units": times, "begin_us": begin_us})

    def _expected_units(self, units: Sequence[int]) -> ExpectedUnits:
        def wanted() -> list[int]:
            with self._lock:
                return self._core.machine.wanted

        config, most = self._config, PULL_GROUPS * self._config.bins
        return ExpectedUnits(self.slot, units, wanted, self.parcels_arrived, self._closed, most, config.deadline_s)

    def _freeze(self, savepoint: str, states: list[tuple[int, UnitState]]) -> None:
        store = SavepointStore(self._config.endpoints, self._config.job)
        places = store.write(savepoint, self.slot, states, self._config.chunk_bytes)
        self._coordination.acknowledge(
            f"savepoints/{savepoint}/slot-{self.slot}", {"places": [list(astuple(place)) for place in places]}
        )
        with self._lock:
            self._set_marker({"marker": "sealed", "savepoint": savepoint})
