"""What things cost, from measured runs: medians and least squares over the steps of their migrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd

from keyshift.errors import BadInput
from keyshift.simulator.model import LEVELS, Costs, Floats

MOMENTS = ["switched_s", "aligned_s", "installed_s", "drained_s"]
SHOWN = {  # what each cost is, and a unit in which it reads well
    "request_s": ("from the request to the first published step", "ms", 1e3),
    "notify_s": ("from what is published to whoever acts by it", "ms", 1e3),
    "answer_s": ("from a slot's end of a step to a coordinator that knows", "ms", 1e3),
    "handover_s": ("hand-over of a step, whatever moves", "ms", 1e3),
    "unit_s": ("for each unit, of both sides' cores", "ms", 1e3),
    "byte_s": ("for each byte, of both sides' cores", "ns", 1e9),
    "restart_s": ("restart of the query, whatever its state", "s", 1.0),
    "stored_byte_s": ("for each byte written to the store and read, of all cores", "ns", 1e9),
    "event_s": ("for each event, of its slot", "µs", 1e6),
    "row_s": ("for each row, of its slot", "µs", 1e6),
}
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
    """``table``: a row for each cost, with value and unit, what it is from, and how far off that typically is (%)."""

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
        raise BadInput(
            f"calibrate: none of {len(runs)} runs has several steps; measure one of fluid, too, or all that "
            "notebooks/compare/04_simulate_clusters.ipynb measures"
        )
    table = _Table()
    notices = [steps["aligned_s"] - steps["switched_s"] - steps["frame_s"] for steps in live]
    notify_s = table.median("notify_s", notices, "runs")
    answer_s = table.median("answer_s", [_gaps(steps) for steps in several], "runs of several steps")
    starts = [steps["switched_s"].iloc[0] - notify_s - answer_s for steps in live]
    handed, parts = pd.concat(live), ["handover_s", "unit_s", "byte_s"]
    took = (handed["installed_s"] - handed["aligned_s"]).clip(lower=1e-4)
    handover_s, unit_s, byte_s = table.least_squares(handed[parts], took, handed["weight"], "steps")
    restart_s, stored_byte_s = _restarts([run for run in runs if run.restarts], table)
    rows = [(run.cores - run.rate * run.event_s) * run.frame_s / run.routers / run.slots for run in runs]
    costs = Costs(
        request_s=table.median("request_s", starts, "runs"),
        notify_s=notify_s,
        answer_s=answer_s,
        handover_s=handover_s,
        unit_s=unit_s,
        byte_s=byte_s,
        restart_s=restart_s,
        stored_byte_s=stored_byte_s,
        event_s=table.median("event_s", [run.event_s for run in runs], "computations without a job"),
        row_s=table.median("row_s", rows, "runs"),
        before_ms=tuple(np.median([run.latency_ms - 1000 * run.frame_s * LEVELS for run in runs], axis=0).tolist()),
    )
    return Fit(costs, table.frame())


class _Table:
    """What is found, and from what."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def frame(self) -> pd.DataFrame:
        """See ``Fit``."""
        return pd.DataFrame(self._rows).set_index("what")

    def median(self, name: str, values: Sequence[Any], of: str) -> float:
        """The median of the medians of ``values``, not below 0; 0 if nobody knows."""
        middles = pd.Series([np.median(each) for each in values], dtype="float64").dropna()
        middle = max(float(middles.median()), 0.0) if len(middles) else 0.0
        self._add(name, middle, f"{len(middles)} {of}", float((middles - middle).abs().median()) / (middle or nan))
        return middle

    def least_squares(self, parts: pd.DataFrame, took: "pd.Series[float]", weights: Any, of: str) -> list[float]:
        """Factors of the columns of ``parts``, none below 0, that give ``took`` with the least relative error."""
        columns, scale = parts.to_numpy("float64"), (np.sqrt(weights) / took).to_numpy("float64")
        factors, least = np.zeros(columns.shape[1]), inf
        for kept in product((False, True), repeat=len(factors)):  # few: the best of those that are not negative
            found = np.zeros(len(factors))
            found[list(kept)] = np.linalg.lstsq(columns[:, kept] * scale[:, None], took * scale, rcond=None)[0]
            error = float(np.sum((columns @ found * scale - took * scale) ** 2))
            if found.min() >= 0 and error < least:
                factors, least = found, error
        for name, factor in zip(parts.columns, factors, strict=True):
            self._add(name, factor, f"{len(took)} {of}", float(np.median(np.abs(columns @ factors / took - 1))))
        return [float(factor) for factor in factors]

    def _add(self, name: str, value: float, of: str, off: float) -> None:
        what, unit, factor = SHOWN[name]
        self._rows.append({"what": what, "value": value * factor, "unit": unit, "from": of, "off by (%)": 100 * off})


def _steps(run: Measured) -> pd.DataFrame:
    """A row for each step: when it came how far, the wait for a frame, and what the model takes its work to be: the
    units and bytes of all slots by the cores, or half of those of the slot that gives and takes most.
    """
    known = run.migration.dropna(subset=MOMENTS)
    steps = known.groupby("step")[MOMENTS].max()
    out = known.assign(units=1.0)
    sides = pd.concat([out.assign(slot=out[side]) for side in ("source", "destination")])
    for what, name in (("units", "unit_s"), ("bytes", "byte_s")):
        busiest = sides.groupby(["step", "slot"])[what].sum().groupby("step").max() / 2
        steps[name] = np.maximum(out.groupby("step")[what].sum() / run.cpus, busiest)
    return steps.assign(handover_s=1.0, weight=1 / max(len(steps), 1), frame_s=run.frame_s * (1 - 0.5 / run.routers))


def _gaps(steps: pd.DataFrame) -> Floats:
    """From the end of each step to the switch of the next."""
    return np.asarray(steps["switched_s"].to_numpy()[1:] - steps["drained_s"].to_numpy()[:-1])


def _restarts(runs: Sequence[Measured], table: _Table) -> list[float]:
    """What a restart takes, and each byte of it; NaN unless their state is of different sizes."""
    sizes = pd.Series([float(run.migration["bytes"].sum()) for run in runs], dtype="float64")
    if len(runs) < 2 or sizes.max() < SIZES * max(sizes.min(), 1.0):
        return [nan, nan]
    cores = pd.Series([min(run.cpus, run.slots) for run in runs])
    took = pd.Series([run.migration["installed_s"].max() - run.migration["switched_s"].min() for run in runs])
    parts = pd.DataFrame({"restart_s": np.ones(len(runs)), "stored_byte_s": sizes / cores})
    return table.least_squares(parts, took, np.ones(len(runs)), "restarts")
