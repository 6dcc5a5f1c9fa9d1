"""The experiments with runs that were made up: every cell runs. Real ones: tests/notebooks/test_executed.py."""

import contextlib
from pathlib import Path
from types import MappingProxyType

import matplotlib as mpl
import nbformat
import pandas as pd
import papermill
import pytest
import small_store
from matplotlib import pyplot as plt

from keyshift import suite
from keyshift.analysis.plots.style import style_of
from keyshift.lab.scripts.highest_rate import Burst, RateSearch, Tried
from keyshift.model.errors import BadInput, PointsDied
from keyshift.peers import plain_run
from keyshift.peers.engines import ENGINES
from keyshift.results.tables import TABLES
from keyshift.studies import notebook
from keyshift.studies.highest_rate import NOTHING_MOVES, RateStudy
from keyshift.studies.study import Study, specs_of

ROOT = Path(__file__).parents[4]
STUDIES = sorted(p for p in (ROOT / "notebooks").rglob("*.ipynb") if "study = measure" in p.read_text())
COMPARING = [path for path in STUDIES if "strategies" in papermill.inspect_notebook(str(path))]
POINTS = {name: {"strategy": "chunked", "settings": {"size": size}} for name, size in (("chunk 3", 3), ("chunk 5", 5))}
POINTS |= {"sudden": "all_at_once"}

LOOKS = pd.DataFrame(dict.fromkeys(TABLES["scaling"].names, 2.0), index=range(4)).assign(
    t_s=[0.5, 1.5, 2.5, 3.5], slots=[1, 1, 2, 2], target=[1, 2, 2, 2], migrating=False, reason="as it was", stage=0
)
FEW = {"slots": 20, "rate": 1000, "key_groups": 100, "state": "20GB", "clusters": [10], "sizes": ["1GB"]}
SMALLER = {"04_simulate_clusters": FEW}  # of what takes long


def made_up(points, common=None, profile="", one_job=True):
    """What ``measure`` gives: two repetitions of each that nobody has measured."""
    runs, specs = {}, specs_of(points, common or {})
    for number, (name, spec) in enumerate(specs.items()):
        told = {"parameters": spec.parameters(), "notes": ["nobody has measured this"]}
        one, two = (small_store.run(2 * number + each, spec.strategy.name, **told) for each in (0, 1))
        tables = {table: content.to_pandas() for table, content in small_store.tables().items()} | {"scaling": LOOKS}
        tables["migration"] = small_store.two_steps(1 + number)
        runs[name] = [(one, tables), (two, tables)]
    return Study(runs, specs)


def others(specs, first, strategy=""):
    """Two repetitions of each, under the name of this strategy or their own, with numbers from ``first`` on."""
    tables = {table: content.to_pandas() for table, content in small_store.tables().items()}
    runs = {
        name: [(small_store.run(first + number, strategy or name, parameters=spec.parameters()), tables)] * 2
        for number, (name, spec) in enumerate(specs.items())
    }
    return Study(runs, specs)


def made_up_beside_engines(points, common, names, profile="", checkpoint_s=0.0):
    """What ``measure_beside_engines`` gives."""
    beside = others({name: ENGINES[name].spec(common) for name in names}, 95)
    return made_up(points, common) | beside


def made_up_rates_beside_engines(points, common, names, profile="", checkpoint_s=0.0):
    """What ``measure_rates_beside_engines`` gives."""
    specs = specs_of(points, common | NOTHING_MOVES)
    specs |= {name: ENGINES[name].spec(common | {"trigger_s": 0.0}) for name in names}
    study = others(specs, 200)
    search = RateSearch(3)
    search.highest, search.held = 1000.0, Burst([1.0], [2.0], kept_up=True)
    search.tried += [Tried(1000.0, search.held), Tried(2000.0, Burst([], [], kept_up=False))]
    return RateStudy(study.runs, study.specs, searches={name: [search] * 2 for name in specs})


def execute(path, parameters):
    """As a notebook is: in its folder."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    space = {"display": lambda *shown: None}
    with contextlib.chdir(path.parent):
        for cell in cells:
            exec(cell.source, space)
            if "parameters" in cell.metadata.get("tags", []):
                space |= parameters
    return space


def made_up_beside_plain(points, common=None, profile="", plain=MappingProxyType({plain_run.NAME: {}})):
    """What ``measure_beside_plain`` gives."""
    specs = {name: plain_run.plain_spec({**(common or {}), **given}) for name, given in plain.items()}
    return others(specs, 90, plain_run.NAME) | made_up(points, common)


def made_up_highest_rates(points, common=None, profile="", bisections=3):
    """What ``measure_highest_rates`` gives."""
    study = made_up(points, NOTHING_MOVES | (common or {}))
    search = RateSearch(bisections)
    search.highest, search.held = 1000.0, Burst([1.0], [2.0], kept_up=True)
    search.tried.append(Tried(1000.0, search.held))
    return RateStudy(study.runs, study.specs, searches={name: [search] * 2 for name in points})


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    starts = ("measure", "measure_beside_engines", "measure_beside_plain", "measure_highest_rates")
    for name in (*starts, "measure_rates_beside_engines"):
        monkeypatch.setitem(vars(suite), name, globals()[name.replace("measure", "made_up")])
    monkeypatch.setitem(vars(suite), "open_store", lambda profile: contextlib.nullcontext(small_store.result_store()))
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


@pytest.mark.parametrize("path", COMPARING, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_strategies_of_every_notebook_that_compares_some_may_be_points_of_one_figure(path, monkeypatch):
    monkeypatch.setattr(notebook, "display", lambda *told, **how: None)
    space = execute(path, SMALLER.get(path.stem, {}) | {"strategies": POINTS})
    of_size = {spec.strategy.settings.get("size"): name for name, spec in space["study"].specs.items()}
    assert "chunk 3" in of_size[3] and of_size[3] != of_size[5]
    with pytest.raises(BadInput, match="strategies: chunk 3: unknown setting 'sise': did you mean 'size'"):
        execute(path, {"strategies": {"chunk 3": {"strategy": "chunked", "settings": {"sise": 3}}}})


def test_highest_rates_of_engines_are_drawn_told_and_published_beside_their_runs(monkeypatch):
    published = []
    monkeypatch.setattr(notebook, "display", lambda told, **how: published.append(told["text/plain"].splitlines()))
    space = execute(ROOT / "notebooks" / "compare" / "05_engines.ipynb", {"search_s": 4.0})
    assert [*space["searched"].specs] == ["fluid", "spark_state"]
    assert "fluid: 1000 events/s with slots = 2." in space["said_of_rates"]
    assert "fluid sustains about as many events/s as spark_state." in space["said_of_rates"]
    (lines,) = published
    assert sum(line.startswith("fluid, ") for line in lines) == 4, "two runs, and two searches"
    all_died = RateStudy.of(space["searched"].specs)
    all_died.died = {"fluid": "it died"}
    monkeypatch.setitem(vars(suite), "measure_rates_beside_engines", lambda *given: all_died)
    with pytest.raises(PointsDied, match="1 of 6 points died: fluid"):
        execute(ROOT / "notebooks" / "compare" / "05_engines.ipynb", {"search_s": 4.0})
    assert len(published) == 2


def test_panels_of_one_strategy_are_drawn_as_it_is(monkeypatch):
    monkeypatch.setattr(notebook, "display", lambda *told, **how: None)
    space = execute(ROOT / "notebooks" / "hybrid" / "03_mappers_and_counters.ipynb", {})
    assert {style_of(name).colour for name in space["study"].specs} == {style_of("lazy").colour}
