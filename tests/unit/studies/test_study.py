"""What a notebook gets of its runs, with runs that were never made."""

from types import SimpleNamespace

import pandas as pd
import pytest
from small_lab import opens

from keyshift.lab.run import run_each
from keyshift.model.errors import BadInput, KeyshiftError, PointsDied
from keyshift.studies import study as studies
from keyshift.studies.study import Study, measure, named, on_backends

TABLES = {
    "latency": pd.DataFrame({"created_s": [-1.0, 0.5, 1.5], "latency_ms": [10.0, 20.0, 40.0]}),
    "migration": pd.DataFrame({"switched_s": [0.1], "installed_s": [0.2]}),
    "metrics": pd.DataFrame({"t_s": [3.0], "metric": ["fault"], "instance": ["kill:slot"], "value": [1.0]}),
}
DEATH = "it died once, at store:9000; see /srv/logs/spark.log"
VERDICT = SimpleNamespace(lost=0, duplicated=0, reordered=0, wrong=0, ownership_violations=0)


class Lab:
    """Runs of ``dies`` die, those of ``bad`` have a bad verdict."""

    store = SimpleNamespace(get_tables=lambda run_id: TABLES)

    def __init__(self, dies=(), bad=()):
        self.dies, self.bad, self.made = dies, bad, 0

    def settled(self, specs):
        return [spec.settled(rate=500.0, frame_ms=40.0) for spec in specs]

    def run(self, spec):
        name, self.made = spec.strategy.name, self.made + 1
        if name in self.dies:
            raise KeyshiftError(f"{name} died")
        status = "bad" if name in self.bad else "ok"
        summary = SimpleNamespace(
            model_dump=lambda mode: {"strategy": name, "verdict": status, "seed": spec.workload.seed}
        )
        return SimpleNamespace(
            run_id=f"run-{self.made}",
            status=status,
            verdict=VERDICT,
            summary=summary,
            parameters=spec.parameters(),
            measured_from_s=-spec.scenario.trigger_s,
            versions={"keyshift": "1"} if self.made < 3 else {"keyshift": "2"},
        )


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setattr(studies, "run_in_one_job", run_each)
    return opens(monkeypatch, studies, Lab())


def test_points_have_names_and_their_repetitions_also_with_files_of_one_name(lab, tmp_path):
    points = {"slow": {"strategy": "fluid"}, "fast": {"strategy": "all_at_once"}}
    study = measure(points, {"repetitions": 2, "keys": 99})
    rows = [(row["strategy"], row["seed"]) for row in study.rows()]
    assert rows == [("slow", 1), ("slow", 2), ("fast", 1), ("fast", 2)]
    assert {name: spec.workload.keys for name, spec in study.specs.items()} == {"slow": 99, "fast": 99}
    seconds, migration = study.timelines()["slow"]
    assert list(seconds["runs"]) == [2, 2, 2]
    assert migration is TABLES["migration"]
    texts, lab.made = {}, 0
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "words.txt").write_text("a b c")
        texts[name] = {"text": str(tmp_path / name / "words.txt")}
    study = measure(texts, {"workload": "wordcount", "repetitions": 2})
    found = {name: [run.run_id for run, _ in runs] for name, runs in study.runs.items()}
    assert found == {"old": ["run-1", "run-3"], "new": ["run-2", "run-4"]}


def test_points_that_leave_their_load_to_the_machine_have_one_and_their_runs_are_found(lab):
    study = measure(named(["fluid", "lazy"]), {"rate": "auto", "repetitions": 2})
    assert {name: len(runs) for name, runs in study.runs.items()} == {"fluid": 2, "lazy": 2}
    assert {manifest.parameters["rate"] for manifest in study.manifests} == {500.0}
    assert study.effective().loc[["rate", "auto"], "fluid"].tolist() == [500.0, "rate"]
    assert study.load == "500 events/s, frames of 20 ms"


def test_runs_whose_verdict_is_bad_are_told_and_enter_no_figure(lab):
    lab.bad = {"lazy"}
    study = measure(named(["fluid", "lazy"]))
    assert list(study.verdicts()["verdict"]) == ["ok", "bad"]
    assert set(study.timelines()) == set(study.curves()) == set(study.first()) == {"fluid"}
    assert [row["verdict"] for row in study.rows()] == ["ok", "bad"]


def test_a_point_one_of_whose_runs_is_bad_is_not_compared(lab, monkeypatch):
    run = lab.run

    def first_is_bad(spec):
        lab.bad = () if lab.made else {"fluid"}
        return run(spec)

    monkeypatch.setattr(lab, "run", first_is_bad)
    study = measure(named(["fluid", "lazy"]), {"repetitions": 2})
    assert set(study.good()) == {"fluid", "lazy"} and study.correct == ["lazy"]


