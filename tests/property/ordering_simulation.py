"""Replicas of a chain of stages in one event loop, with one seed and virtual time. ``simulate(seed, name)`` replays it.

Each slot is a router of the next stage as in a job, by ``TurnSender``: its stage switches where the first one does.

All replicas read the same frames. Each has delays of its own on each channel, batches that end, and deaths: it comes
back from a snapshot, or from what any of them alone has captured. Each slot has the order machine and a made-up core,
whose state is a number per key. For a protocol with leaders each slot has an order log: appends come late, twice or
not, answers get lost, sessions end, and a replica that was stopped wakes up as a leader of before.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from virtual_time import Outcome, VirtualTime

from keyshift.checks.replicas import BEGIN_US, H_US, Input, SourceEvent, by_time, events_of, payload_of
from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import Assignment
from keyshift.ordering import Local, Ordering, Position, Propose, Record, Resign, Setting, machine, orderings
from keyshift.ordering.channels import Channel
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, CAPTURE, DATA, SAVEPOINT, SNAPSHOT, TICK, Row
from keyshift.runtime.slot import Cut
from keyshift.runtime.turn import Turn
from keyshift.runtime.turn_sender import Sender, TurnSender
from keyshift.runtime.turns import TurnEnd

SESSION_MS, ORDER_MS = 50.0, 2.0
CALM_MS = 200.0  # from the last frame until nothing goes wrong any more
END_MS = 60_000.0  # virtual; the longest of 2000 runs took 3900
MARKER = 7
KEYS = 6
Rows = list[Row]


def owner(version: int, key: int, slots: int) -> int:
    """Each version has another owner for each key."""
    return (key + version) % slots


def results(turn: Turn) -> list[SourceEvent]:
    """What the core makes of a turn."""
    events = enumerate(event for _, _, event in events_of(turn.rows))
    return [SourceEvent(event.t, (event.key * 5 + 1) % KEYS, position) for position, event in events]


def routed(events: list[SourceEvent], version: int, slots: int) -> dict[int, bytes]:
    """What each slot gets of them, if it gets any."""
    parts: dict[int, list[SourceEvent]] = defaultdict(list)
    for event in events:
        parts[owner(version, event.key, slots)].append(event)
    return {slot: payload_of(part) for slot, part in parts.items()}


class Shape(SimpleNamespace):
    """What the seed decides before the run begins. Times are virtual milliseconds."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Shape":
        return cls(
            given=Input.draw(rng, epochs=9),
            replicas=rng.choice((1, 2, 2, 3)),
            slots=tuple(rng.randint(1, 3) for _ in range(rng.choice((1, 1, 2, 3)))),  # of each stage
            channel_ms=rng.choice((0.2, 2.0, 20.0)),
            spread=rng.choice((1.0, 10.0)),  # by how much more some channels of some replicas take
            outcome_ms=rng.choice((0.0, 5.0, 50.0)),  # until a router knows that an appointment holds
            state_ms=rng.choice((0.5, 10.0, 60.0)),
            batch_ms=rng.choice((None, 30.0, 100.0)),  # None: the run is one batch
            dies=rng.choice((0.0, 0.7)),  # probability that a replica does, once or twice
            stops=rng.choice((0.0, 0.01)),  # probability that it is stopped for a while
            append_ms=rng.choice((0.5, 3.0)),
            fails=rng.choice((0.0, 0.3)),  # probability that an append fails, comes late, or has no answer
            expires=rng.choice((0.0, 0.02)),  # probability that a leader's session ends, at each of its frames
        )


