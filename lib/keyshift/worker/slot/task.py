"""The slot in Spark: gives its core rows and state from several threads, and carries out what follows in couriers.

Several threads share one ``SlotTask``, one at a time in their *turn* under its lock: Spark's task thread (rows),
kazoo's (published steps), Flight's (what arrives) and those of its couriers. Everything slow happens outside the lock:
a unit's state is an object that one thread owns at a time, so extracting and installing never hold a frame back.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from keyshift.clock import now_us
from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import SlotId
from keyshift.model.markers import SlotStarted
from keyshift.runtime.row import Row
from keyshift.wire import nodes, protocol_logs
from keyshift.worker.attempt import AttemptWatch
from keyshift.worker.flight.messages import OfStep, Shipment
from keyshift.worker.order.following import Following
from keyshift.worker.output import SlotOutput
from keyshift.worker.slot.answers import SlotAnswers
from keyshift.worker.slot.background import Chore
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.intake import Intake
from keyshift.worker.slot.measures import Measures
from keyshift.worker.slot.shared import Shared, slice_of_time
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.state.arrivals import Arrivals

ASIDE_S = 0.02  # how often what waits is looked at, as long as something does, whether rows come or not


@dataclass(eq=False, kw_only=True)
class SlotTask:
    """One slot during one batch, from its parts; ``opening.make_slot`` makes them. ``works``: that are done beside it,
    each in a thread of its own.
    """

    shared: Shared
    intake: Intake
    measures: Measures
    snapshots: SlotSnapshots
    effects: SlotEffects
    arrivals: Arrivals
    answers: SlotAnswers
    output: SlotOutput
    watch: AttemptWatch
    following: Following | None = None  # of a leader, if there are some
    works: Sequence[Chore] = ()
    deadline: float = field(default=0.0, init=False)  # by the monotonic clock, once the input has ended
    _ended: bool = field(default=False, init=False)  # the core knows that the batch is over
    _progress: tuple[Any, ...] = field(default=(), init=False)  # since then: what changes while something comes or goes
    _waits: bool = field(default=False, init=False)  # it has waited for that long, and others were told

    @property
    def slot(self) -> SlotId:
        """Its number."""
        return self.shared.slot

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, say where this slot is, and begin with what is done in the background."""
        shared, config = self.shared, self.shared.config
        started = SlotStarted(config.stage, config.attempt, shared.core.machine.version)
        # In this order: state may be pushed as soon as the address is known, and must be expected by then.
        shared.host.tenants[self.slot] = self
        shared.coordination.watch(nodes.STEPS, self._steps_published)
        shared.coordination.register(nodes.ADDRESSES[self.slot], shared.host.server.address)
        self.shared.markers.say(started)
        self.shared.background.start(self.answers.listen, self._go_on, *self.works)

    def seal(self) -> None:
        """Leave the state in this process and say where it is."""
        shared, core, machine = self.shared, self.shared.core, self.shared.core.machine
        shared.faults.reached("batch")
        with shared.lock:
            self.effects.replicator.stop()
            position, left = self.intake.left()
            shared.host.seal(self.slot, machine.version, core.states, left)
            shared.coordination.withdraw(nodes.ADDRESSES[self.slot])
            handover = nodes.Handover(
                address=shared.host.server.address,
                units=tuple(sorted(machine.serving)),
                version=machine.version,
                measures=self.answers.measured(),
                watermarks=tuple(core.watermarks),
                savepoint=core.savepoint,
                log=tuple(core.log.events),
                position=position,
            )
            shared.coordination.publish(nodes.HANDOVERS[self.slot], handover)
            shared.end()

    def report(self) -> None:
        """Put what led to the failure of the task into the log of its worker, and tell the job."""
        with self.shared.lock:
            protocol_logs.report(self.shared.coordination, self.shared.core.log)
        self.output.report()

    def close(self) -> None:
        """Stop the background threads and end the session. The task, and with it the batch, does not wait for that."""
        self.shared.end()
        self.shared.background.close()
        tenants = self.shared.host.tenants
        if tenants.get(self.slot) is self:
            del tenants[self.slot]
        threading.Thread(target=self._disconnect, name=f"keyshift-slot-{self.slot}-end", daemon=True).start()

    def _disconnect(self) -> None:
        if self.following:
            self.following.close()
        self.output.close()
        self.effects.close()
        self.shared.coordination.close(prepare_next=True)
        self.shared.background.await_end(self.shared.config.deadline_s)  # whoever had the slot is told what has come
        self.shared.clients.close()
        self.effects.replicator.close()

    # -- the task's thread --------------------------------------------------------------------------------------------

    def on_rows(self, rows: Sequence[Row]) -> list[pa.RecordBatch]:
        """Handle rows of routers; gives what is to be emitted now, see ``SlotOutput.give``."""
        with self.effects.turn(), self.measures.working():
            self._raise_trouble()
            self.intake.come(rows)
            return self._emit()

    def stalled(self, in_time: bool = True) -> bool:
        """Whether more is queued here than should be: no further row is to be taken, they wait where they come from.

        Not ``in_time``, when the batch is about to end, what the output keeps back does not count.
        """
        with self.shared.lock:
            return self.shared.core.full or (in_time and self.output.full)

    def settled(self) -> bool:
        """Whether nothing is under way: the state can stay here and somebody else may continue."""
        with self.effects.turn() as core:
            self._raise_trouble()
            if not self._ended and self.intake.over():
                self._ended = True
                core.end_of_input()
            moved_at = self.shared.clients.moved_at, self.shared.host.server.moved_at
            progress = len(core.machine.expected), core.queued_bytes, *moved_at
            writing = self.snapshots.busy or self.shared.markers.pending
            settled = self._ended and core.settled and not writing and not self.output.holds
            moves = progress != self._progress or writing or settled  # the store has deadlines of its own
            if moves:
                self._progress, self.deadline = progress, time.monotonic() + self.shared.config.deadline_s
        if moves and self._waits:
            self._waits = False
            self.shared.coordination.withdraw(nodes.WAITING[self.slot])
        return settled

    def wait(self) -> list[pa.RecordBatch]:
        """Wait a little for background work, without a new row; drain, and give what is to be emitted.

        Raises ServiceUnavailable if the attempt is over.
        """
        time.sleep(0.002)
        self.watch.require()
        late = bool(self.deadline) and time.monotonic() > self.deadline and not self._others_read()
        with self.effects.turn() as core:
            self._raise_trouble()
            if late:
                wanted = core.machine.wanted[:5]
                waits = f"state of units {wanted} is elsewhere" if wanted else "a step, rows or results wait for others"
                raise MigrationFailed(
                    f"slot {self.slot}: the batch is over, {waits}, and nothing has come or gone for "
                    f"{self.shared.config.deadline_s:g} s"
                )
            with self.measures.working():
                self.intake.go_on()
                return self._emit()

    def _others_read(self) -> bool:
        """Whether another process still has rows of this stage: what this slot waits for may be behind them. Its
        deadline begins anew then.

        Others are told that this process has no more rows, whose slots come to the end of them together. So of two
        slots that wait for each other, the second one knows.
        """
        coordination, address = self.shared.coordination, self.shared.host.server.address
        if not self._waits:
            self._waits = True
            coordination.register(nodes.WAITING[self.slot], address)
        reading = {*coordination.read_below(nodes.ADDRESSES).values()}
        reading -= {*coordination.read_below(nodes.WAITING).values()}
        if reading:
            self.deadline = time.monotonic() + self.shared.config.deadline_s
        return bool(reading)

    def _emit(self) -> list[pa.RecordBatch]:
        results, now = self.shared.core.take_results(), now_us()
        self.measures.answered((each for each in results if isinstance(each, pa.RecordBatch)), now)
        given = self.output.give(results, self.shared.markers.take(), now)
        if given:
            self.watch.put_off()
        return given

    def _raise_trouble(self) -> None:
        self.shared.background.check()
        self.shared.coordination.check()

    # -- other threads ------------------------------------------------------------------------------------------------

    def _steps_published(self, told: nodes.PublishedSteps) -> bool:
        """Take published steps, from kazoo's thread."""
        try:
            self.shared.faults.published(told.steps)
            with self.effects.turn() as core:
                new = core.published(told.version, told.steps)
            for step in new:
                self.shared.background.put(partial(self.effects.departures.greet, step))
        except BaseException as error:
            self.shared.background.failed(error)
            return False
        return True

    def message(self, message: OfStep) -> None:
        """Take what another slot says, from Flight's thread."""
        with self.effects.turn() as core:
            for wanted in message.wanted:
                core.requested(*wanted)
            for opened in message.opened:
                core.opened(*opened)

    def shipments_arrived(self, shipments: list[Shipment]) -> list[bool]:
        """Take shipments, from Flight's thread; see ``Arrivals.take``."""
        return self.arrivals.take(shipments)

    def _go_on(self) -> None:
        """Go on without rows, too: a router that another slot has stopped may keep them until this one has gone on."""
        while self.shared.waits.wait() and not self.shared.closed.wait(ASIDE_S):
            with self.effects.turn() as core, self.measures.working():
                self.shared.waits.clear()
                if self.shared.closed.is_set():
                    return  # it may have been the end that was cleared, and nobody tells of that again
                if core.waits:
                    core.drain(now_us(), slice_of_time())
