"""The autoscaler's policy on a queueing model: the right number, no oscillation, bounds, silence, bursts, and costs."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queueing import Job, Stage

from keyshift.planner.autoscaling import COOL_DOWN_S, DOWN, UP, ScalingPolicy
from keyshift.planner.scaling import Goals, Look, StageLook

RATE = 1000.0  # records per second of a slot at work
WORTH_IT = 0.05  # above UP: so much nearer to their limit slots have to be, before another one costs less than misses


def factors(seed, most):
    """A fixed sequence of factors between 1 - most and 1 + most."""
    return lambda n: 1 + most * math.sin(seed + n * n * 12.9898)


def directions(job):
    """+1 or -1 for each migration."""
    return [
        1 if sum(stage.target for stage in move.stages) > sum(stage.slots for stage in move.stages) else -1
        for move in job.moves
    ]


loads = st.floats(0.05, 12.0)  # in slots that would be at work all the time
starts = st.integers(1, 16)
intervals = st.sampled_from([1.0, 2.0, 5.0])


@given(loads, starts, intervals, st.floats(0.1, 8.0))
def test_under_a_constant_load_it_finds_the_right_number_and_stays_there(load, start, every_s, takes_s):
    job = Job(Goals(1, 16), lambda _: load * RATE, [Stage(RATE, start)], every_s, takes_s).run(400)
    (slots,) = job.slots
    assert load / slots <= UP + WORTH_IT, "too few slots"
    assert slots == 1 or load / (slots - 1) > 0.99 * DOWN, "too many slots"
    assert job.at_s - (job.moves[-1].look.at_s if job.moves else 0) > 200
    assert job.stages[0].queue <= RATE, "the backlog of the beginning is worked off"


@given(loads, starts, intervals, st.floats(0, 100), st.floats(0.0, 0.05))
def test_under_a_constant_load_it_never_turns_back_whatever_the_noise(load, start, every_s, seed, noise):
    job = Job(Goals(1, 16), lambda _: load * RATE, [Stage(RATE, start)], every_s, 1.0, factors(seed, noise)).run(400)
    turns = directions(job)
    if start >= load / UP * 1.1:  # a job that begins without a backlog
        assert turns == [-1] * len(turns)
    # With one, it may need slots for a while that it does not need afterwards.
    assert [turn for turn, _ in itertools.groupby(turns)] in ([], [1], [-1], [1, -1])
    assert len(turns) <= 5
    assert job.slots[0] * RATE >= load * RATE


@given(st.floats(1.0, 10.0), st.integers(1, 3))
def test_when_nothing_comes_any_more_the_least_slots_are_left(load, least):
    job = Job(Goals(least, 16), lambda at_s: load * RATE if at_s < 60 else 0.0, [Stage(RATE, 4)]).run(200)
    assert job.slots == [least]
    assert job.stages[0].queue == 0


@given(st.floats(2.0, 10.0), st.integers(1, 3))
def test_a_burst_is_met_with_slots_and_its_backlog_worked_off(height, least):
    def offered(at_s):
        return height * RATE if 30 <= at_s < 90 else 0.5 * RATE

    job = Job(Goals(least, 16), offered, [Stage(RATE, least)])
    job.run(90)
    assert job.slots[0] >= height
    assert job.stages[0].queue < height * RATE, "worked off while the burst lasts"
    job.run(110)
    assert job.slots == [least]


@given(st.floats(0.5, 4.0), st.floats(0.2, 2.0), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_in_a_chain_each_stage_gets_what_the_stages_before_pass_on(load, passes_on, second, third):
    stages = [Stage(RATE, 1, passes_on), Stage(RATE * second, 1, 1.0), Stage(RATE * third, 1)]
    job = Job(Goals(1, 32), lambda _: load * RATE, stages).run(600)
    for slots, need in zip(job.slots, [load, load * passes_on / second, load * passes_on / third], strict=True):
        assert need / slots <= UP + WORTH_IT
        assert slots == 1 or need / (slots - 1) > 0.99 * DOWN


@given(loads, st.floats(0.05, 3.0), starts, st.booleans(), st.floats(0, 100), st.floats(0.0, 0.05))
def test_slots_are_for_the_records_that_a_source_makes_of_its_events(load, mapped, start, chain, seed, noise):
    """``load`` is of records; what is offered are events."""
    each = [1.0, 2.0] if chain else [1.0]
    stages = [Stage(RATE / need, 32 if chain else start) for need in each]
    job = Job(Goals(1, 32), lambda _: load * RATE / mapped, stages, noise=factors(seed, noise), mapped=mapped).run(400)
    for slots, need in zip(job.slots, each, strict=True):
        assert slots >= load * need
        assert slots == 1 or load * need / (slots - 1) > 0.9 * DOWN


def test_a_source_that_drops_most_of_its_events_gets_no_slots_for_them():
    job = Job(Goals(1, 8), lambda _: 3.0 * RATE, [Stage(RATE, 1)], mapped=0.08).run(200)
    assert job.slots == [1] and not job.moves
    assert job.decisions[-1].stages[0].utilisation < 0.3


@pytest.mark.parametrize("each", [[1.0], [1.0, 2.0]], ids=["a stage", "a chain"])
def test_what_a_source_makes_of_its_events_may_change(each):
    job = Job(Goals(1, 16), lambda _: 3.0 * RATE, [Stage(RATE / need, 1) for need in each], mapped=0.08).run(100)
    assert job.slots == [1 for _ in each]
    job.mapped = 1.5
    job.run(300)
    for slots, need in zip(job.slots, each, strict=True):
        assert DOWN < 4.5 * need / slots <= UP
    job.mapped = 0.08
    assert job.run(400).slots == [1 for _ in each]


needs = st.lists(st.floats(0.3, 3.0), min_size=2, max_size=4)  # by stage, in slots at work for each in ``loads``


@given(st.floats(0.1, 4.0), needs, st.integers(1, 12), st.floats(0, 100), st.floats(0.0, 0.03), st.floats(0.1, 5.0))
def test_no_stage_of_a_chain_turns_back_under_a_constant_load(load, each, start, seed, noise, takes_s):
    stages = [Stage(RATE / need, start) for need in each]
    job = Job(Goals(1, 16), lambda _: load * RATE, stages, takes_s=takes_s, noise=factors(seed, noise)).run(600)
    for number, need in enumerate(each):
        slots = [move.stages[number] for move in job.moves]
        turns = [1 if stage.target > stage.slots else -1 for stage in slots if stage.target != stage.slots]
        assert [turn for turn, _ in itertools.groupby(turns)] in ([], [1], [-1], [1, -1]), number
        assert job.slots[number] >= load * need or job.slots[number] == 16
        assert len(turns) <= 5


@given(
    st.lists(st.floats(0, 30), min_size=1, max_size=6),
    st.lists(st.floats(0.3, 3.0), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 6),
    st.floats(0.1, 5.0),
)
def test_bounds_and_the_cool_down_hold_for_each_stage_whatever_comes(levels, each, least, more, takes_s):
    goals = Goals(least, least + more)
    stages = [Stage(RATE / need, least, 1.5) for need in each]
    job = Job(goals, lambda at_s: levels[int(at_s / 40) % len(levels)] * RATE, stages, takes_s=takes_s).run(300)
    for decision in job.decisions:
        assert not (decision.moves and decision.look.migrating)
        for stage in decision.stages:
            assert goals.slots_min <= min(stage.target, stage.wanted)
            assert max(stage.target, stage.wanted) <= goals.slots_max
    for (_, ended_s), (decided_s, _) in itertools.pairwise(job.migrations):
        assert decided_s >= ended_s + COOL_DOWN_S


@given(loads, st.integers(1, 16), st.floats(0.1, 8.0))
def test_what_was_scaled_by_hand_stays_for_the_cool_down_and_then_is_as_good_as_any(load, by_hand, takes_s):
    job = Job(Goals(1, 16), lambda _: load * RATE, [Stage(RATE, 16)], takes_s=takes_s).run(200)
    before, moves = len(job.migrations), len(job.moves)
    job.scale_by_hand([by_hand])
    job.run(200)
    ended_s = job.migrations[before][1]
    later = [move.look.at_s for move in job.moves[moves:]]
    assert not later or later[0] >= ended_s + COOL_DOWN_S
    (slots,) = job.slots
    assert load / slots <= UP + WORTH_IT
    assert slots == 1 or load / (slots - 1) > 0.99 * DOWN or slots <= by_hand


def staircase(at_s):
    return {0: 0.5, 1: 2.0, 2: 5.0, 3: 2.0, 4: 0.2}[int(at_s / 60)] * RATE


def test_a_staircase_costs_less_than_the_most_slots_and_misses_less_than_the_least():
    scaled = Job(Goals(1, 8), staircase, [Stage(RATE, 1)]).run(300)
    most, least = (Job(Goals(n, n), staircase, [Stage(RATE, n)]).run(300) for n in (8, 1))
    assert not most.moves and not least.moves
    assert most.missed_s == 0
    assert 0 < scaled.missed_s < 0.15 * least.missed_s
    assert scaled.slot_s < 0.6 * most.slot_s
    assert directions(scaled) == [1, 1, -1, -1]


def test_a_migration_that_has_proved_dear_is_not_made_for_a_few_slot_seconds():
    def offered(at_s):
        return (2.9 if at_s < 200 else 1.1) * RATE

    cheap, dear = (Job(Goals(1, 8), offered, [Stage(RATE, 8)], takes_s=s, felt=True).run(400) for s in (0.2, 25.0))
    assert directions(cheap) == [-1, -1] and cheap.slots == [2]
    assert directions(dear) == [-1] and dear.slots == [5]
    refused = [d for d in dear.decisions if d.reason == "a move would cost more than it brings"]
    assert refused and all(decision.move_cost >= decision.stay_cost for decision in refused)
    assert dear.policy.takes_s > 10 * cheap.policy.takes_s


@given(st.floats(2.0, 6.0), st.floats(67.0, 72.0))
def test_a_burst_while_slots_go_or_soon_after_is_not_what_migrations_cost(height, begin_s):
    def offered(at_s):
        return (3.0 if at_s < 60 else height if begin_s <= at_s < begin_s + 5 else 0.5) * RATE

    job = Job(Goals(1, 8), offered, [Stage(RATE, 4)]).run(90)
    assert directions(job)[0] == -1
    assert job.policy.misses_s <= 1.0, "nothing was learnt"
    assert job.run(110).slots == [1]


def test_what_migrations_have_cost_is_forgotten_in_the_end():
    job = Job(Goals(1, 8), lambda at_s: (3.0 if at_s < 60 else 0.5) * RATE, [Stage(RATE, 4)]).run(61)
    job.policy.misses_s, job.policy.takes_s = 12.0, 20.0
    assert job.run(200).slots == [4], "too dear"
    assert 1.0 < job.policy.misses_s < 12.0 and 4.0 < job.policy.takes_s < 20.0
    assert job.run(3000).slots == [1]


def test_slots_that_share_two_cores_are_not_added_again_when_they_have_brought_nothing():
    job = Job(Goals(1, 16), lambda _: 3.0 * RATE, [Stage(RATE, 2, cores=2)]).run(120)
    assert job.slots[0] < 16, "the first move brought nothing: it is not repeated at once"
    assert job.decisions[-1].stages[0].worth < 0.7


def seen(at_s, offered, slots, records, busy_s, **more):
    return Look(at_s, offered, more.pop("backlog", 0.0), 0.0, (StageLook(slots, records, busy_s),), **more)


def test_the_numbers_of_a_decision_are_those_it_was_made_with():
    policy = ScalingPolicy(Goals(1, 8, work_off_s=10.0))
    first = policy.look(seen(0.0, 1000.0, 2, 0, 0))
    assert (first.reason, first.moves) == ("a measurement begins", False)
    assert math.isnan(first.stages[0].true_per_s) and math.isnan(first.stay_cost)
    policy.look(seen(2.0, 3000.0, 2, 4000, 4.0, backlog=6500.0))
    made = policy.look(seen(4.0, 3000.0, 2, 4000, 4.0, backlog=6500.0))
    (stage,) = made.stages
    assert stage.true_per_s == 1000.0
    assert stage.demand_per_s == 3000.0 + (6500.0 - 1500.0) / 10.0
    assert stage.utilisation == 3500.0 / 2000.0
    assert (stage.slots, stage.wanted, stage.target) == (2, 5, 5)
    assert made.moves and made.move_cost < made.stay_cost


def test_what_slots_do_without_records_says_nothing_about_their_rate():
    policy = ScalingPolicy(Goals(1, 8))
    policy.look(seen(0.0, 500.0, 2, 0, 0))
    assert policy.look(seen(2.0, 500.0, 2, 1000, 1.0)).stages[0].true_per_s == 1000.0
    for n in range(2, 20):
        quiet = policy.look(seen(2.0 * n, 0.0, 1, 0, 0.2))
    assert quiet.stages[0].true_per_s == 1000.0


def test_looks_that_do_not_agree_change_nothing():
    policy = ScalingPolicy(Goals(1, 8))
    policy.look(seen(0.0, 1000.0, 4, 0, 0))
    for n in range(1, 30):
        offered = (6000.0, 1000.0)[n % 2]
        assert not policy.look(seen(2.0 * n, offered, 4, 2 * offered, 2 * offered / RATE)).moves
