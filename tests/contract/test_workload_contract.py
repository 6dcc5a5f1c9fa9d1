"""Every registered workload keeps the promises of ``keyshift.workloads.Workload``; a new one needs only PARAMETERS."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyshift.frames import EVENT_FIELDS, RESULT_FIELDS
from keyshift.keys import Assignment, units_of
from keyshift.lab.sequential import run_offline
from keyshift.results.verdict import judge
from keyshift.state import backends
from keyshift.state.memory import MemoryState
from keyshift.state.timers import EVENT, PROCESSING, Timers
from keyshift.workloads import workloads

# What every workload takes; one that needs more adds it here under its name.
COMMON = {"key_groups": 8, "bins": 2, "keys": 40, "skew": 0.5, "state_bytes": 64, "seed": 11}
PARAMETERS: dict[str, dict] = {
    # Short enough for an offline run of a tenth of a second, in which an event of a key comes every 40 ms or so.
    "windowcount": {"window_ms": 20, "delay_ms": 10, "late_share": 0.1, "idle_ms": 15},
}
ASSIGNMENTS = [Assignment.contiguous(16, 2), Assignment.contiguous(16, 4, 2), Assignment.contiguous(16, 3, 3)]


def make(name):
    return workloads.get(name)(**COMMON | PARAMETERS.get(name, {}))


@pytest.fixture(params=workloads.names())
def workload(request):
    return make(request.param)


def offline(workload, **changes):
    return run_offline(workload, ASSIGNMENTS, **({"frames": 12} | changes))


def judged(workload, run, **changes):
    """The verdict on a run, of which some tables may be others."""
    given = {name: getattr(run, name) for name in ("events", "results", "final", "assignments", "times")}
    return judge(workload, **(given | changes))


def of_timers(results: pd.DataFrame) -> pd.Series:
    return (results[["router", "offset", "position"]] == -1).all(axis=1)


TIMED = [name for name in workloads.names() if of_timers(offline(make(name)).results).any()]


@pytest.fixture(params=TIMED)
def timed(request):
    """A workload that has timers."""
    return make(request.param)


def test_it_has_a_name_a_summary_of_one_line_and_the_placement_it_was_given(workload):
    assert workloads.get(workload.name) is type(workload)
    assert workload.summary.strip()
    assert "\n" not in workload.summary
    assert (workload.key_groups, workload.bins) == (8, 2)


def test_its_columns_begin_with_those_of_every_event_and_add_to_those_of_every_result(workload):
    assert tuple(workload.sources[0].schema)[: len(EVENT_FIELDS)] == EVENT_FIELDS
    assert not {f.name for f in workload.stages[0].result_fields} & {f.name for f in RESULT_FIELDS}


def test_a_source_gives_the_same_events_again_whatever_is_taken_at_once(workload):
    times = np.arange(100, dtype=np.int64)
    whole = workload.sources[0].partition(1).take(times)
    source = workload.sources[0].partition(1)
    parts = [source.take(times[begin:end]) for begin, end in [(0, 1), (1, 1), (1, 60), (60, 100)]]
    assert whole.schema == workload.sources[0].schema
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([whole])
    assert whole.column("t").to_pylist() == times.tolist()
    assert workload.sources[0].partition(0).take(times) != whole


def test_an_operator_answers_in_the_order_of_the_events_with_the_promised_columns(workload):
    operator = workload.stages[0].operator()
    states = [MemoryState(operator.state_schema) for _ in range(16)]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    events = workload.sources[0].partition(0).take(np.arange(30, dtype=np.int64))
    units = units_of(events.column("key").to_numpy(), 8, 2)
    events = events.append_column("position", pa.array(np.arange(30, dtype=np.int32)))
    answer = operator.process(events.append_column("unit", pa.array(units)), states.__getitem__)
    wanted = [RESULT_FIELDS[0], RESULT_FIELDS[1], RESULT_FIELDS[4], *workload.stages[0].result_fields]
    assert {f.name: f.type for f in answer.schema} == {f.name: f.type for f in wanted}
    positions = answer.column("position").to_pylist()
    assert positions == sorted(positions)


def states_of(workload):
    operator = workload.stages[0].operator()
    states = [MemoryState(operator.state_schema) for _ in range(16)]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    return operator, states


# One frame: its router, events, time since the one before, by how much the slot's watermark lags behind, the units that
# leave and come back before it, and those that do between their timers and their events.
UNITS = st.sets(st.integers(0, 15), max_size=6)
FRAMES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 15_000), st.integers(0, 30_000), UNITS, UNITS),
    max_size=15,
)


def answers(workload, frames, move=False, together=True):
    """Everything a slot gives for ``frames``, the values it is left with, and the timers. ``together``: the timers of
    all units in one call, or those of each in its own.
    """
    operator, states = states_of(workload)
    sources = [workload.sources[0].partition(router) for router in range(2)]
    given, now_us = [], 1_000_000

    def hand_over(units):
        for unit in units if move else ():
            there = MemoryState(operator.state_schema)
            there.install(states[unit].export(100))
            there.timers.install(states[unit].timers.export())
            states[unit] = there

    for router, count, passed_us, lag_us, before, between in frames:
        now_us += passed_us
        hand_over(before)
        for state in states:
            state.timers.reach(now_us - lag_us, now_us)
        for some in [states] if together else [[state] for state in states]:
            fired = operator.advance(some)
            given += [] if fired is None else fired.to_pylist()
        assert operator.advance(states) is None
        hand_over(between)
        events = sources[router].take(np.full(count, now_us))
        events = events.append_column("position", pa.array(np.arange(count, dtype=np.int32)))
        units = units_of(events.column("key").to_numpy(), 8, 2)
        answer = operator.process(events.append_column("unit", pa.array(units)), states.__getitem__)
        given += answer.to_pylist()
    values = [{row["key"]: row for batch in state.export(1000) for row in batch.to_pylist()} for state in states]
    far = 2**62
    timers = [(s.timers.watermark, s.timers.due(EVENT, far), s.timers.due(PROCESSING, far)) for s in states]
    return given, values, timers


@pytest.mark.parametrize("name", workloads.names())
@settings(max_examples=30)
@given(frames=FRAMES)
def test_a_unit_whose_values_and_timers_move_gives_what_one_that_stays_gives(name, frames):
    workload = make(name)
    assert answers(workload, frames, move=True) == answers(workload, frames, move=False)


@pytest.mark.parametrize("name", workloads.names())
@settings(max_examples=30)
@given(frames=FRAMES)
def test_the_timers_of_many_units_at_once_give_what_those_of_one_after_the_other_give(name, frames):
    workload = make(name)
    assert answers(workload, frames, together=True) == answers(workload, frames, together=False)


def test_timers_answer_with_the_promised_columns_and_no_position(timed):
    operator, states = states_of(timed)
    events = timed.sources[0].partition(0).take(np.arange(30, dtype=np.int64))
    units = units_of(events.column("key").to_numpy(), 8, 2)
    events = events.append_column("position", pa.array(np.arange(30, dtype=np.int32)))
    operator.process(events.append_column("unit", pa.array(units)), states.__getitem__)
    for state in states:
        state.timers.reach(10**9, 10**9)
    fired = [operator.advance([state]) for state in states]
    assert any(fired)
    wanted = [RESULT_FIELDS[0], RESULT_FIELDS[1], RESULT_FIELDS[4], *timed.stages[0].result_fields]
    for unit, batch in enumerate(fired):
        if batch is not None:
            assert {f.name: f.type for f in batch.schema} == {f.name: f.type for f in wanted}
            assert set(batch.column("position").to_pylist()) == {-1}
            assert (units_of(batch.column("key").to_numpy(), 8, 2) == unit).all()


def test_the_state_before_the_first_event_holds_only_keys_of_its_unit(workload):
    operator = workload.stages[0].operator()
    for unit in range(16):
        state = MemoryState(operator.state_schema)
        operator.initial(unit, state)
        for batch in state.export(1 << 20):
            assert (units_of(batch.column("key").to_numpy(), 8, 2) == unit).all()


@pytest.mark.parametrize("backend", backends.names())
@pytest.mark.parametrize("routers", [1, 3])
def test_a_run_whose_state_moves_twice_is_judged_ok(workload, backend, routers):
    run = offline(workload, routers=routers, backend=backend)
    found = judged(workload, run)
    assert found.ok, found.examples


def test_a_run_is_the_same_every_time(workload):
    first, second = offline(workload), offline(workload)
    pd.testing.assert_frame_equal(first.results, second.results)
    pd.testing.assert_frame_equal(pd.concat(first.final), pd.concat(second.final))


def test_state_that_was_lost_in_a_move_makes_the_verdict_bad(workload):
    run = offline(workload)
    found = judged(workload, run, final=run.final[1:])
    assert found.wrong > 0


def test_state_that_missed_the_last_frame_makes_the_verdict_bad(workload):
    run, earlier = offline(workload), offline(workload, frames=11)
    found = judged(workload, run, final=earlier.final)
    assert found.wrong > 0


def test_results_exchanged_between_events_make_the_verdict_bad(workload):
    run = offline(workload)
    first = workload.stages[0].result_fields[0].name
    exchanged = run.results.assign(**{first: run.results[first].to_numpy()[::-1]})
    found = judged(workload, run, results=exchanged)
    assert found.wrong > 0


def test_timers_lost_in_a_move_make_the_verdict_bad(timed, monkeypatch):
    install = Timers.install

    def only_how_far(self, batch):
        install(self, batch.filter(pa.array(batch["kind"].to_numpy() < 0)))

    monkeypatch.setattr(Timers, "install", only_how_far)
    run = offline(timed)
    found = judged(timed, run)
    assert found.wrong > 0
    assert (found.lost, found.duplicated, found.reordered) == (0, 0, 0)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_timer_that_fires_twice_makes_the_verdict_bad(timed, which):
    run = offline(timed)
    again = run.results[of_timers(run.results)].iloc[[which]].assign(arrived_us=10**9, log_offset=10**6)
    found = judged(timed, run, results=pd.concat([run.results, again]))
    assert (found.lost, found.duplicated, found.reordered, found.wrong) == (0, 0, 0, 1)


def test_a_timer_whose_result_is_missing_makes_the_verdict_bad(timed):
    run = offline(timed)
    dropped = run.results.drop(index=run.results.index[of_timers(run.results)][0])
    found = judged(timed, run, results=dropped)
    assert (found.lost, found.duplicated, found.reordered, found.wrong) == (0, 0, 0, 1)


def test_a_timer_that_fires_in_a_slot_that_was_not_the_owner_is_foreign(timed):
    run = offline(timed)
    row = run.results.index[of_timers(run.results)][0]
    run.results.loc[row, "slot"] += 1
    found = judged(timed, run)
    assert (found.foreign, found.wrong) == (1, 0)
