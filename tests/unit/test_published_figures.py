"""The map of published figures (notebooks/README.md) and the texts of notebooks promise only what is there: notebooks,
sets, parameters with their values, headings with figures.
"""

import re
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import nbformat
import papermill
import pytest
import yaml

from keyshift.experiment.parameters import known_parameters
from keyshift.studies.batch import prepare

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {
    f"{path.parent.name}/{path.stem}": path
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb"))
    if ".ipynb_checkpoints" not in path.parts
}
PAGE = (ROOT / "notebooks" / "README.md").read_text()
VALUE = r"\[[^]]*\]|[\d.]+"
SHOWS = r"^ *figure = |\.round\(|\.style\.|^table"
UNMAPPED = {"compare/02_compare_runs", "replication/03_moves"}  # which runs nothing, and which nobody has published
NOT_PUBLISHED = ("start/", "incidents/")  # folders whose notebooks show no published figure


class Published(NamedTuple):
    """A row of the map."""

    figure: str
    notebooks: list[str]
    parameters: list[str]
    sets: list[str]
    headings: list[str]
    scaled: str
    wanted: dict[str, str]  # values that parameters must have


def published(line: str) -> Published:
    figure, where, sets, headings, scaled = (cell.strip() for cell in line.strip("| \n").split(" | "))
    named, _, given = where.partition(" with ")
    return Published(
        figure,
        re.findall(r"`([^`]+)`", named),
        [each.partition("=")[0] for each in re.findall(r"`([^`]+)`", given)],
        sets.split(", "),
        headings.split("; "),
        scaled,
        dict(re.findall(r"`(\w+)=([^`]+)`", given)),
    )


TABLE = PAGE.partition("| published figure |")[2].splitlines()[2:]
LINES = [line for line in TABLE if "to come" not in line.split("|")[2]]
ROWS = [published(line) for line in LINES]
IDS = [row.figure.replace("*", "") for row in ROWS]


def parameters(name: str) -> dict[str, str]:
    """Those of a notebook, with their defaults as they are written."""
    return {each: told["default"] for each, told in papermill.inspect_notebook(str(NOTEBOOKS[name])).items()}


def drawn(name: str) -> set[str]:
    """Headings of a notebook below which there is a cell of code that shows something before the next heading."""
    found, heading = set(), ""
    for cell in nbformat.read(NOTEBOOKS[name], as_version=4).cells:
        if cell.cell_type == "markdown" and (titles := re.findall(r"^## (.+)$", cell.source, re.MULTILINE)):
            heading = titles[-1]
        elif cell.cell_type == "code" and re.search(SHOWS, cell.source, re.MULTILINE):
            found.add(heading)
    return found


def values(name: str, kind: str, parameter: str) -> list[object]:
    """What the executions of a set give a parameter; elements of a list each by itself, too."""
    file = ROOT / "data" / f"{name}-{kind}.yaml"
    default = yaml.safe_load(parameters(name)[parameter])
    found = [default]
    if file.exists():
        found = [each.parameters.get(parameter, default) for each in prepare(file, ROOT / "notebooks").executions]
    return [*found, *chain.from_iterable(each for each in found if isinstance(each, list))]


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_what_the_map_names_is_there(row):
    assert row.notebooks and row.notebooks == [name for name in row.notebooks if name in NOTEBOOKS]
    for name in row.notebooks:
        assert set(row.parameters) <= parameters(name).keys(), name
        there = [kind for kind in ("smoke", "small", "paper") if (ROOT / "data" / f"{name}-{kind}.yaml").exists()]
        assert row.sets == there, name
    assert set(row.headings) <= set.union(*(drawn(name) for name in row.notebooks))


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_figure_that_needs_a_parameter_is_drawn_by_the_largest_set(row):
    """One with `slots=25` has that value there; of those with `bins`, `size` one has more values than its default."""
    varied = []
    for parameter in row.parameters:
        name = next(name for name in row.notebooks if parameter in parameters(name))
        there = {repr(value) for value in values(name, "paper" if "paper" in row.sets else row.sets[-1], parameter)}
        varied += there - {repr(yaml.safe_load(parameters(name)[parameter]))}
        if parameter in row.wanted:
            assert repr(yaml.safe_load(row.wanted[parameter])) in there, f"{parameter} of {name}"
    assert varied or not row.parameters, f"none of {row.parameters} varies"


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_what_is_scaled_down_is_as_large_as_the_sets_say(row):
    name, parameter = row.notebooks[0], ""
    for told, large, small in re.findall(rf"(?:`(\w+)` |, )({VALUE}) → ({VALUE})", row.scaled):
        parameter = told or parameter  # as `exchanges` [512, 8] → [32, 4], [128, 2] → [16, 2]
        if not parameter or (not told and not large.startswith("[")):
            continue
        assert yaml.safe_load(large) in values(name, "paper", parameter), f"{parameter} in paper"
        assert yaml.safe_load(small) in values(name, "small", parameter), f"{parameter} in small"
    assert "→" not in row.scaled or "`" in row.scaled, "a parameter that nobody can check"


def test_every_notebook_that_measures_is_in_the_map():
    mapped = {name for row in ROWS for name in row.notebooks}
    assert {name for name in NOTEBOOKS if not name.startswith(NOT_PUBLISHED)} - mapped == UNMAPPED


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_texts_of_a_notebook_name_parameters_that_it_has(name):
    """Coordinates of a strategy are of its points, and need be no parameters of the notebook."""
    cells = nbformat.read(NOTEBOOKS[name], as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    known = {own for owner, own, _ in known_parameters() if owner != "strategy"}
    said = {word for word in re.findall(r"`(\w+)`", text) if word in known}
    for line in text.splitlines():
        if not re.search(r"keyshift (?:run|tape|plan|simulate)", line):  # whose parameters are those of a run
            said |= set(re.findall(r"--set '?\"?(\w+)=", line))
    assert {word for word in said - parameters(name).keys() if not re.search(rf"\b{word}\b", code)} == set()
    for file in re.findall(r"keyshift batch (?:\.\./)*(data/[\w/.-]+yaml)", text):
        assert (ROOT / file).exists(), file


def test_a_promise_that_is_not_kept_is_found():
    where = "`spacker/01_overview` with `work_by`, `worm=1`"
    row = published(f"| A: x | {where} | smoke, small, paper | Latency; Pictures | `rate` 12800 → 5 |")
    assert row.parameters == ["work_by", "worm"]
    assert set(row.parameters) - parameters("spacker/01_overview").keys() == {"worm"}
    assert set(row.headings) - drawn("spacker/01_overview") == {"Pictures"}
    never = published("| A: y | `spacker/01_overview` with `slots=99` | smoke, small, paper | Latency | as above |")
    same = published("| A: y | `spacker/01_overview` with `seed` | smoke, small, paper | Latency | as above |")
    for unkept, why in ((never, "slots of spacker/01_overview"), (same, "none of .*seed.* varies")):
        with pytest.raises(AssertionError, match=why):
            test_a_figure_that_needs_a_parameter_is_drawn_by_the_largest_set(unkept)
    for check, why in (
        (test_what_the_map_names_is_there, "worm"),
        (test_what_is_scaled_down_is_as_large_as_the_sets_say, "rate in small"),
    ):
        with pytest.raises(AssertionError, match=why):
            check(row)
