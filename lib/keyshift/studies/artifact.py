"""Stored runs as one folder to publish: all figures as pages, tables with their dictionary, and what made them.

    index.html             what is here, verdicts, where the runs were made
    runs/WORKLOAD.html     all runs of a workload with their verdicts, side by side if they are comparable
    runs/ID.html           the figures of a run, its measures, parameters and versions; see ``_in_notebooks``
    published.html         numbers of publications, ours beside them
    notebooks/             executed notebooks, and a page of each
    batches.html           if the runs are those of batches: what came of each execution, and what is missing
    data/                  an export (``results.exchange``), from which all but notebooks and batches can be made again
    environment.json       machines and versions of the runs, and what is installed where the artifact was made
    ro-crate-metadata.json what each file is (``crate``); written last

Everything is made of what is stored: no run is made, no event is read.
"""

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from keyshift.analysis.machine import doubts
from keyshift.analysis.metrics import mean_ms
from keyshift.analysis.plots.strategies import published_figure
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.results.anonymous import anonymous_all
from keyshift.results.exchange import export_runs, require_new, stored_tables
from keyshift.results.files import Files
from keyshift.results.manifest import Manifest
from keyshift.results.pages import page, svg, table
from keyshift.results.report import overview, page_of, tables_of
from keyshift.results.store import ResultStore, row_of
from keyshift.studies import gallery
from keyshift.studies.batch import ExecutionRecord, PreparedBatch
from keyshift.studies.batch_report import Done, batch_report
from keyshift.studies.crate import Imprint, write_crate
from keyshift.studies.published import COMPARED, CURVES, LEAST, Curve, Line, beside

TOLD = {
    "index.html": "where to begin: what is here, the verdicts, and where the runs were made",
    "published.html": "numbers of publications, and the same numbers of these runs",
    "batches.html": "what came of each execution of the batches, and what is missing",
    "environment.json": "machines and versions of the runs, and the packages with which the artifact was made",
    "data/dictionary.csv": "table, column, type, unit and meaning of every column of all tables",
    "data/runs.parquet": "one row per run: its verdict, its measures, its parameters",
    "data/manifests.jsonl": "the manifest of each run: parameters, verdict, versions, machine, seeds",
    "data/export.json": "what reads the folder data: keyshift results import data",
    ".html": "a page of figures, numbers and words that opens anywhere",
    ".ipynb": "an executed notebook",
    ".parquet": "a table of all runs; its columns are in data/dictionary.csv",
}
SHARE = 8  # runs for which it pays to start a process
_ENDS = ["ok", "bad", "died"]


@dataclass(frozen=True)
class Batches:
    """Executions of notebooks that an artifact shows, of the batch files of ``kinds``, with their records."""

    kinds: str  # as ``batch.files_of`` takes them
    ended: Sequence[tuple[PreparedBatch, Done]]
    records: Files

    @property
    def run_ids(self) -> list[str]:
        """The runs of all executions, each once."""
        return list(dict.fromkeys(run_id for record in self._records() for run_id in record.verdicts))

    def notebooks(self) -> dict[str, bytes]:
        """The executed notebooks, also those that made no run, as ``gallery.named`` has them. One that is not stored
        any more is left out; ``batch_report`` tells of that.
        """
        found: dict[str, bytes] = {}
        for record in self._records():
            if record.copy_at:
                _, name, file = record.copy_at.split("/", 2)
                with suppress(BadInput):
                    found |= gallery.named(file, self.records.read(name, file))
        return found

    def _records(self) -> list[ExecutionRecord]:
        return [record for _, done in self.ended for record in done.values()]


