"""The command line: parse, call, print. Progress goes to standard error, results to standard output.

Exit status: 0 done, 1 a bad verdict, 2 bad input, 3 a service or a run failed, 130 interrupted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from keyshift.errors import KeyshiftError
from keyshift.program import run_program


class Commands(TyperGroup):
    """Names the value that an option refuses: typer says what is wrong with it, and not what it is."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            for fault in getattr(error.__cause__, "errors", list)():  # of pydantic, which typer asks
                error.message += f", not {fault['input']!r}"
            raise


app = typer.Typer(
    name="keyshift",
    cls=Commands,
    help="See, compare and invent ways of moving the state of a running stream-processing job.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
results = typer.Typer(help="Runs kept in MinIO.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(results, name="results")

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

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for scripts.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="Where: local, local-cluster, kubernetes or a YAML file.",
        envvar="KEYSHIFT_PROFILE",
        show_default="local",
    ),
]
Settings = Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="A parameter; may be repeated.")]


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, default=str))
    elif rows:
        import pandas as pd

        typer.echo(pd.DataFrame(rows).fillna("-").to_string(index=False, float_format="{:.4g}".format))


@app.command()
def up(
    kafka_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of Kafka.")] = None,
    zookeeper_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of ZooKeeper.")] = None,
    minio_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of MinIO.")] = None,
) -> None:
    """Start Kafka, ZooKeeper and MinIO on this machine (loopback only)."""
    from keyshift.progress import tell
    from keyshift.services.jars import jars, require_java
    from keyshift.services.stack import Stack

    require_java()
    wanted = {"kafka": kafka_port, "zookeeper": zookeeper_port, "minio": minio_port}
    stack = Stack(ports={name: port for name, port in wanted.items() if port})
    stack.up(tell)
    jars("spark", tell)
    _print_rows([_service_row(service) for service in stack.status()], as_json=False)


@app.command()
def down(
    wipe: Annotated[bool, typer.Option(help="Delete the state folder too: data, results, logs, credentials.")] = False,
) -> None:
    """Stop what `up` started."""
    from keyshift.progress import tell
    from keyshift.services.stack import Stack

    Stack().down(wipe=wipe, say=tell)


@app.command()
def status(as_json: Json = False) -> None:
    """What runs, where, since when."""
    from keyshift.services.stack import Stack

    stack = Stack()
    _print_rows([_service_row(service) for service in stack.status()], as_json)
    if not as_json:
        typer.echo(f"state folder: {stack.home}")


def _service_row(service: Any) -> dict[str, Any]:
    return {
        "service": service.name,
        "state": service.state,
        "address": service.address,
        "pid": service.pid,
        "up_s": None if service.since_s is None else round(service.since_s),
        "rss_mib": None if service.rss_mib is None else round(service.rss_mib),
        "log": str(service.log),
    }


@app.command()
def run(
    workload: Annotated[str, typer.Option(help="A name from `keyshift workloads`.")] = "keycount",
    strategy: Annotated[str, typer.Option(help="A name from `keyshift strategies`.")] = "fluid",
    settings: Settings = [],  # noqa: B006 - typer wants a list
    profile: Where = None,
) -> None:
    """Run one experiment, store it, and print its summary as one line of JSON (the last line)."""
    from keyshift.lab.connect import open_lab
    from keyshift.lab.run import run_all
    from keyshift.lab.spec import make_spec
    from keyshift.progress import tell
    from keyshift.registry import named_values

    spec = make_spec({"workload": workload, "strategy": strategy} | named_values(settings))
    tell("parameters: " + ", ".join(f"{name}={value}" for name, value in spec.parameters().items()))
    verdicts = []
    with open_lab([spec], profile) as lab:
        for manifest in run_all(lab, [spec]):
            assert manifest.summary is not None and manifest.verdict is not None
            for example in manifest.verdict.examples:
                tell(f"  {example}")
            typer.echo(manifest.summary.model_dump_json())
            verdicts.append(manifest.summary.verdict)
    raise typer.Exit(int("bad" in verdicts))


