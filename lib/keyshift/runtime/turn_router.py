"""The router of slots that work in turns: it marks epochs, and says barriers where all routers have agreed to.

An epoch ends with the frame whose watermark crosses a multiple of the heartbeat. Each slot gets a row of such a frame,
with events or without, so that all slots see the same marks. The barrier of an appointment comes right behind the mark
with which the router closes the appointed epoch, and not with its next frame: so in each slot the barriers of all
routers stand between the same two turns.

A router confirms an appointment if it has not closed its epoch, and takes no frame that would close it before it knows
that the appointment holds. Behind a savepoint it goes on to mark epochs, without events: what was appointed for later
still comes.
"""

from collections.abc import Callable, Mapping, Sized
from functools import partial

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Assignment
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.protocol.router import RouterMachine
from keyshift.runtime.router import Events, Routed, RouterCore

Due = tuple[Appointment, Callable[[], None]]  # and what makes the next boundary say its barriers


class TurnRouter(RouterCore[Events]):
    """``watermark``: that it came to in the batch before, in microseconds. ``told``: what was published when it opened.

    Where it stands then says which assignment it routes by, and what is still to come.
    """

    behind = 1  # a barrier stands behind its frame
    each_counts = False  # whether each slot gets a row of each frame, and not only of one that marks an epoch

    def __init__(
        self,
        told: PublishAssignment,
        slots: int,
        queue_bytes: int,
        split: Callable[[Events, Assignment], Mapping[int, Sized]],
        heartbeat_us: int,
        watermark: int = 0,
    ) -> None:
        self._heartbeat_us = heartbeat_us
        appointed, epoch = told.appointment, watermark // heartbeat_us
        ahead = appointed is not None and not (appointed.holds and epoch >= appointed.epoch)
        assignment = told.before if ahead and told.before else told.assignment
        super().__init__(RouterMachine(assignment), slots, queue_bytes, split)
        self.watermark = watermark
        self._due: dict[str, Due] = {}  # by name: what was appointed, and is ahead
        self._said = ""  # the savepoint or capture whose barriers went out last

    @property
    def epoch(self) -> int:
        """The last one that is closed."""
        return self.watermark // self._heartbeat_us

    def switch(self, told: PublishAssignment) -> bool | None:
        """See ``_keep``, of a switch."""
        if told.appointment is None or told.assignment.version <= self.machine.newest:
            return None
        act = partial(self.machine.announce, told.assignment, snapshot=told.snapshot)
        return self._keep(str(told.assignment.version), told.appointment, act)

    def savepoint(self, name: str, appointment: Appointment, stops: bool = True) -> bool | None:
        """See ``_keep``, of a savepoint or, if the router goes on behind it, of a capture."""
        if name == self._said or self.machine.stopped_for is not None:
            return None
        request = self.machine.request_savepoint if stops else self.machine.request_capture
        return self._keep(name, appointment, partial(request, name))

    def take_back(self, name: str) -> None:
        """The savepoint or capture of this ``name`` does not come: its appointment does not hold."""
        self._due.pop(name, None)

    def said_before(self, name: str, appointment: Appointment | None, stops: bool = True) -> None:
        """The router opens. If it has come to what has this ``name`` in a batch before, it says so no more."""
        if appointment and appointment.holds and self.epoch >= appointment.epoch:
            self._said = name
            if stops:
                self.machine.stopped_for = name

    def _keep(self, name: str, appointment: Appointment, act: Callable[[], None]) -> bool | None:
        """What was told of an appointment, perhaps again. Gives whether the router confirms it, None if nobody asks.

        Raises ProtocolViolation if it holds and the router has passed its epoch: then nobody has asked this one.
        """
        passed = self.epoch >= appointment.epoch
        if passed and appointment.holds:
            raise ProtocolViolation(f"{name} comes behind epoch {appointment.epoch}, and the router is at {self.epoch}")
        if passed:
            self._due.pop(name, None)
        else:
            self._due[name] = appointment, act
        return None if appointment.holds else not passed

    def may_take(self, watermark: int) -> bool:
        """Whether a frame of this watermark may be taken: otherwise it is not known yet if an appointment holds."""
        epoch = watermark // self._heartbeat_us
        return all(appointment.holds or appointment.epoch > epoch for appointment, _ in self._due.values())

    def frame(
        self, router: int, offset: int, events: Events, watermark: int, time_us: int | None = None
    ) -> tuple[list[Routed], list[str]]:
        """Rows for all slots: the slot's part of the frame, or a tick; then barriers that are due behind it.

        And the savepoint or snapshot whose barriers are among them: the next frame is the first behind.
        """
        closed = self.epoch
        self.watermark = max(self.watermark, watermark)
        time_us = self.watermark if time_us is None else time_us
        marks = self.epoch > closed
        rows = self._part(router, offset, events, time_us, to_all=marks or self.each_counts)
        if not marks:
            return rows, []
        for name, (appointment, act) in list(self._due.items()):
            if appointment.epoch <= self.epoch:
                del self._due[name]
                act()
        barriers, reached = self._barriers(router, offset, time_us)
        self._said = reached[-1] if reached else self._said
        return rows + barriers, reached
