"""The page of many batches: what came of each, their figures, what is missing; and which files are a kind of sets."""

import base64
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
import typer
from small_batches import Bench, Executor, prepared, write_notebook

from keyshift.cli import experiments
from keyshift.endpoints import Endpoints
from keyshift.lab import environment
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.services import jars
from keyshift.studies import batch
from keyshift.studies import batch_report as report
from keyshift.studies.batch import ended, files_of
from keyshift.studies.batch_report import batch_report
from keyshift.studies.notebook import NOTES

PNG = base64.b64encode(b"a picture").decode()


class Notebooks(Executor):
    """Executes a batch into notebooks that have a figure and a conclusion, or what is ``shown``."""

    shown = ()

    def __call__(self, path, parameters, home):
        executed = super().__call__(path, parameters, home)
        shown = self.shown or (
            {"image/png": PNG, "text/plain": "<Figure>"},
            {"text/markdown": f"- with {parameters['skew']} < 1\n"},
            {"text/markdown": "- at &lt;path&gt;\n"},
        )
        outputs = [nbformat.v4.new_output("display_data", data=data) for data in shown]
        cell = nbformat.v4.new_code_cell("figure = 1", outputs=outputs)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), executed.notebook)
        return executed


@pytest.fixture
def folder(tmp_path):
    write_notebook(tmp_path / "notebooks" / "load.ipynb")
    return tmp_path


@pytest.fixture
def page(folder):
    """Of two batches: in one each of three executions ends otherwise, of the other nothing was executed."""
    bench = Bench(folder)
    first = prepared(folder, "grid: {skew: [0.25, 0.5, 0.75]}", "first-small")
    bench.run(first, Notebooks(verdicts={0.5: "bad"}, errors={0.75: "cell 3: ValueError: <no>\nmore of it"}))
    second = prepared(folder, "grid: {skew: [0.1]}", "second-small")
    batches = [(each, ended(each, bench.records)) for each in (first, second)]
    return batch_report("all small sets", batches, bench.records)


def test_every_execution_has_its_verdict_parameters_figures_and_conclusion_and_what_is_missing_is_told(page):
    assert "3 of 4 executions of 2 batches have ended." in page
    assert page.count(f'src="data:image/png;base64,{PNG}"') == 3
    assert "<li>with 0.25 &lt; 1</li><li>at &lt;path&gt;</li>" in page
    assert 'class="ok">ok</span>: 1 ok, ' in page and 'class="bad">bad</span>: 1 bad, ' in page
    assert "<th>skew</th><td>0.25</td>" in page
    assert [page.count(f'<h2 id="{name}">') for name in ("first-small", "second-small")] == [1, 1]
    assert "<script" not in page and "http" not in page, "it is of itself alone"
    gaps = page.partition("What is missing")[2].partition("</ul>")[0]
    lines = [line.partition("</li>")[0] for line in gaps.split("<li>")[1:]]
    assert lines == [
        "first-small, execution 2 (skew=0.5): bad, 1 bad",
        "first-small, execution 3 (skew=0.75): failed, cell 3: ValueError: &lt;no&gt;",
        "second-small, execution 1: not run",
    ]
    assert "Nothing: every execution" not in page


