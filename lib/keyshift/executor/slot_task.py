"""The slot's shell: feeds the machine, runs the operator, moves state in background threads.

Several threads share one ``SlotTask``, one at a time under its lock: Spark's task thread (rows), kazoo's (published
steps), Flight's (what arrives) and those of its couriers. Everything slow happens outside the lock: a unit's state is
an object that one thread owns at a time, so extracting and installing never hold a frame back.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from keyshift import frames
from keyshift.errors import KeyshiftError, MigrationFailed
from keyshift.executor.addresses import Addresses
from keyshift.executor.channel import BARRIER, DATA, PRIMER, SAVEPOINT, Row
from keyshift.executor.config import JobConfig, slot_schema
from keyshift.executor.expected_units import ExpectedUnits
from keyshift.executor.flight.client import StateClients
from keyshift.executor.flight.messages import Acknowledged, Parcel
from keyshift.executor.measures import Measures
from keyshift.executor.operation import Operation, Waiting, Where, by_unit, now_us
from keyshift.executor.outbox import Courier, Outbox
from keyshift.executor.partial_units import RECORD_BYTES, PartialUnits
from keyshift.executor.replicator import Replicator
from keyshift.executor.savepoint import SavepointStore
from keyshift.executor.slot_host import host_for
from keyshift.executor.zookeeper import Coordination, steps_of
from keyshift.keys import Assignment, Mode, Step
from keyshift.protocol import slot as protocol
from keyshift.state import UnitState

# A slice of queued work: records of a unit, or events that waited for a key, at a time; until so long has passed and
# twice as much is done as came since the last slice, so that the queues become shorter whatever comes.
DRAIN_RECORDS, DRAIN_EVENTS, DRAIN_S = 16, 256, 0.003
PULL_GROUPS = 8  # so many key groups, or as many bins, are fetched in one call after a batch boundary
MARKER_EVERY_S = 0.2
ASIDE_S = 0.02  # how often what waits is looked at, as long as something does, whether rows come or not


class SlotTask:
    """One slot during one batch."""

    def __init__(self, config: JobConfig, slot: int, batch_id: str) -> None:
        self.slot = slot
        self._config = config
        self._batch_id = batch_id
        self._event_schema = slot_schema(config.make_workload())
        self._host = host_for(config)
        self._states: dict[int, UnitState] = {}
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None
        self._closed = threading.Event()
        self._waits = threading.Event()  # something does, or the batch is over
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._drained: list[pa.RecordBatch] = []  # results that wait for the next row to go out with
        self._parting: list[pa.RecordBatch] = []  # likewise, of the timers that were due at a savepoint
        self._greeted: set[str] = set()  # addresses
        self._modes: dict[int, Mode] = {}  # of the steps that were published, by version
        self._watermarks = dict.fromkeys(range(config.routers), 0)
        self._told: set[int] = set()  # routers that have said in this batch how far time has come
        self._savepoint = ""  # the last at which this slot has stood, perhaps in the batch before
        self._outboxes: dict[int, Outbox] = {}
        self._messengers: dict[int, Courier[protocol.Request | protocol.Open]] = {}
        self._aligned_us: dict[int, int] = {}
        self._outgoing: dict[int, list[int]] = {}  # unit -> bytes, aligned_us, sent_us
        self._incoming: dict[int, list[int]] = {}  # unit -> received_us, installed_us
        self._undrained_bytes = 0  # in the queues after the last slice
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
        self._partial = PartialUnits(host, self._clients, self._states, self._lock, host.uses_time, self._failed)
        self._replicator = Replicator(
            host.state_schema,
            self._clients,
            self._states,
            self._lock,
            self._addresses.of,
            self._acknowledge_copies,
            self._failed,
        )
        handover = self._coordination.read(f"handover/{self.slot}")
        self._measures = Measures(config.key_groups * config.bins, handover and handover["measures"])
        if handover is not None:  # time goes on where it was: routers do not say again what they said before
            self._watermarks |= enumerate(handover["watermarks"])
            self._savepoint = handover["savepoint"]
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
            self._states |= host.left.pop(self.slot)
        else:
            expected, version = handover["units"], handover["version"]
            self._background(partial(self._expected_units(expected).pull, self._clients, handover["address"]))
        self._machine: protocol.SlotMachine[Waiting] = protocol.SlotMachine(
            self.slot, config.routers, {*self._states, *fresh}, expected, version
        )
        self._operation = Operation(config, self._states, self._partial, self._machine)
        for unit in fresh:
            self._operation.begin(unit)
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

    def seal(self) -> None:
        """Leave the state in this process and say where it is."""
        with self._lock:
            self._replicator.stop()
            self._host.seal(self.slot, self._machine.version, self._states)
            self._coordination.withdraw(f"slots/{self.slot}")
            handover = {
                "address": self._host.server.address,
                "units": sorted(self._machine.serving),
                "version": self._machine.version,
                "measures": self._measured(),
                "watermarks": list(self._watermarks.values()),
                "savepoint": self._savepoint,
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
            for outbox in self._outboxes.values():
                outbox.close()
            for messenger in self._messengers.values():
                messenger.close()
            self._partial.close()
            self._coordination.close(prepare_next=True)
            self._clients.close()
            self._replicator.close()

    # -- the task's thread --------------------------------------------------------------------------------------------

    def on_rows(self, rows: Iterable[Row]) -> list[bytes]:
        """Handle rows of routers; gives the result frames and markers to emit now."""
        with self._lock:
            self._raise_trouble()
            results = self._drain()
            for kind, router, version, offset, watermark, payload in rows:
                if kind == PRIMER:
                    continue
                if kind == BARRIER:
                    self._carry_out(self._machine.barrier(router, version))
                elif kind == SAVEPOINT:
                    self._carry_out(self._machine.savepoint_barrier(router, bytes(payload).decode()))
                elif not self._machine.stopped(router):
                    if kind == DATA:
                        events = pa.ipc.read_record_batch(payload, self._event_schema)
                        met = min(self._watermarks.values())
                        results += self._admit(events, (router, version, offset, met))
                    self._watermarks[router] = max(self._watermarks[router], watermark)
                    if watermark:
                        self._told.add(router)
            # Behind a savepoint's barrier no time passes, also if it came in the batch before: then it comes again,
            # before its router tells how far time has come.
            if not self._machine.stopping and len(self._told) == len(self._watermarks):
                results += self._operation.timers_due(min(self._watermarks.values()))
            if self._queued_bytes > self._measures.queue_peak_bytes:
                self._measures.queue_peak_bytes = self._queued_bytes
                if self._queued_bytes > self._config.queue_bytes:
                    self._carry_out(self._machine.urge())
            self._partial.ask()
            self._note_what_waits()
            return self._emit(results)

    def stalled(self) -> bool:
        """Whether more is queued here than should be: no further row is to be taken, they wait in Kafka.

        Keys come whatever this slot reads; for whole units the machine knows.
        """
        most = self._config.queue_bytes
        with self._lock:
            return self._partial.waiting_bytes >= most or (self._queued_bytes > most and self._machine.may_stall)

    @property
    def _queued_bytes(self) -> int:
        """Memory of the records that wait, for their units or for keys."""
        return self._machine.queued_bytes + self._partial.waiting_bytes

    def settled(self) -> bool:
        """Nothing is under way: the state can stay here and somebody else may continue."""
        with self._lock:
            if not self._deadline:
                self._carry_out(self._machine.end_of_input())
            moved_at = self._clients.moved_at, self._host.server.moved_at
            if (progress := (len(self._machine.expected), self._queued_bytes, *moved_at)) != self._progress:
                self._progress, self._deadline = progress, time.monotonic() + self._config.deadline_s
            return self._machine.settled and not self._drained and not self._parting

    def wait(self) -> list[bytes]:
        """Without a new row: wait a little for background work, drain, and give what is to be emitted."""
        time.sleep(0.002)
        with self._lock:
            self._raise_trouble()
            if self._deadline and time.monotonic() > self._deadline:
                raise MigrationFailed(
                    f"slot {self.slot}: the batch is over, state of units {self._machine.wanted[:5]} is elsewhere, and "
                    f"nothing has come or gone for {self._config.deadline_s:g} s"
                )
            results = self._drain()
            self._partial.ask()
            return self._emit(results)

    def _admit(self, events: pa.RecordBatch, where: Where) -> list[pa.RecordBatch]:
        router, version, _, _ = where
        units = events["unit"].to_numpy()
        held = self._machine.admit(router, version, set(units.tolist()))
        if not held:
            return self._operation.process(events, where)
        waits = np.isin(units, list(held))
        effects: list[protocol.Effect] = []
        for unit, part in by_unit(events.filter(pa.array(waits))):
            effects += self._machine.hold(unit, router, (part, where), part.nbytes + RECORD_BYTES)
        self._carry_out(effects)
        return [] if waits.all() else self._operation.process(events.filter(pa.array(~waits)), where)

    def _drain(self) -> list[pa.RecordBatch]:
        results, self._drained = self._drained, []
        until = time.monotonic() + DRAIN_S
        came = max(0, self._queued_bytes - self._undrained_bytes)
        goal = self._queued_bytes - 2 * came
        while True:
            # Each row of a record may have to wait for its key: not more of them than there is room for.
            room = self._partial.waiting_bytes < self._config.queue_bytes
            records, effects = self._machine.drain(DRAIN_RECORDS if room else 0)
            results += self._operation.process_all(records)
            self._carry_out(effects)
            now = now_us()
            waiting, whole = self._partial.drain(DRAIN_EVENTS, now)
            results += self._operation.process_all(waiting, now)
            for unit in whole:
                self._carry_out(self._machine.completed(unit))
            done = self._queued_bytes <= goal and time.monotonic() > until
            if done or not (records or waiting):
                self._undrained_bytes = self._queued_bytes
                return results

    def _emit(self, results: list[pa.RecordBatch]) -> list[bytes]:
        values: list[bytes] = []
        results, self._parting = [*results, *self._parting], []
        if results:
            merged = results[0] if len(results) == 1 else pa.concat_batches(results)
            values += map(frames.encode, frames.cut(merged))
        if self._marker and time.monotonic() >= self._marker_at:
            values.append(frames.encode(frames.empty(self._operation.result_schema), self._marker))
            self._marker_at = time.monotonic() + MARKER_EVERY_S
            if self._marker["marker"] == "ready":
                self._marker = None
        return values

    def _set_marker(self, marker: dict[str, Any]) -> None:
        self._marker, self._marker_at = marker | {"slot": self.slot}, 0.0

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble
        self._coordination.check()

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[protocol.Effect]) -> None:
        leaving: dict[int, list[Parcel]] = {}  # by slot, as what goes together travels together
        messages: dict[int, list[protocol.Request | protocol.Open]] = {}
        for effect in effects:
            match effect:
                case protocol.Prepared(version):
                    self._acknowledge(version, "prepared", {})
                case protocol.Send():
                    leaving.setdefault(effect.destination, []).append(self._parcel(effect))
                case protocol.Open():
                    messages.setdefault(effect.destination, []).append(effect)
                case protocol.Request():
                    messages.setdefault(effect.slot, []).append(effect)
                case protocol.Hurry(unit):
                    for outbox in self._outboxes.values():
                        outbox.hurry(unit)
                case protocol.Complete(unit):
                    self._partial.fetch_rest(unit)
                case protocol.Installed(version, units):
                    times = [[unit, *self._incoming.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "installed", {"units": times, "drained_us": now_us()})
                case protocol.Released(version, units):
                    times = [[unit, *self._outgoing.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "released", {"units": times})
                case protocol.Freeze(savepoint):
                    if savepoint != self._savepoint:  # once, also if the barriers come again in the next batch
                        self._parting += self._operation.timers_due(min(self._watermarks.values()), at_once=True)
                    self._savepoint = savepoint
                    self._background(partial(self._freeze, savepoint, sorted(self._states.items())))
        for slot, parcels in leaving.items():
            self._send(slot, parcels)
        for slot, some in messages.items():
            self._tell(slot, some)

    def _parcel(self, send: protocol.Send) -> Parcel:
        """The unit to be sent, which is not here any more."""
        unit = send.unit
        state = self._states.pop(unit)
        self._operation.left(unit)
        self._aligned_us[unit] = now_us()
        remains = self._modes[send.version].transfer in ("access", "remote")
        parcel = Parcel(unit, send.version, send.hop, send.routers, remains, state=state)
        if remains:  # its timers go, its keys stay here for whoever asks
            self._host.lent[unit, send.version] = state
        return self._replicator.shrink(parcel, send.destination)

    def _send(self, destination: int, parcels: list[Parcel]) -> None:
        if destination not in self._outboxes:
            self._outboxes[destination] = Outbox(
                f"slot {self.slot} to {destination}", partial(self._push, destination), self._failed
            )
        self._outboxes[destination].put(*parcels)

    def _tell(self, slot: int, some: list[protocol.Request | protocol.Open]) -> None:
        def deliver(messages: list[protocol.Request | protocol.Open]) -> None:
            wanted = [[m.unit, m.version, m.router, m.hop] for m in messages if isinstance(m, protocol.Request)]
            opened = [[m.unit, m.version] for m in messages if isinstance(m, protocol.Open)]
            body = {"slot": slot, "wanted": wanted, "opened": opened}
            self._clients.tell(self._addresses.of(slot), "units", body)
            with self._lock:
                self._carry_out([effect for unit, _ in opened for effect in self._machine.acknowledged(unit)])

        if slot not in self._messengers:
            pause_s = self._modes[some[0].version].fetch_interval_ms / 1000
            self._messengers[slot] = Courier(f"slot {self.slot} to {slot}", deliver, self._failed, pause_s)
        self._messengers[slot].send(*some)

    def _acknowledge(self, version: int, phase: str, value: dict[str, Any]) -> None:
        self._coordination.acknowledge(f"acks/{version}/{phase}-{self.slot}", value | {"at_us": now_us()})

    def _acknowledge_copies(self, request: str, answer: dict[str, Any]) -> None:
        self._coordination.acknowledge(f"copied/{request}/{self.slot}", answer | {"at_us": now_us()})

    # -- other threads ------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self._trouble = error

    def _steps_published(self, raw: dict[str, Any]) -> bool:
        """From kazoo's thread."""
        version, steps = steps_of(raw)
        try:
            with self._lock:
                fresh = [step for of, step in steps if of not in self._modes]
                self._modes |= {of: step.mode for of, step in steps}
                self._carry_out(self._machine.published(version, steps))
            for step in fresh:
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
        return self._measures.so_far(self._operation.heat, self._partial.measures())

    def _copies_wanted(self, raw: dict[str, Any]) -> None:
        """From kazoo's thread."""
        with self._lock:
            ours = [(unit, holder) for unit, owner, holder in raw["copies"] if owner == self.slot]
            self._replicator.start(raw["id"], ours, raw["every_s"], raw["lag_keys"], raw["whole"])

    def message(self, body: dict[str, Any]) -> None:
        """From Flight's thread; see ``StateClients.tell``."""
        with self._lock:
            effects: list[protocol.Effect] = []
            for unit, version, router, hop in body["wanted"]:
                effects += self._machine.requested(unit, version, router, hop)
            for unit, version in body["opened"]:
                if self._machine.is_lent(unit, version):  # otherwise it was said before
                    effects += self._machine.opened(unit)
            self._carry_out(effects)

    def parcels_arrived(self, parcels: list[Parcel]) -> list[bool]:
        """From Flight's thread, or one that pulls: builds the states, then hands them to the machine.

        False for a delta over a copy that is not here. What is not awaited (any more) came twice.
        """
        received = now_us()
        with self._lock:
            awaited = [parcel for parcel in parcels if self._awaits(parcel)]
        states = {parcel.unit: self._built(parcel) for parcel in awaited}
        with self._lock:
            effects: list[protocol.Effect] = []
            for parcel in awaited:
                if (state := states[parcel.unit]) is not None and self._awaits(parcel):
                    effects += self._install(parcel, state, received)
            try:
                self._carry_out(effects)
                self._drained = self._drain()  # now: the step that ends with it does not wait for a row
                self._note_what_waits()
            except BaseException as error:
                self._trouble = error  # what has arrived would not be taken again
                raise
        return [states.get(parcel.unit, True) is not None for parcel in parcels]

    def _awaits(self, parcel: Parcel) -> bool:
        return self._machine.awaits(parcel.unit, parcel.version, parcel.hop)

    def _built(self, parcel: Parcel) -> UnitState | None:
        """What has come, on top of the copy here if it is a delta; None if there is no such copy."""
        state: UnitState | None
        if parcel.delta_of is None:
            state = self._operation.new_state()
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

    def _install(self, parcel: Parcel, state: UnitState, received_us: int) -> list[protocol.Effect]:
        if parcel.partial:
            self._partial.open(parcel, self._modes[parcel.version])
        effects = self._machine.arrived(parcel.unit, parcel.routers, parcel.partial)
        self._states[parcel.unit] = state
        if parcel.partial:
            self._partial.opened(parcel.unit, state)
        self._operation.came(parcel.unit)
        self._incoming[parcel.unit] = [received_us, now_us()]
        return effects

    def _background(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._trouble = error
                return

    def _note_what_waits(self) -> None:
        if self._queued_bytes or self._partial:
            self._waits.set()

    def _go_on(self) -> None:
        """Without rows, too: they may wait, in a router that another slot has stopped, for what this one has to do."""
        try:
            while self._waits.wait() and not self._closed.wait(ASIDE_S):
                with self._lock:
                    self._waits.clear()
                    if self._closed.is_set():
                        return
                    self._note_what_waits()
                    if self._waits.is_set():
                        self._drained = self._drain()
                        self._partial.ask()
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

    def _push(self, destination: int, parcels: Any) -> None:
        outbox = self._outboxes[destination]

        def sent(parcel: Parcel, size: int) -> None:
            self._outgoing[parcel.unit] = [size, self._aligned_us[parcel.unit], now_us()]

        def acknowledged(answers: Acknowledged) -> None:
            known = [(unit, taken, outbox.acknowledged(unit)) for unit, taken in answers]
            refused = [parcel for _, taken, parcel in known if parcel is not None and not taken]
            if refused:  # the copies they were to be added to are gone: the whole, then
                outbox.put(*(replace(parcel, delta_of=None) for parcel in refused))
            there = [unit for unit, taken, parcel in known if parcel is not None and taken]
            with self._lock:
                self._carry_out([effect for unit in there for effect in self._machine.acknowledged(unit)])

        self._clients.push(
            self._addresses.of(destination), destination, self._host.server.address, parcels, sent, acknowledged
        )

    def _restore(self, units: Sequence[int], savepoint: str) -> None:
        begin_us = now_us()
        self._expected_units(units).restore(SavepointStore(self._config.endpoints, self._config.job), savepoint)
        with self._lock:
            times = [[unit, *self._incoming[unit]] for unit in units if unit in self._incoming]
        self._coordination.acknowledge(f"restored/{self.slot}", {"units": times, "begin_us": begin_us})

    def _expected_units(self, units: Sequence[int]) -> ExpectedUnits:
        def wanted() -> list[int]:
            with self._lock:
                return self._machine.wanted

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
