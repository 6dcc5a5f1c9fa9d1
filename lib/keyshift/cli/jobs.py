"""Jobs in the background that run until they are stopped."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from keyshift.cli.options import (
    STRATEGY,
    WORKLOAD,
    Json,
    ProfileOption,
    SettingsOption,
    StrategyOption,
    WorkloadOption,
    print_rows,
)
from keyshift.experiment.commands import Command, outcome_said
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.program import GoesOn
from keyshift.progress import tell
from keyshift.registry import named_values

ControlPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        help="For its HTTP, at the address of the profile (loopback unless it says otherwise); 0: the profile's port, "
        "else any.",
    ),
]
Name = Annotated[str | None, typer.Argument(help="Of the job; may be left out where one runs.", show_default=False)]


# What a person reads of a status; --json gives everything.
SHOWN = (
    *("run_id", "state", "why", "activity", "running_s", "rate"),
    *("results_per_s", "p50_ms", "p99_ms", "deaths", "snapshots"),
)
OF_A_SLOT = ("slot", "units", "records", "queue_bytes", "state_bytes")
OF_A_REPLICA = ("replica", "state", "lag_ms", "deaths")
OF_A_MIGRATION = ("stage", "number", "slots", "planned_moves", "took_s", "outcome")


def start(
    workload: WorkloadOption = WORKLOAD,
    strategy: StrategyOption = STRATEGY,
    settings: SettingsOption = [],  # noqa: B006 - typer wants a list
    name: Annotated[str, typer.Option(help="Of the job; left out: made from the workload's.", show_default=False)] = "",
    port: ControlPort = 0,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Start a job that runs until it is stopped; return when it is ready, and print its name and address."""
    from keyshift.control import background

    values = {"workload": workload, "strategy": strategy} | named_values(settings)
    job, told = background.start(values, tell, name, port, profile)
    print_rows([{"job": job.name, "url": job.url, "run": told["run_id"], "log": job.log}], as_json)


def resume(
    run: Annotated[str, typer.Argument(help="The name of a job, or the first characters of its run's id.")],
    port: ControlPort = 0,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Also from a process that lives, or still writes events; that one ends by itself."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Go on with a job whose process is gone, however it ended, from its newest snapshot, in another process."""
    from keyshift.control import background

    job, told = background.resume(run, tell, port, take_over)
    print_rows([{"job": job.name, "url": job.url, "run": told["run_id"], "log": job.log}], as_json)


def list_jobs(as_json: Json = False) -> None:
    """The jobs of this state folder: those that run; how others ended, what remains of them, and how to go on."""
    from keyshift.control.client import Client
    from keyshift.control.files import Jobs

    jobs, rows = Jobs(), []
    for job in jobs.all():
        state = "elsewhere" if jobs.on_other_host(job) else "ended"
        row: dict[str, Any] = {"job": job.name, "state": state, "workload": job.workload, "strategy": job.strategy}
        if jobs.alive(job):
            try:
                told = Client(job).status()
                row |= {"state": told["state"], "running_s": told.get("running_s"), "url": job.url}
            except ServiceUnavailable as error:
                row |= {"state": "silent", "why": str(error)}
        else:
            row |= jobs.ended(job)._asdict()
        rows.append(row)
    print_rows(rows, as_json)


def status(name: Name = None, as_json: Json = False) -> None:
    """How a job is: rate, latency, slots, replicas, migrations, deaths."""
    told = _client(name).status()
    if as_json:
        typer.echo(json.dumps(to_jsonable_python(told)))
        return
    for key in SHOWN:
        if told.get(key) is not None:
            typer.echo(f"{key:14} {told[key]}")
    for stage, of in told["stages"].items():
        words = f"{stage}: {of['slots']} slots own state, {of['provisioned']} are provisioned, {of['activity']}"
        typer.echo(f"{'stage':14} {words}")
        _print_columns(({"slot": slot, **said} for slot, said in of["of_slot"].items()), OF_A_SLOT)
    _print_columns(({"replica": number, **how} for number, how in told.get("replicas", {}).items()), OF_A_REPLICA)
    _print_columns(({**each, "outcome": outcome_said(each)} for each in told["migrations"]), OF_A_MIGRATION)
    if told.get("autoscaler") and told["autoscaler"]["decisions"]:
        typer.echo(f"{'autoscaler':14} {told['autoscaler']['decisions'][-1]['words']}")
    for line in told.get("notes", ()):
        typer.echo(f"note: {line}")


def verb_of(kind: type[Command]) -> Callable[..., None]:
    """The command line of a command: an option for each of its fields; prints the answer as a line of JSON.

    Typer reads the signature and the help of a function, so both are made here.
    """

    def do(name: str | None = None, wait: bool = True, **values: Any) -> None:
        from keyshift.control.client import await_migration

        client = _client(name)
        job = client.job.name
        tells = f"`keyshift job status {job}` tells of it, `keyshift job cancel {job}` takes back what has not begun"
        with _going_on(f"job {job} goes on with what it was asked for: {tells}"):
            answer = client.ask(kind.verb, {field: value for field, value in values.items() if value not in (None, [])})
            if wait and "number" in answer:
                answer = await_migration(client, answer, tell)
        typer.echo(json.dumps(answer))

    given = [Parameter("name", Parameter.KEYWORD_ONLY, annotation=Name, default=None)]
    for name, field in kind.model_fields.items():
        several = name == "settings"
        option = typer.Option("--set" if several else f"--{name}", help=field.description, show_default=False)
        kind_of: Any = Annotated[list[str] if several else str | None, option]
        default = ... if field.is_required() else [] if several else field.default
        given.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind_of, default=default))
    if kind.moves:
        waits = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the migration is over.")]
        given.append(Parameter("wait", Parameter.KEYWORD_ONLY, annotation=waits, default=True))
    do.__signature__ = Signature(given)  # type: ignore[attr-defined]
    do.__doc__ = kind.__doc__
    return do


