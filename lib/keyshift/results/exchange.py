"""Runs as a folder of tidy tables for other tools, and back into a store.

    export.json      what this is: format, version, kind of the tables' files
    dictionary.csv   table, column, type, unit and meaning of every column below
    runs.*           one row per run: summary, parameters and phases as columns
    latency.*, …     each table of all runs, with a first column ``run_id``
    manifests.jsonl  what ``import_runs`` needs: the manifests as they are stored

Texts and parameters have passed ``anonymous``. Executed notebooks and protocol logs stay at home.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.results.anonymous import anonymous_all
from keyshift.results.dictionary import PARAMETER, PHASE, meaning, unit
from keyshift.results.manifest import SCHEMA_VERSION, Manifest, Summary, validate
from keyshift.results.store import HEAD, ResultStore
from keyshift.results.tables import LATER, TABLES, check_table, upgraded

MOST_ROWS, MOST_BYTES = 200_000_000, 8 << 30  # of a table that is imported: Parquet says in little what fills a memory
FORMAT = 1  # grows when a file is renamed, removed or means something else
_KINDS = {"object": "text", "string": "text", "boolean": "bool"}  # of columns, for readers of any tool
Kind = Literal["parquet", "csv"]
RUN_ID = pa.field("run_id", pa.string(), nullable=False)


def export_runs(
    store: ResultStore,
    run_ids: Sequence[str],
    folder: Path,
    kind: Kind = "parquet",
    meanings: Mapping[str, str] | None = None,
) -> list[str]:
    """Write these runs into a new or empty ``folder``, all or nothing; gives their ids. ``meanings``: of parameters, by
    name.

    Raises BadInput for a run that is not there or cannot be read, or a folder that has files.
    """
    require_new(folder)
    manifests = store.get_manifests(run_ids)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(store, manifests, folder, kind, meanings)
    except BaseException:
        for file in folder.iterdir():  # or the folder would be refused the next time
            file.unlink()
        raise
    return [manifest.run_id for manifest in manifests]


def _write(
    store: ResultStore, manifests: Sequence[Manifest], folder: Path, kind: Kind, meanings: Mapping[str, str] | None
) -> None:
    columns: list[dict[str, str]] = []
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        for manifest in manifests:
            for name in stored_tables(manifest):
                schema = TABLES[name].insert(0, RUN_ID)
                if name not in writers:
                    made = pyarrow.csv.CSVWriter if kind == "csv" else partial(pq.ParquetWriter, compression="zstd")
                    writers[name] = stack.enter_context(made(folder / f"{name}.{kind}", schema))
                table = store.get_arrow(manifest.run_id, name)
                whose = pa.repeat(pa.scalar(manifest.run_id, pa.string()), table.num_rows)
                writers[name].write_table(table.add_column(0, RUN_ID, whose))
        for name in writers:
            columns += [_described(name, field.name, str(field.type)) for field in TABLES[name].insert(0, RUN_ID)]
    runs = _typed(pd.DataFrame([_flat(manifest) for manifest in manifests]))
    if kind == "csv":
        runs.to_csv(folder / "runs.csv", index=False)
    else:
        runs.to_parquet(folder / "runs.parquet", index=False)
    described = [_described("runs", str(name), str(kind_of), meanings) for name, kind_of in runs.dtypes.items()]
    pd.DataFrame(described + columns).to_csv(folder / "dictionary.csv", index=False)
    lines = [json.dumps(_told(manifest)) for manifest in manifests]
    (folder / "manifests.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    head = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "keyshift": metadata.version("keyshift")}
    (folder / "export.json").write_text(json.dumps(head | {"kind": kind, "runs": len(manifests)}, indent=2) + "\n")


class Exported(NamedTuple):
    """What an exported folder has, all of it checked. ``read``: of CSV, tables of all runs: a file is read once."""

    folder: Path
    kind: Kind
    manifests: list[Manifest]
    read: dict[str, pa.Table]


def read_export(folder: Path) -> Exported:
    """Read what is in an exported ``folder``, checked against the schemas. Raises BadInput that names what is wrong."""
    found = Exported(folder, _kind(folder), list(_manifests(folder)), {})
    if again := [run_id for run_id, times in Counter(m.run_id for m in found.manifests).items() if times > 1]:
        raise BadInput(f"manifests.jsonl has run {again[0]} more than once")
    for name in TABLES:
        having = {manifest.run_id for manifest in found.manifests if name in stored_tables(manifest)}
        if having and (others := set(_table(found, name, ["run_id"])["run_id"].unique().to_pylist()) - having):
            raise BadInput(f"{name}.{found.kind} has rows of run {min(others)!r}, which is not in manifests.jsonl")
    for manifest in found.manifests:
        _tables(found, manifest)
    return found


def import_runs(store: ResultStore, exported: Exported) -> tuple[list[str], list[str]]:
    """Store the runs of an export; gives the ids of those, and of those that were there already."""
    there = [manifest.run_id for manifest in exported.manifests if store.holds(manifest.run_id)]
    new = [manifest for manifest in exported.manifests if manifest.run_id not in there]
    for manifest in new:
        store.put_run(manifest, _tables(exported, manifest))
    return [manifest.run_id for manifest in new], there


def require_new(folder: Path) -> None:
    """Raise BadInput unless ``folder`` is not there yet, or empty."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadInput(f"folder {str(folder)!r} is not empty: name a new one")
    except OSError as error:
        raise BadInput(f"folder {str(folder)!r} cannot be used: {error.strerror}") from None


