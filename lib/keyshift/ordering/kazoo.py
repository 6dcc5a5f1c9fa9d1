"""KaZoo: one leader per slot decides, and writes its decisions into an order log, from which all replicas deliver.

*Reading.* A term begins with a record that says so. From there on records of other terms are dropped, until a higher
one begins. Within a term records have numbers: one that was there is dropped, and behind a gap the replica ends, since
others may have read what is missing here.

*Delivering.* A record says up to which sequence it orders channels. It is delivered when the own channels are that far,
as one turn. The leader delivers from the log, as all do, and never what it has only proposed. A channel that stands at
a barrier in this order waits until all do; what was ordered behind its barrier comes after them, one turn for what is
left of each record. So nothing in front of barriers waits for what a record orders behind them: a leader that is ahead
may order what comes in the next batch here, and this one does not end before its barriers. A record of which nothing is
left makes no turn. So turns are a function of the log, and a reader that begins in the middle makes the same ones: it
reads again from the first record of which something was left.

*Leading.* A new leader writes that its term begins, and reads up to there before it decides anything. To read to the
end first would not do: the old leader may write in between. The published system had no such fence, and a new leader
could order again what was ordered.

Choices, and why:

- One record is under way at a time. So no leader can make a gap, whatever becomes of an append: whoever appends may
  repeat it, late or twice. What comes meanwhile is gathered, for as long as the log takes.
- A record has at most 1000 *elements*, not entries: a turn is delivered as a whole, and a leader that catches up would
  make one of all that waits. It has an entry per channel, not one per row. Who came first within those milliseconds
  means nothing.
- With absolute sequences all readers would agree even if they obeyed two leaders in turn, as the log is one order.
  Terms are for the rest: nothing is ordered twice, times do not jump between two clocks, and a gap is seen.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from keyshift.model.errors import ProtocolViolation
from keyshift.ordering.captures import Captures
from keyshift.ordering.channels import Element
from keyshift.ordering.machine import Ordering
from keyshift.ordering.model import LogPlace, Position, Propose, Record, Resign, Setting
from keyshift.runtime.row import Row
from keyshift.runtime.turn import Turn

MOST = 1000  # elements that one record orders
ASK_US = 500_000  # from one record to the next, at least, if they order nothing


class _Lead(NamedTuple):
    """A leader's term, the record that is under way, and when it has written last, once ``propose`` has told."""

    term: int
    record: Record | None
    since_us: int | None


