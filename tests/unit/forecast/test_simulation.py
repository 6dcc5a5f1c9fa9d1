"""What is asked about a cluster, from names and texts to numbers; and runs, simulated with costs from others."""

from dataclasses import replace
from math import nan

import pytest
import small_store
from small_cluster import FREE

from keyshift.experiment.live_spec import live_spec
from keyshift.experiment.live_spec import parameters as parameters_of_live
from keyshift.experiment.spec import make_spec
from keyshift.forecast import simulation, waiting
from keyshift.forecast.calibration import calibrate, usable
from keyshift.forecast.simulation import amount, questions, simulate
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.keys import Step
from keyshift.planner import strategy
from keyshift.studies.study import named
from memory_bucket import MemoryBucket

SMALL = {"slots": 4, "to_slots": 6, "key_groups": 24, "state": "24GB", "rate": 1000, "host_slots": 1, "routers": 2}


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        *(("10TB", 1e13), ("64GiB", 2**36), ("10Gbit", 1.25e9), ("1.25GB/s", 1.25e9)),
        *((" 5 ", 5.0), (1e13, 1e13), ("1e3 kB", 1e6)),
    ],
)
def test_amounts_have_units(text, bytes_):
    assert amount(text) == bytes_


@pytest.mark.parametrize("text", ["", "TB", "10 XB", "-1", "10TBs", "1,5GB"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError, match="must be a number with a unit"):
        amount(text)


def test_a_point_is_simulated_with_the_plan_of_the_planner():
    table = simulate(FREE, named(["all_at_once", "fluid"]), SMALL).set_index("point")
    assert table["steps"].tolist() == [1, 8]
    assert table["units_moved"].tolist() == [8, 8]
    assert table["bytes_moved"].tolist() == [8e9, 8e9]
    # Four units into each of the two new hosts, over 1.25 GB/s; two out of each of the others.
    assert table["floor_s"].tolist() == [3.2, 3.2]
    second_router_s = 0.05  # it switches half a frame later
    assert table.loc["all_at_once", "completion_s"] == pytest.approx(3.2 + second_router_s)
    assert table.loc["fluid", "completion_s"] == pytest.approx(8 * 0.8, rel=0.2)


def test_settings_of_a_strategy_and_of_the_cluster_are_given_by_name():
    points = {"two": {"strategy": "chunked", "size": 2}, "slow": {"strategy": "all_at_once", "link": "5Gbit"}}
    asked = questions(points, SMALL)
    assert (asked["two"].strategy.size, asked["slow"].cluster.link) == (2, 6.25e8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"strategy": "fluit"}, "did you mean 'fluid'"),
        ({"strategy": "hybrid"}, "keys that move one by one are not simulated"),
        ({"state": "much"}, "state = 'much'"),
        ({"slot": 3}, "unknown parameter 'slot': did you mean 'slots'"),
        ({"to_slots": 25}, "slots = 25: more than key groups"),
        ({"bins": 3, "unit": "bin"}, "bins = 3: must be a power of two"),
        ({"bins": 16, "unit": "bin", "key_groups": 1 << 17}, "bins = 16 in each of 131072 key groups make 2097152"),
    ],
)
def test_what_is_not_possible_is_refused_before_anything_is_simulated(given, words):
    with pytest.raises(BadInput, match=words):
        questions({"one": given}, SMALL)


@pytest.mark.parametrize(
    ("costs", "second", "words"),
    [
        (replace(FREE, restart_s=nan), {"strategy": "stop_restart"}, "what a restart costs is not known"),
        (replace(FREE, event_s=1e-4), {"rate": 100_000}, "rate = 100000: slot .* would be busy for 2.5 s"),
    ],
)
def test_a_point_whose_costs_do_not_tell_is_refused_before_another_one_is_simulated(monkeypatch, costs, second, words):
    monkeypatch.setattr(simulation, "simulated", None)
    with pytest.raises(BadInput, match=words):
        simulate(costs, {"first": {}, "second": second}, SMALL)


WAIT = "would wait for up to .* no more than a day is simulated; raise link .* 10Gbit"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"link": 10}, WAIT),
        ({"state": "1e9TB"}, WAIT),
        ({"link": 10, "strategy": "stop_restart"}, WAIT),
        ({"link": "1kB", "replicate": 1}, "it would take .* no more than 1e.06 s are simulated; raise link"),
    ],
    ids=str,
)
def test_a_point_in_which_seconds_would_be_too_many_is_refused(given, words):
    with pytest.raises(BadInput, match=words):
        simulate(FREE, {"one": {"strategy": "all_at_once"} | given}, SMALL)


def test_of_many_steps_none_is_simulated_behind_the_first_that_ends_too_late(monkeypatch):
    monkeypatch.setattr(waiting, "LONGEST_S", 3.0)
    with pytest.raises(BadInput, match=r"it would take 3\.\d+ s at least: no more than 3 s are simulated; raise link"):
        simulate(FREE, {"one": {}}, SMALL)


# -- runs that were measured -------------------------------------------------------------------------------------------


