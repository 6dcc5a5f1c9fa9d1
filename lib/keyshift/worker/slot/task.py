"""The slot in Spark: gives its core rows and state from several threads, and carries out what follows in couriers.

Several threads share one ``SlotTask``, one at a time in their *turn* under its lock: Spark's task thread (rows),
kazoo's (published steps), Flight's (what arrives) and those of its couriers. Everything slow happens outside the lock:
a unit's state is an object that one thread owns at a time, so extracting and installing never hold a frame back.
"""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from keyshift.clock import now_us
from keyshift.model.errors import MigrationFailed
from keyshift.model.markers import Marker, Ready, Said, Sealed
from keyshift.model.records import Measured
from keyshift.runtime.row import BARRIER, KINDS, Row
from keyshift.runtime.snapshots import Snapshots
from keyshift.state import UnitState
from keyshift.wire import nodes, protocol_logs
from keyshift.wire.channel import MARKER
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import FaultPoints
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.exits import Exit, make_exit
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import Parcel
from keyshift.worker.slot.answers import SlotAnswers
from keyshift.worker.slot.cores import ArrowCore, Shape, make_core
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.host import host_for
from keyshift.worker.slot.measures import Measures
from keyshift.worker.slot.shared import Shared
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.state.addresses import Addresses
from keyshift.worker.state.arrivals import Arrivals

DRAIN_S = 0.003  # so long queued work is processed between two rows, at least
MARKER_EVERY_S = 0.2
ASIDE_S = 0.02  # how often what waits is looked at, as long as something does, whether rows come or not


