"""What there is to choose from, and the plans that come of it. Needs no service."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from keyshift.cli.options import STRATEGY, Json, StrategyOption, print_rows
from keyshift.registry import named_values


def strategies(as_json: Json = False) -> None:
    """Ways to move state."""
    from keyshift.planner import settings
    from keyshift.planner import strategies as known

    rows = []
    for name, entry in known.items():
        point = settings(entry) | {"by_migration": entry.by_migration} if as_json else {}
        rows.append({"strategy": name, "what": entry.summary, "source": entry.source} | point)
    print_rows(rows, as_json)


def plan(
    strategy: StrategyOption = STRATEGY,
    groups: Annotated[int, typer.Option(min=1, max=1 << 20, help="Number of key groups.")] = 128,
    before: Annotated[int, typer.Option("--from", metavar="SLOTS", help="Slots before.")] = 2,
    after: Annotated[int, typer.Option("--to", metavar="SLOTS", help="Slots after.")] = 4,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the strategy; may be repeated."),
    ] = [],  # noqa: B006 - typer wants a list
    skew: Annotated[
        float,
        typer.Option(
            help="Zipf exponent over key groups: gives each group its heat, since there is no job to measure."
        ),
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="For orders that draw.")] = 0,
    migration: Annotated[int, typer.Option(min=0, help="Of the n-th migration of the job, from 0.")] = 0,
    why: Annotated[bool, typer.Option("--why", help="The decisions and their reasons instead of the steps.")] = False,
) -> None:
    """The steps of a migration, one JSON object per line. Needs no service."""
    from dataclasses import asdict

    from keyshift.model.keys import Assignment
    from keyshift.planner import change, in_units, make_plan, require_units, strategies, targets

    chosen = change(strategies.get(strategy), named_values(overrides)).of_migration(migration)
    require_units(chosen, groups)
    here = Assignment.contiguous(groups, before)
    heat = [mass / chosen.bins for mass in targets.zipf_mass(groups, skew) for _ in range(chosen.bins)]
    made = make_plan(chosen, in_units(chosen, here), in_units(chosen, targets.scale(here, after)), heat, seed)
    if why:
        for decision in made.decisions:
            typer.echo(json.dumps(asdict(decision)))
    else:
        for number, step in enumerate(made.steps):
            typer.echo(json.dumps({"step": number, "moves": [move._asdict() for move in step.moves]}))


def workloads(as_json: Json = False) -> None:
    """What jobs compute, and the CPU of an event, measured with defaults; with --json, their parameters too."""
    from keyshift.forecast.cost import cpu_us_per_event
    from keyshift.workloads import parameters
    from keyshift.workloads import workloads as known

    rows = []
    for name, workload in known.items():
        cost = round(cpu_us_per_event(workload()), 1)
        row = {"workload": name, "what": workload.summary, "cpu_us_per_event": cost}
        rows.append(row | (_declared(workload, parameters(workload)) if as_json else {}))
    print_rows(rows, as_json)


def backends(as_json: Json = False) -> None:
    """Where state lives; with --json, the settings too."""
    from keyshift.state import backends as known

    rows = []
    for name, backend in known.items():
        fields = _declared(backend.settings, backend.settings.model_fields) if as_json else {}
        rows.append({"backend": name, "what": backend.summary} | fields)
    print_rows(rows, as_json)


def _declared(model: Any, names: Iterable[str]) -> dict[str, Any]:
    """Type, default, meaning and bounds of these fields of a model."""
    declared = model.model_json_schema()["properties"]
    return {"parameters": {name: declared[name] for name in names}}


def orderings(as_json: Json = False) -> None:
    """How replicas of a job agree on an order."""
    from keyshift.ordering import orderings as known

    rows = []
    for name, entry in known.items():
        traits = {"agrees": entry.agrees, "leads": entry.leads} if as_json else {}
        rows.append({"ordering": name, "what": entry.summary, "source": entry.source} | traits)
    print_rows(rows, as_json)


def parameters(as_json: Json = False) -> None:
    """What `--set` takes, with defaults and units; without a default: as in the preset of the strategy."""
    from keyshift.experiment.parameters import known_parameters

    rows = [
        {"parameter": name, "of": owner, "default": field.default, "what": field.description}
        for owner, name, field in known_parameters()
    ]
    print_rows(rows, as_json)
