"""What all order protocols have in common: channels go in, turns come out, and it can go on elsewhere.

    arrived(rows)      rows as they came
    take(ready)        the next turn, again and again until there is none
    take_effects()     what is to be done beside that
    save()             where it stands, and what waits

With a leader (``kazoo``) there are also ``elected``, ``heard`` and ``propose``.

*Time.* A channel has closed an epoch when an element with a watermark of that epoch, or a later one, was delivered. A
slot is in the least of its channels' epochs. Which rows lie between two marks depends on the assignment; marks do not.

*Barriers.* A router sends the barrier of an appointment right behind the mark with which it closes the appointed epoch.
Barriers wait until all channels stand at theirs. Then they are delivered at once, between two turns. They come whether
the slot is ready for rows or not: state that is awaited may be what follows from them. Nothing follows from a capture,
so one replica may have it and the others not: its turns and their chain are the same. With a leader it has no place in
the order, see ``captures``.

*Going on.* A machine is a function of its position and of what came behind it. So there is no ``restore``: a machine
that is opened at the position and is given what waited, is the one that was saved, in the next batch. One that is
opened at a position alone gets the rest from its channels, in another incarnation.

``take`` gives one turn at a time: whether the slot is ready for a turn of rows depends on the barriers before it.
"""

from collections.abc import Iterable, Sequence

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering.channels import Channel, Element
from keyshift.ordering.digest import chained
from keyshift.ordering.model import Local, OrderEffect, Position, Record, Setting
from keyshift.runtime.row import CAPTURE, KINDS, Row
from keyshift.runtime.turn import Turn


class Ordering:
    """The machine of one slot during one batch. Not thread-safe: one call at a time."""

    def __init__(self, setting: Setting, position: Position) -> None:
        self.setting = setting
        self.channels = [Channel(number, setting, place) for number, place in enumerate(position.places)]
        self.turn, self.clock, self.chain = position.turn, position.clock, position.chain
        self.log = position.log
        self._effects: list[OrderEffect] = []

    # -- rows ---------------------------------------------------------------------------------------------------------

    def arrived(self, rows: Iterable[Row]) -> None:
        """Take all rows that have come: whoever stops reading may wait for a mark behind what is not read.

        Raises ProtocolViolation if one cannot be there: this replica has to end.
        """
        for row in rows:
            if row.kind not in KINDS:
                self._effects.append(Local(row))
            elif element := self.channels[row.router].come(row):
                self._came(row.router, element)

    def _came(self, channel: int, element: Element) -> None:
        """Hear of a new element."""

    # -- the order log, if there is one -------------------------------------------------------------------------------

    def heard(self, records: Iterable[tuple[int, Record]]) -> None:
        """Take records of the order log with their offsets, in its order. What was there before may come again.

        Raises ProtocolViolation if one is missing: this replica has to end.
        """

    def elected(self, term: int) -> None:
        """Hear that the replica leads, in ``term``: until another term begins in the log. Nobody says when that is."""

    def propose(self, now_us: int) -> None:
        """Let a leader decide about what is here. To be called now and then, and when something has come."""

    # -- what comes out -----------------------------------------------------------------------------------------------

    def take(self, ready: bool) -> Turn | None:
        """The next turn, if it is known. ``ready``: whether it may have rows. Raises ProtocolViolation."""
        raise NotImplementedError

    def take_effects(self) -> list[OrderEffect]:
        """Give what is to be done since the last call, in its order."""
        effects, self._effects = self._effects, []
        return effects

    def save(self) -> tuple[Position, list[Row]]:
        """Give where this machine stands, and the rows that wait: behind a mark that has not come, or a barrier."""
        return self.position, [element.row for channel in self.channels for element in channel.waiting]

    @property
    def position(self) -> Position:
        """Where this machine stands, behind what was delivered."""
        places = tuple(channel.place for channel in self.channels)
        return Position(places, self.turn, self.clock, self.chain, self.log)

    # -- for status and flow control ----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The last epoch that was closed on all channels by what was delivered."""
        return min(channel.closed for channel in self.channels)

    @property
    def owes_barriers(self) -> bool:
        """Whether a barrier waits on every channel. Then it does in all slots of the stage, as the batch of a sender
        ends for all of them at once.
        """
        return all(channel.barriers for channel in self.channels)

    @property
    def abreast(self) -> bool:
        """Whether all rows that were ordered have come, or are behind a barrier that has. Who waits for some should not
        lead: others would wait for it.
        """
        return True

    @property
    def waiting_bytes(self) -> int:
        """Memory of the rows that wait."""
        return sum(channel.bytes for channel in self.channels)

    # -- what protocols are made of -----------------------------------------------------------------------------------

    @property
    def _time(self) -> int:
        """How far time has come, in microseconds."""
        return self.epoch * self.setting.heartbeat_us

    def _barriers(self) -> Turn:
        """Deliver the barriers at which all channels stand."""
        barriers = [channel.waiting[0].row for channel in self.channels]
        kinds = {(barrier.kind, barrier.version, bytes(barrier.payload)) for barrier in barriers}
        if len(kinds) > 1:
            what = ", ".join(f"{kind} of version {version}" for kind, version, _ in sorted(kinds))
            raise ProtocolViolation(f"behind turn {self.turn} channels stand at different barriers: kinds {what}")
        delivered = tuple(channel.deliver() for channel in self.channels)
        if delivered[0].kind == CAPTURE:
            return Turn(self.turn, delivered, (), self._time, self._time, self.clock, self.chain)
        return self._made(delivered, (), self._time)

    def _rows(self, rows: Sequence[Row], met: int, clock: int) -> Turn:
        """A turn of ``rows``, which were delivered."""
        self.turn += 1
        self.clock = max(self.clock, clock)
        return self._made((), tuple(rows), met)

    def _made(self, barriers: tuple[Row, ...], rows: tuple[Row, ...], met: int) -> Turn:
        before = 0 if self.setting.apart else self.chain
        self.chain = chained(before, self.turn, met, self.clock, barriers, rows)
        return Turn(self.turn, barriers, rows, met, self._time, self.clock, self.chain)
