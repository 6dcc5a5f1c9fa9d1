"""The protocol machines in one event loop with one seed and virtual time: ``simulate(seed)`` replays a run exactly.

Channels router -> slot are FIFO, everything else overtakes: watches (a watcher may miss intermediate values, as in
ZooKeeper), acknowledgements, state from slot to slot. ``SlotShell`` and ``RouterShell`` do what ``executor.slot_task``
and ``executor.tasks`` do, without threads: every callback is one turn under the slot's lock.
"""

import heapq
import random
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from keyshift.errors import ProtocolViolation
from keyshift.keys import Assignment, SlotId, Step
from keyshift.planner import make_plan, strategies
from keyshift.planner.targets import scale, shuffle
from keyshift.protocol import CoordinatorMachine, RouterMachine, SlotMachine, coordinator, slot
from keyshift.protocol.router import Barrier

LIVE = [name for name, strategy in strategies.items() if not strategy.restarts]
STUCK_MS = 12_000.0  # virtual; the slowest step, over many short batches, takes a few thousand
DEADLINE_MS = 1e6  # of the coordinator; the simulation moves its clock past it when a step is to be rolled back
VERDICT = ("lost", "duplicated", "reordered", "wrong")  # what a run with the real services would report

Events = list[tuple[int, int]]  # (number, key)
State = dict[int, list[int]]  # key -> numbers of its events, in the order they were processed


@dataclass(frozen=True)
class Shape:
    """What the seed decides before the run begins. Times are virtual milliseconds."""

    routers: int
    slots: int
    begin_slots: int
    units: int
    keys: int
    idle: tuple[bool, ...]  # routers that only tick
    frame_ms: float
    channel_ms: tuple[float, ...]  # one per router: some are slow
    watch_ms: float
    ack_ms: float
    state_ms: float
    open_ms: float
    drain: int  # records per slice
    batch_ms: float | None  # None: the run is one batch
    moves_process: float  # probability that a slot finds itself in another process after a batch
    rolls_back: float  # probability that a step passes its deadline while it is prepared
    script: tuple[str, ...]

    @classmethod
    def draw(cls, rng: random.Random) -> "Shape":
        slots = rng.choice((1, 2, 2, 3, 3, 4))
        units = rng.randint(max(2, slots), 10)
        routers = rng.randint(1, 3)
        script = [rng.choice(("scale", "scale", "one", "shuffle", "random", "back")) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.35:
            script.insert(rng.randint(0, len(script)), "savepoint")
        frame = rng.choice((2.0, 5.0, 10.0))
        return cls(
            routers=routers,
            slots=slots,
            begin_slots=rng.randint(1, slots),
            units=units,
            keys=rng.randint(1, 2 * units),
            idle=tuple(rng.random() < 0.15 for _ in range(routers)),
            frame_ms=frame,
            channel_ms=tuple(rng.choice((0.0, 1.0, 5.0, 40.0)) for _ in range(routers)),
            watch_ms=rng.choice((0.5, 5.0, 30.0)),
            ack_ms=rng.choice((0.5, 5.0, 20.0)),
            state_ms=rng.choice((0.5, 10.0, 60.0)),
            open_ms=rng.choice((0.5, 20.0)),
            drain=rng.choice((1, 1, 2, 5)),
            batch_ms=frame * rng.choice((1.5, 4, 12)) if rng.random() < 0.6 else None,
            moves_process=rng.choice((0.0, 0.5, 1.0)),
            rolls_back=rng.choice((0.0, 0.0, 0.4)),
            script=tuple(script),
        )


@dataclass
class Outcome:
    """``problems``: check -> what it saw first. ``story``: the last events before the end."""

    seed: int
    shape: Shape
    problems: dict[str, str] = field(default_factory=dict)
    story: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=50))
    seen: Counter[str] = field(default_factory=Counter)  # how often what the tests want to have covered happened

    def __str__(self) -> str:
        story = "\n".join(f"  {at:9.2f} {' '.join(map(str, what))}" for at, *what in self.story)
        problems = "\n".join(f"  {check}: {what}" for check, what in self.problems.items())
        return f"replay: simulate({self.seed})\n{self.shape}\nlast events (virtual ms):\n{story}\nproblems:\n{problems}"


