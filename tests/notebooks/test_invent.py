"""A strategy and a workload of the notebook's cells, for real: their code reaches every process of the job."""

import pytest

SMALL = {
    "presets": '["fluid"]',
    "rate": "1000",
    "keys": "2000",
    "state_bytes": "128",
    "key_groups": "16",
    "to_slots": "3",
    "warmup_s": "1",
    "seconds": "8",
    "trigger_s": "2",
    "customers": "500",
}


@pytest.fixture(scope="module")
def copy(execute_small):
    _, executed, _ = execute_small("start/03_invent.ipynb", SMALL)
    return executed


def test_what_was_made_in_cells_has_run_and_is_correct(copy):
    rows = copy.rows
    ran = [("keycount", "fluid"), ("keycount", "slow_start"), ("loyalty", "slow_start")]
    assert [(row["workload"], row["strategy"]) for row in rows] == ran
    assert {row["verdict"] for row in rows} == {"ok"}
    assert {row["events"] for row in rows} == {9000}
    assert len({row["units_moved"] for row in rows}) == 1
    fluid, *slow = (row["steps"] for row in rows)
    assert slow[0] == slow[1] == fluid.bit_length()


def test_a_strategy_that_proposes_nonsense_was_refused_with_the_move_and_the_reason(copy):
    assert [output["output_type"] for output in copy.outputs].count("stream") == 1
    assert "it moves twice, first in step 0" in copy.printed


def test_the_plans_and_the_runs_are_drawn_and_compared(copy):
    copy.require("03_invent.html", "figure-1.png", "figure-2.png")
    assert "slow_start" in copy.tables[0] and "loyalty" in copy.tables[0]
    assert "keycount: Both runs are correct" in copy.said and "loyalty: The run is correct" in copy.said
