"""Parameters of notebooks: what is not possible is refused before anything starts, what is possible is not."""

import contextlib
import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from small_notebooks import NOTEBOOKS, asked, code, execute
from small_store import OTHER_MACHINE, result_store, row, run, tables

from keyshift import suite
from keyshift.experiment.scenario import Back, BalanceZipf, ScaleTo, Shuffle
from keyshift.experiment.spec import make_spec
from keyshift.model.errors import KeyshiftError
from keyshift.studies import stored_runs
from keyshift.studies.study import Study
from keyshift.workloads import workloads

SIMULATE = "compare/04_simulate_clusters"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path))
    yield
    plt.close("all")


BEFORE_LATER = {"rate": "auto", "later_s": 2.0}


@pytest.mark.parametrize(
    ("notebook", "parameters", "words"),
    [
        (SIMULATE, {"strategies": ["fluid", "lazy"]}, "transfer = access: keys that move one by one are not simulated"),
        (
            SIMULATE,
            {"strategies": ["fluid"], "also": ["stop_restart"]},
            "stop_restart: what a restart costs follows from",
        ),
        (SIMULATE, {"measured_bytes": [1024]}, "stop_restart: what a restart costs follows from two"),
        (SIMULATE, {"strategies": ["all_at_once"]}, "none of all_at_once, .* has several steps"),
        (SIMULATE, {"state": "10tb"}, "state = '10tb'"),
        (SIMULATE, {"sizes": ["1TB", "much"]}, "state = 'much'"),
        (SIMULATE, {"slots": 40000}, "more than key groups"),
        (SIMULATE, {"clusters": [10, 0]}, "slots = 0"),
        (SIMULATE, {"strategies": [], "also": []}, "no point given"),
        # A rate that is computed with is not left to the machine.
        (SIMULATE, {"rate": "auto"}, "rate = 'auto': input should be a valid number"),
        ("spacker/01_overview", BEFORE_LATER, "from which it follows how many events come before later_s"),
        ("spacker/02_chunk_and_copies", BEFORE_LATER, "from which it follows how many events"),
        ("spacker/03_sweeps", BEFORE_LATER, "from which it follows how many events"),
        ("incidents/06_scaled_in_too_early", {"rate": "auto"}, "to which the load goes back behind the burst"),
        ("hybrid/04_parallelism", {"rate": "auto"}, "rate a number to begin with"),
        ("hybrid/04_parallelism", {"work_us": {"maps": 10.0}}, "'maps' is no kind of stage; there are map and counter"),
        *(("hybrid/04_parallelism", {"bisections": n}, f"bisections = {n}: must be .* from 0 to 20") for n in (-1, 21)),
        *(
            ("meces/01_on_demand", {"bins": bins}, "bins = .*: name at least one number from 1")
            for bins in ([], [16, 0])
        ),
        ("megaphone/01_domains_and_bins", {"share": 0.0}, "share = 0.0: must be a share of the key groups"),
        ("megaphone/01_domains_and_bins", {"share": 1.01}, "share = 1.01: must be a share of the key groups"),
        ("compare/05_engines", {"search_s": -1.0}, "search_s = -1.0: must be seconds, or 0"),
        ("compare/05_engines", {"engines": ["spark_state"] * 2}, "engines: 'spark_state' is there twice"),
        (
            "spacker/02_chunk_and_copies",
            {"exchanges": [32, 4]},
            r"exchanges = \[32, 4\]: name pairs .* as \[\[32, 4\]\]",
        ),
        ("spacker/05_dynamic", {"scalings": []}, r"scalings = \[\]: name at least one number"),
        ("spacker/05_dynamic", {"scalings": ["back"]}, "trigger = 'back': input should be 'scale', 'shuffle'"),
        ("spacker/05_dynamic", {"scalings": ["zipf:2"]}, "scalings: 'zipf:2' is the first: .* affected_slots"),
        ("hybrid/01_backends", {"settings": {"rate": 1.0}}, "settings: rate: set by other parameters"),
        (
            "spacker/05_dynamic",
            {"scalings": [2, "bak"]},
            "then = 'bak': 'bak' must be a number of slots .* of shuffle, back",
        ),
        ("spacker/05_dynamic", BEFORE_LATER, "from which it follows how many events"),
        ("stock/01_exchange", {"scalings": []}, r"scalings = \[\]: name at least one number"),
        (
            "nexmark/01_queries",
            {"queries": ["q5"], "of_query": {"q8": {}}},
            r"of_query: 'q8' is none of queries = \['q5'\]",
        ),
    ],
)
def test_what_is_not_possible_is_refused_before_runs_are_made_for_it(notebook, parameters, words):
    with pytest.raises(KeyshiftError, match=words):
        asked(notebook, **parameters)