def test_runs_that_are_all_bad_are_published_before_it_is_said_that_there_is_nothing_to_show(lab, monkeypatch):
    told = []
    monkeypatch.setattr(studies.notebook, "publish", told.append)
    lab.bad = {"fluid", "lazy"}
    with pytest.raises(KeyshiftError, match=r"none of the runs is correct, .*: run-1, run-2"):
        measure(named(["fluid", "lazy"]))
    (points,) = told
    assert [(name, run.run_id) for name, some in points.items() for run in some] == [
        ("fluid", "run-1"),
        ("lazy", "run-2"),
    ]
    lab.dies = {"lazy"}
    with pytest.raises(KeyshiftError, match=r"^1 of 2 points died: lazy \(lazy died\)$"):
        measure(named(["fluid", "lazy"]))
    assert [len(some) for some in told[1].values()] == [1, 0]


def test_a_point_of_which_one_repetition_dies_has_the_others_and_who_waits_is_told_where_its_log_is(lab, monkeypatch):
    """Copies of the notebook are made without that."""
    run, made = lab.run, []

    def dies_once(spec):
        made.append(spec)
        if len(made) == 2:
            raise KeyshiftError(DEATH)
        return run(spec)

    monkeypatch.setattr(studies.notebook, "publish", lambda points: None)
    monkeypatch.setattr(lab, "run", dies_once)
    study = measure(named(["fluid"]), {"repetitions": 3})
    assert len(study.runs["fluid"]) == 2
    assert study.verdicts()["verdict"].tolist() == ["ok", "ok", "died: it died once, at <address>; see <path>"]
    with pytest.raises(KeyshiftError, match=f"1 of 1 points died: fluid .{DEATH}"):
        study.publish()

    def dies():
        raise KeyshiftError(DEATH)

    one = Study({"fluid": []}, {})
    assert not one.add("fluid", lab.store, dies)
    with pytest.raises(KeyshiftError, match=f"all points died: {DEATH}"):
        one.require_good()


def test_a_point_that_dies_does_not_stop_the_others_and_is_named_at_the_end(lab, monkeypatch):
    monkeypatch.setattr(studies.notebook, "publish", lambda points: None)
    lab.dies = {"fluid"}
    study = measure(named(["fluid", "lazy"]))
    assert study.verdicts()["verdict"].to_dict() == {"lazy": "ok", "fluid": "died: fluid died"}
    with pytest.raises(PointsDied, match=r"1 of 2 points died: fluid \(fluid died\)"):
        study.publish()
    with pytest.raises(PointsDied, match=r"2 of 4 points died: fluid \(fluid died\); fluid \(fluid died\)"):
        study.publish(study)
    lab.dies = {"fluid", "lazy"}
    with pytest.raises(KeyshiftError, match="all points died: fluid died; lazy died"):
        measure(named(["fluid", "lazy"]))


def test_points_that_cannot_be_are_refused_before_anything_runs(lab):
    with pytest.raises(BadInput, match="no point given"):
        measure({})
    with pytest.raises(BadInput, match="unknown strategy 'fluidd'"):
        measure({"a": {"strategy": "fluid"}, "b": {"strategy": "fluidd"}})
    with pytest.raises(BadInput, match="a has the same parameters as another point"):
        measure({"a": {"strategy": "fluid"}, "b": {"strategy": "fluid", "rate": 2000.0}})
    assert lab.made == 0


def test_strategies_are_names_or_points_with_names_of_their_own():
    assert named(["fluid", "lazy"]) == {"fluid": {"strategy": "fluid"}, "lazy": {"strategy": "lazy"}}
    size = {"strategy": "chunked", "settings": {"size": 16, "order": "reverse"}}
    assert named({"sudden": "all_at_once", "chunk 16": size}) == {
        "sudden": {"strategy": "all_at_once"},
        "chunk 16": {"strategy": "chunked", "size": 16, "order": "reverse"},
    }


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("fluid", "strategies = 'fluid': must be names of strategies in a list, or {name: {strategy"),
        (["fluidd"], "strategies: fluidd: unknown strategy 'fluidd': did you mean 'fluid'.* known: stop_restart, "),
        (["fluid", {"strategy": "lazy"}], "strategies: {'strategy': 'lazy'}: must be names"),
        (["fluid", "lazy", "fluid"], "strategies: fluid is there twice; leave one out"),
        ({"a": "fluidd"}, "strategies: a: unknown strategy 'fluidd'"),
        ({"a": 3}, "strategies: a = 3: must be names"),
        ({"a": {"settings": {}}}, "strategies: a: strategy: field required"),
        ({"a": {"strategy": "chunked", "size": 1}}, "strategies: a: unknown key 'size': .*known: strategy, settings"),
        ({"a": {"strategy": "chunked", "settings": {"sise": 1}}}, "a: unknown setting 'sise': did you mean 'size'"),
        ({"a": {"strategy": "chunked", "settings": {"size": "1"}}}, "a: size = '1': must be a whole number"),
        ({"a": {"strategy": "chunked", "settings": {"order": "up"}}}, "a: unknown order 'up': known: id, reverse"),
        ({"a": {"strategy": "all_at_once", "settings": {"size": 2}}}, "a: size = 2: batch = all has no size; set"),
    ],
)
def test_a_point_that_cannot_be_is_refused_with_its_name(given, why):
    with pytest.raises(BadInput, match=why) as raised:
        named(given)
    assert "\n" not in str(raised.value)


