"""Comparisons of runs as tables, computed from summary rows (``results.manifest.Summary``), or manifests, as dicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.analysis.metrics import PHASES, known
from keyshift.analysis.statistics import interval
from keyshift.model.errors import BadInput

SummaryRow = Mapping[str, Any]
RunTables = Mapping[str, pd.DataFrame]  # of a run, by name, as ``ResultStore.get_tables`` gives them
Measure = Callable[[SummaryRow], float | None]
NEEDED = {"run_id", "workload", "strategy", "verdict", "lost", "duplicated", "reordered", "wrong", "parameters"}
# Parameters in which repetitions of one point may differ: they are another number, or say who chose the load.
REPETITION = {"seed", "repetition", "repetitions", "auto"}
MIB = 2**20
TIE = 1.1  # what is closer is called equal
BY_KEY = ("access", "remote")  # transfers with which a unit moves without its keys
SHARED = ("remote", "hybrid")  # backends that all slots reach: a unit moves by its name
# What these presets set of transfer and gate, as a run says only what was changed of its preset.
_OF_PRESETS = {"lazy": {"transfer": "access"}, "hybrid": {"transfer": "remote"}, "stop_restart": {"gate": "query"}}


def correct(rows: Iterable[SummaryRow]) -> list[SummaryRow]:
    """The rows of runs whose verdict is ok."""
    return [row for row in rows if row["verdict"] == "ok"]


def owners_only(row: SummaryRow) -> bool:
    """Whether a migration of the run changes who owns a unit, and no more: its state follows later, or stays.

    From the parameters of the run. Of a strategy of one's own they say no more than what was changed of it.
    """
    given = row["parameters"]
    own = _OF_PRESETS.get(given.get("strategy", row["strategy"]), {})
    transfer, gate = (given.get(name) or own.get(name) for name in ("transfer", "gate"))
    return gate != "query" and (transfer in BY_KEY or given.get("backend") in SHARED)  # a savepoint has all state


def moves(row: SummaryRow) -> bool:
    """Whether state was to move in the run, and there was something to move.

    If a move was requested and no step begun, all state was where it should be; or each was rolled back before anything
    had switched. An autoscaler, or a script, asks for a move or not: what its job does without one is compared.
    """
    trigger = row["parameters"].get("trigger")
    return trigger in ("auto", "script") or (trigger != "none" and row.get("steps") != 0 and not stood_still(row))


def stood_still(row: SummaryRow) -> bool:
    """Whether nothing is known to have moved: no unit came, and no step has switched, whatever a death made of it.

    Of several steps, of which one was rolled back, the phase does not tell; but behind a switch bytes are sent, or they
    are not known.
    """
    switched = (row.get("phases") or {}).get("prepare", 0.0) is not None or row.get("bytes_moved") != 0
    return row.get("units_moved") == 0 and not switched


def is_hit(row: SummaryRow) -> bool:
    """Whether something was to happen in the run, from which it had to recover."""
    return moves(row) or bool(row["parameters"].get("fault"))


def copied_before(rows: Iterable[SummaryRow]) -> bool:
    """Whether any of the runs has sent copies of state before its migration, which then had less to send."""
    return any(measured(rows, _field("bytes_copied")))


def why_early(rows: Sequence[SummaryRow]) -> str:
    """Say why a point with these runs may complete early without being fast; nothing if all state moves meanwhile."""
    if rows and owners_only(rows[0]):
        return "the change of owner only"
    return "copies were made before" if copied_before(rows) else ""


def phase_name(phase: str) -> str:
    """The name of a phase as a measure."""
    return f"{phase.replace('_', ' ')} (s)"


def _phase(name: str, row: SummaryRow) -> float | None:
    return (row.get("phases") or {}).get(name)


def measured(rows: Iterable[SummaryRow], measure: Measure) -> list[float]:
    """The measure of each run in which it is known."""
    found = (measure(row) for row in rows)
    return [float(value) for value in found if value is not None and isfinite(value)]


def middle(values: Iterable[float]) -> float:
    """The median of those that are known; NaN if none is."""
    finite = [float(value) for value in values if isfinite(value)]
    return median(finite) if finite else nan


UNDISTURBED = "P99 before, undisturbed (ms)"
OF_A_COMPARISON: dict[str, Measure] = {  # by name, with the unit
    "P50 before (ms)": lambda row: row.get("p50_ms"),
    "P99 before (ms)": lambda row: row.get("p99_ms"),
    UNDISTURBED: lambda row: row.get("p99_undisturbed_ms"),
    "P99 spike (ms)": lambda row: row.get("spike_ms"),
    "P99 spike (× before)": lambda row: ratio(row, "spike_ms", "p99_ms"),
    "silence (ms)": lambda row: row.get("silence_ms"),
    "longest latency (ms)": lambda row: row.get("longest_ms"),
    "completion (s)": lambda row: row.get("completion_s"),
    "floor (s)": lambda row: row.get("floor_s"),
    "completion (× floor)": lambda row: ratio(row, "completion_s", "floor_s"),
    "recovery (s)": lambda row: row.get("recover_s"),
    "moved (MiB)": lambda row: _times(1 / MIB, row, "bytes_moved"),
    "copied before (MiB)": lambda row: _times(1 / MIB, row, "bytes_copied"),
    "had to move (MiB)": lambda row: _times(1 / MIB, row, "bytes_minimum"),
    "moved (× minimum)": lambda row: ratio(row, "bytes_moved", "bytes_minimum"),
    "peak memory (MiB)": lambda row: row.get("peak_rss_mib"),
}
MEASURES: dict[str, Measure] = OF_A_COMPARISON | {
    "offered (events/s)": lambda row: row.get("offered_per_s"),
    "sustained (events/s)": lambda row: row.get("sustained_per_s"),
    "backlog (events)": lambda row: row.get("backlog"),
    "processors busy before (%)": lambda row: _times(100, row, "cpu_busy"),
    "processors stolen before (%)": lambda row: _times(100, row, "cpu_steal"),
    "disturbed (s)": lambda row: row.get("disturbed_s"),
    **{phase_name(name): partial(_phase, name) for name in PHASES},
}
SPIKE = "P99 spike (ms)"
_COSTS = {SPIKE: "spike", "longest latency (ms)": "longest"}  # over completion, see ``tradeoffs``
# What a run knows of these may be too little, if its load ended before it was seen to recover.
UNTIL_RECOVERY = ("P99 spike (ms)", "P99 spike (× before)", "silence (ms)", "longest latency (ms)", "recovery (s)")
_WITH_INTERVAL = ("P99 spike (ms)", "silence (ms)", "completion (s)", "recovery (s)")
_OF_A_MOVE = (
    *("completion (s)", "floor (s)", "completion (× floor)"),
    *("moved (MiB)", "had to move (MiB)", "moved (× minimum)"),
)


@dataclass(frozen=True)
class Point:
    """Repetitions of one workload, strategy and set of parameters."""

    label: str  # the strategy, and the parameters in which points of that strategy differ
    parameters: dict[str, Any]  # those parameters
    rows: tuple[SummaryRow, ...]

    @property
    def bad(self) -> int:
        """How many runs have a bad verdict."""
        return sum(row["verdict"] != "ok" for row in self.rows)

    def values(self, measure: Measure) -> list[float]:
        """The measure of each run in which it is known; of runs that are not correct nothing is."""
        return measured(correct(self.rows), measure)

    def lacks(self, name: str) -> bool:
        """True if a correct run does not know the measure ``name`` of ``OF_A_COMPARISON``, though it concerns that run:
        the others alone would tell too little.
        """
        rows = [row for row in correct(self.rows) if _concerns(name, row)]
        return len(measured(rows, OF_A_COMPARISON[name])) < len(rows)

    @property
    def incomplete(self) -> bool:
        """Whether a correct run has left units where they were: with them, it might have been worse."""
        return any(row.get("incomplete") for row in correct(self.rows))

    @property
    def recovered(self) -> bool:
        """Whether every correct run was seen to recover that had to."""
        return not self.lacks("recovery (s)")

    def mean(self, measure: Measure) -> float | None:
        """The mean over the runs in which the measure is known; None if it is in none."""
        values = self.values(measure)
        return sum(values) / len(values) if values else None


def points(summaries: Sequence[SummaryRow]) -> dict[str, list[Point]]:
    """Summary rows as points by workload, in order of first appearance.

    Runs of a point differ in nothing but ``REPETITION``.
    Raises BadInput for a row that is not a summary with a verdict, as that of a run that died.
    """
    by_strategy: dict[tuple[str, str], list[SummaryRow]] = {}
    for row in summaries:
        if missing := NEEDED - set(row):
            raise BadInput(f"summary of run {row.get('run_id')!r}: no {', '.join(sorted(missing))}")
        if row["verdict"] not in ("ok", "bad"):
            raise BadInput(f"run {row['run_id']!r} has the verdict {row['verdict']!r}: leave out runs that did not end")
        by_strategy.setdefault((row["workload"], row["strategy"]), []).append(row)
    result: dict[str, list[Point]] = {}
    for (workload, strategy), rows in by_strategy.items():
        names = sorted({name for row in rows for name in row["parameters"]} - REPETITION)
        varying = [name for name in names if len({repr(row["parameters"].get(name)) for row in rows}) > 1]
        groups: dict[str, list[SummaryRow]] = {}
        for row in rows:
            groups.setdefault(repr([row["parameters"].get(name) for name in varying]), []).append(row)
        for group in groups.values():
            parameters = {name: group[0]["parameters"].get(name) for name in varying}
            text = ", ".join(f"{name}={value}" for name, value in parameters.items())
            label = f"{strategy} ({text})" if text else strategy
            result.setdefault(workload, []).append(Point(label, parameters, tuple(group)))
    return result


def comparison_table(summaries: Sequence[SummaryRow]) -> pd.DataFrame:
    """One row per workload, strategy and set of parameters: means over its correct runs, NaN for what one of those that
    it concerns does not know (``Point.lacks``).

    The headers carry the units. If a point was repeated, columns ``<measure> 95 %`` hold the confidence interval as
    text; measures that no run has are left out. A point of which any run is not correct has the verdict "bad".
    """
    every = [point for group in points(summaries).values() for point in group]
    repeated = any(len(point.rows) > 1 for point in every)
    shown = {
        name: measure for name, measure in OF_A_COMPARISON.items() if any(point.values(measure) for point in every)
    }
    rows: list[dict[str, Any]] = []
    for point in every:
        row = {name: point.rows[0][name] for name in ("workload", "strategy")} | point.parameters
        row |= {"verdict": _verdict(point), "runs": len(point.rows)}
        for name, measure in shown.items():
            values = [] if point.lacks(name) else point.values(measure)
            row[name] = sum(values) / len(values) if values else nan
            if repeated and name in _WITH_INTERVAL:
                row[f"{name} 95 %"] = interval_text(values)
        rows.append(row)
    parameters = dict.fromkeys(name for point in every for name in point.parameters)
    first = ["workload", "strategy", *parameters] if rows else []
    table = pd.DataFrame(rows)
    return table[[*first, *(name for name in table if name not in first)]]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> pd.DataFrame:
    """One row per thing that differs between two manifests, and per figure that either of them has.

    Columns: kind ("run", "parameter", "version", "machine", "figure"), name, one and other (the values; None: has
    none), ratio (of two figures: other ÷ one, NaN if either is not known or one is 0).
    """
    of_run = ("workload", "strategy", "status", "error")
    told = [("run", name, one.get(name), other.get(name)) for name in of_run]
    for kind, part in (("parameter", "parameters"), ("version", "versions"), ("machine", "machine")):
        names = sorted({*one[part], *other[part]} - set(of_run))  # parameters have some of them, too
        told += [(kind, name, one[part].get(name), other[part].get(name)) for name in names]
    rows = [(*each, nan) for each in told if each[2] != each[3]]
    for name, measure in MEASURES.items():
        left, right = (known(measure(run.get("summary") or {})) for run in (one, other))
        if left is not None or right is not None:
            rows.append(("figure", name, left, right, right / left if left and right is not None else nan))
    return pd.DataFrame(rows, columns=["kind", "name", "one", "other", "ratio"])


def cost_of(measure: str) -> str:
    """Return how the columns of ``measure`` in ``tradeoffs`` begin. Raises BadInput if it is none that has some."""
    if measure not in _COSTS:
        raise BadInput(f"measure = {measure!r}: over completion there are {' and '.join(_COSTS)}")
    return _COSTS[measure]


def tradeoffs(summaries: Sequence[SummaryRow], measure: str = SPIKE) -> pd.DataFrame:
    """Spike against completion: one row per point, of the runs of one workload, for ``plots.strategies.pareto``.

    Columns: label, strategy, runs, verdict ("ok" or "bad"), spike_ms and completion_s (medians over the runs), their
    ranges in spike_low_ms, spike_high_ms, completion_low_s and completion_high_s, p99_before_ms and floor_s (medians),
    stays (see ``owners_only``), copied (see ``copied_before``), recovered (all runs were seen to: else the spike may
    not be over), front (correct and recovered, and nobody who is so is better in one and not worse in the other). A
    spike or completion is NaN if a run does not know it or is not correct. With the ``measure`` longest latency (ms),
    columns begin with longest instead of spike. Raises BadInput for another one, and for runs of several workloads.
    """
    cost = cost_of(measure)
    grouped = points(summaries)
    if len(grouped) > 1:
        raise BadInput(f"tradeoffs: runs of the workloads {', '.join(grouped)} cannot be compared; give those of one")
    compared = ((cost, "ms"), ("completion", "s"))
    rows = [_tradeoff(point, compared) for group in grouped.values() for point in group]
    names = ["label", "strategy", "runs", "verdict", "stays", "copied", "recovered", "p99_before_ms", "floor_s"]
    spread = [f"{name}{end}" for name, unit in compared for end in (f"_{unit}", f"_low_{unit}", f"_high_{unit}")]
    frame = pd.DataFrame(rows, columns=[*names, *spread])
    costs = frame[[f"{cost}_ms", "completion_s"]]
    return frame.assign(front=on_front(costs.where(frame["recovered"])))


def on_front(costs: pd.DataFrame, tie: float = 1.0) -> npt.NDArray[np.bool_]:
    """Find which rows know both ``costs``, which are the columns, with nobody better in one and not worse in the other.

    Shape (rows,). What differs by no more than the factor ``tie`` is neither better nor worse.
    """
    both = costs.to_numpy("float64")
    one, other = both[:, None, :], both[None, :, :]
    no_worse = (one <= tie * other).all(axis=2)  # [i, j]: i is as good as j in both; NaN never is
    better = no_worse & (tie * one < other).any(axis=2)
    return np.asarray(~np.isnan(both).any(axis=1) & ~better.any(axis=0))


def shared(values: "pd.Series[float]") -> bool:
    """Whether all that are known are about the same."""
    return not values.max() > TIE * values.min()


def _tradeoff(point: Point, compared: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The row of a point, without its place on the front. ``compared``: measures with their units."""
    row: dict[str, Any] = {"label": point.label, "strategy": point.rows[0]["strategy"], "runs": len(point.rows)}
    row |= {"verdict": "bad" if point.bad else "ok", "stays": owners_only(point.rows[0])}
    row |= {"copied": copied_before(point.rows), "recovered": point.recovered}
    for column, name in (("p99_before_ms", "p99_ms"), ("floor_s", "floor_s")):
        row[column] = middle(point.values(_field(name)))
    for name, unit in compared:
        values = point.values(_field(f"{name}_{unit}"))
        if len(values) < len(point.rows) or point.bad:
            values = []
        row |= {f"{name}_{unit}": middle(values)}
        row |= {f"{name}_low_{unit}": min(values, default=nan), f"{name}_high_{unit}": max(values, default=nan)}
    return row