def test_in_markdown_it_has_the_same_lines_without_figures_and_without_gaps_it_says_so(folder):
    bench, made = Bench(folder), prepared(folder, "grid: {skew: [0.25, 0.5]}", "first-small")
    done = bench.run(made, Notebooks(verdicts={0.5: "bad"}, errors={0.5: "OSError: /home/ada/x: 1 < 2"}))
    text = batch_report("first-small", [(made, done)], bench.records, markdown=True)
    assert "| first-small | 2 | 1 | 1 | 0 | 0 | 1 ok, 1 bad | 0.0 |" in text.splitlines()
    assert "- first-small, execution 2 (skew=0.5): bad, OSError: &lt;path>: 1 < 2" in text.splitlines()
    said = text.partition("## first-small\n")[2]
    assert said == (
        "\n### skew=0.25\n\nok: 1 ok, 0.0 min\n\n- with 0.25 < 1\n- at &lt;path>\n"
        "\n### skew=0.5\n\nbad: 1 bad, 0.0 min; OSError: &lt;path>: 1 < 2\n\n- with 0.5 < 1\n- at &lt;path>\n"
    )
    bench, made = Bench(folder), prepared(folder, "grid: {skew: [0.25]}")
    done = bench.run(made, Notebooks())
    page = batch_report("all", [(made, done)], bench.records)
    assert "Nothing: every execution has ended, and every run of it is correct." in page
    bench.records.remove("small", [f"{made.executions[0].id}/load.ipynb"])
    gone = batch_report("all", [(made, done)], bench.records, markdown=True)
    assert "\nok: 1 ok, 0.0 min; its executed copy is not stored with the batch any more\n" in gone


def test_notes_are_told_once_with_those_who_have_them_also_if_the_notebook_tells_them(folder):
    told = [("full", []), ("the clock was set", ["lazy, 4 slots", "fluid"]), ("at <path>", ["lazy, 4 slots"])]
    notes = [{"note": note, "points": points} for note, points in [*told, ("late", ["lazy, 2 slots"])]]
    bench, made, execute = Bench(folder), prepared(folder), Notebooks()
    execute.shown = {"text/markdown": "- **fluid**: at &lt;path&gt;\n"}, {NOTES: notes, "text/plain": "published"}
    text = batch_report("all", [(made, bench.run(made, execute))], bench.records, markdown=True)
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- **fluid**: at &lt;path>",
        "- **all runs**: full",
        "- **lazy, 4 slots; fluid**: the clock was set",
        "- **lazy, 2 slots**: late",
    ]


def test_a_kind_of_sets_is_its_files_and_another_one_is_refused(tmp_path):
    for name in ("b/02_two-small.yaml", "a/01_one-small.yaml", "a/01_one-paper.yaml", "a/profile.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.name for path in files_of(tmp_path, "small")] == ["01_one-small.yaml", "02_two-small.yaml"]
    both = files_of(tmp_path, "small,paper")
    assert [path.name for path in both] == ["01_one-small.yaml", "02_two-small.yaml", "01_one-paper.yaml"]
    for given in ("smal", "paper,smal"):
        with pytest.raises(BadInput, match=r"unknown kind .*/ 'smal': did you mean 'small'.*known: paper, small"):
            files_of(tmp_path, given)
    with pytest.raises(BadInput, match=r"--all small,paper,small: small is there twice; leave one out"):
        files_of(tmp_path, "small,paper,small")
    with pytest.raises(BadInput, match=r"--all small: no sets are below .*/data; go to the folder of the repository"):
        files_of(tmp_path / "elsewhere" / "data", "small")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "give batch files, or --all and a kind of sets"),
        (["a.yaml", "--all", "small"], "give batch files, or --all and a kind of sets"),
        (["a.yaml", "b.yaml", "--as", "c"], "--as c: it names one batch"),
        (["a.yaml", "-o", "x.pdf"], "--out x.pdf: a report is a file that ends with .html or .md"),
        (["--all", "small,smal"], "unknown kind of sets below data/ 'smal': did you mean 'small'"),
        (["--all", "small", "-o", "nowhere/x.html"], "--out nowhere/x.html: its folder does not exist"),
        (["--all", "small", "-o", "data.md"], "--out data.md: it is a folder; name a file"),
        (["--all", "small"], "notebook = 'nowhere.ipynb': there is no such file"),
        (["data/01_one-small.yaml"], "notebook = 'nowhere.ipynb': there is no such file"),
        (["data/long.yaml"], f"notebook = '{'long' * 64}': there is no such file"),
    ],
)
def test_the_command_refuses_what_is_not_possible_before_anything_is_started(tmp_path, given, why):
    (tmp_path / "data").mkdir()
    (tmp_path / "data.md").mkdir()
    (tmp_path / "data" / "01_one-small.yaml").write_text("name: a\nnotebook: nowhere.ipynb\n")
    (tmp_path / "data" / "long.yaml").write_text(f"name: a\nnotebook: {'long' * 64}\n")
    command = [sys.executable, "-m", "keyshift.cli", "batch", *given]
    environment = os.environ | {"KEYSHIFT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "home").exists()


@pytest.fixture
def night(folder, monkeypatch):
    """The sets one and two in a folder of data, whose executions need no services; the names of those executed."""
    for name in ("one", "two"):
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / f"{name}-small.yaml").write_text(f"name: {name}\nnotebook: load.ipynb\n")
    executed = []
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KEYSHIFT_HOME", str(folder / "home"))
    endpoints = Endpoints("k:1", "z:1", "m:1", "a", "s")
    monkeypatch.setattr(environment, "open_services", lambda *_, **__: nullcontext(endpoints))
    monkeypatch.setattr(environment, "require_user", lambda: None)
    monkeypatch.setattr(jars, "require_java", lambda: "java")
    monkeypatch.setattr(batch, "run_batch", lambda prepared, *_, **__: executed.append(prepared.batch.name) or {})
    monkeypatch.setattr(batch, "ended", lambda *_: {})
    return executed


