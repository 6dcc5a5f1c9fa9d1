"""Chains of drivers of one job, with all that may befall them; and bugs in the driver that such runs must find."""

import driver_run
import pytest
from driver_mutants import hunt, mutant
from judging import none_is_bad

from small_run import NIGHT

SEEDS = 416 if NIGHT else 6  # of each kind: 24 runs, or 1664 at night
MUTANT_SEEDS = 24
MUTANT_S = 1500.0
BY_DAY = [  # found by every second or third run, of a few seconds
    "deletes_however_it_ends",
    "removes_snapshots_before_the_journal_names_their_successors",
    "writes_two_snapshots_at_once",
]
HUNTED = list(mutant.by_name) if NIGHT else BY_DAY

# What the runs of a kind draw; see ``driver_shape.draw_chain``.
KINDS = {
    "killed": {"ends": ("kill",), "does": ("die",)},
    "paused": {"ends": ("pause",), "does": ("pause", "die")},
    "without its services": {"ends": ("interrupt", "stop"), "does": ("fail", "stall")},
    "whatever befalls": {},
}
OFTEN = ("lives", "paused", "promises judged", "requests", "resumes", "stopped", "woken")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_survives_its_driver(pool, seen, kind):
    first = SEEDS * list(KINDS).index(kind)
    outcomes = list(pool.run(range(first, first + SEEDS), driver_run.run, **KINDS[kind]))
    none_is_bad(outcomes, seen)


def test_the_drivers_had_enough_to_survive(seen):
    assert {what for what in OFTEN if not seen[what]} == set(), seen
    struck = {what.split()[0] for what in seen if " " in what}
    assert struck >= {"die", "pause", "stall", "fail"}, seen


def test_each_bug_is_in_something_that_is_there():
    for bug in mutant.by_name.values():
        with bug.there():
            pass


@pytest.fixture(scope="module")
def hunts(pool):
    """All at once: most of a run is waiting."""
    return {name: pool.submit(hunt, name, MUTANT_SEEDS, seconds=MUTANT_S) for name in HUNTED}


@pytest.mark.timeout(1.2 * MUTANT_S)
@pytest.mark.parametrize("name", HUNTED)
def test_a_bug_in_the_driver_is_found(hunts, name):
    assert hunts[name].result() is not None, f"{MUTANT_SEEDS} runs went well with it"