def measured(strategy, number=0, **parameters):
    """A run in two steps, made up."""
    spec = make_spec({"strategy": strategy, "keys": 1000, "state_bytes": 1024, "key_groups": 8} | parameters)
    figures = {"bytes_minimum": 400_000, "completion_s": 1.5 + number, "spike_ms": 60.0}
    manifest = small_store.run(number, strategy, parameters=spec.parameters(), **figures)
    tables = {name: table.to_pandas() for name, table in small_store.tables().items()}
    return manifest, tables | {"migration": small_store.two_steps(1 + number)}


def test_each_run_is_simulated_with_costs_from_runs_of_other_strategies_if_there_are_some():
    runs = {name: [measured(name, number)] for number, name in enumerate(("fluid", "matched", "all_at_once"))}
    found = calibrate(runs).validation.set_index("strategy")
    assert found["held_out"].to_dict() == {name: name for name in runs}
    assert found["completion_s"].tolist() == [1.5, 2.5, 3.5]
    assert (found["simulated_completion_s"] > 0).all()
    assert found["simulated_bytes_moved"].tolist() == pytest.approx([400_000] * 3)
    found = calibrate({"fluid": [measured("fluid")], "stop_restart": [measured("stop_restart", 1)]})
    assert found.validation["held_out"].tolist() == ["", ""]
    assert found.validation["simulated_completion_s"].isna().tolist() == [False, True]


def test_runs_that_cannot_be_simulated_are_refused_and_those_of_a_store_left_out():
    lazy = measured("lazy", 1)
    with pytest.raises(BadInput, match="keys that move one by one"):
        calibrate({"lazy": [lazy]})
    store = small_store.result_store()
    for manifest, _ in (measured("fluid", 0), lazy, measured("fluid", 2, fault="kill:slot@10", snapshot_s=2)):
        store.put_run(manifest, small_store.tables())
    assert [(name, len(some)) for name, some in usable(store).items()] == [("fluid", 1)]


@pytest.mark.usefixtures("own_definitions")
def test_runs_of_a_strategy_that_makes_no_plan_any_more_are_left_out():
    def own(strategy, view, log):
        """All at once, as long as it is right."""
        yield Step(view.misplaced() if right else ())

    strategy()(own)
    right, store = True, small_store.result_store()
    for manifest, _ in (measured("own", 0), measured("fluid", 1)):
        store.put_run(manifest, small_store.tables())
    assert sorted(usable(store)) == ["fluid", "own"]
    right = False
    assert sorted(usable(store)) == ["fluid"]


def test_a_run_that_cannot_be_read_or_is_deleted_meanwhile_is_left_out_and_a_store_that_is_away_is_told(monkeypatch):
    store = small_store.result_store(client := MemoryBucket())
    whole, damaged, gone = (measured("fluid", number)[0] for number in range(3))
    for manifest in (whole, damaged, gone):
        store.put_run(manifest, small_store.tables())
    client.objects[f"runs/{damaged.run_id}/metrics.parquet"] = b"PAR1"
    listed = store.list_runs()
    store.delete_run(gone.run_id)
    monkeypatch.setattr(store, "list_runs", lambda limit: listed)
    assert [manifest.run_id for manifest, _ in usable(store)["fluid"]] == [whole.run_id]

    def away(*_):
        raise ServiceUnavailable("MinIO does not answer")

    monkeypatch.setattr(store, "get_manifest", away)
    with pytest.raises(ServiceUnavailable):
        usable(store)


def test_of_pods_live_jobs_and_runs_without_latency_before_nobody_knows_enough():
    """Of pods nobody knows what their Python workers took. The newest is one, and had another driver."""
    manifest, tables = measured("fluid", 1)
    metrics = tables["metrics"].assign(instance=tables["metrics"]["instance"].replace("python_workers", "pod 1"))
    with pytest.raises(BadInput, match=f"run {manifest.run_id}: its executors were pods; take runs whose executors"):
        calibrate({"fluid": [(manifest, tables | {"metrics": metrics})]})
    store, here = small_store.result_store(), measured("fluid", 0)[0]
    other = manifest.model_copy(update={"machine": manifest.machine.model_copy(update={"cpus": 1})})
    store.put_run(here, small_store.tables())
    store.put_run(other, small_store.tables() | {"metrics": small_store.make_table("metrics", metrics.to_dict("list"))})
    for newest in (60, 1):
        found = {name: [each.run_id for each, _ in some] for name, some in usable(store, newest).items()}
        assert found == {"fluid": [here.run_id]}
    store = small_store.result_store()
    live = parameters_of_live(live_spec({"snapshot_s": 0, "keys": 1000, "key_groups": 8}))
    good, other = measured("fluid", 0)[0], measured("fluid", 1)[0]
    unknown = other.model_copy(update={"summary": other.summary.model_copy(update={"p99_ms": None})})
    for manifest in (good, unknown, small_store.run(2, parameters=live, bytes_minimum=400_000)):
        store.put_run(manifest, small_store.tables())
    assert [manifest.run_id for manifest, _ in usable(store)["fluid"]] == [good.run_id]
    assert [*usable(store)] == ["fluid"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"exist": "once used", "skew": 0}, "the keys of workload keycount are not fixed"),
        ({"workload": "windowcount"}, "workload = windowcount: .* a single stage without timers"),
        ({"workload": "chain"}, "workload = chain: .* a single stage without timers"),
        ({"workload": "micro", "later_events": 1000}, "workload = micro: its later events are not like its earlier"),
        ({"workload": "micro", "replicate": 1}, "active_share = 0.02: copies are simulated as if every event changed"),
        ({"snapshot_s": 2}, "snapshot_s = 2: snapshots are not simulated"),
        ({"slots_per_process": 2}, "slots_per_process = 2: "),
        ({"ordering": "live_robin"}, "ordering = live_robin: "),
        ({"ordering": "live_robin", "replicas": 2, "to_slots": 4}, "ordering = live_robin: "),
        ({"trigger": "none"}, "not one migration"),
        ({"trigger_s": 0.5}, "trigger_s = 0.5: too short a time to know .* at least 1 s"),
    ],
)
def test_a_run_that_the_simulator_cannot_describe_is_refused(parameters, words):
    run = measured("fluid", **parameters)
    with pytest.raises(BadInput, match=f"run {run[0].run_id}: {words}"):
        calibrate({"fluid": [run]})