def pack(
    store: ResultStore,
    run_ids: Sequence[str],
    folder: Path,
    imprint: Imprint,
    meanings: Mapping[str, str] | None = None,
    batches: Batches | None = None,
) -> int:
    """Write the artifact of these runs into a new or empty ``folder``, whole or not at all; gives how many runs.

    Without ``run_ids``: of the runs of ``batches``, or of all stored ones that can be read. Runs that are named have a
    page each, all others as ``_in_notebooks`` says. ``meanings``: see ``export_runs``.
    Raises BadInput for a run that is not there, if there is none, or for a folder that has files or is the current one.
    """
    folder = folder.resolve()
    if folder == Path.cwd():
        raise BadInput(f"folder {str(folder)!r} is the one you are in, and would be replaced: name a new one")
    require_new(folder)
    manifests, unreadable = (store.get_manifests(run_ids), 0) if run_ids else _stored(store, batches)

    def write(some: Sequence[Manifest], left_out: int) -> int:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside_it:
            made = Path(beside_it) / "artifact"
            made.mkdir()
            _write(store, some, made, imprint, meanings, batches, named=bool(run_ids), unreadable=left_out)
            os.replace(made, folder)
        return len(some)

    try:
        return write(manifests, unreadable)
    except BadInput:
        # Only now: all that is packed would be read once more.
        whole = manifests if run_ids else [manifest for manifest in manifests if _is_whole(store, manifest)]
        if not whole or len(whole) == len(manifests):
            raise
    return write(whole, unreadable + len(manifests) - len(whole))


def _stored(store: ResultStore, batches: Batches | None) -> tuple[list[Manifest], int]:
    """The runs that are stored, and how many others are left out, as they cannot be read."""
    if batches is None:
        held = store.list_runs()["run_id"].tolist()[::-1]
        missing = "no run is stored yet: `keyshift run` makes one"
    else:
        held = [run_id for run_id in batches.run_ids if store.holds(run_id)]
        missing = f"no run of a set {batches.kinds} is stored: `keyshift batch --all {batches.kinds}` makes them"
    if not held:
        raise BadInput(missing)
    manifests = []
    for run_id in held:
        try:
            manifests.append(store.get_manifest(run_id))
        except ServiceUnavailable:
            raise
        except KeyshiftError:
            continue
    if not manifests:
        raise BadInput(f"none of the stored runs ({len(held)}) can be read: `keyshift results list` says why")
    return manifests, len(held) - len(manifests)


def _is_whole(store: ResultStore, manifest: Manifest) -> bool:
    """Whether all that is packed of a run can be read."""
    try:
        gallery.executed_notebooks(store, [manifest])
        for name in stored_tables(manifest):
            store.get_arrow(manifest.run_id, name)
    except BadInput:
        return False
    return True


def _write(
    store: ResultStore,
    manifests: Sequence[Manifest],
    folder: Path,
    imprint: Imprint,
    meanings: Mapping[str, str] | None,
    batches: Batches | None,
    named: bool,
    unreadable: int,
) -> None:
    if not imprint.title:
        workloads = ", ".join(dict.fromkeys(manifest.workload for manifest in manifests))
        imprint = imprint.model_copy(update={"title": f"runs of {workloads}"})
    executed = gallery.executed_notebooks(store, manifests) | (batches.notebooks() if batches else {})
    notebooks = gallery.write_gallery(executed, folder)
    pages = _pages_of_runs(store, manifests, folder, {} if named else _in_notebooks(manifests, notebooks))
    _write_text(folder / "published.html", _published(store, manifests))
    if batches:
        _write_text(folder / "batches.html", batch_report(f"all {batches.kinds} sets", batches.ended, batches.records))
    export_runs(store, [manifest.run_id for manifest in manifests], folder / "data", meanings=meanings)
    places = _environment(manifests)
    made_with = {each.name: each.version for each in metadata.distributions()}
    environment = {"runs": places, "made_with": dict(sorted(made_with.items()))}
    _write_text(folder / "environment.json", json.dumps(environment, indent=2) + "\n")
    index = page(
        "keyshift.studies",
        "artifact.html.jinja",
        title=imprint.title,
        authors=imprint.authors,
        count=len(manifests),
        unreadable=unreadable,
        verdicts=table(_verdicts(manifests)),
        pages=pages,
        notebooks=notebooks,
        batches=batches,
        deleted=len(set(batches.run_ids) - {manifest.run_id for manifest in manifests}) - unreadable if batches else 0,
        files={name: TOLD[name] for name in TOLD if (folder / name).exists()},
        places=places,
    )
    _write_text(folder / "index.html", index)
    write_crate(folder, imprint, TOLD, manifests)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _in_notebooks(manifests: Sequence[Manifest], notebooks: Sequence[gallery.Shown]) -> dict[str, str]:
    """The page of a notebook that has the figures of a run, for each run that needs none of its own.

    To draw one takes seconds of a processor, and nobody misses it where a notebook shows the run and its verdict is ok.
    """
    correct = {manifest.run_id for manifest in manifests if manifest.status == "ok"}
    return {run_id: f"../{each.page}" for each in notebooks for run_id in each.run_ids if run_id in correct}


