"""Notebooks of the repository: what runs they ask for, and what single cells of them do."""

from pathlib import Path

import nbformat

from keyshift.studies.dry_run import asked_of

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def asked(notebook, **parameters):
    return asked_of(NOTEBOOKS / f"{notebook}.ipynb", parameters)


def code(notebook, name=""):
    """Of all cells in which ``name`` occurs."""
    cells = nbformat.read(NOTEBOOKS / f"{notebook}.ipynb", as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code" and name in cell.source]


def execute(notebook, name, **names):
    """The cell of a notebook in which ``name`` occurs, with what the cells before would have left; gives all names."""
    [source] = code(notebook, name)
    exec(source, names)
    return names
