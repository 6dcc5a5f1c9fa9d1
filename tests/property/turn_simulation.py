"""Real cores of slots behind real order machines: replicas of one stage whose units move, ``run(seed, name)``.

No time passes but that of the turns. What comes next is drawn: rows of a channel, a turn, state on its way from slot to
slot, an acknowledgement, a record of the order log. Steps are prepared before routers say their barriers, as
appointments have it.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keyshift.checks.replicas import BEGIN_US, Input, SourceEvent, events_of
from keyshift.model.keys import Mode, Move, SlotId, Step, UnitId
from keyshift.ordering import Position, Propose, Record, Resign, orderings
from keyshift.protocol import slot
from keyshift.runtime.computation import Computation
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.row import BARRIER, DATA, Row
from keyshift.runtime.slot import Leave, Moved
from keyshift.runtime.turns import TurnCore
from keyshift.state.timers import EVENT, PROCESSING, Timers

UNITS = 6  # one key each
CALLS = 20_000  # that a run takes at most; the longest of 1000 took 2200


class State:
    """Of one unit."""

    shared = False

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.timers = Timers()


class Store:
    def load(self, wanted: Iterable[Any]) -> None:
        pass

    def unit(self, unit: int) -> State:
        raise AssertionError(f"unit {unit} is used, and its state is elsewhere")


class Counting:
    """Counts the events of a key, and lets it be due in both times. A result says what was met."""

    uses_time = True

    def events(self, payload: bytes) -> list[SourceEvent]:
        return [event for _, _, event in events_of([Row(DATA, 0, 0, 0, 0, payload)])]

    def units(self, events: list[SourceEvent]) -> Any:
        return np.array([event.key for event in events], np.int64)

    keys = units

    def nbytes(self, events: list[SourceEvent]) -> int:
        return len(events)

    def by_unit(self, events: list[SourceEvent]) -> Iterator[tuple[int, list[SourceEvent]]]:
        for unit in sorted({event.key for event in events}):
            yield unit, [event for event in events if event.key == unit]

    def filter(self, events: list[SourceEvent], which: Any) -> list[SourceEvent]:
        return [event for event, whether in zip(events, which.tolist(), strict=True) if whether]

    def together(self, parts: Sequence[list[SourceEvent]]) -> list[SourceEvent]:
        return [event for part in parts for event in part]

    def process(
        self, events: list[SourceEvent], origin: Any, state_of: Callable[[int], State]
    ) -> list[tuple[Any, ...]]:
        results = []
        for event in events:
            state = state_of(event.key)
            timers = state.timers
            timers.set(EVENT, event.t + 30_000, event.key)
            timers.set(PROCESSING, timers.clock + 25_000, event.key)
            results.append((event.key, "event", event.t, event.position, self.count(state, event.key)))
        return results

    def advance(self, states: Iterable[State], version: int) -> list[tuple[Any, ...]]:
        results = []
        for state in states:
            for kind, until in ((EVENT, state.timers.watermark), (PROCESSING, state.timers.clock)):
                for due, key in state.timers.due(kind, until):
                    results.append((key, kind, due, until, self.count(state, key), version))
        return results

    def count(self, state: State, key: int) -> tuple[int, int, int]:
        state.values[key] = state.values.get(key, 0) + 1
        return state.values[key], state.timers.watermark, state.timers.clock


def owner(version: int, unit: int, slots: int) -> int:
    """Some units stay where they are."""
    return (unit + (version if unit % 3 else 0)) % slots


class Slot:
    def __init__(self, replica: "Replica", number: int, core: type[TurnCore[Any, Any]]) -> None:
        self.replica, self.number = replica, number
        setting, slots = replica.run.given.setting(), replica.run.slots
        self.order = orderings.get(replica.run.name).open(setting, Position.begin(setting, 1))
        self.states: Any = {unit: State() for unit in range(UNITS) if owner(1, unit, slots) == number}
        machine: Any = replica.run.machine(number, setting.channels, list(self.states), (), 1)
        operator: Any = Counting()
        keys: Any = KeyAccess(operator, self.states)
        store: Any = Store()
        computation = Computation(operator, machine, keys, store, self.states, UNITS)
        self.core = core(machine, operator, keys, computation, self.states, 1 << 20, [0] * setting.channels)
        self.core.begin([1] * setting.channels)
        self.results: list[Any] = []
        said = replica.run.given.rows(lambda version, event: owner(version, event.key, slots) == number)
        self.rows: list[list[Row]] = said
        self.came = [0] * len(said)
        self.read = 0

    def receive(self, channel: int) -> None:
        """As far as steps are prepared."""
        rows, most = self.rows[channel][self.came[channel] :], self.replica.run.rng.randint(1, 5)
        some = []
        for row in rows[:most]:
            if row.version > self.replica.prepared:
                break
            some.append(row)
        self.came[channel] += len(some)
        self.order.arrived(some)

    def turn(self) -> None:
        run = self.replica.run
        turn = self.order.take(self.core.ready)
        if turn is not None:
            self.core.deliver(turn)
            run.seen["turns"] += bool(turn.rows)
            run.seen["barriers"] += bool(turn.barriers)
            assert not self.core.waits, "something of a turn waits"
        self.order.propose(run.now_us())
        for effect in self.order.take_effects():
            match effect:
                case Propose(record):
                    run.logs[self.number].append(record)
                case Resign():
                    run.elect(self.number)
        run.seen["blocked"] += not self.core.ready
        self.carry_out()

    def hear(self) -> None:
        log = self.replica.run.logs[self.number]
        if self.read < len(log):
            self.order.heard([(self.read, log[self.read])])
            self.read += 1

    def carry_out(self) -> None:
        self.results += [result for result in self.core.take_results() if not isinstance(result, Moved)]
        for effect in self.core.take_effects():
            match effect:
                case Leave(send, state):
                    self.replica.under_way.append((self.replica.slots[send.destination].arrive, (send, state, self)))

    def arrive(self, send: slot.Send, state: Any, source: "Slot") -> None:
        self.replica.run.seen["moved"] += 1
        self.core.arrived(send.unit, send.version, send.hop, None, state, None)
        self.carry_out()
        self.replica.under_way.append((source.acknowledged, (send.unit,)))

    def acknowledged(self, unit: int) -> None:
        self.core.acknowledged(unit)
        self.carry_out()

    @property
    def over(self) -> bool:
        here = all(came == len(rows) for came, rows in zip(self.came, self.rows, strict=True))
        return here and not self.order.waiting_bytes and self.core.machine.settled


class Replica:
    def __init__(self, run: "Run", core: type[TurnCore[Any, Any]]) -> None:
        self.run = run
        self.prepared = 1  # the version of the last step that all slots know
        self.slots: list[Slot] = []
        self.slots += [Slot(self, number, core) for number in range(run.slots)]
        self.under_way: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def prepare(self) -> None:
        """The next step, when the one before has ended."""
        version, slots = self.prepared + 1, self.run.slots
        appointed = version in (each.version for each in self.run.given.appointments)
        if appointed and all(slot.core.machine.version == self.prepared or slots == 1 for slot in self.slots):
            moves = [
                Move(UnitId(unit), SlotId(before), SlotId(after))
                for unit in range(UNITS)
                if (before := owner(version - 1, unit, slots)) != (after := owner(version, unit, slots))
            ]
            for each in self.slots:
                each.core.published(version, [(version, Step(tuple(moves), Mode()))])
                each.carry_out()
            self.prepared = version

    def something(self) -> None:
        rng = self.run.rng
        slot = rng.choice(self.slots)
        match rng.randrange(6):
            case 0 | 1:
                slot.receive(rng.randrange(len(slot.rows)))
            case 2:
                slot.turn()
            case 3:
                slot.hear()
            case 4:
                self.prepare()
            case 5 if self.under_way:
                call, arguments = self.under_way.pop(rng.randrange(len(self.under_way)))
                call(*arguments)


class Run:
    """Some replicas of one stage, until all rows are delivered and all units are where they belong."""

    def __init__(
        self,
        seed: int,
        name: str,
        core: type[TurnCore[Any, Any]] = TurnCore,
        machine: type[slot.TurnMachine[Any]] = slot.TurnMachine,
        slots: int | None = None,
    ) -> None:
        self.machine = machine
        rng = random.Random(seed)
        given = Input.draw(rng, epochs=12)
        # Snapshots are steps like others here, and nothing is saved.
        self.given = replace(
            given, appointments=tuple(each._replace(kind=BARRIER) for each in given.appointments if each.kind != 3)
        )
        drawn, replicas = rng.randint(1, 3), rng.choice((2, 2, 3))
        self.name, self.slots, self.rng = name, slots or drawn, random.Random(rng.random())
        self.seen: dict[str, int] = defaultdict(int)
        self.clock_us = BEGIN_US
        self.logs: list[list[Record]] = [[] for _ in range(self.slots)]
        self.replicas = [Replica(self, core) for _ in range(1 if slots else replicas)]
        self.term = 0
        for number in range(self.slots):
            self.elect(number)
        for _ in range(CALLS):
            self.rng.choice(self.replicas).something()
            if all(each.over for replica in self.replicas for each in replica.slots):
                break
        else:
            raise AssertionError("stuck")

    def elect(self, number: int) -> None:
        self.term += 1
        self.rng.choice(self.replicas).slots[number].order.elected(self.term)

    def now_us(self) -> int:
        self.clock_us += self.rng.randint(0, 3_000)
        return self.clock_us

    def of_slots(self) -> list[list[list[Any]]]:
        """By replica and slot: all results, and the ends of turns."""
        return [[each.results for each in replica.slots] for replica in self.replicas]

    def of_keys(self) -> dict[int, list[Any]]:
        """The results of each key, in their order, in the first replica."""
        by_turn = defaultdict(list)
        for each in self.replicas[0].slots:
            waiting: list[Any] = []
            for result in each.results:
                if isinstance(result, list):
                    waiting += result
                else:
                    by_turn[result.number] += waiting
                    waiting = []
        found = defaultdict(list)
        for _, results in sorted(by_turn.items()):
            for key, *result in results:
                found[key].append(result)
        return found


def run(seed: int, name: str, **changes: Any) -> tuple[set[str], dict[str, int]]:
    """What is wrong in one run, and how often what was to be covered has happened."""
    problems = set()
    try:
        several = Run(seed, name, **changes)
    except Exception as error:
        return {f"{type(error).__name__}: {error}"}, {}
    first, *others = several.of_slots()
    if any(other != first for other in others):
        problems.add("replicas differ")
    states = [[{u: s.values for u, s in each.states.items()} for each in replica.slots] for replica in several.replicas]
    if any(state != states[0] for state in states):
        problems.add("states differ")
    if not orderings.get(name).leads and Run(seed, name, **changes, slots=1).of_keys() != several.of_keys():
        problems.add("a key's results depend on its owner")
    return problems, several.seen
