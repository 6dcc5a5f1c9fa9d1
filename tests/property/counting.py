"""What the simulated slots compute: each event is noted at its key, and sets a timer a few frames ahead.

Events are lists of (number, key). State and operator stand in for those of ``keyshift.state`` and ``runtime.arrow``, as
Arrow would take most of the time of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keyshift.runtime.computation import Computation
from keyshift.state.timers import EVENT

if TYPE_CHECKING:
    from shells import SlotShell

Events = list[tuple[int, int]]  # (number, key)
FRAME_US = 20_000  # of event time, which is the number of frames that were seen of every router
AHEAD = 4  # timers are set so many frames ahead at the most


class Values(dict[int, list[int]]):
    """Key -> numbers of its events and, as ~number, of timers that fired; in their order. The lists never change."""

    def __init__(self, values: Any = ()) -> None:
        super().__init__(values)
        self.changed: dict[str, set[int]] = {}  # by who tracks it

    def touch(self, key: int) -> None:
        for changed in self.changed.values():
            changed.add(key)

    def __missing__(self, key: int) -> None:
        return None

    def __setitem__(self, key: int, value: list[int]) -> None:
        super().__setitem__(key, value)
        self.touch(key)


class Timers(dict[int, tuple[int, int]]):
    """Number of the event that set it -> when it is due, and its key."""

    def __init__(self, timers: Any = (), watermark: int = 0) -> None:
        super().__init__(timers)
        self.watermark, self.clock = watermark, 0
        self.edits = 0

    def copy(self) -> "Timers":
        return Timers(self, self.watermark)

    def __setitem__(self, number: int, timer: tuple[int, int]) -> None:
        super().__setitem__(number, timer)
        self.edits += 1

    def reach(self, watermark: int, now_us: int = 0) -> None:
        self.edits += watermark > self.watermark
        self.watermark, self.clock = max(self.watermark, watermark), max(self.clock, now_us)

    def next(self, kind: int) -> int | None:
        return min(self.values())[0] if self and kind == EVENT else None

    def overdue(self) -> bool:
        first = self.next(EVENT)
        return first is not None and first <= self.watermark

    def keys_due(self, kind: int, until_us: int) -> set[int]:
        return {key for due, key in self.values() if due <= until_us} if kind == EVENT else set()

    def due(self) -> list[tuple[int, int]]:
        """Removes what is overdue: number and when it was due."""
        found = [(number, due) for number, (due, _) in self.items() if due <= self.watermark]
        for number, _ in found:
            del self[number]
        self.edits += bool(found)
        return found


class State:
    """What there is of one unit; see ``UnitState``."""

    shared = False

    def __init__(self, values: Any = (), timers: Timers | None = None) -> None:
        self.values, self.timers = Values(values), Timers() if timers is None else timers

    def __repr__(self) -> str:
        return f"State({dict(self.values)}, {dict(self.timers)} at {self.timers.watermark})"

    def copy(self) -> "State":
        return State(self.values, self.timers.copy())

    def bare(self) -> "State":
        """Without the values."""
        return State((), self.timers.copy())

    def keys(self) -> list[int]:
        return list(self.values)

    def take(self, keys: Any) -> list[tuple[int, Any]]:
        return [(key, value) for key in keys if (value := self.values[key]) is not None]

    def delete(self, key: int) -> None:
        self.values.pop(key, None)
        self.values.touch(key)

    def __len__(self) -> int:
        return len(self.values)

    def track(self, who: str) -> None:
        self.values.changed[who] = set()

    def untrack(self, who: str) -> None:
        self.values.changed.pop(who, None)

    def changed_keys(self, who: str) -> set[int]:
        found, self.values.changed[who] = self.values.changed[who], set()
        return found


class Store:
    """See ``keyshift.state.Store``. The simulation makes its states itself: what is asked for here is missing there."""

    def __init__(self, shell: "SlotShell") -> None:
        self.shell = shell

    def unit(self, unit: int) -> State:
        self.shell.sim.problem("ownerless", f"slot {self.shell.slot} works on unit {unit} without its state")
        return State()

    def load(self, wanted: Iterable[Any]) -> None:
        pass

    def checkpoint(self) -> None:
        pass


class Counting:
    """The operator of one slot; see ``FrameOperator``. Results are as ``Simulation.results`` has them."""

    def __init__(self, shell: "SlotShell") -> None:
        self.shell, self.sim = shell, shell.sim
        self.uses_time = self.sim.shape.timers
        self.idle = False  # whether time passes for units that got no record

    def initial(self, unit: int, state: Any) -> None:
        raise AssertionError("the simulation makes its states itself")

    def events(self, payload: Events) -> Events:
        return payload

    def units(self, events: Events) -> Any:
        return np.array([key % self.sim.shape.units for _, key in events])

    def keys(self, events: Events) -> Any:
        return np.array([key for _, key in events])

    def nbytes(self, events: Events) -> int:
        return 0  # a record counts as much whatever is in it

    def by_unit(self, events: Events) -> Iterator[tuple[int, Events]]:
        units = self.sim.shape.units
        for unit in sorted({key % units for _, key in events}):
            yield unit, [event for event in events if event[1] % units == unit]

    def one_by_one(self, events: Events) -> Iterator[Events]:
        return ([event] for event in events)

    def filter(self, events: Events, which: Any) -> Events:
        return [event for event, whether in zip(events, which.tolist(), strict=True) if whether]

    def together(self, parts: Sequence[Events]) -> Events:
        return [event for part in parts for event in part]

    def process(self, events: Events, origin: Any, state_of: Callable[[int], Any]) -> list[tuple[int, ...]]:
        columns = (np.broadcast_to(column, len(events)).tolist() for column in origin)
        results = []
        for (number, key), router, version, _ in zip(events, *columns, strict=True):
            unit = key % self.sim.shape.units
            self.shell.gate(version, "slots")
            state = state_of(unit)
            if self.uses_time:
                self.check_time(unit, state, number)
                frame = self.sim.events[number][2]
                state.timers[number] = (frame + 1 + number % AHEAD) * FRAME_US, key
            results.append(self.note(state, number, key, router, version))
        return results

    def check_time(self, unit: int, state: State, number: int) -> None:
        watermark, frame = state.timers.watermark, self.sim.events[number][2]
        if watermark > frame * FRAME_US:
            what = f"event {number} of frame {frame} finds unit {unit} of slot {self.shell.slot} at {watermark}"
            self.sim.problem("late", what)
        if watermark < self.sim.reached[unit]:
            self.sim.problem("time", f"unit {unit} of slot {self.shell.slot} is at {watermark} again")
        self.sim.reached[unit] = max(self.sim.reached[unit], watermark)

    def advance(self, states: Iterable[Any], version: int) -> list[tuple[int, ...]]:
        results = []
        for state in states:
            for heard in set(self.shell.heard) if self.idle else ():
                self.shell.gate(heard, "slots")
            for number, due in state.timers.due():
                if min(router.offset for router in self.sim.routers) * FRAME_US < due:
                    self.sim.problem("early", f"timer {number} fires at {state.timers.watermark}")
                self.sim.seen["timers fired"] += 1
                results.append(self.note(state, ~number, self.sim.events[number][1], -1, version))
        return results

    def note(self, state: State, number: int, key: int, router: int, version: int) -> tuple[int, ...]:
        """An event or a timer (~number) changes its key, and a result comes out."""
        numbers = state.values[key] = [*(state.values[key] or ()), number]
        return number, key, router, self.sim.attempt, version, self.shell.slot, len(numbers)


class WatchedComputation(Computation[Events, list[tuple[int, ...]]]):
    """Tells the operator whether a timer fires by itself, or before a record (or at a savepoint, when all is here)."""

    def timers_due(self, watermark: int, now_us: int, at_once: bool = False) -> list[list[tuple[int, ...]]]:
        self._operator.idle = not at_once  # type: ignore[attr-defined]
        results = super().timers_due(watermark, now_us, at_once)
        self._operator.idle = False  # type: ignore[attr-defined]
        return results
