"""Execute a notebook with papermill, keep the copy and its HTML locally and with the runs it made."""

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import papermill
from IPython.display import display
from nbclient.util import ensure_async, run_sync
from nbconvert import HTMLExporter
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from keyshift.experiment.parts import AUTO, OF_AUTO
from keyshift.model.errors import BadInput, PointsDied
from keyshift.place.profile import load_profile
from keyshift.progress import DISPLAY, tell
from keyshift.registry import unknown
from keyshift.results.anonymous import anonymous_all, anonymous_output, anonymous_value, escaped
from keyshift.results.files import FILE_NAME
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore

_TEXT = re.compile(r"""(["'])((?:(?!\1)[^\\\n]|\\.)*)\1""")  # in Python
# What goes wrong in a cell is in the notebook. A kernel that is interrupted and ended has nothing else to tell but that
# its sockets are closed.
_QUIET = ["--log-level=CRITICAL"]
END_S = 60.0  # for a cell that is interrupted
# For a kernel whose cells are done; half of it to end by itself. One that has had a Spark does not: it waits for a JVM
# that has ended, whose exit status it never asks for.
GONE_S = 1.0
_RENDERED = ("text/html", "text/markdown")  # outputs that a browser gets as they are
# Rows as of ``Summary``, and objects with a ``note`` and the ``points`` that have it, none if all runs do.
MIME, NOTES = "application/vnd.keyshift.summaries+json", "application/vnd.keyshift.notes+json"


class _Client(PapermillNotebookClient):  # type: ignore[misc]
    """Tells the progress that the notebook shows in one line, and interrupts a cell as a person would."""

    def execute_cell(self, *cell: Any, **told: Any) -> Any:
        try:
            return super().execute_cell(*cell, **told)
        except KeyboardInterrupt:
            run_sync(self._interrupt)()
            raise

    def papermill_execute_cells(self) -> None:
        """Execute the cells. Behind them a kernel has nothing to end; one that is interrupted keeps its time."""
        super().papermill_execute_cells()
        self.km.shutdown_wait_time = GONE_S

    async def _interrupt(self) -> None:
        """Interrupt the cell, and wait until what it had started has ended: a kernel that has to end kills its children
        first.
        """
        await ensure_async(self.km.interrupt_kernel())
        if cell := asyncio.all_tasks() - {asyncio.current_task()}:
            ended, _ = await asyncio.wait(cell, timeout=END_S)
            for task in ended:
                task.cancelled() or task.exception()  # or asyncio prints it at the end, as one that nobody has seen

    def process_message(self, msg: Any, cell: Any, cell_index: Any) -> Any:
        shown = (msg["content"].get("transient") or {}).get("display_id") or ""
        if shown.startswith(DISPLAY) and (line := msg["content"]["data"]["text/plain"]):
            tell(line)
        return super().process_message(msg, cell, cell_index)


class _Engine(Engine):  # type: ignore[misc]
    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **told: Any) -> None:
        # What goes to the kernel and back is for nobody else on this machine.
        config = Config({"KernelManager": {"transport_encryption": "auto"}})
        client = _Client(nb_man, kernel_name=kernel_name, stderr_file=told["stderr_file"], config=config)
        client.extra_arguments = _QUIET
        client.execute()


papermill_engines.register("keyshift", _Engine)


def publish(points: Mapping[str, Sequence[Manifest]]) -> None:
    """Leave one tidy row per run in the output of a notebook's last cell, for readers without a store.

    ``points``: the runs of each point, by its name. A reader of the notebook sees the verdict of each run, and its
    notes; a note that all of several runs have, once.
    """
    manifests = [manifest for some in points.values() for manifest in some]
    rows = [manifest.summary.model_dump(mode="json") for manifest in manifests if manifest.summary]
    first, *others = [manifest.notes for manifest in manifests] or [[]]
    of_each = [note for note in first if others and all(note in notes for notes in others)]
    notes: dict[str, list[str]] = {note: [] for note in of_each}
    lines = []
    for point, some in points.items():
        for manifest in some:
            lines.append(f"{point}, {manifest.run_id}: verdict {manifest.status}")
            for note in (note for note in manifest.notes if note not in of_each):
                lines.append(f"  {note}")
                having = notes.setdefault(note, [])
                having += [] if point in having else [point]
    lines += ["of each of these runs:", *(f"  {note}" for note in of_each)] if of_each else []
    told = [{"note": note, "points": having} for note, having in notes.items()]
    display({MIME: rows, NOTES: told, "text/plain": "\n".join(lines)}, raw=True)