def test_no_costs_are_measured_in_pods(tmp_path):
    pods = {"master": "k8s://https://api", "image": "keyshift:1", "driver_host": "10.0.0.1"}
    services = {"kafka": "k:9092", "zookeeper": "z:2181", "minio": "m:9000"}
    (file := tmp_path / "pods.yaml").write_text(json.dumps({"services": services, "spark": pods}))
    with pytest.raises(KeyshiftError, match="no costs follow from runs whose executors are pods"):
        asked(SIMULATE, profile=str(file))


def test_figures_of_simulated_clusters_may_be_left_out():
    for name in ("over_state", "over_slots"):
        assert "figure" not in execute(SIMULATE, f"if {name}", **{name: {}})


@pytest.mark.parametrize(
    ("notebook", "parameters", "points"),
    [
        (SIMULATE, {"sizes": [], "clusters": []}, 14),
        ("hybrid/04_parallelism", {"work_us": {"counter": 10.0}}, 6),
        ("replication/03_moves", {"moves": []}, 3),
        ("replication/03_moves", {"moves": [], "phases": []}, 2),
        ("replication/01_deaths", {"deaths": 0}, 4),
        ("replication/01_deaths", {"slots": 1}, 3),
        ("compare/05_engines", {"search_s": 5.0}, 4 + 2),  # of ours the first, and the engine that answers each event
    ],
)
def test_what_is_possible_is_not_refused(notebook, parameters, points):
    assert len(asked(notebook, **parameters).specs) == points


def test_no_title_counts_on_a_rate_that_may_be_left_to_the_machine():
    for path in NOTEBOOKS.glob("*/*.ipynb"):
        name = f"{path.parent.name}/{path.stem}"
        assert not [source for source in code(name, "{rate:g}") if "title" in source], name


@pytest.mark.parametrize(("times", "words"), [(0, "no death"), (1, "a death at 0"), (3, "3 deaths, the first at 0")])
def test_the_title_of_a_figure_of_deaths_says_how_many_there_are(times, words):
    study = Study(
        {"fluid": [(run(), {name: table.to_pandas() for name, table in tables().items()})]}, {"fluid": make_spec({})}
    )
    found = execute("replication/01_deaths", "masking_panels", study=study, workload="micro", slots=2, times=times)
    assert found["title"] == f"micro, 2 slots, 2000 events/s, frames of 20 ms, {words}"


@pytest.mark.parametrize(("deaths", "words"), [(19, "the longest of the silences is 60 ms"), (20, "the P99 of the")])
def test_few_deaths_have_a_longest_silence_and_no_percentile(deaths, words):
    died = {"t_s": [number / 2 for number in range(deaths)], "metric": "fault", "instance": "kill:slot@4", "value": 1.0}
    made = {name: table.to_pandas() for name, table in tables().items()}
    made["metrics"] = pd.concat([made["metrics"], pd.DataFrame(died)])
    study = SimpleNamespace(
        good=lambda: {"passive": [(run(), made)]}, rows=lambda: [row("passive")], correct=["passive"]
    )
    found = execute("replication/01_deaths", "silences_around", study=study, trigger_s=3.0)
    given = {name: found[name] for name in ("table", "silences", "cpu")}
    said = execute("replication/01_deaths", "overhead_sentences", study=study, **given)["said"]
    assert sum(line.startswith(f"passive: over {deaths} deaths {words}") for line in said) == 1


