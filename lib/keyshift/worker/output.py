"""Where the results of a slot go: out to Kafka, or on to the next stage, of which the slot is a router."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from keyshift.model import frames, messages
from keyshift.model.keys import NO_VERSION, UnitId, Version
from keyshift.model.markers import SlotMarker
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.row import Row
from keyshift.runtime.slot import Cut, Divider, Moved
from keyshift.runtime.succession import ChangeOfHands, UnitsMoved
from keyshift.runtime.turns import TurnEnd
from keyshift.wire import spark_rows
from keyshift.wire.config import JobConfig, result_schema
from keyshift.worker.router import RoutedBytes, Routing

Results = Sequence[pa.RecordBatch | Divider | TurnEnd]
TELL_TURNS = 10  # one of so many turns is told without results, to be compared with that of other replicas
CUT_S = 2.0  # until it is known here what a snapshot begins that the slot has come to


class SlotOutput:
    """The output of one slot during one batch; used by the task's thread alone, but for ``report`` and ``close``."""

    def give(self, results: Results, markers: Sequence[SlotMarker], now_us: int) -> list[pa.RecordBatch]:
        """Give what goes out now, as Spark takes it: a batch of rows or nothing."""
        raise NotImplementedError

    def rest(self) -> list[pa.RecordBatch]:
        """Give what goes out at the end of the batch, when nothing more comes."""
        return []

    def promise(self, results: Results) -> Version:
        """Give, as a unit leaves, the newest version under which results of it go on from here. Under the slot's lock.

        ``results``: that were not given yet.
        """
        return NO_VERSION

    @property
    def full(self) -> bool:
        """Whether more waits here than should: nothing is to be computed meanwhile."""
        return False

    @property
    def holds(self) -> bool:
        """Whether something waits here that has to go out in this batch, and cannot yet."""
        return False

    def report(self) -> None:
        """Tell why the task fails."""

    def close(self) -> None:
        """Close the output: nothing goes out any more."""


