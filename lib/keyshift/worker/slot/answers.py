"""What a job asks of a slot beside the protocol: measurements, copies, the protocol log, and to fail."""

from collections.abc import Callable
from typing import Any

from keyshift.clock import SECOND_US, now_us
from keyshift.wire import protocol_logs
from keyshift.wire.faults import Fault
from keyshift.worker.slot.shared import Shared
from keyshift.worker.state.replicator import Replicator

SOON_US = SECOND_US  # a fault that was asked for is old after that


class SlotAnswers:
    """From kazoo's thread, until the slot is closed: the next holder knows more. ``measured()``: under the lock."""

    def __init__(self, shared: Shared, replicator: Replicator, measured: Callable[[], dict[str, Any]]) -> None:
        self._shared, self._replicator, self._measured = shared, replicator, measured

    def listen(self) -> None:
        """From now on."""
        for question, answer in (
            ("measure", self._measures_wanted),
            ("copies", self._copies_wanted),
            ("log", self._log_wanted),
            ("fault", self._fault_wanted),
        ):
            self._shared.coordination.watch(question, answer)

    def _measures_wanted(self, raw: dict[str, Any]) -> None:
        shared = self._shared
        with shared.lock:
            if shared.closed.is_set():
                return
            answer = self._measured() | {
                "host": shared.host.server.address.rsplit(":", 1)[0],
                "left_behind": shared.host.left_behind(),
                "queue_bytes": shared.core.queued_bytes,
            }
        shared.coordination.acknowledge(f"measured/{raw['id']}/{shared.slot}", answer)

    def _copies_wanted(self, raw: dict[str, Any]) -> None:
        with self._shared.lock:
            ours = [(unit, holder) for unit, owner, holder in raw["copies"] if owner == self._shared.slot]
            self._replicator.start(raw["id"], ours, raw["every_s"], raw["lag_keys"], raw["whole"])

    def _fault_wanted(self, raw: dict[str, Any]) -> None:
        if raw["slot"] == self._shared.slot and now_us() - raw["at_us"] < SOON_US:  # not once more in the next batch
            Fault(raw["action"], raw["who"], "", None, raw["seconds"]).strike()

    def _log_wanted(self, raw: dict[str, Any]) -> None:
        with self._shared.lock:
            if not self._shared.closed.is_set():
                protocol_logs.answer(self._shared.coordination, raw["id"], self._shared.core.log)
