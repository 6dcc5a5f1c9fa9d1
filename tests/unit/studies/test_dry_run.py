"""What a batch needs and how long it takes, without a service: small notebooks, and sets of the repository."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from small_batches import Bench, Executor, prepared, write_notebook

from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.place.needs import GIB, Resources, require_needs
from keyshift.place.profile import load_profile
from keyshift.studies import dry_run
from keyshift.studies.batch import prepare
from keyshift.studies.dry_run import Estimate, asked_of, duration, estimate, forecast, total

ROOT = Path(__file__).parents[3]
WITHOUT_RUNS = ("start/01_strategy_space", "compare/02_compare_runs")
MACHINE = Resources(cpus=2, memory=24 * GIB, free=24 * GIB)
DEFAULTS = "skew: float = 0.8  # of keys\nkeys: int = 1000  # distinct ones\nseconds: float = 24.0  # measured"
MEASURES = """
from keyshift.suite import measure, named
common = {"skew": skew, "keys": keys, "seconds": seconds, "warmup_s": 6, "repetitions": 2}
study = measure(named(["fluid", "matched"]), common, one_job=False)
raise SystemError("started")
"""

pytestmark = pytest.mark.usefixtures("own_definitions")  # a notebook that is looked at may define a strategy


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "require_java", lambda: "java")
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path / "state"))
    written(tmp_path, MEASURES)
    return tmp_path


def written(folder, *sources):
    """The notebook, with these cells behind that of its parameters."""
    path = folder / "notebooks" / "load.ipynb"
    write_notebook(path, defaults=DEFAULTS, code=sources[0])
    made = nbformat.read(path, as_version=4)
    made.cells += map(nbformat.v4.new_code_cell, sources[1:])
    nbformat.write(made, path)
    return path


def test_a_notebook_says_which_runs_it_would_start_and_starts_none(folder):
    asked = asked_of(folder / "notebooks" / "load.ipynb", {"keys": 77})
    found = [(spec.strategy.name, spec.workload.keys, spec.workload.skew) for spec in asked.specs]
    assert found == [("fluid", 77, 0.8), ("matched", 77, 0.8)]
    assert asked.load_s == 2 * 2 * (6 + 24)
    assert not (folder / "state").exists()
    assert asked_of(written(folder, "!ls\nopen('there', 'w')"), {}).specs == ()
    assert not (folder / "notebooks" / "there").exists(), "one that starts nothing is not executed"
    given = {"keys": [77]}
    notebook = written(folder, f"keys.append(8)\nkeys = sum(keys)\n{MEASURES}")
    assert asked_of(notebook, given).specs[0].workload.keys == 85
    assert given == {"keys": [77]}, "what its cells do to a parameter is not given to it"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("from keyshift.suite import measure\nmeasure({'one': {'strategy': 'flud'}})", "unknown strategy 'flud'"),
        ("from keyshift.suite import measure\nkeys / 0", "load.ipynb: what it needs cannot be told, ZeroDivisionError"),
        ("from keyshift.suite import measure\nraise SystemExit(3)", "what it needs cannot be told, SystemExit: 3"),
        ("%%time\nfrom keyshift.suite import measure\nmeasure({})", "what it needs cannot be told, SyntaxError"),
    ],
)
def test_what_the_notebook_refuses_is_refused(folder, code, words):
    with pytest.raises(BadInput, match=words):
        asked_of(written(folder, code), {})
    with pytest.raises(BadInput, match=r"unknown parameter 'text': .* this run has workload = keycount"):
        asked_of(ROOT / "notebooks" / "meces" / "01_on_demand.ipynb", {"text": "../../data/moving.txt"})


def test_a_notebook_that_starts_runs_in_two_cells_says_those_of_both(folder):
    again = "from keyshift.suite import measure\nmeasure(named(['meces']), common | {'keys': 5000})"
    asked = asked_of(written(folder, MEASURES, "study.verdicts()", again), {})
    assert [spec.strategy.name for spec in asked.specs] == ["fluid", "matched", "meces"]
    assert asked.load_s == 3 * 2 * (6 + 24)
    for old, new, words in (
        ("meces", "mecess", "mecess"),
        ("common", "study.rows()", "what it needs cannot be told, NameError"),
    ):
        with pytest.raises(BadInput, match=words):
            asked_of(written(folder, MEASURES, "study.verdicts()", again.replace(old, new)), {})


def test_a_forecast_says_what_is_needed_and_what_cannot_run_here(folder):
    made = prepared(folder, "grid: {keys: [1000, 200000000, 250000000], skew: [0, 1]}\nlist: [{skew: -1}]")
    told = forecast(made, None, MACHINE)
    assert (told.executions, told.to_do, told.runs) == (7, 7, 8)
    assert told.estimate == Estimate(2 * 120.0, 0)
    assert (told.needs.cores, told.needs.servers) == (6, ())
    assert sorted(told.refused.values()) == [[3, 4], [5, 6], [7]]
    assert (told.row()["cores"], told.row()["kept_bytes"]) == (6, 4 * 30 * 2000 * 18)
    first, needs, services, *refused = told.lines()
    assert first == (
        "batch small: 7 executions of load.ipynb, 7 to do, with 8 runs; about 4 min of load by the parameters (records "
        "of earlier ones were not read), starts and verdicts on top"
    )
    assert needs == (
        "  needs 6 cores of Spark (tasks at once), 1.6 GiB of memory before the first event, about 28 MiB more in the "
        "driver for a verdict and 4 MiB for the latencies of all runs of an execution; no executors, Spark in one "
        "process"
    )
    assert services.startswith("  services: Kafka (embedded, one node), ZooKeeper")
    assert refused[0].startswith("  cannot run here, execution 3, 4: the run needs ")
    assert "skew = -1" in refused[2]


def test_executors_are_told_of_each_place_if_the_profile_varies(folder):
    code = MEASURES.replace("one_job=False", "profile, one_job=False")
    write_notebook(folder / "notebooks" / "load.ipynb", defaults=f"{DEFAULTS}\nprofile: str = ''", code=code)
    told = forecast(prepared(folder, "grid: {profile: [local-cluster, local-apart], skew: [0, 1]}"), None, MACHINE)
    two, six = "2 executors of 3 cores", "6 executors of 1 core"
    of = "{}, processes of this machine, which take {} GiB more"
    assert told.executors == f"{of.format(two, 1.1)}; or {of.format(six, 3.2)}"


def test_migrations_of_one_job_have_one_verdict_and_other_runs_one_each(folder):
    of_each, one_job = 2000 * (230 + 260), MEASURES.replace("one_job=False", "one_job=True")

    def verdict_bytes(*cells):
        written(folder, *cells)
        return forecast(prepared(folder), None, MACHINE).needs.verdict_bytes

    assert verdict_bytes(MEASURES) == (6 + 24) * of_each
    assert verdict_bytes(one_job) == (6 + 2 * 2 * 24) * of_each
    others = "measure(named(['lazy']), common, one_job=False)"
    assert verdict_bytes(one_job, others) == (6 + 2 * 2 * 24) * of_each, "the largest one counts"


def test_a_job_of_several_runs_may_need_more_cores_than_any_of_them(folder):
    chain = {"workload": "chain", "chain": "map,counter", "stage_slots": "map:1,counter:6"}
    chain |= {"stage": "all", "to_slots": 3}
    for one_job, cores in ((False, 11), (True, 14)):
        written(folder, MEASURES.replace("one_job=False", f"one_job={one_job}").replace('"skew": skew', f"**{chain}"))
        assert forecast(prepared(folder), None, MACHINE).needs.cores == cores


def test_of_a_search_for_the_highest_rate_nobody_knows_how_many_events_it_offers(folder):
    assert not forecast(prepared(folder), None, MACHINE).searched
    points = '{"one": {"keys": keys}}'
    imports = "from keyshift.suite import measure, measure_highest_rates"
    written(folder, imports, f"study = measure({points})", f"found = measure_highest_rates({points})")
    _, needs, _, of_searches = forecast(prepared(folder), None, MACHINE).lines()
    assert "in the driver for a verdict on a run that is no search and " in needs
    assert of_searches.startswith(
        "  how long a search for the highest rate takes, and how many events it offers, is not"
    )


def test_what_cannot_be_told_is_not_refused_and_takes_as_long_as_the_others_of_its_set(folder):
    written(folder, f"%matplotlib inline\n{MEASURES}")
    bench, made = Bench(folder), prepared(folder, "grid: {skew: [0, 0.4, 0.8]}")
    bench.run(made, Executor(errors={0.8: "it fell over"}))
    set_minutes(bench, {0: 6.0, 0.4: 16.0, 0.8: 900.0})
    told = forecast(made, bench.records, MACHINE)
    assert (told.refused, [*told.untold.values()], told.estimate) == ({}, [[3]], Estimate(11 * 60.0, 2))
    first, untold = told.lines()
    assert first.endswith("1 to do, with at least 0 runs; about 11 min, from what 2 executions of this set took")
    assert untold.startswith("  execution 3: load.ipynb: what it needs cannot be told, SyntaxError: ")
    notebook = written(folder, MEASURES, "!ls", "%matplotlib inline", "%%html\n<p>")
    assert len(asked_of(notebook, {}).specs) == 2, "magics behind the runs do not matter"
    imports, *lines = MEASURES.strip().splitlines()
    behind = "\n".join(lines)
    specs = asked_of(written(folder, imports, "keys *= 2", behind, "!ls"), {}).specs
    assert [spec.workload.keys for spec in specs] == [2000, 2000], "what is imported may wait"
    with pytest.raises(BadInput, match="what it needs cannot be told, SyntaxError"):
        asked_of(written(folder, imports, "keys *= 2", f"%%time\n{behind}", "!ls"), {})


def test_without_java_nothing_can_run_here(folder, monkeypatch):
    def refuse():
        raise ServiceUnavailable("no java on PATH")

    monkeypatch.setattr(dry_run, "require_java", refuse)
    told = forecast(prepared(folder), None, MACHINE)
    assert (told.runs, told.refused) == (0, {"no java on PATH": [1]})


def test_an_estimate_is_a_multiple_of_the_load_as_it_was_before_and_the_total_is_one_line(folder):
    assert estimate([60, 120], []) == Estimate(180, 0)
    # It took 2, 3 and 5 times the load: the median of that, times the load that is to come.
    assert estimate([60, 120], [(10, 20), (100, 300), (10, 50)]) == Estimate(3 * 180, 3)
    assert estimate([], [(10, 20)]) == Estimate(0, 1)
    # Without load executions are alike.
    assert estimate([0, 0], [(0, 7), (0, 9), (0, 50)]) == Estimate(18, 3)
    many = forecast(prepared(folder, "grid: {skew: [0, 1]}"), None, MACHINE)
    one = forecast(prepared(folder, "list: [{keys: 40000000000}, {skew: 0.5}]"), None, MACHINE)
    assert total([many, one]) == "in all 2 batches: 4 executions to do, with 12 runs; 6 min at the least"
    assert total([one]).startswith("in all 1 batch: ")
    assert ", with at least 12 runs; " in total([replace(many, untold={"nobody knows": [1]}), one])


@pytest.mark.parametrize(("seconds", "words"), [(90, "90 s"), (300, "5 min"), (7300, "2.0 h")])
def test_a_duration_is_told_as_people_would(seconds, words):
    assert duration(seconds) == words


def set_minutes(bench, minutes):
    """Have executions of the batch taken so many minutes, by their skew."""
    for file in bench.records.names("small"):
        if file.endswith(".json"):
            record = json.loads(bench.records.read("small", file))
            begin = datetime.fromisoformat(record["started_at"])
            end = begin + timedelta(minutes=minutes[record["parameters"]["skew"]])
            bench.records.write("small", file, json.dumps(record | {"finished_at": end.isoformat()}).encode())


def test_executions_of_the_same_set_say_how_long_the_others_take(folder):
    bench, text = Bench(folder), "list: [{skew: 0}, {skew: 0.4, seconds: 114}, {skew: 0.8}]"
    made = prepared(folder, text)
    assert forecast(made, bench.records, MACHINE).estimate == Estimate(120 + 480 + 120, 0)
    bench.run(made, Executor(errors={0.8: "it fell over"}))
    set_minutes(bench, {0: 6.0, 0.4: 16.0, 0.8: 900.0})  # 3 times the load, and 2 times; one that failed is no measure
    told = forecast(made, bench.records, MACHINE)
    assert (told.to_do, told.estimate) == (1, Estimate(2.5 * 120, 2))
    assert next(told.lines()).endswith("1 to do, with 4 runs; about 5 min, from what 2 executions of this set took")
    assert forecast(made, bench.records, MACHINE, again=True).estimate == Estimate(2.5 * 720, 2)
    bench.run(made, Executor())
    assert next(forecast(made, bench.records, MACHINE).lines()) == (
        "batch small: 3 executions of load.ipynb, 0 to do, with 0 runs"
    )
    bench.records.remove("small", [f"{made.executions[2].id}.json"])
    other = prepared(folder, text, name="other")
    assert forecast(other, bench.records, MACHINE).estimate.of == 0, "those of another set are no measure"
    written(folder, f"# new\n{MEASURES}")
    told = forecast(prepared(folder, text), bench.records, MACHINE)
    assert (told.to_do, told.estimate) == (3, Estimate(2.5 * 720, 2)), "an earlier notebook is one all the same"
    names = bench.records.names
    bench.records.names = lambda of: [*names(of), "forgotten.json"]
    again = forecast(prepared(folder, text), bench.records, MACHINE)
    assert again.estimate == told.estimate, "`--again` of another command forgets what was listed"


@pytest.mark.parametrize(
    ("file", "runs", "load_s"),
    [
        ("spacker/04_overhead-smoke.yaml", 3, 3 * 8.0),  # no support, no copies, all copied
        ("compare/05_engines-smoke.yaml", 4, 4 * 9.0),
        ("start/02_explore-smoke.yaml", 1, 21.0),  # a live job, for as long as its script
        ("start/01_strategy_space-smoke.yaml", 0, 0.0),
    ],
)
def test_sets_that_start_something_else_than_measure_are_understood(folder, file, runs, load_s):
    made = prepare(ROOT / "data" / file, ROOT / "notebooks")
    told = forecast(made, None, MACHINE)
    assert told.refused == {}
    assert (told.runs, told.estimate) == (runs, Estimate(load_s, 0))


@pytest.mark.parametrize("file", sorted((ROOT / "data").rglob("*.yaml")), ids=lambda file: file.name)
def test_every_set_of_the_repository_is_described_and_possible_on_a_machine_that_is_large_enough(folder, file):
    assert f"`{file.relative_to(ROOT / 'data').as_posix()}`" in (ROOT / "data" / "README.md").read_text()
    told = forecast(prepare(file, ROOT / "notebooks"), None, Resources(cpus=64, memory=1024 * GIB, free=1024 * GIB))
    refused = [reason for reason in told.refused if "use `--profile local-cluster`" not in reason]
    assert refused == [] and not told.untold and told.executions
    assert bool(told.runs) == (file.parent.name + "/" + file.stem.rpartition("-")[0] not in WITHOUT_RUNS)
    assert ("Flink" in told.services) == ("flink" in file.read_text())


def test_the_largest_point_of_the_small_set_over_parallelism_takes_all_cores_of_the_profile_for_a_cluster(monkeypatch):
    for name in ("POD_NAMESPACE", "KEYSHIFT_IMAGE", "POD_IP", "POD_NAME"):
        monkeypatch.setenv(name, "given")
    place = load_profile("kubernetes")
    made = prepare(ROOT / "data" / "hybrid" / "04_parallelism-small.yaml", ROOT / "notebooks")
    specs = [spec for each in made.executions for spec in asked_of(made.notebook, each.parameters).specs]
    for spec in specs:
        require_needs(spec, place, MACHINE)
    assert max(spec.cores for spec in specs) == place.spark.executors * place.spark.cores
