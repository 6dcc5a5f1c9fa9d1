"""What a job asks of a slot beside the protocol: measurements, copies, the protocol log, and to fail."""

from dataclasses import replace

from keyshift.clock import SECOND_US, now_us
from keyshift.model.records import Measured
from keyshift.wire import nodes, protocol_logs
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.measures import Measures
from keyshift.worker.slot.shared import Shared

SOON_US = SECOND_US  # so long before this batch, a fault that was asked for may have had nobody to hit


class SlotAnswers:
    """The answers, which come from kazoo's thread, until the slot is closed: the next holder knows more."""

    def __init__(self, shared: Shared, effects: SlotEffects, measures: Measures) -> None:
        self._shared, self._effects, self._measures = shared, effects, measures
        self._since_us = now_us()

    def measured(self) -> Measured:
        """Return what the slot has measured so far; under its lock."""
        core = self._shared.core
        sent = {
            **self._effects.couriers.measures,
            "copied_bytes": self._effects.replicator.copied_bytes,
            "lent_bytes": self._effects.lent_bytes,
        }
        return self._measures.so_far(core.computation.heat, core.queue_peak_bytes, sent)

    def listen(self) -> None:
        """Listen from now on."""
        coordination = self._shared.coordination
        coordination.watch(nodes.MEASURE, self._measures_wanted)
        coordination.watch(nodes.COPIES, self._copies_wanted)
        coordination.watch(nodes.LOG, self._log_wanted)
        coordination.watch(nodes.FAULT, self._fault_wanted)

    def _measures_wanted(self, question: str) -> None:
        shared = self._shared
        with shared.lock:
            if shared.closed.is_set():
                return
            answer = replace(
                self.measured(),
                host=shared.host.server.address.rsplit(":", 1)[0],
                left_behind=tuple(shared.host.left_behind()),
                queue_bytes=shared.core.queued_bytes,
            )
        shared.coordination.acknowledge(nodes.measured(question)[shared.slot], answer)

    def _copies_wanted(self, order: nodes.CopiesWanted) -> None:
        with self._shared.lock:
            self._effects.replicator.start(order)

    def _fault_wanted(self, wanted: nodes.FaultNow) -> None:
        if wanted.slot == self._shared.slot and wanted.at_us > self._since_us - SOON_US:  # not once more in each batch
            wanted.fault.strike()

    def _log_wanted(self, question: str) -> None:
        with self._shared.lock:
            if not self._shared.closed.is_set():
                protocol_logs.answer(self._shared.coordination, question, self._shared.core.log)
