"""Runs, notebooks and batches of them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyshift.cli.options import (
    STRATEGY,
    WORKLOAD,
    Json,
    MetricsOption,
    ProfileOption,
    SettingsOption,
    StrategyOption,
    WorkloadOption,
    notebooks,
    print_rows,
)
from keyshift.folders import require_file, state_folder, work_folder
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.program import INTERRUPTED, INTERRUPTS, end, ending_with_us, interrupts_wait
from keyshift.progress import tell
from keyshift.registry import named_values

if TYPE_CHECKING:
    from keyshift.results.files import Files
    from keyshift.studies.batch import PreparedBatch
    from keyshift.studies.batch_report import Done


MARKDOWN = ".md"
JUPYTER_ENDS_S = 60.0  # it gives each kernel five seconds, all at once


def run(
    workload: WorkloadOption = WORKLOAD,
    strategy: StrategyOption = STRATEGY,
    settings: SettingsOption = [],  # noqa: B006 - typer wants a list
    profile: ProfileOption = None,
) -> None:
    """Run one experiment, store it, and print its summary as one line of JSON (the last line)."""
    from keyshift.experiment.spec import make_spec
    from keyshift.lab.environment import open_lab
    from keyshift.lab.run import run_all

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


def calibrate(profile: ProfileOption = None, as_json: Json = False) -> None:
    """Measure what a load costs on this machine, for `--set rate=auto` and `--set frame_ms=auto`, and keep it.

    The first run with auto does it, too. Other work on this machine makes it dearer: if that takes much of the
    processors, what was kept before stays.
    """
    from keyshift.experiment.parts import AUTO, OF_AUTO
    from keyshift.experiment.spec import make_spec
    from keyshift.lab.environment import open_lab
    from keyshift.lab.machine.auto_load import chosen
    from keyshift.place.profile import load_profile

    if (spark := load_profile(profile).spark).on_kubernetes:
        raise BadInput(f"executors at {spark.master} are not on this machine: nothing to be measured here")
    spec = make_spec(dict.fromkeys(OF_AUTO, AUTO))
    with open_lab([spec], profile) as lab:
        cost = lab.load_cost(again=True)
    load = chosen([spec], cost)
    costs = cost.model_dump(include={"base_cores", "row_ms", "event_us", "others"})
    print_rows([{"processors": cost.machine.cpus} | costs | load._asdict()], as_json)


def notebook(
    path: Annotated[Path, typer.Argument(help="The notebook to execute.")],
    settings: SettingsOption = [],  # noqa: B006 - typer wants a list
    profile: ProfileOption = None,
) -> None:
    """Execute a notebook with papermill; keep the copy, its HTML and figures locally, and in MinIO beside its runs.

    What it would refuse, or what cannot run here, is refused before anything starts.
    """
    from keyshift.place.needs import Resources
    from keyshift.place.profile import use_profile
    from keyshift.results.store import ResultStore
    from keyshift.services.stack import Stack
    from keyshift.studies import notebook as notebooks
    from keyshift.studies.batch import outcome
    from keyshift.studies.dry_run import Untold, startable

    [parameters] = notebooks.checked_parameters(path, named_values(settings))
    use_profile(profile)
    notebooks.require_store(path, parameters)
    with suppress(Untold):  # its copy has the whole error then, or there is none in a kernel
        startable(path, parameters, Resources.here())
    home = Stack().home
    with _services(profile) as endpoints, work_folder(home, "notebook-"):
        executed = notebooks.execute(path, parameters, home)
        files = [("notebook", executed.notebook), ("HTML", executed.html)]
        files += [("figure", figure) for figure in executed.figures]
        for label, file in files:  # first: they are found also if the store is away by now
            typer.echo(f"{label:9} {file}")
        notebooks.keep(executed, ResultStore(endpoints))
    for row in executed.rows:
        typer.echo(f"{row['strategy']:18} verdict {row['verdict']:4} MinIO: runs/{row['run_id']}/")
    verdicts = {row["run_id"]: row["verdict"] for row in executed.rows}
    status = outcome(verdicts, executed.error, executed.lacks_runs)
    if status == "failed":
        raise KeyshiftError(f"{path.name} failed in {executed.error}")
    if executed.error:
        tell(f"{path.name} failed in {executed.error}")
    raise typer.Exit(int(status == "bad"))


def batch(
    files: Annotated[
        list[Path] | None, typer.Argument(help="YAML files: name, notebook, and what varies (data/README.md).")
    ] = None,
    every: Annotated[
        str,
        typer.Option(
            "--all",
            help="In place of files: every set of this kind below data/ (smoke, small, paper); or small,published.",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The report: .html or .md. Default of --all: report-KIND.html in the state."),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--as", help="Another name of the batch, as of a night: what others have executed does not count."
        ),
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Execute all anew, also what has ended well before.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what each set needs, what cannot run here and how long; start nothing."),
    ] = False,
    metrics: MetricsOption = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """Execute a notebook with many sets of parameters; given again, it executes what is missing or has failed.

    With --all, every notebook that has a set of a kind. A report has all verdicts, conclusions, notes, figures (not in
    Markdown), and what is missing.
    """
    if bool(files) == bool(every):
        raise BadInput("keyshift batch: give batch files, or --all and a kind of sets (smoke, small or paper)")
    if name and (every or len(files or []) > 1):
        raise BadInput(f"--as {name}: it names one batch; several have names of their own")
    if out and out.suffix not in (".html", MARKDOWN):
        raise BadInput(f"--out {out}: a report is a file that ends with .html or {MARKDOWN}")
    require_file("--out", out)
    from keyshift.place.profile import use_profile
    from keyshift.results.files import Files
    from keyshift.results.store import ResultStore
    from keyshift.services.stack import STORE, Stack
    from keyshift.studies import batch as batches
    from keyshift.studies.notebook import require_store

    sets = files or batches.files_of(Path.cwd() / "data", every)
    prepared = [batches.prepare(each, notebooks(), name) for each in sets]
    use_profile(profile)
    for each in prepared:
        for execution in each.executions:
            require_store(each.notebook, execution.parameters)
    if dry_run:
        _forecast(prepared, profile, again, as_json)
        return
    from keyshift.lab.environment import open_services
    from keyshift.studies.batch_report import batch_report

    home = Stack().home
    with (
        work_folder(home, "batch-"),  # whoever has the services, nothing is wiped under it
        batches.alone(prepared, home),
        _metrics(metrics, profile, home) as seen,
        _services(profile) as endpoints,
    ):
        runs, records = ResultStore(endpoints), Files(endpoints, batches.PREFIX)
        for each in prepared:
            if again:
                batches.forget(each, records)
            seen(each, batches.ended(each, records))
        ended: list[tuple[batches.PreparedBatch, dict[str, batches.ExecutionRecord]]] = []
        page, unwritten = out or (home / f"report-{every}.html" if every else None), ""
        title = f"all {every} sets" if every else ", ".join(each.batch.name for each in prepared)
        markdown = page is not None and page.suffix == MARKDOWN

        def report() -> str:
            still = [(other, batches.ended(other, records)) for other in prepared[len(ended) :]]
            return batch_report(title, [*ended, *still], records, markdown)

        store = partial(open_services, profile, tell, reach=False, needs=STORE)  # one of ours starts again if it died
        for each in prepared:
            ended.append((each, batches.run_batch(each, runs, records, home, tell, seen=seen, store=store)))
            if page:  # after each: who stops the night has a report of it
                unwritten = _write(page, report)
    for each, done in ended:
        print_rows(batches.table(each, done, errors=as_json), as_json)
    if unwritten:
        raise KeyshiftError(f"{unwritten}; all executions are stored, and the same command makes it of them")
    if page:
        tell(f"report: {page}")
    raise typer.Exit(max(batches.exit_status(done) for _, done in ended))


def _write(page: Path, report: Callable[[], str]) -> str:
    """Write a report. Gives why it could not be written, which is told, or nothing: it must not end a night."""
    try:
        page.write_text(report(), encoding="utf-8")
    except (OSError, KeyshiftError) as error:
        tell(why := f"report {page} cannot be written: {getattr(error, 'strerror', None) or error}")
        return why
    return ""


@contextmanager
def _metrics(port: int | None, profile: str | None, home: Path) -> "Iterator[Callable[[PreparedBatch, Done], None]]":
    """Give what is told of each end, so that Prometheus can read it at ``port``; it does nothing without one."""
    if port is None:
        yield lambda prepared, done: None
        return
    from keyshift.control.background import TOKEN, control_token
    from keyshift.control.batch_metrics import BatchMetrics, served
    from keyshift.place.profile import load_profile

    if not (token := control_token()):
        raise BadInput(f"--metrics {port}: who reads them needs a token, which has to be in the environment: {TOKEN}")
    metrics = BatchMetrics(home)
    with served(metrics, load_profile(profile).control.listen, port, token):
        yield metrics.seen


def _forecast(prepared: "list[PreparedBatch]", profile: str | None, again: bool, as_json: bool) -> None:
    from keyshift.place.needs import Resources
    from keyshift.studies.dry_run import forecast, total

    records, resources = _records(profile), Resources.here()
    told = []
    for each in prepared:
        told.append(forecast(each, records, resources, again))
        if as_json:
            print_rows([told[-1].row()], as_json)
        else:
            typer.echo("\n".join(told[-1].lines()))
    if len(told) > 1 and not as_json:
        typer.echo(total(told))


def _records(profile: str | None) -> "Files | None":
    """The records of batches, if the store can be reached as it is."""
    from keyshift.place.profile import load_profile
    from keyshift.results.files import Files
    from keyshift.services.stack import Stack
    from keyshift.studies.batch import PREFIX

    place = load_profile(profile)
    try:
        endpoints = Stack().endpoints() if place.services == "embedded" else place.endpoints()
        records = Files(endpoints, PREFIX)
        records.folders()
    except ServiceUnavailable as away:
        tell(f"records of earlier executions are not read: {away}")
        return None
    return records


def lab(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of JupyterLab; the next free one is taken.")] = 8888,
    ip: Annotated[
        str, typer.Option(help="Address that JupyterLab listens on; who reaches it needs its token.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    metrics: MetricsOption = None,
    profile: ProfileOption = None,
) -> None:
    """JupyterLab with the notebooks, on loopback, with a token; the services stop with it.

    With --metrics Prometheus can watch the runs under way, of notebooks and of others with the same state folder.
    """
    with _metrics(metrics, profile, state_folder()), _services(profile, reach=False):  # a run says which one is away
        command = [sys.executable, "-m", "jupyter", "lab", f"--ServerApp.ip={ip}", f"--ServerApp.port={port}"]
        command += [f"--ServerApp.root_dir={notebooks()}"] + ([] if browser else ["--no-browser"])
        if os.geteuid() == 0:
            command.append("--allow-root")
        # Nothing here asks the internet for news, nor the user whether it may.
        configs = [str(Path(__file__).parent / "jupyter"), *filter(None, [os.getenv("JUPYTER_CONFIG_PATH")])]
        env = os.environ | {"JUPYTER_CONFIG_PATH": os.pathsep.join(configs)}
        # In a session of its own it hears from us alone that the terminal interrupts or is closed: SIGHUP would end it
        # before its kernels, and these would keep the services.
        with ExitStack() as ending:
            with interrupts_wait():  # one that came between would leave it running, or who ends it if we are killed
                jupyter = subprocess.Popen(command, env=env, start_new_session=True)
                ending.callback(_end_in_peace, jupyter)
                ending.enter_context(ending_with_us([jupyter.pid]))
            status = jupyter.wait()
    if status not in (0, INTERRUPTED, *(-number for number in INTERRUPTS)):
        raise KeyshiftError(f"JupyterLab has ended with exit status {status}; why is above")


def _end_in_peace(jupyter: "subprocess.Popen[bytes]") -> None:
    with interrupts_wait():  # who presses Ctrl-C twice would leave it, and kernels that keep the services
        end(jupyter, JUPYTER_ENDS_S)


@contextmanager
def _services(profile: str | None, reach: bool = True) -> Iterator[Any]:
    """The endpoints of a profile, which is that of every process started from here, too. ``reach``: as of
    ``open_services``.
    """
    from keyshift.lab.environment import open_services, require_user
    from keyshift.place.profile import use_profile
    from keyshift.services.jars import require_java

    use_profile(profile)
    require_java()
    require_user()
    with open_services(profile, tell, reach) as endpoints:
        yield endpoints
