"""The experiments with runs that were made up: every set asks for runs that are possible, and every cell runs.

Real ones: tests/notebooks/test_smoke_sets.py.
"""

from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
import small_store
import yaml
from matplotlib import pyplot as plt

from keyshift import suite
from keyshift.lab import notebook
from keyshift.lab.batch import prepare
from keyshift.lab.study import Study, specs_of

ROOT = Path(__file__).parents[3]
STUDIES = sorted(p for p in (ROOT / "notebooks").rglob("*.ipynb") if "study = measure(" in p.read_text())
SETS = sorted(
    path
    for path in (ROOT / "data").rglob("*.yaml")
    if ROOT / "notebooks" / yaml.safe_load(path.read_text())["notebook"] in STUDIES
)


FEW = {"slots": 20, "rate": 1000, "key_groups": 100, "state": "20GB", "clusters": [10], "sizes": ["1GB"]}
SMALLER = {"04_simulate_clusters": FEW}  # of what takes long


class Enough(Exception):
    """The points are possible; what is drawn of them is tried elsewhere."""


def made_up(points, common=None, profile="", one_job=True):
    """What ``measure`` gives, with two repetitions of each point that nobody has measured."""
    specs = specs_of(points, common or {})
    runs = {}
    for number, (name, spec) in enumerate(specs.items()):
        told = {"parameters": spec.parameters(), "notes": ["nobody has measured this"]}
        one, two = (small_store.run(2 * number + each, spec.strategy.name, **told) for each in (0, 1))
        tables = {table: content.to_pandas() for table, content in small_store.tables().items()}
        tables["migration"] = small_store.two_steps(1 + number)
        runs[name] = [(one, tables), (two, tables)]
    return Study(runs, specs)


def execute(path, parameters):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    space = {}
    for cell in cells:
        exec(cell.source, space)
        if "parameters" in cell.metadata.get("tags", []):
            space |= parameters
    return space


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setitem(vars(suite), "measure", made_up)
    with mpl.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_cell_runs_with_the_defaults(path, monkeypatch):
    published = []
    monkeypatch.setattr(notebook, "display", lambda *told, **how: published.append(told))
    space = execute(path, SMALLER.get(path.stem, {}))
    assert len(published) == 1
    assert len(space["study"].manifests) == 2 * len(space["study"].specs)
    assert plt.get_fignums() or "figure" in space


@pytest.mark.parametrize("file", SETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_set_asks_for_runs_that_are_possible(file, monkeypatch):
    def possible(points, common=None, profile="", one_job=True):
        assert specs_of(points, common or {})
        raise Enough

    monkeypatch.setitem(vars(suite), "measure", possible)
    prepared = prepare(file, ROOT / "notebooks")
    for execution in prepared.executions:
        with pytest.raises(Enough):
            execute(prepared.notebook, execution.parameters)
