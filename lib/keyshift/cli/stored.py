"""Stored runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keyshift.cli.options import Json, ProfileOption, print_rows
from keyshift.folders import require_file, require_folder, writing

if TYPE_CHECKING:
    import pandas as pd

# What a person reads in `results list`; --json gives everything.
LIST_COLUMNS = {
    "run_id": "run",
    "status": "status",
    "p99_ms": "P99 before (ms)",
    "spike_ms": "P99 spike (ms)",
    "silence_ms": "silence (ms)",
    "completion_s": "completion (s)",
    "bytes_moved": "moved (bytes)",
    "error": "error",
}

RunIds = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run ids, or their first characters.")]


def _rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Rows as JSON has them, with as many digits as pandas can write: ten decimals leave nothing of a small number."""
    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso", double_precision=15))
    return found


def list_results(
    limit: Annotated[int, typer.Option(min=1, help="How many at the most, newest first.")] = 20,
    workload: Annotated[str | None, typer.Option(help="Only this workload.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only this strategy.")] = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Stored runs, newest first."""
    from keyshift.studies.stored_runs import open_store

    with open_store(profile) as store:
        rows = store.list_runs(limit=limit, workload=workload, strategy=strategy)
        if not as_json:
            rows = rows[list(LIST_COLUMNS)].rename(columns=LIST_COLUMNS)
        print_rows(_rows(rows), as_json)
        if rows.empty and not as_json:
            asked = {"workload": workload, "strategy": strategy}
            of = ", ".join(f"{name} = {value}" for name, value in asked.items() if value)
            typer.echo(f"no run of {of}" if of else "no runs yet: `keyshift run` makes one")


def show_result(
    run_id: Annotated[str, typer.Argument(help="A run id, or its first characters.")], profile: ProfileOption = None
) -> None:
    """The manifest of one run, as JSON."""
    from keyshift.studies.stored_runs import open_store

    with open_store(profile) as store:
        typer.echo(store.get_manifest(run_id).model_dump_json(indent=2))


def compare_results(
    one: Annotated[str, typer.Argument(help="A run id, or its first characters.")],
    other: Annotated[str, typer.Argument(help="Another one.")],
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """What changed between two runs: parameters, versions, machine, figures."""
    from keyshift.analysis.tables import differences
    from keyshift.studies.stored_runs import open_store

    with open_store(profile) as store:
        first, second = (store.get_manifest(run_id) for run_id in (one, other))
    found = differences(first.model_dump(mode="json"), second.model_dump(mode="json"))
    if not as_json:
        typer.echo(f"one: {first.run_id} ({first.status})\nother: {second.run_id} ({second.status})\n")
        found = found.rename(columns={"ratio": "other / one"})
    print_rows(_rows(found), as_json)


def share_results(
    run_ids: RunIds,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    profile: ProfileOption = None,
) -> None:
    """One HTML file of these runs that opens anywhere: figures, tables, parameters, verdicts, versions."""
    from keyshift.results.report import report
    from keyshift.studies.stored_runs import open_store

    require_file("--output", output)
    with open_store(profile) as store, writing(output):
        output.write_text(report(store, run_ids), encoding="utf-8")
    typer.echo(f"{output}: {output.stat().st_size / 2**20:.1f} MiB; no credentials, names of machines or paths in it")


def delete_results(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Whole run ids.")],
    profile: ProfileOption = None,
) -> None:
    """Delete these runs with all their files. All or, if one is not there, none. Asks nothing."""
    from keyshift.studies.stored_runs import open_store

    with open_store(profile) as store:
        for run_id in run_ids:
            store.require_whole(run_id)
        for run_id in dict.fromkeys(run_ids):
            typer.echo(f"deleted: run {run_id}, {len(store.delete_run(run_id))} files")


def export_results(
    run_ids: RunIds,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder.")],
    kind: Annotated[Literal["parquet", "csv"], typer.Option("--format", help="Of the tables.")] = "parquet",
    profile: ProfileOption = None,
) -> None:
    """Tidy tables of these runs for other tools, with a dictionary of all columns."""
    from keyshift.experiment.parameters import known_parameters
    from keyshift.results.exchange import export_runs, require_new
    from keyshift.studies.stored_runs import open_store

    require_folder("--output", output)
    require_new(output)
    meanings = {name: field.description or "" for _, name, field in known_parameters()}
    with open_store(profile) as store, writing(output):
        exported = export_runs(store, run_ids, output, kind, meanings)
    typer.echo(f"{output}: {len(exported)} runs; dictionary.csv has the meaning of every column")


def import_results(
    folder: Annotated[Path, typer.Argument(help="What `keyshift results export` has written.")],
    profile: ProfileOption = None,
) -> None:
    """Put exported runs into the store. Checks all before it stores any; what is stored when the store fails stays."""
    from keyshift.results.exchange import import_runs, read_export
    from keyshift.studies.stored_runs import open_store

    exported = read_export(folder)
    with open_store(profile) as store:
        stored, there = import_runs(store, exported)
    for run_id in stored:
        typer.echo(run_id)
    typer.echo(f"{len(stored)} runs stored, {len(there)} were there already", err=True)
