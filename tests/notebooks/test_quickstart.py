"""The quickstart as a new user runs it, only smaller: nothing is up before, nothing is left afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from keyshift.studies.notebook import summaries

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
    rows = summaries(nbformat.read(copy, as_version=4))
    assert [row["strategy"] for row in rows] == ["fluid", "stop_restart"]
    assert {row["verdict"] for row in rows} == {"ok"}
    assert {row["events"] for row in rows} == {22_000}


def test_copy_html_and_figure_are_kept_locally_and_named(executed):
    _, copy, done = executed
    for name in ("00_quickstart.html", "figure-1.png"):
        assert (copy.parent / name).stat().st_size > 10_000
        assert str(copy.parent / name) in done.stdout


def test_progress_is_shown_while_it_runs_and_the_copy_is_a_report(executed):
    _, copy, done = executed
    assert " results/s  " in done.stderr
    outputs = [output for cell in nbformat.read(copy, as_version=4).cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "stream"]
    assert " results/s  " not in (copy.parent / "00_quickstart.html").read_text()


def test_every_sentence_of_the_conclusion_comes_from_the_data(executed):
    _, copy, _ = executed
    cells = nbformat.read(copy, as_version=4).cells
    text = "".join(o["data"].get("text/markdown", "") for c in cells for o in c.get("outputs", []) if "data" in o)
    assert "Both runs are correct" in text
    assert "stop_restart" in text


def test_the_store_has_runs_and_copy_and_nothing_runs_any_more(executed):
    home, _, _ = executed
    environment = os.environ | {"KEYSHIFT_HOME": str(home)}

    def keyshift(*arguments):
        command = [sys.executable, "-m", "keyshift.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    services = [json.loads(line) for line in keyshift("status", "--json").stdout.splitlines()]
    assert {service["state"] for service in services} == {"stopped"}
    listed = [json.loads(line) for line in keyshift("results", "list", "--json").stdout.splitlines()]
    assert sorted(row["strategy"] for row in listed) == ["fluid", "stop_restart"]
    shown = json.loads(keyshift("results", "show", listed[0]["run_id"]).stdout)
    assert {"00_quickstart.ipynb", "00_quickstart.html", "latency.parquet"} <= set(shown["files"])
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(home) in " ".join(p.info["cmdline"] or [])]
    assert not left


def test_a_misspelt_parameter_is_refused_with_the_nearest_name():
    done = subprocess.run(
        [sys.executable, "-m", "keyshift.cli", "notebook", str(NOTEBOOK), "--set", "ratte=1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "did you mean 'rate'" in done.stderr
