"""Migrations that are small enough to follow by hand: one unit over one link, and what each strategy adds to that."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from small_cluster import FREE, ONE_LINK, assignment, carried_out, load

from keyshift.forecast import Cluster
from keyshift.forecast.waiting import Waits
from keyshift.model.errors import BadInput

HERE, THERE = assignment(0, 0), assignment(0, 1)  # unit 1 moves
PAIR = load([10.0, 10.0])


def host(slots: int, cores: int) -> Cluster:
    """One host, which needs no link; at 0.02 s for each byte a core sends 100 bytes/s, another one receives them."""
    return Cluster(host_slots=slots, cores=cores, link_bytes_per_s=1.0)


ONE, TWO = (HERE, THERE), (assignment(0, 0, 0), assignment(0, 1, 2))  # units that move, to as many slots
TO_ONE = (assignment(0, 0, 0), assignment(0, 1, 1))
SLOW = replace(FREE, byte_s=0.02)
BEFORE_IT = replace(FREE, request_s=5.0, notify_s=0.2, answer_s=0.3, handover_s=0.05)


@pytest.mark.parametrize(
    ("moves", "cluster", "costs", "seconds"),
    [
        pytest.param(ONE, ONE_LINK, FREE, 1.0, id="its bytes by the bandwidth"),
        pytest.param(TWO, ONE_LINK, FREE, 2.0, id="two share the link of their source"),
        # Switched at 5.5 s, heard at 5.7 s, which is when the router has its next frame.
        pytest.param(ONE, ONE_LINK, BEFORE_IT, 0.2 + 0.05 + 1.0, id="and all times of a step before it"),
        # Published at 0, prepared and switched at 0.03, heard at 0.06, next frame at 0.1.
        pytest.param(ONE, ONE_LINK, replace(FREE, notify_s=0.03), 0.1 - 0.03 + 1.0, id="between two frames"),
        pytest.param(ONE, host(2, 2), SLOW, 1.0, id="a core each"),
        pytest.param(ONE, host(2, 1), SLOW, 2.0, id="slots of a host share its cores"),
        pytest.param(ONE, host(2, 2), replace(SLOW, unit_s=0.5), 1.25, id="a unit, whatever its size"),
        pytest.param(TWO, host(3, 3), replace(SLOW, stream_s=0.5), 2.5, id="a stream, whatever it sends"),
        pytest.param(TO_ONE, host(3, 3), replace(SLOW, stream_s=0.5), 2.25, id="one stream"),
    ],
)
def test_a_step_takes(moves, cluster, costs, seconds):
    found = carried_out("all_at_once", *moves, load([10.0] * len(moves[0].owner)), cluster, costs)
    assert found.completion_s == pytest.approx(seconds)


def test_what_a_migration_has_moved_and_the_least_that_it_could_have_taken_are_told():
    found = carried_out("all_at_once", *ONE, PAIR)
    assert found.completion_s == pytest.approx(found.floor_s)
    assert (found.bytes_moved, found.bytes_minimum, found.units_moved, found.steps) == (100, 100, 1, 1)


def test_steps_follow_each_other_and_the_coordinator_hears_one_answer_after_the_other_while_routers_keep_records():
    apart = carried_out("fluid", *TWO, load([1.0] * 3))
    assert apart.completion_s == pytest.approx(2.0, abs=0.11)  # and the wait for a frame
    assert (apart.steps, apart.step_s) == (2, pytest.approx(1.0))
    costs = replace(FREE, ack_s=0.2)
    slowly = carried_out("fluid", *TO_ONE, load([1.0] * 3), costs=costs)
    # Two have prepared by 0.4 s; done at 1.4, two have ended and prepared by 2.2; switched then.
    assert slowly.completion_s == pytest.approx(3.2 - 0.4)
    assert carried_out("order_unaware", HERE, THERE, PAIR, costs=costs).longest_s == pytest.approx(1.0)
    assert carried_out("pause_resume", HERE, THERE, PAIR, costs=costs).longest_s == pytest.approx(1.0 + 2 * 0.2)


def test_records_of_the_unit_wait_for_it_and_no_others_and_fewer_than_one_event_in_a_hundred_are_no_spike():
    found, few = (carried_out("all_at_once", HERE, THERE, offered) for offered in (PAIR, load([1000.0, 1.0])))
    assert found.longest_s == few.longest_s == pytest.approx(1.0)
    # Half of the events, from its first frame on. P99 without a wait is the wait for a frame.
    assert found.p99_ms == pytest.approx(99, abs=1)
    assert found.spike_ms == pytest.approx(1000, rel=0.1)
    assert found.seconds.set_index("second").loc[1, "p99_ms"] == pytest.approx(found.p99_ms, abs=1)
    assert few.spike_ms == pytest.approx(few.p99_ms, rel=0.02)


@pytest.mark.parametrize("strategy", ["order_unaware", "pause_resume"])
def test_a_gate_makes_all_records_of_its_slots_wait_until_the_state_has_arrived(strategy):
    quiet = load([100.0, 0.0])  # nobody asks for what moves
    assert carried_out("all_at_once", HERE, THERE, quiet).spike_ms == pytest.approx(99, abs=1)
    assert carried_out(strategy, HERE, THERE, quiet).spike_ms == pytest.approx(1000, rel=0.1)
    # Where records of the unit alone wait, they are processed by 1.67 s.
    found = carried_out(strategy, HERE, THERE, PAIR, costs=replace(FREE, event_s=0.04))
    assert found.longest_s == pytest.approx(1.0)
    assert found.seconds["p99_ms"].iloc[1] > 400


def test_what_waited_keeps_the_slot_busy():
    quick = carried_out("all_at_once", HERE, THERE, PAIR)
    slow = carried_out("all_at_once", HERE, THERE, PAIR, costs=replace(FREE, event_s=0.04))
    beyond = quick.seconds["p99_ms"].iloc[1], slow.seconds["p99_ms"].iloc[1]
    assert beyond[0] < 250 < 400 < beyond[1]


def test_a_second_of_a_long_wait_keeps_the_lengths_that_occur_in_it():
    waits = Waits(PAIR)
    tracemalloc.start()
    try:
        waits.add(np.array([0.1]), np.array([2000.0]), np.array([10.0]), np.zeros(1))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2000 * 16 < kept < 2000 * 1000, "bytes; all lengths up to the longest would be more than 6000 for each"


def test_what_is_asked_for_comes_first():
    one, other = assignment(0, 0, 0, 0), assignment(0, 1, 1, 1)
    asked = load([1.0, 0.0, 0.0, 50.0])
    pushed = carried_out("drrs", one, other, asked, transfer="push", order="id")
    fetched = carried_out("drrs", one, other, asked)
    assert fetched.completion_s == pytest.approx(pushed.completion_s)
    assert fetched.longest_s < 0.75 * pushed.longest_s


def test_a_restart_writes_and_reads_all_state_and_stops_all_records():
    costs = replace(FREE, restart_s=3.0)
    found = carried_out("stop_restart", HERE, THERE, PAIR, costs=costs)
    assert found.completion_s == pytest.approx(3.0 + 2.0 + 1.0)  # two units out of one host, one into each
    assert (found.bytes_moved, found.units_moved) == (200, 2), "as a run tells it: all units leave their slots"
    assert found.spike_ms == pytest.approx(6000, rel=0.05)


@pytest.mark.parametrize(
    ("host_slots", "owners", "unit_bytes", "seconds"),
    [
        # Of 400 bytes two slots write half each, and four read a quarter each, whatever room is left on their host.
        (4, ((0, 0, 1, 1), (0, 1, 2, 3)), [100.0] * 4, 400 * 0.01 / 2 + 400 * 0.01 / 4),
        (10, ((0, 0, 1, 1), (0, 1, 2, 3)), [100.0] * 4, 400 * 0.01 / 2 + 400 * 0.01 / 4),
        # One slot with 100 bytes on the first host, two with 150 on the second, which takes longest.
        (2, ((0, 2, 3), (0, 3, 2)), [100.0, 75.0, 75.0], 2 * 1.0),
    ],
)
def test_a_restart_uses_a_core_for_each_slot_that_owns_state(host_slots, owners, unit_bytes, seconds):
    costs, cluster = replace(FREE, stored_byte_s=0.02), Cluster(host_slots, cores=8, link_bytes_per_s=1e9)
    offered = replace(load([1.0] * len(unit_bytes)), unit_bytes=np.array(unit_bytes))
    here, there = (assignment(*owner) for owner in owners)
    assert carried_out("stop_restart", here, there, offered, cluster, costs).completion_s == pytest.approx(seconds)


@pytest.mark.parametrize("strategy", ["replicated", "rhino"])
def test_of_a_copied_unit_only_what_has_changed_travels_also_to_a_slot_that_had_none(strategy):
    found = carried_out(strategy, HERE, THERE, load([10.0, 10.0], copy_every_s=2.0), replicate=1)
    assert found.bytes_copied == 100
    assert found.bytes_moved == pytest.approx(100 * (1 - np.exp(-1)))  # ten events on ten keys


def test_a_migration_waits_for_copies_that_were_not_there_before():
    waiting = carried_out("replicated", HERE, THERE, PAIR, replicate=1, copies="warm_up")
    assert waiting.replicate_s == pytest.approx(1.0)
    assert waiting.completion_s < 1.0


@pytest.mark.parametrize("strategy", ["matched", "stop_restart"])
def test_nothing_to_move_takes_no_time(strategy):
    found = carried_out(strategy, HERE, HERE, PAIR, costs=replace(FREE, restart_s=3.0))
    assert (found.completion_s, found.steps, found.bytes_moved, found.floor_s) == (0.0, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("strategy", "offered", "costs", "words"),
    [
        ("lazy", PAIR, FREE, "transfer = access: keys that move one by one"),
        ("hybrid", PAIR, FREE, "transfer = remote: keys that move one by one"),
        ("stop_restart", PAIR, replace(FREE, restart_s=np.nan), r"with at least two sizes of state, one 1\.5 times"),
        ("fluid", PAIR, replace(FREE, event_s=0.06), r"rate = 20: slot 0 would be busy for 1\.2 s of each second"),
        ("fluid", PAIR, replace(FREE, row_s=0.2), "2 s of them with 10 rows; lower rate"),
    ],
)
def test_what_cannot_be_simulated_is_refused(strategy, offered, costs, words):
    with pytest.raises(BadInput, match=words):
        carried_out(strategy, HERE, THERE, offered, costs=costs)


@pytest.mark.parametrize(("name", "value"), [("cores", 0), ("link_bytes_per_s", float("nan"))])
def test_hosts_have_cores_slots_and_links(name, value):
    with pytest.raises(BadInput, match=f"{name} = {value}"):
        replace(ONE_LINK, **{name: value})
