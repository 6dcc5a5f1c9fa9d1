"""``python -m bench.aims``: what the runs of a batch file, made by ``keyshift batch``, say of the aims for strategies.

A row is the summary of a run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from bench.measurements import Measurement, table
from keyshift.analysis.tables import SummaryRow, comparison_table
from keyshift.cli.options import ProfileOption
from keyshift.lab.environment import open_services
from keyshift.model.errors import KeyshiftError
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.results.files import Files
from keyshift.results.store import ResultStore
from keyshift.services.stack import STORE
from keyshift.studies.batch import PREFIX, ended, prepare

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

ROOT = Path(__file__).parents[2]
BATCH = ROOT / "data" / "compare" / "01_compare_presets-aims.yaml"

CALM = ("fluid", "matched", "meces", "lazy")  # presets that users should hardly notice
AT_MOST_BEFORE = 2.0  # their spike, times the P99 before
# Their spike, against that of the presets that a naive user would take.
AT_MOST_OF = {"order_unaware": 1 / 5, "stop_restart": 1 / 20}
AT_MOST_FLOOR = 1.5  # completion of all_at_once, times the floor of the run: a bare copy of the same bytes


def aims(rows: Sequence[SummaryRow]) -> list[Measurement]:
    """The aims that these runs can tell about: each compares neighbours of a repetition, correct ones only."""
    known: dict[tuple[str, str], dict[int, float]] = {}  # of a preset, a figure in ms by the seed
    for row in rows:
        for figure, value in _figures(row):
            if value is not None:
                known.setdefault((row["strategy"], figure), {})[row["parameters"]["seed"]] = value

    def against(measure: str, ours: tuple[str, str], other: tuple[str, str], aim: float | None) -> Measurement:
        mine, others = known.get(ours, {}), known.get(other, {})
        both = [seed for seed in mine if others.get(seed)]
        return Measurement("d", measure, "ms", [mine[seed] for seed in both], [others[seed] for seed in both], aim)

    found = []
    for preset in CALM:
        spike, spike_of = (preset, "spike"), f"spike of {preset}, against"
        found.append(against(f"{spike_of} P99 before", spike, (preset, "before"), AT_MOST_BEFORE))
        for other, at_most in AT_MOST_OF.items():
            found.append(against(f"{spike_of} that of {other}", spike, (other, "spike"), at_most))
    whole, hand_over, floor = (("all_at_once", figure) for figure in ("completion", "hand-over", "floor"))
    found.append(against("completion of all_at_once, against the floor", whole, floor, AT_MOST_FLOOR))
    found.append(against("of it transfer and install, against the same", hand_over, floor, None))
    return [row for row in found if row.keyshift]


def _figures(row: SummaryRow) -> Iterator[tuple[str, float | None]]:
    """What aims are about, in ms; nothing of a run that is not correct, or has left units where they were."""
    if row["verdict"] == "ok" and not row.get("incomplete"):
        yield from {"spike": row["spike_ms"], "before": row["p99_ms"]}.items()
        seconds = {"completion": row["completion_s"], "hand-over": hand_over_s(row), "floor": row["floor_s"]}
        yield from ((figure, None if value is None else value * 1000) for figure, value in seconds.items())


def hand_over_s(row: SummaryRow) -> float | None:
    """Seconds from the last unit aligned to the last one in place: what travels, travels in that time."""
    phases = [row["phases"][name] for name in ("transfer", "install")]
    return None if row["completion_s"] is None or None in phases else float(sum(phases))


@app.command()
def bench(profile: ProfileOption = None) -> None:
    """The runs of the last executions of the batch file, and whether the aims are met; exit status 1 if one is not."""
    prepared = prepare(BATCH, ROOT / "notebooks")
    with open_services(profile, tell, needs=STORE) as endpoints:
        records = ended(prepared, Files(endpoints, PREFIX)).values()
        if not (run_ids := [run_id for record in records for run_id in record.verdicts]):
            raise KeyshiftError(f"no run of batch {prepared.batch.name} is stored: `make bench-strategies` makes them")
        manifests = ResultStore(endpoints).get_manifests(run_ids)
    rows = [manifest.summary.model_dump(mode="json") for manifest in manifests if manifest.summary]
    found = aims(rows)
    last = max(manifest.finished_at for manifest in manifests)
    tell(f"{len(rows)} runs, the last of which ended at {last:%Y-%m-%d %H:%M} UTC")
    typer.echo(comparison_table(rows).fillna("-").to_string(index=False, float_format="{:.4g}".format))
    typer.echo("\n" + table(found))
    raise typer.Exit(int(any(each.met is False for each in found)))


if __name__ == "__main__":
    run_program(app, "bench.aims")