class RouterShell:
    """One router; ``offset`` is the next frame it reads, and outlives batches."""

    def __init__(self, sim: "Simulation", number: int, offset: int) -> None:
        self.sim, self.number, self.offset = sim, number, offset
        self.stopped = False
        self.batch = 0

    def open(self) -> None:
        self.batch += 1
        batch = self.batch
        self.machine = self.sim.router_machine(self.sim.published["assignment"][-1])
        self.sim.watch("assignment", lambda value: self.machine.announce(value), lambda: batch == self.batch)
        self.sim.watch("savepoint", lambda value: self.machine.request_savepoint(value), lambda: batch == self.batch)
        self.sim.at(self.sim.rng.random() * self.sim.shape.frame_ms, self.frame)

    def frame(self) -> None:
        sim, machine = self.sim, self.machine
        if sim.ending:
            self.stopped = True
            sim.log("router", self.number, "ends its batch at", self.offset)
            for shell in sim.slots:
                sim.maybe_end(shell)
            return
        rows: list[tuple[Any, ...]] = []
        for barrier in machine.boundary():
            if isinstance(barrier, Barrier):
                rows.append(("barrier", self.number, barrier.version))
            else:
                rows.append(("savepoint", self.number, barrier.savepoint))
                sim.acknowledge_savepoint(sim.shape.ack_ms, f"router-{self.number}", self.offset)
            sim.log("router", self.number, "before frame", self.offset, barrier)
        parts: dict[int, Events] = defaultdict(list)
        if machine.stopped_for is None:
            for number, key in sim.read(self.number, self.offset):
                parts[machine.assignment.owner[key % sim.shape.units]].append((number, key))
        self.offset += 1
        for shell in sim.slots:
            data = ("data", self.number, machine.assignment.version, parts.get(shell.slot, []))
            sim.send(self.number, shell, [*rows, data])
        sim.at(sim.shape.frame_ms * (0.5 + sim.rng.random()), self.frame)


