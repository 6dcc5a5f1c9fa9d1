"""Published numbers beside those of runs: which runs compare, the ratio, and the shape."""

import math
from pathlib import Path

import pytest
from small_store import row

from keyshift.experiment.spec import make_spec
from keyshift.peers.spark_job import spark_spec
from keyshift.studies.batch import prepare
from keyshift.studies.dry_run import asked_of
from keyshift.studies.published import BASELINES, CURVES, Curve, beside

ROOT = Path(__file__).parents[3]
HEARTBEATS = (5.0, 10.0, 50.0, 100.0)
(OF_HEARTBEAT,) = [curve for curve in CURVES if curve.title == "P99 over the heartbeat of LiveRobin"]
(OF_RATE,) = [curve for curve in CURVES if curve.title.startswith("P99 over the rate")]
(OF_DEATH,) = [curve for curve in CURVES if curve.title == "silence of a passive job that dies"]
(OF_SPARK,) = [curve for curve in CURVES if curve.title == "Spark's own state in real-time mode"]
(AGAINST_MECES,) = [curve for curve in CURVES if curve.title == "DRRS against Meces"]


def in_turns(heartbeat_ms, p99_ms, seed=1, rate=100.0, **values):
    parameters = {"ordering": "live_robin", "heartbeat_ms": heartbeat_ms, "rate": rate, "seed": seed}
    return row("fluid", p99_ms=p99_ms, **values) | {"parameters": parameters}


def test_a_curve_of_the_same_form_has_shape_1_and_its_ratio_and_one_that_falls_where_that_rises_minus_1():
    same, falls, stays = (
        beside(OF_HEARTBEAT, [in_turns(ms, p99_of(ms)) for ms in HEARTBEATS])[0]
        for p99_of in (lambda ms: 2 * OF_HEARTBEAT.published[f"{ms:g} ms"], lambda ms: 1000 / ms, lambda ms: 7.0)
    )
    assert same.points[["point", "published", "ours"]].to_numpy().tolist() == [
        *(["5 ms", 20.1, 40.2], ["10 ms", 21.5, 43.0], ["50 ms", 55.9, 111.8], ["100 ms", 104.4, 208.8])
    ]
    assert (same.shape, same.ratio, same.name, falls.shape) == (1.0, 2.0, "keycount", -1.0)
    assert math.isnan(stays.shape), "one that stays has no shape"


def test_repetitions_are_medians_and_runs_that_are_not_correct_are_left_out():
    rows = [in_turns(5.0, 30.0), in_turns(5.0, 50.0, seed=2), in_turns(5.0, 999.0, verdict="bad")]
    (line,) = beside(OF_HEARTBEAT, rows)
    assert line.points["ours"].fillna(0).tolist() == [40.0, 0, 0, 0]
    assert math.isnan(line.shape), "two points tell no shape"
    assert line.ratio == pytest.approx(40 / 20.1)
    (line,) = beside(OF_HEARTBEAT, [*rows, in_turns(5.0, 627.0, seed=3)])
    assert line.points["ours"][0] == 50.0, "one run that others disturbed does not make the point"


def test_runs_of_other_loads_are_other_lines_and_only_the_fullest_are_shown():
    rows = [
        in_turns(ms, ms, rate=rate) for rate, of in ((100.0, HEARTBEATS), (7.0, HEARTBEATS), (9.0, [5.0])) for ms in of
    ]
    assert [line.name for line in beside(OF_HEARTBEAT, rows)] == ["keycount, rate=100", "keycount, rate=7"]


def test_runs_of_other_machines_and_versions_are_other_lines():
    def made(ours, **made_by):
        return [in_turns(ms, ours * ms, **made_by) for ms in HEARTBEATS]

    few, many = ({"cpus": cpus, "cpu": "one of a cloud"} for cpus in (2, 64))
    rows = made(1, machine=few, keyshift="1") + made(2, machine=many, keyshift="1") + made(3, machine=few, keyshift="2")
    lines = {line.name: line.points["ours"].tolist() for line in beside(OF_HEARTBEAT, rows)}
    assert lines == {
        "keycount, machine=cpus 2, cpu one of a cloud, keyshift=1": [5, 10, 50, 100],
        "keycount, machine=cpus 64, cpu one of a cloud, keyshift=1": [10, 20, 100, 200],
        "keycount, machine=cpus 2, cpu one of a cloud, keyshift=2": [15, 30, 150, 300],
    }
    ours, theirs = (moved(strategy, 4, 4, 4) | {"machine": few} for strategy in ("drrs", "meces"))
    assert len(beside(AGAINST_MECES, [ours, theirs])) == 1
    assert beside(AGAINST_MECES, [ours, theirs | {"machine": many}]) == []


