"""A router in Spark whose slots work in turns: it answers for what is appointed, and waits for it.

Batches of routers end one by one, and what was appointed has to be confirmed all the same, or one router would wait for
another one that begins its next batch only when the first has ended its own. So between two batches a router has left
in ZooKeeper how far it has come. It withdraws that before it reads what is appointed: whoever finds it there knows that
the router will read it.
"""

import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from keyshift.model.errors import ProtocolViolation
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.router import RouterCore
from keyshift.runtime.turn_router import TurnRouter
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.worker.router import RoutedBytes, RouterTask, Routing

LOOK_S = 0.002  # between two looks whether an appointment holds


class TurnRouting(Routing):
    """A router of any stage, from ``listen`` on."""

    _core: TurnRouter[pa.RecordBatch]

    def __init__(self, config: JobConfig) -> None:
        self._router: int | None = None
        self._ended = False
        self._violation: ProtocolViolation | None = None  # of what was told; the task ends with what it says next
        super().__init__(config)

    def _open(self) -> RouterCore[pa.RecordBatch]:
        return self._begun(0)

    def _begun(self, watermark: int) -> TurnRouter[pa.RecordBatch]:
        """The core of a router that has come to this ``watermark``, in microseconds."""
        config, self._begin = self._config, self.coordination.require(nodes.ASSIGNMENT)
        return TurnRouter(self._begin, config.slots, config.queue_bytes, self._split, config.heartbeat_us, watermark)

    def listen(self, router: int) -> None:
        """Find out where this router stands, and what was appointed."""
        left = nodes.ROUTERS[router]
        watermark = self.coordination.read(left) or 0
        self.coordination.withdraw(left)
        self._router, self._core = router, self._begun(watermark)
        self._announced(self._begin)  # now: a watch may tell it later
        self.coordination.watch(nodes.ASSIGNMENT, self._announced)

    def _announce(self, told: PublishAssignment) -> None:
        if not self._ended:
            self._answer(str(told.assignment.version), told.appointment, partial(self._core.switch, told))

    def _answer(self, what: str, appointment: Appointment | None, ask: Callable[[], bool | None]) -> None:
        """Ask the core, and confirm. A ProtocolViolation is kept for the task's thread: nobody else would say it."""
        try:
            answer = ask()
        except ProtocolViolation as violation:
            self._violation = violation
            return
        if appointment is not None and answer is not None:
            assert self._router is not None  # nothing is heard before
            name = nodes.of_epoch(appointment.epoch, self._router)
            self.coordination.acknowledge(nodes.confirmed(what)[name], answer)

    def _require_good(self) -> None:
        """Raise the ProtocolViolation that was kept, if there is one; under the lock."""
        if self._violation is not None:
            raise self._violation

    def hand_over(self) -> None:
        """Leave word how far this router has come: from now on that answers for it."""
        with self._lock:
            self._ended = True
        if self._router is not None:
            self.coordination.publish(nodes.ROUTERS[self._router], self.watermark)


class TurnRouterTask(TurnRouting, RouterTask):
    """A router of the first stage. It knows which one it is with its first frame."""

    def listen(self, router: int) -> None:  # noqa: D102
        super().listen(router)
        if called := self.coordination.read(nodes.SAVEPOINT):
            self._core.said_before(called.id, called.appointment, called.stops)
            self._savepoint_called(called)
        self.coordination.watch(nodes.SAVEPOINT, self._savepoint_called)

    def _savepoint_called(self, called: nodes.SavepointCalled) -> None:
        with self._lock:
            if self._ended:
                return
            if called.appointment is None:
                self._core.take_back(called.id)
            else:
                ask = partial(self._core.savepoint, called.id, called.appointment, called.stops)
                self._answer(called.id, called.appointment, ask)

    def routed(  # noqa: D102
        self, router: int, offset: int, events: pa.RecordBatch, watermark: int, time_us: int | None = None
    ) -> tuple[list[RoutedBytes], list[str]]:
        if self._router is None:
            self.listen(router)
        while True:
            self.coordination.check()  # a router that hears of nothing would be waited for
            with self._lock:  # nothing may be confirmed between the look and the frame
                self._require_good()
                if self._core.may_take(watermark):
                    return self._routed(router, offset, events, watermark, time_us)
            self.watch.require()
            time.sleep(LOOK_S)


def make_router(config: JobConfig) -> RouterTask:
    """Make a router of the first stage of a job."""
    return TurnRouterTask(config) if config.in_turns else RouterTask(config)