class SlotTask:
    """One slot during one batch."""

    def __init__(self, config: JobConfig, slot: int) -> None:
        self.slot = slot
        self._config = config
        self._host = host_for(config)
        self._faults = FaultPoints(config.faults, slot, config.attempt, self._tell_fault)
        self._stage = config.make_stage()
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None
        self._closed = threading.Event()
        self._waits = threading.Event()  # something does, or the batch is over
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._marker: Said | None = None
        self._marker_at = 0.0
        self._to_say: list[Said] = []  # other markers, each once; also of slots of the stage before
        self._sealing = False  # a savepoint is being written, or nobody has been told that it is
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
        handover = self._coordination.read(nodes.HANDOVERS[self.slot])
        self._measures = Measures(config.key_groups * config.bins, handover.measures if handover else None)
        self._store = host.store(self.slot)
        states: dict[int, UnitState] = {}
        fresh: Sequence[int] = ()
        expected: Sequence[int] = ()
        if handover is None:
            assignment = self._coordination.require(nodes.ASSIGNMENT).assignment
            owned, version = assignment.units_of(self.slot), assignment.version
            if config.restore is None:
                fresh = owned
            else:
                expected = owned
                savepoint = config.restore
                self._background(lambda: self._arrivals.restore(owned, self._savepoints(), savepoint))
        elif handover.address == host.server.address:
            version = handover.version
            states |= host.left.pop(self.slot)
        else:
            expected, version, address = handover.units, handover.version, handover.address
            self._background(lambda: self._arrivals.pull(expected, address))
        shape = Shape(config.routers, config.key_groups * config.bins, config.queue_bytes, config.number == 0)
        self._core = make_core(self.slot, self._stage, self._store, shape, states, fresh, expected, version)
        if handover is not None:  # time goes on where it was: routers do not say again what they said before
            self._core.watermarks, self._core.savepoint = list(handover.watermarks), handover.savepoint
            self._core.log.remember(handover.log)
        self.exit: Exit = make_exit(config, self.slot)
        self._connect()
        # In this order: state may be pushed as soon as the address is known, and must be expected by then.
        host.open(self)
        self._coordination.watch(nodes.STEPS, self._steps_published)
        self._coordination.register(nodes.ADDRESSES[self.slot], host.server.address)
        self._set_marker(Ready(config.stage, config.attempt))
        if not host.warm:
            host.warm = True
            self._background(self._warm_up)
        for work in (self._work, self._answers.listen, self._go_on):
            threading.Thread(target=self._beside, args=(work,), name=f"keyshift-slot-{self.slot}", daemon=True).start()

    def _connect(self) -> None:
        """Those who carry out what the core decides, take what comes, and answer what the job asks."""
        shared = Shared(
            config=self._config,
            slot=self.slot,
            core=self._core,
            store=self._store,
            host=self._host,
            coordination=self._coordination,
            clients=self._clients,
            lock=self._lock,
            closed=self._closed,
            turn=self._turn,
            failed=self._failed,
            faults=self._faults,
        )
        self._core.snapshots, places = self._host.snapshots.setdefault(self.slot, (Snapshots(), {}))
        self._snapshots = SlotSnapshots(shared, self._savepoints, places, self._say)
        self._effects = SlotEffects(shared, self._addresses, self._freeze, self._snapshots, self.exit.promise)
        self._arrivals = Arrivals(shared, self._effects.incoming, self._slice_of_time)
        self._answers = SlotAnswers(shared, self._effects.replicator, self._measured)

    def seal(self) -> None:
        """Leave the state in this process and say where it is."""
        self._faults.reached("batch")
        with self._lock:
            core, machine = self._core, self._core.machine
            self._effects.replicator.stop()
            self._host.seal(self.slot, machine.version, core.states)
            self._coordination.withdraw(nodes.ADDRESSES[self.slot])
            handover = nodes.Handover(
                address=self._host.server.address,
                units=tuple(sorted(machine.serving)),
                version=machine.version,
                measures=self._measured(),
                watermarks=tuple(core.watermarks),
                savepoint=core.savepoint,
                log=tuple(core.log.events),
            )
            self._coordination.publish(nodes.HANDOVERS[self.slot], handover)
            self._end()

    def _end(self) -> None:
        self._closed.set()
        self._waits.set()

    def report(self) -> None:
        """The task fails: what led to that goes into the log of its worker, and to the job."""
        if hasattr(self, "_core"):
            with self._lock:
                protocol_logs.report(self._coordination, self._core.log)
            self.exit.report()

    def close(self) -> None:
        """Stop the background threads and end the session. The task, and with it the batch, does not wait for that."""
        self._end()
        self._jobs.put(None)
        if self._host.tenants.get(self.slot) is self:
            del self._host.tenants[self.slot]
        threading.Thread(target=self._disconnect, name=f"keyshift-slot-{self.slot}-end", daemon=True).start()

    def _disconnect(self) -> None:
        if hasattr(self, "exit"):
            self.exit.close()
        if hasattr(self, "_effects"):
            self._effects.close()
            self._coordination.close(prepare_next=True)
            self._clients.close()
            self._effects.replicator.close()

    # -- turns --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[ArrowCore]:
        """The core, under the lock; at the end what follows is carried out."""
        with self._lock:
            yield self._core
            self._effects.carry_out()
            if self._core.waits:
                self._waits.set()

    def _slice_of_time(self) -> Callable[[], bool]:
        until = time.monotonic() + DRAIN_S
        return lambda: time.monotonic() < until

    # -- the task's thread --------------------------------------------------------------------------------------------

    def on_rows(self, rows: Sequence[Row]) -> list[Any]:
        """Handle rows of routers; gives the rows to emit now, as ``exit`` has them."""
        with self._turn() as core, self._measures.working():
            self._raise_trouble()
            core.on_rows((row for row in rows if row.kind in KINDS), now_us(), self._slice_of_time())
            for row in rows:
                if row.kind == BARRIER:
                    self._faults.reached("align", row.version)
                elif row.kind == MARKER:
                    self._to_say.append(Said.from_json(json.loads(bytes(row.payload))))
            return self._emit()

    def stalled(self, in_time: bool = True) -> bool:
        """Whether more is queued here than should be: no further row is to be taken, they wait where they come from.

        Not ``in_time``, when the batch is about to end, what the exit keeps back does not count.
        """
        with self._lock:
            return self._core.full or (in_time and self.exit.full)

    def settled(self) -> bool:
        """Nothing is under way: the state can stay here and somebody else may continue."""
        with self._turn() as core:
            self._raise_trouble()
            if not self._deadline:
                core.end_of_input()
            moved_at = self._clients.moved_at, self._host.server.moved_at
            progress = len(core.machine.expected), core.queued_bytes, *moved_at
            writing = self._sealing or self._snapshots.busy or bool(self._to_say)
            if progress != self._progress or writing:  # the store has deadlines of its own
                self._progress, self._deadline = progress, time.monotonic() + self._config.deadline_s
            return core.settled and not writing and not self.exit.holds

    def wait(self) -> list[Any]:
        """Without a new row: wait a little for background work, drain, and give what is to be emitted."""
        time.sleep(0.002)
        with self._turn() as core:
            self._raise_trouble()
            if self._deadline and time.monotonic() > self._deadline:
                raise MigrationFailed(
                    f"slot {self.slot}: the batch is over, state of units {core.machine.wanted[:5]} is elsewhere, and "
                    f"nothing has come or gone for {self._config.deadline_s:g} s"
                )
            with self._measures.working():
                core.drain(now_us(), self._slice_of_time())
                return self._emit()

    def _emit(self) -> list[Any]:
        markers, self._to_say = self._to_say, []
        if self._marker and time.monotonic() >= self._marker_at:
            markers.append(self._marker)
            self._marker_at = time.monotonic() + MARKER_EVERY_S
            if isinstance(self._marker.marker, Ready):
                self._marker = None
            else:
                self._sealing = False
        results, now = self._core.take_results(), now_us()
        self._measures.answered((each for each in results if isinstance(each, pa.RecordBatch)), now)
        return self.exit.give(results, markers, self._core.watermark, now)

    def rest(self) -> list[Any]:
        """What is to be emitted at the end of the batch, when the slot is settled."""
        return self.exit.rest()

    def _say(self, marker: Marker) -> None:
        self._to_say.append(Said(self.slot, marker))

    def _set_marker(self, marker: Marker) -> None:
        self._marker, self._marker_at = Said(self.slot, marker), 0.0

    def _raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble
        self._coordination.check()

    # -- other threads ------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self._trouble = error

    def _beside(self, work: Callable[[], None]) -> None:
        """In a thread of its own; the task's thread raises what goes wrong there."""
        try:
            work()
        except BaseException as error:
            self._failed(error)

    def _steps_published(self, told: nodes.PublishedSteps) -> bool:
        """From kazoo's thread."""
        try:
            self._faults.published(told.steps)
            with self._turn() as core:
                new = core.published(told.version, told.steps)
            for step in new:
                self._background(partial(self._effects.departures.greet, step))
        except BaseException as error:
            self._failed(error)
            return False
        return True

    def _tell_fault(self, number: int) -> None:
        self._coordination.acknowledge(nodes.FAULTS[number], None)

    def _measured(self) -> Measured:
        core = self._core
        return self._measures.so_far(core.computation.heat, core.queue_peak_bytes, self._effects.couriers.measures())

    def message(self, body: dict[str, Any]) -> None:
        """From Flight's thread; see ``StateClients.tell``."""
        with self._turn() as core:
            for wanted in body["wanted"]:
                core.requested(*wanted)
            for opened in body["opened"]:
                core.opened(*opened)

    def parcels_arrived(self, parcels: list[Parcel]) -> list[bool]:
        """From Flight's thread; see ``Arrivals.take``."""
        return self._arrivals.take(parcels)

    def _background(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _go_on(self) -> None:
        """Without rows, too: they may wait, in a router that another slot has stopped, for what this one has to do."""
        while self._waits.wait() and not self._closed.wait(ASIDE_S):
            with self._turn() as core, self._measures.working():
                self._waits.clear()
                if not self._closed.is_set() and core.waits:
                    core.drain(now_us(), self._slice_of_time())

    def _warm_up(self) -> None:
        """Everything once that is slow the first time: calls, here to ourselves, and memory that was never touched."""
        reserve = b"\1" * self._config.reserve_bytes
        del reserve
        own = self._host.server.address
        self._clients.tell(own, "drop", {"stays": []})
        self._clients.keys(own, [])

    def _savepoints(self) -> SavepointStore:
        return SavepointStore(self._config.endpoints, self._config.job)

    def _freeze(self, savepoint: str) -> None:
        self._sealing = True
        self._background(partial(self._save, savepoint, sorted(self._core.states.items())))

    def _save(self, savepoint: str, states: list[tuple[int, UnitState]]) -> None:
        self._snapshots.save(savepoint, states)
        with self._lock:
            self._set_marker(Sealed(self._config.stage, savepoint))