def test_settings_of_all_runs_of_deaths_win_over_the_parameters_of_the_notebook():
    specs = asked("replication/01_deaths", settings={"heartbeat_ms": 90.0, "rate": 200.0}).specs
    assert {spec.job.heartbeat_ms for spec in specs if spec.job.ordering != "none"} == {90.0}
    assert {spec.run.rate for spec in specs} == {200.0}


@pytest.mark.parametrize(
    ("notebook", "settings", "names"),
    [
        ("replication/01_deaths", {"seconds": 30.0, "rate": 200.0, "fault": "kill:slot@4"}, "fault, seconds"),
        ("replication/02_orders", {"heartbeat_ms": 20.0, "rate": 200.0}, "heartbeat_ms"),
        ("hybrid/02_autoscaling", {"slots_min": 2, "rate": 200.0, "size": 16}, "rate, slots_min"),
        ("hybrid/03_mappers_and_counters", {"stage_slots": "map:3"}, "stage_slots"),
        ("incidents/03_dying_slot", {"snapshot_s": 2.0}, "snapshot_s"),
        ("incidents/06_scaled_in_too_early", {"gap_s": 2.0}, "gap_s"),
        ("incidents/09_hot_key", {"skew": 2.0}, "skew"),
        ("replication/03_moves", {"fault": "kill:replica@4"}, "fault"),
    ],
)
def test_settings_that_each_point_has_of_its_own_are_refused(notebook, settings, names):
    with pytest.raises(KeyshiftError, match=f"settings: {names}: set by other parameters of this notebook"):
        asked(notebook, settings=settings)


@pytest.mark.parametrize(
    "notebook",
    [
        *("hybrid/02_autoscaling", "replication/03_moves"),
        *("incidents/03_dying_slot", "incidents/06_scaled_in_too_early", "incidents/09_hot_key"),
    ],
)
def test_a_notebook_with_one_strategy_takes_settings_for_it(notebook):
    specs = asked(notebook, strategy="chunked", settings={"size": 16}).specs
    assert {(spec.strategy.name, spec.point().size) for spec in specs} == {("chunked", 16)}


def test_each_backend_has_each_strategy_and_a_store_that_all_slots_reach_those_that_differ_there():
    points = {
        "lazy": "lazy",
        "migrates": {"strategy": "lazy", "settings": {"background": True}},
        "copied": "replicated",
    }
    specs = asked("hybrid/01_backends", backends=["memory", "remote"], strategies=points).specs
    found = [(spec.backend.name, spec.strategy.name, spec.point().mode.background) for spec in specs]
    own = [("memory", "lazy", False), ("memory", "lazy", True), ("memory", "replicated", True)]
    assert found == [*own, ("remote", "lazy", False)]
    with pytest.raises(
        KeyshiftError, match="backend = remote: all slots reach it, so nothing is copied; name one with"
    ):
        asked("hybrid/01_backends", backends=["memory", "remote"], strategies=["replicated"])


@pytest.mark.parametrize("notebook", ["meces/01_on_demand", "nexmark/01_queries"])
def test_copies_are_made_as_often_as_is_said(notebook):
    specs = asked(notebook, strategies=["rhino"], copy_every_s=60.0).specs
    assert {(spec.strategy.name, spec.job.copy_every_s) for spec in specs} == {("rhino", 60.0)}


@pytest.mark.parametrize("notebook", ["01_domains_and_bins", "02_overhead"])
def test_several_processes_may_offer_the_load_of_megaphone(notebook):
    specs = asked(f"megaphone/{notebook}", routers=16, injectors=8).specs
    assert {(spec.routers, spec.loads[0].injectors) for spec in specs} == {(16, 8)}


