"""The slot's shell: feeds the machine, runs the operator, moves state in background threads.

Three threads share one ``SlotTask``, one at a time under its lock: Spark's task thread (rows), kazoo's (published
steps) and Flight's (arriving state). Everything slow happens outside the lock: a unit's state is an object that one
thread owns at a time, so extracting and installing never hold a frame back.
"""

import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyshift import frames
from keyshift.errors import KeyshiftError, MigrationFailed
from keyshift.executor.config import BARRIER, DATA, SAVEPOINT, JobConfig, result_schema, slot_schema
from keyshift.executor.coordination import Coordination
from keyshift.executor.savepoint import SavepointStore
from keyshift.executor.transfer import StateClients, StateServer
from keyshift.keys import Assignment, Step
from keyshift.protocol import faults
from keyshift.protocol import slot as protocol
from keyshift.state import UnitState, backends

DRAIN_RECORDS, DRAIN_S = 16, 0.003  # a slice of queued work: so many frames at a time, until so long has passed
PULL_UNITS = 8  # fetched in one call after a batch boundary
MARKER_EVERY_S = 0.2
POLL_S = 0.01


def now_us() -> int:
    """Microseconds since the epoch, the clock of all measurements."""
    return time.time_ns() // 1000


class SlotHost:
    """What outlives a batch: this process' Flight server and the state that slots left here."""

    def __init__(self, config: JobConfig) -> None:
        self.key = (config.job, config.attempt)
        operator = config.make_workload().operator()
        self.state_schema = pa.schema([pa.field("key", pa.int64()), *operator.state_schema])
        self.left: dict[int, dict[int, UnitState]] = {}
        self.task: SlotTask | None = None
        self.server = StateServer(self, config.host, config.token, config.chunk_bytes)

    def receive(self, slot: int, unit: int, batches: list[pa.RecordBatch], info: dict[str, Any]) -> None:
        """See ``transfer.Holder``."""
        task = self.task
        if task is None or task.slot != slot:
            raise KeyshiftError(f"slot {slot} is not in this process")
        task.state_arrived(unit, batches)

    def sealed(self, slot: int, unit: int) -> UnitState:
        """See ``transfer.Holder``."""
        return self.left[slot][unit]

    def taken(self, slot: int, unit: int) -> None:
        """See ``transfer.Holder``."""
        del self.left[slot][unit]


_host: SlotHost | None = None


def host_for(config: JobConfig) -> SlotHost:
    """The host of this process; a worker that is reused for another job starts afresh."""
    global _host
    if _host is None or _host.key != (config.job, config.attempt):
        if _host is not None:
            _host.server.shutdown()
        _host = SlotHost(config)
    return _host


