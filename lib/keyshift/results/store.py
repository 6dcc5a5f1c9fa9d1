"""Runs in an S3 store (MinIO): one run is one folder, and a folder without a manifest is not a run.

The manifest is written last and removed first, so whatever happens in between, nothing half-written is ever listed.
Only from a store that is full it goes last: a run that is deleted by half is still one then, and can be deleted again.
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, Damaged, KeyshiftError, NotThere, ServiceUnavailable
from keyshift.objects import Bucket
from keyshift.registry import unknown
from keyshift.results.files import Files
from keyshift.results.index import MADE_BY, Index, IndexRow
from keyshift.results.manifest import Manifest, Summary, validate
from keyshift.results.tables import LATER, TABLES, check_table, table_schema, upgraded

MANIFEST = "manifest.json"
HEAD = ["run_id", "status", "started_at", "workload", "strategy", "error"]
DAY = len("20260101")  # of a run's id


class ResultStore:
    """Reads and writes runs. Every method may raise ServiceUnavailable, in one line, within seconds.

    Where a method takes a ``run_id``, the first characters of one are enough if only one run begins with them.
    ``client``: see ``Bucket``.
    """

    def __init__(self, endpoints: Endpoints, prefix: str = "runs", client: Any = None) -> None:
        self._files = Files(endpoints, prefix, client)
        self._index = Index(Bucket(endpoints, f"{prefix.strip('/')}-index/", client=client))

    # Writing

    def put_run(self, manifest: Manifest, tables: Mapping[str, pa.Table]) -> Manifest:
        """Store a run whole or not at all, and return its manifest as stored (``files`` filled in).

        A run that died may lack tables. Raises BadInput, with nothing written, if a table does not have its columns or
        the run is there already.
        """
        files = {f"{name}.parquet": _parquet(name, table) for name, table in tables.items()}
        missing = [name for name in TABLES if name not in tables]
        if missing and manifest.status != "died":
            raise BadInput(
                f"run {manifest.run_id} has no table {', '.join(missing)}; only a run that died may lack one"
            )
        stored = validate(manifest.model_dump(mode="json") | {"files": sorted(files)})
        if self.holds(stored.run_id):
            remedy = "take a new id, or delete the run first (`keyshift results delete`)"
            raise BadInput(f"run {stored.run_id} is stored already: {remedy}")
        tried: list[str] = []
        try:
            for name, content in files.items():
                tried.append(name)  # before the upload: an interrupted one may have arrived
                self._files.write(stored.run_id, name, content)
            tried.insert(0, MANIFEST)
            self._files.write(stored.run_id, MANIFEST, stored.model_dump_json(indent=2).encode())
        except BaseException:  # Ctrl-C too
            with suppress(KeyshiftError):  # what stopped the upload is the news, not that tidying up failed as well
                self._files.remove(stored.run_id, tried)
            raise
        self._index.add([row_of(stored)])
        return stored

    def put_file(self, run_id: str, name: str, content: bytes | Path) -> Manifest:
        """Add a file, such as a notebook, to a stored run, or replace one, but no table; gives the new manifest."""
        manifest = self.get_manifest(run_id)
        if name == MANIFEST or name.removesuffix(".parquet") in TABLES:
            raise BadInput(f"file name {name!r} is kept for the run itself: choose another")
        self._files.write(manifest.run_id, name, content)
        manifest = self.get_manifest(manifest.run_id)  # others may have added a file meanwhile, or deleted the run
        manifest = manifest.model_copy(update={"files": sorted({*manifest.files, name})})
        self._files.write(manifest.run_id, MANIFEST, manifest.model_dump_json(indent=2).encode())
        return manifest

    def delete_run(self, run_id: str) -> list[str]:
        """Remove a run and all its files, whose names are returned. Raises BadInput as ``require_whole``."""
        self.require_whole(run_id)
        files = [name for name in self._files.names(run_id) if name != MANIFEST]
        try:
            self._index.forget(run_id)
            names = [MANIFEST, *files]
        except ServiceUnavailable:  # the store is full: the index tells of the run as long as it has a folder
            names = [*files, MANIFEST]
        self._files.remove(run_id, names)
        return names

    def require_whole(self, run_id: str) -> None:
        """Raise BadInput unless ``run_id`` is that of a stored run, and whole: none is to be deleted by mistake. It may
        be one of which files alone are left, as its deletion or its storing was interrupted.
        """
        if run_id not in {folder for folder, _ in self._files.paths(run_id)}:
            raise BadInput(f"run id {run_id!r} is not whole: to delete that run, give {self.resolve(run_id)!r}")

    # Reading

    def holds(self, run_id: str) -> bool:
        """Whether the run of this whole id is stored."""
        return run_id in self._run_ids(run_id)

    def resolve(self, run_id: str) -> str:
        """The full id of the one run whose id is or begins with ``run_id``.

        Raises BadInput naming the nearest run of that day if there is none, or the candidates if there are several.
        """
        if not run_id:
            raise BadInput("the run id is empty: give one, or its first characters")
        found = self._run_ids(run_id)
        if run_id in found:
            return run_id
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(f"{run_id!r} begins {len(found)} runs, give more of it: {', '.join(found[:5])}")
        nearest = get_close_matches(run_id, self._run_ids(run_id[:DAY]), n=1, cutoff=0.0)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise BadInput(f"unknown run {run_id!r}: {hint}`keyshift results list` shows the newest ones")

    def get_manifest(self, run_id: str) -> Manifest:
        """The manifest of a run. Raises BadInput for an unknown run, KeyshiftError if the manifest is not valid."""
        found = self.resolve(run_id)
        return _parsed(found, self._files.read(found, MANIFEST))

    def get_manifests(self, run_ids: Sequence[str]) -> list[Manifest]:
        """The manifests of several runs, each once. Raises BadInput if no run is given, too."""
        if not run_ids:
            raise BadInput("no run given: name at least one, `keyshift results list` shows the newest ones")
        return [self.get_manifest(run_id) for run_id in dict.fromkeys(map(self.resolve, run_ids))]

    def get_table(self, run_id: str, name: str) -> pd.DataFrame:
        """The table ``name`` ("latency", "metrics", …) of a run; columns as in ``tables.TABLES``.

        Raises BadInput if run or table are not there, or if the stored table is damaged or does not have its columns.
        """
        return self.get_arrow(run_id, name).to_pandas()

    def get_arrow(self, run_id: str, name: str) -> pa.Table:
        """A table of a run as ``get_table`` gives it, as an Arrow table."""
        schema = table_schema(name)
        if name in LATER:
            manifest = self.get_manifest(run_id)
            if manifest.status != "died" and f"{name}.parquet" not in manifest.files:
                return schema.empty_table()
        content = self.get_file(run_id, f"{name}.parquet")
        try:
            stored = pq.read_table(io.BytesIO(content))
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"run {run_id}: its table {name} is damaged ({reason}): leave this run out") from None
        table = upgraded(name, stored)
        check_table(name, table)
        return table

    def get_tables(self, run_id: str, names: Sequence[str] = tuple(TABLES)) -> dict[str, Any]:
        """Tables of a run, all or some of them, by name, as frames; see ``get_table``."""
        return {name: self.get_table(run_id, name) for name in names}

    def get_file(self, run_id: str, name: str) -> bytes:
        """The bytes of one file of a run. Raises BadInput naming the files there are."""
        manifest = self.get_manifest(run_id)
        if name != MANIFEST and name not in manifest.files:
            raise unknown(f"file of run {manifest.run_id}", name, [*manifest.files, MANIFEST])
        return self._files.read(manifest.run_id, name)

    def list_runs(
        self, limit: int | None = None, workload: str | None = None, strategy: str | None = None
    ) -> pd.DataFrame:
        """Runs, newest first: one row each, with run_id, status, started_at, error, the columns of the summary, machine
        (as in the manifest) and keyshift (its version; None if the run does not say).

        A run whose manifest cannot be read is listed with status "unreadable" and the reason as its error.
        Complexity: a request per thousand runs, and one for each run that the index does not know, once.
        """
        wanted = {"workload": workload, "strategy": strategy}
        folders = self._files.folders()[::-1]
        known, rows, new = self._index.rows(folders), list[IndexRow](), list[IndexRow]()
        for run_id in folders:
            if limit is not None and len(rows) >= limit:
                break
            if (row := known.get(run_id)) is None:
                if (row := self._looked_at(run_id)) is None:
                    continue
                if row["status"] != "unreadable":  # it may be readable tomorrow, or by another keyshift
                    new.append(row)
            if all(value is None or row.get(key) == value for key, value in wanted.items()):
                rows.append(row)
        self._index.add(new)
        columns = [*HEAD, *(name for name in Summary.model_fields if name not in HEAD), *MADE_BY]
        frame = pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=columns)
        return frame.assign(started_at=pd.to_datetime(frame["started_at"], utc=True, format="ISO8601"))

    def _looked_at(self, run_id: str) -> IndexRow | None:
        """The row of a run by its manifest; None for a folder without one, which is no run."""
        try:
            return row_of(_parsed(run_id, self._files.bucket.read(f"{run_id}/{MANIFEST}")))
        except NotThere:
            return None
        except KeyshiftError as error:
            if isinstance(error, ServiceUnavailable) and not isinstance(error, Damaged):
                raise
            return {"run_id": run_id, "status": "unreadable", "error": str(error)}

    def _run_ids(self, begin: str) -> list[str]:
        return sorted({run for run, name in self._files.paths(begin) if name == MANIFEST}, reverse=True)


def _parsed(run_id: str, content: bytes) -> Manifest:
    try:
        raw = json.loads(content)
    except ValueError as error:
        raise KeyshiftError(f"manifest of run {run_id!r} is not JSON: {error}") from None
    return validate(raw)


def row_of(manifest: Manifest) -> dict[str, Any]:
    """The row of a run in a list of runs, as JSON has it."""
    summary = manifest.summary.model_dump(mode="json") if manifest.summary else {}
    told = manifest.model_dump(mode="json", include={*HEAD, "machine"})
    return summary | told | {"keyshift": manifest.versions.get("keyshift")}


def _parquet(name: str, table: pa.Table) -> bytes:
    check_table(name, table)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
