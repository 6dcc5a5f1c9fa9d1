"""What drives the cores of ``runtime`` in the simulation, as Spark's tasks do: channels, delivery, batches, time.

Every callback is one turn under the slot's lock.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from counting import FRAME_US, Counting, Events, State, Store, WatchedComputation

from keyshift.model.keys import Assignment, Step
from keyshift.protocol import RouterMachine, SlotMachine, slot
from keyshift.protocol.absent_keys import AbsentKeys
from keyshift.protocol.slot.phases import ON_LOAN
from keyshift.runtime.key_access import RECORD_BYTES, Errand, KeyAccess, Stay
from keyshift.runtime.router import RouterCore
from keyshift.runtime.row import BARRIER, DATA, SNAPSHOT, Row
from keyshift.runtime.slot import Captured, Cut, Leave, Moved, SlotCore
from keyshift.runtime.snapshots import SnapshotPart, Snapshots

if TYPE_CHECKING:
    from simulation import Simulation

Packet = tuple["SlotShell", list[Row]]
ASIDE_MS = 50.0  # virtual


class RouterShell:
    """One router; ``offset`` is the next frame it reads, and outlives batches."""

    def __init__(self, sim: "Simulation", number: int, offset: int) -> None:
        self.sim, self.number, self.offset = sim, number, offset
        self.stopped = False
        self.batch = 0
        self.out: deque[Packet] = deque()  # not in their channels yet
        self.make_core()

    def make_core(self) -> None:
        shape = self.sim.shape
        machine = RouterMachine(*self.sim.published["assignment"][-1][:2])
        self.core = RouterCore(machine, len(self.sim.slots), shape.queue_bytes, self.split)

    def open(self) -> None:
        self.batch += 1
        batch = self.batch
        self.make_core()
        machine = self.core.machine
        self.sim.watch("assignment", lambda value: machine.announce(*value), lambda: batch == self.batch)
        self.sim.watch("savepoint", lambda value: machine.request_savepoint(value), lambda: batch == self.batch)
        self.sim.at(self.sim.rng.random() * self.sim.shape.frame_ms, self.frame)

    def split(self, events: Events, assignment: Assignment) -> dict[int, Events]:
        parts: dict[int, Events] = {}
        for number, key in events:
            parts.setdefault(assignment.owner[key % self.sim.shape.units], []).append((number, key))
        self.sim.seen["paused"] += len(parts.keys() & self.core.machine.paused)
        return parts

    def put(self, then: Callable[[], None]) -> None:
        """Row by row into the channels. One that is full holds up all others, also if only half of them know of a
        barrier.
        """
        while self.out:
            shell, rows = self.out[0]
            if self.sim.in_channel[self.number, shell.slot] >= self.sim.shape.room:
                self.sim.seen["router waits"] += 1
                return self.sim.at(1.0, self.put, then)
            self.out.popleft()
            self.sim.send(self.number, shell, rows)
        return then()

    def end(self) -> None:
        self.stopped = True
        self.sim.log("router", self.number, "ends its batch at", self.offset)
        for shell in self.sim.slots:
            self.sim.maybe_end(shell)

    def next_frame(self) -> None:
        self.sim.at(self.sim.shape.frame_ms * (0.5 + self.sim.rng.random()), self.frame)

    @property
    def waits(self) -> bool:
        """Not when its batch is over: routers that have ended say nothing any more, and slots wait for its end."""
        return self.core.full and not self.sim.ending

    def frame(self) -> None:
        sim = self.sim
        if self.waits:
            sim.seen["router is full"] += 1
            return self.next_frame()
        if sim.ending:
            self.send(self.core.resume())
            return self.put(self.end)
        events = sim.read(self.number, self.offset)
        rows, savepoints = self.core.frame(self.number, self.offset, events, (self.offset + 1) * FRAME_US)
        for savepoint in savepoints:
            self.stand(savepoint)
            sim.log("router", self.number, "stands before frame", self.offset, "at", savepoint)
        self.offset += 1
        self.send(rows)
        return self.put(self.next_frame)

    def stand(self, savepoint: str) -> None:
        self.sim.acknowledge_savepoint(savepoint, self.sim.shape.ack_ms, f"router-{self.number}", self.offset)

    def send(self, rows: list[tuple[int, Row]]) -> None:
        """Row after row, or for each slot all of them."""
        if self.sim.rng.random() < 0.5:
            self.out += [(self.sim.slots[to], [row]) for to, row in rows]
        else:
            for to in dict.fromkeys(to for to, _ in rows):
                self.out.append((self.sim.slots[to], [row for other, row in rows if other == to]))


class Courier:
    """Carries errands of one batch of a slot to one home, and waits for the answer before it leaves again."""

    def __init__(self, shell: "SlotShell", home: "SlotShell") -> None:
        self.shell, self.home, self.sim, self.keys = shell, home, shell.sim, shell.core.keys
        self.errands: list[Errand] = []
        self.moved: list[tuple[Stay, list[int]]] = []  # keys that the home need not keep
        self.away = False

    def send(self, errand: Errand) -> None:
        self.errands.append(errand)
        if not self.away:
            self.away = True
            self.sim.at(0.0, self.leave)

    def leave(self) -> None:
        self.away = bool(self.errands)
        if not self.away:
            return
        errands, self.errands = self.errands, []
        asked = [(errand.home.stay, list(errand.keys)) for errand in errands if errand.what == "fetch"]
        news = list(self.keys.unwritten(dict.fromkeys(e.home.stay for e in errands if e.what == "write")))
        rest = [errand for errand in errands if errand.what in ("rest", "drop")]
        if asked or news:
            moved, self.moved = self.moved, []
            self.sim.message(self.at_home, moved, news, asked, rest)
        else:
            self.go_on(rest)

    def at_home(self, moved: Any, news: Any, asked: Any, rest: list[Errand]) -> None:
        for stay, keys in moved:
            self.home.forget(stay, keys)
        for (stay, deleted, found), _ in news:
            self.home.written(stay, found, deleted)
        found = [[(key, value) for key in keys if (value := self.home.value(stay, key))] for stay, keys in asked]
        self.sim.message(self.back, news, asked, found, rest)

    def back(self, news: Any, asked: Any, found: Any, rest: list[Errand]) -> None:
        for (stay, *_), changes in news:
            before = self.shell.waiting_copies(stay)
            self.keys.written(stay, changes)
            self.sim.seen["copy dropped"] += before - self.shell.waiting_copies(stay)
        for (stay, keys), each in zip(asked, found, strict=True):
            self.sim.seen["keys fetched"] += 1
            if self.keys.arrived(stay, keys, each):
                self.moved.append((stay, keys))
        self.shell.carry_out()
        self.go_on(rest)

    def go_on(self, rest: list[Errand]) -> None:
        """One errand after the other: rests, a slice at a time, then what is dropped."""
        if not rest:
            return self.leave()
        errand, *others = rest
        stay = errand.home.stay
        if errand.what == "drop":
            return self.sim.message(self.drop, stay, others)
        if not self.keys.rests([stay]):
            return self.go_on(others)
        return self.sim.message(self.read_rest, stay, others)

    def drop(self, stay: Stay, others: list[Errand]) -> None:
        self.home.left.pop(stay, None)
        self.go_on(others)

    def read_rest(self, stay: Stay, others: list[Errand]) -> None:
        left = self.home.left.get(stay)
        ((_, after),) = self.keys.rests([stay])
        keys = sorted(key for key in (left.values if left else ()) if after is None or key > after)
        some = keys[: self.sim.rng.randint(1, 3)]
        found = [(key, left.values[key]) for key in some] if left else []
        self.sim.message(self.rest_came, stay, some, found, some == keys, others)

    def rest_came(self, stay: Stay, keys: list[int], found: Any, last: bool, others: list[Errand]) -> None:
        self.keys.rest_arrived(stay, keys, found, last)
        self.shell.carry_out()
        if last:
            self.go_on(others)
        else:
            self.sim.message(self.read_rest, stay, others)


class SlotShell:
    """One slot; its state outlives the core, which is new in each batch."""

    def __repr__(self) -> str:
        return f"slot {self.slot}"

    def __init__(self, sim: "Simulation", number: int) -> None:
        self.sim, self.slot = sim, number
        self.states: dict[int, State] = {}
        self.sending: dict[int, State] = {}
        self.left: dict[Stay, State] = {}  # of units that others own: keys that were not fetched yet
        self.parts_written: dict[int, State] = {}  # what snapshots have of its units
        self.tracked = Snapshots()
        self.couriers: dict[SlotShell, Courier] = {}  # of this batch
        self.unmade: dict[int, set[int]] = {}  # version of a step -> own units that have not moved yet
        self.backlog: deque[Any] = deque()  # rows and messages that came before the slot was open
        self.flying = 0  # packets on their way, and in the channel while the slot takes none
        self.channel: deque[list[Row]] = deque()
        self.looking = False  # whether it will look there again
        self.batch = 0
        self.version = 0  # handed over from batch to batch, as are
        self.watermarks, self.savepoint = [0] * sim.shape.routers, ""
        self.heard = [0] * sim.shape.routers
        self.opened = self.ended = False
        self.make_core([])

    @property
    def machine(self) -> SlotMachine[Any]:
        return self.core.machine

    def make_core(self, expected: list[int]) -> None:
        sim, shape = self.sim, self.sim.shape
        machine = sim.slot_machine(self.slot, shape.routers, self.states.keys(), expected, self.version)
        operator: Any = Counting(self)
        states: Any = self.states
        store: Any = Store(self)
        keys = KeyAccess(operator, states, AbsentKeys())
        computation = WatchedComputation(operator, machine, keys, store, states, shape.units)
        self.most, slices = shape.queue_bytes * RECORD_BYTES, (shape.drain, shape.drain)
        self.core = SlotCore(
            machine, operator, keys, computation, states, self.most, self.watermarks, self.savepoint, slices
        )
        self.core.snapshots = self.tracked

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, source: dict[int, State] | None = None) -> None:
        """Begin a batch with the state here, or fetch it unit by unit from ``source``."""
        sim, rng = self.sim, self.sim.rng
        self.batch += 1
        self.opened = True
        if source is None and self.batch > 1 and rng.random() < sim.shape.moves_process:
            source, self.states = self.states, {}
            self.tracked = Snapshots()
            sim.seen["moved process"] += 1
        expected: list[int] = sorted(source or ())
        self.couriers = {}
        self.left.clear()  # all batches before are over
        self.heard = [0] * sim.shape.routers
        self.make_core(expected)
        sim.log("slot", self.slot, "opens with", sorted(self.states), "expects", expected, "at", self.version)
        for unit in self.states:
            sim.check_owner(unit, self)
        if source:
            sim.at(sim.delay(sim.shape.state_ms), self.pull, dict(source))
        batch = self.batch
        sim.watch("step", self.steps_published, lambda: batch == self.batch)
        backlog, self.backlog = self.backlog, deque()
        for call in backlog:
            call()
        self.go_on(batch)
        sim.maybe_end(self)

    def drain(self) -> None:
        self.core.drain(self.now_us, lambda: False)
        self.carry_out()

    @property
    def now_us(self) -> int:
        return int(self.sim.now * 1000) + 1

    def go_on(self, batch: int) -> None:
        """Without rows, too: they may wait, in a router that another slot has stopped, for what this one has to do."""
        if batch == self.batch and not self.ended:
            self.drain()
            self.sim.at(ASIDE_MS, self.go_on, batch)

    def pull(self, source: dict[int, State]) -> None:
        wanted = [unit for unit in self.machine.wanted if unit in source]
        if wanted:
            self.state_arrived(wanted[0], source.pop(wanted[0]))
            self.sim.at(self.sim.delay(self.sim.shape.state_ms), self.pull, source)

    def end(self) -> None:
        self.ended = True
        self.sim.log("slot", self.slot, "end of input")
        self.core.end_of_input()
        self.carry_out()
        self.settle()

    def settle(self) -> None:
        if self.core.settled:
            self.opened = False
            self.version = self.machine.version
            self.watermarks, self.savepoint = self.core.watermarks, self.core.savepoint
            if rest := self.states.keys() ^ self.machine.serving:
                self.sim.problem("leftover", f"slot {self.slot} seals units {sorted(rest)}, which it does not serve")
            self.states = {unit: self.states[unit] for unit in self.machine.serving}
            self.sim.log("slot", self.slot, "sealed at", self.version)
            self.sim.maybe_next_batch()
        else:
            self.sim.at(1.0 + self.sim.rng.random(), self.finish)

    def finish(self) -> None:
        self.drain()
        self.settle()

    # -- what comes in ------------------------------------------------------------------------------------------------

    def when_open(self, call: Callable[[], None]) -> None:
        if self.opened or self.ended:  # one that is sealed still says that it has what comes again
            call()
        else:
            self.backlog.append(call)

    def came(self, rows: list[Row]) -> None:
        self.channel.append(rows)
        if not self.looking:
            self.look()

    def look(self) -> None:
        """Take what is in the channel, or do what can be done without."""
        self.looking = False
        while self.channel and not self.core.full:
            self.on_rows(self.channel.popleft())
        if self.channel:
            self.sim.seen["stopped reading"] += 1
            self.looking = True
            self.drain()
            self.sim.at(1.0, self.look)

    def check_room(self) -> None:
        """Whether more waits than should. If all routers are at one version here, no slot waits for a barrier behind
        the rows that are not taken; but for this one, if it is blocked by state that came before its first barrier.
        """
        units, keys = self.machine.queued_bytes, self.core.keys.waiting_bytes
        if units > self.most or keys >= self.most:
            self.drain()
            step, drained = self.machine._step, self.machine.queued_bytes < units
            behind = self.machine._blocked and step is not None and step.version not in self.heard
            same = len(set(self.heard)) == 1 and not behind
            if keys >= self.most or (same and not drained):
                what = f"{units} bytes wait for units, {keys} for keys"
                self.sim.problem("unbounded", f"slot {self.slot} takes more although {what}")

    def on_rows(self, rows: list[Row]) -> None:
        sim = self.sim
        self.flying -= 1
        sim.in_channel[rows[0].router, self.slot] -= 1
        self.check_room()
        for row in rows:
            sim.log("slot", self.slot, "gets", row)
            if row.kind in (BARRIER, SNAPSHOT):
                self.heard[row.router] = row.version
            elif row.kind == DATA and not (self.machine.stopped(row.router) or sim.ending or row.version in sim.let_go):
                self.gate(row.version, "router")  # else the routers keep nothing back
        units, keys = self.machine.queued_bytes, self.core.keys.waiting_bytes
        self.core.on_rows(rows, self.now_us, lambda: False)
        sim.seen["held"] += self.machine.queued_bytes > units
        sim.seen["stalled" if sim.shape.timers else "waits for its key"] += self.core.keys.waiting_bytes > keys
        sim.seen["urged"] += self.core.queued_bytes > self.most
        self.carry_out()
        sim.maybe_end(self)

    def made(self, unit: int) -> None:
        for units in self.unmade.values():
            units.discard(unit)

    def gate(self, version: int, gate: str) -> None:
        """No record of the new version comes past its gate before the moves behind it are made."""
        if self.unmade.get(version) and self.core.modes[version].gate == gate:
            self.sim.problem("gate", f"slot {self.slot} works on, units {sorted(self.unmade[version])} move")

    # -- state that comes ---------------------------------------------------------------------------------------------

    def steps_published(self, value: tuple[int, tuple[tuple[int, Step], ...]]) -> None:
        last, steps = value
        if self.ended:
            self.sim.seen["step after the end"] += 1
        self.sim.log("slot", self.slot, "sees until", last, *((version, step) for version, step in steps))
        unmade = {}
        for version, step in steps:
            moves = step.moves if version > self.machine.version else ()  # otherwise made in a batch before
            ours = {m.unit for m in moves if self.slot in (m.source, m.destination)}
            unmade[version] = self.unmade.get(version, ours)
        self.unmade = unmade
        self.core.published(last, steps)
        self.carry_out()

    def state_arrived(
        self,
        unit: int,
        state: State,
        version: int = 0,
        hop: int = 0,
        routers: frozenset[int] | None = None,
        home: "SlotShell | None" = None,
    ) -> None:
        self.sim.log("slot", self.slot, "state of unit", unit, "for", routers, "partial" if home else "")
        arrived: Any = state
        self.core.arrived(unit, version, hop, routers, arrived, home)
        self.made(unit)
        self.sim.check_owner(unit, self)
        self.carry_out()

    def pushed(self, send: slot.Send, state: State, source: "SlotShell", keys_stay: bool, answer: bool) -> None:
        if self.machine.awaits(send.unit, send.version, send.hop):
            home = source if keys_stay else None
            self.state_arrived(send.unit, state.copy(), send.version, send.hop, send.routers, home)
        else:
            self.sim.seen["came twice"] += 1
        if answer:
            self.acknowledge(send.unit, source)

    def acknowledge(self, unit: int, source: "SlotShell") -> None:
        self.sim.at(
            self.sim.delay(self.sim.shape.state_ms / 4), source.when_open, self.sim.call(source.acknowledged, unit)
        )

    def acknowledged(self, unit: int) -> None:
        self.core.acknowledged(unit)
        del self.sending[unit]
        self.made(unit)
        self.carry_out()

    def opened_for_good(self, unit: int, version: int, source: "SlotShell", answer: bool) -> None:
        self.core.opened(unit, version)
        self.carry_out()
        if answer:
            self.acknowledge(unit, source)

    def requested(self, request: slot.Request, answer: bool) -> None:
        self.core.requested(request.unit, request.version, request.router, request.hop)
        self.carry_out()

    # -- keys that others ask for -------------------------------------------------------------------------------------

    def value(self, stay: Stay, key: int) -> list[int] | None:
        return self.left[stay].values[key] if stay in self.left else None

    def forget(self, stay: Stay, keys: list[int]) -> None:
        if stay in self.left:
            for key in keys:
                self.left[stay].delete(key)

    def written(self, stay: Stay, found: list[tuple[int, Any]], deleted: list[int]) -> None:
        if stay in self.left:
            self.left[stay].values.update(found)
            self.forget(stay, deleted)

    def waiting_copies(self, stay: Stay) -> int:
        return len(self.states[stay[0]].values) if stay[0] in self.states else 0

    # -- effects ------------------------------------------------------------------------------------------------------

    def shipment(self, leave: Leave) -> State:
        """What leaves of a unit; its keys stay here if that is how the step moves it."""
        state: Any = leave.state
        if leave.keys_stay:
            self.sim.seen["left behind"] += 1
            self.left[leave.send.unit, leave.send.version] = state
            return state.bare()  # type: ignore[no-any-return]
        return state  # type: ignore[no-any-return]

    def carry_out(self) -> None:
        sim = self.sim
        for result in self.core.take_results():
            if not isinstance(result, Cut | Moved):
                sim.results += result
        for effect in self.core.take_effects():
            sim.log("slot", self.slot, effect)
            match effect:
                case Leave(slot.Send(unit, destination, _, routers) as send):
                    state = self.sending[unit] = self.shipment(effect)
                    sim.deliver(sim.slots[destination].pushed, send, state, self, effect.keys_stay)
                    sim.seen["empty unit sent"] += not state.values
                    sim.seen["timers sent"] += len(state.timers)
                    sim.seen["lent"] += bool(routers)
                    sim.seen["fetched back"] += routers == frozenset()
                case Errand(home):
                    if home.address not in self.couriers:
                        self.couriers[home.address] = Courier(self, home.address)
                    self.couriers[home.address].send(effect)
                case slot.Prepared(version):
                    sim.acknowledge("prepared", version, self.slot)
                case slot.Open(unit, destination, version):
                    sim.seen["opened"] += 1
                    self.sending[unit] = State()
                    sim.deliver(sim.slots[destination].opened_for_good, unit, version, self)
                case slot.Request():
                    sim.seen["requested"] += 1
                    sim.deliver(sim.slots[effect.slot].requested, effect)
                case slot.Installed(version, units):
                    waiting = {unit for unit, queue in self.machine._queues.items() if queue}
                    lent = {unit for unit in units if self.machine.phase_of(unit) in ON_LOAN}
                    if early := (units - self.states.keys()) | (units & waiting) | lent:
                        sim.problem("too early", f"slot {self.slot} reports units {sorted(early)} of {version}")
                    sim.acknowledge("installed", version, self.slot)
                case slot.Released(version, units):
                    if early := units & (self.states.keys() | self.sending.keys()):
                        sim.problem("too early", f"slot {self.slot} reports units {sorted(early)} of {version} gone")
                    sim.acknowledge("released", version, self.slot)
                case slot.Freeze(savepoint):
                    frozen = {unit: state.copy() for unit, state in self.states.items()}
                    sim.acknowledge_savepoint(savepoint, sim.shape.state_ms, f"slot-{self.slot}", frozen)
                case Captured(snapshot, version, units, parts):
                    sim.acknowledge("captured", version, self.slot)
                    self.write(units, parts)
                    taken = {unit: self.parts_written[unit].copy() for unit in units}
                    sim.acknowledge_savepoint(snapshot, sim.shape.state_ms, f"slot-{self.slot}", taken)
                case slot.Skip(snapshot, version):
                    sim.seen["snapshot skipped"] += 1
                    sim.acknowledge("captured", version, self.slot)

    def write(self, units: list[int], parts: list[SnapshotPart]) -> None:
        """A snapshot has of each unit all its parts, the later over the earlier."""
        for part in parts:
            whole: Any = part.whole
            timers: Any = part.timers
            if whole is None:
                self.sim.seen["part of a unit written"] += 1
                whole = State(self.parts_written[part.unit].values)
                whole.values.update(dict(part.changed))
                for key in part.deleted:
                    del whole.values[key]
            self.parts_written[part.unit] = State(whole.values, timers)
        self.parts_written = {unit: self.parts_written[unit] for unit in units}
