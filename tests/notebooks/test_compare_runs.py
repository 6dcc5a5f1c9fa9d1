"""Stored runs: two short ones are compared, shared, exported and imported, by command and in a notebook."""

import json
import os
import subprocess
import sys

import nbformat
import pandas as pd
import pytest

from small_run import at_night

SMALL = {"rate": 500, "keys": 500, "state_bytes": 64, "key_groups": 8, "seconds": 7, "warmup_s": 1, "trigger_s": 2}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where two runs are stored, and the services stay up until the end."""
    home = tmp_path_factory.mktemp("home")
    settings = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    try:
        keyshift(home, "up")
        for strategy in ("all_at_once", "fluid"):
            keyshift(home, "run", "--strategy", strategy, *settings)
        yield home
    finally:
        keyshift(home, "down")


def keyshift(home, *arguments, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "keyshift.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"KEYSHIFT_HOME": str(home)},
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def run_ids(home):
    listed = [json.loads(line) for line in keyshift(home, "results", "list", "--json").splitlines()]
    assert [row["strategy"] for row in listed] == ["fluid", "all_at_once"]
    assert {row["verdict"] for row in listed} == {"ok"}
    return [row["run_id"] for row in listed][::-1]


def test_the_notebook_reads_the_store_and_compares(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {}, home)
    outputs = [o for cell in nbformat.read(copy, as_version=4).cells for o in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "2 runs in the store, 2 of one load, 2 of them correct\n" in printed
    assert f"one: {run_ids[0]}, other: {run_ids[1]}" in printed
    said = "\n".join(output.data.get("text/markdown", "") for output in outputs if "data" in output)
    assert "Both runs are correct" in said
    assert "has the smallest P99 spike (ms)" in said
    assert sorted(file.name for file in copy.parent.glob("*.png")) == ["figure-1.png", "figure-2.png"]


def test_too_few_runs_are_told_in_a_line(home, run_ids, execute_small):
    _, copy, _ = execute_small("compare/02_compare_runs.ipynb", {"strategies": '["fluid"]'}, home)
    outputs = [o for cell in nbformat.read(copy, as_version=4).cells for o in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "1 of them correct: too few to compare, 2 are needed; `keyshift run --strategy fluid` makes one" in printed
    assert not list(copy.parent.glob("*.png"))


def test_compare_says_what_changed(home, run_ids):
    rows = [json.loads(line) for line in keyshift(home, "results", "compare", *run_ids, "--json").splitlines()]
    changed = {(row["kind"], row["name"]) for row in rows}
    assert ("run", "strategy") in changed and ("parameter", "rate") not in changed
    spike = next(row for row in rows if row["name"] == "P99 spike (ms)")
    assert spike["ratio"] == pytest.approx(spike["other"] / spike["one"])
    assert "other / one" in keyshift(home, "results", "compare", *run_ids)


def test_a_shared_file_has_figures_and_says_nothing_of_the_machine(home, run_ids, tmp_path):
    keyshift(home, "results", "share", *run_ids, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 1 + 2 * 5
    assert page.count('<h2 id="2') == 2
    for trace in (str(home), "127.0.0.1", "localhost"):
        assert trace not in page
    words = keyshift(home, "results", "share", "1999", "-o", tmp_path / "no.html", status=2)
    assert "unknown run '1999'" in words and words.count("\n") == 1


@pytest.mark.parametrize("kind", ["parquet", at_night("csv")])
def test_runs_go_to_a_colleague_and_come_back(home, run_ids, tmp_path, kind):
    keyshift(home, "results", "export", *run_ids, "-o", tmp_path / "out", "--format", kind)
    read = pd.read_parquet if kind == "parquet" else pd.read_csv
    latency = read(tmp_path / "out" / f"latency.{kind}")
    assert latency.groupby("run_id").size().tolist() == [4000, 4000]
    dictionary = pd.read_csv(tmp_path / "out" / "dictionary.csv", keep_default_na=False).set_index("column")
    assert dictionary.loc["parameter.rate", "meaning"] == "events per second offered, all routers together"
    assert keyshift(home, "results", "import", tmp_path / "out") == "", "they are there already"
    (tmp_path / "out" / f"latency.{kind}").unlink()
    words = keyshift(home, "results", "import", tmp_path / "out", status=2)
    assert f"latency.{kind} is not there: an export has it" in words and words.count("\n") == 1