def outputs_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The outputs of all cells of a notebook."""
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def summaries(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """The rows that ``publish`` left in an executed notebook; none if it was not reached."""
    return [row for output in outputs_of(notebook) for row in output.get("data", {}).get(MIME, [])]


@dataclass(frozen=True, slots=True)
class Executed:
    """Where an executed notebook is, and what its runs gave. ``lacks_runs``: it ended as some points died."""

    notebook: Path
    html: Path
    figures: list[Path]
    rows: list[dict[str, Any]]
    error: str | None
    lacks_runs: bool = False


_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {  # in words, and what is one; of a parameter that says its type
    "list": ("a list", (list, dict)),  # points with names are a list
    "dict": ("a dict", (dict,)),
    "bool": ("a bool, True or False,", (bool,)),
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("a text", (str,)),
}


def checked_parameters(path: Path, *sets: dict[str, Any]) -> list[dict[str, Any]]:
    """All ``sets`` of values as the notebook takes them: 7 is a text where it wants one, and 1e6 a whole number.

    Raises BadInput if the notebook is not there, cannot be read or kept, has no such parameter or wants a value of
    another type, and for a number that is not finite.
    """
    if not os.path.isfile(path):  # not of Path, which raises for a name that is too long
        raise BadInput(f"notebook {str(path)!r}: there is no such file")
    if not re.fullmatch(FILE_NAME, path.name):
        raise BadInput(
            f"notebook {path.name!r}: use letters, digits, '_', '-' and '.' in its name, for the store takes no others"
        )
    try:
        known = papermill.inspect_notebook(str(path))
    except Exception as error:  # papermill and nbformat raise many kinds for a file that is none of theirs
        raise BadInput(f"notebook {str(path)!r} cannot be read: {str(error).splitlines()[0]}") from error
    return [{name: _checked(path, known, name, value) for name, value in given.items()} for given in sets]


def _checked(path: Path, known: Mapping[str, Any], name: str, value: Any) -> Any:
    if name not in known:
        raise unknown("notebook parameter", name, list(known))
    kind, default = known[name]["inferred_type_name"], known[name]["default"]
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # of a path in another encoding: neither the copy nor a record could be written
        raise BadInput(f"{name} = {value!r}: must be text in Unicode; give a file another name") from None
    except ValueError:
        raise BadInput(f"{name} = {value!r}: numbers have to be finite") from None
    if kind == "str" and type(value) in (int, float):  # of figures alone, as the beginning of the id of a run
        value = str(value)
    if kind == "int" and type(value) is float and value.is_integer():
        value = int(value)
    words, types = _KINDS.get(kind, ("", (type(value),)))
    auto = int in types and name.endswith(OF_AUTO)
    alike = default == "None" if value is None else auto and value == AUTO
    if type(value) not in types and not alike:
        words += f", or {AUTO}," if auto else ""
        raise BadInput(f"{name} = {value!r}: {path.name} wants {words} here, as its default is: {default}")
    return value


def require_store(path: Path, parameters: Mapping[str, Any]) -> None:
    """Raise BadInput if the parameter ``profile`` of a notebook names other services than the profile of this process:
    its runs would be in another store than the one in which the copy is to be kept with them.
    """
    if name := parameters.get("profile"):
        here = there = load_profile()
        with suppress(BadInput), chdir(path.parent):  # if there is none of this name, the notebook says so
            there = load_profile(str(name))
        if there.services != here.services:
            raise BadInput(f"profile = {name!r}: {path.name} would leave its runs in services of that; use --profile")


def execute(path: Path, parameters: dict[str, Any], home: Path) -> Executed:
    """Run a notebook from top to bottom below ``home``; a failing cell, or a kernel that dies, is in ``error``,
    and the copy is kept.
    """
    [parameters] = checked_parameters(path, parameters)
    folder = _new_folder(home / "notebooks", path.stem)
    copy, html = folder / path.name, folder / f"{path.stem}.html"
    error, lacks_runs = None, False
    try:
        papermill.execute_notebook(
            str(path),
            str(copy),
            parameters,
            cwd=str(path.parent),
            engine_name="keyshift",
            progress_bar=False,
            stderr_file=sys.stderr,
        )
    except PapermillExecutionError as failed:
        error = f"cell {failed.exec_count}: {failed.ename}: {failed.evalue}"
        lacks_runs = failed.ename == PointsDied.__name__
    except RuntimeError as died:  # of nbclient and jupyter_client, which then have no other word
        error = f"its kernel: {died}; was it killed, or did memory run out?"
    executed = shareable(nbformat.read(copy, as_version=4), path)
    nbformat.write(executed, copy)
    html.write_text(HTMLExporter().from_notebook_node(executed)[0], encoding="utf-8")
    figures: list[Path] = []
    for output in outputs_of(executed):
        if image := output.get("data", {}).get("image/png"):
            figures.append(folder / f"figure-{len(figures) + 1}.png")
            figures[-1].write_bytes(base64.b64decode(image))
    return Executed(copy, html, figures, summaries(executed), error, lacks_runs)


def _new_folder(where: Path, name: str) -> Path:
    """Make a folder whose name has the time, or that of the next second if somebody else has begun in this one."""
    at = datetime.now(UTC)
    while True:
        folder = where / f"{name}-{at:%Y%m%dT%H%M%S}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            at += timedelta(seconds=1)


def shareable(notebook: nbformat.NotebookNode, path: Path | None = None) -> nbformat.NotebookNode:
    """An executed notebook without what tells whose machine it was (``results.anonymous``); changes and returns it.

    Code stays as its author wrote it, but for the values of parameters and the cell that papermill adds; images are
    left alone. A file of the folder ``data`` above ``path``, the notebook that was executed, is named from there.
    """
    told = notebook.metadata.get("papermill", {})
    if "parameters" in told:
        told.parameters = nbformat.from_dict(anonymous_all(told.parameters, lambda text: shareable_text(text, path)))
    notebook.metadata = nbformat.from_dict(anonymous_all(notebook.metadata))
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "parameters" in tags or "injected-parameters" in tags:
            cell.source = _TEXT.sub(lambda found: f"{found[1]}{shareable_text(found[2], path)}{found[1]}", cell.source)
        if "injected-parameters" in tags:
            cell.source = anonymous_value(cell.source)
        for output in cell.get("outputs", []):
            for name in ("text", "ename", "evalue", "traceback"):
                if name in output:
                    output[name] = anonymous_all(output[name])
            for kind in output.get("data", {}):
                if not kind.startswith("image/"):
                    shown = anonymous_all(output.data[kind], anonymous_output)
                    shown = anonymous_all(shown, escaped) if kind in _RENDERED else shown
                    output.data[kind] = nbformat.from_dict(shown)
    return notebook


def shareable_text(text: str, path: Path | None) -> str:
    """A text of a parameter: if it leads out of the notebook's folder, then only as far as the folder ``data``."""
    if path is not None and text.startswith(("/", "~", "../")):
        folder = path.resolve().parent
        file = Path(os.path.abspath(folder / os.path.expanduser(text)))
        if any((above / "data").is_dir() and file.is_relative_to(above / "data") for above in folder.parents):
            return Path(os.path.relpath(file, folder)).as_posix()
    return "<path>" if text.startswith("../") else anonymous_value(text)


def keep(executed: Executed, store: ResultStore) -> None:
    """Put the copy and its HTML beside every run that the notebook made. Raises ServiceUnavailable."""
    for row in executed.rows:
        for file in (executed.notebook, executed.html, *executed.figures):
            store.put_file(row["run_id"], file.name, file)
