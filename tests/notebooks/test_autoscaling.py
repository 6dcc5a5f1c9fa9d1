"""The autoscaling notebook as a user runs it, only shorter: one step of the load, and one job beside it."""

import pytest

pytestmark = pytest.mark.nightly("a minute; `make test` has its cells with runs that were made up")

SMALL = {
    "rate": "200",
    "load": "2:1200,8:100",
    "seconds": "10",
    "slots_max": "2",
    "fixed": "[1]",
    "work_us": "1000",
    "keys": "1000",
    "state_bytes": "64",
    "key_groups": "16",
    "warmup_s": "1",
    "trigger_s": "1",
}


@pytest.fixture(scope="module")
def copy(execute_small):
    _, executed, _ = execute_small("hybrid/02_autoscaling.ipynb", SMALL)
    return executed


def test_both_jobs_are_correct_and_only_the_autoscaled_one_has_moved(copy):
    scaled, fixed = copy.rows
    assert [row["verdict"] for row in (scaled, fixed)] == ["ok", "ok"]
    assert {row["events"] for row in (scaled, fixed)} == {3 * 200 + 6 * 1200 + 2 * 100}
    assert scaled["units_moved"] >= 8 and fixed["units_moved"] == 0


def test_figure_table_decisions_and_conclusion_come_from_the_runs(copy):
    copy.require("02_autoscaling.html", "figure-1.png")
    costs = copy.table("slot-seconds")
    for words in ("1 to 2, autoscaled", "always 1", "missed seconds", "late events (%)"):
        assert words in costs
    assert "more is to be done than the slots can" in copy.table("move_cost")
    assert "more slot-seconds than **always 1**" in copy.said
