"""Batches without services: a store in memory, and notebooks that are executed by a function of the test."""

import json
import os
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_batches import DEFAULTS, Bench, Executor, prepared, write_notebook

from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.studies import batch
from keyshift.studies.batch import alone, exit_status, load_batch, prepare, table

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path):
    write_notebook(tmp_path / "notebooks" / "load.ipynb")
    return tmp_path


@pytest.fixture
def bench(folder):
    return Bench(folder)


# --- what is executed


@pytest.mark.parametrize(
    ("text", "parameters", "varying"),
    [
        pytest.param(
            "parameters: {seed: 7}\ngrid: {skew: [0, 0.8], bytes: [16, 32]}",
            [{"seed": 7, "skew": skew, "bytes": size} for skew in (0, 0.8) for size in (16, 32)],
            ["skew", "bytes"],
            id="a grid is the cross product over the common parameters",
        ),
        pytest.param(
            "parameters: {seed: 7, bytes: 16}\ngrid: {skew: [0]}\nlist:\n- {seed: 8}\n- {skew: 1}",
            [{"seed": 7, "bytes": 16, "skew": 0}, {"seed": 8, "bytes": 16}, {"seed": 7, "bytes": 16, "skew": 1}],
            ["seed", "skew"],
            id="the list stands beside the grid and wins over the common parameters",
        ),
        pytest.param("parameters: {seed: 7}", [{"seed": 7}], [], id="nothing that varies is one execution"),
    ],
)
def test_executions(folder, text, parameters, varying):
    made = prepared(folder, text)
    assert [e.parameters for e in made.executions] == parameters
    assert [e.number for e in made.executions] == [*range(1, len(parameters) + 1)]
    assert made.varying == varying
    assert made.varied(made.executions[-1]) == {name: parameters[-1].get(name) for name in varying}


def test_repetitions_of_a_set_are_apart_from_each_other_and_told_apart(folder):
    made = prepared(folder, "grid: {skew: [0, 1]}\nrepetitions: 3")
    pairs = [(e.parameters["skew"], e.repetition) for e in made.executions]
    assert pairs == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    assert len({e.id for e in made.executions}) == 6
    assert made.varied(made.executions[3]) == {"skew": 1, "repetition": 2}


def test_a_notebook_beside_the_file_comes_before_one_of_the_notebooks_folder(folder):
    assert prepared(folder).notebook == folder / "notebooks" / "load.ipynb"
    write_notebook(folder / "load.ipynb")
    assert prepared(folder).notebook == folder / "load.ipynb"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1e3", 1000.0), ("1.5E-2", 0.015), ("-2e+1", -20.0), ("10:30", "10:30"), ("1:30.5", "1:30.5"), ("012", "012"),
        ("-0", 0), ("1_000", 1000), ("0x10", 16), ("2.", 2.0), (".5", 0.5), ("1.0.0", "1.0.0"), ("1e", "1e"),
    ],
)  # fmt: skip
def test_numbers_are_those_that_everybody_means(folder, written, read):
    write_notebook(folder / "notebooks" / "load.ipynb", "value = 1")
    [execution] = prepared(folder, f"parameters: {{value: {written}}}").executions
    assert repr(execution.parameters["value"]) == repr(read)


# --- when an execution is the same one


def ids(made):
    return {e.id for e in made.executions}


def test_what_does_not_change_an_execution_leaves_it_the_same(folder):
    before = prepared(folder, "parameters: {seed: 7, bytes: 32}\ngrid: {skew: [0, 0.8]}")
    write_notebook(folder / "notebooks" / "load.ipynb", words="# Better words")
    after = prepared(
        folder, "grid: {skew: [1, 0.8, 0]}\nparameters: {bytes: 32, seed: 7}\nrepetitions: 2", name="other"
    )
    assert ids(before) < ids(after)
    assert [e.id for e in prepared(folder, "parameters: {seed: 7}").executions] == ["b027c570bfa8806a"]


@pytest.mark.parametrize("change", [{"code": "skew + bytes"}, {"defaults": DEFAULTS.replace("16", "17")}])
def test_another_code_or_default_makes_another_execution(folder, change):
    before = prepared(folder)
    write_notebook(folder / "notebooks" / "load.ipynb", **change)
    assert not ids(before) & ids(prepared(folder))


