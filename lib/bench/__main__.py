"""``python -m bench``: measure, print the table, write it as JSON if asked."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import pipeline, transfer
from bench.measurements import Measurement, table
from keyshift.folders import require_file, write_whole
from keyshift.lab.environment import open_services
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.manifest import describe_machine, describe_versions
from keyshift.services.jars import require_java
from keyshift.services.stack import Stack

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

PartName = StrEnum("PartName", "a b c d")


@app.command()
def bench(
    part: Annotated[
        list[PartName] | None,
        typer.Option(
            help="a: pipeline against a plain job; b: state transfer against a bare copy; c: frame intervals; "
            "d: legs of a frame, and CPU by process. May be repeated; default: all.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One repetition, shorter.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write every repetition there too, as JSON.")] = None,
) -> None:
    """What keyshift costs, as ratios of neighbouring measurements in one run. Takes about twelve minutes."""
    require_file("--out", out)
    parts: set[str] = {*(part or PartName)}
    effort = pipeline.QUICK if quick else pipeline.Effort()
    started = datetime.now(UTC)
    rows: list[Measurement] = []
    if "b" in parts:
        tell("b: state transfer between two processes")
        rows += transfer.measure(3 if quick else 15)
    if parts & {"a", "c", "d"}:
        require_java()
        with open_services("local", tell) as endpoints:
            rows += pipeline.measure(parts, effort, endpoints, Stack().home)
    rows.sort(key=lambda row: row.part)
    if out is not None:
        report: dict[str, Any] = {
            "started_at": started.isoformat(),
            "finished_at": datetime.now(UTC).isoformat(),
            "quick": quick,
            "machine": describe_machine().model_dump(),
            "versions": describe_versions(),
            "rows": [row.to_json() for row in rows],
        }
        write_whole(out, json.dumps(report, indent=1) + "\n")
    typer.echo(table(rows))


if __name__ == "__main__":
    run_program(app, "bench")
