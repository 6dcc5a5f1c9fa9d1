"""The stock exchange as a user runs it, only smaller: two points, two migrations, a tape that was written before."""

import subprocess
import sys

import nbformat
import pytest

from keyshift.studies.notebook import summaries

pytestmark = pytest.mark.nightly("a minute; `make test` has its cells with runs that were made up")

POINTS = ["all_at_once", "replicated"]
SMALL = {
    "points": '["all_at_once", "replicated"]',
    "rate": "1000",
    "key_groups": "16",
    "slots": "2",
    "scalings": "[1, 2]",
    "chunk": "2",
    "gap_s": "3",
    "warmup_s": "1",
    "trigger_s": "2",
    "seconds": "9",
}


@pytest.fixture(scope="module")
def copy(execute_small, tmp_path_factory):
    tape = tmp_path_factory.mktemp("tape") / "a.tape"
    small = ["--seconds", "3", "--set", "resting=5"]
    command = [sys.executable, "-m", "keyshift.cli", "tape", "write", str(tape), *small]
    subprocess.run(command, check=True, capture_output=True)
    _, executed, _ = execute_small("stock/01_exchange.ipynb", SMALL | {"tape": str(tape)})
    return executed


def test_the_runs_are_correct_and_migrate_twice(copy):
    rows = summaries(nbformat.read(copy, as_version=4))
    assert [(row["strategy"], row["verdict"]) for row in rows] == [(name, "ok") for name in POINTS]
    assert {row["events"] for row in rows} == {10_000}
    assert {row["units_moved"] for row in rows} == {16}
    assert [row["steps"] for row in rows] == [2, 8]
    assert {row["parameters"]["tape"] for row in rows} == {"a.tape"}


def test_figures_table_and_conclusion_come_from_the_runs(copy):
    for name in ("figure-1.png", "figure-2.png"):
        assert (copy.parent / name).stat().st_size > 10_000
    outputs = [o["data"] for c in nbformat.read(copy, as_version=4).cells for o in c.get("outputs", []) if "data" in o]
    tables = [data["text/html"] for data in outputs if "text/html" in data]
    table = next(table for table in tables if "P99 spike (ms)" in table)
    assert all(word in table for word in (*POINTS, "completion (s)", "verdict"))
    said = "\n".join(data.get("text/markdown", "") for data in outputs)
    assert "Both runs are correct" in said
    assert "2 → 1: " in said and "1 → 2: " in said and "for 8 key groups" in said
