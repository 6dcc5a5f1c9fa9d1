"""A strategy and a workload of the notebook's cells, for real: their code reaches every process of the job."""

import nbformat
import pytest

from keyshift.studies.notebook import summaries

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


def outputs(copy):
    return [o for c in nbformat.read(copy, as_version=4).cells for o in c.get("outputs", [])]


def test_what_was_made_in_cells_has_run_and_is_correct(copy):
    rows = summaries(nbformat.read(copy, as_version=4))
    ran = [("keycount", "fluid"), ("keycount", "slow_start"), ("loyalty", "slow_start")]
    assert [(row["workload"], row["strategy"]) for row in rows] == ran
    assert {row["verdict"] for row in rows} == {"ok"}
    assert {row["events"] for row in rows} == {9000}
    assert len({row["units_moved"] for row in rows}) == 1
    fluid, *slow = (row["steps"] for row in rows)
    assert slow[0] == slow[1] == fluid.bit_length()


def test_a_strategy_that_proposes_nonsense_was_refused_with_the_move_and_the_reason(copy):
    [said] = [o["text"] for o in outputs(copy) if o["output_type"] == "stream"]
    assert "it moves twice, first in step 0" in said


def test_the_plans_and_the_runs_are_drawn_and_compared(copy):
    for name in ("03_invent.html", "figure-1.png", "figure-2.png"):
        assert (copy.parent / name).stat().st_size > 10_000
    data = [o["data"] for o in outputs(copy) if "data" in o]
    table = next(each["text/html"] for each in data if "text/html" in each)
    assert "slow_start" in table and "loyalty" in table
    said = "\n".join(each.get("text/markdown", "") for each in data)
    assert "keycount: Both runs are correct" in said and "loyalty: The run is correct" in said