def test_a_notebook_that_was_changed_while_its_batch_runs_is_not_executed_as_the_one_before(folder, bench):
    notebook, execute = folder / "notebooks" / "load.ipynb", Executor()

    def changes(*given):
        write_notebook(notebook, code="skew + bytes")
        return execute(*given)

    done = bench.run(prepared(folder, "grid: {skew: [0, 1]}"), changes)
    assert [record.status for record in done.values()] == ["ok", "failed"] and len(execute.given) == 1
    assert "load.ipynb was changed since the batch began; give the command again" in [*done.values()][1].error


# --- what is kept, and what a restart does


def test_a_record_says_what_was_executed_what_came_of_it_and_where_the_copy_is(folder, bench):
    made = prepared(folder, "grid: {skew: [0, 1]}")
    done = bench.run(made, Executor(verdicts={1: "bad"}))
    first, second = made.executions
    record = json.loads(bench.records.read("small", f"{second.id}.json"))
    times = [record.pop("started_at"), record.pop("finished_at")]
    assert times == sorted(times)
    assert record == {
        "batch": "small",
        "notebook": "load.ipynb",
        "parameters": {"skew": 1},
        "repetition": 1,
        "status": "bad",
        "verdicts": {"run-1": "bad"},
        "error": None,
        "copy_at": f"batches/small/{second.id}/load.ipynb",
        "profile": "local",
    }
    assert done[first.id].status == "ok"
    assert bench.records.read("small", f"{first.id}/load.ipynb") == b"executed with {'skew': 0}"
    assert bench.records.read("small", f"{first.id}/load.html") == b"<p>executed"
    assert bench.of_runs.read("run-0", "load.ipynb") == b"executed with {'skew': 0}"


def test_a_restart_executes_what_is_new_or_failed_and_nothing_else(folder, bench):
    bench.run(prepared(folder, "grid: {skew: [0, 1, 2]}"), Executor(verdicts={1: "bad"}, errors={2: "cell 3: Oh"}))
    second = Executor()
    done = bench.run(prepared(folder, "grid: {skew: [0, 1, 2, 3]}"), second)
    assert [given["skew"] for given in second.given] == [2, 3]
    assert [record.status for record in done.values()] == ["ok", "bad", "ok", "ok"]
    third = Executor()
    assert bench.run(prepared(folder, "grid: {skew: [0, 1, 2, 3]}"), third) == done
    assert third.given == []
    assert bench.said == ["batch small: 4 executions of load.ipynb, 0 to do, 4 done before"]


def test_what_was_done_with_another_profile_counts_and_is_told(folder, bench, monkeypatch):
    made = prepared(folder, "grid: {skew: [0, 1]}")
    bench.run(made, Executor(errors={1: "cell 3: Oh"}))
    (folder / "mine.yaml").write_text("services: embedded")
    monkeypatch.setenv("KEYSHIFT_PROFILE", str(folder / "mine.yaml"))
    for executed in (1, 0):
        again = Executor()
        bench.run(made, again)
        assert len(again.given) == executed
        assert bench.said[0].endswith(" done before, some of them with profile local")
    monkeypatch.delenv("KEYSHIFT_PROFILE")
    bench.run(made, Executor())
    assert bench.said[0].endswith("2 done before, some of them with profile mine")


def test_again_executes_all_anew_and_under_another_name_nothing_was_executed_before(folder, bench):
    made = prepared(folder, "grid: {skew: [0, 1]}")
    assert exit_status(bench.run(made, Executor(verdicts={0: "bad"}))) == 1
    anew = Executor()
    assert exit_status(bench.run(made, anew, again=True)) == 0
    assert len(anew.given) == 2
    assert exit_status(bench.run(made, Executor())) == 0
    # As each night of a series.
    bench.run(prepared(folder, "grid: {skew: [0, 1]}"), Executor())
    other = prepare(folder / "batch.yaml", folder / "notebooks", "night-2")
    assert other.batch.name == "night-2" and ids(other) == ids(prepared(folder, "grid: {skew: [0, 1]}"))
    night = Executor()
    assert len(bench.run(other, night)) == len(night.given) == 2
    with pytest.raises(BadInput, match="name = 'Night'"):
        prepare(folder / "batch.yaml", folder / "notebooks", "Night")


@pytest.mark.parametrize("error", ["cell 3: ValueError: no\nmore", RuntimeError("Kernel died"), OSError("no space")])
def test_a_failure_is_recorded_and_the_rest_goes_on(folder, bench, error):
    made = prepared(folder, "grid: {skew: [0, 1, 2]}")
    done = bench.run(made, Executor(errors={1: error}))
    assert [record.status for record in done.values()] == ["ok", "failed", "ok"]
    assert exit_status(done) == 3
    kept = json.loads(bench.records.read("small", f"{made.executions[1].id}.json"))
    assert str(error) in kept["error"]
    assert (kept["copy_at"] is None) == isinstance(error, Exception)
    assert all("\n" not in line for line in bench.said)


