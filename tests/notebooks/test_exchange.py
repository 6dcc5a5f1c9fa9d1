"""The stock exchange as a user runs it, only smaller: two points, two migrations, a tape that was written before."""

import pytest

from executed_copy import keyshift

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
    keyshift(tape.parent, "tape", "write", tape, "--seconds", "3", "--set", "resting=5")
    _, executed, _ = execute_small("stock/01_exchange.ipynb", SMALL | {"tape": str(tape)})
    return executed


def test_the_runs_are_correct_and_migrate_twice(copy):
    rows = copy.rows
    assert [(row["strategy"], row["verdict"]) for row in rows] == [(name, "ok") for name in POINTS]
    assert {row["events"] for row in rows} == {10_000}
    assert {row["units_moved"] for row in rows} == {16}
    assert [row["steps"] for row in rows] == [2, 8]
    assert {row["parameters"]["tape"] for row in rows} == {"a.tape"}


def test_figures_table_and_conclusion_come_from_the_runs(copy):
    copy.require("figure-1.png", "figure-2.png")
    table = copy.table("P99 spike (ms)")
    assert all(word in table for word in (*POINTS, "completion (s)", "verdict"))
    for words in ("Both runs are correct", "2 → 1: ", "1 → 2: ", "for 8 key groups"):
        assert words in copy.said
