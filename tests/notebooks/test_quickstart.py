"""The quickstart as a new user runs it, only smaller: nothing is up before, nothing is left afterwards."""

import json
from pathlib import Path

import psutil
import pytest

from executed_copy import keyshift

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "00_quickstart.ipynb"
SMALL = {
    "strategies": '["fluid", "stop_restart"]',
    "rate": "2000",
    "keys": "2000",
    "state_bytes": "128",
    "warmup_s": "1",
    "seconds": "10",
    "trigger_s": "3",
}


@pytest.fixture(scope="module")
def executed(execute_small, tmp_path_factory):
    return execute_small("start/00_quickstart.ipynb", SMALL, tmp_path_factory.mktemp("home"))


def test_the_runs_are_correct_and_can_be_read_back_from_the_copy(executed):
    _, copy, _ = executed
    rows = copy.rows
    assert [row["strategy"] for row in rows] == ["fluid", "stop_restart"]
    assert {row["verdict"] for row in rows} == {"ok"}
    assert {row["events"] for row in rows} == {22_000}


def test_the_load_that_is_left_to_the_machine_is_the_same_for_all_told_and_stored(executed):
    home, copy, done = executed
    [chosen] = {row["parameters"]["frame_ms"] for row in copy.rows}
    assert {(row["parameters"]["rate"], row["parameters"]["auto"]) for row in copy.rows} == {(2000.0, "frame_ms")}
    assert chosen >= 20
    assert f"auto: rate = 2000, frame_ms = {chosen:g}, which is expected to take" in done.stderr
    disturbed = "so this may be wrong and is not kept" in done.stderr
    assert len(list(home.glob("load-cost-*.json"))) == (not disturbed)


def test_copy_html_and_figure_are_kept_locally_and_named(executed):
    _, copy, done = executed
    names = ("00_quickstart.html", "figure-1.png")
    copy.require(*names)
    assert all(str(copy.path.parent / name) in done.stdout for name in names)


def test_progress_is_shown_while_it_runs_and_the_copy_is_a_report(executed):
    _, copy, done = executed
    assert " results/s  " in done.stderr
    assert not [output for output in copy.outputs if output["output_type"] == "stream"]
    assert " results/s  " not in (copy.path.parent / "00_quickstart.html").read_text()


def test_every_sentence_of_the_conclusion_comes_from_the_data(executed):
    _, copy, _ = executed
    assert "Both runs are correct" in copy.said
    assert "stop_restart" in copy.said


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
