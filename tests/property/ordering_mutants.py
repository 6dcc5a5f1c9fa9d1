"""Order machines and what is around them, with one bug each, and the check of the simulation that finds it."""

from dataclasses import replace
from itertools import chain
from typing import Any

from keyshift.ordering import LogPlace, Ordering, Position, Record
from keyshift.ordering.captures import Captures
from keyshift.ordering.channels import Channel
from keyshift.ordering.kazoo import Kazoo
from keyshift.ordering.live_robin import LiveRobin
from keyshift.ordering.model import ANY_BARRIER
from keyshift.ordering.time_merge import TimeMerge
from keyshift.runtime.row import DATA, TICK, Row
from keyshift.runtime.turn_sender import TurnSender

# -- live_robin --------------------------------------------------------------------------------------------------------


class DeliversOnArrival(LiveRobin):
    """A turn is what is here."""

    def take(self, ready: bool) -> Any:
        if ready and any(channel.waiting and not channel.stands for channel in self.channels):
            met = self._time
            rows: list[Row] = []
            for channel in self.channels:
                while channel.waiting and not channel.stands:
                    rows.append(channel.deliver())
            return self._rows(rows, met, self._time)
        return super().take(ready)


class IsReleasedByOneMark(LiveRobin):
    """The mark of one channel ends the epoch for all."""

    def take(self, ready: bool) -> Any:
        marked = [channel for channel in self.channels if channel.marks and not channel.stands]
        if ready and marked and len(marked) < len(self.channels):
            met = self._time
            return self._rows(self._up_to_mark(marked[0]), met, self._time)
        return super().take(ready)


class BeginsWithTheChannelThatCameFirst(LiveRobin):
    _first = 0

    def arrived(self, rows: Any) -> None:
        rows = list(rows)
        self._first = next((row.router for row in rows if row.kind <= TICK), self._first)
        super().arrived(rows)

    def _in_turn(self) -> Any:
        return self.channels[self._first :] + self.channels[: self._first]


class AlwaysBeginsWithTheFirstOfTheBatch(LiveRobin):
    """Counts turns from the beginning of the batch."""

    def __init__(self, setting: Any, position: Any) -> None:
        super().__init__(setting, position)
        self._begun = position.turn

    def _in_turn(self) -> Any:
        first = (self.turn - self._begun) % len(self.channels)
        return self.channels[first:] + self.channels[:first]


class MeetsTheTimeOfItsOwnRows(LiveRobin):
    """Met is the least watermark that the slot has seen."""

    def _rows(self, rows: Any, met: int, clock: int) -> Any:
        return super()._rows(rows, min(channel.watermark for channel in self.channels), clock)


class DeliversBehindOneBarrierAlone(LiveRobin):
    """Does not wait for the barriers of the others."""

    def take(self, ready: bool) -> Any:
        for channel in self.channels:
            if channel.stands:
                return self._made((channel.deliver(),), (), self._time)
        return super().take(ready)


class BlocksInFrontOfItsBarrier(LiveRobin):
    """What it waits for may be what follows from the barrier."""

    def take(self, ready: bool) -> Any:
        return super().take(ready) if ready else None


class ForgetsItsTurn(LiveRobin):
    """The next batch counts from 0."""

    def save(self) -> Any:
        position, waiting = super().save()
        return type(position)(position.places, 0, position.clock, position.chain), waiting


class ForgetsTheChain(LiveRobin):
    def save(self) -> Any:
        position, waiting = super().save()
        return type(position)(position.places, position.turn, position.clock), waiting


class DoesNotSort(TimeMerge):
    def _ordered(self, rows: Any) -> Any:
        return rows


# -- channels ----------------------------------------------------------------------------------------------------------


class TakesEveryTickForAMark(Channel):
    def come(self, row: Row) -> Any:
        if row.kind == TICK and row.watermark:
            row = row._replace(watermark=max(row.watermark, self._came_watermark + self._setting.heartbeat_us))
        return super().come(row)


class TakesWhatComesTwice(Channel):
    def come(self, row: Row) -> Any:
        if row.kind not in ANY_BARRIER:
            self._came = min(self._came, row.offset * 8 - 1)
        return super().come(row)


class TakesTheBarrierOfABatchForAnother(Channel):
    """Each batch begins with one."""

    def come(self, row: Row) -> Any:
        if row.kind in ANY_BARRIER and row.version == self._came_version:
            row = row._replace(version=row.version + 1)
        return super().come(row)


