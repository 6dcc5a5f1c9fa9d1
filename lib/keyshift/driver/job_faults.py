"""Faults of a job, as its driver sees them: it knows which have happened, and carries out those that hit no slot."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from keyshift.clock import SECOND_US, now_us
from keyshift.driver.stage import LedStage
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import SlotId
from keyshift.model.notes import Activity, Doing
from keyshift.wire import nodes
from keyshift.wire.faults import EXECUTOR, REPLICA, SERVICES, Fault


class ServicesToHit(Protocol):
    """What a job uses, and may be hit; of a replica its own processes, too. ``executors``: those, too, as they are
    pods; else the first slot kills the one that it runs in.
    """

    executors: bool

    def require(self, fault: Fault) -> None:
        """Refuse a fault that cannot happen here (any more): BadInput. ServiceUnavailable if that cannot be asked."""

    def allows(self, fault: Fault) -> bool:
        """Whether it can happen here now; if not, a note says why."""

    def hit(self, fault: Fault, host: str = "") -> None:
        """Begin ``fault``, and do not wait. ``host``: where the executor is that is hit, see ``first_slot_host``."""

    @property
    def away(self) -> bool:
        """Whether one that was hit is not there again yet."""


class JobFaults:
    """Each of ``faults`` happens once, at the first stage that comes to its phase.

    ``done``: those that have happened, but for slots whose death ended the attempt before it was heard. ``struck``:
    when that was known (seconds since the epoch), and what it was.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        stages: Sequence[LedStage],
        say: Callable[[Doing], None],
        services: ServicesToHit | None,
    ) -> None:
        self._faults, self._stages, self._say, self._services = faults, stages, say, services
        self._lock = threading.Lock()
        self._come: list[Fault] = []  # those whose phase has come
        self.done: list[Fault] = []
        self.struck: list[tuple[float, str]] = []
        for stage in stages:
            stage.at_phase = self._reached

    @property
    def busy(self) -> bool:
        """Whether one goes on that has an end."""
        return self._services is not None and self._services.away

    def listen(self) -> None:
        """Listen to what the slots of an attempt tell."""
        if not self._faults or self._stages[0].config.attempt:
            return
        for stage in self._stages:

            def told(names: list[str], stage: LedStage = stage) -> None:
                for name in names:
                    self._once(self._faults[int(name)], stage)

            stage.participant.watch_children(nodes.FAULTS, told)

    def _reached(self, stage: LedStage, phase: str) -> None:
        """Let the faults of ``phase`` happen; called from a leader's thread."""
        if not stage.config.attempt:
            for fault in self._faults:
                if fault.phase == phase and not fault.local:
                    self._once(fault, stage)

    def _once(self, fault: Fault, stage: LedStage) -> None:
        with self._lock:
            if fault in self._come:
                return
            self._come.append(fault)
            if fault.who in SERVICES and self._services and not self._services.allows(fault):
                return
            self._happens(fault)
        if not fault.local:
            self._carry_out(fault, stage)
            return
        for other in self._stages:
            if other is not stage:
                with contextlib.suppress(ServiceUnavailable):  # the attempt is over, and with it the faults
                    other.participant.acknowledge(nodes.FAULTS[self._faults.index(fault)], nodes.ELSEWHERE)

    def hit(self, fault: Fault) -> None:
        """Let ``fault`` happen now; a slot is the first one of the first stage. Raises BadInput if it cannot."""
        if self._services is not None:
            self._services.require(fault)
        with self._lock:
            self._happens(fault)
        self._carry_out(fault, self._stages[0])

    def _happens(self, fault: Fault) -> None:
        self.done.append(fault)
        self.struck.append((now_us() / SECOND_US, fault.what))

    def _carry_out(self, fault: Fault, stage: LedStage) -> None:
        self._say(Doing(Activity.STRUCK, f"fault: {fault.what}"))
        services = self._services
        if fault.who == EXECUTOR and services is not None and services.executors:
            services.hit(fault, first_slot_host(stage))
        elif fault.who in (REPLICA, *SERVICES):
            assert services is not None
            services.hit(fault)
        elif fault.who == "coordinator":
            stage.fail(fault)
        else:
            stage.ask.tell(nodes.FAULT, nodes.FaultNow(SlotId(0), fault, now_us()))


def first_slot_host(stage: LedStage) -> str:
    """Find where the executor is in which the first slot runs; empty between two batches. Raises ServiceUnavailable."""
    address = stage.participant.read(nodes.ADDRESSES[0]) or ""
    return address.rpartition(":")[0]
