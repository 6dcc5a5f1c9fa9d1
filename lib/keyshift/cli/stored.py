"""Stored runs."""

import json
from typing import Annotated

import typer

from keyshift.cli.options import Json, Where, print_rows

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


def list_results(
    limit: Annotated[int, typer.Option(min=1, help="How many at the most, newest first.")] = 20,
    workload: Annotated[str | None, typer.Option(help="Only this workload.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only this strategy.")] = None,
    profile: Where = None,
    as_json: Json = False,
) -> None:
    """Stored runs, newest first."""
    from keyshift.lab.connect import open_services
    from keyshift.results.store import ResultStore

    with open_services(profile) as endpoints:
        rows = ResultStore(endpoints).list_runs(limit=limit, workload=workload, strategy=strategy)
        if not as_json:
            rows = rows[list(LIST_COLUMNS)].rename(columns=LIST_COLUMNS)
        print_rows(json.loads(rows.to_json(orient="records", date_format="iso")), as_json)
        if rows.empty and not as_json:
            typer.echo("no runs yet: `keyshift run` makes one")


def show_result(
    run_id: Annotated[str, typer.Argument(help="A run id, or its first characters.")], profile: Where = None
) -> None:
    """The manifest of one run, as JSON."""
    from keyshift.lab.connect import open_services
    from keyshift.results.store import ResultStore

    with open_services(profile) as endpoints:
        typer.echo(ResultStore(endpoints).get_manifest(run_id).model_dump_json(indent=2))


def compare_results(
    one: Annotated[str, typer.Argument(help="A run id, or its first characters.")],
    other: Annotated[str, typer.Argument(help="Another one.")],
    profile: Where = None,
    as_json: Json = False,
) -> None:
    """What changed between two runs: parameters, versions, machine, figures."""
    from keyshift.analysis.changes import changes
    from keyshift.lab.connect import open_services
    from keyshift.results.store import ResultStore

    with open_services(profile) as endpoints:
        store = ResultStore(endpoints)
        first, second = (store.get_manifest(run_id) for run_id in (one, other))
    found = changes(first.model_dump(mode="json"), second.model_dump(mode="json"))
    if not as_json:
        typer.echo(f"one: {first.run_id} ({first.status})\nother: {second.run_id} ({second.status})\n")
        found = found.rename(columns={"ratio": "other / one"})
    print_rows(json.loads(found.to_json(orient="records")), as_json)
