"""Stored runs as a folder to publish."""

import time
from pathlib import Path
from typing import Annotated

import typer

from keyshift.cli.options import ProfileOption, notebooks
from keyshift.folders import require_folder, writing
from keyshift.model.errors import BadInput


def artifact(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder.")],
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Run ids, or their first characters. Default: all stored runs."),
    ] = None,
    every: Annotated[
        str,
        typer.Option(
            "--all", help="In place of runs: those of every set of this kind (smoke, small, paper); or small,published."
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Its title.", show_default="the workloads")] = "",
    author: Annotated[
        list[str], typer.Option(help="A name; may be repeated.", show_default="The keyshift authors")
    ] = [],  # noqa: B006 - typer wants a list
    license_: Annotated[str, typer.Option("--license", help="An SPDX name.")] = "Apache-2.0",
    doi: Annotated[str, typer.Option(help="A DOI that is reserved for it.")] = "",
    profile: ProfileOption = None,
) -> None:
    """A folder to publish: all figures, executed notebooks, tables, parameters, verdicts, versions, as an RO-Crate."""
    from keyshift.experiment.parameters import known_parameters
    from keyshift.lab.environment import open_services
    from keyshift.refusals import made
    from keyshift.results.exchange import require_new
    from keyshift.results.files import Files
    from keyshift.results.store import ResultStore
    from keyshift.services.stack import STORE
    from keyshift.studies import batch as of_batches
    from keyshift.studies.artifact import Batches, pack
    from keyshift.studies.crate import Imprint
    from keyshift.studies.dry_run import duration

    begin = time.monotonic()
    if run_ids and every:
        raise BadInput("keyshift artifact: give runs, or --all and a kind of sets (smoke, small or paper)")
    require_folder("--output", output)
    require_new(output)
    imprint = made(Imprint, {"title": title, "authors": author, "license": license_, "doi": doi})
    files = of_batches.files_of(Path.cwd() / "data", every) if every else []
    prepared = [of_batches.prepare(file, notebooks()) for file in files]
    meanings = {name: field.description or "" for _, name, field in known_parameters()}
    with open_services(profile, needs=STORE) as endpoints:
        records = Files(endpoints, of_batches.PREFIX)
        ended = [(each, of_batches.ended(each, records)) for each in prepared]
        batches = Batches(every, ended, records) if every else None
        with writing(output):
            count = pack(ResultStore(endpoints), run_ids or [], output, imprint, meanings, batches)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    what = f"{count} runs, {size / 2**20:.1f} MiB, made in {duration(time.monotonic() - begin)}"
    typer.echo(f"{output}: {what}; open {output / 'index.html'}, look before you publish")