class SlotShell:
    """One slot; its state outlives the machine, which is new in each batch."""

    def __init__(self, sim: "Simulation", number: int) -> None:
        self.sim, self.slot = sim, number
        self.states: dict[int, State] = {}
        self.sending: dict[int, State] = {}
        self.backlog: deque[Any] = deque()  # rows and state that came before the slot was open
        self.flying = 0  # rows on their way
        self.batch = 0
        self.version = 0  # handed over from batch to batch
        self.opened = self.ended = False
        self.machine: SlotMachine[Any] = sim.slot_machine(number, sim.shape.routers)

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
        sim.log("slot", self.slot, "opens with", sorted(self.states), "expects", expected, "at", self.version)
        for unit in self.states:
            sim.check_owner(unit, self)
        if source:
            sim.at(sim.delay(sim.shape.state_ms), self.pull, dict(source))
        batch = self.batch
        sim.watch("step", self.step_published, lambda: batch == self.batch)
        backlog, self.backlog = self.backlog, deque()
        for call in backlog:
            call()
        sim.maybe_end(self)

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
        if self.opened:
            call()
        else:
            self.backlog.append(call)

    def on_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self.flying -= 1
        self.drain()
        for kind, router, value, *rest in rows:
            if kind == "barrier":
                self.sim.log("slot", self.slot, "barrier", value, "of router", router)
                self.carry_out(self.machine.barrier(router, value))
            elif kind == "savepoint":
                self.carry_out(self.machine.savepoint_barrier(router, value))
            elif rest[0] and not self.machine.stopped(router):
                self.admit(rest[0], router, value)
        self.sim.maybe_end(self)

    def admit(self, events: Events, router: int, version: int) -> None:
        units = self.sim.shape.units
        self.sim.log("slot", self.slot, "gets", events, "of router", router, "under", version)
        held = self.machine.admit(router, version, {key % units for _, key in events})
        for unit in held:
            self.sim.seen["held"] += 1
            self.machine.hold(unit, ([event for event in events if event[1] % units == unit], router, version))
        self.process([event for event in events if event[1] % units not in held], router, version)

    def process(self, events: Events, router: int, version: int) -> None:
        for number, key in events:
            unit = key % self.sim.shape.units
            if unit not in self.states:
                self.sim.problem("ownerless", f"slot {self.slot} processes event {number} without state of unit {unit}")
            numbers = self.states.setdefault(unit, {}).setdefault(key, [])
            numbers.append(number)
            self.sim.results.append((number, key, router, self.sim.attempt, version, self.slot, len(numbers)))

    def drain(self) -> None:
        records, effects = self.machine.drain(self.sim.shape.drain)
        for record in records:
            self.sim.log("slot", self.slot, "drains", record)
            self.process(*record)
        self.carry_out(effects)

    def step_published(self, value: tuple[int, Step | None]) -> None:
        version, step = value
        if self.ended:
            self.sim.seen["step after the end"] += 1
        self.sim.log("slot", self.slot, "sees step", version, "cancelled" if step is None else step.to_json())
        self.carry_out(self.machine.cancel(version) if step is None else self.machine.prepare(version, step))

    def state_arrived(self, unit: int, state: State) -> None:
        self.sim.log("slot", self.slot, "state of unit", unit)
        effects = self.machine.arrived(unit)
        self.states[unit] = state
        self.sim.check_owner(unit, self)
        self.carry_out(effects)

    def pushed(self, unit: int, state: State, source: "SlotShell") -> None:
        self.state_arrived(unit, state)
        self.acknowledge(unit, source)

    def acknowledge(self, unit: int, source: "SlotShell") -> None:
        self.sim.at(self.sim.delay(self.sim.shape.state_ms / 4), source.acknowledged, unit)

    def acknowledged(self, unit: int) -> None:
        self.carry_out(self.machine.acknowledged(unit))

    # -- effects ------------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[slot.Effect]) -> None:
        sim = self.sim
        for effect in effects:
            sim.log("slot", self.slot, effect)
            match effect:
                case slot.Prepared(version):
                    sim.at(sim.delay(sim.shape.ack_ms), sim.coordinator_ack, "prepared", version, self.slot)
                case slot.Send(unit, destination, _):
                    state = self.sending[unit] = self.states.pop(unit)
                    copy = {key: list(numbers) for key, numbers in state.items()}
                    to = sim.slots[destination]
                    push = sim.call(to.pushed, unit, copy, self)
                    sim.at(sim.delay(sim.shape.state_ms), to.when_open, push)
                    sim.seen["empty unit sent"] += not state
                case slot.Forget(unit):
                    del self.sending[unit]
                case slot.Installed(version, _):
                    sim.at(sim.delay(sim.shape.ack_ms), sim.coordinator_ack, "installed", version, self.slot)
                case slot.Released(version, _):
                    sim.at(sim.delay(sim.shape.ack_ms), sim.coordinator_ack, "released", version, self.slot)
                case slot.Freeze(_):
                    frozen = {unit: {key: list(n) for key, n in state.items()} for unit, state in self.states.items()}
                    sim.acknowledge_savepoint(sim.shape.state_ms, f"slot-{self.slot}", frozen)