def test_all_engines_read_as_many_partitions_as_ours_as_where_spark_published_its_latency():
    specs = asked("compare/05_engines", rate=1000.0, routers=5, slots=5, to_slots=6, search_s=5.0).specs
    found = {(getattr(spec, "peer", "ours"), spec.run.rate, spec.job.routers, spec.job.slots) for spec in specs}
    assert found == {(name, 1000.0, 5, 5) for name in ("ours", "spark_state", "spark_restart")}


@pytest.mark.parametrize("notebook", ["02_autoscaling", "03_mappers_and_counters", "04_parallelism"])
def test_slots_that_are_counted_have_the_same_work(notebook):
    assert {spec.workload.skew for spec in asked(f"hybrid/{notebook}").specs} == {0.0}


@pytest.mark.parametrize(
    ("chain", "slots"),
    [
        ("counter", {"counter": 1}),
        ("map,counter", {"map": 5, "counter": 1}),
        ("counter,map,counter", {"counter-1": 5, "map": 5, "counter-2": 1}),
    ],
)
def test_of_a_chain_the_last_stage_alone_has_the_slots_that_vary(chain, slots):
    [spec] = asked("hybrid/04_parallelism", chains=[chain], slots=[1], mappers=5).specs
    assert spec.slots_of == slots


@pytest.mark.parametrize("notebook", ["compare/01_compare_presets", "spacker/01_overview", "spacker/03_sweeps"])
def test_a_job_that_is_scaled_has_something_to_move(notebook):
    for spec in asked(notebook, trigger="scale").specs:
        assert spec.start().moves_to(spec.target(spec.start()))


def test_keys_follow_another_skew_from_that_second_on_whatever_the_rate_was_before():
    given = {"warmup_s": 1.0, "rate": 1000.0, "rate_steps": "2:500,9:100", "later_s": 6.0, "routers": 2}
    assert {spec.workload.later_events for spec in asked("spacker/01_overview", **given).specs} == {2500}


def test_the_scenario_beside_spackers_dynamic_plan_is_a_ring_the_way_back_and_the_mass_of_the_later_skew():
    given = {"skew": 0.0, "warmup_s": 4.0, "rate": 2000.0, "rate_steps": "24:640", "later_s": 24.0, "routers": 2}
    for spec in asked("spacker/05_dynamic", **given).specs:
        assert spec.changes == [Shuffle(64), Back(), BalanceZipf(1.0, 2)]
        assert spec.workload.later_events == 28_000
    assert asked("spacker/05_dynamic", scalings=[6, 3]).specs[0].changes == [ScaleTo(6), ScaleTo(3)]


def test_groups_go_from_the_first_slot_to_the_last_by_the_skew_that_comes_later():
    given = {"skew": 0.0, "later_s": 2.0, "trigger": "zipf", "affected_slots": 2}
    assert asked("spacker/01_overview", later_skew=0.5, **given).specs[0].changes == [BalanceZipf(0.5, 2)]
    varied = asked(
        "spacker/03_sweeps", parameter="later_skew", values=[0.25, 0.75], strategies=["fluid"], **given
    ).specs
    assert [spec.changes for spec in varied] == [[BalanceZipf(0.25, 2)], [BalanceZipf(0.75, 2)]]
    of_orders = {"orders": ["id", "hottest"], "chunks": [2], "replications": [0], "exchanges": [[32, 2]]}
    specs = asked("spacker/02_chunk_and_copies", skew=0.0, later_s=2.0, trigger="zipf", **of_orders).specs
    assert [(spec.point().order, spec.point().size, spec.changes) for spec in specs] == [
        (order, 2, [BalanceZipf(0.6, 2)]) for order in of_orders["orders"]
    ]


@pytest.mark.parametrize(
    ("notebook", "shares"),
    [
        *(("spacker/01_overview", {2}), ("spacker/02_chunk_and_copies", {1, 2})),
        *(("spacker/05_dynamic", {1}), ("stock/01_exchange", {1, 2})),
    ],
)
def test_a_copied_group_that_has_changed_is_sent_whole_as_by_spacker(notebook, shares):
    points = [spec.point() for spec in asked(notebook).specs]
    assert {(point.replicate, point.handover) for point in points if point.replicate} == {
        (share, "whole") for share in shares
    }