class Kazoo(Ordering):
    """The machine of KaZoo. The processing time of a turn is the leader's, and never less than before."""

    def __init__(self, setting: Setting, position: Position) -> None:
        super().__init__(setting, position)
        self._read = position.log  # up to ``log`` nothing is left of any record
        self._open: deque[tuple[LogPlace, Record]] = deque()  # behind that, with the place behind each
        self._ordered = [place.sequence for place in position.places]
        self._unordered: list[deque[int]] = [deque() for _ in position.places]  # sequences that have come
        self._lead: _Lead | None = None
        self._proposed_us = 0
        self._fresh = False  # whether an element has come since the time was told last
        self._came_us: int | None = None  # when one came last in the own term
        self._captures = Captures(self.channels)

    def arrived(self, rows: Iterable[Row]) -> None:
        """See ``Ordering.arrived``. Captures are no elements here."""
        super().arrived(row for row in rows if not self._captures.come(row))

    def _came(self, channel: int, element: Element) -> None:
        self._fresh = True
        if element.sequence > self._ordered[channel]:
            self._unordered[channel].append(element.sequence)

    # -- reading ------------------------------------------------------------------------------------------------------

    def heard(self, records: Iterable[tuple[int, Record]]) -> None:
        """See ``Ordering.heard``. Raises ProtocolViolation behind a gap."""
        for offset, record in records:
            if offset > self._read.offset and self._counts(record):
                self._read = LogPlace(offset, record.term, record.number)
                self._open.append((self._read, record))
                self._order(record)
        self._forget()  # of a record that orders nothing, nothing is left

    def _counts(self, record: Record) -> bool:
        _, term, number = self._read
        if not record.number:
            return record.term > term
        if record.term != term or record.number <= number:
            return False
        if record.number > number + 1:
            raise ProtocolViolation(f"the order log goes from record {number} of term {term} to {record.number}")
        return True

    def _order(self, record: Record) -> None:
        for channel, sequence in record.entries:
            self._ordered[channel] = max(self._ordered[channel], sequence)
            unordered = self._unordered[channel]
            while unordered and unordered[0] <= sequence:
                unordered.popleft()
        if lead := self._lead:
            if record.term > lead.term:
                self._resign()
            elif record == lead.record:
                self._lead = lead._replace(record=None)

    # -- leading ------------------------------------------------------------------------------------------------------

    def elected(self, term: int) -> None:
        """See ``Ordering.elected``. A term that is over by now is given back."""
        if term <= self._read.term:
            self._resign()
        else:
            self._fresh, self._came_us = False, None
            self._ask(Record(term, 0), None)

    def propose(self, now_us: int) -> None:
        """See ``Ordering.propose``. Without its own record for ``session_us`` a leader cannot lead: it resigns.

        So it does if nothing comes any more, for an epoch longer than that: others may have what it does not order. If
        nothing has come since it leads, the input may have ended: it stays, or leaders would change for ever. But it
        writes a record that orders nothing now and then, which does not come back if it is cut off.
        """
        if self._fresh:
            self._fresh, self._came_us = False, now_us
        if (lead := self._lead) is None:
            return
        # Moments from before the clock was set back count as now: else nothing is due until it has come there again.
        self._came_us = None if self._came_us is None else min(self._came_us, now_us)
        setting, since_us = self.setting, now_us if lead.since_us is None else min(lead.since_us, now_us)
        self._lead = lead._replace(since_us=since_us)
        if lead.record:
            if now_us - since_us > setting.session_us:
                self._resign()
        elif not 0 <= now_us - self._proposed_us < setting.order_us and (entries := self._entries()):
            self._proposed_us = now_us
            self._ask(Record(lead.term, self._read.number + 1, now_us, entries), now_us)
        elif self._came_us is None:
            if now_us - since_us >= max(setting.session_us, ASK_US):
                self._ask(Record(lead.term, self._read.number + 1, now_us), now_us)
        elif now_us - self._came_us > setting.session_us + setting.heartbeat_us:
            self._resign()

    def _entries(self) -> tuple[tuple[int, int], ...]:
        entries, room, channels = [], MOST, len(self.channels)
        for number in range(self._read.number, self._read.number + channels):  # another one first each time
            some = list(islice(self._unordered[number % channels], room))
            if some:
                entries.append((number % channels, some[-1]))
                room -= len(some)
        return tuple(entries)

    def _ask(self, record: Record, now_us: int | None) -> None:
        self._lead = _Lead(record.term, record, now_us)
        self._effects.append(Propose(record))

    def _resign(self) -> None:
        self._lead = None
        self._effects.append(Resign())

    # -- delivering ---------------------------------------------------------------------------------------------------

    def take(self, ready: bool) -> Turn | None:
        """See ``Ordering.take``. A capture is of state that is here: it wants the slot to be ready, as rows do.

        Raises ProtocolViolation if channels have passed different captures.
        """
        if ready and (captures := self._captures.take()):
            return Turn(self.turn, captures, (), self._time, self._time, self.clock, self.chain)
        stand = (here.stands and here.waiting[0].sequence <= self._ordered[here.number] for here in self.channels)
        if all(stand):  # and each barrier was ordered
            barriers = self._barriers()
            self._forget()
            return barriers
        met = self._time
        for _, record in self._open:
            if any(self._lacks(channel, sequence) for channel, sequence in record.entries):
                return None
            if any(self._free(channel, sequence) for channel, sequence in record.entries):
                if not ready:
                    return None
                rows = [row for channel, sequence in record.entries for row in self._up_to(channel, sequence)]
                self._forget()
                return self._rows(rows, met, record.clock_us)
        return None

    def _lacks(self, channel: int, sequence: int) -> bool:
        """Whether a row has not come that is up to ``sequence``, and in front of its next barrier."""
        here = self.channels[channel]
        return here.came < sequence and not here.barriers

    def _free(self, channel: int, sequence: int) -> bool:
        """Whether something of the channel can be delivered up to ``sequence``."""
        here = self.channels[channel]
        return bool(here.waiting) and here.waiting[0].sequence <= sequence and not here.stands

    def _up_to(self, channel: int, sequence: int) -> list[Row]:
        rows = []
        while self._free(channel, sequence):
            rows.append(self.channels[channel].deliver())
        return rows

    def _forget(self) -> None:
        """Forget records of which nothing is left."""
        while self._open and all(
            self.channels[channel].sequence >= sequence for channel, sequence in self._open[0][1].entries
        ):
            self.log, _ = self._open.popleft()

    def save(self) -> tuple[Position, list[Row]]:
        """See ``Ordering.save``."""
        return self.position, self._captures.left()

    @property
    def abreast(self) -> bool:
        """See ``Ordering.abreast``."""
        return not any(self._lacks(channel, sequence) for channel, sequence in enumerate(self._ordered))
