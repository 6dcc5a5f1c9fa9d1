"""The router of slots that work in turns: it marks epochs, and says barriers where all routers have agreed to.

An epoch ends with the frame whose watermark crosses a multiple of the heartbeat. Each slot gets a row of such a frame,
with events or without, so that all slots see the same marks. The barrier of an appointment comes right behind the mark
with which the router closes the appointed epoch, and not with its next frame: so in each slot the barriers of all
routers stand between the same two turns.

If a frame closes several epochs at which something is appointed, the barriers come behind it in the order of those
epochs. Another router may close them one by one, and the barriers have to come in the same order on all channels. What
is appointed at one epoch comes as ``RANKS`` has it. When a router was told of what does not count.

A router confirms an appointment if it has not closed its epoch, and takes no frame that would close it before it knows
that the appointment holds. Behind a savepoint it goes on to mark epochs, without events: switches that were appointed
for later still come.
"""

from collections.abc import Callable, Mapping, Sized
from functools import partial
from typing import NamedTuple

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import NO_VERSION, Assignment, Version
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.protocol.router import RouterMachine
from keyshift.runtime.router import Events, Routed, RouterCore

RANKS = SWITCH, CAPTURED, STOP = range(3)


class Due(NamedTuple):
    """What is appointed, and ahead. ``act`` makes the next boundary say its barriers."""

    epoch: int
    rank: int
    version: Version  # of a switch
    holds: bool
    act: Callable[[], None]


class TurnRouter(RouterCore[Events]):
    """One router. ``watermark``: where the batch before ended, in microseconds. ``told``: what was published when it
    opened.

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
        """The last epoch that is closed."""
        return self.watermark // self._heartbeat_us

    def switch(self, told: PublishAssignment) -> bool | None:
        """Note the appointment of a switch; see ``_keep``."""
        if told.appointment is None or told.assignment.version <= self.machine.newest:
            return None
        act = partial(self.machine.announce, told.assignment, snapshot=told.snapshot)
        version = told.assignment.version
        return self._keep(str(version), told.appointment, SWITCH, version, act)

    def savepoint(self, name: str, appointment: Appointment, stops: bool = True) -> bool | None:
        """Note the appointment of a savepoint or, if the router goes on behind it, of a capture; see ``_keep``."""
        self._forget_others(name)
        if name == self._said or self.machine.stopped_for is not None:
            return None
        rank, act = STOP if stops else CAPTURED, partial(self._request, name, stops)
        return self._keep(name, appointment, rank, NO_VERSION, act)

    def _request(self, name: str, stops: bool) -> None:
        self._said = name
        if stops:
            self.machine.request_savepoint(name)
        else:
            self.machine.request_capture(name)

    def take_back(self, name: str) -> None:
        """Take back the savepoint or capture of this ``name``: its appointment does not hold."""
        self._forget_others(name)
        self._due.pop(name, None)

    def _forget_others(self, name: str) -> None:
        """Forget savepoints and captures other than ``name`` that are not known to hold. One is called at a time: these
        were taken back while the router heard nothing, and nobody tells of them any more.
        """
        self._due = {each: due for each, due in self._due.items() if each == name or due.rank == SWITCH or due.holds}

    def said_before(self, name: str, appointment: Appointment | None, stops: bool = True) -> None:
        """Do not say ``name`` again as the router opens, if it has come to what has this name in a batch before."""
        if appointment and appointment.holds and self.epoch >= appointment.epoch:
            self._said = name
            if stops:
                self.machine.stopped_for = name

    def _keep(
        self, name: str, appointment: Appointment, rank: int, version: Version, act: Callable[[], None]
    ) -> bool | None:
        """Note an appointment that was told, perhaps again. Gives whether the router confirms it, None if nobody asks.

        Raises ProtocolViolation if it holds and the router has passed its epoch: then nobody has asked this one.
        """
        passed = self.epoch >= appointment.epoch
        if passed and appointment.holds:
            raise ProtocolViolation(f"{name} comes behind epoch {appointment.epoch}, and the router is at {self.epoch}")
        if passed:
            self._due.pop(name, None)
        else:
            self._due[name] = Due(appointment.epoch, rank, version, appointment.holds, act)
        return None if appointment.holds else not passed

    def may_take(self, watermark: int) -> bool:
        """Whether a frame of this watermark may be taken: otherwise it is not known yet if an appointment holds."""
        epoch = watermark // self._heartbeat_us
        return all(due.holds or due.epoch > epoch for due in self._due.values())

    def frame(
        self, router: int, offset: int, events: Events, watermark: int, time_us: int | None = None
    ) -> tuple[list[Routed], list[str]]:
        """Rows for all slots: the slot's part of the frame, or a tick; then barriers that are due behind it.

        And the savepoint and snapshots whose barriers are among them: the next frame is the first behind.
        """
        closed = self.epoch
        self.watermark = max(self.watermark, watermark)
        time_us = self.watermark if time_us is None else time_us
        marks = self.epoch > closed
        rows = self._part(router, offset, events, time_us, to_all=marks or self.each_counts)
        if not marks:
            return rows, []
        reached: list[str] = []
        for due in (*self._closed(), None):  # at the end the barrier with which the batch begins, if nothing has come
            if due:
                due.act()
            barriers, said = self._barriers(router, offset, time_us)
            rows, reached = rows + barriers, reached + said
        return rows, reached

    def _closed(self) -> list[Due]:
        """Take out what was appointed up to here, in the order in which it comes; it is due no more."""
        closed = {name: due for name, due in self._due.items() if due.epoch <= self.epoch}
        self._due = {name: due for name, due in self._due.items() if name not in closed}
        return sorted(closed.values(), key=lambda due: due[:3])