@app.command()
def notebook(
    path: Annotated[Path, typer.Argument(help="The notebook to execute.")],
    settings: Settings = [],  # noqa: B006 - typer wants a list
    profile: Where = None,
) -> None:
    """Execute a notebook with papermill; keep the copy, its HTML and figures locally and in MinIO."""
    from keyshift.lab import notebook as notebooks
    from keyshift.lab.connect import open_services
    from keyshift.place.profile import use_profile
    from keyshift.progress import tell
    from keyshift.registry import named_values
    from keyshift.results.store import ResultStore
    from keyshift.services.jars import require_java
    from keyshift.services.stack import Stack

    use_profile(profile)
    parameters = named_values(settings)
    notebooks.check_parameters(path, parameters)
    require_java()
    with open_services(profile, tell) as endpoints:
        executed = notebooks.execute(path, parameters, Stack().home)
        notebooks.keep(executed, ResultStore(endpoints))
    for label, files in (("notebook", [executed.notebook]), ("HTML", [executed.html]), ("figure", executed.figures)):
        for file in files:
            typer.echo(f"{label:9} {file}")
    for row in executed.rows:
        typer.echo(f"{row['strategy']:18} verdict {row['verdict']:4} MinIO: runs/{row['run_id']}/")
    if executed.error:
        raise KeyshiftError(f"{path.name} failed in {executed.error}")
    raise typer.Exit(int(any(row["verdict"] != "ok" for row in executed.rows)))


@app.command()
def batch(
    file: Annotated[Path, typer.Argument(help="A YAML file: name, notebook, and what varies (data/README.md).")],
    again: Annotated[bool, typer.Option("--again", help="Execute all anew, also what has ended well before.")] = False,
    profile: Where = None,
    as_json: Json = False,
) -> None:
    """Execute a notebook with many sets of parameters; given again, it goes on with what has not ended or failed."""
    from keyshift.lab import batch as batches
    from keyshift.lab.connect import open_services
    from keyshift.place.profile import use_profile
    from keyshift.progress import tell
    from keyshift.results.store import ResultStore
    from keyshift.services.jars import require_java
    from keyshift.services.stack import Stack

    folder = next((place for place in (Path.cwd() / "notebooks", Path.cwd()) if place.is_dir()), Path.cwd())
    use_profile(profile)
    prepared = batches.prepare(file, folder)
    require_java()
    with open_services(profile, tell) as endpoints:
        runs, records = ResultStore(endpoints), ResultStore(endpoints, batches.PREFIX)
        done = batches.run_batch(prepared, runs, records, Stack().home, tell, again)
    _print_rows(batches.table(prepared, done), as_json)
    raise typer.Exit(batches.exit_status(done))


