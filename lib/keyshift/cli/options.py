"""Options that several commands have, and how a command prints rows."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

WORKLOAD, STRATEGY = "keycount", "fluid"  # as ``experiment.parameters.DEFAULTS``, which a help text does not load

WorkloadOption = Annotated[str, typer.Option(help="A name from `keyshift workloads`.")]
StrategyOption = Annotated[str, typer.Option(help="A name from `keyshift strategies`.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for scripts.")]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="Where: local, local-cluster, local-apart, kubernetes or a YAML file.",
        envvar="KEYSHIFT_PROFILE",
        show_default="local",
    ),
]
MetricsOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port of /metrics for Prometheus; token in KEYSHIFT_CONTROL_TOKEN."),
]
SettingsOption = Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="A parameter; may be repeated.")]


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table for a person, or as one JSON object per line."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, default=str))
    elif rows:
        import pandas as pd

        typer.echo(pd.DataFrame(rows).fillna("-").to_string(index=False, float_format="{:.4g}".format))


def notebooks() -> Path:
    """The folder of notebooks where the user is, or where the user is if there is none."""
    folder = Path.cwd() / "notebooks"
    return folder if folder.is_dir() else Path.cwd()