def test_half_of_the_key_groups_move_however_many_there_are():
    given = {"parameter": "key_groups", "values": [16, 64], "affected": 0, "strategies": ["fluid"]}
    assert [spec.scenario.affected for spec in asked("spacker/03_sweeps", **given).specs] == [8, 32]


@pytest.mark.parametrize(
    ("notebook", "more"),
    [
        ("compare/01_compare_presets", {}),
        ("hybrid/01_backends", {}),
        ("failures/01_faults", {}),
        ("replication/03_moves", {"moves": ["together"]}),
    ],
)
def test_workloads_that_a_parameter_names_are_possible_and_no_others(notebook, more):
    [parameters] = code(notebook, "profile: str")
    for name in workloads.names():
        if f" {name}" in parameters.partition("workload: str")[2].partition("\n")[0].partition("#")[2]:
            assert asked(notebook, workload=name, **more).specs
        elif "keys" not in workloads.get(name).model_fields:
            with pytest.raises(KeyshiftError, match="keys"):
                asked(notebook, workload=name, **more)


def test_points_of_meces_with_settings_have_bins_and_steps_of_the_notebook_or_their_own():
    settings = {"never back": {"fetch_back": 0}, "few": {"bins": 4}, "small steps": {"bins": 8, "size": 2, "cap": 4}}
    points = {name: {"strategy": "meces", "settings": own} for name, own in settings.items()}
    specs = asked("meces/01_on_demand", bins=[32, 64], strategies={"plain": "meces"} | points).specs
    found = [(point.bins, point.size, point.cap, point.mode.fetch_back) for point in (spec.point() for spec in specs)]
    cuts = [(32, 32, 256), (64, 64, 512)]
    assert found == [*((*cut, 2) for cut in cuts), *((*cut, 0) for cut in cuts), (4, 4, 32, 2), (8, 2, 4, 2)]


@pytest.mark.parametrize(("bins", "size", "cap"), [(1, 1, 8), (4, 4, 32), (16, 16, 128), (32, 32, 256)])
def test_in_the_strategy_space_as_many_key_groups_move_together_whatever_the_bins(bins, size, cap):
    found = execute("start/01_strategy_space", "strategies.get(name)", presets=["fluid", "meces"], bins=bins)["points"]
    assert (found["meces"].bins, found["meces"].size, found["meces"].cap) == (bins, size, cap)
    assert (found["fluid"].bins, found["fluid"].size, found["fluid"].cap) == (1, 1, 0)


@pytest.mark.parametrize("notebook", ["compare/05_engines", "failures/01_faults", "replication/03_moves"])
def test_words_of_notes_that_a_browser_would_take_for_tags_are_seen(notebook):
    study = SimpleNamespace(runs={"fluid": [(SimpleNamespace(notes=["away: <address>"]), {})]})
    assert execute(notebook, "run.notes", study=study)["notes"] == ["- **fluid**: away: &lt;address>"]


def test_a_query_may_have_parameters_of_its_own():
    own = {"q1": {"seconds": 30}, "q8": {"window_ms": 9000, "seconds": 40}}
    specs = asked("nexmark/01_queries", queries=["q1", "q5", "q8"], of_query=own).specs
    found = {(spec.workload.query, spec.workload.window_ms, spec.run.seconds) for spec in specs}
    assert found == {("q1", 2000, 30), ("q5", 2000, 16), ("q8", 9000, 40)}, "q1 without support, too"


@pytest.mark.parametrize("notebook", ["nexmark/01_queries", "spacker/04_overhead"])
def test_snapshots_that_did_not_come_are_not_drawn(notebook):
    made = {name: table.to_pandas() for name, table in tables().items()}
    for taken, drawn in ((made, True), (made | {"snapshots": made["snapshots"].iloc[:0]}, False)):
        study = Study({"fluid": [(run(), taken)]}, {"fluid": make_spec({})})
        assert ("figure" in execute(notebook, "snapshot_figure", study=study, snapshot_s=30.0)) == drawn