# Writing


def _told(manifest: Manifest) -> dict[str, Any]:
    told: dict[str, Any] = anonymous_all(manifest.model_dump(mode="json"))
    return told | {"files": [f"{name}.parquet" for name in stored_tables(manifest)]}


def _flat(manifest: Manifest) -> dict[str, Any]:
    """A run as one row of columns with one value each."""
    told = _told(manifest)
    summary = told["summary"] or {}
    figures = {name: value for name, value in summary.items() if name not in ("parameters", "phases", *HEAD)}
    phases = {PHASE + name: value for name, value in summary.get("phases", {}).items()}
    # Text, as a column has one type and the same parameter may be a number in one run and a word in another.
    parameters = {PARAMETER + name: json.dumps(value) for name, value in told["parameters"].items()}
    return {name: told[name] for name in HEAD} | figures | phases | parameters


def _typed(runs: pd.DataFrame) -> pd.DataFrame:
    """Give figures as numbers where no run knows any, and yes or no where a run that died has neither."""
    for name in map(str, runs.select_dtypes("object").columns):
        figure = Summary.model_fields.get(name)
        if figure and figure.annotation is bool:
            runs[name] = runs[name].astype("boolean")
        elif name.startswith(PHASE) or (figure and name not in ("verdict", *HEAD)):
            runs[name] = runs[name].astype("float64")
    return runs


def _described(table: str, column: str, kind: str, meanings: Mapping[str, str] | None = None) -> dict[str, str]:
    said = (meanings or {}).get(column.removeprefix(PARAMETER)) if column.startswith(PARAMETER) else None
    return {
        "table": table,
        "column": column,
        "type": "JSON" if column.startswith(PARAMETER) else _KINDS.get(kind, kind),
        "unit": unit(column),
        "meaning": said or meaning(table, column),
    }


def stored_tables(manifest: Manifest) -> list[str]:
    """The names of the tables that are stored with a run."""
    return [name for name in TABLES if f"{name}.parquet" in manifest.files]


# Reading


def _kind(folder: Path) -> Kind:
    """Find how the tables are written. Raises BadInput if the folder is no export, or one of a newer keyshift."""
    head = _read(folder / "export.json", json.loads)
    if not isinstance(head, dict) or not {"format", "schema_version", "kind"} <= head.keys():
        raise BadInput(
            f"{folder / 'export.json'} is not what an export writes: it needs format, schema_version and kind"
        )
    for name, newest in (("format", FORMAT), ("schema_version", SCHEMA_VERSION)):
        if not isinstance(head[name], int) or head[name] > newest:
            raise BadInput(
                f"the export has {name} {head[name]!r}, this keyshift ({metadata.version('keyshift')}) reads up to "
                f"{newest}: upgrade keyshift to import it"
            )
    if head["kind"] not in ("parquet", "csv"):
        raise BadInput(f"export.json: kind {head['kind']!r} is neither parquet nor csv")
    kind: Kind = head["kind"]
    return kind