def stop(name: Name = None) -> None:
    """End the load of a job, wait for its last results, and print its summary as one line of JSON (the last line)."""
    from keyshift.control.client import await_end, await_verdict
    from keyshift.control.files import NOTHING, Jobs

    jobs = Jobs()
    job = jobs.choose(name)
    if not jobs.alive(job):
        if (ended := jobs.ended(job)).remains == NOTHING:
            with jobs.naming():
                jobs.remove(job)
        raise KeyshiftError(f"job {job.name} does not run here: {ended}")
    with _going_on(f"job {job.name} goes on to its verdict: `keyshift job stop {job.name}` waits for it again"):
        told = await_verdict(jobs, job, tell)
    for line in told["examples"]:
        tell(f"  {line}")
    summary = told["summary"]
    assert summary is not None, "a stop is answered with the verdict"
    typer.echo(json.dumps(to_jsonable_python(summary)))  # now: when its process is gone, nobody could ask once more
    with _going_on(f"job {job.name} has its verdict, and its process is about to end"):
        await_end(job)
    raise typer.Exit(int(summary.verdict == "bad"))


def forget(
    name: Annotated[str, typer.Argument(help="Of a job whose process is gone.", show_default=False)],
) -> None:
    """Delete all that is left of a job that has ended: topics, ZooKeeper nodes, snapshots, journal. Asks nothing."""
    from keyshift.control.forgetting import forget

    for line in forget(name, tell):
        typer.echo(f"deleted: {line}")


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Raise GoesOn, with ``what`` goes on, if the wait inside is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise GoesOn(what) from None


def _print_columns(rows: Iterable[dict[str, Any]], columns: tuple[str, ...]) -> None:
    print_rows([{name: row.get(name) for name in columns} for row in rows], as_json=False)


def _client(name: str | None) -> Any:
    """The client of a job that runs. Raises KeyshiftError, with how it ended, if it does not any more."""
    from keyshift.control.client import Client
    from keyshift.control.files import Jobs

    jobs = Jobs()
    job = jobs.choose(name)
    if not jobs.alive(job):
        raise BadInput(f"job {job.name} does not run here: {jobs.ended(job)}")
    return Client(job)