def test_bad_runs_are_what_counts_where_a_notebook_got_no_further_and_are_not_made_again(folder, bench):
    """As of a notebook that has no correct run for its figures."""
    made = prepared(folder)
    done = bench.run(made, Executor(verdicts={None: "bad"}, errors={None: "cell 1: KeyshiftError: none is correct"}))
    [record] = done.values()
    assert (record.status, [*record.verdicts.values()]) == ("bad", ["bad"]) and "none is correct" in record.error
    again = Executor()
    assert exit_status(bench.run(made, again)) == 1 and again.given == []


@pytest.mark.parametrize(
    ("verdicts", "error", "lacks_runs"),
    [
        (["bad"], "cell 1: PointsDied: 4 of 5 points died: fluid (Kafka is away)", True),
        (["ok", "bad"], "its kernel: died; was it killed?", False),
    ],
)
def test_an_execution_that_lacks_runs_is_made_again_whatever_the_others_are(folder, bench, verdicts, error, lacks_runs):
    def lacks(*given):
        rows = [{"run_id": f"run-{verdict}", "verdict": verdict} for verdict in verdicts]
        return replace(Executor()(*given), rows=rows, error=error, lacks_runs=lacks_runs)

    [record] = bench.run(prepared(folder), lacks).values()
    assert (record.status, [*record.verdicts.values()]) == ("failed", verdicts)
    [record] = bench.run(prepared(folder), Executor()).values()
    assert record.status == "ok"


def test_a_copy_that_cannot_be_kept_does_not_end_the_night_nor_hide_a_failure(folder, bench, monkeypatch):
    def keep(executed, runs):
        raise BadInput("unknown run 'run-0'")

    monkeypatch.setattr(batch.notebooks, "keep", keep)
    done = bench.run(prepared(folder, "grid: {skew: [0, 1]}"), Executor(errors={1: "cell 3: Oh"}))
    kept, failed = done.values()
    assert (kept.status, failed.status, failed.error) == ("failed", "failed", "cell 3: Oh")
    assert "unknown run" in kept.error and kept.copy_at


def test_the_record_of_a_failure_says_nothing_of_whose_machine_it_was(folder, bench, monkeypatch):
    monkeypatch.setenv("KEYSHIFT_MINIO_SECRET_KEY", "sup3r-s3cret")
    error = "cell 3: OSError: /home/ada/lab/text.txt of 10.1.2.3:9092, with sup3r-s3cret"
    made = prepared(folder, "grid: {skew: [0, 1]}")
    bench.run(made, Executor(errors={0: error, 1: RuntimeError(error)}))
    for execution in made.executions:
        kept = bench.records.read("small", f"{execution.id}.json").decode()
        assert "OSError: <path> of <address>, with <hidden>" in kept
        assert not [trace for trace in ("/home/ada", "10.1.2.3", "sup3r-s3cret") if trace in kept]
    assert "/home/ada/lab/text.txt" in bench.said[1], "whoever waits for it needs to know"


def test_on_failure_stop_leaves_the_rest_for_the_next_time(folder, bench):
    made = prepared(folder, "grid: {skew: [0, 1, 2]}\non_failure: stop")
    done = bench.run(made, Executor(errors={1: "cell 3: Oh"}))
    assert [row["status"] for row in table(made, done)] == ["ok", "failed", "not run"]
    assert exit_status(done) == 3
    second = Executor()
    assert exit_status(bench.run(made, second)) == 0
    assert [given["skew"] for given in second.given] == [1, 2]


@pytest.mark.parametrize("again", [False, True])
def test_behind_an_interrupted_execution_which_is_not_recorded_the_same_command_goes_on(folder, bench, again):
    made = prepared(folder, "grid: {skew: [0, 1, 2]}")
    if again:
        bench.run(made, Executor())
    with pytest.raises(KeyboardInterrupt):
        bench.run(made, Executor(errors={1: KeyboardInterrupt()}), again=again)
    recorded = [name for name in bench.records.names("small") if name.endswith(".json")]
    assert recorded == [f"{made.executions[0].id}.json"]
    assert "interrupted" in bench.said[-1]
    assert bench.said[-1].endswith("the same command goes on with what has not ended, without --again if it had that")
    rest = Executor()
    bench.run(made, rest)
    assert [given["skew"] for given in rest.given] == [1, 2]


