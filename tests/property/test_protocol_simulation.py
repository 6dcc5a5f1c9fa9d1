"""Thousands of simulated runs of the real machines, and machines with a bug that the same runs must find."""

import inspect
import re
from collections import Counter

import counting
import pytest
import shells
import simulation
import virtual_time
from hypothesis import settings
from mutants import mutant
from simulation import LIVE, VERDICT, simulate
from virtual_time import Outcome

import faults
from keyshift.model.keys import Mode
from keyshift.protocol import SlotMachine
from mutation import Mutant
from small_run import NIGHT

BLOCKS = 2
SEEDS = 18_750 if NIGHT else 250  # per block: 500 runs, or 37 500 at night
STRATEGY_SEEDS = 90 * settings.default.max_examples // 100
FAULT_SEEDS = 400 if NIGHT else 100
MUTANT_SEEDS = 400

# Where it is difficult: how often a block has to be there, or its runs prove little.
OFTEN = (
    "came twice",
    "copy dropped",
    "coordinator died",
    "empty unit sent",
    "held",
    "keys fetched",
    "late step",
    "left behind",
    "moved process",
    "overlapping requests",
    "paused",
    "part of a unit written",
    "requested",
    "rolled back",
    "router is full",
    "router waits",
    "savepoints",
    "snapshot late",
    "snapshot skipped",
    "snapshots",
    "stalled",
    "step after the end",
    "step ahead taken back",
    "steps ahead",
    "stopped reading",
    "switches",
    "target reached",
    "timers fired",
    "timers sent",
    "timers waiting at the end",
    "urged",
    "waits for its key",
    "watch missed a value",
)
SPECIAL = {  # what only happens in the mode of that strategy
    "pause_resume": "paused",
    "meces": "fetched back",
    "drrs": "requested",
    "lazy": "keys fetched",
    "hybrid": "left behind",
}
SELDOM = ("began from a snapshot", "fetched back", "lent", "opened", "query died")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_run_processes_each_event_once_in_order_at_its_owner(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        outcome = simulate(seed)
        assert not outcome.problems, outcome
        seen += outcome.seen
    assert {place for place in OFTEN if seen[place] < 30} == set(), seen
    assert {place for place in SELDOM if seen[place] < 2} == set(), seen


@pytest.mark.parametrize("name", LIVE)
def test_every_live_strategy_does_as_well_in_its_own_mode(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(STRATEGY_SEEDS):
        outcome = simulate(seed, strategy=name)
        assert not outcome.problems, outcome
        seen += outcome.seen
    assert min(seen["switches"], seen["timers fired"]) > 50, seen
    assert seen[SPECIAL.get(name, "held")] > 5, seen


def test_a_seed_replays_its_run_exactly() -> None:
    assert str(simulate(7)) == str(simulate(7))
    assert str(simulate(8, strategy="meces")) == str(simulate(8, strategy="meces"))


@pytest.mark.parametrize("name", ["skip_alignment", "install_early"])
def test_a_fault_lets_the_run_complete_with_a_bad_verdict(name: str) -> None:
    found: Counter[str] = Counter()
    for seed in range(FAULT_SEEDS):
        found.update(simulate(seed, slot_machine=faults.MACHINES[name]).problems.keys())
    assert any(found[check] for check in VERDICT), found
    assert not {"violation", "crash", "stuck"} & found.keys(), found


@pytest.mark.parametrize(("name", "end"), [("never_prepared", "rolled back"), ("never_installed", "late step")])
def test_a_fault_that_keeps_a_step_from_ending_ends_it_at_its_deadline_and_the_job_goes_on(name: str, end: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        outcome = simulate(seed, slot_machine=faults.MACHINES[name], modes=[Mode()], deadline_ms=1000.0)
        assert not outcome.problems, outcome
        seen += outcome.seen
    assert seen[end] > 50, seen


def test_there_is_a_test_for_each_fault() -> None:
    tested = {"skip_alignment", "install_early", "never_prepared", "never_installed"}
    assert faults.MACHINES.keys() == tested


@pytest.mark.parametrize("name", mutant.by_name)
def test_a_bug_is_found(name: str) -> None:
    bug = mutant.by_name[name]  # that few runs find took 30 of the 50 s of CPU of all, without a seed of their own
    assert bug.hunt((bug.seed, *range(MUTANT_SEEDS)), simulate), f"{MUTANT_SEEDS} runs passed {bug.checks} with it"


def test_there_is_a_bug_for_each_check() -> None:
    modules = (counting, shells, simulation, virtual_time)
    checks = {check for module in modules for check in re.findall(r'problem\("([^"]+)"', inspect.getsource(module))}
    assert {check for bug in mutant.by_name.values() for check in bug.checks} == checks - {"crash"}


def test_what_a_run_sees_without_the_bug_too_is_no_sign_of_it() -> None:
    harmless = Mutant(SlotMachine, "drain", lambda original, *given: original(*given), ("stuck",), {})
    assert harmless.hunt([7], lambda seed: Outcome(seed, "", None, {"stuck": "anyway"})) is None


def test_a_failing_run_says_how_to_replay_it() -> None:
    bad = next(
        outcome
        for outcome in (simulate(seed, slot_machine=faults.InstallEarly, strategy="fluid") for seed in range(100))
        if outcome.problems
    )
    assert str(bad).startswith(f"replay: simulate({bad.seed}, strategy='fluid')\nShape(routers=")
    assert 0 < len(bad.story) <= 50