class SlotTask:
    """One slot during one batch."""

    def __init__(self, config: JobConfig, slot: int, batch_id: str) -> None:
        self.slot = slot
        self._config = config
        self._batch_id = batch_id
        self._incarnation = uuid.uuid4().hex[:8]
        workload = config.make_workload()
        self._operator = workload.operator()
        self._event_schema = slot_schema(workload)
        self._result_schema = result_schema(workload)
        self._new_state: Callable[[pa.Schema], UnitState] = backends.get(config.backend)[0]
        self._host = host_for(config)
        self._states: dict[int, UnitState] = {}
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._pushes: list[protocol.Send] = []
        self._sending: dict[int, UnitState] = {}
        self._aligned_us: dict[int, int] = {}
        self._outgoing: dict[int, list[int]] = {}  # unit -> bytes, aligned_us, sent_us
        self._incoming: dict[int, list[int]] = {}  # unit -> received_us, installed_us
        self._marker: dict[str, Any] | None = None
        self._marker_at = 0.0
        self._deadline = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the slot over from whoever held it: this process, another one, a savepoint, or nobody."""
        config = self._config
        self._coordination = Coordination(config.endpoints.zookeeper, config.root)
        self._clients = StateClients(config.token, config.deadline_s)
        handover = self._coordination.read(f"handover/{self.slot}")
        self._host.task = self
        expected: list[int] = []
        if handover is None:
            assignment = Assignment.from_json(self._coordination.require("assignment"))
            owned, version = assignment.units_of(self.slot), assignment.version
            if config.restore is None:
                for unit in owned:
                    self._states[unit] = self._new_state(self._operator.state_schema)
                    self._operator.initial(unit, self._states[unit])
            else:
                expected = list(owned)
                self._background(partial(self._restore, set(owned)))
        elif handover["address"] == self._host.server.address:
            version = handover["version"]
            self._states = self._host.left.pop(self.slot)
        else:
            expected, version = handover["units"], handover["version"]
            self._background(partial(self._pull, set(expected), handover["address"]))
        machine = faults.machines.get(config.fault)
        self._machine: protocol.SlotMachine[tuple[Any, ...]] = machine(
            self.slot, config.routers, self._states.keys(), expected, version
        )
        # In this order: state may be pushed as soon as the address is known, and must be expected by then.
        self._coordination.watch("step", self._step_published)
        self._coordination.register(f"slots/{self.slot}", {"address": self._host.server.address})
        self._set_marker({"marker": "ready", "batch": self._batch_id, "incarnation": self._incarnation})
        self._worker = threading.Thread(target=self._work, name=f"keyshift-slot-{self.slot}", daemon=True)
        self._worker.start()

    def seal(self) -> None:
        """Leave the state in this process and say where it is."""
        with self._lock:
            self._host.left[self.slot] = self._states
            units = sorted(self._machine.serving)
            self._coordination.withdraw(f"slots/{self.slot}")
            address, version = self._host.server.address, self._machine.version
            self._coordination.publish(
                f"handover/{self.slot}", {"address": address, "units": units, "version": version}
            )

    def close(self) -> None:
        """Stop the background thread and end the session."""
        self._jobs.put(None)
        if self._host.task is self:
            self._host.task = None
        if hasattr(self, "_coordination"):
            self._coordination.close()
            self._clients.close()

    # -- the task's thread --------------------------------------------------------------------------------------------

    def on_rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """Handle rows of ``ROW_SCHEMA``; gives the result frames and markers to emit now."""
        with self._lock:
            self._raise_trouble()
            results = self._drain()
            kinds, routers, versions, offsets, watermarks = (batch.column(i).to_pylist() for i in range(1, 6))
            for i, kind in enumerate(kinds):
                if kind == BARRIER:
                    self._carry_out(self._machine.barrier(routers[i], versions[i]))
                elif kind == SAVEPOINT:
                    savepoint = batch["value"][i].as_buffer().to_pybytes().decode()
                    self._carry_out(self._machine.savepoint_barrier(routers[i], savepoint))
                elif kind == DATA and not self._machine.stopped(routers[i]):
                    events = pa.ipc.read_record_batch(batch["value"][i].as_buffer(), self._event_schema)
                    results += self._admit(events, routers[i], versions[i], offsets[i], watermarks[i])
            return self._emit(results)

    def settled(self) -> bool:
        """Nothing is under way: the state can stay here and somebody else may continue."""
        with self._lock:
            if not self._deadline:
                self._deadline = time.monotonic() + self._config.deadline_s
                self._carry_out(self._machine.end_of_input())
            return self._machine.settled

    def finish(self) -> list[bytes]:
        """After the last row: wait a little for background work, drain, and give what is to be emitted."""
        time.sleep(0.002)
        with self._lock:
            self._raise_trouble()
            if time.monotonic() > self._deadline:
                raise MigrationFailed(
                    f"slot {self.slot}: the batch is over and state of units {self._machine.wanted[:5]} did not come "
                    f"within {self._config.deadline_s:g} s"
                )
            return self._emit(self._drain())

    def _admit(self, events: pa.RecordBatch, *where: int) -> list[pa.RecordBatch]:
        router, version, _, _ = where
        unit_column = events["unit"]
        held = self._machine.admit(router, version, set(unit_column.to_pylist()))
        if not held:
            return [self._process(events, *where)]
        for unit in held:
            self._machine.hold(unit, (events.filter(pc.equal(unit_column, unit)), *where))
        rest = events.filter(pc.invert(pc.is_in(unit_column, pa.array(held, pa.int32()))))
        return [self._process(rest, *where)] if rest.num_rows else []

    def _process(
        self, events: pa.RecordBatch, router: int, version: int, offset: int, watermark: int
    ) -> pa.RecordBatch:
        out = self._operator.process(events, self._state_of, watermark)
        rows = out.num_rows
        constant = {
            "router": pa.repeat(pa.scalar(router, pa.int32()), rows),
            "offset": pa.repeat(pa.scalar(offset, pa.int64()), rows),
            "version": pa.repeat(pa.scalar(version, pa.int64()), rows),
        }
        columns = [constant[name] if name in constant else out[name] for name in self._result_schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._result_schema)

    def _state_of(self, unit: int) -> UnitState:
        state = self._states.get(unit)
        if state is None:  # only a deliberate fault gets here: it works on nothing
            state = self._states[unit] = self._new_state(self._operator.state_schema)
        return state

    def _drain(self) -> list[pa.RecordBatch]:
        results: list[pa.RecordBatch] = []
        until = time.monotonic() + DRAIN_S
        while True:
            records, effects = self._machine.drain(DRAIN_RECORDS)
            results += [self._process(*record) for record in records]
            self._carry_out(effects)
            if not records or time.monotonic() > until:
                return results

    def _emit(self, results: list[pa.RecordBatch]) -> list[bytes]:
        values = []
        if results:
            merged = results[0] if len(results) == 1 else pa.concat_batches(results)
            values.append(frames.encode(merged))
        if self._marker and time.monotonic() >= self._marker_at:
            values.append(frames.encode(frames.empty(self._result_schema), self._marker))
            self._marker_at = time.monotonic() + MARKER_EVERY_S
            if self._marker["marker"] == "ready":
                self._marker = None
        return values

    def _set_marker(self, marker: dict[str, Any]) -> None:
        self._marker, self._marker_at = marker | {"slot": self.slot}, 0.0

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[protocol.Effect]) -> None:
        for effect in effects:
            match effect:
                case protocol.Prepared(version):
                    self._acknowledge(version, "prepared", {})
                case protocol.Send(unit, _, _):
                    self._sending[unit] = self._states.pop(unit)
                    self._aligned_us[unit] = now_us()
                    self._pushes.append(effect)
                case protocol.Forget(unit):
                    del self._sending[unit]
                case protocol.Installed(version, units):
                    times = [[unit, *self._incoming.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "installed", {"units": times, "drained_us": now_us()})
                case protocol.Released(version, units):
                    times = [[unit, *self._outgoing.pop(unit)] for unit in sorted(units)]
                    self._acknowledge(version, "released", {"units": times})
                case protocol.Freeze(savepoint):
                    self._background(partial(self._freeze, savepoint))
        if self._pushes:
            pushes, self._pushes = self._pushes, []
            for destination in sorted({push.destination for push in pushes}):
                leaving = [push.unit for push in pushes if push.destination == destination]
                self._background(partial(self._push, destination, leaving))

    def _acknowledge(self, version: int, phase: str, value: dict[str, Any]) -> None:
        self._coordination.acknowledge(f"acks/{version}/{phase}-{self.slot}", value | {"at_us": now_us()})

    # -- other threads ------------------------------------------------------------------------------------------------

    def _step_published(self, raw: dict[str, Any]) -> bool:
        """From kazoo's thread."""
        try:
            with self._lock:
                if raw["cancelled"]:
                    self._carry_out(self._machine.cancel(raw["version"]))
                else:
                    self._carry_out(self._machine.prepare(raw["version"], Step.from_json(raw["moves"])))
        except BaseException as error:
            self._trouble = error
            return False
        return True

    def state_arrived(self, unit: int, batches: list[pa.RecordBatch]) -> None:
        """From Flight's thread, or the one that pulls: builds the state, then hands it to the machine."""
        received = now_us()
        state = self._new_state(self._operator.state_schema)
        state.install(batches)
        with self._lock:
            effects = self._machine.arrived(unit)
            self._states[unit] = state
            self._incoming[unit] = [received, now_us()]
            self._carry_out(effects)

    def _background(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._trouble = error
                return

    def _push(self, destination: int, units: list[int]) -> None:
        address = self._address_of(destination)

        def sent(unit: int, size: int) -> None:
            self._outgoing[unit] = [size, self._aligned_us.pop(unit), now_us()]

        def acknowledged(unit: int) -> None:
            with self._lock:
                self._carry_out(self._machine.acknowledged(unit))

        states = [(unit, self._sending[unit]) for unit in units]
        self._clients.push(
            address, destination, self._host.state_schema, states, self._config.chunk_bytes, sent, acknowledged
        )

    def _address_of(self, slot: int) -> str:
        """Where ``slot`` listens; after a batch boundary it may take a moment until it does again."""
        until = time.monotonic() + self._config.deadline_s
        while (found := self._coordination.read(f"slots/{slot}")) is None:
            if time.monotonic() > until:
                raise MigrationFailed(f"slot {slot} did not say where it is within {self._config.deadline_s:g} s")
            time.sleep(POLL_S)
        return str(found["address"])

    def _pull(self, units: set[int], address: str) -> None:
        while some := self._next_of(units):
            self._clients.pull(address, self.slot, some, self.state_arrived)

    def _restore(self, units: set[int]) -> None:
        assert self._config.restore is not None
        begin_us = now_us()
        store = SavepointStore(self._config.endpoints, self._config.job)
        places = store.places(self._config.restore)
        while some := self._next_of(units):
            for unit in some:
                self.state_arrived(unit, store.read(places[unit]))
        times = [[unit, *self._incoming[unit]] for unit in self._incoming]
        self._coordination.acknowledge(f"restored/{self.slot}", {"units": times, "begin_us": begin_us})

    def _next_of(self, units: set[int]) -> list[int]:
        """The next few of ``units`` to fetch, those with waiting records first."""
        with self._lock:
            return [unit for unit in self._machine.wanted if unit in units][:PULL_UNITS]

    def _freeze(self, savepoint: str) -> None:
        store = SavepointStore(self._config.endpoints, self._config.job)
        places = store.write(savepoint, self.slot, sorted(self._states.items()), self._config.chunk_bytes)
        self._coordination.acknowledge(
            f"savepoints/{savepoint}/slot-{self.slot}", {"places": [list(astuple(place)) for place in places]}
        )
        with self._lock:
            self._set_marker({"marker": "sealed", "savepoint": savepoint})
