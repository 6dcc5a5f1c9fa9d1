"""Protocol and runtime in one event loop with one seed and virtual time: ``simulate(seed)`` replays a run exactly.

Channels router -> slot are FIFO and have an end: a slot that takes nothing stops the routers, and they all others.
Everything else overtakes: watches (a watcher may miss intermediate values, as in ZooKeeper), acknowledgements, state
from slot to slot. What is sent beside the data path may come twice, also steps later. The shells of routers and slots
are in ``shells``.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from counting import Events, State
from shells import RouterShell, SlotShell
from virtual_time import Outcome, VirtualTime

from keyshift.model.keys import Assignment, Mode, SlotId, Step
from keyshift.planner import Strategy, make_plan, strategies
from keyshift.planner.targets import scale, shuffle
from keyshift.protocol import CoordinatorMachine, SlotMachine, coordinator
from keyshift.protocol.router import NOBODY
from keyshift.runtime.row import Row

LIVE = [name for name, strategy in strategies.items() if not strategy.restarts]
# Every way to carry a step out; the runs draw one for each step, whatever the strategy's own is.
MODES = [
    Mode(),
    Mode(),
    Mode(gate="slots"),
    Mode(gate="router"),
    *(Mode(transfer="fetch", fetch_back=times) for times in (0, 1, 3)),
    *(Mode(transfer="access", background=background) for background in (False, True)),
    *(Mode(transfer="remote", background=b, cache=c) for b in (False, True) for c in (False, True)),
]
STUCK_MS = 25_000.0  # virtual; where each record fetches its key anew, what waited at the end took 14 000
STUCK_CALL_MS = (20.0, 100.0, 1000.0)  # virtual: within a step, and up to a few of them
PLAN_MS = 20.0  # until a plan is made, mostly less
DEADLINE_MS = 1e6  # of the coordinator; the simulation moves its clock past it when a step is to miss it
LEADERS = 10  # that die: each begins the deadline anew, and a step that never ends would never be late
VERDICT = ("lost", "duplicated", "reordered", "wrong")  # what a run with the real services would report


class Shape(SimpleNamespace):
    """What the seed decides before the run begins. Times are virtual milliseconds."""

    @classmethod
    def draw(cls, rng: random.Random, **given: Any) -> "Shape":
        """``given``: what the seed does not decide."""
        slots = rng.choice((1, 2, 2, 3, 3, 4))
        units = rng.randint(max(2, slots), 10)
        routers = rng.randint(1, 3)
        script = [rng.choice(("scale", "scale", "one", "shuffle", "random", "back")) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.35:
            script.insert(rng.randint(0, len(script)), "savepoint")
        frame = rng.choice((2.0, 5.0, 10.0))
        drawn = cls(
            routers=routers,
            slots=slots,
            begin_slots=rng.randint(1, slots),
            units=units,
            keys=rng.randint(1, 2 * units),
            idle=tuple(rng.random() < 0.15 for _ in range(routers)),  # routers that only tick
            frame_ms=frame,
            # One per router: some are slow.
            channel_ms=tuple(rng.choice((0.0, 1.0, 5.0, 40.0)) for _ in range(routers)),
            watch_ms=rng.choice((0.5, 5.0, 30.0)),
            ack_ms=rng.choice((0.5, 5.0, 20.0)),
            state_ms=rng.choice((0.5, 10.0, 60.0)),
            open_ms=rng.choice((0.5, 20.0)),
            drain=rng.choice((1, 1, 2, 5)),  # records per slice
            batch_ms=frame * rng.choice((1.5, 4, 12)) if rng.random() < 0.6 else None,  # None: the run is one batch
            # Probability that a slot finds itself in another process after a batch.
            moves_process=rng.choice((0.0, 0.5, 1.0)),
            rolls_back=rng.choice((0.0, 0.0, 0.6)),  # probability that a step passes its deadline while it is prepared
            late=rng.choice((0.0, 0.0, 0.4)),  # probability that it does after its switch, and goes forward
            # Probability that another request, or the cancelling of all, comes during a migration.
            overlaps=rng.choice((0.0, 0.0, 0.3)),
            # Probability that the coordinator dies at something that it hears or decides.
            leader_dies=rng.choice((0.0, 0.0, 0.1)),
            # Probability that what is sent to a slot comes twice, or only the second time.
            repeats=rng.choice((0.0, 0.0, 0.3)),
            # Probability that the whole query dies within a migration, and begins again from the last savepoint.
            dies=rng.choice((0.0, 0.0, 0.3)),
            queue_bytes=rng.choice((2, 5, 1000)),
            room=rng.choice((1, 3, 100)),  # packets in a channel
            timers=rng.random() < 0.7,  # whether there are any, so that records of a unit may not overtake each other
            script=tuple(script),
            snapshot_ms=rng.choice((None, None, 30.0, 200.0)),  # from one snapshot to the next, about
        )
        assert given.keys() <= vars(drawn).keys()
        vars(drawn).update(given)
        return drawn


SIMPLE = ["all_at_once", "fluid", "fluid_per_source"]  # batches; the mode is drawn


def plan_of(strategy: Strategy, here: Assignment, target: Assignment, rng: random.Random) -> tuple[Step, ...]:
    """Units are abstract here: what a strategy does with bins and copies is not seen."""
    heat = [rng.random() for _ in here.owner]
    return make_plan(strategy, here, target, heat, seed=rng.randrange(1000)).steps


class Simulation(VirtualTime):
    """The event loop, ZooKeeper, the coordinator's shell, the job that runs the script, and the checks."""

    def __init__(
        self,
        seed: int,
        slot_machine: type[SlotMachine[Any]] = SlotMachine,
        strategy: str | None = None,
        modes: Sequence[Mode] = MODES,
        deadline_ms: float | None = None,
        shape: dict[str, Any] | None = None,
    ) -> None:
        """``strategy``: of all migrations, in its own mode. Without, each step has one of ``modes``.

        ``deadline_ms``: a true one, for machines that do not get on; None: steps miss theirs by chance. ``shape``: what
        the seed does not decide.
        """
        rng = random.Random(seed)
        self.shape = Shape.draw(rng, **shape or {})
        replay = f"simulate({seed}, strategy={strategy!r})" if strategy else f"simulate({seed})"
        super().__init__(rng, Outcome(seed, replay, self.shape))
        self.slot_machine, self.strategy, self.modes, self.deadline_ms = slot_machine, strategy, modes, deadline_ms
        self.frames: list[list[Events]] = [[] for _ in range(self.shape.routers)]
        self.events: list[tuple[int, int, int]] = []  # number -> (router, key, frame)
        # Number (~number for its timer), key, router (-1), attempt, version, slot, count
        self.results: list[tuple[int, ...]] = []
        self.assignments: dict[tuple[int, int], Assignment] = {}  # (attempt, version)
        self.script = deque(self.shape.script)
        self.progressed = self.migrations = 0
        self.attempt = -1
        self.finished = False
        assignment = Assignment.contiguous(self.shape.units, self.shape.begin_slots)
        self.saved = assignment, [0] * self.shape.routers, {unit: State() for unit in range(self.shape.units)}
        self.before = assignment
        self.start(assignment, self.shape.slots, [0] * self.shape.routers, None)
        self.at(self.delay(20), self.next_operation)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self.told(self._play)
        return self.outcome

    def _play(self) -> None:
        self.pass_until(lambda: self.finished)
        if not self.finished:
            self.problem("stuck", "nothing happens any more, and the script is not done")
        if "stuck" not in self.outcome.problems:
            self.check_end()

    @staticmethod
    def call(call: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        return lambda: call(*arguments)

    def message(self, call: Callable[..., None], *arguments: Any) -> None:
        """From slot to slot, beside the data path."""
        self.at(self.delay(self.shape.state_ms), call, *arguments)

    def deliver(self, call: Any, *arguments: Any) -> None:
        """The same, to a slot that may have to open first. What is taken for lost comes again, before or after; whoever
        was stuck with it goes on when nobody thinks of it any more.
        """
        self.message(call.__self__.when_open, self.call(call, *arguments, True))
        if self.rng.random() < self.shape.repeats:
            self.message(call.__self__.when_open, self.call(call, *arguments, False))
            stuck_ms = self.rng.random() * self.rng.choice(STUCK_CALL_MS)
            self.at(stuck_ms, call.__self__.when_open, self.call(call, *arguments, False))

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
                self.events.append((router, key, offset))
            frames.append(frame)
        return frames[offset]

    def send(self, router: int, to: SlotShell, rows: list[Row]) -> None:
        packets = [[row] for row in rows] if len(rows) > 1 and self.rng.random() < 0.5 else [rows]
        for packet in packets:
            due = max(self.now + self.delay(self.shape.channel_ms[router]), self.channel_due[router, to.slot])
            self.channel_due[router, to.slot] = due
            to.flying += 1
            self.in_channel[router, to.slot] += 1
            self.at_time(due, to.when_open, self.call(to.came, packet))

    # -- batches ------------------------------------------------------------------------------------------------------

    def start(self, assignment: Assignment, slots: int, offsets: list[int], restored: dict[int, State] | None) -> None:
        """A new query, from nothing or from a savepoint."""
        self.attempt += 1
        self.calls.clear()  # what the query before left under way goes with it
        self.published: dict[str, list[Any]] = {"assignment": [(assignment, NOBODY, "")], "step": [], "savepoint": []}
        self.rest: tuple[Step, ...] = ()
        self.acknowledged: dict[int, list[tuple[coordinator.StepPhase, int]]] = defaultdict(list)
        self.watchers: dict[str, list[Any]] = {path: [] for path in self.published}
        self.savepoint_parts: dict[str, Any] | None = None
        self.snapshot_parts: dict[str, dict[str, Any]] = {}  # by name
        self.snapshot_versions: dict[str, int] = {}
        self.snapshot: tuple[int, list[int], dict[int, State]] | None = None  # the newest: version, offsets, state
        self.coordinator = self.new_coordinator(assignment, slots)
        if self.shape.snapshot_ms is not None:
            self.at(self.delay(self.shape.snapshot_ms), self.take_snapshot)
        if self.deadline_ms:
            self.at(self.deadline_ms / 4, self.pass_time, self.deadline_ms / 4)
        self.migrating = self.finishing = False
        self.preparing = self.switched = self.moving = 0  # versions; the last one until its step is complete
        self.let_go: set[int] = set()  # versions whose step was late: routers keep nothing back for them
        self.reached: Counter[int] = Counter()  # unit -> event time, wherever it is
        self.assignments[self.attempt, assignment.version] = assignment
        self.newest = assignment.version
        self.channel_due: dict[tuple[int, int], float] = defaultdict(float)
        self.in_channel: Counter[tuple[int, int]] = Counter()
        self.aim: tuple[int, ...] | None = None  # owners, when the migration is over
        self.slots = [SlotShell(self, number) for number in range(slots)]
        self.routers = [RouterShell(self, number, offset) for number, offset in enumerate(offsets)]
        sources: list[dict[int, State] | None] = [None] * slots
        for shell in self.slots:
            shell.version = assignment.version
            units = assignment.units_of(shell.slot)
            if restored is None:
                shell.states = {unit: State() for unit in units}
            else:
                sources[shell.slot] = {unit: restored[unit] for unit in units}
        self.next_batch(sources)

    def new_coordinator(self, assignment: Assignment, slots: int) -> CoordinatorMachine:
        return CoordinatorMachine(assignment, self.deadline_ms or DEADLINE_MS, slots)

    def next_batch(self, sources: list[dict[int, State] | None]) -> None:
        self.ending = False
        self.seen["batches"] += 1
        for shell, source in zip(self.slots, sources, strict=True):
            shell.ended = False
            self.at(self.delay(self.shape.open_ms), shell.open, source)
        for shell_ in self.routers:
            shell_.stopped = False
            self.at(self.delay(self.shape.open_ms), shell_.open)
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
            if self.script or self.migrating or self.savepoint_parts is not None or self.behind:
                for router in self.routers:
                    router.batch += 1
                self.next_batch([None] * len(self.slots))
                if self.finishing:  # a snapshot was published meanwhile
                    self.finish()
            elif any(courier.away for shell in self.slots for courier in shell.couriers.values()):
                self.at(1.0, self.maybe_next_batch)
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
            self.finish()
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
        self.migrating = True
        self.act(self.coordinator.submit(operation))

    @property
    def behind(self) -> bool:
        """Whether a router has not heard yet of the newest assignment in which anything moved."""
        return any(router.core.machine.assignment.version < self.newest for router in self.routers)

    def finish(self) -> None:
        self.finishing = True
        if self.behind:
            self.at(self.shape.frame_ms, self.finish)
        else:
            self.end_batch()

    def plan(self, operation: str) -> list[Step]:
        """The steps of a request, from where the units are by now."""
        here = self.coordinator.assignment
        target = self.target(operation, here)
        self.before, self.aim = here, target.owner
        self.migrations += 1
        if self.strategy is not None:
            strategy = strategies.get(self.strategy).of_migration(self.migrations - 1)
            return list(plan_of(strategy, here, target, self.rng))
        steps = plan_of(strategies.get(self.rng.choice(SIMPLE)), here, target, self.rng)
        return [Step(step.moves, self.rng.choice(self.modes)) for step in steps]

    def overlap(self) -> None:
        """Somebody changes his mind while a migration is under way."""
        if not self.coordinator.busy:
            return
        self.seen["overlapping requests"] += 1
        wish = self.rng.choice(("queue", "replace", "cancel"))
        self.log("job", wish)
        if wish != "queue":
            self.aim = None
        if wish == "cancel":
            self.lead(self.coordinator.cancel(self.now))
        else:
            self.act(self.coordinator.submit("random", replace=wish == "replace"))

    def die(self) -> None:
        """A task died and the query with it: again from the last snapshot or savepoint, what came out since is not
        counted.
        """
        if not self.coordinator.busy or self.savepoint_parts is not None:
            return
        self.seen["query died"] += 1
        self.log("job begins again")
        if self.snapshot is not None:
            return self.begin_from(*self.snapshot)
        assignment, offsets, state = self.saved
        read = self.read_until(offsets)
        waiting = {number for part in state.values() for number in part.timers}
        kept = read | {~number for number in read - waiting}
        self.results = [result for result in self.results if result[0] in kept]
        restored = {unit: part.copy() for unit, part in state.items()}
        slots = max(len(self.slots), max(assignment.owner) + 1)
        self.start(assignment, slots, offsets, restored)
        self.at(self.delay(20), self.next_operation)

    def begin_from(self, version: int, offsets: list[int], state: dict[int, State]) -> None:
        """What came out under ``version`` and later ones is done again, and only that."""
        self.seen["began from a snapshot"] += 1
        self.check_snapshot(version, offsets, state)
        self.results = self.results_before(version)
        newest = self.coordinator.assignment
        copies = {unit: part.copy() for unit, part in state.items()}
        restored = {unit: part.copy() for unit, part in state.items()}
        self.saved = newest, offsets, copies
        self.start(newest, len(self.slots), offsets, restored)
        self.at(self.delay(20), self.next_operation)

    def take_snapshot(self) -> None:
        """Not behind a savepoint, where nothing goes on, nor when all is done."""
        if self.savepoint_parts is None and (self.script or self.migrating):
            name = f"snapshot-{self.attempt}-{len(self.snapshot_parts)}"
            self.snapshot_parts[name] = {}
            self.lead(self.coordinator.snapshot(name, self.now))
            assert self.shape.snapshot_ms is not None
            self.at(self.delay(self.shape.snapshot_ms) + 1.0, self.take_snapshot)

    def snapshot_ack(self, name: str, who: str, part: Any) -> None:
        parts = self.snapshot_parts[name]
        if who in parts:
            return self.problem("snapshot", f"{who} answers {name} again")
        parts[who] = part
        if len(parts) == len(self.routers) + len(self.slots):
            self.seen["snapshots"] += 1
            states = [(unit, state) for shell in self.slots for unit, state in parts[f"slot-{shell.slot}"].items()]
            if sorted(unit for unit, _ in states) != list(range(self.shape.units)):
                self.problem("snapshot", f"{name} holds units {sorted(unit for unit, _ in states)}")
            offsets = [parts[f"router-{router.number}"] for router in self.routers]
            self.snapshot = self.snapshot_versions[name], offsets, dict(states)
            if self.savepoint_parts is None:  # routers that stand at one read on, and nothing comes of that
                self.check_snapshot(*self.snapshot)
        return None

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

    def acknowledge(self, phase: coordinator.StepPhase, version: int, slot_: int) -> None:
        """Written down at once, heard of later."""
        self.acknowledged[version].append((phase, slot_))
        self.at(self.delay(self.shape.ack_ms), self.coordinator_ack, phase, version, slot_)

    def coordinator_ack(self, phase: coordinator.StepPhase, version: int, slot_: int) -> None:
        self.log("coordinator hears", phase, version, "from slot", slot_)
        self.lead(self.coordinator.acknowledged(phase, version, slot_, self.now))

    def lead(self, effects: list[coordinator.CoordinatorEffect]) -> None:
        if self.rng.random() < self.shape.leader_dies and self.seen["coordinator died"] < LEADERS:
            self.take_over(self.rng.randint(0, len(effects)), effects)
        else:
            self.act(effects)

    def take_over(self, carried_out: int, effects: list[coordinator.CoordinatorEffect]) -> None:
        """The coordinator dies with part of its effects carried out; requests that only it knew are lost."""
        self.act(effects[:carried_out])
        published = self.published["step"]
        snapshot = any(step.snapshot for _, steps in published[-1:] for _, step in steps)  # it needs no migration
        if not snapshot and not (published and self.migrating):
            return self.act(effects[carried_out:])
        self.seen["coordinator died"] += 1
        self.log("another coordinator takes over")
        (version, steps), assignment = published[-1], self.published["assignment"][-1][0]
        if self.aim is not None:
            for step in [*(step for of, step in steps if of > assignment.version), *self.rest]:
                assignment = assignment.after(step)
            if assignment.owner != self.aim:  # the plan was not published yet
                self.aim = None
            assignment = self.published["assignment"][-1][0]
        self.coordinator = self.new_coordinator(assignment, len(self.slots))
        done = [(phase, of, slot_) for of, _ in steps for phase, slot_ in self.acknowledged[of]]
        self.act(self.coordinator.recover(version, steps, self.rest, self.now))
        for phase, of, slot_ in done:  # heard again
            self.act(self.coordinator.acknowledged(phase, of, slot_, self.now))
        return self.at(self.delay(10), self.ask_next)  # if only a request was lost, nothing says that it is over

    def act(self, effects: Iterable[coordinator.CoordinatorEffect]) -> None:
        for effect in effects:
            if self.migrating:  # snapshots alone are none
                self.progress()
            match effect:
                case coordinator.PublishSteps(version, steps, rest):
                    before = self.published["step"][-1][1] if self.published["step"] else ()
                    self.rest = rest
                    self.publish("step", (version, steps))
                    self.seen["steps ahead"] += len(steps) > 1
                    if not steps or steps[-1][0] <= self.preparing:  # something was taken back, or is to come later
                        self.seen["step ahead taken back"] += 0 < len(steps) < len(before)
                        continue
                    self.preparing = version
                    if self.rng.random() < self.shape.rolls_back and not self.deadline_ms:
                        late = self.delay(2 * (self.shape.watch_ms + self.shape.ack_ms))
                        self.at(late, self.pass_deadline, version)
                    if self.rng.random() < self.shape.overlaps:
                        self.at(self.delay(20), self.overlap)
                    ripe = self.snapshot is not None or self.shape.snapshot_ms is None or self.rng.random() < 0.2
                    if self.rng.random() < self.shape.dies and ripe and not self.seen["query died"]:
                        self.at(self.delay(60), self.die)
                case coordinator.PublishAssignment(assignment, paused, snapshot):
                    self.seen["snapshot switches" if snapshot else "switches"] += 1
                    self.snapshot_versions[snapshot] = assignment.version
                    self.newest = self.newest if snapshot else assignment.version
                    late = self.rng.random() < self.shape.late and not self.deadline_ms
                    if late and assignment.version != self.switched:
                        late_ms = self.delay(2 * (self.shape.watch_ms + self.shape.state_ms))
                        self.at(late_ms, self.pass_deadline_after_switch, assignment.version)
                    if assignment.version != self.switched:
                        self.moving = assignment.version
                    elif not self.coordinator.busy:
                        self.let_go.add(assignment.version)
                    self.switched = assignment.version
                    self.assignments[self.attempt, assignment.version] = assignment
                    self.publish("assignment", (assignment, paused, snapshot))
                case coordinator.StepDone():
                    self.moving = 0
                case coordinator.SnapshotLate():
                    self.seen["snapshot late"] += 1
                    self.moving = 0
                case coordinator.PlanNext(request):
                    begin = self.coordinator.assignment
                    self.at(self.delay(PLAN_MS), self.planned, self.coordinator, self.plan(request), begin)
                case coordinator.MigrationDone() | coordinator.StepLate():
                    self.log("coordinator", effect)
                    self.check_aim(isinstance(effect, coordinator.StepLate))
                    if isinstance(effect, coordinator.StepLate):
                        self.seen["rolled back" if effect.rolled_back else "late step"] += 1
                        if not self.deadline_ms:
                            self.script.appendleft(self.rng.choice(("random", "back", "savepoint")))
                    self.at(self.delay(10), self.ask_next)

    def planned(self, asked: CoordinatorMachine, steps: list[Step], begin: Assignment) -> None:
        """Meanwhile a late step may have ended, the request may have been taken back, or who asked may be gone."""
        if asked is self.coordinator:
            self.lead(self.coordinator.planned(steps, begin, self.now))

    def ask_next(self) -> None:
        """The job goes on when no request is left."""
        if self.migrating and not self.coordinator.busy:
            self.migrating = False
            self.next_operation()

    def pass_time(self, every_ms: float) -> None:
        self.act(self.coordinator.tick(self.now))
        self.at(every_ms, self.pass_time, every_ms)

    def pass_deadline(self, version: int) -> None:
        if self.preparing != version or self.switched >= version:
            return
        if self.moving:  # it is ahead: its time has not begun
            self.at(self.shape.ack_ms, self.pass_deadline, version)
        else:
            self.lead(self.coordinator.tick(self.now + 2 * DEADLINE_MS))

    def pass_deadline_after_switch(self, version: int) -> None:
        if self.moving == version:
            self.lead(self.coordinator.tick(self.now + 2 * DEADLINE_MS))

    def acknowledge_savepoint(self, name: str, usual_ms: float, who: str, part: Any) -> None:
        """The first part of each counts, also if the next batch says it again."""
        if name in self.snapshot_parts:
            return self.at(self.delay(usual_ms), self.snapshot_ack, name, who, part)
        assert self.savepoint_parts is not None
        if who not in self.savepoint_parts:
            self.savepoint_parts[who] = part
            self.at(self.delay(usual_ms), self.savepoint_ack, who)
        return None

    def savepoint_ack(self, who: str) -> None:
        parts, self.savepoint_missing = self.savepoint_parts, self.savepoint_missing - {who}
        if self.savepoint_missing or parts is None:
            return
        self.log("job restarts from", sorted(parts))
        self.seen["savepoints"] += 1
        restored: dict[int, State] = {unit: State() for unit in range(self.shape.units)}
        saved: list[int] = []
        for shell in self.slots:
            saved += parts[f"slot-{shell.slot}"]
            restored |= parts[f"slot-{shell.slot}"]
        if sorted(saved) != list(range(self.shape.units)):
            self.problem("savepoint", f"holds units {sorted(saved)} of {self.shape.units}")
        offsets = [parts[f"router-{router.number}"] for router in self.routers]
        self.forget_results_after(offsets)
        copies = {unit: part.copy() for unit, part in restored.items()}
        slots = self.rng.randint(1, min(4, self.shape.units))
        assignment = scale(self.coordinator.assignment, slots)
        self.saved = assignment, offsets, copies
        self.start(assignment, slots, offsets, restored)
        self.at(self.delay(20), self.next_operation)

    # -- the checks ---------------------------------------------------------------------------------------------------

    def read_until(self, offsets: Iterable[int]) -> set[int]:
        """The numbers of all events of the frames before ``offsets``."""
        return {number for frames, offset in zip(self.frames, offsets, strict=True)
                for frame in frames[:offset] for number, _ in frame}  # fmt: skip

    def forget_results_after(self, offsets: list[int]) -> None:
        """Nothing may have been processed that was read after the savepoint: the next query reads it again."""
        done = {result[0] for result in self.results}
        for frames, offset in zip(self.frames, offsets, strict=True):
            for number in (number for frame in frames[offset:] for number, _ in frame):
                if number in done:
                    self.problem("duplicated", f"event {number} of after the savepoint was processed before it")

    def results_before(self, version: int) -> list[tuple[int, ...]]:
        """What came out under earlier versions than this one, and in attempts before."""
        return [result for result in self.results if result[3:5] < (self.attempt, version)]

    def check_snapshot(self, version: int, offsets: list[int], state: dict[int, State]) -> None:
        """It is what came of just the events before it."""
        results = self.results_before(version)
        read, done = self.read_until(offsets), Counter(number for number, *_ in results)
        if wrong := {number for number in {*read, *done} if number >= 0 and done[number] != (number in read)}:
            self.problem("snapshot", f"of {version}: events {sorted(wrong)[:5]} came out before it, or are behind it")
        oracle: dict[int, list[int]] = defaultdict(list)
        for number, key, *_ in results:
            oracle[key].append(number)
        values = {key: numbers for part in state.values() for key, numbers in part.values.items()}
        if values != oracle:
            self.problem("snapshot", f"of {version}: {values} instead of {dict(oracle)}")

    def check_aim(self, failed: bool) -> None:
        """A migration that nobody has changed or cancelled has come to its target, whoever ended it."""
        aim, self.aim = self.aim, None
        if aim is None or failed:
            return
        self.seen["target reached"] += 1
        if self.coordinator.assignment.owner != aim:
            self.problem("target", f"{self.coordinator.assignment.owner} instead of {aim}")

    def check_owner(self, unit: int, here: SlotShell) -> None:
        if others := [o.slot for o in self.slots if o is not here and o.opened and unit in o.machine.serving]:
            self.problem("owners", f"unit {unit} is served by slot {here.slot} and by {others}")

    def check_end(self) -> None:
        times = Counter(result[0] for result in self.results)
        read = self.read_until(router.offset for router in self.routers)
        done = {number for number in times if number >= 0}
        if lost := sorted(read - done):
            self.problem("lost", f"events {lost[:5]}")
        if twice := [number for number in done if times[number] > 1 or number not in read]:
            self.problem("duplicated", f"events {twice[:5]}")
        if self.shape.timers:
            self.check_timers(done, times)
        last: dict[tuple[int, int], int] = {}
        oracle: dict[int, list[int]] = defaultdict(list)
        for number, key, via, attempt, version, at, count in self.results:
            owner = self.assignments[attempt, version].owner[key % self.shape.units]
            if at != owner:
                self.problem("stray", f"event {number}, routed under {version} to {owner}, was processed by {at}")
            if number >= 0 and last.get((via, key), -1) > number:
                self.problem("reordered", f"router {via}, key {key}: {last[via, key]} before {number}")
            last[via, key] = number
            oracle[key].append(number)
            if count != len(oracle[key]):
                self.problem("wrong", f"event {number} of key {key} counts {count}, not {len(oracle[key])}")
        parts = [state.values for shell in self.slots for state in shell.states.values()]
        values = {key: numbers for part in parts for key, numbers in part.items()}
        if values != oracle:
            self.problem("state", f"{values} instead of {dict(oracle)}")
        assignment = self.coordinator.assignment
        for shell in self.slots:
            units = set(assignment.units_of(shell.slot))
            if shell.states.keys() != units or shell.machine.serving != units:
                held = f"holds {sorted(shell.states)}, serves {sorted(shell.machine.serving)}"
                self.problem("leftover", f"slot {shell.slot} {held}, owns {sorted(units)}")
            if shell.sending or shell.backlog or shell.left:
                self.problem("leftover", f"slot {shell.slot} sends {sorted(shell.sending)}, keeps {sorted(shell.left)}")

    def check_timers(self, done: Iterable[int], times: Counter[int]) -> None:
        """Each event's timer has fired, or is due later and with its unit; once."""
        units = [state for shell in self.slots for state in shell.states.values()]
        waiting = Counter(number for state in units for number in state.timers)
        if lost := [number for number in done if not times[~number] + waiting[number]]:
            self.problem("timer lost", f"of events {lost[:5]}")
        if twice := [number for number in done if times[~number] + waiting[number] > 1]:
            self.problem("timer doubled", f"of events {twice[:5]}")
        for state in units:
            if overdue := [number for number, (due, _) in state.timers.items() if due <= state.timers.watermark]:
                self.problem("timer overdue", f"{overdue[:5]} at {state.timers.watermark}")
        self.seen["timers waiting at the end"] += waiting.total()


def simulate(seed: int, **given: Any) -> Outcome:
    """One run; see ``Simulation``."""
    return Simulation(seed, **given).run()