def _pages_of_runs(
    store: ResultStore, every: Sequence[Manifest], folder: Path, elsewhere: Mapping[str, str]
) -> dict[str, str]:
    """Write a page of each run that has none ``elsewhere``, and of each workload; gives the paths of the latter."""
    (folder / "runs").mkdir()
    manifests = [manifest for manifest in every if manifest.run_id not in elsewhere]
    workers = min(os.cpu_count() or 1, len(manifests) // SHARE)
    if workers > 1:
        # Started anew: a process that has connections and threads must not be copied. Ctrl-C is for this one alone.
        anew, deaf = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(workers, anew, initializer=signal.signal, initargs=deaf) as pool:
            for begin in range(0, len(manifests), workers * SHARE):  # the tables of all would not fit
                _draw(store, manifests[begin : begin + workers * SHARE], folder, pool.map)
    else:
        _draw(store, manifests, folder, map)
    links = {manifest.run_id: f"{manifest.run_id}.html" for manifest in manifests} | dict(elsewhere)
    pages = {}
    for workload in dict.fromkeys(manifest.workload for manifest in every):
        some = [manifest for manifest in every if manifest.workload == workload]
        pages[workload] = f"runs/{some[0].run_id.split('-')[1]}.html"  # an id has no letter that a path must not have
        _write_text(folder / pages[workload], overview(some, links))
    return pages


def _draw(store: ResultStore, manifests: Sequence[Manifest], folder: Path, each: Callable[..., Iterable[str]]) -> None:
    tables = (tables_of(store, manifest) for manifest in manifests)
    for manifest, text in zip(manifests, each(page_of, manifests, tables), strict=True):
        _write_text(folder / f"runs/{manifest.run_id}.html", text)


def _verdicts(manifests: Sequence[Manifest]) -> pd.DataFrame:
    """Count how many runs of each workload and strategy ended how."""
    rows = [(manifest.workload, manifest.strategy, manifest.status) for manifest in manifests]
    counted = pd.DataFrame(rows, columns=["workload", "strategy", "status"]).value_counts().unstack(fill_value=0)
    return counted.reindex(columns=_ENDS, fill_value=0).reset_index().rename_axis(columns=None)


def _environment(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Each machine with each set of versions that runs were made with, and which runs those are."""
    places: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        where: dict[str, Any] = anonymous_all({"machine": manifest.machine.model_dump(), "versions": manifest.versions})
        places.setdefault(repr(where), where | {"runs": []})["runs"].append(manifest.run_id)
    return list(places.values())


def _published(store: ResultStore, manifests: Sequence[Manifest]) -> str:
    rows = []
    for manifest in manifests:
        if manifest.summary and not manifest.summary.rate_changed:  # nothing is published of such a load
            row = row_of(manifest) | {"stages": len(manifest.stages)}
            if manifest.strategy in COMPARED:
                tables = store.get_tables(manifest.run_id, ["latency", "migration"])
                row["mean_ms"] = mean_ms(tables["latency"], tables["migration"])
            rows.append(row)
    curves = [_curve(curve, beside(curve, rows)) for curve in CURVES]
    values = {"curves": curves, "least": LEAST, "doubts": doubts([row for row in rows if row["verdict"] == "ok"])}
    return page("keyshift.studies", "published.html.jinja", title="beside publications", **values)


def _curve(curve: Curve, lines: Sequence[Line]) -> dict[str, Any]:
    drawn = {line.name: line.points for line in lines}
    columns = [f"published: {curve.measure}", "ours", "ours ÷ published"]
    return {
        "curve": curve,
        "figure": svg(published_figure(drawn, curve.measure, title=curve.title).figure) if drawn else "",
        "lines": [
            {
                "name": line.name,
                "table": table(line.points.set_axis(["point", *columns], axis=1)),
                "shape": "not known" if line.shape != line.shape else f"{line.shape:.2f}",
                "ratio": f"{line.ratio:.3g}",
            }
            for line in lines
        ],
    }
