"""Other engines beside ours: what is impossible is refused before anything is started, and all points are one study."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pandas as pd
import pytest
import small_store
from pyspark import SparkContext

from keyshift.experiment.scenario import ScaleTo, Shuffle
from keyshift.lab.environment import NotStarted
from keyshift.lab.environment import nothing_starts as nothing_is_started
from keyshift.lab.scripts.highest_rate import Burst, RateSearch, Tried, expected_s
from keyshift.model.errors import BadInput, KeyshiftError, PointsDied, ServiceUnavailable
from keyshift.model.keys import ALL_UNITS
from keyshift.peers import counting, engines
from keyshift.peers.counting import CountingJob, CountingQuery, Stopped
from keyshift.peers.engines import (
    ENGINES,
    Engine,
    measure_beside_engines,
    measure_rates_beside_engines,
)
from keyshift.peers.runs import OpenEngine
from keyshift.peers.spark_job import CountedByState, spark_spec
from keyshift.studies.study import Study
from keyshift.traffic.topics import Topic

SMALL = {"keys": 20, "state_bytes": 64, "key_groups": 8, "slots": 2, "to_slots": 4, "skew": 0.0}
FLUID = {"fluid": {"strategy": "fluid"}}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    """That of other tests."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


@pytest.fixture
def nothing_starts(monkeypatch):
    def started(*told):
        pytest.fail("it was started")

    for name in ("add_runs", "collect"):
        monkeypatch.setattr(engines, name, started)


@pytest.mark.parametrize(
    ("points", "more", "names", "named"),
    [
        ({"one": {"strategy": "fluidd"}}, {}, [], "fluidd"),
        (FLUID, {}, ["spark_state", "flink"], "'flink' is not known; there are spark_state, spark_restart, flink_rest"),
        (FLUID, {}, ["spark_state", "spark_state"], "'spark_state' is there twice; leave one out"),
        (FLUID, {"trigger": "shuffle", "affected": 4}, ["spark_restart"], "a job of Spark is compared with trigger"),
        (FLUID, {"state_bytes": 1 << 20, "keys": 200}, ["spark_state", "flink_restart"], "Flink's task manager"),
        (FLUID, {"to_slots": 2}, ["spark_state", "spark_restart"], "to_slots = 2: spark_restart needs another number"),
        (FLUID, {"rate": "auto"}, ["spark_state"], "rate = auto: .* give a number beside Spark"),
    ],
)
def test_what_is_not_possible_is_refused_before_anything_is_started(nothing_starts, points, more, names, named):
    with pytest.raises(BadInput, match=named):
        measure_beside_engines(points, SMALL | more, names)


def test_engines_are_not_started_beside_a_cluster(nothing_starts, tmp_path):
    profile = tmp_path / "elsewhere.yaml"
    profile.write_text("services: {kafka: 'a:1', zookeeper: 'b:2', minio: 'c:3'}\nspark: {master: local}\n")
    with pytest.raises(BadInput, match="spark_state is started beside the embedded services"):
        measure_beside_engines(FLUID, SMALL, ["spark_state"], str(profile))


