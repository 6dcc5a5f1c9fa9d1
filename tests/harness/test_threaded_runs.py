"""Runs of everything but the services, with failures of all kinds; and bugs in the shell that such runs must find."""

from itertools import chain

import pytest
from judging import none_is_bad
from shape import IN_TURNS, KINDS, OF_STAGES_IN_TURNS, OF_TWO_SOURCES, WORKLOADS, draw
from shell_mutants import hunt, mutant

from small_run import NIGHT, at_night

SEEDS = 125 if NIGHT else 1  # of each workload and kind, by day of every second kind: 12 runs, or 3000 at night
FAILS = 0.2  # of Flight's calls before they have worked, and as many after
MUTANT_SEEDS = 32  # the shyest are found by every third run
MUTANT_S = 800.0
HUNTED = list(mutant.by_name) if NIGHT else list(mutant.by_name)[::4]

# What the runs have to have had, or they prove little.
OFTEN = (
    *("batches", "copied", "logs judged", "measured", "moved process", "queries died"),
    *("processes left", "sessions expired", "snapshots judged", "steps complete"),
)
AT_NIGHT = (*OFTEN, "leaders died", "restarts", "steps cancelled")


def of_each_kind(pool, workload, number, workloads=1):
    """Its outcomes. All runs begin at once: most of a run is waiting. ``number``: of the workload, among so many."""
    asked = []
    for place, kind in enumerate(KINDS):
        if NIGHT or place % 2 == number % 2:
            begin = SEEDS * (workloads * place + number)
            asked.append(pool.run(range(begin, begin + SEEDS), kind=kind, workload=workload, fails=FAILS))
    return [list(outcomes) for outcomes in asked]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_event_has_one_right_result_of_its_owner_whatever_fails(pool, seen, workload):
    outcomes = [*chain(*of_each_kind(pool, workload, WORKLOADS.index(workload), len(WORKLOADS)))]
    none_is_bad(outcomes, seen)


def test_a_job_of_two_sources_and_three_stages_keeps_that(pool):
    for outcomes in of_each_kind(pool, OF_TWO_SOURCES, 0):
        none_is_bad(outcomes)
        assert sum(outcome.seen["events"] for outcome in outcomes) > 100 * SEEDS


@pytest.mark.parametrize(("slots", "slots_behind"), [(1, 4), (4, 1)])
def test_so_does_one_whose_stages_have_other_numbers_of_slots(pool, slots, slots_behind):
    stages = {"slots": slots, "begin_slots": slots, "slots_behind": slots_behind}
    seeds = range(2, 3 + SEEDS)
    outcomes = list(pool.run(seeds, kind="push", workload="chain", fails=FAILS, **stages))
    assert sum(outcome.seen["events"] for outcome in outcomes) > 100 * len(seeds)
    assert sum(outcome.seen["steps complete"] for outcome in outcomes) > 0
    none_is_bad(outcomes)


def test_slots_behind_their_rows_wait_for_one_that_comes_to_its_own_behind_their_deadline(pool):
    held = {"batch_s": 1.0, "held_s": 11.0, "deadline_s": 8.0, "leaves": 0.5, "snapshot_s": 0.0, "fails": 0.0}
    held |= {"slots": 3, "begin_slots": 3, "restarts": False}
    kinds = KINDS if NIGHT else KINDS[::2]
    others = [*({"kind": kind} for kind in kinds), *({"ordering": each} for each in ("live_robin", "kazoo"))]
    outcomes = [*chain(*[pool.run([23], **held, **each) for each in others])]
    none_is_bad(outcomes)
    assert sum(outcome.seen["late behind their rows"] for outcome in outcomes) > 0


ALL_IN_TURNS = [*IN_TURNS, OF_STAGES_IN_TURNS]
LED = [("kazoo", workload) for workload in IN_TURNS]
BY_TIME = ("time_merge", "windowcount")


@pytest.mark.parametrize(
    ("ordering", "workload"),
    [*(("live_robin", workload) for workload in ALL_IN_TURNS), BY_TIME, LED[0], *(at_night(*each) for each in LED[1:])],
)
def test_so_it_is_if_slots_work_in_turns(pool, seen, ordering, workload):
    """With a leader no job has snapshots yet, and none of several stages moves state."""
    first, pinned = 10_000 + SEEDS * ALL_IN_TURNS.index(workload), {"snapshot_s": 0.0} if ordering == "kazoo" else {}
    seeds = range(first, first + SEEDS)
    outcomes = list(pool.run(seeds, workload=workload, ordering=ordering, **pinned))
    none_is_bad(outcomes, seen)
    assert all(outcome.seen["turns"] for outcome in outcomes)


def test_in_turns_what_timers_of_a_first_stage_give_reaches_the_second(pool, seen):
    calm = {"snapshot_s": 0.0, "flight_s": 0.0, "batch_s": None}
    outcomes = list(pool.run(range(3), workload="nexmark", query="q4", ordering="live_robin", **calm))
    none_is_bad(outcomes, seen)
    assert all(outcome.seen["turns"] for outcome in outcomes)


@pytest.mark.parametrize("workload", ALL_IN_TURNS)
def test_no_job_that_works_in_turns_has_batches_that_take_longer_to_begin_than_they_last(workload):
    shapes = [draw(seed, workload=workload, ordering="live_robin") for seed in range(10_000, 10_100)]
    assert not [shape for shape in shapes if shape.batch_s == 0.25 and shape.flight_s > 0.02]
    assert draw(10_017, workload=workload, ordering="live_robin", batch_s=0.25).batch_s == 0.25, "it is wanted"


def test_the_runs_were_as_bad_as_they_should_be(seen):
    wanted = AT_NIGHT if NIGHT else OFTEN
    assert {what for what in wanted if not seen[what]} == set(), seen
    assert sum(times for what, times in seen.items() if what.startswith("flight: ")) > 10 * SEEDS, seen


def test_each_bug_is_in_something_that_is_there():
    for bug in mutant.by_name.values():
        with bug.there():
            pass


@pytest.fixture(scope="module")
def hunts(pool):
    """All at once: most of a run is waiting."""
    return {name: pool.submit(hunt, name, MUTANT_SEEDS, seconds=MUTANT_S) for name in HUNTED}


@pytest.mark.parametrize("name", HUNTED)
def test_a_bug_in_the_shell_is_found(hunts, name):
    assert hunts[name].result() is not None, f"{MUTANT_SEEDS} runs went well with it"
