"""Thousands of simulated runs of replicas with each order protocol, and machines with a bug that they must find."""

from collections import Counter

import pytest
from hypothesis import settings
from ordering_mutants import MUTANTS
from ordering_simulation import simulate

from keyshift.ordering import orderings

AGREE = [name for name, protocol in orderings.items() if protocol.agrees]
SEEDS = 700 * settings.default.max_examples // 100  # per protocol; at night 35 000
MUTANT_SEEDS = 300

# Where it is difficult: how often a protocol's runs have to be there, or they prove little.
OFTEN = (
    "back from a capture",
    "back from a snapshot",
    "back from the beginning",
    "batches",
    "barriers",
    "captures",
    "rows handed over",
    "snapshots",
    "stopped",
)
OFTEN_WITH_LEADERS = (
    "append repeated",
    "came in behind its term",
    "came in behind the death of its leader",
    "elections",
    "expired",
    "no candidate",
    "resigned",
)


@pytest.mark.parametrize("name", AGREE)
def test_all_replicas_deliver_the_same_turns_in_every_run(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = simulate(seed, name)
        assert not outcome.problems, outcome
        seen += outcome.seen
    places = OFTEN + (OFTEN_WITH_LEADERS if orderings.get(name).leads else ())
    assert {place for place in places if seen[place] < 30} == set(), seen
    assert seen["turns"] > 10 * SEEDS, seen


@pytest.mark.parametrize("name", AGREE)
def test_a_seed_replays_its_run_exactly(name: str) -> None:
    assert str(simulate(7, name)) == str(simulate(7, name))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_bug_is_found(name: str) -> None:
    protocol, changes, check = MUTANTS[name]
    for seed in range(MUTANT_SEEDS):
        if check in simulate(seed, protocol, **changes).problems:
            return
    pytest.fail(f"{changes} passed {MUTANT_SEEDS} runs without {check!r}")


def test_a_failing_run_says_how_to_replay_it() -> None:
    protocol, changes, _ = MUTANTS["live_robin: DeliversOnArrival"]
    outcomes = (simulate(seed, protocol, **changes) for seed in range(100))
    bad = next(outcome for outcome in outcomes if outcome.problems)
    assert str(bad).startswith(f"replay: simulate({bad.seed}, 'live_robin')\nShape(given=")
    assert 0 < len(bad.story) <= 40