class OrderLog:
    """Of one slot in all replicas, with its election."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.term = 0
        self.leader = -1


class Slot:
    """One slot of one incarnation of a replica: its machine, and a core that is made up."""

    def __init__(self, replica: "Replica", stage: int, number: int, position: Position, state: dict[int, int]) -> None:
        self.replica, self.stage, self.number, self.state = replica, stage, number, dict(state)
        self.world, self.place = replica.world, (stage, number)
        senders = replica.world.senders(stage)
        self.setting = Setting(senders, H_US, stage > 0, by_time, int(SESSION_MS * 1000), int(ORDER_MS * 1000))
        self.leads = self.awaits_others = self.over = False  # over: in this batch nothing more is worked on
        self.version = position.places[0].version
        self.open(position, [])

    def open(self, position: Position, waiting: Rows) -> None:
        self.machine = self.world.machine(self.setting, position)
        self.read = position.log.offset + 1  # in the order log
        self.turn = position.turn
        self.log_end, self.stands = len(self.world.logs[self.place].records), False
        self.sender = self.world.sender(self.place, position)
        self.machine.arrived(waiting)
        self.busy_until = 0.0  # state is on its way until then
        self.wait_for_state()

    def wait_for_state(self) -> None:
        self.busy_until = self.world.now + self.world.delay(self.world.shape.state_ms)
        self.replica.later(self.busy_until - self.world.now, self.pump)

    @property
    def ready(self) -> bool:
        return self.world.now >= self.busy_until and not self.awaits_others

    def pump(self) -> None:
        """Deliver what there is, and carry out what follows."""
        while (turn := self.machine.take(self.ready)) is not None:
            self.deliver(turn)
        if not self.ready and self.world.leaderless and all(channel.stands for channel in self.machine.channels):
            self.world.problem("barriers", f"slot {self.place} has all barriers, and keeps them")
        self.machine.propose(self.world.now_us)
        for effect in self.machine.take_effects():
            match effect:
                case Propose(record):
                    self.world.append(self, record)
                case Resign():
                    self.world.seen["resigned"] += 1
                    self.leads = False
                    self.world.vacant(self.place, self.replica.number)
                case Local():
                    self.world.seen["passed by"] += 1
        self.stands |= self.read >= self.log_end and self.machine.abreast

    def deliver(self, turn: Turn) -> None:
        self.world.check_turn(self, turn)
        self.turn = turn.number
        if turn.barriers:
            kind, _, self.version, *_, payload, _ = turn.barriers[0]
            if kind == CAPTURE:
                self.send_on(Cut(bytes(payload).decode(), True))
                self.replica.captured(self, bytes(payload))
            if kind == SAVEPOINT:
                self.send_on(Cut("end", False))
            if kind == SNAPSHOT:
                self.replica.captured(self, bytes(payload))
            if kind == BARRIER:
                self.awaits_others = True
                self.replica.switched(self.stage, self.version)
            return
        for _, _, event in events_of(turn.rows):
            self.state[event.key] = hash((self.state.get(event.key, 0), event, turn.met, turn.clock))
        self.send_on(results(turn), TurnEnd(turn.number, turn.reached, turn.chain))

    def send_on(self, *given: Any) -> None:
        for slot, row in self.sender.give(given) if self.sender else ():
            self.replica.send(self.stage + 1, self.number, slot, [row])

    def end(self) -> bool:
        """All rows of the batch are here: gives whether the slot has done with them what has to be done in it."""
        if not self.over:
            self.pump()
            owes = self.machine.owes_barriers and not self.world.ends_at_a_barrier
            self.over = self.ready and not owes
            if self.over:
                self.leads = False
                self.world.vacant(self.place, self.replica.number)
        return self.over

    def go_on(self) -> None:
        """In the next batch: what is saved goes to the next holder."""
        self.over = self.leads = False
        self.world.vacant(self.place, self.replica.number)
        position, waiting = self.world.saved(self.machine)
        self.world.seen["rows handed over"] += len(waiting)
        self.open(position, waiting)


class Replica:
    """One incarnation: its routers, channels and slots."""

    def __init__(self, world: "Simulation", number: int, incarnation: int, snapshot: "Snapshot | None") -> None:
        self.world, self.number, self.incarnation = world, number, incarnation
        self.alive, self.stopped_until = True, 0.0
        self.parts: dict[bytes, dict[tuple[int, int], tuple[Position, dict[int, int]]]] = defaultdict(dict)
        self.router_places: dict[bytes, dict[int, int]] = defaultdict(dict)
        self.stand: Counter[tuple[int, int]] = Counter()  # slots of a stage that have switched to a version
        self.channels: dict[tuple[int, int, int], deque[Row]] = defaultdict(deque)
        self.due: dict[tuple[int, int, int], float] = {}
        self.usual: dict[tuple[int, int, int], float] = {}
        self.slots = {}
        self.begun = snapshot.version if snapshot else 1  # whatever is read again
        for stage, slots in enumerate(world.shape.slots):
            for slot in range(slots):
                begin = Position.begin(Setting(world.senders(stage), H_US, stage > 0), 1)
                position, state = snapshot.parts[stage, slot] if snapshot else (begin, {})
                if snapshot and world.forgets_positions:
                    position = begin
                self.slots[stage, slot] = Slot(self, stage, slot, position, state)
        self.frames = [0] * len(world.frames)
        if snapshot:  # some frames are read again
            self.frames = [max(0, at - world.rng.randint(0, 2)) for at in snapshot.frames]
        # By router and frame, behind which it is: the name of a capture that this incarnation has alone.
        self.captures = dict[tuple[int, int], bytes]()
        for epoch in world.capture_epochs:
            behind = [world.closes(router, epoch) for router in range(len(self.frames))]
            begun = snapshot.frames if snapshot else self.frames
            if world.rng.random() < 0.5 and all(at >= begin for at, begin in zip(behind, begun, strict=True)):
                self.captures |= dict.fromkeys(enumerate(behind), f"{number}-{incarnation} {epoch}".encode())
        self.left: list[list[Rows]] = [[] for _ in world.frames]  # of a frame whose mark has gone out: the barriers
        self.ends, self.next_batch = False, list[Callable[[], None]]()  # what routers are to do in the next one
        for router in range(len(world.frames)):
            self.next_frame(router)
        for slot in self.slots.values():
            self.read_on(slot)
        if world.shape.batch_ms:
            self.later(world.delay(world.shape.batch_ms), self.end_batch)

    def later(self, after_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.world.at(after_ms, self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self.alive:
            return
        if self.stopped_until > self.world.now:
            self.world.at(self.stopped_until - self.world.now, self.run, call, *arguments)
            return
        call(*arguments)

    # -- routers and channels -----------------------------------------------------------------------------------------

    def next_frame(self, router: int) -> None:
        frames = self.world.given.frames[router]
        if self.frames[router] < len(frames):
            due_ms = (frames[self.frames[router]].watermark - BEGIN_US) / 1000
            self.later(max(0.0, due_ms - self.world.now) + self.world.delay(1.0), self.route, self.take_frame, router)

    def route(self, call: Callable[..., None], *arguments: Any) -> None:
        """What a router does, it does not at the end of a batch."""
        if self.ends:
            self.next_batch.append(partial(call, *arguments))
        else:
            call(*arguments)

    def take_frame(self, router: int) -> None:
        world, rng = self.world, self.world.rng
        if self.left[router]:
            return
        at = self.frames[router]
        self.frames[router] += 1
        rows = world.frames[router][at]
        barriers: list[Rows] = []
        for slot, some in enumerate(rows):
            first, *rest = some
            name = self.captures.get((router, at))
            capture = [Row(CAPTURE, router, first.version, first.offset, 0, name)] if name else []
            barriers.append([*rest, *capture])
            if first.kind == DATA or world.marks(router, at) or rng.random() < 0.3:
                noise = [Row(MARKER, 0, 0, 0, 0)] if rng.random() < 0.05 else []
                self.send(0, router, slot, [*noise, first])
        for barrier in barriers[0]:
            if barrier.kind in (SNAPSHOT, CAPTURE):
                self.router_places[bytes(barrier.payload)][router] = at + 1
        if barriers[0]:
            self.left[router] = barriers
            wait_ms = world.rng.choice((0.0, world.delay(world.shape.outcome_ms)))
            self.later(wait_ms, self.route, self.outcome, router)
            if world.passes_on:
                self.left[router] = []
                self.next_frame(router)
                self.later(wait_ms, self.route, self.send_barriers, router, barriers)
        else:
            self.next_frame(router)
        world.accidents(self)

    def outcome(self, router: int) -> None:
        """The appointment holds: barriers go out right behind the mark."""
        barriers, self.left[router] = self.left[router], []
        if barriers:
            self.send_barriers(router, barriers)
            self.next_frame(router)

    def send_barriers(self, router: int, barriers: list[Rows]) -> None:
        for slot, some in enumerate(barriers):
            self.send(0, router, slot, some)

    def send(self, stage: int, sender: int, slot: int, rows: Rows) -> None:
        world, place = self.world, (stage, sender, slot)
        if place not in self.usual:
            self.usual[place] = world.shape.channel_ms * world.rng.choice((1.0, world.shape.spread))
        due = max(world.now + world.delay(self.usual[place]), self.due.get(place, 0.0))
        if not self.channels[place] or due > self.due[place]:
            self.later(due - world.now, self.receive, place)
        self.due[place] = due
        self.channels[place] += rows

    def receive(self, place: tuple[int, int, int]) -> None:
        rows, stage, slot = self.channels[place], place[0], self.slots[place[0], place[2]]
        most = self.world.rng.randint(1, 4)
        some = [rows.popleft() for _ in range(min(most, len(rows)))]
        if rows:
            self.later(self.world.delay(self.usual[place]), self.receive, place)
        if some:
            self.world.log("replica", self.number, "stage", stage, "slot", slot.number, "gets", len(some), "rows")
            slot.machine.arrived(some)
            slot.pump()

    # -- batches, snapshots, the order log ----------------------------------------------------------------------------

    def end_batch(self) -> None:
        """Routers do nothing more in it; slots end stage by stage. Then all of them begin anew."""
        self.world.seen["batches"] += 1
        self.world.log("replica", self.number, "ends a batch")
        self.ends = True
        self.end_stage(0)

    def end_stage(self, stage: int) -> None:
        """All that is on its way there arrives."""
        places = [place for place, rows in self.channels.items() if place[0] == stage and rows]
        self.world.rng.shuffle(places)
        for _, sender, slot in places:
            here, rows = self.slots[stage, slot], self.channels[stage, sender, slot]
            here.machine.arrived(rows)
            rows.clear()
            here.pump()
        self.await_stage(stage)

    def await_stage(self, stage: int) -> None:
        ended = [slot.end() for (of, _), slot in self.slots.items() if of == stage]
        if not all(ended):
            self.world.seen["batches that waited"] += 1
            self.later(ORDER_MS, self.await_stage, stage)
        elif stage + 1 < len(self.world.shape.slots):
            self.end_stage(stage + 1)
        else:
            self.begin_batch()

    def begin_batch(self) -> None:
        self.ends = False
        for slot in self.slots.values():
            slot.go_on()
        for (stage, number), slot in self.slots.items():
            for router in range(0 if stage else self.world.senders(stage)):
                begins = Row(BARRIER, router, self.router_version(router), self.next_offset(router), 0)
                self.send(stage, router, number, [begins])
            self.read_on(slot)
        while self.next_batch:
            self.later(0.0, self.next_batch.pop(0))
        assert self.world.shape.batch_ms
        if not self.world.over:
            self.later(self.world.shape.batch_ms * (0.5 + self.world.rng.random()), self.end_batch)

    def next_offset(self, router: int) -> int:
        frames, at = self.world.given.frames[router], self.frames[router]
        return frames[at].offset if at < len(frames) else frames[-1].offset + 1

    def router_version(self, router: int) -> int:
        """Of what this router has said last: barriers that are kept back were not said."""
        at = self.frames[router]
        said = [row.version for frame in self.world.frames[router][:at] for row in frame[0]]
        kept = [row.version for row in (self.left[router] or [[]])[0] if row.kind not in (SAVEPOINT, CAPTURE)]
        return max(self.begun, min([*kept, max(said, default=1) + 1]) - 1)

    def captured(self, slot: Slot, name: bytes) -> None:
        position, _ = self.world.saved(slot.machine)
        self.parts[name][slot.place] = position, dict(slot.state)
        if len(self.parts[name]) == len(self.slots) and len(self.router_places[name]) == len(self.frames):
            frames = [at for _, at in sorted(self.router_places[name].items())]
            versions = {place.version for position, _ in self.parts[name].values() for place in position.places}
            if len(versions) == 1:  # a way back waits for what moves
                alone = name in self.captures.values()
                self.world.snapshots.append(Snapshot(self.parts[name], frames, versions.pop(), alone))
                self.world.seen["captures" if alone else "snapshots"] += 1

    def switched(self, stage: int, version: int) -> None:
        """Units go from each slot of the stage to each other: all of them have to be there first."""
        self.stand[stage, version] += 1
        if self.stand[stage, version] == self.world.shape.slots[stage]:
            for (of, _), slot in self.slots.items():
                if of == stage:
                    slot.awaits_others = False
                    slot.wait_for_state()

    def read_on(self, slot: Slot) -> None:
        self.later(self.world.delay(self.world.shape.append_ms), self.hear, slot)

    def hear(self, slot: Slot) -> None:
        log = self.world.logs[slot.place].records
        if slot.over:
            return
        most = self.world.rng.choice((1, 3, 100))
        some = list(enumerate(log))[slot.read :][:most]
        if not some:
            return
        slot.read += len(some)
        slot.machine.heard(some)
        self.world.check_term(slot)
        slot.pump()
        if slot.read < len(log):
            self.read_on(slot)

    def elected(self, slot: Slot, term: int) -> None:
        if slot.over:
            return
        slot.leads = True
        slot.machine.elected(term)
        slot.pump()
        self.lead(slot)

    def lead(self, slot: Slot) -> None:
        """Looks again and again at what is here."""
        if slot.leads and not slot.over:
            slot.pump()
            self.later(2 * ORDER_MS, self.lead, slot)


@dataclass(frozen=True)
class Snapshot:
    """Of one replica: position and state of each slot, the next frame of each router, and the version. ``alone``: the
    others have no such snapshot.
    """

    parts: dict[tuple[int, int], tuple[Position, dict[int, int]]]
    frames: list[int]
    version: int
    alone: bool


class Simulation(VirtualTime):
    """The event loop, the order logs with their elections, accidents, and the checks."""

    def __init__(
        self,
        seed: int,
        name: str,
        ordering: type[Ordering] | None = None,
        channel: type[Channel] = Channel,
        forgets_positions: bool = False,
        passes_on: bool = False,
        switches_when_told: bool = False,
        loses_rows: bool = False,
        ends_at_a_barrier: bool = False,
        forgets_later_places: bool = False,
        sender: type[TurnSender[Any, Any]] = TurnSender,
    ) -> None:
        """``ordering``, ``channel``: in place of those of ``name``; ``sender``: of a slot's own. The others are bugs
        around a machine.
        """
        protocol = orderings.get(name)
        rng = random.Random(seed)
        self.leaderless = not protocol.leads
        self.shape = Shape.draw(rng)
        self.given = self.shape.given
        self.machine: Callable[[Setting, Position], Ordering] = ordering or protocol.open
        self.channel, self.name, self.sender_of = channel, name, sender
        self.forgets_later_places = forgets_later_places
        self.forgets_positions, self.passes_on, self.loses_rows = forgets_positions, passes_on, loses_rows
        self.ends_at_a_barrier = ends_at_a_barrier
        super().__init__(rng, Outcome(seed, f"simulate({seed}, {name!r})", self.shape))
        self.over = False
        self.capture_epochs = self._free_epochs(rng.choice((0, 1, 3)))
        self.frames = [self.rows_of(router, switches_when_told) for router in range(len(self.given.frames))]
        self.last_ms = max(frames[-1].watermark - BEGIN_US for frames in self.given.frames) / 1000
        self.logs: dict[tuple[int, int], OrderLog] = defaultdict(OrderLog)
        self.snapshots: list[Snapshot] = []
        self.turns: dict[tuple[int, int], dict[tuple[int, int], Turn]] = defaultdict(dict)  # of whoever came first
        self.replicas: list[Replica] = []

    def rows_of(self, router: int, at_any_time: bool) -> list[list[Rows]]:
        """By frame and slot: what the router says, first the frame's row, then barriers."""
        slots = self.shape.slots[0]
        by_frame: list[list[Rows]] = []
        for slot in range(slots):
            said = self.given.rows(lambda version, event: owner(version, event.key, slots) == slot)[router]  # noqa: B023
            frames: list[Rows] = []
            for row in said:
                if row.kind in (DATA, TICK):
                    frames.append([])
                named = row.kind == SNAPSHOT
                frames[-1].append(row._replace(payload=str(row.version).encode()) if named else row)
            by_frame.append(frames)
        if at_any_time:  # each router at another frame, whatever the appointment says
            for frames in by_frame:
                barriers = [row for frame in frames for row in frame[1:]]
                frames[:] = [frame[:1] for frame in frames]
                for number, row in enumerate(barriers):
                    at = min(len(frames) - 1, number * 2 + router)
                    frames[at].append(row._replace(offset=frames[at][0].offset))
        return [list(frame) for frame in zip(*by_frame, strict=True)]

    def _free_epochs(self, most: int) -> list[int]:
        """Epochs at which a replica may have a capture."""
        given = self.given
        for _ in range(most):
            given = given.captured(self.rng) or given
        return [each.epoch for each in given.appointments if each.kind == CAPTURE]

    def closes(self, router: int, epoch: int) -> int:
        """The number of the frame that closes the epoch."""
        frames = self.given.frames[router]
        return next(at for at, frame in enumerate(frames) if frame.watermark // H_US >= epoch)

    def marks(self, router: int, at: int) -> bool:
        frames = self.given.frames[router]
        before = frames[at - 1].watermark if at else 0
        return frames[at].watermark // H_US > before // H_US

    def senders(self, stage: int) -> int:
        return self.shape.slots[stage - 1] if stage else len(self.given.frames)

    def sender(self, place: tuple[int, int], position: Position) -> TurnSender[Any, Any] | None:
        """The slot as a router of the next stage, if there is one, from where it stands."""
        stage, number = place
        if stage + 1 == len(self.shape.slots):
            return None
        slots = self.shape.slots[stage + 1]

        def split(events: list[SourceEvent], assignment: Assignment) -> dict[int, bytes]:
            return routed(events, assignment.version, slots)

        def together(parts: Iterable[list[SourceEvent]]) -> list[SourceEvent]:
            return [*chain.from_iterable(parts)]

        def told(version: int, snapshot: str = "", epoch: int = 0) -> PublishAssignment:
            return PublishAssignment(Assignment(version, ()), frozenset(), snapshot, Appointment(epoch, holds=True))

        switches = [each for each in self.given.appointments if each.kind != SAVEPOINT]
        ahead = [each for each in switches if each.epoch > position.time // H_US]
        version = max((each.version for each in switches if each not in ahead), default=1)
        begins = Sender(number, position.turn, position.time)
        sender = self.sender_of(begins, told(version), slots, 1 << 30, split, H_US, together)
        for each in ahead:
            sender.switch(told(each.version, str(each.version) if each.kind == SNAPSHOT else "", each.epoch))
        return sender

    def saved(self, machine: Ordering) -> tuple[Position, Rows]:
        position, waiting = machine.save()
        if self.forgets_later_places and machine.setting.later:
            position = Position.begin(machine.setting, position.places[0].version)
        return position, [] if self.loses_rows else waiting

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.told(self._play)
        return self.outcome

    def _play(self) -> None:
        with patch.object(machine, "Channel", self.channel):
            self.replicas = [Replica(self, number, 0, None) for number in range(self.shape.replicas)]
            for place in self.replicas[0].slots if not self.leaderless else ():
                self.elect(place)
            for number in range(self.shape.replicas):
                while self.rng.random() < self.shape.dies / 2:
                    self.at(self.rng.uniform(0.3, 1.0) * (self.last_ms + CALM_MS), self.die, number)
            self.at(self.last_ms + CALM_MS, self.calm)
            self.pass_until(lambda: self.over_and_done() or self.now >= END_MS)
            self.check_end()

    @property
    def now_us(self) -> int:
        return BEGIN_US + int(self.now * 1000)

    def calm(self) -> None:
        """Nothing new goes wrong from here on."""
        self.over = True

    def over_and_done(self) -> bool:
        if self.outcome.problems:
            return True
        return self.over and all(
            replica.alive
            and replica.frames == [len(frames) for frames in self.frames]
            and not any(replica.left)
            and not any(replica.channels.values())
            and not any(slot.machine.waiting_bytes for slot in replica.slots.values())
            for replica in self.replicas
        )

    # -- accidents ----------------------------------------------------------------------------------------------------

    def accidents(self, replica: Replica) -> None:
        rng, shape = self.rng, self.shape
        if self.over:
            return
        if rng.random() < shape.stops:
            self.seen["stopped"] += 1
            self.log("replica", replica.number, "is stopped")
            replica.stopped_until = self.now + self.delay(3 * SESSION_MS)
            for place in replica.slots:
                self.vacant(place, replica.number, SESSION_MS)
        elif rng.random() < shape.expires:
            for place, log in self.logs.items():
                if log.leader == replica.number:
                    self.seen["expired"] += 1
                    self.vacant(place, replica.number)  # it leads on, until it reads the next term

    def die(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.alive:
            self.seen["died"] += 1
            self.log("replica", number, "dies")
            replica.alive = False
            for place in replica.slots:
                self.vacant(place, number, SESSION_MS)
            self.at(self.delay(50.0), self.come_back, replica)

    def come_back(self, dead: Replica) -> None:
        if not self.snapshots and not self.over and self.rng.random() < 0.7:
            self.at(self.delay(50.0), self.come_back, dead)
            return
        snapshot = self.rng.choice([*self.snapshots[-3:], *(() if self.snapshots[1:] else (None,))])
        back = "a capture" if snapshot and snapshot.alone else "a snapshot" if snapshot else "the beginning"
        self.seen[f"back from {back}"] += 1
        self.log("replica", dead.number, "comes back")
        self.replicas[dead.number] = Replica(self, dead.number, dead.incarnation + 1, snapshot)

    def vacant(self, place: tuple[int, int], leader: int, after_ms: float = 1.0) -> None:
        """The leader's session has ended, or will; another one is elected."""
        if not self.leaderless and self.logs[place].leader == leader:
            self.logs[place].leader = -1
            self.at(after_ms, self.elect, place)

    def elect(self, place: tuple[int, int]) -> None:
        log, here = self.logs[place], [each for each in self.replicas if each.alive and not each.slots[place].over]
        if log.leader >= 0:
            return
        self.seen["no candidate"] += sum(not each.slots[place].stands for each in here)
        here = [each for each in here if each.slots[place].stands]
        if not here:
            self.at(SESSION_MS, self.elect, place)
            return
        replica = self.rng.choice(here)
        log.term, log.leader = log.term + 1, replica.number
        self.seen["elections"] += 1
        self.log("replica", replica.number, "leads", place, "in term", log.term)
        replica.later(self.delay(1.0), replica.elected, replica.slots[place], log.term)

    def append(self, slot: Slot, record: Record, tries: int = 0) -> None:
        """What is on its way comes whatever becomes of its leader; it is repeated as long as nobody has answered."""
        draw, shape = self.rng.random(), self.shape
        bad = shape.fails if not self.over and tries < 5 else 0.0
        late_ms = 100.0 if draw < bad / 3 else shape.append_ms
        if not bad / 3 < draw < bad / 2:
            self.at(self.delay(late_ms), self.appended, slot, record)
        if draw < bad:
            self.seen["append repeated"] += 1
            slot.replica.later(self.delay(20.0), self.append, slot, record, tries + 1)

    def appended(self, slot: Slot, record: Record) -> None:
        place = slot.place
        log = self.logs[place].records
        self.seen["came in behind the death of its leader"] += not slot.replica.alive and bool(record.entries)
        self.seen["came in behind its term"] += any(record.term < other.term for other in log) and bool(record.entries)
        log.append(record)
        for replica in self.replicas:
            if replica.alive:
                replica.read_on(replica.slots[place])

    # -- the checks ---------------------------------------------------------------------------------------------------

    def check_turn(self, slot: Slot, turn: Turn) -> None:
        at = turn.number, turn.barriers[0].kind if turn.barriers else 0  # there are no two of a kind
        alone = at[1] == CAPTURE  # nothing to compare with
        first = turn if alone else self.turns[slot.place].setdefault(at, turn)
        if first != turn:
            self.problem("order", f"slot {slot.place} of replica {slot.replica.number}: {turn} instead of {first}")
        for row in turn.rows if slot.stage else ():
            sent = self.turns[slot.stage - 1, row.router][row.offset, 0]
            if (row.watermark, row.chain) != (sent.reached, sent.chain):
                self.problem("vouch", f"slot {slot.place} has {row} of {sent}")
        if turn.number != slot.turn + (not turn.barriers):
            self.problem("number", f"slot {slot.place} delivers turn {turn.number} behind {slot.turn}")
        if turn.met % H_US or turn.reached % H_US or turn.met > turn.reached:
            self.problem("time", f"turn {turn.number} of slot {slot.place} meets {turn.met}, reaches {turn.reached}")
        if turn.barriers and sorted(row.router for row in turn.barriers) != list(range(slot.setting.channels)):
            self.problem("barriers", f"slot {slot.place}: barriers of {turn.barriers}")
        if self.name == "time_merge":
            order = [(event.t, router, offset, event.position) for router, offset, event in events_of(turn.rows)]
            if order != sorted(order):
                self.problem("sorted", f"turn {turn.number} of slot {slot.place}")

    def check_term(self, slot: Slot) -> None:
        """What counts at an offset is of the highest term that has begun."""
        offset, term, _ = slot.machine._read  # type: ignore[attr-defined]
        begun = [record.term for record in self.logs[slot.place].records[: offset + 1] if not record.number]
        if term != max(begun, default=0):
            self.problem("term", f"slot {slot.place}, offset {offset}: {term} instead of {max(begun, default=0)}")

    def check_end(self) -> None:
        if self.now >= END_MS or not self.over_and_done():
            self.problem("stuck", f"turns {[{p: s.turn for p, s in r.slots.items()} for r in self.replicas]}")
        if self.outcome.problems:
            return
        for place in self.replicas[0].slots:
            self.check_complete(place)
            self.check_barriers(place)
            self.check_log(place)
        states = [{place: slot.state for place, slot in replica.slots.items()} for replica in self.replicas]
        if any(state != states[0] for state in states):
            self.problem("state", f"{states}")
        if self.leaderless:
            self.check_owners()
        self.seen["turns"] += sum(map(len, self.turns.values()))
        self.seen["barriers"] += sum(kind > 0 for turns in self.turns.values() for _, kind in turns)

    def check_complete(self, place: tuple[int, int]) -> None:
        """Each event that was sent to the slot, once, and in the order of its channel."""
        stage, slot = place
        got = [row for _, turn in sorted(self.turns[place].items()) for row in turn.rows]
        for channel in range(self.senders(stage)):
            sent: Iterable[Row]
            if stage:
                sent = (row for row in self.sent_by(stage - 1, channel, slot))
            else:
                sent = (row for frame in self.frames[channel] for row in frame[slot])
            expected = [(offset, event) for _, offset, event in events_of(sent)]
            found = [(offset, event) for router, offset, event in events_of(got) if router == channel]
            if lost := set(expected) - set(found):
                self.problem("lost", f"slot {place}, channel {channel}: {sorted(lost)[:3]}")
            elif len(found) > len(expected):
                self.problem("doubled", f"slot {place}, channel {channel}")
            elif found != expected:
                self.problem("reordered", f"slot {place}, channel {channel}")

    def sent_by(self, stage: int, number: int, slot: int) -> Iterable[Row]:
        """What the slot ``number`` of ``stage`` sends to a ``slot`` of the next one, whose assignment changes behind
        the turn that closes an appointed epoch.
        """
        version, slots = 1, self.shape.slots[stage + 1]
        for (turn_number, kind), turn in sorted(self.turns[stage, number].items()):
            if not kind:
                part = routed(results(turn), version, slots).get(slot, b"")
                yield Row(DATA if part else TICK, number, version, turn_number, turn.reached, part)
                closed = [each for each in self.given.appointments if each.epoch * H_US <= turn.reached]
                version = max((each.version for each in closed), default=1)

    def check_barriers(self, place: tuple[int, int]) -> None:
        """What was appointed has come to each slot, once."""
        came = [turn.barriers[0] for _, turn in sorted(self.turns[place].items()) if turn.barriers]
        found, wanted = [(row.kind, row.version) for row in came], [each[1:] for each in self.given.appointments]
        if found != wanted:
            self.problem("appointed", f"slot {place} has come to {found} instead of {wanted}")

    def check_log(self, place: tuple[int, int]) -> None:
        """No record orders what one before it has ordered, and behind a gap a machine ends."""
        term = number = 0
        ordered: Counter[int] = Counter()
        counted: list[Record] = []
        for record in self.logs[place].records if not self.leaderless else ():
            if record.term > term and not record.number:
                term, number = record.term, 0
            elif record.term == term and record.number == number + 1:
                number += 1
            else:
                continue
            counted.append(record)
            for channel, sequence in record.entries:
                if sequence <= ordered[channel]:
                    self.problem("ordered twice", f"slot {place}: {record}")
                ordered[channel] = sequence
        if len(counted) < 3 or not counted[-1].number or not counted[-2].number:
            return
        setting = self.replicas[0].slots[place].setting
        reader = self.machine(setting, Position.begin(setting, 1))
        try:
            reader.heard(enumerate([*counted[:-2], counted[-1]]))
        except ProtocolViolation:
            return
        self.problem("gap", f"slot {place} goes on over {counted[-2]}")

    def check_owners(self) -> None:
        """In the first stage each key has the order that it would have in a slot that owns all of them."""
        setting = self.replicas[0].slots[0, 0].setting
        alone = self.machine(setting, Position.begin(setting, 1))
        for rows in self.given.rows():
            alone.arrived(rows)
        expected = defaultdict(list)
        while (turn := alone.take(True)) is not None:
            for router, offset, event in events_of(turn.rows):
                expected[event.key].append((router, offset, event.t))
        found = defaultdict(list)
        everywhere = [item for (stage, _), turns in self.turns.items() if not stage for item in turns.items()]
        for _, turn in sorted(everywhere, key=lambda item: item[0]):
            for router, offset, event in events_of(turn.rows):
                found[event.key].append((router, offset, event.t))
        if found != expected:
            self.problem("owner", f"{dict(found)} instead of {dict(expected)}")


def simulate(seed: int, name: str, **changes: Any) -> Outcome:
    """One run with the order protocol ``name``. ``changes``: see ``Simulation``; they are there to be caught."""
    return Simulation(seed, name, **changes).run()