class ForgetsItsWatermark(Channel):
    """Of the batch before: whatever comes first is a mark."""

    def __init__(self, number: int, setting: Any, place: Any) -> None:
        super().__init__(number, setting, place._replace(watermark=0))


# -- kazoo -------------------------------------------------------------------------------------------------------------


class DeliversOnSending(Kazoo):
    """The leader takes its own record for written."""

    def _ask(self, record: Record, now_us: Any) -> None:
        super()._ask(record, now_us)
        if record.number:
            self._open.append((LogPlace(self._read.offset, record.term, record.number), record))


class ObeysALowerTerm(Kazoo):
    def _counts(self, record: Record) -> bool:
        return record.term < self._read.term or super()._counts(record)


class GoesOnOverAGap(Kazoo):
    def _counts(self, record: Record) -> bool:
        ahead = record.term == self._read.term and record.number > self._read.number
        return ahead or super()._counts(record)


class DecidesBeforeItHasRead(Kazoo):
    """Reads, then writes that its term begins: what an old leader wrote in between is ordered again."""

    def _ask(self, record: Record, now_us: Any) -> None:
        super()._ask(record, now_us)
        if not record.number and (entries := self._entries()):
            super()._ask(Record(record.term, 1, self._proposed_us, entries), now_us)


class WritesWithoutWaiting(Kazoo):
    """Several records are under way, and one may fail."""

    _sent = 0, 0

    def propose(self, now_us: int) -> None:
        super().propose(now_us)
        if (lead := self._lead) and lead.record and lead.record.number and (entries := self._entries()):
            term, number = max(self._sent, (lead.term, lead.record.number))
            self._sent = term, number + 1
            self._ask(Record(lead.term, number + 1, now_us, entries), now_us)


class HasAClockOfItsOwn(Kazoo):
    """The processing time of a turn is that of the replica."""

    _now_us = 0

    def propose(self, now_us: int) -> None:
        self._now_us = now_us
        super().propose(now_us)

    def _rows(self, rows: Any, met: int, clock: int) -> Any:
        return super()._rows(rows, met, self._now_us)


class DeliversWhatIsHere(Kazoo):
    """Does not wait until its own channels are as far as the record."""

    def take(self, ready: bool) -> Any:
        met = self._time
        for _, record in self._open:
            if ready and any(self._free(channel, sequence) for channel, sequence in record.entries):
                rows = [row for channel, sequence in record.entries for row in self._up_to(channel, sequence)]
                return self._rows(rows, met, record.clock_us)
        return super().take(ready)


class WantsAllOfARecord(Kazoo):
    """In front of a barrier, too: what is behind that may come in the next batch."""

    def _lacks(self, channel: int, sequence: int) -> bool:
        return self.channels[channel].came < sequence


class JoinsWhatIsLeftBehindABarrier(Kazoo):
    """One turn of all records: a replica that comes back makes others."""

    def take(self, ready: bool) -> Any:
        turn = super().take(ready)
        while turn and turn.barriers and ready and (more := super().take(ready)) and not more.barriers:
            turn = more
        return turn


class SaysHowFarItHasRead(Kazoo):
    """In place of how far it has delivered."""

    @property
    def position(self) -> Position:
        return replace(super().position, log=self._read)


class CutsRecordsAtACapture(Kazoo):
    """Channels stand at it, as at a barrier, and others have none: a turn ends where state is written down."""

    def arrived(self, rows: Any) -> None:
        Ordering.arrived(self, rows)


class _PassedOnArrival(Captures):
    def passed(self, channel: Channel) -> bool:
        return bool(self._come[channel.number])


class CapturesWhatHasCome(Kazoo):
    """Before it was delivered: whoever comes back never gets it."""

    def __init__(self, setting: Any, position: Any) -> None:
        super().__init__(setting, position)
        self._captures = _PassedOnArrival(self.channels)


class ForgetsWhatTheLeaderMayNotRepeat(Kazoo):
    """A leader proposes all that waits, ordered or not."""

    def _entries(self) -> Any:
        waiting = [(n, channel.waiting[-1].sequence) for n, channel in enumerate(self.channels) if channel.waiting]
        return tuple(waiting)


class SendsBeforeItsTurnEnds(TurnSender[Any, Any]):
    def give(self, results: Any) -> Any:
        early = [self.frame(self._slot, self._turn + 1, each, self.watermark)[0] for each in results[:-1] if each]
        return [*chain.from_iterable(early), *super().give(results)]


