"""``python -m bench.faults``: what fails in each phase of a migration, and what becomes of the job.

Three strategies that differ in kind: state that is pushed, fetched by units, accessed by keys.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.measurements import aligned
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import write_whole
from keyshift.lab.connect import open_lab
from keyshift.lab.run import Lab
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.manifest import describe_machine, describe_versions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

KINDS = ("fluid", "meces", "lazy")
FAULTS = (
    "",
    *(f"kill:source@{phase}" for phase in ("prepare", "align", "transfer")),
    *(f"kill:destination@{phase}" for phase in ("prepare", "install", "drain")),
    "kill:slot@snapshot",
    "kill:slot@batch",
    "stop:source@transfer:3s",
    "stop:destination@install:3s",
    "stop:slot@snapshot:12s",  # longer than its session with ZooKeeper lasts
    "kill:slot@1.5",  # at rest
    "kill:coordinator@prepare",
    "kill:coordinator@switch",
    "stop:coordinator@align:3s",
    "kill:daemon@transfer",
    "kill:executor@transfer",
    "cut:flight@transfer",
    "slow:flight@transfer:0.2s",
    "restart:zookeeper@switch",
    "restart:kafka@transfer",
    "restart:minio@snapshot:3s",
)
CLUSTER = "local-cluster"  # the profile in which an executor can be killed
LOAD = {
    "workload": "windowcount",
    "keys": 4000,
    "state_bytes": 256,
    "key_groups": 32,
    "rate": 1000.0,
    "warmup_s": 2.0,
    "trigger_s": 3.0,
    "seconds": 9.0,
    "snapshot_s": 1.0,
    "batch_s": 8.0,
    "recoveries": 3,
    "verify": "snapshots",
}


@dataclass(frozen=True)
class Run:
    """One run: the verdict (or that it died, or that there was no fault), ms without any result from the trigger on,
    and what the notes say.
    """

    strategy: str
    fault: str
    verdict: str
    silence_ms: float | None
    deaths: int
    notes: Sequence[str]


def spec_of(strategy: str, fault: str) -> RunSpec:
    """The run of ``strategy`` with ``fault``. Raises BadInput."""
    return make_spec(LOAD | {"strategy": strategy, "fault": fault})


def run_matrix(lab: Lab, strategies: Sequence[str], faults: Sequence[str]) -> list[Run]:
    """Each fault for each strategy. A run that dies is in the table, too."""
    runs = []
    for fault in faults:
        for strategy in strategies:
            runs.append(_run(lab, spec_of(strategy, fault)))
            tell(f"{strategy}, {fault or 'no fault'}: {runs[-1].verdict}")
    return runs


def _run(lab: Lab, spec: RunSpec) -> Run:
    name, fault = spec.strategy.name, spec.scenario.fault
    try:
        manifest = lab.run(spec)
    except KeyshiftError as error:
        return Run(name, fault, "died", None, 0, [str(error)])
    assert manifest.summary is not None
    notes, verdict = manifest.notes, str(manifest.summary.verdict)
    deaths = [note for note in notes if "the query died" in note and not note.startswith("fault")]
    if any(note.startswith("fault") and "happen" in note for note in notes):
        verdict = f"no fault, {verdict}"
    return Run(name, fault, verdict, manifest.summary.silence_ms, len(deaths), notes)


def matrix_table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each fault; of each strategy the verdict, deaths of the query, and seconds of silence."""
    strategies = list(dict.fromkeys(run.strategy for run in runs))
    rows: list[tuple[str, ...]] = [("fault", *strategies)]
    for fault in dict.fromkeys(run.fault for run in runs):
        cells = []
        for strategy in strategies:
            (run,) = (run for run in runs if (run.fault, run.strategy) == (fault, strategy))
            silence = "" if run.silence_ms is None else f", {run.silence_ms / 1000:.1f} s"
            cells.append(f"{run.verdict}{f', died {run.deaths} x' if run.deaths else ''}{silence}")
        rows.append((fault or "none", *cells))
    return rows


@app.command()
def main(
    strategy: Annotated[list[str] | None, typer.Option(help="A strategy; may be repeated.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault, as in --set fault=; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every run there too, as JSON.")] = None,
) -> None:
    """Every fault for three strategies that differ in kind: verdict, deaths, silence. About half an hour."""
    if out is not None and not out.absolute().parent.is_dir():
        raise BadInput(f"--out {out}: its folder does not exist; make it first")
    names, faults = strategy or list(KINDS), fault or list(FAULTS)
    specs = {each: [spec_of(name, each) for name in names] for each in faults}
    of_executors = [each for each in specs if "executor" in each]
    started, runs = datetime.now(UTC), list[Run]()
    for profile, some in ((None, [each for each in specs if each not in of_executors]), (CLUSTER, of_executors)):
        if some:
            with open_lab([spec for each in some for spec in specs[each]], profile, say=lambda line: None) as lab:
                runs += run_matrix(lab, names, some)
    if out is not None:
        report: dict[str, Any] = {
            "started_at": started.isoformat(),
            "load": LOAD,
            "machine": describe_machine().model_dump(),
            "versions": describe_versions(),
            "runs": [asdict(run) for run in runs],
        }
        write_whole(out, json.dumps(report, indent=1) + "\n")
    typer.echo(aligned(matrix_table(runs), left=tuple(range(len(names) + 1))))
    raise typer.Exit(int(any(run.verdict != "ok" for run in runs)))


if __name__ == "__main__":
    run_program(app, "bench.faults")