def test_a_notebook_that_has_nothing_to_draw_says_so_and_goes_on():
    """Behind the figure come the sentences, and its runs are published."""
    measured = {"parameters": {"slots": 1, "chain": "map"}, "held_p50_ms": 2.0, "held_p99_ms": 6.0}
    none, wrong, known = (
        row("map, 1 slots", highest_per_s=rate, verdict=verdict, **measured)
        for rate, verdict in ((None, "ok"), (1000.0, "bad"), (1000.0, "ok"))
    )
    for rows, drawn in (([none], False), ([none, wrong], False), ([none, known], True)):
        study = SimpleNamespace(rows=lambda rows=rows: rows)
        assert ("figure" in execute("hybrid/04_parallelism", "sweep_lines", study=study, backend="memory")) == drawn
    rows = [row("spark_state"), row("fluid", verdict="bad")]
    assert "figure" not in execute("compare/05_engines", "rescaled = [", rows=rows)
    of = {"slots": 2, "to_slots": 4, "keys": 9}
    bad = [run(status="bad")]
    assert "figure" not in execute("start/03_invent", "panels(timelines", compared=["fluid"], manifests=bad, **of)


def test_of_an_engine_before_the_request_cpu_is_of_its_job_alone_and_results_are_those_that_came_then(monkeypatch):
    asked_for = []
    monkeypatch.setitem(vars(suite), "sweep_bars", lambda rows, by, measures, **told: asked_for.append(measures))
    made = {name: table.to_pandas() for name, table in tables().items()}
    around = made["metrics"].query("metric == 'cpu_cores'").assign(metric="harness_cores", value=0.7)
    made["metrics"] = pd.concat([made["metrics"], around])
    made["latency"] = made["latency"].query("created_s < 0 or created_s > 9")  # and little of the ten seconds behind it
    study = Study({"spark_state": [(run(cpu_busy=0.9), made)]}, {"spark_state": make_spec({})})
    execute("compare/05_engines", "steady = [", study=study, rows=study.rows(), trigger_s=8.0)
    [measures] = asked_for
    found = {name: measure(study.rows()[0]) for name, measure in measures.items()}
    assert found["CPU of the job before (cores)"] == 2 * 0.5 and not [name for name in found if "busy" in name]
    assert found["answered before (events/s)"] == pytest.approx(50, abs=1) and "sustained (events/s)" not in found


def compared(store, monkeypatch, capsys, **parameters):
    """All that the notebook that compares stored runs leaves, and what it prints first."""
    monkeypatch.setattr(stored_runs, "open_store", lambda profile: contextlib.nullcontext(store))
    names = {"display": lambda shown: None}
    for number, source in enumerate(code("compare/02_compare_runs")):
        exec(source, names)
        if not number:
            names |= parameters
    return names, capsys.readouterr().out


def test_stored_runs_are_compared_and_ranked_on_the_load_that_was_asked_for(monkeypatch, capsys):
    store = result_store()
    for number, (strategy, rate, spike) in enumerate(
        [("fluid", 10.0, 40.0), ("matched", 10.0, 50.0), ("fluid", 99.0, 800.0), ("matched", 99.0, 700.0)]
    ):
        store.put_run(run(number, strategy, parameters={"rate": rate}, spike_ms=spike), tables())
    store.put_run(run(5, "fluid", parameters={"rate": 10.0}).model_copy(update={"machine": OTHER_MACHINE}), tables())
    names, said = compared(store, monkeypatch, capsys, like=run(0).run_id)
    assert [each["spike_ms"] for each in names["every"]] == [40, 50]
    assert said.startswith("of the 5 newest runs in the store 2 are of one load, 2 of them correct; 1 more, made on")
    _, said = compared(store, monkeypatch, capsys, newest=2)
    assert said.startswith("of the 2 newest runs in the store "), "there are more"
    names, _ = compared(store, monkeypatch, capsys, like=run(0).run_id, strategies=["matched"])
    assert [each["spike_ms"] for each in names["every"]] == [50]