class SaysNothingOfATurnWithoutResults(TurnSender[Any, Any]):
    def _ended(self, end: Any) -> Any:
        if any(self._of_turn):
            return super()._ended(end)
        self._turn = end.number
        return []


class SaysATurnOnlyToWhoGetsResults(TurnSender[Any, Any]):
    def _part(self, *frame: Any, **to_all: bool) -> Any:
        return [each for each in super()._part(*frame, **to_all) if each[1].kind == DATA]


class SaysNoChain(TurnSender[Any, Any]):
    def _ended(self, end: Any) -> Any:
        return super()._ended(replace(end, chain=0))


class StopsWithItsNextTurn(TurnSender[Any, Any]):
    """As a router does whose slots do not work in turns: at the end there is none."""

    def _cut(self, cut: Any) -> Any:
        self.machine.request_savepoint(cut.name)
        return []


MUTANTS: dict[str, tuple[str, dict[str, Any], str]] = {}
for _protocol, _what, _mutant, _check in [
    ("live_robin", "ordering", DeliversOnArrival, "order"),
    ("live_robin", "ordering", IsReleasedByOneMark, "order"),
    ("live_robin", "ordering", BeginsWithTheChannelThatCameFirst, "order"),
    ("live_robin", "ordering", AlwaysBeginsWithTheFirstOfTheBatch, "order"),
    ("live_robin", "ordering", MeetsTheTimeOfItsOwnRows, "time"),
    ("live_robin", "ordering", DeliversBehindOneBarrierAlone, "barriers"),
    ("live_robin", "ordering", BlocksInFrontOfItsBarrier, "barriers"),
    ("live_robin", "ordering", ForgetsItsTurn, "order"),
    ("live_robin", "ordering", ForgetsTheChain, "order"),
    ("time_merge", "ordering", DoesNotSort, "sorted"),
    ("live_robin", "channel", TakesEveryTickForAMark, "order"),
    ("live_robin", "channel", TakesWhatComesTwice, "violation"),
    ("live_robin", "channel", TakesTheBarrierOfABatchForAnother, "violation"),
    ("live_robin", "channel", ForgetsItsWatermark, "order"),
    ("live_robin", "sender", SendsBeforeItsTurnEnds, "vouch"),
    ("live_robin", "sender", SaysNothingOfATurnWithoutResults, "violation"),
    ("live_robin", "sender", SaysATurnOnlyToWhoGetsResults, "violation"),
    ("live_robin", "sender", SaysNoChain, "vouch"),
    ("live_robin", "sender", StopsWithItsNextTurn, "appointed"),
    ("kazoo", "ordering", DeliversOnSending, "order"),
    ("kazoo", "ordering", ObeysALowerTerm, "term"),
    ("kazoo", "ordering", GoesOnOverAGap, "gap"),
    ("kazoo", "ordering", DecidesBeforeItHasRead, "ordered twice"),
    ("kazoo", "ordering", WritesWithoutWaiting, "violation"),
    ("kazoo", "ordering", HasAClockOfItsOwn, "order"),
    ("kazoo", "ordering", DeliversWhatIsHere, "order"),
    ("kazoo", "ordering", WantsAllOfARecord, "stuck"),
    ("kazoo", "ordering", JoinsWhatIsLeftBehindABarrier, "appointed"),
    ("kazoo", "ordering", SaysHowFarItHasRead, "order"),
    ("kazoo", "ordering", CutsRecordsAtACapture, "order"),
    ("kazoo", "ordering", CapturesWhatHasCome, "violation"),
    ("kazoo", "ordering", ForgetsWhatTheLeaderMayNotRepeat, "ordered twice"),
]:
    MUTANTS[f"{_protocol}: {_mutant.__name__}"] = (_protocol, {_what: _mutant}, _check)
for _protocol, _bug, _check in [
    ("live_robin", "loses_rows", "violation"),
    ("kazoo", "loses_rows", "lost"),
    ("kazoo", "ends_at_a_barrier", "stuck"),
    ("live_robin", "forgets_positions", "order"),
    ("kazoo", "forgets_positions", "order"),
    ("live_robin", "forgets_later_places", "violation"),
    ("live_robin", "passes_on", "violation"),
    ("live_robin", "switches_when_told", "violation"),
]:
    MUTANTS[f"{_protocol}: {_bug}"] = (_protocol, {_bug: True}, _check)
