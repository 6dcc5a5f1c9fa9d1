"""``python -m bench.faults``: what fails in each phase of a migration, and what becomes of the job.

The runs are those of a batch file, with which ``keyshift batch`` shows the same in a notebook.
"""

from typing import Annotated

import typer

from bench.measurements import aligned
from bench.studies import DATA, Out, say, tell_died, write_report
from keyshift.analysis.timelines import DEATH, faults
from keyshift.experiment.spec import RunSpec
from keyshift.folders import require_file
from keyshift.program import run_program
from keyshift.results.manifest import Manifest
from keyshift.studies.batch import load_batch
from keyshift.studies.study import Study, Tables, collect, specs_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

BATCH = DATA / "failures" / "01_faults-phases.yaml"


def matrix(strategies: list[str] | None = None, only: list[str] | None = None) -> list[tuple[str, dict[str, RunSpec]]]:
    """Profiles, with the runs to make there: those of the batch file, or of other strategies or faults.

    Raises BadInput.
    """
    found = []
    for values in load_batch(BATCH).sets():
        profile, there, names = (values.pop(name, "") for name in ("profile", "faults", "strategies"))
        if only:  # an executor can be killed only where it is another process
            there = [fault for fault in only if ("executor" in fault) == bool(profile)]
        points = [{"strategy": name, "fault": fault} for fault in there for name in strategies or names]
        if points:
            found.append((profile, specs_of({", ".join(point.values()): point for point in points}, values)))
    return found


def matrix_table(study: Study) -> list[tuple[str, ...]]:
    """A row for each fault; of each strategy the verdict, deaths of the query, and seconds of silence."""
    rows: dict[str, dict[str, str]] = {}
    for point, spec in study.specs.items():
        ended = [_ended(spec, *run) for run in study.runs[point]] or ["died"]
        rows.setdefault(spec.scenario.fault or "none", {})[spec.strategy.name] = "; ".join(ended)
    heads = ("fault", *next(iter(rows.values())))
    return [heads, *((fault, *cells.values()) for fault, cells in rows.items())]


def _ended(spec: RunSpec, manifest: Manifest, tables: Tables) -> str:
    happened = [what for _, what in faults(tables["metrics"])]
    # A slot that is killed cannot say so: the death of the query tells.
    wanted = [DEATH if fault.ends_query else fault.what for fault in spec.scenario.faults()]
    missed = any(happened.count(what) < wanted.count(what) for what in wanted)
    assert manifest.summary is not None
    deaths, silence_ms = happened.count(DEATH), manifest.summary.silence_ms
    return (
        f"{'no fault, ' if missed else ''}{manifest.status}{f', died {deaths} x' if deaths else ''}"
        f"{'' if silence_ms is None else f', {silence_ms / 1000:.1f} s'}"
    )


@app.command()
def main(
    strategy: Annotated[list[str] | None, typer.Option(help="A strategy; may be repeated.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault, as in --set fault=; may be repeated.")] = None,
    out: Out = None,
) -> None:
    """Every fault for three strategies that differ in kind: verdict, deaths, silence. About half an hour."""
    require_file("--out", out)
    study = Study({}, {})
    for profile, specs in matrix(strategy, fault):
        study |= collect(specs, profile, say=say)
    tell_died(study)
    write_report(out, study)
    rows = matrix_table(study)
    typer.echo(aligned(rows, left=range(len(rows[0]))))
    raise typer.Exit(int(any(not cell.startswith("ok") for row in rows[1:] for cell in row[1:])))


if __name__ == "__main__":
    run_program(app, "bench.faults")
