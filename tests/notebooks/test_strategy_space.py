"""The notebook that explains the space: needs no service and no engine, and says what follows from its parameters."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from keyshift.planner import strategies
from keyshift.studies.notebook import execute

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "01_strategy_space.ipynb"


def texts(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    kinds = ("text/markdown", "text/plain")
    return "\n".join(o["data"].get(k, "") for c in cells for o in c.get("outputs", []) if "data" in o for k in kinds)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    done = execute(NOTEBOOK, {}, tmp_path_factory.mktemp("home"))
    assert done.error is None
    return done


def test_every_preset_is_in_the_tables_and_quoted_from_its_log(executed):
    said = texts(executed.notebook)
    for name in strategies.names():
        assert f"\n{name} " in said
        assert f"- `{name}`: unit " in said
    assert "put off from step 0" in said


def test_there_is_one_figure_and_it_says_that_nothing_in_it_was_measured(executed):
    (figure,) = executed.figures
    assert figure.stat().st_size > 10_000
    assert "nothing measured" in "".join(cell.source for cell in nbformat.read(executed.notebook, as_version=4).cells)


def test_the_conclusion_follows_from_the_plans(executed):
    said = texts(executed.notebook)
    assert "fluid makes 25, the fewest are 13; matched makes 13, the fewest." in said
    assert "lazy and hybrid: only owners change with the plan" in said


def test_other_parameters_give_other_plans(tmp_path):
    parameters = {"presets": ["fluid", "rhino"], "groups": 16, "from_slots": 4, "affected": 8, "keys": 160}
    done = execute(NOTEBOOK, parameters, tmp_path)
    assert done.error is None
    said = texts(done.notebook)
    assert "fluid makes 8, the fewest are 2." in said
    assert "meces" not in said


def test_an_impossible_parameter_stops_it_with_the_reason(tmp_path):
    done = execute(NOTEBOOK, {"groups": 4, "to_slots": 9}, tmp_path)
    assert done.error is not None
    assert "slots = 9: must be between 1 and the number of units, 4" in done.error


def test_it_loads_neither_the_engine_nor_a_client_of_any_service():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code") + "\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "keyshift.analysis.plots.plans" in loaded
    assert not loaded & {
        "kafka",
        "kazoo",
        "minio",
        "pyarrow.flight",
        "pyspark",
        "keyshift.lab",
        "keyshift.driver",
        "keyshift.worker",
        "keyshift.services",
    }
