"""What plans would cost: a model of their steps in time, numbers and sentences from it. Nothing here is measured."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite

import pandas as pd

from keyshift.analysis.conclusions import digits, enumerated
from keyshift.analysis.metrics import need
from keyshift.analysis.tables import MIB
from keyshift.model.errors import BadInput
from keyshift.model.keys import Move, Step

COLUMNS = ("step", "unit", "source", "destination", "bytes", "gate", "asked_for", "begin_s", "end_s", "step_begin_s")


@dataclass(frozen=True, slots=True)
class CostModel:
    """A step takes ``step_s`` to agree on, then as long as its busiest destination needs to get all its bytes.

    Raises BadInput for a number that is not finite, is negative, or (bandwidth) is 0.
    """

    step_s: float  # preparing, switching, aligning and completing a step, whatever its size
    bytes_per_s: float  # into one destination
    restart_s: float  # instead of step_s, if the query is stopped and started anew
    dirty: float  # of a unit whose copy is at its destination: the part that has changed since

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isfinite(value) and value >= 0):
                raise BadInput(f"{field.name} = {value}: must be a finite number, at least 0")
        if self.bytes_per_s == 0:
            raise BadInput("bytes_per_s = 0: state would never arrive; give the bandwidth into one slot, e.g. 3e8")
        if self.dirty > 1:
            raise BadInput(f"dirty = {self.dirty}: must be a fraction, at most 1")


def modelled(
    steps: Sequence[Step],
    unit_bytes: Sequence[float],
    model: CostModel,
    copies: Iterable[Move] = (),
    whole: bool = False,
) -> pd.DataFrame:
    """A plan in time, by ``model``: one row per move, steps one after the other, from 0 on.

    ``unit_bytes``: state of each unit. ``copies``: what was copied before (unit, owner, holder); if the unit moves to
    the holder only its dirty part has to travel, or (``whole``) all of it. Where state moves only when a record asks
    for it (no background), the step ends with the change of owner, and ``asked_for`` is true.
    Columns: step, unit, source, destination, bytes (that travel with the step), gate, asked_for (bool), begin_s and
    end_s (of the unit's way; into one destination one after the other), step_begin_s.
    """
    held = {(copy.unit, copy.destination) for copy in copies}
    rows = []
    begin = 0.0
    for number, step in enumerate(steps):
        asked_for = not step.mode.background
        agreed = begin + (model.restart_s if step.mode.gate == "query" else model.step_s)
        free = dict.fromkeys((move.destination for move in step.moves), agreed)  # when each destination can take more
        for move in step.moves:
            part = model.dirty if (move.unit, move.destination) in held and not whole else 1.0
            size = 0.0 if asked_for else unit_bytes[move.unit] * part
            start = free[move.destination]
            free[move.destination] = end = start + size / model.bytes_per_s
            what = (number, move.unit, move.source, move.destination, size, step.mode.gate, asked_for)
            rows.append((*what, start, end, begin))
        begin = max(free.values(), default=agreed)
    kinds = dict.fromkeys(("bytes", "begin_s", "end_s", "step_begin_s"), "float64") | {"asked_for": "bool"}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(kinds)  # a plan without moves has these types too


def plan_table(plans: Mapping[str, pd.DataFrame], copied_bytes: Mapping[str, float] | None = None) -> pd.DataFrame:
    """One row per plan of ``modelled``, by name: steps, units, bytes, and the modelled time.

    *In flight at most*: the largest step's bytes, whose records wait and whose state both slots may hold.
    ``copied_bytes``: what was copied before, by name; without it that column is left out.
    """
    rows = []
    for name, plan in plans.items():
        need(plan, COLUMNS, f"plan_table, {name}")
        by_step = plan.groupby("step")
        rows.append(
            {
                "plan": name,
                "steps": int(plan["step"].nunique()),
                "moves": len(plan),
                "largest step (units)": int(by_step.size().max()) if len(plan) else 0,
                "in flight at most (MiB)": float(by_step["bytes"].sum().max()) / MIB if len(plan) else 0.0,
                "moved (MiB)": float(plan["bytes"].sum()) / MIB,
                "modelled time (s)": float(plan["end_s"].max()) if len(plan) else 0.0,
            }
        )
        if copied_bytes is not None:
            rows[-1]["copied before (MiB)"] = copied_bytes[name] / MIB
    return pd.DataFrame(rows).set_index("plan")


def plan_sentences(plans: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say which plans are alike, what smaller steps buy and cost by the model, and who needs fewest steps."""
    plans = {name: plan for name, plan in plans.items() if len(plan)}
    if not plans:
        return ["Nothing has to move."]
    said = _alike(plans)
    table = plan_table(plans)
    flowing = [name for name, plan in plans.items() if (plan["gate"] == "none").all()]
    sent = table.loc[flowing].query("`moved (MiB)` > 0")
    small, large = sent["in flight at most (MiB)"].min(), sent["in flight at most (MiB)"].max()
    if len(sent) and small < large:
        finest = sent[sent["in flight at most (MiB)"] == small].sort_values("modelled time (s)").iloc[0]
        coarsest = sent[sent["in flight at most (MiB)"] == large].sort_values("modelled time (s)").iloc[0]
        said.append(
            f"{finest.name} has at most {digits(small)} MiB in flight, {coarsest.name} {digits(large)} MiB: "
            f"{digits(large / small)} times as much. For that it makes {finest['steps']:.0f} steps instead of "
            f"{coarsest['steps']:.0f} and takes, by the model, {digits(finest['modelled time (s)'])} s instead of "
            f"{digits(coarsest['modelled time (s)'])} s."
        )
    said += _fewest_steps(plans)
    asked = [name for name, plan in plans.items() if plan["asked_for"].all()]
    if asked:
        said.append(f"{enumerated(asked)}: only owners change with the plan; state comes when a record asks for it.")
    return said


def _alike(plans: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say which plans make the same moves in the same steps."""
    alike: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for name, plan in plans.items():
        moves = tuple(sorted(zip(plan["step"].tolist(), plan["unit"].tolist(), strict=True)))
        alike.setdefault(moves, []).append(name)
    return [f"{enumerated(names)} make the same moves in the same steps." for names in alike.values() if len(names) > 1]


def _fewest_steps(plans: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say who has as few steps as possible, of the plans in which a slot gives and takes at most one unit per step."""
    made = []
    for name, plan in plans.items():
        most = max(plan.groupby(["step", side]).size().max() for side in ("source", "destination"))
        fewest = max(plan[side].value_counts().max() for side in ("source", "destination"))
        if most == 1 < fewest:
            steps = plan["step"].nunique()
            made.append(f"{name} makes {steps}, " + ("the fewest" if steps == fewest else f"the fewest are {fewest}"))
    if not made:
        return []
    return [
        "Where a slot gives and takes at most one unit per step, there are at least as many steps as the busiest slot "
        f"has units to give or to take: {'; '.join(made)}."
    ]
