"""Replicas of one slot behind made-up routers, for ``check_ordering``: each with its own delays and batch ends."""

import copy
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from keyshift.model.errors import require
from keyshift.model.keys import NO_VERSION, Version
from keyshift.ordering import Local, OrderProtocol, Position, Propose, Record, Setting
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, SAVEPOINT, SNAPSHOT, TICK, Row
from keyshift.runtime.turn import Turn

H_US = 20_000
BEGIN_US = 1_700_000_000_000_000  # the first event is not at time 0
_EVENT = struct.Struct("<qqi")  # t, key, position in its frame
CALM = 2_000  # calls at the end, when nothing fails any more, until all is delivered: some tens are enough
_MARKER = 7  # any kind that is none of the core's


class SourceEvent(NamedTuple):
    """One event of a frame. ``t``: microseconds."""

    t: int
    key: int
    position: int


class Frame(NamedTuple):
    """What a partition gets at once."""

    offset: int
    watermark: int
    events: tuple[SourceEvent, ...]


class AppointedBarriers(NamedTuple):
    """Barriers of ``kind`` behind the mark that closes ``epoch``; rows behind them are of ``version``."""

    epoch: int
    kind: int
    version: Version


@dataclass(frozen=True)
class Input:
    """What all replicas read: ``frames`` of each router, and the ``appointments``, by epoch."""

    frames: tuple[tuple[Frame, ...], ...]
    appointments: tuple[AppointedBarriers, ...]
    later: bool

    @classmethod
    def draw(cls, rng: random.Random, epochs: int = 25, later: bool = False, close: bool = False) -> "Input":
        """Draw the input of one to three routers, some idle, and some with silence. All end in the same epoch.

        ``close``: something may be appointed before what was has come everywhere, and one frame come to both.
        """
        begin, end = BEGIN_US // H_US, BEGIN_US // H_US + rng.randint(4, epochs)
        frames = tuple(_partition(rng, later, begin * H_US, end * H_US) for _ in range(rng.randint(1, 3)))
        appointments, version, closed = [], Version(1), 0
        for epoch in sorted(rng.sample(range(begin + 1, end + 1), rng.randint(0, 3))):
            if epoch <= closed:
                continue
            version = Version(version + 1)
            appointments.append(AppointedBarriers(epoch, rng.choice((BARRIER, SNAPSHOT)), version))
            closed = epoch if close else _closed_with(frames, epoch)
        if closed < end and rng.random() < 0.3:
            appointments.append(AppointedBarriers(end, SAVEPOINT, version))
        return cls(frames, tuple(appointments), later)

    def captured(self, rng: random.Random) -> "Input | None":
        """The same input with a capture at an epoch where nothing else is appointed; None if there is none."""
        begin, end = BEGIN_US // H_US, max(self.frames[0], key=lambda frame: frame.watermark).watermark // H_US
        taken = [(each.epoch, _closed_with(self.frames, each.epoch)) for each in self.appointments]
        free = [
            epoch
            for epoch in range(begin + 1, end + 1)
            if all(last < epoch or first > _closed_with(self.frames, epoch) for first, last in taken)
        ]
        if not free:
            return None
        epoch = rng.choice(free)
        version = max((each.version for each in self.appointments if each.epoch < epoch), default=Version(1))
        more = (*self.appointments, AppointedBarriers(epoch, CAPTURE, version))
        return replace(self, appointments=tuple(sorted(more)))

    def setting(self) -> Setting:
        """The setting of a machine for it."""
        return Setting(len(self.frames), H_US, self.later, by_time, session_us=50_000, order_us=1_000)

    def rows(self, here: Callable[[int, SourceEvent], bool] = lambda version, event: True) -> list[list[Row]]:
        """What each router says to a slot, which gets the events that are ``here`` under a version, with all ticks."""
        return [self._said(router, here) for router in range(len(self.frames))]

    def _said(self, router: int, here: Callable[[int, SourceEvent], bool]) -> list[Row]:
        rows, version, due = [], Version(1), list(self.appointments)
        for frame in self.frames[router]:
            some = [event for event in frame.events if here(version, event)]
            kind = DATA if some else TICK
            rows.append(Row(kind, router, version, frame.offset, frame.watermark, payload_of(some)))
            while due and frame.watermark // H_US >= due[0].epoch:
                _, kind, version = due.pop(0)
                name = b"" if kind == BARRIER else b"name"
                rows.append(Row(kind, router, version, frame.offset, 0, name))
        return rows