@pytest.mark.parametrize(
    "parameters",
    [
        {"workload": "micro"},
        {"workload": "micro", "replicate": 1, "active_share": 1},
        {"work_us": 300, "work_by": "waiting"},
    ],
)
def test_of_other_runs_rows_cost_something_and_they_are_simulated(parameters):
    found = calibrate({"fluid": [measured("fluid", **parameters)]})
    assert len(found.validation) == 1 and found.costs.row_s > 0


def test_a_run_with_more_events_than_costs_of_other_workloads_allow_is_told_apart_and_does_not_stop_the_others():
    of = {"work_us": 100, "work_by": "spinning"}
    runs = {name: [measured(name, number, **of)] for number, name in enumerate(("fluid", "matched"))}
    found = calibrate(runs | {"all_at_once": [measured("all_at_once", 2, rate=20_000)]})
    assert found.validation["simulated_completion_s"].isna().tolist() == [False, False, True]
    assert found.validation["completion_s"].notna().all()


def test_a_run_whose_only_step_was_rolled_back_says_nothing_and_does_not_stop_the_others():
    manifest, tables = measured("matched", 1)
    summary = manifest.summary.model_copy(update={"completion_s": None})
    nothing_moved = tables["migration"].assign(**dict.fromkeys(small_store.MOMENTS, nan))
    rolled_back = manifest.model_copy(update={"summary": summary}), tables | {"migration": nothing_moved}
    runs = {"fluid": [measured("fluid")]}
    found = calibrate(runs | {"matched": [rolled_back]})
    assert found.validation["strategy"].tolist() == ["fluid"]
    assert repr(found.costs) == repr(calibrate(runs).costs)


def test_costs_are_from_the_measured_time_before_the_migration_and_not_from_the_warm_up():
    def with_warm_up(manifest, tables, latency_ms, cores):
        latency, metrics = tables["latency"].copy(), tables["metrics"].copy()
        latency.loc[latency["created_s"] < -8, "latency_ms"] = latency_ms
        metrics.loc[(metrics["t_s"] < -8) & (metrics["metric"] == "cpu_cores"), "value"] = cores
        return manifest, tables | {"latency": latency, "metrics": metrics}

    usual, slow = (
        calibrate({"fluid": [with_warm_up(*measured("fluid"), *of)]}).costs for of in ((20.0, 0.5), (900.0, 1.9))
    )
    assert usual.to_json() == slow.to_json() and usual.row_s > 0


def test_a_run_whose_first_step_waits_for_copies_does_not_say_what_a_request_takes():
    runs = {name: [measured("fluid", number, replicate=number)] for number, name in enumerate(("fluid", "copied"))}
    assert calibrate(runs).table.loc["from the request to the first published step", "from"] == "1 runs"


def test_slots_that_own_nothing_have_few_rows():
    """Of two more slots, which get a tick with every third frame of 20 ms at the most; with each one of 60 ms."""

    def row_s(**parameters):
        return calibrate({"fluid": [measured("fluid", slots=2, **parameters)]}).costs.row_s

    few, more = ({"to_slots": slots} for slots in (1, 4))
    assert row_s(**few) / row_s(**more) == pytest.approx((2 + 2 / 3) / 2)
    assert row_s(**few, frame_ms=60) / row_s(**more, frame_ms=60) == pytest.approx(4 / 2)


def test_slots_that_a_restart_makes_have_no_rows_before_it_but_in_a_job_of_several_runs():
    def row_s(**more):
        runs = {"fluid": [measured("fluid", slots=2, to_slots=1)], "stop_restart": []}
        for number in (1, 2):  # more than half of the runs
            manifest, tables = measured("stop_restart", number, slots=2, to_slots=4)
            summary = manifest.summary.model_copy(update=more)
            runs["stop_restart"].append((manifest.model_copy(update={"summary": summary}), tables))
        return calibrate(runs).costs.row_s

    assert row_s() / row_s(one_job=True) == pytest.approx((2 + 2 / 3) / 2)
