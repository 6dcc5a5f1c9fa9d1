"""The notebook that explains the space: needs no service and no engine, and says what follows from its parameters."""

import subprocess
import sys
from pathlib import Path

import nbformat

from keyshift.planner import strategies
from keyshift.studies.notebook import execute

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "start" / "01_strategy_space.ipynb"


def texts(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    kinds = ("text/markdown", "text/plain")
    return "\n".join(o["data"].get(k, "") for c in cells for o in c.get("outputs", []) if "data" in o for k in kinds)


def test_every_preset_is_in_the_tables_and_quoted_and_figure_and_conclusion_follow_from_the_plans(tmp_path):
    done = execute(NOTEBOOK, {}, tmp_path)
    assert done.error is None
    said = texts(done.notebook)
    for name in strategies.names():
        assert f"\n{name} " in said and f"- `{name}`: unit " in said
    assert "put off from step 0" in said
    assert "fluid makes 25, the fewest are 13; matched makes 13, the fewest." in said
    assert "lazy and hybrid: only owners change with the plan" in said
    (figure,) = done.figures
    assert figure.stat().st_size > 10_000
    assert "nothing measured" in "".join(cell.source for cell in nbformat.read(done.notebook, as_version=4).cells)


def test_other_parameters_give_other_plans_and_an_impossible_one_stops_it_with_the_reason(tmp_path):
    parameters = {"presets": ["fluid", "rhino"], "groups": 16, "from_slots": 4, "affected": 8, "keys": 160}
    done = execute(NOTEBOOK, parameters, tmp_path)
    assert done.error is None
    said = texts(done.notebook)
    assert "fluid makes 8, the fewest are 2." in said and "meces" not in said
    error = execute(NOTEBOOK, {"groups": 4, "to_slots": 9}, tmp_path).error
    assert "slots = 9: must be between 1 and the number of units, 4" in error


def test_it_loads_neither_the_engine_nor_a_client_of_any_service():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code") + "\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "keyshift.analysis.plots.plans" in loaded
    assert not loaded & {"kafka", "kazoo", "minio", "pyarrow.flight", "pyspark"}
    assert not loaded & {f"keyshift.{package}" for package in ("lab", "driver", "worker", "services")}
