"""Thousands of simulated runs of the real machines, and machines with a bug that the same runs must find."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from simulation import VERDICT, SlotShell, simulate

from keyshift.protocol import CoordinatorMachine, RouterMachine, SlotMachine, faults
from keyshift.protocol.router import Barrier

BLOCKS = 8
SEEDS = 375 * settings.default.max_examples // 100  # per block: 3000 runs, or 150 000 at night
MUTANT_SEEDS = 400


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_run_processes_each_event_once_in_order_at_its_owner(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        outcome = simulate(seed)
        assert not outcome.problems, outcome
        seen += outcome.seen
    # The runs went where it is difficult; otherwise they prove little.
    places = ("held", "empty unit sent", "moved process", "savepoints", "rolled back", "step after the end")
    assert all(seen[place] > 20 for place in (*places, "watch missed a value", "switches")), seen


def test_a_seed_replays_its_run_exactly() -> None:
    assert str(simulate(7)) == str(simulate(7))


def caught(seeds: int = MUTANT_SEEDS, **machines: Any) -> Counter[str]:
    """Which checks found something, in how many of the runs."""
    found: Counter[str] = Counter()
    for seed in range(seeds):
        found.update(simulate(seed, **machines).problems.keys())
    return found


@pytest.mark.parametrize("name", [name for name in faults.machines.names() if name != "none"])
def test_a_fault_lets_the_run_complete_with_a_bad_verdict(name: str) -> None:
    found = caught(slot_machine=faults.machines.get(name))
    assert any(found[check] for check in VERDICT), found
    assert not {"violation", "crash", "stuck"} & found.keys(), found


class ServesBeforeTheQueueIsEmpty(SlotMachine[Any]):
    """New records overtake those in the queue as soon as the state is here."""

    def admit(self, router: int, version: int, units: Any) -> Any:
        return {unit for unit in super().admit(router, version, units) if unit not in self.serving}


class SendsBeforeTheQueueIsEmpty(SlotMachine[Any]):
    """A unit that leaves again at once leaves the records in its queue behind."""

    def _advance(self) -> Any:
        queues, leaving = self._queues, self._step.leaving if self._step else {}
        self._queues = {unit: queue for unit, queue in queues.items() if unit not in leaving}
        effects = super()._advance()
        self._queues = queues
        return effects


class DrainsNewestFirst(SlotMachine[Any]):
    def drain(self, most: int) -> Any:
        for unit in self._queues.keys() & self.serving:
            self._queues[unit].reverse()
        return super().drain(most)


class ForgetsToHold(SlotMachine[Any]):
    def hold(self, unit: int, record: Any) -> None:
        pass


class IgnoresTheVersionOfBarriers(SlotMachine[Any]):
    """Any barrier counts for the step that is active."""

    def barrier(self, router: int, version: int) -> Any:
        return super().barrier(router, self._step.version if self._step else version)


class PreparesAfterTheEnd(SlotMachine[Any]):
    def prepare(self, version: int, step: Any) -> Any:
        self._ended = False
        return super().prepare(version, step)


class ForgetsTheStepAtTheEndOfTheBatch(SlotMachine[Any]):
    """Does not know that the next batch routes by the new version, if a router switched."""

    def end_of_input(self) -> Any:
        self._heard = dict.fromkeys(self._heard, 0)
        return super().end_of_input()


class FreezesWhenTheFirstRouterStops(SlotMachine[Any]):
    def savepoint_barrier(self, router: int, savepoint: str) -> Any:
        for each in self._heard:
            effects = super().savepoint_barrier(each, savepoint)
        return effects


class FreezesWithoutWaitingForState(SlotMachine[Any]):
    @property
    def settled(self) -> bool:
        return self._step is None and not self._queues if self._ended else True


class AdoptsOneFrameAfterItsBarrier(RouterMachine):
    def boundary(self) -> Any:
        late, self._late = getattr(self, "_late", self.assignment), self._next or self.assignment
        barriers = super().boundary()
        self.assignment = late
        return barriers


class AdoptsWithoutBarrier(RouterMachine):
    def boundary(self) -> Any:
        first, self._began = not hasattr(self, "_began"), True
        return [barrier for barrier in super().boundary() if first or not isinstance(barrier, Barrier)]


class PublishesBeforeAllArePrepared(CoordinatorMachine):
    def acknowledged(self, phase: Any, version: int, slot: int, now_ms: float) -> Any:
        if phase == "prepared" and self._current and self._current.after.version == version:
            self._current.waiting["prepared"] = {slot}
        return super().acknowledged(phase, version, slot, now_ms)


class GoesOnBeforeTheStateIsInstalled(CoordinatorMachine):
    def acknowledged(self, phase: Any, version: int, slot: int, now_ms: float) -> Any:
        if self._current and self._current.phase == "switching":
            self._current.waiting["installed"] = set()
        return super().acknowledged(phase, version, slot, now_ms)


class UsesVersionsAgain(CoordinatorMachine):
    def start(self, steps: Any, now_ms: float) -> Any:
        self._version = self.assignment.version
        return super().start(steps, now_ms)


class AcknowledgesTwice(SlotShell):
    def acknowledge(self, unit: int, source: SlotShell) -> None:
        super().acknowledge(unit, source)
        super().acknowledge(unit, source)


class CarriesEffectsOutBeforeTheRecords(SlotShell):
    """The state of a unit goes before its last queued records are in it."""

    def drain(self) -> None:
        records, effects = self.machine.drain(self.sim.shape.drain)
        self.carry_out(effects)
        for record in records:
            self.process(*record)


class InstallsTheStateOfAnotherUnit(SlotShell):
    def pushed(self, unit: int, state: Any, source: SlotShell) -> None:
        super().pushed(unit, {key + 1: numbers for key, numbers in state.items()}, source)


MUTANTS = [
    ({"slot_machine": ServesBeforeTheQueueIsEmpty}, "reordered"),
    ({"slot_machine": SendsBeforeTheQueueIsEmpty}, "stuck"),
    ({"slot_machine": DrainsNewestFirst}, "reordered"),
    ({"slot_machine": ForgetsToHold}, "lost"),
    ({"slot_machine": IgnoresTheVersionOfBarriers}, "violation"),
    ({"slot_machine": PreparesAfterTheEnd}, "stuck"),
    ({"slot_machine": ForgetsTheStepAtTheEndOfTheBatch}, "violation"),
    ({"slot_machine": FreezesWhenTheFirstRouterStops}, "lost"),
    ({"slot_machine": FreezesWithoutWaitingForState}, "savepoint"),
    ({"router_machine": AdoptsOneFrameAfterItsBarrier}, "violation"),
    ({"router_machine": AdoptsWithoutBarrier}, "stuck"),
    ({"coordinator_machine": PublishesBeforeAllArePrepared}, "violation"),
    ({"coordinator_machine": GoesOnBeforeTheStateIsInstalled}, "violation"),
    ({"coordinator_machine": UsesVersionsAgain}, "stuck"),
    ({"slot_shell": AcknowledgesTwice}, "violation"),
    ({"slot_shell": CarriesEffectsOutBeforeTheRecords}, "ownerless"),
    ({"slot_shell": InstallsTheStateOfAnotherUnit}, "wrong"),
]


@pytest.mark.parametrize(
    ("machines", "check"), MUTANTS, ids=[next(iter(machines.values())).__name__ for machines, _ in MUTANTS]
)
def test_a_bug_is_found(machines: dict[str, Any], check: str) -> None:
    for seed in range(MUTANT_SEEDS):
        if check in simulate(seed, **machines).problems:
            return
    pytest.fail(f"{machines} passed {MUTANT_SEEDS} runs without {check!r}")


def test_a_failing_run_says_how_to_replay_it() -> None:
    bad = next(o for o in (simulate(seed, slot_machine=faults.InstallEarly) for seed in range(100)) if o.problems)
    assert str(bad).startswith(f"replay: simulate({bad.seed})\nShape(routers=")
    assert 0 < len(bad.story) <= 50