def test_a_spark_of_ones_own_is_refused_before_another_engine_has_run_for_minutes(nothing_starts, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", "of somebody")
    with pytest.raises(BadInput, match="a Spark runs in this process already"):
        measure_beside_engines(FLUID, SMALL, ["flink_restart", "spark_state"])


def test_points_of_all_are_one_study_and_an_engine_is_opened_once_for_all_repetitions(monkeypatch):
    seen = []

    @contextmanager
    def opened(spec, lab, profile):
        seen.append((spec.peer, profile))
        yield OpenEngine(Query, lambda each, lab, prepared: small_store.run(each.workload.seed, each.peer))
        seen.append("closed")

    lab = SimpleNamespace(store=SimpleNamespace(get_tables=lambda run_id: run_id))
    monkeypatch.setattr(engines, "peer_lab", lambda profile: nullcontext(lab))
    for name in ("spark_state", "spark_restart"):
        monkeypatch.setitem(ENGINES, name, ENGINES[name]._replace(opened=opened))
    ours = Study({"fluid": []}, {}, {"fluid": "it died"})
    monkeypatch.setattr(engines, "collect", lambda specs, profile: ours if [*specs] == ["fluid"] else None)
    given = SMALL | {"repetitions": 2, "seed": 5}
    study = measure_beside_engines(FLUID, given, ["spark_state", "spark_restart"], "local")
    assert seen == [("spark_state", "local"), "closed", ("spark_restart", "local"), "closed"]
    assert {name: [tables for _, tables in some] for name, some in study.runs.items()} == {"fluid": []} | {
        name: [small_store.run(seed, name).run_id for seed in (5, 6)] for name in ("spark_state", "spark_restart")
    }
    assert study.died == {"fluid": "it died"}


def test_only_what_goes_on_from_a_checkpoint_is_told_of_an_interval(monkeypatch):
    told = {}

    def added(study, spec, *_):
        told[spec.peer] = spec.job.snapshot_s

    monkeypatch.setattr(engines, "add_runs", added)
    ours = Study({"fluid": [(small_store.run(1, "fluid"), {})]}, {})
    monkeypatch.setattr(engines, "collect", lambda *told: ours)
    measure_beside_engines(FLUID, SMALL, ["flink_restart", "flink_rescale"], checkpoint_s=0.5)
    assert told == {"flink_restart": 0, "flink_rescale": 0.5}


class DoesNotOpen:
    """An engine that is not there: nobody can open it."""

    def __enter__(self):
        raise ServiceUnavailable("flink: a jar cannot be had")

    def __exit__(self, *_):
        """It never was."""


NO_TABLES = SimpleNamespace(get_tables=lambda run_id: {})


@pytest.fixture
def without_flink(monkeypatch):
    """Each other engine makes its runs at once."""
    lab = SimpleNamespace(store=NO_TABLES)
    opened = OpenEngine(Query, lambda spec, lab, prepared: small_store.run(spec.workload.seed, spec.peer))
    monkeypatch.setattr(engines, "peer_lab", lambda profile: nullcontext(lab))
    monkeypatch.setitem(ENGINES, "spark_state", ENGINES["spark_state"]._replace(opened=lambda *_: nullcontext(opened)))
    monkeypatch.setitem(ENGINES, "flink_restart", ENGINES["flink_restart"]._replace(opened=lambda *_: DoesNotOpen()))


def test_an_engine_that_cannot_be_opened_has_died_and_the_others_go_on(without_flink, monkeypatch):
    ours = Study({"fluid": [(small_store.run(9, "fluid"), {})]}, {"fluid": None})
    monkeypatch.setattr(engines, "collect", lambda *told: ours)
    study = measure_beside_engines(FLUID, SMALL, ["spark_state", "flink_restart"])
    assert {name: len(some) for name, some in study.runs.items()} == {"fluid": 1, "spark_state": 1, "flink_restart": 0}
    assert study.died == {"flink_restart": "flink: a jar cannot be had"}
    with pytest.raises(PointsDied, match=r"1 of 3 points died: flink_restart \(flink: a jar cannot be had\)"):
        study.publish()
    ours.runs["fluid"].clear()
    with pytest.raises(PointsDied, match="all points died: flink: a jar cannot be had"):
        measure_beside_engines(FLUID, SMALL, ["flink_restart"])


def test_no_rate_is_searched_in_an_engine_that_cannot_be_opened_and_the_others_go_on(without_flink, monkeypatch):
    monkeypatch.setattr(engines, "add_highest_rates", lambda *told: None)
    study = measure_rates_beside_engines(FLUID, SEARCHED, ["flink_restart", "spark_state"])
    assert [len(study.searches[name]) for name in ("fluid", "flink_restart", "spark_state")] == [0, 0, 2]
    assert study.died == {"flink_restart": "flink: a jar cannot be had"}


SEARCHED = SMALL | {"seconds": 5, "trigger_s": 8.0, "repetitions": 2, "seed": 5}


def test_highest_rates_of_ours_and_of_engines_are_searched_in_jobs_in_which_nothing_moves(monkeypatch):
    monkeypatch.setattr(engines, "peer_lab", lambda profile: nullcontext(SimpleNamespace(store=NO_TABLES)))
    asked = []

    def run(spec, lab, prepared):
        search = prepared.args[-1].__self__
        asked.append((spec.peer, spec.workload.seed, spec.scenario.trigger, spec.cores))
        if spec.peer == "flink_restart":
            raise KeyshiftError("it died")
        search.highest, search.held = 3000.0, Burst([1.0], [2.0], kept_up=True)
        search.tried.append(Tried(3000.0, search.held))
        return small_store.run(len(asked), spec.peer, parameters=spec.parameters())

    def ours(study, specs, profile, bisections):
        assert {spec.scenario.trigger for spec in specs.values()} == {"none"} and bisections == 2
        study.runs["fluid"].append((small_store.run(9, "fluid"), {}))
        study.searches["fluid"].append(search := RateSearch(bisections))
        search.tried.append(Tried(250.0, Burst([], [], kept_up=False)))

    for name, engine in [*ENGINES.items()]:
        opened = OpenEngine(Query, run)
        monkeypatch.setitem(ENGINES, name, Engine(engine.spec, lambda *told, opened=opened: nullcontext(opened)))
    monkeypatch.setattr(engines, "add_highest_rates", ours)
    study = measure_rates_beside_engines(FLUID, SEARCHED, ["spark_state", "flink_restart"], bisections=2)
    assert asked == [(name, seed, "none", 2 + 2) for name in ("spark_state", "flink_restart") for seed in (5, 6)]
    assert [(row["strategy"], row["highest_per_s"]) for row in study.rows()] == [
        *(("fluid", None), ("spark_state", 3000.0), ("spark_state", 3000.0)),
    ]
    assert study.died == {"flink_restart": "it died"}


def test_a_search_says_what_it_starts_and_for_how_long():
    with nothing_is_started(), pytest.raises(NotStarted) as told:
        measure_rates_beside_engines(FLUID, SEARCHED, ["spark_state", "flink_rescale"])
    asked = told.value.asked
    assert [spec.scenario.trigger for spec in asked.specs] == ["none"] * 3 and asked.also == ("Flink",)
    assert [spec.job.snapshot_s for spec in asked.specs] == [0, 0, 2]
    assert asked.load_s == 3 * 2 * expected_s(asked.specs[0], 3)


def test_an_engine_that_answers_batch_by_batch_is_not_searched(nothing_starts):
    with pytest.raises(BadInput, match="engines: spark_restart: a batch takes longer than what counts as sustained"):
        measure_rates_beside_engines(FLUID, SEARCHED, ["spark_state", "spark_restart"])


class Query(CountingQuery):
    """One that only notes what it is told."""

    name, told = "An engine", "a note"

    def __init__(self):
        self.asked = []

    def begin(self, slots, version):
        self.asked.append(("begin", slots, version))

    def halt(self, finally_=False):
        self.asked.append(("halt", finally_))
        return Stopped(1_000_000, 800)

    def require_alive(self):
        """It lives."""


def test_what_cannot_be_rescaled_is_not_asked_to_and_its_run_says_so():
    assert spark_spec("spark_state", SMALL).parameters()["trigger"] == "none"
    assert spark_spec("spark_state", SMALL | {"to_slots": 2}).parameters()["trigger"] == "none"
    assert spark_spec("spark_restart", SMALL).parameters()["trigger"] == "scale"
    with pytest.raises(BadInput, match="trigger = 'none': a job of Spark is compared with trigger = 'scale' only"):
        spark_spec("spark_state", SMALL | {"trigger": "none"})


def test_to_be_rescaled_a_job_is_begun_anew(monkeypatch):
    monkeypatch.setattr(counting.lines, "fill", lambda *told: None)
    monkeypatch.setattr(Topic, "length", lambda topic: 20)
    query = Query()
    job = CountingJob(spark_spec("spark_restart", SMALL), query, Topic("k", "in", 2), Topic("k", "out"))
    job.start()
    job.request(ScaleTo(4))
    assert job.busy
    job.check()
    job.stop()
    assert query.asked == [("begin", 2, 1), ("halt", False), ("begin", 4, 2), ("halt", True)]
    end = job.final_state()
    assert [len(stage.records) for stage in end.stages] == [1]
    assert end.notes == ["a note"] and set(end.stages[0].unit_bytes.values()) == {100}
    query.reads = True
    assert end.told_of(pd.DataFrame({"key": [3], "t": [2_000_000]})) == [], "all of the state is judged"
    with pytest.raises(BadInput, match="An engine chooses the keys of a slot, so only scale is possible"):
        job.request(Shuffle(3))


def test_whether_a_job_lives_is_looked_at_though_the_clock_stands_still(monkeypatch):
    monkeypatch.setattr(counting, "LOOK_S", 0.0)
    monkeypatch.setattr(counting, "now_us", lambda: 1_000_000)
    query = Query()
    query.require_alive = lambda: query.asked.append("alive")
    job = CountingJob(spark_spec("spark_restart", SMALL), query, Topic("k", "in", 2), Topic("k", "out"))
    for _ in range(2):
        job.check()
    assert query.asked == ["alive"] * 2


def test_the_state_in_sparks_checkpoint_is_that_of_the_oracle():
    workload = CountedByState(keys=20, state_bytes=64, key_groups=8)
    assert workload.only(ALL_UNITS) is None, "the checkpoint is read whole"
    events = pd.DataFrame({"key": [3, 3, 5]})
    results = events.assign(router=0, offset=[0, 1, 2], position=0, count=[1, 2, 1], stamp=[0, 1, 0])
    state = pd.DataFrame({"key": range(20), "count": 0, "whole": True})
    state.loc[[3, 5], "count"] = [2, 1]

    def wrong(state):
        return list(workload.wrong(events, results, iter([state])))

    assert wrong(state) == []
    torn = state.assign(whole=state["key"] != 7)
    assert wrong(torn) == ["the text of key 7 is not whole in the final state"]
    less = state.assign(count=state["count"].replace(2, 1))
    assert wrong(less) == ["count in the final state of key 3: 1; expected 2"]
    assert wrong(state.drop(index=7)) == ["key 7 is in the final state 0 times; expected once"], "it has no events"
    assert "count in the final state of key 3: 0; expected 2" in wrong(state.drop(index=3))
    twice, strange = (pd.concat([state, state[7:8].assign(key=key)], ignore_index=True) for key in (7, 20))
    assert wrong(twice) == ["key 7 is in the final state 2 times; expected once"]
    assert wrong(strange) == ["key 20 in the final state: keys are below 20"]
