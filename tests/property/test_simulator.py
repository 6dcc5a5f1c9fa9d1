"""Whatever the strategy, the placement and the load: what the simulator must keep, whatever its costs are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyshift.forecast import Cluster, Costs, Load, simulated
from keyshift.forecast.model import LEVELS
from keyshift.model.keys import Assignment, SlotId
from keyshift.planner import in_units, make_plan, strategies

POSSIBLE = [name for name, strategy in strategies.items() if strategy.unit != "key"]
WHOLE = [name for name in POSSIBLE if not strategies.get(name).replicate]
NAMES = st.sampled_from(POSSIBLE)
SECONDS = st.floats(0.0, 0.1)
CLUSTERS = st.builds(Cluster, st.integers(1, 3), st.integers(1, 4), st.floats(1e3, 1e6))
COSTS = st.builds(
    Costs, request_s=SECONDS, notify_s=SECONDS, answer_s=SECONDS, ack_s=SECONDS, handover_s=SECONDS,
    stream_s=SECONDS, unit_s=SECONDS,
    byte_s=st.floats(1e-9, 1e-4), restart_s=SECONDS, stored_byte_s=st.floats(0.0, 1e-5), event_s=st.floats(0.0, 1e-4),
    row_s=st.floats(0.0, 1e-4), before_ms=st.just(tuple(10 * LEVELS)),
)  # fmt: skip


@st.composite
def placed(draw):
    """Where units are and are to be, and what is offered to them; of groups, before a strategy cuts them."""
    groups, slots = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    owners = st.lists(st.integers(0, slots - 1).map(SlotId), min_size=groups, max_size=groups)
    current, target = (Assignment(1, tuple(draw(owners))) for _ in range(2))
    sizes = np.array(draw(st.lists(st.floats(0.0, 1e5), min_size=groups, max_size=groups)))
    rates = np.array(draw(st.lists(st.floats(0.1, 100.0), min_size=groups, max_size=groups)))
    load = Load(rates, sizes, np.full(groups, 10.0), draw(st.integers(1, 3)), draw(st.sampled_from((0.02, 0.1))))
    return current, target, load


def carried_out(name, case, cluster, costs, seed=1):
    strategy = strategies.get(name).of_migration(0)
    current, target, load = case
    bins = strategy.bins
    load = replace(
        load,
        rates=np.repeat(load.rates / bins, bins),
        unit_bytes=np.repeat(load.unit_bytes / bins, bins),
        unit_keys=np.repeat(load.unit_keys / bins, bins),
    )
    current, target = in_units(strategy, current), in_units(strategy, target)
    plan = make_plan(strategy, current, target, load.rates.tolist(), seed)
    return plan, target, load, simulated(strategy, plan, current, target, load, cluster, costs, seed)


@given(NAMES, placed(), CLUSTERS, COSTS)
def test_every_unit_comes_where_the_plan_wants_it_and_none_is_lost(name, case, cluster, costs):
    plan, target, load, found = carried_out(name, case, cluster, costs)
    assert found.assignment.owner == target.owner
    moved = len(load.unit_bytes) if name == "stop_restart" and plan.steps else plan.moves  # a restart moves all units
    assert (found.units_moved, found.steps) == (moved, len(plan.steps))
    assert found.seconds["count"].tolist() == [load.rates.sum()] * len(found.seconds)
    assert (found.seconds["p99_ms"] >= found.seconds["p50_ms"]).all()


@given(NAMES, placed(), CLUSTERS, COSTS)
def test_what_moves_is_what_the_plan_says(name, case, cluster, costs):
    plan, _, load, found = carried_out(name, case, cluster, costs)
    units = [move.unit for step in plan.steps for move in step.moves]
    assert found.bytes_minimum == pytest.approx(load.unit_bytes[units].sum())
    assert found.bytes_copied == pytest.approx(load.unit_bytes[[copy.unit for copy in plan.copies]].sum())
    if name == "stop_restart" and plan.steps:
        assert found.bytes_moved == pytest.approx(load.unit_bytes.sum())
    elif name in WHOLE:
        assert found.bytes_moved == pytest.approx(found.bytes_minimum)
    else:
        assert found.bytes_moved <= found.bytes_minimum * (1 + 1e-9)


@given(st.sampled_from(WHOLE), placed(), CLUSTERS, COSTS)
def test_nothing_that_moves_whole_is_faster_than_a_bare_copy(name, case, cluster, costs):
    *_, found = carried_out(name, case, cluster, costs)
    assert found.completion_s >= found.floor_s * (1 - 1e-6)


@given(st.sampled_from([name for name in POSSIBLE if name not in ("drrs", "meces")]), placed(), CLUSTERS, COSTS)
def test_more_bandwidth_is_never_slower(name, case, cluster, costs):
    """Not of a fetch: what is asked for first is sent first, and that may end a step's last slot later."""
    *_, slow = carried_out(name, case, cluster, costs)
    *_, fast = carried_out(name, case, replace(cluster, link_bytes_per_s=2 * cluster.link_bytes_per_s), costs)
    frame_s = case[2].frame_s
    assert fast.completion_s <= slow.completion_s + frame_s * slow.steps * 1e-6 + 1e-9
    assert fast.longest_s <= slow.longest_s + frame_s


@given(NAMES, placed(), CLUSTERS, COSTS)
def test_the_same_question_has_the_same_answer(name, case, cluster, costs):
    *_, one = carried_out(name, case, cluster, costs)
    *_, other = carried_out(name, case, cluster, costs)
    assert one.seconds.equals(other.seconds)
    assert {**vars(one), "seconds": 0} == {**vars(other), "seconds": 0}
