"""What comes in on one channel: which rows count for the order, and which have been there.

The rows of one router that count are *elements*. Their sequence follows from the row, so a row that comes again is
known, and in a stage behind another one a row that is missing is noticed: there a sender says something in each turn.

An element is a *mark* if the channel comes to another epoch with it: if its watermark crosses a multiple of the
heartbeat. A tick that crosses none is local in the first stage, where routers send ticks as they like. In a later
stage each row is the only one of its sender's turn, so each counts.
"""

from collections import deque
from typing import NamedTuple

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering.model import ANY_BARRIER, ChannelPlace, Setting, offset_of, sequence_of
from keyshift.runtime.row import BARRIER, CAPTURE, SNAPSHOT, TICK, Row

ROW_BYTES = 300  # of a row that waits, beside its payload: two tuples, four integers and a buffer


class Element(NamedTuple):
    """A row that counts, with its sequence."""

    row: Row
    sequence: int
    mark: bool


class Channel:
    """The ``number``-th channel of a slot. ``place``: up to here elements were delivered."""

    def __init__(self, number: int, setting: Setting, place: ChannelPlace) -> None:
        self.number = number
        self.sequence, self.watermark, self.version = place
        self.waiting: deque[Element] = deque()
        self.marks = self.barriers = 0  # of those that wait
        self.bytes = 0
        self.delivered = 0  # elements
        self._setting = setting
        self._came, self._came_watermark, self._came_version = place
        self._captures: set[bytes] = set()  # the names of those that have come at the last sequence

    @property
    def place(self) -> ChannelPlace:
        """The place of the last element that was delivered."""
        return ChannelPlace(self.sequence, self.watermark, self.version)

    @property
    def came(self) -> int:
        """The sequence of the last element that has come."""
        return self._came

    @property
    def closed(self) -> int:
        """The epoch that was closed here by what was delivered."""
        return self.watermark // self._setting.heartbeat_us

    @property
    def stands(self) -> bool:
        """Whether a barrier is next."""
        return bool(self.waiting) and self.waiting[0].row.kind in ANY_BARRIER

    def come(self, row: Row) -> Element | None:
        """Take a row that has come. Gives it if it counts and was not there before. Raises ProtocolViolation."""
        kind, heartbeat = row.kind, self._setting.heartbeat_us
        if kind == BARRIER and row.version == self._came_version:
            return None  # with which each batch begins
        mark = row.watermark // heartbeat > self._came_watermark // heartbeat
        if kind == TICK and not mark and not self._setting.later:
            return None
        sequence = sequence_of(row)
        if sequence <= self._came and row.version <= self._came_version and not self._captures_anew(row, sequence):
            return None
        self._check(row, sequence)
        if sequence > self._came:
            self._captures.clear()
        if kind == CAPTURE:
            self._captures.add(bytes(row.payload))
        sequence = max(sequence, self._came)  # a switch may come behind a barrier of a higher place
        self._came, self._came_watermark = sequence, max(self._came_watermark, row.watermark)
        if kind in ANY_BARRIER:
            self._came_version = row.version
        element = Element(row, sequence, mark)
        self.waiting.append(element)
        self.marks += mark
        self.barriers += kind in ANY_BARRIER
        self.bytes += len(row.payload) + ROW_BYTES
        return element

    def _captures_anew(self, row: Row, sequence: int) -> bool:
        """Whether ``row`` is another capture behind the same frame: its epochs may each have one."""
        return row.kind == CAPTURE and sequence == self._came and bytes(row.payload) not in self._captures

    def _check(self, row: Row, sequence: int) -> None:
        before, now = offset_of(self._came), offset_of(sequence)
        if self._setting.later and now > before + 1:
            raise ProtocolViolation(f"channel {self.number} goes from turn {before} to turn {now}: rows are missing")
        if row.kind in ANY_BARRIER and now != before:
            raise ProtocolViolation(
                f"channel {self.number} has a barrier of version {row.version} at offset {now}, and has come to offset "
                f"{before}: it is not right behind its mark"
            )
        switches = row.kind in (BARRIER, SNAPSHOT)
        if sequence <= self._came and not switches and not self._captures_anew(row, sequence):
            raise ProtocolViolation(
                f"channel {self.number} has a row of version {row.version} at offset {now}, where it was under version "
                f"{self._came_version}"
            )
        if row.version < self._came_version or (switches and row.version == self._came_version):
            raise ProtocolViolation(
                f"channel {self.number} has a row of version {row.version} behind version {self._came_version}"
            )

    def deliver(self) -> Row:
        """Deliver the next element."""
        row, self.sequence, mark = self.waiting.popleft()
        self.delivered += 1
        self.marks -= mark
        self.barriers -= row.kind in ANY_BARRIER
        self.bytes -= len(row.payload) + ROW_BYTES
        self.watermark = max(self.watermark, row.watermark)
        self.version = max(self.version, row.version)
        return row