class Sink(SlotOutput):
    """The output behind the last stage: result frames and markers, for the partition of the slot.

    Of a slot that works in turns, each frame is of one turn, and says of which. A turn without results is told now and
    then, if there are other replicas: of which ones follows from their numbers, so it is the same in all replicas.
    """

    def __init__(self, config: JobConfig) -> None:
        self._schema = result_schema(config.make_stage())
        self._heartbeat_us, self._replicated, self._attempt = config.heartbeat_us, config.replicated, config.attempt

    def give(self, results: Results, markers: Sequence[SlotMarker], now_us: int) -> list[pa.RecordBatch]:  # noqa: D102
        values: list[bytes] = []
        some: list[pa.RecordBatch] = []
        for each in results:
            if isinstance(each, TurnEnd) and each.chain is not None:
                values += self._of_turn(some, each.number, each.reached, each.chain)
                some = []
            elif isinstance(each, pa.RecordBatch):
                some.append(each)
        if any(each.num_rows for each in some):
            values += map(frames.encode, frames.cut(pa.concat_batches(some)))
        values += (frames.encode(frames.empty(self._schema), frames.Facts(said=said)) for said in markers)
        return [spark_rows.answered(values)] if values else []

    def _of_turn(self, results: list[pa.RecordBatch], number: int, reached: int, chain: int) -> Iterator[bytes]:
        told = frames.OfTurn(number, reached // self._heartbeat_us, chain, attempt=self._attempt)
        if any(result.num_rows for result in results):
            for piece, batch in enumerate(frames.cut(pa.concat_batches(results))):
                yield frames.encode(batch, frames.Facts(turn=replace(told, piece=piece)))
        elif self._replicated and number % TELL_TURNS == 0:
            yield frames.encode(frames.empty(self._schema), frames.Facts(turn=told))


class NextStage(Routing, SlotOutput):
    """The output to the stage of ``config``. Results are gathered for ``hop_us``: each row between stages costs more
    than its bytes do.

    A snapshot's barrier may leave only where the slot's own results are cut. So an assignment that begins a snapshot
    counts from there; it is published before the stage of the slot begins the same one. If there is no cut to come any
    more, it is a switch like any other.

    Results of a unit that moves keep their order. Where they end, and where they begin, is told to all slots of the
    next stage. And the new slot sends none on under an older assignment of that stage than the old one did, which may
    therefore not switch to one that the new one was not told of.
    """

    def __init__(self, config: JobConfig, slot: int) -> None:
        self._armed: dict[str, PublishAssignment] = {}  # by snapshot: assignments that count from its cut
        self._given_up = ""  # the snapshot whose cut was passed before anybody here had heard of it
        self._promised = NO_VERSION  # no result of a unit that has left goes on under a later one; 0: of none has to
        self._later: PublishAssignment | None = None  # an assignment that comes behind what was promised
        super().__init__(config)
        self._slot = slot
        self._pending: list[pa.RecordBatch | Divider] = []
        self._waits_since = 0.0  # for the assignment that the divider which is pending first needs
        self._frames = 0
        self._given_us = 0

    def _announced(self, told: PublishAssignment) -> None:
        with self._lock:
            version = told.assignment.version
            if told.snapshot == self._given_up:
                told = replace(told, snapshot="")
            if told.snapshot and version > self._begin.assignment.version:
                self._armed = {told.snapshot: told}
                self._core.machine.release()  # this may be all that is ever heard of the end of the step before
            elif self._promised and version > self._promised:
                self._later = told
            else:
                self._announce(told)

    def promise(self, results: Results) -> Version:  # noqa: D102
        with self._lock:
            wanted = (each.routed for each in (*self._pending, *results) if isinstance(each, Moved))
            self._promised = max(self._core.machine.newest, self._promised, *wanted)
            return self._promised

    def give(self, results: Results, markers: Sequence[SlotMarker], now_us: int) -> list[pa.RecordBatch]:  # noqa: D102
        self._pending += (each for each in results if not isinstance(each, TurnEnd))
        rows = passed_on(self._slot % self._config.slots, markers)
        divided = any(not isinstance(each, pa.RecordBatch) for each in self._pending)
        if divided or not 0 <= now_us - self._given_us < self._config.hop_us:
            self._given_us = now_us
            rows += self._up_to_date(now_us)
        return self.in_batch(rows)

    def _up_to_date(self, now_us: int) -> list[RoutedBytes]:
        rows: list[RoutedBytes] = []
        while dividers := [n for n, each in enumerate(self._pending) if not isinstance(each, pa.RecordBatch)]:
            first = dividers[0]
            if first:
                rows += self._frame(self._pending[:first], now_us)
                self._pending = self._pending[first:]
            if not self._may_say(self._pending[0]):
                return rows
            rows += self._frame([], now_us)  # barriers, and what is behind them
            rows += self._moved()
        rows += self._frame(self._pending, now_us)
        self._pending = []
        with self._lock:  # no promise is to be kept any more: all results of units that have left are on their way
            self._promised, later, self._later = NO_VERSION, self._later, None
            if later is not None:
                self._announce(later)
        return rows

    def _moved(self) -> list[RoutedBytes]:
        """One row for the divider that is pending first and those of units right behind it; none if it is a cut.

        The end of a unit that has begun in it is in the next one, which waits where that beginning does.
        """
        changes: dict[bool, list[ChangeOfHands]] = {False: [], True: []}  # begun, ended
        begun = set[UnitId]()
        count = 0  # of dividers, which are very many if units are
        while count < len(self._pending) and isinstance(divider := self._pending[count], Moved):
            if count and ((divider.left and divider.unit in begun) or not self._may_say(divider)):
                break
            if not divider.left:
                begun.add(divider.unit)
            changes[divider.left].append(ChangeOfHands(divider.unit, divider.version, divider.hop))
            count += 1
        del self._pending[: max(count, 1)]
        said = UnitsMoved(tuple(changes[False]), tuple(changes[True]))
        return self.moved(self._slot, self._frames, said) if said.begun or said.ended else []

    def _may_say(self, divider: Divider) -> bool:
        """Whether what ``divider`` needs is known here; then the next frame is the first behind it."""
        if isinstance(divider, Cut) and not divider.snapshot:
            self.request_savepoint(divider.name)
            return True
        with self._lock:
            if isinstance(divider, Moved):
                # What was promised of units that have left before this one came is kept: their results are out. And a
                # snapshot behind which its old slot has routed does not begin here any more.
                if self._later is not None and self._later.assignment.version <= divider.routed:
                    self._announce(self._later)
                    self._later = None
                for told in self._armed.values():
                    if told.assignment.version <= divider.routed:
                        self._announce(replace(told, snapshot=""))
                known = self._core.machine.newest >= divider.routed
            elif known := divider.name in self._armed:
                self._announce(self._armed.pop(divider.name))
            self._waits_since = 0.0 if known else self._waits_since or time.monotonic()
            if known or isinstance(divider, Moved):
                return known
            given_up = time.monotonic() - self._waits_since > CUT_S or divider.name == self._begin.snapshot
            if given_up:  # the next stage does not take part in it any more
                self._waits_since, self._given_up = 0.0, divider.name
            return given_up

    def _frame(self, results: list[pa.RecordBatch], now_us: int) -> list[RoutedBytes]:
        self._frames += 1
        rows, _ = self.routed(self._slot, self._frames, self.stage.from_all(results), 0, now_us)
        return rows

    def rest(self) -> list[pa.RecordBatch]:  # noqa: D102
        return self.in_batch(self._up_to_date(self._given_us) + self.resume())

    @property
    def holds(self) -> bool:  # noqa: D102
        return bool(self._waits_since)


def passed_on(slot: int, markers: Sequence[SlotMarker]) -> list[RoutedBytes]:
    """Return what is said to the job, by way of a ``slot`` of the next stage."""
    rows = (Row(spark_rows.MARKER, 0, NO_VERSION, 0, 0, messages.encode(said)) for said in markers)
    return [(slot, spark_rows.packed(row)) for row in rows]
