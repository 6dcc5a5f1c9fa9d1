"""What ``executor.tasks``, ``slot_task`` and ``partial_units`` do around the machines, without threads.

Every callback is one turn under the slot's lock. If timers count, each event sets one for its key, a few frames ahead:
event time is the number of frames that were seen of every router.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keyshift.keys import Mode, Step
from keyshift.protocol import SlotMachine, router, slot
from keyshift.protocol.remainder import Remainders
from keyshift.protocol.slot.phases import ON_LOAN

if TYPE_CHECKING:
    from simulation import Simulation

Events = list[tuple[int, int]]  # (number, key)
Stay = tuple[int, int]  # a unit, and the version with which its ownership left
Values = dict[int, list[int]]  # key -> numbers of its events and, as ~number, of timers that fired; in their order
Waiting = tuple[tuple[int, int], int, int, int]  # event, router, version, watermark that it met
Packet = tuple["SlotShell", list[tuple[Any, ...]]]
ASIDE_MS = 50.0  # virtual
AHEAD = 4  # timers are set so many frames ahead at the most


@dataclass
class State:
    """What there is of one unit. With transfer ``access`` or ``remote`` the values stay behind, the rest travels."""

    values: Values = field(default_factory=dict)
    timers: dict[int, int] = field(default_factory=dict)  # number of the event that set it -> when it is due
    watermark: int = 0

    def copy(self) -> "State":
        return State(copied(self.values), dict(self.timers), self.watermark)


def copied(values: Values) -> Values:
    return {key: list(numbers) for key, numbers in values.items()}


class RouterShell:
    """One router; ``offset`` is the next frame it reads, and outlives batches."""

    def __init__(self, sim: "Simulation", number: int, offset: int) -> None:
        self.sim, self.number, self.offset = sim, number, offset
        self.stopped = False
        self.batch = 0
        self.out: deque[Packet] = deque()  # not in their channels yet
        self.kept: list[Packet] = []
        self.machine = sim.router_machine(*sim.published["assignment"][-1])

    def open(self) -> None:
        self.batch += 1
        batch = self.batch
        self.machine = self.sim.router_machine(*self.sim.published["assignment"][-1])
        self.sim.watch("assignment", lambda value: self.machine.announce(*value), lambda: batch == self.batch)
        self.sim.watch("savepoint", lambda value: self.machine.request_savepoint(value), lambda: batch == self.batch)
        self.sim.at(self.sim.rng.random() * self.sim.shape.frame_ms, self.frame)

    def resume(self) -> None:
        self.out += self.kept
        self.kept = []

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
    def full(self) -> bool:
        records = sum(len(events) for _, rows in self.kept for *_, events, _ in rows)
        return records > self.sim.shape.queue_bytes and not self.machine.may_resume

    @property
    def waits(self) -> bool:
        """Not when its batch is over: routers that have ended say nothing any more, and slots wait for its end."""
        return self.full and not self.sim.ending

    def frame(self) -> None:
        sim, machine = self.sim, self.machine
        if self.waits:
            sim.seen["router is full"] += 1
            return self.next_frame()
        if sim.ending:
            self.resume()
            return self.put(self.end)
        rows: list[tuple[Any, ...]] = []
        for effect in machine.boundary():
            match effect:
                case router.Resume():
                    self.resume()
                case router.Barrier(version):
                    rows.append(("barrier", self.number, version))
                case router.SavepointBarrier(savepoint):
                    rows.append(("savepoint", self.number, savepoint))
                    sim.acknowledge_savepoint(sim.shape.ack_ms, f"router-{self.number}", self.offset)
            sim.log("router", self.number, "before frame", self.offset, effect)
        parts: dict[int, Events] = defaultdict(list)
        if machine.stopped_for is None:
            for number, key in sim.read(self.number, self.offset):
                parts[machine.assignment.owner[key % sim.shape.units]].append((number, key))
        self.offset += 1
        if rows and sim.rng.random() < 0.5:
            self.out += [(shell, rows) for shell in sim.slots]
            rows = []
        for shell in sim.slots:
            data = [("data", self.number, machine.assignment.version, parts.get(shell.slot, []), self.offset)]
            if shell.slot in machine.paused:
                sim.seen["paused"] += bool(parts.get(shell.slot))
                self.kept.append((shell, data))
                data = [("tick", self.number, 0)]  # that brings no time
            self.out.append((shell, rows + data))
        return self.put(self.next_frame)


class SlotShell:
    """One slot; its state outlives the machine, which is new in each batch."""

    def __init__(self, sim: "Simulation", number: int) -> None:
        self.sim, self.slot = sim, number
        self.states: dict[int, State] = {}
        self.sending: dict[int, State] = {}
        self.left: dict[Stay, Values] = {}  # of units that others own: keys that were not fetched yet
        self.homes: dict[int, tuple[SlotShell, Mode, Stay]] = {}  # partial units -> where the other keys are
        self.stalled: dict[int, deque[Waiting]] = {}  # partial units, if timers count: records in their order
        self.writing: Counter[tuple[int, int]] = Counter()  # (unit, key) -> copies on their way back to their home
        self.modes: dict[int, Mode] = {}
        self.unmade: dict[int, set[int]] = {}  # version of a step -> own units that have not moved yet
        self.backlog: deque[Any] = deque()  # rows and messages that came before the slot was open
        self.flying = 0  # packets on their way, and in the channel while the slot takes none
        self.channel: deque[list[tuple[Any, ...]]] = deque()
        self.looking = False  # whether it will look there again
        self.batch = 0
        self.version = 0  # handed over from batch to batch
        self.opened = self.ended = False
        self.machine: SlotMachine[Any] = sim.slot_machine(number, sim.shape.routers)
        self.remainders: Remainders[Any] = sim.remainders()

    # -- life ---------------------------------------------------------------------------------------------------------

    def open(self, source: dict[int, State] | None = None) -> None:
        """Begin a batch with the state here, or fetch it unit by unit from ``source``."""
        sim, rng = self.sim, self.sim.rng
        self.batch += 1
        self.opened = True
        if source is None and self.batch > 1 and rng.random() < sim.shape.moves_process:
            source, self.states = self.states, {}
            sim.seen["moved process"] += 1
        expected: list[int] = sorted(source or ())
        self.machine = sim.slot_machine(self.slot, sim.shape.routers, self.states.keys(), expected, self.version)
        self.remainders, self.stalled = sim.remainders(), {}
        self.watermarks = [0] * sim.shape.routers
        self.heard = [0] * sim.shape.routers
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
        self.carry_out(self.machine.end_of_input())
        self.settle()

    def settle(self) -> None:
        if self.machine.settled:
            self.opened = False
            self.version = self.machine.version
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

    @property
    def waiting_for_keys(self) -> int:
        return self.remainders.waiting + sum(map(len, self.stalled.values()))

    @property
    def full(self) -> bool:
        """Whether no row is to be taken."""
        keys, most = self.waiting_for_keys, self.sim.shape.queue_bytes
        return keys >= most or (self.machine.queued_bytes + keys > most and self.machine.may_stall)

    def came(self, rows: list[tuple[Any, ...]]) -> None:
        self.channel.append(rows)
        if not self.looking:
            self.look()

    def look(self) -> None:
        """Take what is in the channel, or do what can be done without."""
        self.looking = False
        while self.channel and not self.full:
            self.on_rows(self.channel.popleft())
        if self.channel:
            self.sim.seen["stopped reading"] += 1
            self.looking = True
            self.drain()
            self.sim.at(1.0, self.look)

    def check_room(self, units: int, keys: int, drained: bool) -> None:
        """So many records wait. If all routers are at one version here, no slot waits for a barrier behind them."""
        most, same = self.sim.shape.queue_bytes, len(set(self.heard)) == 1
        if keys >= most or (units > most and same and not drained):
            what = f"{units} records wait for units, {keys} for keys"
            self.sim.problem("unbounded", f"slot {self.slot} takes more although {what}")

    def on_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self.flying -= 1
        self.sim.in_channel[rows[0][1], self.slot] -= 1
        units, keys = self.machine.queued_bytes, self.waiting_for_keys
        self.drain()
        self.check_room(units, keys, drained=self.machine.queued_bytes < units)
        for kind, router_, value, *rest in rows:
            if kind == "barrier":
                self.heard[router_] = value
                self.sim.log("slot", self.slot, "barrier", value, "of router", router_)
                self.carry_out(self.machine.barrier(router_, value))
            elif kind == "savepoint":
                self.carry_out(self.machine.savepoint_barrier(router_, value))
            elif kind == "data" and not self.machine.stopped(router_):
                events, watermark = rest
                if events:
                    self.admit(events, router_, value, min(self.watermarks))
                self.watermarks[router_] = max(self.watermarks[router_], watermark)  # holds for what comes behind
        if self.sim.shape.timers and not self.machine.stopping:
            self.timers_due()
        if self.machine.queued_bytes > self.sim.shape.queue_bytes:
            self.sim.seen["urged"] += 1
            self.carry_out(self.machine.urge())
        self.ask()
        self.sim.maybe_end(self)

    def admit(self, events: Events, router_: int, version: int, met: int) -> None:
        units = self.sim.shape.units
        self.sim.log("slot", self.slot, "gets", events, "of router", router_, "under", version, "at", met)
        if not self.sim.ending and version not in self.sim.let_go:  # then the routers keep nothing back
            self.gate(version, "router")
        held = self.machine.admit(router_, version, {key % units for _, key in events})
        for unit in held:
            self.sim.seen["held"] += 1
            part = [event for event in events if event[1] % units == unit]
            self.carry_out(self.machine.hold(unit, router_, (part, router_, version, met), len(part)))
        self.process([event for event in events if event[1] % units not in held], router_, version, met)

    def made(self, unit: int) -> None:
        for units in self.unmade.values():
            units.discard(unit)

    def gate(self, version: int, gate: str) -> None:
        """No record of the new version comes past its gate before the moves behind it are made."""
        if self.unmade.get(version) and self.modes[version].gate == gate:
            self.sim.problem("gate", f"slot {self.slot} works on, units {sorted(self.unmade[version])} move")

    def process(self, events: Events, router_: int, version: int, met: int) -> None:
        """What misses its key waits; if time counts, behind it all that is younger in its unit."""
        for event in events:
            unit = event[1] % self.sim.shape.units
            if unit not in self.remainders:
                self.process_one(event, router_, version, met)
            elif not self.sim.shape.timers:
                if self.remainders.admit(unit, [event[1]]):
                    self.sim.seen["waits for its key"] += 1
                    self.remainders.hold(unit, event[1], (event, router_, version, met))
                else:
                    self.process_one(event, router_, version, met)
            elif unit in self.stalled or self.waits(event, met):
                self.sim.seen["stalled"] += 1
                self.stalled.setdefault(unit, deque()).append((event, router_, version, met))
            else:
                self.process_one(event, router_, version, met)

    def process_one(self, event: tuple[int, int], router_: int, version: int, met: int) -> None:
        number, key = event
        unit = key % self.sim.shape.units
        self.gate(version, "slots")
        if unit not in self.states:
            self.sim.problem("ownerless", f"slot {self.slot} processes event {number} without state of unit {unit}")
            self.states[unit] = State()
        if self.sim.shape.timers:
            if not self.machine.stands(unit):
                self.reach(unit, met)
            self.set_timer(unit, number)
        self.note(number, key, router_, version)

    def note(self, number: int, key: int, router_: int, version: int) -> None:
        """An event or a timer (~number) changes its key, and a result comes out."""
        unit = key % self.sim.shape.units
        numbers = self.states[unit].values.setdefault(key, [])
        numbers.append(number)
        self.sim.results.append((number, key, router_, self.sim.attempt, version, self.slot, len(numbers)))
        if unit in self.remainders and self.homes[unit][1].transfer == "remote":
            self.write_back(unit, key, list(numbers))

    def drain(self) -> None:
        room = self.waiting_for_keys < self.sim.shape.queue_bytes
        records, effects = self.machine.drain(self.sim.shape.drain if room else 0)
        for record in records:
            self.sim.log("slot", self.slot, "drains", record)
            self.process(*record)
        self.carry_out(effects)
        waiting, whole = self.remainders.drain(self.sim.shape.drain)
        for record in waiting:
            self.sim.log("slot", self.slot, "drains", record, "whose key has come")
            self.process_one(*record)
        for unit, queue in list(self.stalled.items()):
            while queue and not self.waits(queue[0][0], queue[0][3]):
                self.process_one(*queue.popleft())
            if not queue:
                del self.stalled[unit]
        for unit in whole:
            home, _, stay = self.homes[unit]
            home.drop(stay)
            self.carry_out(self.machine.completed(unit))
        self.ask()

    # -- timers -------------------------------------------------------------------------------------------------------

    def set_timer(self, unit: int, number: int) -> None:
        state, frame = self.states[unit], self.sim.events[number][2]
        if state.watermark > frame:
            what = f"event {number} of frame {frame} finds unit {unit} of slot {self.slot} at {state.watermark}"
            self.sim.problem("late", what)
        state.timers[number] = frame + 1 + number % AHEAD

    def reach(self, unit: int, watermark: int) -> None:
        """Event time comes to ``watermark`` for ``unit``, and what is due happens."""
        state = self.states[unit]
        state.watermark = max(state.watermark, watermark)
        if state.watermark < self.sim.reached[unit]:
            self.sim.problem("time", f"unit {unit} of slot {self.slot} is at {state.watermark} again")
        self.sim.reached[unit] = max(self.sim.reached[unit], state.watermark)
        for number in [number for number, due in state.timers.items() if due <= state.watermark]:
            if min(router_.offset for router_ in self.sim.routers) < state.timers.pop(number):
                self.sim.problem("early", f"timer {number} of unit {unit} fires at {state.watermark}")
            self.sim.seen["timers fired"] += 1
            self.note(~number, self.sim.events[number][1], -1, self.machine.version_of(unit))

    def lacks(self, unit: int, watermark: int, key: int | None = None) -> bool:
        """Whether the key of a timer that is due, or this one, is elsewhere; it is asked for then."""
        if unit not in self.remainders:
            return False
        due = {self.sim.events[number][1] for number, at in self.states[unit].timers.items() if at <= watermark}
        missing = self.remainders.lacks(unit, due if key is None else due | {key})
        for lacking in sorted(missing):
            self.remainders.want(unit, lacking)
        return bool(missing)

    def waits(self, event: tuple[int, int], met: int) -> bool:
        return self.lacks(event[1] % self.sim.shape.units, met, event[1])

    def timers_due(self) -> None:
        """Of units that got no record."""
        now = min(self.watermarks)
        for unit in self.machine.idle([unit for unit, state in self.states.items() if state.timers]):
            if unit not in self.stalled and not self.lacks(unit, now):
                for version in set(self.heard):
                    self.gate(version, "slots")
                self.reach(unit, now)

    # -- state that comes ---------------------------------------------------------------------------------------------

    def steps_published(self, value: tuple[int, tuple[tuple[int, Step], ...]]) -> None:
        last, steps = value
        if self.ended:
            self.sim.seen["step after the end"] += 1
        self.sim.log("slot", self.slot, "sees until", last, *((version, step.to_json()) for version, step in steps))
        unmade = {}
        for version, step in steps:
            self.modes[version] = step.mode
            moves = step.moves if version > self.machine.version else ()  # otherwise made in a batch before
            ours = {m.unit for m in moves if self.slot in (m.source, m.destination)}
            unmade[version] = self.unmade.get(version, ours)
        self.unmade = unmade
        self.carry_out(self.machine.published(last, steps))

    def state_arrived(
        self, unit: int, state: State, routers: frozenset[int] | None = None, partial: bool = False
    ) -> None:
        self.sim.log("slot", self.slot, "state of unit", unit, "for", routers, "partial" if partial else "")
        effects = self.machine.arrived(unit, routers, partial)
        self.states[unit] = state
        self.made(unit)
        self.sim.check_owner(unit, self)
        self.carry_out(effects)

    def pushed(self, send: slot.Send, state: State, source: "SlotShell", mode: Mode, answer: bool) -> None:
        if self.machine.awaits(send.unit, send.version, send.hop):
            partial = mode.transfer in ("access", "remote")
            if partial:
                self.remainders.open(send.unit)
                self.homes[send.unit] = source, mode, (send.unit, send.version)
            self.state_arrived(send.unit, state.copy(), send.routers, partial)
            if partial and mode.background:
                self.fetch_rest(send.unit)
        else:
            self.sim.seen["came twice"] += 1
        if answer:
            self.acknowledge(send.unit, source)

    def acknowledge(self, unit: int, source: "SlotShell") -> None:
        self.sim.at(
            self.sim.delay(self.sim.shape.state_ms / 4), source.when_open, self.sim.call(source.acknowledged, unit)
        )

    def acknowledged(self, unit: int) -> None:
        self.carry_out(self.machine.acknowledged(unit))

    def opened_for_good(self, unit: int, version: int, source: "SlotShell", answer: bool) -> None:
        if self.machine.is_lent(unit, version):
            self.carry_out(self.machine.opened(unit))
        if answer:
            self.acknowledge(unit, source)

    def requested(self, request: slot.Request, answer: bool) -> None:
        self.carry_out(self.machine.requested(request.unit, request.version, request.router, request.hop))

    # -- keys that are elsewhere --------------------------------------------------------------------------------------

    def ask(self) -> None:
        for unit, keys in self.remainders.requests().items():
            home, _, stay = self.homes[unit]
            self.sim.message(home.give_keys, stay, keys, self)

    def give_keys(self, stay: Stay, keys: list[int], to: "SlotShell") -> None:
        left = self.left.get(stay, {})
        self.sim.message(to.keys_arrived, stay, keys, {key: list(left[key]) for key in keys if key in left})

    def keys_arrived(self, stay: Stay, keys: list[int], found: Values) -> None:
        unit = stay[0]
        if unit not in self.remainders or self.homes[unit][2] != stay:
            return
        self.sim.seen["keys fetched"] += 1
        lacking = self.remainders.lacks(unit, keys)
        self.states[unit].values |= {key: numbers for key, numbers in found.items() if key in lacking}
        self.remainders.arrived(unit, keys)
        if self.homes[unit][1].transfer == "access":  # otherwise they go on living there
            self.sim.message(self.homes[unit][0].forget, stay, keys)

    def forget(self, stay: Stay, keys: list[int]) -> None:
        for key in keys:
            self.left.get(stay, {}).pop(key, None)

    def fetch_rest(self, unit: int) -> None:
        if self.remainders.fetch_rest(unit):
            home, _, stay = self.homes[unit]
            self.sim.message(home.give_rest, stay, self)

    def give_rest(self, stay: Stay, to: "SlotShell") -> None:
        self.sim.message(to.rest_arrived, stay, copied(self.left.get(stay, {})))

    def rest_arrived(self, stay: Stay, rest: Values) -> None:
        unit = stay[0]
        if unit in self.remainders and self.homes[unit][2] == stay:
            lacking = self.remainders.lacks(unit, rest)
            self.states[unit].values |= {key: numbers for key, numbers in rest.items() if key in lacking}
            self.remainders.arrived_whole(unit)

    def write_back(self, unit: int, key: int, numbers: list[int]) -> None:
        self.writing[unit, key] += 1
        home, _, stay = self.homes[unit]
        due = max(
            self.sim.now + self.sim.delay(self.sim.shape.state_ms), self.sim.channel_due[-1 - self.slot, home.slot]
        )
        self.sim.channel_due[-1 - self.slot, home.slot] = due
        self.sim.at_time(due, home.written, stay, key, numbers, self)

    def written(self, stay: Stay, key: int, numbers: list[int], by: "SlotShell") -> None:
        if stay in self.left:
            self.left[stay][key] = numbers
        self.sim.message(by.write_acknowledged, stay, key)

    def write_acknowledged(self, stay: Stay, key: int) -> None:
        unit = stay[0]
        self.writing[unit, key] -= 1
        if unit not in self.remainders or self.homes[unit][2] != stay or self.homes[unit][1].cache:
            return
        if not self.writing[unit, key]:
            for gone in self.remainders.evict(unit, [key]):
                self.sim.seen["copy dropped"] += 1
                del self.states[unit].values[gone]

    def drop(self, stay: Stay) -> None:
        del self.left[stay]

    # -- effects ------------------------------------------------------------------------------------------------------

    def parcel(self, unit: int, version: int) -> State:
        """What leaves of ``unit``; its keys stay here if that is how the step moves it."""
        state = self.states.pop(unit)
        if self.modes[version].transfer in ("access", "remote"):
            self.sim.seen["left behind"] += 1
            self.left[unit, version] = state.values
            return State({}, state.timers, state.watermark)
        return state

    def carry_out(self, effects: Iterable[slot.Effect]) -> None:
        sim = self.sim
        for effect in effects:
            sim.log("slot", self.slot, effect)
            match effect:
                case slot.Prepared(version):
                    sim.acknowledge("prepared", version, self.slot)
                case slot.Send(unit, destination, version, routers):
                    state = self.sending[unit] = self.parcel(unit, version)
                    sim.deliver(sim.slots[destination].pushed, effect, state, self, self.modes[version])
                    sim.seen["empty unit sent"] += not state.values
                    sim.seen["timers sent"] += len(state.timers)
                    sim.seen["lent"] += bool(routers)
                    sim.seen["fetched back"] += routers == frozenset()
                case slot.Open(unit, destination, version):
                    sim.seen["opened"] += 1
                    self.sending[unit] = State()
                    sim.deliver(sim.slots[destination].opened_for_good, unit, version, self)
                case slot.Request():
                    sim.seen["requested"] += 1
                    sim.deliver(sim.slots[effect.slot].requested, effect)
                case slot.Forget(unit):
                    del self.sending[unit]
                    self.made(unit)
                case slot.Complete(unit):
                    self.fetch_rest(unit)
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
                case slot.Freeze(_):
                    frozen = {unit: state.copy() for unit, state in self.states.items()}
                    sim.acknowledge_savepoint(sim.shape.state_ms, f"slot-{self.slot}", frozen)
