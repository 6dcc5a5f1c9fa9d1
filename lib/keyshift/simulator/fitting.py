"""What things cost, from measured runs: medians and least squares over the steps of their migrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from keyshift.errors import BadInput
from keyshift.simulator.model import LEVELS, Costs, Floats

MOMENTS = ["switched_s", "aligned_s", "installed_s", "drained_s"]
SIZES = 1.5  # times as much state as in another restart tells what state costs


@dataclass(frozen=True, eq=False)
class Measured:
    """A run, as far as costs follow from it. ``migration``: its table (docs/results.md)."""

    restarts: bool  # the strategy stops the query
    routers: int
    frame_s: float
    rate: float
    slots: int  # tasks of the stage
    cpus: int  # of the machine
    event_s: float  # CPU of an event's computation
    cores: float  # that the job's Python workers took before the migration; NaN if nobody looked
    latency_ms: Floats  # before the migration, quantiles at ``LEVELS``
    migration: pd.DataFrame


@dataclass(frozen=True)
class Fit:
    """``table``: a row for each cost, with its value, what it is from, and how far off it is there, as a share."""

    costs: Costs
    table: pd.DataFrame


def fit(runs: Sequence[Measured]) -> Fit:
    """The costs that explain ``runs`` best.

    Costs of a step are medians over runs of the medians over their steps. What a step takes to hand over, with so many
    units and bytes, and a restart with so many bytes, are least squares of the relative error, none below 0; each run
    counts alike. The wait for a frame is taken out: where routers take turns, the last of them switches on average
    after a frame less half a turn. Raises BadInput unless a run has several steps, and one moved some state.
    """
    live = [_steps(run) for run in runs if not run.restarts and len(run.migration)]
    several = [steps for steps in live if len(steps) > 1]
    if not several:
        raise BadInput(f"calibrate: of {len(runs)} runs none has several steps; measure one of fluid, too")
    answers = [_gaps(steps) for steps in several]
    notices = [steps["aligned_s"] - steps["switched_s"] - steps["frame_s"] for steps in live]
    starts = [steps["switched_s"].iloc[[0]] for steps in live]
    rows = [((run.cores - run.rate * run.event_s) / run.slots * run.frame_s / run.routers) for run in runs]
    said: list[dict[str, Any]] = []

    def median(name: str, values: Sequence[Any], of: str) -> float:
        middles = pd.Series([float(np.median(each)) for each in values]).dropna()
        middle = max(float(middles.median()), 0.0) if len(middles) else 0.0
        error = float((middles - middle).abs().median()) / middle if middle else nan
        said.append({"cost": name, "value": middle, "unit": "s", "from": f"{len(middles)} {of}", "error": error})
        return middle

    notify_s = median("notify_s", notices, "runs")
    answer_s = median("answer_s", answers, "runs of several steps")
    request_s = median("request_s", [start - notify_s - answer_s for start in starts], "runs")
    handed = pd.concat(live)
    took = (handed["installed_s"] - handed["aligned_s"]).clip(lower=1e-4).to_numpy()
    parts = handed[["one", "units", "bytes"]].to_numpy("float64")
    (handover_s, unit_s, byte_s), error = _least_squares(parts, took, handed["weight"].to_numpy())
    for name, value, unit in (
        ("handover_s", handover_s, "s"),
        ("unit_s", unit_s, "core s"),
        ("byte_s", byte_s, "core s"),
    ):
        said.append({"cost": name, "value": value, "unit": unit, "from": f"{len(handed)} steps", "error": error})
    restart_s, stored_byte_s = _restarts([run for run in runs if run.restarts], said)
    costs = Costs(
        request_s=request_s,
        notify_s=notify_s,
        answer_s=answer_s,
        handover_s=handover_s,
        unit_s=unit_s,
        byte_s=byte_s,
        restart_s=restart_s,
        stored_byte_s=stored_byte_s,
        event_s=median("event_s", [run.event_s for run in runs], "measurements of the computation alone"),
        row_s=median("row_s", rows, "runs"),
        before_ms=tuple(np.median([run.latency_ms - 1000 * run.frame_s * LEVELS for run in runs], axis=0).tolist()),
    )
    return Fit(costs, pd.DataFrame(said).set_index("cost"))


def _steps(run: Measured) -> pd.DataFrame:
    """A row for each step: when it came how far, the wait for a frame, and what the model takes its work to be: the
    units and bytes of all slots by the cores, or half of those of the slot that gives and takes most.
    """
    known = run.migration.dropna(subset=MOMENTS)
    steps = known.groupby("step")[MOMENTS].max()
    out = known.assign(units=1.0)
    sides = pd.concat([out.assign(slot=out[side]) for side in ("source", "destination")])
    for what in ("units", "bytes"):
        busiest = sides.groupby(["step", "slot"])[what].sum().groupby("step").max() / 2
        steps[what] = np.maximum(out.groupby("step")[what].sum() / run.cpus, busiest)
    return steps.assign(one=1.0, weight=1 / max(len(steps), 1), frame_s=run.frame_s * (1 - 0.5 / run.routers))


def _gaps(steps: pd.DataFrame) -> Floats:
    """From the end of each step to the switch of the next."""
    return np.asarray(steps["switched_s"].to_numpy()[1:] - steps["drained_s"].to_numpy()[:-1])


def _restarts(runs: Sequence[Measured], said: list[dict[str, Any]]) -> tuple[float, float]:
    """What a restart takes, and each byte of it; NaN unless their state is of different sizes."""
    tables = [run.migration for run in runs]
    sizes = np.array([float(table["bytes"].sum()) for table in tables])
    took = np.array([float(table["installed_s"].max() - table["switched_s"].min()) for table in tables])
    restart_s = byte_s = error = nan
    if len(runs) > 1 and sizes.max() >= SIZES * max(sizes.min(), 1.0):
        cores = np.array([min(run.cpus, run.slots) for run in runs])
        (restart_s, byte_s), error = _least_squares(
            np.stack([np.ones(len(runs)), sizes / cores], 1), took, np.ones(len(runs))
        )
    for name, value, unit in (("restart_s", restart_s, "s"), ("stored_byte_s", byte_s, "core s")):
        said.append({"cost": name, "value": value, "unit": unit, "from": f"{len(runs)} restarts", "error": error})
    return restart_s, byte_s


def _least_squares(parts: Floats, took: Floats, weights: Floats) -> tuple[list[float], float]:
    """Factors of the columns of ``parts``, none below 0, that give ``took`` with the least relative error; and that."""
    scale = np.sqrt(weights) / took
    factors, kept = np.zeros(parts.shape[1]), list(range(parts.shape[1]))
    while kept:
        found = np.linalg.lstsq(parts[:, kept] * scale[:, None], took * scale, rcond=None)[0]
        if found.min() >= 0:
            factors[kept] = found
            break
        kept.pop(int(found.argmin()))
    return factors.tolist(), float(np.median(np.abs(parts @ factors / took - 1)))
