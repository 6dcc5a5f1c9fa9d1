"""Every registered workload keeps the promises of ``keyshift.workloads.Workload``; a new one needs only PARAMETERS."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from keyshift.frames import EVENT_FIELDS, RESULT_FIELDS
from keyshift.keys import Assignment, units_of
from keyshift.lab.offline import run_offline
from keyshift.lab.verdict import judge
from keyshift.state import backends
from keyshift.workloads import workloads

# What every workload takes; one that needs more adds it here under its name.
COMMON = {"key_groups": 8, "bins": 2, "keys": 40, "skew": 0.5, "state_bytes": 64, "seed": 11}
PARAMETERS: dict[str, dict] = {}
ASSIGNMENTS = [Assignment.contiguous(16, 2), Assignment.contiguous(16, 4, 2), Assignment.contiguous(16, 3, 3)]


@pytest.fixture(params=workloads.names())
def workload(request):
    return workloads.get(request.param)(**COMMON | PARAMETERS.get(request.param, {}))


def offline(workload, **changes):
    return run_offline(workload, ASSIGNMENTS, **({"frames": 12} | changes))


def test_it_has_a_name_a_summary_of_one_line_and_the_placement_it_was_given(workload):
    assert workloads.get(workload.name) is type(workload)
    assert workload.summary.strip()
    assert "\n" not in workload.summary
    assert (workload.key_groups, workload.bins) == (8, 2)


def test_its_columns_begin_with_those_of_every_event_and_add_to_those_of_every_result(workload):
    assert tuple(workload.event_schema)[: len(EVENT_FIELDS)] == EVENT_FIELDS
    assert not {f.name for f in workload.result_fields} & {f.name for f in RESULT_FIELDS}


def test_a_source_gives_the_same_events_again_whatever_is_taken_at_once(workload):
    times = np.arange(100, dtype=np.int64)
    whole = workload.source(1).take(times)
    source = workload.source(1)
    parts = [source.take(times[begin:end]) for begin, end in [(0, 1), (1, 1), (1, 60), (60, 100)]]
    assert whole.schema == workload.event_schema
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([whole])
    assert whole.column("t").to_pylist() == times.tolist()
    assert workload.source(0).take(times) != whole


def test_an_operator_answers_in_the_order_of_the_events_with_the_promised_columns(workload):
    operator = workload.operator()
    states = [backends.get("memory")[0](operator.state_schema) for _ in range(16)]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    events = workload.source(0).take(np.arange(30, dtype=np.int64))
    units = units_of(events.column("key").to_numpy(), 8, 2)
    events = events.append_column("position", pa.array(np.arange(30, dtype=np.int32)))
    answer = operator.process(events.append_column("unit", pa.array(units)), states.__getitem__, 0)
    wanted = [RESULT_FIELDS[0], RESULT_FIELDS[1], RESULT_FIELDS[4], *workload.result_fields]
    assert {f.name: f.type for f in answer.schema} == {f.name: f.type for f in wanted}
    positions = answer.column("position").to_pylist()
    assert positions == sorted(positions)


def test_the_state_before_the_first_event_holds_only_keys_of_its_unit(workload):
    operator = workload.operator()
    for unit in range(16):
        state = backends.get("memory")[0](operator.state_schema)
        operator.initial(unit, state)
        for batch in state.export(1 << 20):
            assert (units_of(batch.column("key").to_numpy(), 8, 2) == unit).all()


@pytest.mark.parametrize("backend", backends.names())
@pytest.mark.parametrize("routers", [1, 3])
def test_a_run_whose_state_moves_twice_is_judged_ok(workload, backend, routers):
    run = offline(workload, routers=routers, backend=backend)
    found = judge(workload, run.events, run.results, run.final, run.assignments)
    assert found.ok, found.examples


def test_a_run_is_the_same_every_time(workload):
    first, second = offline(workload), offline(workload)
    pd.testing.assert_frame_equal(first.results, second.results)
    pd.testing.assert_frame_equal(pd.concat(first.final), pd.concat(second.final))


def test_state_that_was_lost_in_a_move_makes_the_verdict_bad(workload):
    run = offline(workload)
    found = judge(workload, run.events, run.results, run.final[1:], run.assignments)
    assert found.wrong > 0


def test_state_that_missed_the_last_frame_makes_the_verdict_bad(workload):
    run, earlier = offline(workload), offline(workload, frames=11)
    found = judge(workload, run.events, run.results, earlier.final, run.assignments)
    assert found.wrong > 0


def test_results_exchanged_between_events_make_the_verdict_bad(workload):
    run = offline(workload)
    first = workload.result_fields[0].name
    exchanged = run.results.assign(**{first: run.results[first].to_numpy()[::-1]})
    found = judge(workload, run.events, exchanged, run.final, run.assignments)
    assert found.wrong > 0