def test_a_store_that_does_not_answer_ends_the_batch(folder, bench, monkeypatch):
    def refuse(*_):
        raise ServiceUnavailable("MinIO does not answer")

    monkeypatch.setattr(bench.records, "write", refuse)
    execute = Executor()
    with pytest.raises(ServiceUnavailable):
        bench.run(prepared(folder, "grid: {skew: [0, 1]}"), execute)
    assert len(execute.given) == 1


def test_a_batch_is_executed_by_one_command_at_a_time(folder, bench):
    small, other = prepared(folder), prepared(folder, name="other")
    with alone([small, small], bench.home):
        with alone([other], bench.home):
            pass
        for batches in ([small], [other, small]):
            words = rf"^batch small is still busy in process {os.getpid()}; let it finish or end it"
            with pytest.raises(ServiceUnavailable, match=words), alone(batches, bench.home):
                pytest.fail("two execute it")
    with alone([small, other], bench.home):
        pass


def test_a_store_that_died_in_an_execution_is_there_again_before_anything_is_written(folder, bench, monkeypatch):
    execute, there = Executor(), []

    def dies(*given):
        there.clear()
        return execute(*given)

    def asked(write):
        def answers(*what):
            if not there:
                raise ServiceUnavailable("MinIO does not answer")
            write(*what)

        return answers

    monkeypatch.setattr(bench.records, "write", asked(bench.records.write))
    monkeypatch.setattr(bench.runs, "put_file", asked(bench.runs.put_file))
    made = prepared(folder, "grid: {skew: [0, 1]}")
    done = bench.run(made, dies, store=lambda: nullcontext(there.append("again")))
    assert [record.status for record in done.values()] == ["ok", "ok"]


def test_a_store_of_others_that_is_away_as_an_execution_ends_is_waited_for(folder, bench, monkeypatch):
    client = bench.records.bucket._client
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: setattr(client, "error", None))
    monkeypatch.setattr("keyshift.waiting.time", clock)

    def leaves(*given):
        client.error = ConnectionResetError()
        return Executor()(*given)

    [record] = bench.run(prepared(folder), leaves).values()
    assert record.status == "ok"


def test_an_execution_whose_record_has_rotted_is_made_again(folder, bench):
    made = prepared(folder, "grid: {skew: [0, 1]}")
    bench.run(made, Executor())
    bench.records.bucket._client.rotten = {f"batches/small/{made.executions[1].id}.json"}
    execute = Executor()
    assert exit_status(bench.run(made, execute)) == 0
    assert [given["skew"] for given in execute.given] == [1]


def test_a_record_that_cannot_be_read_is_named_and_again_gets_over_it(folder, bench):
    made = prepared(folder)
    name = f"{made.executions[0].id}.json"
    bench.records.write("small", name, b'{"status": "fine"}')
    execute = Executor()
    with pytest.raises(BadInput, match=f"batches/small/{name} .*--again"):
        bench.run(made, execute)
    assert execute.given == []
    assert exit_status(bench.run(made, execute, again=True)) == 0


# --- what is said


def test_each_execution_has_a_line_and_a_row_with_what_varies_and_its_verdict(folder, bench):
    made = prepared(folder, "parameters: {seed: 7}\ngrid: {skew: [0, 1]}\nlist: [{bytes: 32}]")
    done = bench.run(made, Executor(verdicts={1: "bad"}, errors={None: "cell 3: ValueError: no"}))
    head, *lines = bench.said
    assert head == "batch small: 3 executions of load.ipynb, 3 to do, 0 done before"
    assert [line.split(" after ")[0] for line in lines] == [
        "[1/3] skew=0: ok",
        "[2/3] skew=1: bad",
        "[3/3] bytes=32: failed",
    ]
    assert [line.split(" min ")[1] for line in lines] == ["(1 ok)", "(1 bad)", "(cell 3: ValueError: no)"]
    rows = table(made, done)
    assert all(row.pop("minutes") >= 0 and row.pop("set") == "small" for row in rows)
    assert rows == [
        {"#": 1, "skew": 0, "bytes": None, "status": "ok", "verdict": "1 ok"},
        {"#": 2, "skew": 1, "bytes": None, "status": "bad", "verdict": "1 bad"},
        {"#": 3, "skew": None, "bytes": 32, "status": "failed", "verdict": None},
    ]
    assert [row["error"] for row in table(made, done, errors=True)] == [None, None, "cell 3: ValueError: no"]
    write_notebook(folder / "notebooks" / "load.ipynb", defaults="batch: str = 'all'  # of units")
    rows = table(prepared(folder, "grid: {batch: [all, matched]}"), {})
    assert [(row["set"], row["batch"]) for row in rows] == [("small", "all"), ("small", "matched")]