def _concerns(name: str, row: SummaryRow) -> bool:
    """Whether a run should know the measure ``name`` of ``OF_A_COMPARISON``."""
    if name == UNDISTURBED:  # some have no second that was
        return False
    if name == "recovery (s)":  # without a P99 before there is no objective
        return is_hit(row) and bool(measured([row], _field("p99_ms")))
    if name in UNTIL_RECOVERY:
        return is_hit(row)
    return moves(row) and row.get("steps") != 0 if name in _OF_A_MOVE else True


def _field(name: str) -> Measure:
    return lambda row: row.get(name)


def _times(factor: float, row: SummaryRow, name: str) -> float | None:
    value = row.get(name)
    return None if value is None else factor * value


def ratio(row: SummaryRow, above: str, below: str) -> float | None:
    """One figure of a run over another; None if one is not known, or the lower one is not above 0."""
    top, bottom = row.get(above), row.get(below)
    return None if top is None or bottom is None or bottom <= 0 else top / bottom


def _verdict(point: Point) -> str:
    if not point.bad:
        return "ok"
    return "bad" if len(point.rows) == 1 else f"bad ({point.bad} of {len(point.rows)})"


def interval_text(values: list[float]) -> str:
    """The 95 % interval of measures that are never below 0, in words; nothing of a single value."""
    if len(values) < 2:
        return ""
    _, low, high, _ = interval(values)
    return f"{max(low, 0):.3g} to {high:.3g}"
