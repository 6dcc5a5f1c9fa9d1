"""``python -m bench.strategies``: every preset on one load, in turn in one session, and the aims for them.

What being able to migrate costs while nothing migrates is part a of ``python -m bench``.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import matplotlib
import typer

from bench.aims import Run, aims, dirty_points, fit, hand_over_table, moved_minimum_bytes, preset_table
from bench.measurements import table
from keyshift.analysis.plots.strategies import pareto
from keyshift.analysis.plots.style import save
from keyshift.analysis.tables import tradeoffs
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import write_whole
from keyshift.lab.bare_copy import open_ring
from keyshift.lab.connect import open_lab
from keyshift.lab.run import Lab
from keyshift.model.errors import BadInput, KeyshiftError
from keyshift.planner import make_plan, strategies
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.manifest import describe_machine, describe_versions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

MIB = 2**20
STATE_BYTES = 4096  # per key
KEY_GROUPS = 128  # half of them move
TRIGGER_S = 12.0  # of measured time before: copies of everything have to be made in it
STEP_S, LEAST_S, SETTLE_S = (
    0.25,
    14.0,
    8.0,
)  # measured time after the trigger: for each step, at least, and for recovery
COPIES = 4  # bare copies after a run, of which the first has cold connections and does not count
QUICK_PRESETS = ["fluid", "order_unaware", "all_at_once", "stop_restart"]
DIRTYING = (1 / 256, 1 / 64, 1 / 16)  # events per key and second since the copy was made: few to many keys get dirty


@dataclass(frozen=True)
class Load:
    """What all presets have to cope with."""

    mib: int = 256  # of state
    slots: int = 8
    frame_ms: float = 100.0  # 2 routers x 8 slots x 10 frames/s are 160 rows/s; 2 cores take about 400
    rate: float = 2000.0
    repetitions: int = 3


def spec_of(load: Load, strategy: str, **changes: Any) -> RunSpec:
    """The run of ``strategy`` under ``load``, long enough for the steps of its plan. Raises BadInput."""
    values: dict[str, Any] = {
        "strategy": strategy,
        "keys": load.mib * MIB // STATE_BYTES,
        "state_bytes": STATE_BYTES,
        "skew": 0.8,
        "key_groups": KEY_GROUPS,
        "trigger": "shuffle",
        "affected": KEY_GROUPS // 2,
        "slots": load.slots,
        "frame_ms": load.frame_ms,
        "rate": load.rate,
        "trigger_s": TRIGGER_S,
        "seconds": TRIGGER_S + LEAST_S + SETTLE_S,
    } | changes
    first = make_spec(values)
    start = first.start()
    steps = make_plan(first.point(), start, first.target(start), [1.0] * len(start.owner)).steps
    return make_spec(values | {"seconds": TRIGGER_S + max(LEAST_S, STEP_S * len(steps)) + SETTLE_S})


def hand_over_specs(load: Load) -> list[RunSpec]:
    """Moves over copies that are not brought up to date any more: the faster events come, the more keys are dirty."""
    keys = load.mib * MIB // STATE_BYTES
    never = {"copy_every_s": 3600.0, "copy_lag_keys": keys}
    return [spec_of(load, "replicated", replicate=1, rate=keys * share, **never) for share in DIRTYING]


def run_presets(lab: Lab, load: Load, specs: Sequence[RunSpec]) -> Iterator[Run]:
    """Each preset once, then each again, so that drift hits all alike. A run that died does not end the benchmark."""
    for repetition in range(load.repetitions):
        for spec in specs:
            run = _run(lab, spec, repetition)
            moved = run.get("bytes_moved")
            if spec.strategy.name == "all_at_once" and moved:
                with open_ring(load.slots) as ring:
                    copies = [ring.copy_s(int(moved)) for _ in range(COPIES)][1:]
                run = Run(run.preset, repetition, run.summary, copy_s=median(copies))
            yield run


def _run(lab: Lab, spec: RunSpec, repetition: int) -> Run:
    name = spec.strategy.name
    tell(f"{name}, repetition {repetition + 1}")
    try:
        manifest = lab.run(spec.repeated(repetition))
    except KeyshiftError as error:
        tell(f"  died: {error}")
        return Run(name, repetition, error=str(error))
    assert manifest.summary is not None
    run = Run(name, repetition, manifest.summary.model_dump(mode="json"))
    tell(
        f"  verdict {run.verdict}, spike {_shown(run.get('spike_ms'), 'ms')}, "
        f"completion {_shown(run.get('completion_s'), 's')}"
    )
    return run


def _shown(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.3g} {unit}"


@app.command()
def bench(
    preset: Annotated[
        list[str] | None, typer.Option(help="A name from `keyshift strategies`; may be repeated. Default: all.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="64 MiB, one repetition, a few presets, no hand-over over copies.")
    ] = False,
    mib: Annotated[int | None, typer.Option(min=1, help="MiB of state; default 256.")] = None,
    slots: Annotated[int, typer.Option(min=2, max=KEY_GROUPS, help="Slots that own the state.")] = Load.slots,
    frame_ms: Annotated[float, typer.Option(help="Milliseconds between frames of a partition.")] = Load.frame_ms,
    rate: Annotated[float, typer.Option(help="Events per second.")] = Load.rate,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Runs of each preset; default 3.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every run there too, as JSON, after each run.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the Pareto figure there, as PNG.")] = None,
) -> None:
    """Every preset on one load: spike, completion, bytes, verdict, and whether the aims are met. About an hour."""
    for option, path in (("--out", out), ("--figure", figure)):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{option} {path}: its folder does not exist; make it first")
    load = Load(mib or (64 if quick else 256), slots, frame_ms, rate, repetitions or (1 if quick else 3))
    names = list(dict.fromkeys(preset or (QUICK_PRESETS if quick else strategies.names())))
    specs = [spec_of(load, name) for name in names]
    over_copies = hand_over_specs(load) if "replicated" in names and not quick else []
    started = datetime.now(UTC)
    runs: list[Run] = []
    hand_overs: list[Run] = []

    def report() -> None:  # after each run: the benchmark is long, and what is measured is measured
        if out is not None:
            write_whole(out, json.dumps(_report(started, load, runs, hand_overs), indent=1) + "\n")

    with open_lab([*specs, *over_copies], say=_without_seconds) as lab:
        for run in run_presets(lab, load, specs):
            runs.append(run)
            report()
        for repetition in range(load.repetitions):
            for spec in over_copies:
                hand_overs.append(_run(lab, spec, repetition))
                report()
    typer.echo(preset_table(runs))
    if rows := aims(runs):
        typer.echo("\n" + table(rows))
    if hand_overs:
        typer.echo("\nreplicated, everything copied before: hand-over against dirty bytes")
        typer.echo(hand_over_table(hand_overs, moved_minimum_bytes(hand_overs)))
    typer.echo("\nThe cost of being able to migrate, when nothing migrates: part a of `python -m bench`.")
    if figure is not None:
        _draw([run.summary for run in runs if run.summary is not None], figure)
    raise typer.Exit(int(any(run.verdict != "ok" for run in [*runs, *hand_overs])))


def _without_seconds(line: str) -> None:
    """Progress, but not the line a second that a run tells, which is indented."""
    if not line.startswith(" "):
        tell(line)


def _report(started: datetime, load: Load, runs: list[Run], hand_overs: list[Run]) -> dict[str, Any]:
    line = fit(dirty_points(hand_overs))
    return {
        "started_at": started.isoformat(),
        "written_at": datetime.now(UTC).isoformat(),
        "load": asdict(load),
        "machine": describe_machine().model_dump(),
        "versions": describe_versions(),
        "aims": [row.to_json() for row in aims(runs)],
        "hand_over_fit": None if line is None else asdict(line),
        "runs": [run.to_json() for run in runs],
        "hand_overs": [run.to_json() for run in hand_overs],
    }


def _draw(summaries: list[dict[str, Any]], path: Path) -> None:
    matplotlib.use("Agg")  # nobody looks at a window
    costs = tradeoffs(summaries)
    drawn = pareto(costs).get_figure(root=True)
    assert drawn is not None
    path.write_bytes(save(drawn, path.stem, costs)[f"{path.stem}.png"])


if __name__ == "__main__":
    run_program(app, "bench.strategies")
