"""Real cores behind order machines: replicas give the same results, whatever comes when; and cores with a bug."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from turn_simulation import run

from keyshift.ordering import orderings
from keyshift.protocol import SlotMachine
from keyshift.protocol.slot import TurnMachine
from keyshift.runtime.row import DATA
from keyshift.runtime.turns import TurnCore

AGREE = [name for name, protocol in orderings.items() if protocol.agrees]
SEEDS = 300 * settings.default.max_examples // 100  # per protocol
BUG_SEEDS = 150


@pytest.mark.parametrize("name", AGREE)
def test_replicas_have_the_same_results_and_states_while_units_move(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        problems, happened = run(seed, name)
        assert not problems, f"run({seed}, {name!r}): {problems}"
        seen.update(happened)
    assert min(seen[place] for place in ("turns", "barriers", "moved", "blocked")) > SEEDS, seen


class HasAClockOfItsOwn(TurnCore[Any, Any]):
    """The processing time of a turn is that of the call."""

    calls = itertools.count(1)

    def deliver(self, turn: Any) -> None:
        super().deliver(turn._replace(clock=turn.clock + 1000 * next(self.calls)))


class MeetsTheTimeOfItsOwnRows(TurnCore[Any, Any]):
    """A row meets what the rows before it have told this slot."""

    def deliver(self, turn: Any) -> None:
        told = max((row.watermark for row in turn.rows if row.kind == DATA), default=turn.met)
        super().deliver(turn._replace(met=max(turn.met, told)))


class FiresWhenAllRowsHaveTold(TurnCore[Any, Any]):
    """Timers go by the ticks and rows that this slot got."""

    def deliver(self, turn: Any) -> None:
        told = min((row.watermark for row in turn.rows if row.kind == DATA), default=turn.met)
        super().deliver(turn._replace(reached=max(turn.met, min(turn.reached, told))))


class StopsTheTimeOfWhatLeaves(TurnMachine[Any]):
    """From when state of the other slot comes, which is early in one replica and late in another one."""

    def stands(self, unit: int) -> bool:
        return SlotMachine.stands(self, unit)


class LetsTimePassForWhatCameEarly(TurnMachine[Any]):
    def idle(self, units: Any) -> Any:
        return SlotMachine.idle(self, units)


class FiresUnderTheVersionOfTheStepThatHasEnded(TurnMachine[Any]):
    """Which is another one as long as state is on its way; what is due comes by version."""

    def version_of(self, unit: int) -> Any:
        return SlotMachine.version_of(self, unit)


class EndsAStepWhenAllStateIsHere(TurnMachine[Any]):
    """Although its barriers were not delivered in this slot."""

    def _installed(self, step: Any) -> bool:
        return SlotMachine._installed(self, step)


class GoesOnWithoutState(TurnMachine[Any]):
    all_here = True


class WaitsForStateFromThePreparationOn(TurnMachine[Any]):
    """State comes only behind the barriers that are behind the rows that wait."""

    @property
    def all_here(self) -> bool:
        return not self.expected


BUGS = [
    ("live_robin", {"core": HasAClockOfItsOwn}, "replicas differ"),
    ("live_robin", {"core": MeetsTheTimeOfItsOwnRows}, "a key's results depend on its owner"),
    ("live_robin", {"core": FiresWhenAllRowsHaveTold}, "a key's results depend on its owner"),
    ("live_robin", {"machine": StopsTheTimeOfWhatLeaves}, "replicas differ"),
    ("kazoo", {"machine": LetsTimePassForWhatCameEarly}, "replicas differ"),
    ("live_robin", {"machine": FiresUnderTheVersionOfTheStepThatHasEnded}, "replicas differ"),
    ("kazoo", {"machine": EndsAStepWhenAllStateIsHere}, "replicas differ"),
    ("live_robin", {"machine": GoesOnWithoutState}, "AssertionError: something of a turn waits"),
    ("live_robin", {"machine": WaitsForStateFromThePreparationOn}, "AssertionError: stuck"),
]


@pytest.mark.parametrize(
    ("name", "changes", "check"), BUGS, ids=[cls.__name__ for _, changes, _ in BUGS for cls in changes.values()]
)
def test_a_bug_is_found(name: str, changes: dict[str, Any], check: str) -> None:
    for seed in range(BUG_SEEDS):
        problems, _ = run(seed, name, **changes)
        if any(problem.startswith(check) for problem in problems):
            return
    pytest.fail(f"{changes} passed {BUG_SEEDS} runs without {check!r}")


def test_a_turn_of_rows_is_refused_while_state_is_elsewhere() -> None:
    problems: set[str] = set()
    for seed in range(20):
        problems |= run(seed, "live_robin", core=IsAlwaysReady)[0]
    assert any("and state of units" in problem for problem in problems), problems


class IsAlwaysReady(TurnCore[Any, Any]):
    """Takes turns although state is elsewhere."""

    _asked = False

    @property
    def ready(self) -> bool:
        self._asked = not self._asked  # the simulation asks, and then the core itself
        return self._asked or super().ready