def _partition(rng: random.Random, later: bool, begin_us: int, end_us: int) -> tuple[Frame, ...]:
    frames, offset, time_us = [], 0, begin_us
    idle, pace_us = rng.random() < 0.2, H_US // rng.choice((1, 2, 4))
    while time_us < end_us:
        offset += 1 if later else rng.choice((1, 1, 2))
        before_us, time_us = time_us, time_us + pace_us * rng.choice((0, 1, 1, 1, 1, 3, 30))
        time_us = min(time_us, end_us)
        if later:
            time_us -= time_us % H_US
        count = 0 if idle else rng.choice((0, 1, 2, 4))
        times = sorted(rng.randint(before_us, time_us) for _ in range(count))
        frames.append(Frame(offset, time_us, tuple(SourceEvent(t, rng.randrange(6), n) for n, t in enumerate(times))))
    return tuple(frames)


def _closed_with(frames: Iterable[Iterable[Frame]], epoch: int) -> int:
    """The last epoch that a router closes with the frame that closes ``epoch``."""
    closing = (next(frame for frame in partition if frame.watermark >= epoch * H_US) for partition in frames)
    return max(frame.watermark // H_US for frame in closing)


def payload_of(events: Iterable[SourceEvent]) -> bytes:
    """Events in the form that a row has them in."""
    return b"".join(_EVENT.pack(*event) for event in events)


def events_of(rows: Iterable[Row]) -> Iterator[tuple[int, int, SourceEvent]]:
    """Router, offset and event of each, in the order in which a slot works on them."""
    for row in rows:
        if row.kind == DATA:
            for event in _EVENT.iter_unpack(row.payload):
                yield row.router, row.offset, SourceEvent(*event)


def by_time(rows: Sequence[Row]) -> Sequence[Row]:
    """Merge rows for ``Setting.merge``: one per event."""
    by_place = {(row.router, row.offset): row for row in rows}
    ordered = sorted(events_of(rows), key=lambda each: (each[2].t, each[0], each[1], each[2].position))
    return [by_place[router, offset]._replace(payload=payload_of([event])) for router, offset, event in ordered]


class Replica:
    """One of several replicas. ``rng``: decides about all that may differ between replicas.

    ``saves``: how often it goes on in another machine, from 0 to 1. ``noise``: how often rows come that do not count,
    or come again.
    """

    def __init__(
        self,
        protocol: OrderProtocol,
        given: Input,
        rows: list[list[Row]],
        rng: random.Random,
        saves: float = 0.1,
        noise: float = 0.2,
    ) -> None:
        self.protocol, self.rows, self.rng, self.saves, self.noise = protocol, rows, rng, saves, noise
        self.setting = given.setting()
        self.machine = protocol.open(self.setting, Position.begin(self.setting, Version(1)))
        self.turns: list[Turn] = []
        self.captured: Position | None = None  # where it stood at its last capture
        self.markers_sent = self.markers_passed = 0
        self._proposed: list[Record] = []
        self.came = [0] * len(rows)  # rows of each channel
        self.read = 0  # records of the log

    @property
    def over(self) -> bool:
        """Whether all rows have come."""
        return all(came == len(rows) for came, rows in zip(self.came, self.rows, strict=True))

    def receive(self, channel: int, most: int) -> None:
        """Receive rows of one channel, and noise between them."""
        rng, rows = self.rng, []
        for row in self.rows[channel][self.came[channel] :][:most]:
            if rng.random() < self.noise:
                rows.append(Row(_MARKER, 0, NO_VERSION, 0, 0))
                self.markers_sent += 1
            if rng.random() < self.noise and not self.setting.later and row.kind in (DATA, TICK):
                rows.append(row._replace(kind=TICK, watermark=0, payload=b""))
            rows.append(row)
        self.came[channel] += len(rows) and min(most, len(self.rows[channel]) - self.came[channel])
        self.machine.arrived(rows)

    def deliver(self, ready: bool = True) -> None:
        """Deliver all turns there are, as far as the slot is ``ready``: it may not be any more behind barriers."""
        while (turn := self.machine.take(ready)) is not None:
            require(bool(turn.rows or turn.barriers), "a turn has neither rows nor barriers")  # or they may never end
            require(ready or not turn.rows, f"turn {turn.number} has rows, and the slot was not ready for any")
            self.turns.append(turn)
            if is_capture(turn):
                self.captured = self.machine.position
            ready = ready and (not turn.barriers or self.over or self.rng.random() < 0.7)
        if not ready and not self.protocol.leads and self.machine.owes_barriers:
            turn = copy.deepcopy(self.machine).take(True)  # with a leader captures wait for that
            waits = turn is not None and bool(turn.barriers)
            require(not waits, f"barriers wait behind turn {self.machine.turn} until the slot is ready for rows")
        if self.rng.random() < self.saves and not self.over:
            self.go_on()

    def go_on(self) -> None:
        """Go on in another machine, in the next batch: its routers say their version, and some rows come again. A
        capture does not: another one has another name.
        """
        self._look()
        position, waiting = self.machine.save()
        self.machine = self.protocol.open(self.setting, position)
        self.machine.arrived(waiting)
        self.read = 0  # a log may be read again from anywhere before
        for channel, rows in enumerate(self.rows):
            here = rows[: self.came[channel]]
            if here:
                version = max(row.version for row in here)
                last = here[-self.rng.randint(1, 3) :]
                again = [row for row in last if row.kind != CAPTURE and self.rng.random() < self.noise]
                self.machine.arrived([*again, Row(BARRIER, channel, version, here[-1].offset + 1, 0)])

    def take_effects(self) -> list[Record]:
        """Gives what it has proposed since the last call."""
        self._look()
        proposed, self._proposed = self._proposed, []
        return proposed

    def _look(self) -> None:
        for effect in self.machine.take_effects():
            match effect:
                case Propose(record):
                    self._proposed.append(record)
                case Local():
                    self.markers_passed += 1


def is_capture(turn: Turn) -> bool:
    """Whether the barriers of a turn are those of a capture."""
    return any(barrier.kind == CAPTURE for barrier in turn.barriers)


def run_together(replicas: Sequence[Replica], rng: random.Random, log: list[Record]) -> None:
    """Let all rows reach all replicas, in any order of calls; at the end nothing fails any more. ``log``: what they
    write; appends come late, twice or not at all, and leaders change.
    """
    term, now_us, calm, under_way = 0, BEGIN_US, 0, list[tuple[int, Record]]()
    leads = replicas[0].protocol.leads
    while calm < CALM and (calm == 0 or any(replica.machine.waiting_bytes for replica in replicas)):
        over = all(replica.over for replica in replicas)
        calm += over
        now_us += rng.randint(0, 3_000)
        replica = rng.choice(replicas)
        if leads and (calm % 100 == 1 if over else rng.random() < 0.05):
            term += 1
            replica.machine.elected(term)
        replica.receive(rng.randrange(len(replica.rows)), rng.choice((1, 2, 10)))
        replica.deliver(over or rng.random() < 0.8)
        replica.machine.propose(now_us)
        for record in replica.take_effects():
            under_way += [(rng.randint(0, 5), record)] * (1 if over else rng.choice((0, 1, 1, 1, 2)))
        log += [record for left, record in under_way if left == 0]
        under_way = [(left - 1, record) for left, record in under_way if left]
        hear(replica, log, rng.choice((0, 1, 5)))
    for replica in replicas:
        hear(replica, log, len(log))
        replica.deliver()


def hear(replica: Replica, log: Sequence[Record], most: int) -> None:
    """Let a replica read on in the log."""
    some = list(enumerate(log))[replica.read :][:most]
    replica.machine.heard(some)
    replica.read += len(some)


def by_key(turns: Iterable[Turn]) -> dict[int, list[tuple[int, int, int]]]:
    """The events of each key as router, offset and position, in the order in which they are worked on."""
    found = defaultdict(list)
    for turn in turns:
        for router, offset, event in events_of(turn.rows):
            found[event.key].append((router, offset, event.position))
    return found
