"""The command line: parse, call, print. Progress goes to standard error, results to standard output.

Exit status: 0 done, 1 a bad verdict, 2 bad input, 3 a service, a run or keyshift itself failed, 130 interrupted. What a
command needs it imports when it is called: help and plans load no engine.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from keyshift.cli import artifacts, event_files, experiments, jobs, lists, services, simulations, stored, tapes
from keyshift.experiment.commands import COMMANDS
from keyshift.folders import settle_folders
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
job = typer.Typer(
    help="Jobs in the background that run until they are stopped.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(job, name="job")
tape = typer.Typer(help="Tapes for the workload stock.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tape, name="tape")
events = typer.Typer(help="Events of a run in a file, for other runs.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(events, name="events")

for command in (
    *(services.up, services.down, services.status),
    *(experiments.run, experiments.calibrate, experiments.notebook, experiments.batch, experiments.lab),
    jobs.resume,
    simulations.simulate,
    artifacts.artifact,
    *(lists.strategies, lists.plan, lists.workloads, lists.backends, lists.orderings, lists.parameters),
):
    app.command()(command)
results.command("list")(stored.list_results)
results.command("show")(stored.show_result)
results.command("compare")(stored.compare_results)
results.command("share")(stored.share_results)
results.command("export")(stored.export_results)
results.command("import")(stored.import_results)
results.command("delete")(stored.delete_results)
for of_events in (event_files.write, event_files.show):
    events.command()(of_events)
for of_a_tape in (tapes.write, tapes.check):
    tape.command()(of_a_tape)
job.command("list")(jobs.list_jobs)
for of_a_job in (jobs.start, jobs.status, jobs.stop, jobs.forget):
    job.command()(of_a_job)
for verb, kind in COMMANDS.items():
    job.command(verb)(jobs.verb_of(kind))


def main() -> None:
    """The entry point."""
    run_program(_run)


def _run() -> None:
    settle_folders()
    app()
