"""What things cost, from measured runs: medians and least squares over the steps of their migrations."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.forecast.model import LEVELS, Costs, Floats
from keyshift.model.errors import BadInput

HANDED = ["handover_s", "stream_s", "unit_s", "byte_s"]
LEAST_S = 1e-4  # what takes less is taken to take so long
MOMENTS = ["switched_s", "aligned_s", "installed_s", "drained_s"]
IN_A_SECOND = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}  # of each unit
SIZES = 1.5  # times as much state as in another restart tells what state costs


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run, as far as costs follow from it. ``migration``: its table (docs/results.md)."""

    restarts: bool  # the strategy stops the query
    copies_first: bool  # its first step waits for copies
    routers: int
    frame_s: float
    rate: float
    slots: int  # tasks of the stage
    owners: tuple[int, int]  # slots that own state, before the migration and behind it
    rows_per_s: float  # into all of them, before the migration
    cpus: int  # of the machine
    event_s: float  # that an event takes of its slot
    event_cpu_s: float  # of that, what takes a core
    cores: float  # that the job's Python workers took before the migration; NaN if nobody looked
    latency_ms: Floats  # before the migration, quantiles at ``LEVELS``
    migration: pd.DataFrame

    @cached_property
    def typical(self) -> dict[str, float]:
        """Medians over the steps, when it switched first (NaN behind copies), and how many slots prepared that.

        What is handed over is what the model takes it to be: the streams, units and bytes of all slots by the cores, or
        half of those of the slot that gives and takes most. ``ack_s``: how many acknowledgements come before the next
        step.
        """
        known = self.migration.dropna(subset=MOMENTS).assign(unit_s=1.0)
        known["byte_s"] = known["bytes"]
        known["stream_s"] = (~known.duplicated(["step", "source", "destination"])).astype(float)
        steps = known.groupby("step")[MOMENTS].max()
        sides = pd.concat([known.assign(slot=known[side], side=side) for side in ("source", "destination")])
        work, of_slots = known.groupby("step")[HANDED[1:]].sum(), sides.groupby(["step", "slot"])[HANDED[1:]].sum()
        busiest = of_slots.groupby("step").max() / 2
        handed = (work / self.cpus).where(work / self.cpus > busiest, busiest)
        ends = sides.drop_duplicates(["step", "slot", "side"]).groupby("step").size()
        slots = sides.groupby("step")["slot"].nunique()
        of_steps = {
            "notice": steps["aligned_s"] - steps["switched_s"] - self.frame_s * (1 - 0.5 / self.routers),
            "took": steps["installed_s"] - steps["aligned_s"],
            "gap": steps["switched_s"].shift(-1) - steps["drained_s"],
            "ack_s": ends + slots.shift(-1),
        }
        every = [*of_steps.items(), *handed.items()]
        medians = {str(name): float(each.dropna().median()) if each.notna().any() else nan for name, each in every}
        first = nan if self.copies_first else float(steps["switched_s"].iloc[0])
        return medians | {"first": first, "prepared": float(slots.iloc[0]), "handover_s": 1.0}


@dataclass(frozen=True)
class Fit:
    """Costs, in a ``table`` too: for each its value, unit, what it is from, and how far off that typically is (%)."""

    costs: Costs
    table: pd.DataFrame


def fit(runs: Sequence[MeasuredRun]) -> Fit:
    """The costs that explain ``runs`` best: each run counts once, with the medians over its steps.

    What depends on something else (how many answer, what is handed over, what is stored) is the least squares of the
    relative error, none below 0; the others are medians over runs. The wait for a frame is taken out: where routers
    take turns, the last of them switches on average after a frame less half a turn. Raises BadInput unless a run has
    several steps, state takes some time, and of a run is known what its Python workers took.
    """
    live = [run.typical for run in runs if not run.restarts and len(run.migration)]
    steps = pd.DataFrame(live, columns=["first", "prepared", "notice", "took", "gap", "ack_s", *HANDED])
    several = steps.dropna(subset="gap")
    if several.empty:
        none = f"none of {len(runs)} runs has several steps" if runs else "no run counts (docs/simulator.md)"
        raise BadInput(
            f"calibrate: {none}; measure one of fluid, or all that "
            "notebooks/compare/04_simulate_clusters.ipynb measures"
        )
    table = _CostTable()
    notify_s = table.median("notify_s", steps["notice"], "runs")
    answered = several[["ack_s"]].assign(answer_s=1.0)
    ack_s, answer_s = table.least_squares(answered, several["gap"], "runs of several steps")
    handover_s, stream_s, unit_s, byte_s = table.least_squares(steps[HANDED], steps["took"], "runs", "byte_s")
    restart_s, stored_byte_s = _restarts([run for run in runs if run.restarts], table)
    rows = pd.Series([(run.cores - run.rate * run.event_cpu_s) / run.rows_per_s for run in runs])
    if rows.isna().all():
        raise BadInput(
            f"calibrate: of none of {len(runs)} runs is known what its Python workers took before the migration; "
            "measure runs on this machine"
        )
    costs = Costs(
        request_s=table.median("request_s", steps["first"] - notify_s - answer_s - ack_s * steps["prepared"], "runs"),
        notify_s=notify_s,
        answer_s=answer_s,
        ack_s=ack_s,
        handover_s=handover_s,
        stream_s=stream_s,
        unit_s=unit_s,
        byte_s=byte_s,
        restart_s=restart_s,
        stored_byte_s=stored_byte_s,
        event_s=table.median("event_s", pd.Series([run.event_s for run in runs]), "computations without a job"),
        row_s=table.median("row_s", rows, "runs"),
        before_ms=tuple(np.median([run.latency_ms - 1000 * run.frame_s * LEVELS for run in runs], axis=0).tolist()),
    )
    return Fit(costs, table.frame())


