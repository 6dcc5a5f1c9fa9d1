"""Jobs in the background that run until they are stopped."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from keyshift.cli.options import Json, Settings, Where, print_rows

Name = Annotated[str | None, typer.Argument(help="Of the job; may be left out where one runs.", show_default=False)]


# What a person reads of a status; --json gives everything.
SHOWN = (
    *("run_id", "state", "why", "phase", "running_s", "rate"),
    *("results_per_s", "p50_ms", "p99_ms", "deaths", "snapshots"),
)
OF_A_SLOT = ("slot", "units", "records", "queue_bytes", "state_bytes")
OF_A_MIGRATION = ("stage", "number", "slots", "planned_moves", "took_s", "outcome")


def start(
    workload: Annotated[str, typer.Option(help="A name from `keyshift workloads`.")] = "keycount",
    strategy: Annotated[str, typer.Option(help="A name from `keyshift strategies`.")] = "fluid",
    settings: Settings = [],  # noqa: B006 - typer wants a list
    name: Annotated[str, typer.Option(help="Of the job; made of the workload's without.", show_default=False)] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback, for its HTTP; 0: any.")] = 0,
    profile: Where = None,
    as_json: Json = False,
) -> None:
    """Start a job that runs until it is stopped; return when it is ready, and print its name and address."""
    from keyshift.control import background
    from keyshift.progress import tell
    from keyshift.registry import named_values

    values = {"workload": workload, "strategy": strategy} | named_values(settings)
    job, told = background.start(values, tell, name, port, profile)
    print_rows([{"job": job.name, "url": job.url, "run": told["run_id"], "log": job.log}], as_json)


def resume(
    run: Annotated[str, typer.Argument(help="The name of a job, or the first characters of its run's id.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback, for its HTTP; 0: any.")] = 0,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Even if its process lives, or somebody writes its events: it ends.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Go on with a job whose process is gone, however it ended, from its newest snapshot, in another process."""
    from keyshift.control import background
    from keyshift.progress import tell

    job, told = background.resume(run, tell, port, take_over)
    print_rows([{"job": job.name, "url": job.url, "run": told["run_id"], "log": job.log}], as_json)


def list_jobs(as_json: Json = False) -> None:
    """The jobs of this state folder: those that run; how others ended, what remains of them, and how to go on."""
    from keyshift.control.background import Client
    from keyshift.control.files import Jobs
    from keyshift.model.errors import ServiceUnavailable

    jobs, rows = Jobs(), []
    for job in jobs.all():
        row: dict[str, Any] = {"job": job.name, "state": "ended", "workload": job.workload, "strategy": job.strategy}
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
    """How a job is: rate, latency, slots, migrations, deaths."""
    told = _client(name).status()
    if as_json:
        typer.echo(json.dumps(told))
        return
    for key in SHOWN:
        if told.get(key) is not None:
            typer.echo(f"{key:14} {told[key]}")
    for stage, of in told["stages"].items():
        words = f"{stage}: {of['slots']} slots own state, {of['provisioned']} are provisioned, {of['phase']}"
        typer.echo(f"{'stage':14} {words}")
        _print_columns(({"slot": slot, **said} for slot, said in of["of_slot"].items()), OF_A_SLOT)
    _print_columns(told["migrations"], OF_A_MIGRATION)
    if told.get("autoscaler") and told["autoscaler"]["decisions"]:
        typer.echo(f"{'autoscaler':14} {told['autoscaler']['decisions'][-1]['words']}")
    for line in told.get("troubles", ()):
        typer.echo(f"note: {line}")


def scale(
    name: Name = None,
    slots: Annotated[int, typer.Option(help="Slots that are to own the state.")] = ...,  # type: ignore[assignment]
    stage: Annotated[str | None, typer.Option(help="A keyed stage; may be left out where there is one.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the migration is complete.")] = True,
) -> None:
    """Move the state of a job to so many slots, by the strategy it was started with."""
    from keyshift.control.background import followed
    from keyshift.model.errors import MigrationFailed
    from keyshift.progress import tell

    client = _client(name)
    migration = client.post("/scale", slots=slots, stage=stage)

    def over(told: dict[str, Any]) -> bool:
        nonlocal migration
        which = migration["stage"], migration["number"]
        migration = next(each for each in told["migrations"] if (each["stage"], each["number"]) == which)
        return migration["outcome"] != "under way" or told["state"] != "running"

    if wait:
        followed(client, over, tell)
    typer.echo(json.dumps(migration))
    if wait and migration["outcome"] != "complete":
        raise MigrationFailed(f"the migration of {migration['stage']} to {slots} slots is {migration['outcome']}")


def cancel(name: Name = None) -> None:
    """Take back the steps and migrations that have not begun."""
    _client(name).post("/cancel")
    typer.echo("what had not begun is taken back")


def stop(name: Name = None) -> None:
    """End the load of a job, wait for its last results, and print its summary as one line of JSON (the last line)."""
    from keyshift.control.background import Client, await_end, stopped
    from keyshift.control.files import NOTHING, Jobs
    from keyshift.model.errors import BadInput, KeyshiftError
    from keyshift.progress import tell

    jobs = Jobs()
    job = jobs.choose(name)
    if not jobs.alive(job):
        if (ended := jobs.ended(job)).remains == NOTHING:
            jobs.remove(job.name)
        raise KeyshiftError(f"job {job.name} had ended before: {ended}")
    try:
        told = stopped(Client(job), tell)
    except BadInput:
        raise
    except KeyshiftError as error:  # the job, not its verdict, has come to its end
        await_end(job)
        raise KeyshiftError(f"{error}; {jobs.ended(jobs.read(job.name) or job).go_on}") from error
    await_end(job)
    for line in told["examples"]:
        tell(f"  {line}")
    typer.echo(json.dumps(told["summary"]))
    raise typer.Exit(int(told["summary"]["verdict"] == "bad"))


def forget(
    name: Annotated[str, typer.Argument(help="Of a job whose process is gone.", show_default=False)],
) -> None:
    """Delete all that is left of a job that has ended: topics, ZooKeeper nodes, snapshots, journal. Asks nothing."""
    from keyshift.control.forgetting import forget
    from keyshift.progress import tell

    for line in forget(name, tell):
        typer.echo(f"deleted: {line}")


def _print_columns(rows: Iterable[dict[str, Any]], columns: tuple[str, ...]) -> None:
    print_rows([{name: row.get(name) for name in columns} for row in rows], as_json=False)


def _client(name: str | None) -> Any:
    """Of a job that runs. Raises KeyshiftError, with how it ended, if it does not any more."""
    from keyshift.control.background import Client
    from keyshift.control.files import Jobs
    from keyshift.model.errors import BadInput

    jobs = Jobs()
    job = jobs.choose(name)
    if not jobs.alive(job):
        raise BadInput(f"job {job.name} does not run any more: {jobs.ended(job)}")
    return Client(job)