def test_latency_after_the_trigger_is_what_the_tail_is_of_and_what_is_measured_is_without_the_warm_up(lab):
    study = measure(named(["fluid"]))
    assert list(study.after()["fluid"]["latency_ms"]) == [20.0, 40.0]
    assert study.curves()["fluid"]["latency_ms"].max() == 40.0
    twice = measure(named(["fluid"]), {"repetitions": 2}).curves()["fluid"]
    assert twice["results"].tolist() == [2.0, 1.0], "of a run"
    assert study.faults() == {"fluid": [3.0]}
    of_measured_time = measure(named(["fluid"]), {"trigger_s": 0.0}).without_warm_up()["fluid"]
    assert [latency["latency_ms"].tolist() for latency in of_measured_time] == [[20.0, 40.0]]


def test_what_is_offered_is_told_of_sources_whose_rate_changes_in_measured_time(lab):
    points = {"both": {"rate_steps": "1:7;control=2:30,4:0"}, "one": {"rate_steps": "control=0:9"}, "steady": {}}
    study = measure(points, {"workload": "saas", "rate": 100.0, "warmup_s": 3.0, "seconds": 9.0, "trigger_s": 5.0})
    assert study.offered() == {
        "both": {
            "consumer": [(-3.0, 100.0), (1.0, 7.0), (9.0, 0.0)],
            "control": [(-3.0, 5.0), (2.0, 30.0), (4.0, 0.0), (9.0, 0.0)],
        },
        "one": {"control": [(-3.0, 5.0), (0.0, 9.0), (9.0, 0.0)]},
        "steady": {},
    }


def test_effective_parameters_are_those_that_differ_from_the_defaults_of_a_point_or_among_points(lab):
    table = measure(named(["fluid", "lazy"]), {"rate": 10.0, "keys": 20_000}).effective()
    assert set(table.index) == {"rate", "strategy"}, "keys are as many as by default"
    assert list(table.loc["strategy"]) == ["fluid", "lazy"]
    points = {"words": {"workload": "wordcount"}, "bids": {"workload": "nexmark"}, "q8": {"workload": "nexmark"}}
    points["q8"] |= {"query": "q8", "backend": "rocksdb"}
    study = measure(points)
    for name, own in (("words", {"workload"}), ("bids", {"workload"}), ("q8", {"workload", "backend", "query"})):
        assert set(Study({}, {name: study.specs[name]}).effective().index) == own
    assert set(study.effective().index) == {"workload", "backend", "query", "window_ms"}, "which differ"


def test_versions_are_one_column_unless_they_changed_meanwhile(lab):
    assert measure(named(["fluid", "lazy"])).versions().to_dict() == {"version 1": {"keyshift": "1"}}
    table = measure(named(["matched", "meces"])).versions()
    assert list(table.loc["keyshift"]) == ["2"]
    lab.made = 1
    assert list(measure(named(["fluid", "lazy"])).versions().loc["keyshift"]) == ["1", "2"]


def test_points_of_a_store_that_all_slots_reach_differ_in_what_takes_effect_there():
    not_cached = {"strategy": "hybrid", "settings": {"cache": False}}
    points = on_backends(["rocksdb", "hybrid"], {"not cached": not_cached, "cached": "hybrid", "fluid": "fluid"})
    assert points == {
        "rocksdb, not cached": {"backend": "rocksdb", "strategy": "hybrid", "cache": False},
        "rocksdb, cached": {"backend": "rocksdb", "strategy": "hybrid"},
        "rocksdb, fluid": {"backend": "rocksdb", "strategy": "fluid"},
        "hybrid, not cached": {"backend": "hybrid", "strategy": "hybrid"},
        "hybrid, fluid": {"backend": "hybrid", "strategy": "fluid"},
    }
    for names, why in (
        (["rocks"], r"unknown state backend 'rocks': did you mean 'rocksdb'"),
        (["memory", 3], r"backends: 3: must be names from `keyshift backends`"),
        (["memory", "memory"], r"backends: memory is there twice; leave one out"),
    ):
        with pytest.raises(BadInput, match=why):
            on_backends(names, ["fluid"])
