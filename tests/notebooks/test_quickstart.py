"""The quickstart as a new user runs it, only smaller: nothing is up before, nothing is left afterwards. Then what a
user does with stored runs, by command and in a notebook.
"""

import json
from pathlib import Path

import psutil
import pytest

from executed_copy import keyshift

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "00_quickstart.ipynb"
SMALL = {"strategies": '["fluid", "stop_restart"]', "rate": "2000", "keys": "2000", "state_bytes": "128"}
SMALL |= {"warmup_s": "1", "seconds": "7", "trigger_s": "2"}


@pytest.fixture(scope="module")
def executed(execute_small, tmp_path_factory):
    return execute_small("start/00_quickstart.ipynb", SMALL, tmp_path_factory.mktemp("home"))


def test_the_runs_are_correct_and_can_be_read_back_from_the_copy_whose_conclusion_comes_from_them(executed):
    _, copy, _ = executed
    assert [(row["strategy"], row["verdict"], row["events"]) for row in copy.rows] == [
        ("fluid", "ok", 16_000),
        ("stop_restart", "ok", 16_000),
    ]
    assert "Both runs are correct" in copy.said and "stop_restart" in copy.said


def test_copy_html_and_figure_are_kept_locally_and_named_and_progress_is_shown_meanwhile_and_not_in_them(executed):
    _, copy, done = executed
    names = ("00_quickstart.html", "figure-1.png")
    copy.require(*names)
    assert all(str(copy.path.parent / name) in done.stdout for name in names)
    assert " results/s  " in done.stderr
    assert not [output for output in copy.outputs if output["output_type"] == "stream"]
    assert " results/s  " not in (copy.path.parent / "00_quickstart.html").read_text()


def test_the_load_that_is_left_to_the_machine_is_the_same_for_all_told_and_stored(executed):
    home, copy, done = executed
    [chosen] = {row["parameters"]["frame_ms"] for row in copy.rows}
    assert {(row["parameters"]["rate"], row["parameters"]["auto"]) for row in copy.rows} == {(2000.0, "frame_ms")}
    assert chosen >= 20
    assert f"auto: rate = 2000, frame_ms = {chosen:g}, which is expected to take" in done.stderr
    disturbed = "so this may be wrong and is not kept" in done.stderr
    assert len(list(home.glob("load-cost-*.json"))) == (not disturbed)


def test_the_store_has_runs_and_copy_and_nothing_runs_any_more(executed):
    home, _, _ = executed
    services = [json.loads(line) for line in keyshift(home, "status", "--json").stdout.splitlines()]
    assert {service["state"] for service in services} == {"stopped"}
    listed = [json.loads(line) for line in keyshift(home, "results", "list", "--json").stdout.splitlines()]
    assert sorted(row["strategy"] for row in listed) == ["fluid", "stop_restart"]
    shown = json.loads(keyshift(home, "results", "show", listed[0]["run_id"]).stdout)
    assert {"00_quickstart.ipynb", "00_quickstart.html", "latency.parquet"} <= set(shown["files"])
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(home) in " ".join(p.info["cmdline"] or [])]
    assert not left


def test_a_misspelt_parameter_is_refused_with_the_nearest_name(tmp_path):
    assert "did you mean 'rate'" in keyshift(tmp_path, "notebook", NOTEBOOK, "--set", "ratte=1", status=2).stderr


# -- what is done with stored runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(executed):
    """Where they are; the services stay up until the end."""
    home, _, _ = executed
    try:
        keyshift(home, "up")
        yield home
    finally:
        keyshift(home, "down")


@pytest.fixture(scope="module")
def run_ids(executed):
    _, copy, _ = executed
    return [row["run_id"] for row in copy.rows]


def test_the_notebook_reads_the_store_and_compares(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {}, home)
    assert "of the 2 newest runs in the store 2 are of one load, 2 of them correct\n" in copy.printed
    assert f"one: {run_ids[0]}, other: {run_ids[1]}" in copy.printed
    assert "Both runs are correct" in copy.said
    ranked = "has the smallest P99 spike (ms)" in copy.said
    assert ranked or "no rank, as not every run was seen to recover" in copy.said, "on a slow machine none is"
    assert sorted(file.name for file in copy.path.parent.glob("*.png")) == ["figure-1.png", "figure-2.png"]


@pytest.mark.nightly("half a minute; the same notebook once more")
def test_too_few_runs_are_told_in_a_line(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {"strategies": '["fluid"]'}, home)
    words = "1 of them correct: too few to compare, 2 are needed; `keyshift run --strategy fluid` makes one"
    assert words in copy.printed
    assert not list(copy.path.parent.glob("*.png"))


@pytest.mark.nightly("half a minute; the notebooks make runs by the same path")
def test_a_run_by_command_is_one_more_in_the_store(home, run_ids):
    small = [part for name in ("rate", "keys", "seconds") for part in ("--set", f"{name}={SMALL[name]}")]
    keyshift(home, "run", "--strategy", "all_at_once", *small)
    newest = json.loads(keyshift(home, "results", "list", "--json").stdout.splitlines()[0])
    assert (newest["strategy"], newest["verdict"]) == ("all_at_once", "ok") and newest["run_id"] not in run_ids