def test_lines_that_differ_in_what_tells_whose_machine_it_was_have_numbers_for_that():
    places = ("", "10.1.2.3:6379", "10.1.2.4:6379")
    rows = [in_turns(ms, ms) for _ in places for ms in HEARTBEATS]
    for number, each in enumerate(rows):
        each["parameters"] |= {"redis": places[number // len(HEARTBEATS)]}
    told = [line.name for line in beside(OF_HEARTBEAT, rows)]
    assert told == ["keycount, redis=", "keycount, redis=<address> 2", "keycount, redis=<address> 3"]


def test_a_point_is_of_runs_with_all_its_parameters():
    passive = {"ordering": "none", "snapshot_s": 30.0, "rate": 10.0}
    known = ((9.0, passive), (1.0, passive | {"snapshot_s": 0.0}))
    (line,) = beside(OF_RATE, [row("fluid", p99_ms=p99_ms) | {"parameters": given} for p99_ms, given in known])
    of_each = dict(zip(line.points["point"], line.points["ours"].fillna(0), strict=True))
    assert of_each == dict.fromkeys(OF_RATE.published, 0) | {"passive, 10/s": 9.0}


def moved(strategy, spike_ms, mean_ms, completion_s, **parameters):
    measures = {"spike_ms": spike_ms, "mean_ms": mean_ms, "completion_s": completion_s}
    return row(strategy, **measures) | {"parameters": {"rate": 100.0, "unit": None} | parameters}


def test_one_strategy_is_divided_by_another_under_the_same_load():
    rows = [moved("drrs", 30, 20, 2), moved("meces", 60, 80, 4), moved("meces", 1, 1, 1, rate=9.0)]
    (line,) = beside(AGAINST_MECES, rows)
    assert line.points["point"].tolist() == ["peak latency", "average latency", "duration"]
    assert line.points["ours"].tolist() == [0.5, 0.25, 0.5]
    assert line.points["ratio"].tolist() == pytest.approx([0.5 / 0.19, 0.25 / 0.05, 0.5 / 0.205])
    with_settings = moved("meces", 60, 80, 4, unit="group")
    assert beside(AGAINST_MECES, [rows[0], with_settings]) == [], "that is not the preset"
    assert beside(AGAINST_MECES, [rows[0] | {"one_job": True}, rows[1]]) == [], "one has practised"
    assert beside(AGAINST_MECES, [rows[0] | {"incomplete": True}, rows[1]]) == [], "one has not moved all of it"


def of_run(strategy, parameters, **measures):
    spec = make_spec({"strategy": strategy, **parameters})
    return row(strategy, **measures) | {"parameters": spec.parameters()}


def test_runs_made_as_the_page_says_are_those_of_the_points():
    """The parameters are as a run stores them."""
    turns = [{"ordering": "live_robin", "frame_ms": 5, "heartbeat_ms": ms} for ms in (5, 10, 50, 100)]
    (line,) = beside(OF_HEARTBEAT, [of_run("fluid", each, p99_ms=1.0) for each in turns])
    assert line.points["ours"].tolist() == [1, 1, 1, 1]
    rates = [
        of_run("fluid", {"rate": rate, "trigger": "none"} | given, p99_ms=p99)
        for rate in (10, 10_000)
        for p99, given in ((1.0, {"snapshot_s": 30}), (2.0, {"ordering": "live_robin"}), (3.0, {"ordering": "kazoo"}))
    ]
    (line,) = beside(OF_RATE, rates)
    assert line.points["ours"].tolist() == [1, 2, 3, 1, 2, 3]
    one, other = ({"spike_ms": ms, "mean_ms": ms, "completion_s": ms} for ms in (1, 4))
    for curve in CURVES:
        if curve.measure == "DRRS ÷ the other":
            rows = [of_run("drrs", {}, **one)] + [of_run(name, {"seed": 2}, **other) for name in BASELINES]
            (line,) = beside(curve, rows)
            assert line.points["ours"].tolist() == [0.25, 0.25, 0.25], curve.title


@pytest.mark.usefixtures("own_definitions")  # cells of its notebook are executed
def test_the_set_that_a_curve_names_has_all_its_points():
    named = [curve for curve in CURVES if curve.wanted.startswith("keyshift batch ")]
    (file,) = {curve.wanted.split()[-1] for curve in named}
    batch = prepare(ROOT / file, ROOT / "notebooks")
    specs = [spec for each in batch.executions for spec in asked_of(batch.notebook, each.parameters).specs]
    rows = [row("fluid", p50_ms=1.0, p99_ms=1.0) | {"parameters": spec.parameters()} for spec in specs]
    for curve in named:
        (line,) = beside(curve, rows)
        assert line.points["ours"].tolist() == [1.0] * len(curve.published), curve.title
    assert len(named) == 4


@pytest.mark.usefixtures("own_definitions")  # cells of its notebook are executed
@pytest.mark.parametrize("own", [{}, {"workload": "saas", "slots": 1}])
def test_a_job_that_dies_at_half_time_is_beside_the_published_silence_whatever_its_stages(own):
    given = {"snapshot_s": 30.0, "seconds": 300.0, "trigger_s": 150.0}
    assert all(f"{name}={value:g}" in OF_DEATH.wanted for name, value in given.items())
    specs = asked_of(ROOT / "notebooks" / "replication" / "01_deaths.ipynb", given | own).specs
    runs = [row("fluid", silence_ms=1600.0, stages=len(spec.workload.stages)) for spec in specs]
    rows = [run | {"parameters": spec.parameters()} for run, spec in zip(runs, specs, strict=True)]
    (line,) = beside(OF_DEATH, rows)
    assert line.points[["point", "published", "ours"]].to_numpy().tolist() == [["passive", 80_000.0, 1600.0]]


def test_spark_s_own_state_is_beside_spark_s_numbers_at_the_rate_of_those():
    runs = [
        row(strategy, p50_ms=p50_ms, p99_ms=2 * p50_ms) | {"parameters": spark_spec(strategy, given).parameters()}
        for strategy, given, p50_ms in (
            ("spark_state", {"rate": 1000, "skew": 0}, 10.0),
            ("spark_state", {"rate": 1000, "skew": 0, "seed": 2}, 20.0),
            ("spark_state", {"rate": 2000, "skew": 0}, 99.0),
            ("spark_restart", {"rate": 1000, "skew": 0, "to_slots": 4}, 99.0),
        )
    ]
    (line,) = beside(OF_SPARK, runs)
    assert line.points[["point", "published", "ours"]].values.tolist() == [["P50", 103.0, 15.0], ["P99", 138.0, 30.0]]


def test_what_has_no_replicas_is_beside_what_has_some():
    def active(replicas, p99_ms):
        parameters = {"rate": 10, "ordering": "kazoo", "replicas": replicas, "trigger": "none"}
        return of_run("fluid", parameters, p99_ms=p99_ms)

    passive = of_run("fluid", {"rate": 10, "snapshot_s": 30, "trigger": "none"}, p99_ms=1.0)
    lines = beside(OF_RATE, [passive, active(1, 2.0), active(2, 3.0)])
    assert {line.name: line.points["ours"].dropna().tolist() for line in lines} == {
        "keycount, replicas=1": [1.0, 2.0],
        "keycount, replicas=2": [1.0, 3.0],
    }


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"workload": "chain", "chain": "counter"}, 1),
        *(({"workload": workload}, 0) for workload in ("chain", "saas")),
        ({"workload": "nexmark", "query": "q4"}, 0),
        ({"workload": "nexmark", "query": "q1"}, 0),
        ({"rate_steps": "10:500"}, 0),
    ],
)
def test_published_is_one_stage_at_a_rate_that_stays(values, lines):
    turns = {"ordering": "live_robin", "heartbeat_ms": 50, "trigger": "none"} | values
    stages = len(make_spec({"strategy": "fluid", **turns}).workload.stages)
    run = of_run("fluid", turns, p99_ms=1.0) | {"workload": values.get("workload", "keycount"), "stages": stages}
    assert len(beside(OF_HEARTBEAT, [run])) == lines
    assert beside(OF_HEARTBEAT, [run | {"workload": "somebody's own", "stages": 2}]) == []


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.title)
def test_without_runs_that_compare_there_is_no_line(curve: Curve):
    assert beside(curve, []) == []
    assert beside(curve, [row("lazy")]) == []
    assert curve.published and all(value > 0 for value in curve.published.values())