class Simulation:
    """The event loop, ZooKeeper, the coordinator's shell, the job that runs the script, and the checks."""

    def __init__(
        self,
        seed: int,
        slot_machine: type[SlotMachine[Any]] = SlotMachine,
        router_machine: type[RouterMachine] = RouterMachine,
        coordinator_machine: type[CoordinatorMachine] = CoordinatorMachine,
        slot_shell: type[SlotShell] = SlotShell,
    ) -> None:
        self.rng = random.Random(seed)
        self.shape = Shape.draw(self.rng)
        self.outcome = Outcome(seed, self.shape)
        self.seen = self.outcome.seen
        self.slot_machine, self.router_machine = slot_machine, router_machine
        self.coordinator_machine, self.slot_shell = coordinator_machine, slot_shell
        self.now = 0.0
        self.turns: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.frames: list[list[Events]] = [[] for _ in range(self.shape.routers)]
        self.events: list[tuple[int, int]] = []  # number -> (router, key)
        self.results: list[tuple[int, ...]] = []  # number, key, router, attempt, version, slot, count
        self.assignments: dict[tuple[int, int], Assignment] = {}  # (attempt, version)
        self.script = deque(self.shape.script)
        self.progressed = 0
        self.attempt = -1
        self.finished = False
        assignment = Assignment.contiguous(self.shape.units, self.shape.begin_slots)
        self.before = assignment
        self.start(assignment, self.shape.slots, [0] * self.shape.routers, None)
        self.at(self.delay(20), self.next_operation)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            while self.turns and not self.finished:
                self.now, _, call, arguments = heapq.heappop(self.turns)
                call(*arguments)
            if not self.finished:
                self.problem("stuck", "nothing happens any more, and the script is not done")
            if "stuck" not in self.outcome.problems:
                self.check_end()
        except ProtocolViolation as error:
            self.problem("violation", str(error))
        except Exception:  # what a broken machine does to its shell
            self.problem("crash", traceback.format_exc(limit=-3))
        return self.outcome

    def at(self, after_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at_time(self.now + after_ms, call, *arguments)

    def at_time(self, due_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.count += 1  # turns that are due together keep their order
        heapq.heappush(self.turns, (due_ms, self.count, call, arguments))

    @staticmethod
    def call(call: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        return lambda: call(*arguments)

    def delay(self, usual_ms: float) -> float:
        """Mostly below ``usual_ms``, sometimes far above: what is in order by luck alone does not stay so."""
        draw = self.rng.random()
        return usual_ms * draw * (6 if draw > 0.95 else 1)

    def log(self, *what: Any) -> None:
        self.outcome.story.append((self.now, *what))

    def problem(self, check: str, what: str) -> None:
        self.outcome.problems.setdefault(check, what)

    # -- the data path ------------------------------------------------------------------------------------------------

    def read(self, router: int, offset: int) -> Events:
        """A frame of the source; it is made when it is first read."""
        frames = self.frames[router]
        if offset == len(frames):
            many = 0 if self.shape.idle[router] or self.rng.random() < 0.3 else self.rng.randint(1, 3)
            frame = []
            for _ in range(many):
                key = self.rng.randrange(self.shape.keys)
                frame.append((len(self.events), key))
                self.events.append((router, key))
            frames.append(frame)
        return frames[offset]

    def send(self, router: int, to: SlotShell, rows: list[tuple[Any, ...]]) -> None:
        packets = [[row] for row in rows] if len(rows) > 1 and self.rng.random() < 0.5 else [rows]
        for packet in packets:
            due = max(self.now + self.delay(self.shape.channel_ms[router]), self.channel_due[router, to.slot])
            self.channel_due[router, to.slot] = due
            to.flying += 1
            self.at_time(due, to.when_open, self.call(to.on_rows, packet))

    # -- batches ------------------------------------------------------------------------------------------------------

    def start(self, assignment: Assignment, slots: int, offsets: list[int], restored: dict[int, State] | None) -> None:
        """A new query, from nothing or from a savepoint."""
        self.attempt += 1
        self.turns.clear()  # what the query before left under way goes with it
        self.published: dict[str, list[Any]] = {"assignment": [assignment], "step": [], "savepoint": []}
        self.watchers: dict[str, list[Any]] = {path: [] for path in self.published}
        self.savepoint_parts: dict[str, Any] | None = None
        self.coordinator = self.coordinator_machine(assignment, DEADLINE_MS)
        self.migrating = False
        self.assignments[self.attempt, assignment.version] = assignment
        self.channel_due: dict[tuple[int, int], float] = defaultdict(float)
        self.routers = [RouterShell(self, number, offset) for number, offset in enumerate(offsets)]
        self.slots = [self.slot_shell(self, number) for number in range(slots)]
        sources: list[dict[int, State] | None] = [None] * slots
        for shell in self.slots:
            shell.version = assignment.version
            units = assignment.units_of(shell.slot)
            if restored is None:
                shell.states = {unit: {} for unit in units}
            else:
                sources[shell.slot] = {unit: restored[unit] for unit in units}
        self.next_batch(sources)

    def next_batch(self, sources: list[dict[int, State] | None]) -> None:
        self.ending = False
        self.seen["batches"] += 1
        for shell, source in zip(self.slots, sources, strict=True):
            shell.ended = False
            self.at(self.delay(self.shape.open_ms), shell.open, source)
        for router in self.routers:
            router.stopped = False
            self.at(self.delay(self.shape.open_ms), router.open)
        if self.shape.batch_ms is not None:
            self.at(self.shape.open_ms + self.shape.batch_ms * (0.5 + self.rng.random()), self.end_batch)

    def end_batch(self) -> None:
        self.ending = True

    def maybe_end(self, shell: SlotShell) -> None:
        """The slot's input ends when every router has stopped and every channel is empty."""
        over = self.ending and not shell.flying and shell.opened and not shell.ended
        if over and all(router.stopped for router in self.routers):
            shell.ended = True
            self.at(self.rng.random(), shell.end)

    def maybe_next_batch(self) -> None:
        if all(shell.ended and not shell.opened for shell in self.slots):
            if self.script or self.migrating or self.savepoint_parts is not None:
                for router in self.routers:
                    router.batch += 1
                self.next_batch([None] * len(self.slots))
            else:
                self.finished = True

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------

    def publish(self, path: str, value: Any) -> None:
        self.published[path].append(value)
        for watcher in self.watchers[path]:
            self.at(self.delay(self.shape.watch_ms), self.notify, path, watcher, len(self.published[path]))
        self.log("published", path, value)

    def watch(self, path: str, call: Callable[[Any], None], alive: Callable[[], bool]) -> None:
        """``call`` with the value now, and with later ones: in order, perhaps late, perhaps not with all of them."""
        watcher = [len(self.published[path]), call, alive]
        self.watchers[path] = [other for other in self.watchers[path] if other[2]()] + [watcher]
        if self.published[path]:
            call(self.published[path][-1])

    def notify(self, path: str, watcher: list[Any], published: int) -> None:
        seen, call, alive = watcher
        newest = self.rng.choice((published, len(self.published[path])))
        if alive() and newest > seen:
            self.seen["watch missed a value"] += newest > seen + 1
            watcher[0] = newest
            call(self.published[path][newest - 1])

    # -- the job and the coordinator's shell --------------------------------------------------------------------------

    def next_operation(self) -> None:
        self.progress()
        if not self.script:
            self.end_batch()
            return
        operation = self.script.popleft()
        self.log("job", operation)
        if operation == "savepoint":
            self.savepoint_parts = {}
            self.savepoint_missing = {f"router-{r.number}" for r in self.routers} | {
                f"slot-{s.slot}" for s in self.slots
            }
            self.publish("savepoint", f"savepoint-{self.attempt}")
            return
        here = self.coordinator.assignment
        target = self.target(operation, here)
        self.before = here
        strategy = strategies.get(self.rng.choice(LIVE))
        self.migrating = True
        self.act(self.coordinator.start(make_plan(strategy, here, target).steps, self.now))

    def progress(self) -> None:
        self.progressed += 1
        self.at(STUCK_MS, self.give_up, self.progressed)

    def give_up(self, progressed: int) -> None:
        if progressed == self.progressed and not self.finished:
            self.problem("stuck", f"no step, savepoint or end for {STUCK_MS} virtual ms")
            self.finished = True

    def target(self, operation: str, here: Assignment) -> Assignment:
        slots = len(self.slots)
        match operation:
            case "scale":
                return scale(here, self.rng.randint(1, slots))
            case "one":
                return scale(here, 1)
            case "back":
                owner = tuple(min(slot, slots - 1) for slot in self.before.owner)
                return Assignment(here.version, tuple(SlotId(slot) for slot in owner))
            case "shuffle" if len(set(here.owner)) > 1:
                return shuffle(here, self.rng.randint(1, len(here.owner)))
        return Assignment(here.version, tuple(SlotId(self.rng.randrange(slots)) for _ in here.owner))

    def coordinator_ack(self, phase: coordinator.Phase, version: int, slot: int) -> None:
        self.log("coordinator hears", phase, version, "from slot", slot)
        self.act(self.coordinator.acknowledged(phase, version, slot, self.now))

    def act(self, effects: Iterable[coordinator.Effect]) -> None:
        for effect in effects:
            self.progress()
            match effect:
                case coordinator.PublishStep(version, step):
                    self.preparing = version
                    self.publish("step", (version, step))
                    if self.rng.random() < self.shape.rolls_back:
                        late = self.delay(2 * (self.shape.watch_ms + self.shape.ack_ms))
                        self.at(late, self.pass_deadline, version)
                case coordinator.PublishAssignment(assignment):
                    self.preparing = 0
                    self.seen["switches"] += 1
                    self.assignments[self.attempt, assignment.version] = assignment
                    self.publish("assignment", assignment)
                case coordinator.CancelStep(version):
                    self.publish("step", (version, None))
                case coordinator.MigrationDone() | coordinator.MigrationFailed():
                    self.log("coordinator", effect)
                    if isinstance(effect, coordinator.MigrationFailed):
                        assert effect.rolled_back
                        self.seen["rolled back"] += 1
                        self.script.appendleft(self.rng.choice(("random", "back", "savepoint")))
                    self.migrating = False
                    self.at(self.delay(10), self.next_operation)

    def pass_deadline(self, version: int) -> None:
        if self.preparing == version:
            self.act(self.coordinator.tick(self.now + 2 * DEADLINE_MS))

    def acknowledge_savepoint(self, usual_ms: float, who: str, part: Any) -> None:
        """The first part of each counts, also if the next batch says it again."""
        assert self.savepoint_parts is not None
        if who not in self.savepoint_parts:
            self.savepoint_parts[who] = part
            self.at(self.delay(usual_ms), self.savepoint_ack, who)

    def savepoint_ack(self, who: str) -> None:
        parts, self.savepoint_missing = self.savepoint_parts, self.savepoint_missing - {who}
        if self.savepoint_missing or parts is None:
            return
        self.log("job restarts from", sorted(parts))
        self.seen["savepoints"] += 1
        restored: dict[int, State] = {unit: {} for unit in range(self.shape.units)}
        saved: list[int] = []
        for shell in self.slots:
            saved += parts[f"slot-{shell.slot}"]
            restored |= parts[f"slot-{shell.slot}"]
        if sorted(saved) != list(range(self.shape.units)):
            self.problem("savepoint", f"holds units {sorted(saved)} of {self.shape.units}")
        offsets = [parts[f"router-{router.number}"] for router in self.routers]
        self.forget_results_after(offsets)
        slots = self.rng.randint(1, min(4, self.shape.units))
        self.start(scale(self.coordinator.assignment, slots), slots, offsets, restored)
        self.at(self.delay(20), self.next_operation)

    # -- the checks ---------------------------------------------------------------------------------------------------

    def forget_results_after(self, offsets: list[int]) -> None:
        """Nothing may have been processed that was read after the savepoint: the next query reads it again."""
        done = {result[0] for result in self.results}
        for frames, offset in zip(self.frames, offsets, strict=True):
            for number in (number for frame in frames[offset:] for number, _ in frame):
                if number in done:
                    self.problem("duplicated", f"event {number} of after the savepoint was processed before it")

    def check_owner(self, unit: int, here: SlotShell) -> None:
        if others := [o.slot for o in self.slots if o is not here and o.opened and unit in o.machine.serving]:
            self.problem("owners", f"unit {unit} is served by slot {here.slot} and by {others}")

    def check_end(self) -> None:
        times = Counter(result[0] for result in self.results)
        read = {number for frames, router in zip(self.frames, self.routers, strict=True)
                for frame in frames[: router.offset] for number, _ in frame}  # fmt: skip
        if lost := sorted(read - times.keys()):
            self.problem("lost", f"events {lost[:5]}")
        if twice := [number for number, count in times.items() if count > 1 or number not in read]:
            self.problem("duplicated", f"events {twice[:5]}")
        last: dict[tuple[int, int], int] = {}
        oracle: dict[int, list[int]] = defaultdict(list)
        for number, key, router, attempt, version, at, count in self.results:
            owner = self.assignments[attempt, version].owner[key % self.shape.units]
            if at != owner:
                self.problem("stray", f"event {number}, routed under {version} to {owner}, was processed by {at}")
            if last.get((router, key), -1) > number:
                self.problem("reordered", f"router {router}, key {key}: {last[router, key]} before {number}")
            last[router, key] = number
            oracle[key].append(number)
            if count != len(oracle[key]):
                self.problem("wrong", f"event {number} of key {key} counts {count}, not {len(oracle[key])}")
        state = {key: numbers for s in self.slots for part in s.states.values() for key, numbers in part.items()}
        if state != oracle:
            self.problem("state", f"{state} instead of {dict(oracle)}")
        assignment = self.coordinator.assignment
        for shell in self.slots:
            units = set(assignment.units_of(shell.slot))
            if shell.states.keys() != units or shell.machine.serving != units:
                held = f"holds {sorted(shell.states)}, serves {sorted(shell.machine.serving)}"
                self.problem("leftover", f"slot {shell.slot} {held}, owns {sorted(units)}")
            if shell.sending or shell.backlog:
                self.problem("leftover", f"slot {shell.slot} still sends {sorted(shell.sending)}")
            if not shell.machine.settled:
                self.problem("unsettled", f"slot {shell.slot}")
        if self.coordinator.busy:
            self.problem("unacknowledged", "the coordinator waits")


def simulate(seed: int, **machines: Any) -> Outcome:
    """One run. Other machines than the real ones (see ``Simulation``) are there to be caught."""
    return Simulation(seed, **machines).run()
