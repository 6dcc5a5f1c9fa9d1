"""The vocabulary of order protocols: what a machine is told first, where it stands, and what it wants done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from keyshift.model.ids import Version
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, MOVED, SAVEPOINT, SNAPSHOT, TICK, Row

# Delivered between two turns, from all channels at once. A capture changes no turn: another replica may have none.
ANY_BARRIER = frozenset((BARRIER, SAVEPOINT, SNAPSHOT, CAPTURE))

# The place of a row among those of the same frame, or of the same turn of its sender. What was said of units that moved
# since the turn before comes first; barriers stand behind the mark, as their epochs come, whatever their places. There
# is at most one of each kind, but for those that have a version of their own, and captures, which have names.
_PLACES = {MOVED: 0, DATA: 1, TICK: 1, BARRIER: 2, SNAPSHOT: 3, CAPTURE: 4, SAVEPOINT: 5}
_PLACE_BITS = 3
NOTHING = (1 << _PLACE_BITS) - 1  # the sequence of a sender that has not had a turn: behind all rows of its turn 0


def sequence_of(row: Row) -> int:
    """The position of ``row`` on its channel. It follows from what the row is, not from how many came before: so it is
    the same in all replicas, and for a router that begins in the middle.
    """
    return row.offset << _PLACE_BITS | _PLACES[row.kind]


def offset_of(sequence: int) -> int:
    """The frame, or the turn of its sender, that a row belongs to."""
    return sequence >> _PLACE_BITS


@dataclass(frozen=True)
class Setting:
    """The setting of the machine of one slot. ``channels``: how many routers send to it. Times are microseconds.

    ``later``: whether the stage is behind another one; then the offset of a row is its sender's turn, and none may be
    missing. ``merge``: gives the data rows of a turn, cut as needed, so that their events are in the order of
    (t, router, offset, position); for ``time_merge``. ``session_us``: how long a leader waits for its own record to
    come back, and, with an epoch more, for anything to come; ``order_us``: how long it gathers, at least, from one
    record to the next; for ``kazoo``.
    ``apart``: replicas may have different assignments for a while, so a chain is of its turn alone: they can be
    compared again as soon as they have the same one.
    """

    channels: int
    heartbeat_us: int
    later: bool = False
    merge: Callable[[Sequence[Row]], Sequence[Row]] = list
    session_us: int = 500_000
    order_us: int = 2_000
    apart: bool = False


class ChannelPlace(NamedTuple):
    """Where a channel stands: the sequence of the last element that was delivered, its watermark and its version."""

    sequence: int
    watermark: int
    version: Version


class LogPlace(NamedTuple):
    """Where a reader of the order log stands: behind the record at ``offset``, the ``number``-th of ``term``."""

    offset: int = -1
    term: int = 0
    number: int = 0


BEFORE_THE_LOG = LogPlace()


@dataclass(frozen=True)
class Position:
    """Where a slot stands between two turns: with the state of its units, all that a snapshot has to have of it.

    ``turn``: the last one that was delivered. ``clock``: its processing time in microseconds. ``log``: behind this
    place the order log is to be read again; some of what it orders there may have been delivered.
    """

    places: tuple[ChannelPlace, ...]
    turn: int = 0
    clock: int = 0
    chain: int = 0
    log: LogPlace = BEFORE_THE_LOG

    @classmethod
    def begin(cls, setting: Setting, version: Version) -> "Position":
        """The position before anything was delivered, under the first ``version`` of the assignment."""
        return cls((ChannelPlace(NOTHING if setting.later else -1, 0, version),) * setting.channels)

    def under(self, version: Version) -> "Position":
        """The same place, from which on everything is routed under ``version``."""
        return replace(self, places=tuple(place._replace(version=version) for place in self.places))

    def read_from(self, offset: int) -> "Position":
        """The same, but what is in the order log in front of ``offset`` orders nothing any more."""
        return self if self.log.offset + 1 >= offset else replace(self, log=LogPlace(offset - 1))

    def of_channels(self, channels: int) -> "Position":
        """The same, if there are so many channels: those that were not there stand where the first one does."""
        first, *_ = self.places
        return replace(self, places=(*self.places, *(first,) * channels)[:channels])

    @property
    def time(self) -> int:
        """The least watermark of the channels."""
        return min(place.watermark for place in self.places)


class Record(NamedTuple):
    """A record of the order log: the ``number``-th decision of the leader of ``term``, at its time ``clock_us``.

    ``entries``: channels, and up to which sequence each of them is delivered, one after the other. Number 0, without
    entries, says that the term begins; another number without entries, that its leader still leads.
    """

    term: int
    number: int
    clock_us: int = 0
    entries: tuple[tuple[int, int], ...] = ()


class Propose(NamedTuple):
    """``record`` is to be appended to the order log. To append it twice does no harm, and to give up neither."""

    record: Record


class Resign(NamedTuple):
    """The replica does not lead any more: it should not stand at the next election before it has read the log."""


class Local(NamedTuple):
    """``row`` is not for the slot's core, and its place means nothing: a marker, which is passed on."""

    row: Row


OrderEffect = Propose | Resign | Local
