"""Migrations on a cluster that is not at hand, with what the runs of the store say that things cost."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyshift.cli.options import Json, ProfileOption, print_rows
from keyshift.folders import is_there, require_folder
from keyshift.model.errors import BadInput
from keyshift.progress import tell
from keyshift.registry import named_values

if TYPE_CHECKING:
    from keyshift.forecast import Costs


def simulate(
    strategy: Annotated[
        list[str], typer.Option(help="A name from `keyshift strategies`; may be repeated.", show_default=True)
    ] = ["all_at_once", "matched", "fluid"],  # noqa: B006 - typer wants a list
    slots: Annotated[int, typer.Option(help="Slots before.")] = 1000,
    to_slots: Annotated[int, typer.Option(help="Slots after.")] = 1100,
    state: Annotated[str, typer.Option(help="All state: 10TB, 64GiB.")] = "10TB",
    rate: Annotated[float, typer.Option(help="Events per second offered.")] = 1e6,
    link: Annotated[str, typer.Option(help="Of a host, each way: 10Gbit, 1.25GB.")] = "10Gbit",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Of the cluster (host_slots, cores, …) or the strategies."),
    ] = [],  # noqa: B006 - typer wants a list
    costs: Annotated[
        Path | None,
        typer.Option(
            help="A file with costs that were found before; if it is not there, they are found and kept in it."
        ),
    ] = None,
    profile: ProfileOption = None,
    as_json: Json = False,
) -> None:
    """What migrations would cost on a cluster; times come from the runs of the store (docs/simulator.md)."""
    from keyshift.forecast.simulation import questions, simulate

    given = named_values(settings)
    if "strategy" in given:
        raise BadInput(f"--set strategy={given['strategy']}: use --strategy, as often as there are strategies")
    common = {"slots": slots, "to_slots": to_slots, "state": state, "rate": rate, "link": link} | given
    points = {name: {"strategy": name} for name in strategy}
    questions(points, common)  # before anything is started
    if costs and not is_there("--costs", costs):  # then they are kept in it
        require_folder("--costs", costs)
    table = simulate(_costs(costs, profile), points, common)
    rows = [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
    print_rows(rows if as_json else [_row(row) for row in rows], as_json)


def _costs(file: Path | None, profile: str | None) -> "Costs":
    from keyshift.analysis.plots.simulated import simulation_doubts
    from keyshift.forecast import Costs
    from keyshift.forecast.calibration import calibrate, usable
    from keyshift.studies.stored_runs import open_store
    from keyshift.workloads.files import new_file

    if file and file.exists():
        try:
            return Costs.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, BadInput) as error:
            raise BadInput(f"costs = {str(file)!r}: {error}") from None
    with open_store(profile, tell) as store:
        found = calibrate(usable(store))
    for line in simulation_doubts(found.validation):
        tell(line)
    if file:
        with new_file(f"costs = {str(file)!r}", file) as out:
            out.write(json.dumps(found.costs.to_json()).encode())
    return found.costs


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """What a person reads of a row, with units."""
    return {
        "strategy": row["point"],
        "steps": row["steps"],
        "completion (s)": row["completion_s"],
        "floor (s)": row["floor_s"],
        "× floor": row["completion_s"] / row["floor_s"] if row["floor_s"] else None,
        "P99 spike (ms)": row["spike_ms"],
        "P99 before (ms)": row["p99_ms"],
        "longest wait (s)": row["longest_s"],
        "moved (GB)": row["bytes_moved"] / 1e9,
        "copied before (GB)": row["bytes_copied"] / 1e9,
        "had to move (GB)": row["bytes_minimum"] / 1e9,
    }
