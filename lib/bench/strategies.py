"""``python -m bench.strategies``: every preset on one load, in turn in one session, and the aims for them.

The load is that of a batch file, with which ``keyshift batch`` shows the same presets in a notebook. What being able to
migrate costs while nothing migrates is part a of ``python -m bench``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from bench.aims import aims
from bench.copy_ring import open_ring
from bench.measurements import table
from keyshift.analysis.tables import comparison_table
from keyshift.cli.options import Settings
from keyshift.experiment.spec import make_spec
from keyshift.folders import require_file, write_whole
from keyshift.planner import strategies
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.registry import named_values
from keyshift.results.anonymous import anonymous_all
from keyshift.results.manifest import Manifest, describe_machine, describe_versions
from keyshift.studies.batch import load_batch
from keyshift.studies.study import Study, collect, named, specs_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

BATCH = Path(__file__).parents[2] / "data" / "compare" / "01_compare_presets-aims.yaml"
COPIES = 4  # bare copies after a run, of which the first has cold connections and does not count
QUICK = {"keys": 16384, "repetitions": 1}  # 64 MiB
QUICK_PRESETS = ["fluid", "order_unaware", "all_at_once", "stop_restart"]


def load(settings: Sequence[str] = (), quick: bool = False) -> dict[str, Any]:
    """What all presets have to cope with: that of the batch file, with changes ``name=value``."""
    (values,) = load_batch(BATCH).sets()
    del values["one_job"]  # each run has its own
    return values | {"trigger": "shuffle"} | (QUICK if quick else {}) | named_values(settings)


class BareCopies:
    """Bare copies of what ``all_at_once`` has moved, between as many processes: seconds, by run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def after(self, manifest: Manifest) -> None:
        """Make a bare copy after a run has ended; the machine is as it was for it."""
        summary = manifest.summary
        if manifest.strategy == "all_at_once" and manifest.status == "ok" and summary and summary.bytes_moved:
            spec = make_spec(manifest.parameters)
            with open_ring(spec.slots_of[spec.moving[-1]]) as ring:
                self.seconds[manifest.run_id] = median([ring.copy_s(summary.bytes_moved) for _ in range(COPIES)][1:])


@app.command()
def bench(
    preset: Annotated[
        list[str] | None, typer.Option(help="A name from `keyshift strategies`; may be repeated. Default: all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="64 MiB, one repetition, a few presets.")] = False,
    settings: Settings = [],  # noqa: B006 - typer wants a list
    out: Annotated[Path | None, typer.Option(help="Write every run there too, as JSON.")] = None,
) -> None:
    """Every preset on one load: spike, completion, bytes, verdict, and whether the aims are met. About an hour."""
    require_file("--out", out)
    common, names = load(settings, quick), preset or (QUICK_PRESETS if quick else strategies.names())
    copies = BareCopies()
    study = collect(specs_of(named(names), common), after=copies.after, say=_say)
    rows = [row | {"copy_s": copies.seconds.get(row["run_id"])} for row in study.rows()]
    found = aims(rows)
    for point, why in study.died.items():
        tell(f"{point} died: {why}")
    if out is not None:
        _report(out, study, aims=[each.to_json() for each in found], copies=copies.seconds)
    if rows:
        typer.echo(comparison_table(rows).fillna("-").to_string(index=False, float_format="{:.4g}".format))
    if found:
        typer.echo("\n" + table(found))
    typer.echo("\nThe cost of being able to migrate, when nothing migrates: part a of `python -m bench`.")
    missed = bool(study.died) or any(row["verdict"] != "ok" for row in rows) or any(each.met is False for each in found)
    raise typer.Exit(int(missed))


def _say(line: str) -> None:
    """Tell progress, but not the line a second that a run tells, which is indented."""
    if not line.startswith(" "):
        tell(line)


def _report(path: Path, study: Study, **more: Any) -> None:
    """Write the summaries and notes of all runs, why points died, the machine, and ``more``."""
    notes = {manifest.run_id: manifest.notes for manifest in study.manifests}
    machine = {"machine": describe_machine().model_dump(), "versions": describe_versions()}
    runs = [row | {"notes": notes[row["run_id"]]} for row in study.rows()]
    write_whole(path, json.dumps(machine | more | {"died": anonymous_all(study.died), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    run_program(app, "bench.strategies")