# --- wrong files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nnotebook: load.ipynb\ngrit: {skew: [1]}", "batch.yaml: unknown key 'grit': did you mean 'grid'"),
        ("name: a\nnotebook: load.ipynb\ngrid: {}", "grid = {}: .*at least 1 item"),
        ("name: a\nnotebook: load.ipynb\ngrid: {skew: []}", r"grid\.skew = \[\]: .*at least 1 item"),
        ("name: a\nnotebook: load.ipynb\nparameters: {seed: 2026-01-01}", r"parameters\.seed = datetime"),
        ("name: a\nnotebook: load.ipynb\nrepetitions: 0", "repetitions = 0: .*greater than or equal to 1"),
        ("name: a\nnotebook: load.ipynb\non_failure: halt", "on_failure = 'halt': .*'continue' or 'stop'"),
        (
            "name: a\nnotebook: load.ipynb\nparameters: {skw: 1}",
            "unknown notebook parameter 'skw': did you mean 'skew'",
        ),
        ("name: a\nnotebook: load.ipynb\nlist: [{seed: 1}, {sede: 1}]", "parameter 'sede': did you mean 'seed'"),
        ("name: a\nnotebook: load.ipynb\ngrid: {seed: [1, 2, 1]}", "executions 1 and 3 have the same .*seed=1"),
        ("name: a\nnotebook: load.ipynb\ngrid: {skew: [1, 2, 1.0]}", "executions 1 and 3 have the same .*skew=1.0"),
        ("name: a\nnotebook: load.ipynb\nparameters: {skew: .inf}", "skew = inf: numbers have to be finite"),
        ("name: a\nnotebook: load.ipynb\nparameters: {seed: 012}", "seed = '012': load.ipynb wants a whole number"),
        ("name: a\nnotebook: laod.ipynb", "batch.yaml: notebook = 'laod.ipynb': there is no .*did you mean 'load"),
        ("name: a\nnotebook: my load.ipynb", "notebook 'my load.ipynb': use letters"),
        ("name: My batch\nnotebook: load.ipynb", "name = 'My batch': .*lower-case letters, digits and '-'"),
        ("notebook: load.ipynb", "batch.yaml: name: field required"),
        ("name: a\nnotebok: load.ipynb", "batch.yaml: unknown key 'notebok': did you mean 'notebook'"),
        ("- a", "expected `name: …`, `notebook: …`"),
        ("", "expected `name: …`, `notebook: …`"),
        ("a: [", "cannot be read: .*line 1"),
        ("name: a\nnotebook: load.ipynb\nname: b", "cannot be read: key 'name' is there twice; leave one out .*line 3"),
        ("name: a\nnotebook: load.ipynb\ngrid: {seed: [1], seed: [2]}", "key 'seed' is there twice"),
        ("name: a\nparameters: {a: 2024-13-01}", "cannot be read: month must be in"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_value(folder, text, words):
    write_notebook(folder / "notebooks" / "my load.ipynb")
    file = folder / "batch.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=words) as raised:
        prepare(file, folder / "notebooks")
    assert "\n" not in str(raised.value)


def test_more_executions_than_anybody_wants_and_a_missing_file_are_refused(folder, tmp_path):
    values = list(range(1000))
    with pytest.raises(BadInput, match="1000000000 executions; at most 10000"):
        prepared(folder, f"grid: {{skew: {values}, bytes: {values}, seed: {values}}}")
    with pytest.raises(BadInput, match=r"nowhere.yaml' cannot be read: No such file"):
        load_batch(tmp_path / "nowhere.yaml")


# --- the samples


def test_the_files_that_samples_name_are_there_and_in_the_image():
    (copied,) = re.findall(r"^for folder in (.+); do$", (ROOT / "cluster" / "install.sh").read_text(), re.MULTILINE)
    batches = [load_batch(file) for file in (ROOT / "data").rglob("*.yaml")]
    sets = [(Path("notebooks", made.notebook).parent, values) for made in batches for values in made.sets()]
    values = [(folder, value) for folder, parameters in sets for value in parameters.values()]
    named = {os.path.normpath(folder / value) for folder, value in values if str(value).startswith(".")}
    assert named and all((ROOT / file).is_file() for file in named)
    assert {Path(file).parts[0] for file in named} <= set(copied.split())