def _manifests(folder: Path) -> Iterator[Manifest]:
    lines = _read(folder / "manifests.jsonl", str.splitlines)
    for number, line in enumerate(lines, start=1):
        try:
            yield validate(json.loads(line))
        except (ValueError, KeyshiftError, RecursionError) as error:
            raise BadInput(f"manifests.jsonl, line {number}: {error}") from None
    if not lines:
        raise BadInput("manifests.jsonl is empty: the export has no run")


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}; an export has it") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def _tables(exported: Exported, manifest: Manifest) -> dict[str, pa.Table]:
    """The tables of one run, checked."""
    tables = {}
    for name in stored_tables(manifest):
        tables[name] = upgraded(name, _of_run(exported, name, manifest.run_id))
        _check(exported.kind, name, tables[name])
    if manifest.status == "died":
        return tables
    if missing := TABLES.keys() - tables.keys() - set(LATER):
        raise BadInput(f"run {manifest.run_id} has no table {', '.join(sorted(missing))}: the export is not whole")
    return {name: TABLES[name].empty_table() for name in LATER} | tables  # it may be older than these


def _check(kind: Kind, name: str, table: pa.Table) -> None:
    try:
        check_table(name, table)
    except BadInput as error:
        raise BadInput(f"{name}.{kind}: {error}") from None


def _of_run(exported: Exported, name: str, run_id: str) -> pa.Table:
    table = _table(exported, name, run_id=run_id)
    table = table.filter(pc.equal(table["run_id"], run_id)).drop_columns("run_id")
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):  # see ``_table``
            if (size := _expanded(table[field.name])) > MOST_BYTES:
                raise BadInput(
                    f"{name}.parquet: {field.name} of run {run_id} has {size} bytes, at most {MOST_BYTES} may be"
                )
            table = table.set_column(place, TABLES[name].field(field.name), table[field.name].cast(pa.string()))
        elif exported.kind == "csv" and pa.types.is_floating(field.type):  # an empty place is how CSV says NaN
            table = table.set_column(place, field, pc.fill_null(table[field.name], float("nan")))
    return table


def _expanded(column: pa.ChunkedArray) -> int:
    """Bytes of all texts in a column of a dictionary."""
    lengths = (pc.take(pc.binary_length(chunk.dictionary), chunk.indices) for chunk in column.chunks)
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def _table(exported: Exported, name: str, columns: list[str] | None = None, run_id: str | None = None) -> pa.Table:
    """Rows of a table's file, of Parquet those of one run, with texts as dictionaries: they take what they have there.
    Of CSV all rows and columns, once.

    Raises BadInput if it cannot be read as that table, or is too large.
    """
    kind, path = exported.kind, exported.folder / f"{name}.{exported.kind}"
    if name in exported.read:
        return exported.read[name]
    types = {field.name: field.type for field in TABLES[name].insert(0, RUN_ID)}
    try:
        _require_readable(path, name, kind)
        if kind == "parquet":
            texts = [column for column, of in types.items() if of == pa.string()]
            filters = run_id and [("run_id", "=", run_id)]
            return pq.read_table(path, columns=columns, filters=filters, read_dictionary=texts)
        options = pyarrow.csv.ConvertOptions(column_types=types)
        lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
        found = pyarrow.csv.read_csv(path, convert_options=options, parse_options=lines)
        found.column("run_id")  # KeyError if it is not there
        exported.read[name] = found
        return found
    except FileNotFoundError:
        raise BadInput(f"{path} is not there: an export has it") from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise BadInput(f"{path.name} cannot be read as the table {name}: {str(error).splitlines()[0]}") from None


def _require_readable(path: Path, name: str, kind: Kind) -> None:
    """Raise BadInput, without reading any row, for a file that has more than may be, or Parquet of other columns."""
    rows, size = 0, path.stat().st_size
    if kind == "parquet":
        told = pq.read_metadata(path)
        groups = (told.row_group(number) for number in range(told.num_row_groups))
        rows, size = told.num_rows, sum(group.total_byte_size for group in groups)
        columns = told.schema.to_arrow_schema().empty_table()
        if columns["run_id"].type != RUN_ID.type:
            raise BadInput(f"{path.name}: column run_id has type {columns['run_id'].type}, expected {RUN_ID.type}")
        _check(kind, name, upgraded(name, columns.drop_columns("run_id")))
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise BadInput(
            f"{path.name} has {rows} rows and {size} bytes, at most {MOST_ROWS} and {MOST_BYTES} are imported: export "
            "fewer runs at a time"
        )
