"""Executed notebooks as static pages: words, code, figures and tables, without anything that a browser would load."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePath
from typing import NamedTuple

import nbformat
from markupsafe import Markup
from nbconvert import HTMLExporter

from keyshift.results.manifest import Manifest
from keyshift.results.pages import page
from keyshift.results.store import ResultStore
from keyshift.studies.notebook import summaries

FOLDER = "notebooks"  # below that of the artifact
_ELSEWHERE = re.compile(r"""<a\b[^>]*\bhref="(?!#|https?:)[^>]*>(.*?)</a>""", re.DOTALL)  # from where it was executed


class Shown(NamedTuple):
    """An executed notebook in the gallery. ``page`` and ``notebook``: paths of files in the artifact."""

    title: str
    page: str
    notebook: str
    run_ids: list[str]


def executed_notebooks(store: ResultStore, manifests: Iterable[Manifest]) -> dict[str, bytes]:
    """The notebooks that are stored with these runs, each once, by a name of their own: see ``named``."""
    found: dict[str, bytes] = {}
    for manifest in manifests:
        for name in manifest.files:
            if name.endswith(".ipynb"):
                found |= named(name, store.get_file(manifest.run_id, name))
    return found


def named(path: str, content: bytes) -> dict[str, bytes]:
    """An executed notebook by its own name and the beginning of its digest: the same content has the same name."""
    return {f"{PurePath(path).stem}-{sha256(content).hexdigest()[:8]}": content}


def write_gallery(notebooks: Mapping[str, bytes], folder: Path) -> list[Shown]:
    """Write a page and a copy of each notebook below ``folder``; gives them by name."""
    shown = []
    if notebooks:
        (folder / FOLDER).mkdir()
    for name, content in sorted(notebooks.items()):
        notebook = nbformat.reads(content.decode(), as_version=4)
        title = _title(notebook) or name
        # The template "basic" is what is between the tags of the body; all others load scripts from elsewhere.
        body = HTMLExporter(template_name="basic").from_notebook_node(notebook)[0]
        each = Shown(
            title, f"{FOLDER}/{name}.html", f"{FOLDER}/{name}.ipynb", [row["run_id"] for row in summaries(notebook)]
        )
        body = _ELSEWHERE.sub(r"\1", body)
        text = page("keyshift.results", "page.html.jinja", title=name, body=Markup(body))
        (folder / each.page).write_text(text, encoding="utf-8")
        (folder / each.notebook).write_bytes(content)
        shown.append(each)
    return shown


def _title(notebook: nbformat.NotebookNode) -> str:
    """The first heading."""
    lines = (line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line[2:].strip() for line in lines if line.startswith("# ")), "")