@app.command()
def lab(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of JupyterLab; the next free one is taken.")] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    profile: Where = None,
) -> None:
    """JupyterLab with the notebooks, on loopback, with a token; the services stop with it."""
    from keyshift.lab.connect import open_services
    from keyshift.place.profile import use_profile
    from keyshift.progress import tell
    from keyshift.services.jars import require_java

    use_profile(profile)
    require_java()
    folder = next((place for place in (Path.cwd() / "notebooks", Path.cwd()) if place.is_dir()), Path.cwd())
    with open_services(profile, tell):
        command = [sys.executable, "-m", "jupyter", "lab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
        command += [f"--ServerApp.root_dir={folder}"] + ([] if browser else ["--no-browser"])
        # Nothing here asks the internet for news.
        command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
        if os.geteuid() == 0:
            command.append("--allow-root")
        jupyter = subprocess.Popen(command)
        try:
            jupyter.wait()
        finally:
            jupyter.terminate()
            jupyter.wait()


@app.command()
def strategies(as_json: Json = False) -> None:
    """Ways to move state."""
    from keyshift.planner import settings
    from keyshift.planner import strategies as known

    rows: list[dict[str, Any]] = [
        {"strategy": name, "what": entry.summary, "source": entry.source} for name, entry in known.items()
    ]
    if as_json:
        for row, (_, entry) in zip(rows, known.items(), strict=True):
            row |= settings(entry) | {"phases": entry.phases}
    _print_rows(rows, as_json)


@app.command()
def plan(
    strategy: Annotated[str, typer.Option(help="A name from `keyshift strategies`.")] = "fluid",
    groups: Annotated[int, typer.Option(min=1, max=1 << 15, help="Number of key groups.")] = 128,
    before: Annotated[int, typer.Option("--from", metavar="SLOTS", help="Slots before.")] = 2,
    after: Annotated[int, typer.Option("--to", metavar="SLOTS", help="Slots after.")] = 4,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the strategy; may be repeated."),
    ] = [],  # noqa: B006 - typer wants a list
    skew: Annotated[
        float, typer.Option(help="Zipf exponent over key groups: the heat of each, as no job runs that is measured.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="For orders that draw.")] = 0,
    phase: Annotated[int, typer.Option(min=0, help="The n-th reconfiguration of the job, from 0.")] = 0,
    why: Annotated[bool, typer.Option("--why", help="The decisions and their reasons instead of the steps.")] = False,
) -> None:
    """The steps of a migration, one JSON object per line. Needs no service."""
    from dataclasses import asdict

    from keyshift.keys import Assignment
    from keyshift.planner import change, in_units, make_plan, strategies, targets
    from keyshift.registry import named_values

    chosen = change(strategies.get(strategy), named_values(overrides)).phase(phase)
    here = Assignment.contiguous(groups, before)
    heat = [mass / chosen.bins for mass in targets.zipf_mass(groups, skew) for _ in range(chosen.bins)]
    made = make_plan(chosen, in_units(chosen, here), in_units(chosen, targets.scale(here, after)), heat, seed)
    if why:
        for decision in made.decisions:
            typer.echo(json.dumps(asdict(decision)))
    else:
        for number, step in enumerate(made.steps):
            typer.echo(json.dumps({"step": number, "moves": [asdict(move) for move in step.moves]}))


@app.command()
def workloads(as_json: Json = False) -> None:
    """What jobs compute; with --json, their parameters too."""
    from keyshift.workloads import parameters
    from keyshift.workloads import workloads as known

    _print_models("workload", [(n, w.summary, w, parameters(w)) for n, w in known.items()], as_json)


@app.command()
def backends(as_json: Json = False) -> None:
    """Where state lives; with --json, the settings too."""
    from keyshift.state import backends as known

    _print_models("backend", [(n, b.summary, b.settings, b.settings.model_fields) for n, b in known.items()], as_json)


def _print_models(kind: str, models: list[tuple[str, str, Any, Iterable[str]]], as_json: bool) -> None:
    """Name and summary of each; as JSON also type, default, meaning and bounds of these fields of its model."""
    rows: list[dict[str, Any]] = []
    for name, summary, model, parameters in models:
        rows.append({kind: name, "what": summary})
        if as_json:
            declared = model.model_json_schema()["properties"]
            rows[-1]["parameters"] = {parameter: declared[parameter] for parameter in parameters}
    _print_rows(rows, as_json)


@app.command()
def parameters(as_json: Json = False) -> None:
    """What `--set` takes, with defaults and units; without a default: as in the preset of the strategy."""
    from keyshift.lab.spec import known_parameters

    rows = [
        {"parameter": name, "of": owner, "default": field.default, "what": field.description}
        for owner, name, field in known_parameters()
    ]
    _print_rows(rows, as_json)


@results.command("list")
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
        _print_rows(json.loads(rows.to_json(orient="records", date_format="iso")), as_json)
        if rows.empty and not as_json:
            typer.echo("no runs yet: `keyshift run` makes one")


@results.command("show")
def show_result(
    run_id: Annotated[str, typer.Argument(help="A run id, or its first characters.")], profile: Where = None
) -> None:
    """The manifest of one run, as JSON."""
    from keyshift.lab.connect import open_services
    from keyshift.results.store import ResultStore

    with open_services(profile) as endpoints:
        typer.echo(ResultStore(endpoints).get_manifest(run_id).model_dump_json(indent=2))


def main() -> None:
    """The entry point."""
    run_program(app)


if __name__ == "__main__":
    main()