def non_negative(columns: npt.NDArray[Any], values: npt.NDArray[Any], positive: int | None = None) -> npt.NDArray[Any]:
    """Factors of ``columns``, none below 0, that give ``values`` with the least squared error. Columns are few.

    ``positive``: the column whose factor must not be 0 either; if that cannot be, all are 0.
    """
    factors, least = np.zeros(columns.shape[1]), inf
    for kept in product((False, True), repeat=len(factors)):
        found = np.zeros(len(factors))
        found[list(kept)] = np.linalg.lstsq(columns[:, kept], values, rcond=None)[0]
        error = float(np.sum((columns @ found - values) ** 2))
        if (positive is None or found[positive] > 0) and found.min() >= 0 and error < least:
            factors, least = found, error
    return factors


class _CostTable:
    """What is found, and from what."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def frame(self) -> pd.DataFrame:
        """The table of a ``Fit``."""
        return pd.DataFrame(self._rows).set_index("what")

    def median(self, name: str, values: "pd.Series[float]", of: str) -> float:
        """Find a cost as the median of the values that are known, not below 0; 0 if none is."""
        known = values.dropna()
        middle = max(float(known.median()), 0.0) if len(known) else 0.0
        self._add(name, middle, f"{len(known)} {of}", float((known - middle).abs().median()) / (middle or nan))
        return middle

    def least_squares(self, parts: pd.DataFrame, times: "pd.Series[float]", of: str, positive: str = "") -> list[float]:
        """Factors of the columns of ``parts``, none below 0, that give ``times`` with the least relative error.

        ``positive``: the column whose factor must not be 0 either, as it will be if the others explain the noise.
        """
        columns, took = parts.to_numpy("float64"), times.clip(lower=LEAST_S).to_numpy("float64")
        needed = [*parts.columns].index(positive) if positive else None
        factors = non_negative(columns / took[:, None], np.ones(len(took)), needed)
        for name, factor in zip(parts.columns, factors, strict=True):
            self._add(name, factor, f"{len(took)} {of}", float(np.median(np.abs(columns @ factors / took - 1))))
        return [float(factor) for factor in factors]

    def _add(self, name: str, value: float, of: str, off: float) -> None:
        [cost] = (field.metadata for field in fields(Costs) if field.name == name)
        shown = {"what": cost["meaning"], "value": value * IN_A_SECOND[cost["unit"]], "unit": cost["unit"]}
        self._rows.append(shown | {"from": of, "off by (%)": 100 * off})


def _restarts(runs: Sequence[MeasuredRun], table: _CostTable) -> list[float]:
    """Fit what a restart takes, and each byte of it; NaN unless their state is of different sizes."""
    sizes = pd.Series([float(run.migration["bytes"].sum()) for run in runs], dtype="float64")
    if len(runs) < 2 or sizes.max() < SIZES * max(sizes.min(), 1.0):
        return [nan, nan]
    cores = pd.Series([2 / sum(1 / min(run.cpus, owners) for owners in run.owners) for run in runs])
    took = pd.Series([run.migration["installed_s"].max() - run.migration["switched_s"].min() for run in runs])
    parts = pd.DataFrame({"restart_s": np.ones(len(runs)), "stored_byte_s": sizes / cores})
    return table.least_squares(parts, took, "restarts")
