"""The comparison of all presets as a user runs it, only smaller: three presets, little state, everything at its end."""

import nbformat
import pytest

from keyshift.studies.notebook import summaries

PRESETS = ["fluid", "lazy", "order_unaware"]
SMALL = {
    "presets": '["fluid", "lazy", "order_unaware"]',
    "rate": "1000",
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
def copy(execute_small):
    _, executed, _ = execute_small("compare/01_compare_presets.ipynb", SMALL)
    return executed


def test_the_runs_are_correct_and_can_be_read_back_from_the_copy(copy):
    rows = summaries(nbformat.read(copy, as_version=4))
    assert [row["strategy"] for row in rows] == PRESETS
    assert {row["verdict"] for row in rows} == {"ok"}
    assert all(row["events"] >= 5000 for row in rows), "at least three seconds before, and two behind the request"
    assert {row["units_moved"] for row in rows} == {4}
    assert [row["steps"] for row in rows] == [4, 1, 1]


def test_there_are_a_pareto_figure_and_the_timelines(copy):
    for name in ("01_compare_presets.html", "figure-1.png", "figure-2.png"):
        assert (copy.parent / name).stat().st_size > 10_000
    assert not (copy.parent / "figure-3.png").exists()


def test_table_and_conclusion_come_from_the_runs(copy):
    outputs = [o["data"] for c in nbformat.read(copy, as_version=4).cells for o in c.get("outputs", []) if "data" in o]
    [table] = (data["text/html"] for data in outputs if "had to move" in data.get("text/html", ""))
    for name in (*PRESETS, "P99 spike (× before)", "had to move (MiB)", "silence (ms)", "verdict"):
        assert name in table
    said = "\n".join(data.get("text/markdown", "") for data in outputs)
    assert "All 3 runs are correct" in said
    assert "the floor, a bare copy of the same bytes" in said