@pytest.mark.parametrize(("name", "first"), [("x.md", "# one"), ("x.html", "<!DOCTYPE html>")])
def test_a_report_of_given_files_is_of_these_alone(folder, night, name, first):
    with pytest.raises(typer.Exit):
        experiments.batch(every="", files=[folder / "data" / "one-small.yaml"], out=folder / name, metrics=None)
    written = (folder / name).read_text()
    assert night == ["one"] and "0 of 1 execution of 1 batch have ended." in written and "two" not in written
    assert written.splitlines()[0] == first and written.endswith("\n")


def of_a_store_that_is_away(folder):
    raise ServiceUnavailable("MinIO does not answer")


def of_a_record_that_has_rotted(folder):
    raise BadInput("it is damaged")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.rmdir, "No such file"),
        (of_a_store_that_is_away, "MinIO does not answer"),
        (of_a_record_that_has_rotted, "it is damaged"),
    ],
)
def test_a_page_that_cannot_be_written_does_not_end_the_night(folder, night, monkeypatch, capsys, make, why):
    page = folder / "pages" / "x.html"
    page.parent.mkdir()
    monkeypatch.setattr(report, "batch_report", lambda *_: make(page.parent) or "a page")
    with pytest.raises(
        KeyshiftError, match=f"x.html cannot be written: {why}.*; all executions are stored.*same command"
    ):
        experiments.batch(every="small", files=None, out=page, metrics=None)
    assert night == ["one", "two"]
    assert f"x.html cannot be written: {why}" in capsys.readouterr().err


def test_rows_of_several_batches_say_whose_they_are_and_those_for_programs_have_the_error(folder, night, capsys):
    with pytest.raises(typer.Exit):
        experiments.batch(every="small", files=None, out=None, metrics=None, as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["set"], row["status"], row["error"]) for row in rows] == [
        ("one", "not run", None),
        ("two", "not run", None),
    ]


def test_a_page_is_in_the_state_folder_if_no_file_is_named_though_nobody_has_made_it_yet(folder, night):
    with pytest.raises(typer.Exit):
        experiments.batch(every="small", files=None, out=None, metrics=None)
    assert night == ["one", "two"]
    assert (folder / "home" / "report-small.html").is_file() and (folder / "home").stat().st_mode & 0o777 == 0o700


def test_what_another_command_executes_is_not_forgotten_and_nothing_of_the_night_begins(folder, night, monkeypatch):
    monkeypatch.setattr(batch, "forget", lambda *_: pytest.fail("it is forgotten"))
    busy = pytest.raises(ServiceUnavailable, match="batch two is still busy in process")
    with batch.alone([prepared(folder, name="two")], folder / "home"), busy:
        experiments.batch(every="small", files=None, out=None, metrics=None, again=True)
    assert night == []
