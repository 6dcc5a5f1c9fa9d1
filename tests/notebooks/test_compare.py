"""Three presets are compared as a user does it, only smaller; then their stored runs, by command and in a notebook."""

import json

import pandas as pd
import pytest

from executed_copy import keyshift
from small_run import at_night

PRESETS = ["fluid", "lazy", "order_unaware"]
SMALL = {
    "strategies": '["fluid", "lazy", "order_unaware"]',
    "rate": "400",
    "frame_ms": "100",  # so that one core that others use too is not full before anything moves
    "keys": "2000",
    "state_bytes": "256",
    "key_groups": "16",
    "affected": "4",
    "slots": "2",
    "warmup_s": "1",
    "seconds": "9",
    "trigger_s": "3",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the runs are stored, and the services stay up until the end."""
    home = tmp_path_factory.mktemp("home")
    try:
        keyshift(home, "up")
        yield home
    finally:
        keyshift(home, "down")


def told(home, *arguments):
    return keyshift(home, *arguments).stdout


@pytest.fixture(scope="module")
def copy(home, execute_small):
    _, executed, _ = execute_small("compare/01_compare_presets.ipynb", SMALL, home)
    return executed


@pytest.fixture(scope="module")
def run_ids(home, copy):
    listed = [json.loads(line) for line in told(home, "results", "list", "--json").splitlines()]
    assert [row["strategy"] for row in listed] == PRESETS[::-1]
    assert {row["verdict"] for row in listed} == {"ok"}
    return [row["run_id"] for row in listed][::-1]


# -- the notebook that makes them ------------------------------------------------------------------------------------


def test_the_runs_are_correct_and_can_be_read_back_from_the_copy(copy):
    rows = copy.rows
    assert [row["strategy"] for row in rows] == PRESETS
    assert {row["verdict"] for row in rows} == {"ok"}
    assert all(row["events"] >= 2000 for row in rows), "at least three seconds before, and two behind the request"
    assert {row["units_moved"] for row in rows} == {4}
    assert [row["steps"] for row in rows] == [4, 1, 1]


def test_there_are_a_pareto_figure_and_the_timelines(copy):
    copy.require("01_compare_presets.html", "figure-1.png", "figure-2.png")
    assert not (copy.path.parent / "figure-3.png").exists()


def test_table_and_conclusion_come_from_the_runs(copy):
    [table] = (table for table in copy.tables if "had to move" in table)
    for name in (*PRESETS, "P99 spike (× before)", "had to move (MiB)", "silence (ms)", "verdict"):
        assert name in table
    assert "All 3 runs are correct" in copy.said
    assert "the floor, a bare copy of the same bytes" in copy.said


# -- what is done with them later ------------------------------------------------------------------------------------


def test_the_notebook_reads_the_store_and_compares(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {}, home)
    assert "3 runs in the store, 3 of one load, 3 of them correct\n" in copy.printed
    assert f"one: {run_ids[1]}, other: {run_ids[2]}" in copy.printed
    assert "All 3 runs are correct" in copy.said
    assert "has the smallest P99 spike (ms)" in copy.said
    assert sorted(file.name for file in copy.path.parent.glob("*.png")) == ["figure-1.png", "figure-2.png"]


@pytest.mark.nightly("half a minute; the same notebook once more")
def test_too_few_runs_are_told_in_a_line(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {"strategies": '["fluid"]'}, home)
    words = "1 of them correct: too few to compare, 2 are needed; `keyshift run --strategy fluid` makes one"
    assert words in copy.printed
    assert not list(copy.path.parent.glob("*.png"))


def test_compare_says_what_changed(home, run_ids):
    rows = [json.loads(line) for line in told(home, "results", "compare", *run_ids[:2], "--json").splitlines()]
    changed = {(row["kind"], row["name"]) for row in rows}
    assert ("run", "strategy") in changed and ("parameter", "rate") not in changed
    spike = next(row for row in rows if row["name"] == "P99 spike (ms)")
    assert spike["ratio"] == pytest.approx(spike["other"] / spike["one"])
    assert "other / one" in told(home, "results", "compare", *run_ids[:2])


def test_a_shared_file_has_figures_and_says_nothing_of_the_machine(home, run_ids, tmp_path):
    keyshift(home, "results", "share", *run_ids, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1 + 3 * 5
    assert page.count('<h2 id="2') == 3
    for trace in (str(home), "127.0.0.1", "localhost"):
        assert trace not in page
    words = keyshift(home, "results", "share", "1999", "-o", tmp_path / "no.html", status=2).stderr
    assert "unknown run '1999'" in words and words.count("\n") == 1


@pytest.mark.parametrize("kind", ["parquet", at_night("csv")])
def test_runs_go_to_a_colleague_and_come_back(home, run_ids, tmp_path, kind):
    run_ids = run_ids[:2]
    keyshift(home, "results", "export", *run_ids, "-o", tmp_path / "out", "--format", kind)
    read = pd.read_parquet if kind == "parquet" else pd.read_csv
    shown = [json.loads(told(home, "results", "show", run)) for run in run_ids]
    latency = read(tmp_path / "out" / f"latency.{kind}")
    assert latency.groupby("run_id").size().tolist() == [each["summary"]["events"] for each in shown]
    dictionary = pd.read_csv(tmp_path / "out" / "dictionary.csv", keep_default_na=False).set_index("column")
    assert dictionary.loc["parameter.rate", "meaning"].startswith("events per second offered")
    assert told(home, "results", "import", tmp_path / "out") == "", "they are there already"
    (tmp_path / "out" / f"latency.{kind}").unlink()
    words = keyshift(home, "results", "import", tmp_path / "out", status=2).stderr
    assert f"latency.{kind} is not there: an export has it" in words and words.count("\n") == 1


@pytest.mark.nightly("half a minute; the notebooks make runs by the same path")
def test_a_run_by_command_is_one_more_in_the_store(home, run_ids):
    small = [
        part
        for name in ("rate", "keys", "key_groups", "slots", "seconds")
        for part in ("--set", f"{name}={SMALL[name]}")
    ]
    keyshift(home, "run", "--strategy", "all_at_once", *small)
    newest = json.loads(told(home, "results", "list", "--json").splitlines()[0])
    assert (newest["strategy"], newest["verdict"]) == ("all_at_once", "ok") and newest["run_id"] not in run_ids
