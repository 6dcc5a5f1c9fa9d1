"""Comparisons of runs as a table and in words, computed from summary rows (``results.manifest.Summary``, as dicts)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.analysis.statistics import differ, interval
from keyshift.errors import BadInput

Row = Mapping[str, Any]
NEEDED = {"run_id", "workload", "strategy", "verdict", "lost", "duplicated", "reordered", "wrong", "parameters"}
REPETITION = {"seed", "repetition", "repetitions"}  # parameters in which repetitions of one point may differ
TIE = 1.1  # single runs scatter by about this factor: closer ones are called equal
STAYS = 0.8  # of what had to move; the size of a snapshot, what had to be, is a few percent above what is sent
MIB = 2**20

MEASURES: dict[str, Callable[[Row], float | None]] = {  # by name, with the unit
    "P50 before (ms)": lambda row: row.get("p50_ms"),
    "P99 before (ms)": lambda row: row.get("p99_ms"),
    "P99 spike (ms)": lambda row: row.get("spike_ms"),
    "P99 spike (× before)": lambda row: _ratio(row, "spike_ms", "p99_ms"),
    "silence (ms)": lambda row: row.get("silence_ms"),
    "completion (s)": lambda row: row.get("completion_s"),
    "floor (s)": lambda row: row.get("floor_s"),
    "completion (× floor)": lambda row: _ratio(row, "completion_s", "floor_s"),
    "recovery (s)": lambda row: row.get("recover_s"),
    "moved (MiB)": lambda row: _mib(row, "bytes_moved"),
    "copied before (MiB)": lambda row: _mib(row, "bytes_copied"),
    "had to move (MiB)": lambda row: _mib(row, "bytes_minimum"),
    "moved (× minimum)": lambda row: _ratio(row, "bytes_moved", "bytes_minimum"),
    "peak memory (MiB)": lambda row: row.get("peak_rss_mib"),
}
_SPREAD = [
    *("spike_ms", "spike_low_ms", "spike_high_ms"),
    *("completion_s", "completion_low_s", "completion_high_s"),
]
_WITH_INTERVAL = ("P99 spike (ms)", "silence (ms)", "completion (s)", "recovery (s)")


@dataclass(frozen=True)
class Point:
    """Repetitions of one workload, strategy and set of parameters."""

    label: str  # the strategy, and the parameters in which points of that strategy differ
    parameters: dict[str, Any]  # those parameters
    rows: tuple[Row, ...]

    @property
    def bad(self) -> int:
        """How many runs have a bad verdict."""
        return sum(row["verdict"] != "ok" for row in self.rows)

    def values(self, measure: Callable[[Row], float | None]) -> list[float]:
        """The measure of each run in which it is known."""
        found = [measure(row) for row in self.rows]
        return [float(value) for value in found if value is not None and isfinite(value)]

    def all_know(self, name: str) -> bool:
        """True if no run lacks the figure ``name``."""
        return len(self.values(lambda row: row.get(name))) == len(self.rows)

    def mean(self, measure: Callable[[Row], float | None]) -> float | None:
        """The mean over the runs in which the measure is known; None if it is in none."""
        values = self.values(measure)
        return sum(values) / len(values) if values else None


def points(summaries: Sequence[Row]) -> dict[str, list[Point]]:
    """Summary rows as points by workload, in order of first appearance.

    Runs of a point differ in nothing but the seed or the number of the repetition.
    Raises BadInput for a row that is not a summary with a verdict, as that of a run that died.
    """
    for row in summaries:
        if missing := NEEDED - set(row):
            raise BadInput(f"summary of run {row.get('run_id')!r}: no {', '.join(sorted(missing))}")
        if row["verdict"] not in ("ok", "bad"):
            raise BadInput(f"run {row['run_id']!r} has the verdict {row['verdict']!r}: leave out runs that did not end")
    by_strategy: dict[tuple[str, str], list[Row]] = {}
    for row in summaries:
        by_strategy.setdefault((row["workload"], row["strategy"]), []).append(row)
    result: dict[str, list[Point]] = {}
    for (workload, strategy), rows in by_strategy.items():
        names = sorted({name for row in rows for name in row["parameters"]} - REPETITION)
        varying = [name for name in names if len({repr(row["parameters"].get(name)) for row in rows}) > 1]
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(repr([row["parameters"].get(name) for name in varying]), []).append(row)
        for group in groups.values():
            parameters = {name: group[0]["parameters"].get(name) for name in varying}
            text = ", ".join(f"{name}={value}" for name, value in parameters.items())
            label = f"{strategy} ({text})" if text else strategy
            result.setdefault(workload, []).append(Point(label, parameters, tuple(group)))
    return result


def comparison_table(summaries: Sequence[Row]) -> pd.DataFrame:
    """One row per workload, strategy and set of parameters: means over its runs, NaN for what is not known.

    The headers carry the units. If a point was repeated, columns ``<measure> 95 %`` hold the confidence interval as
    text; measures that no run has are left out. A point of which any run is not correct has the verdict "bad".
    """
    rows: list[dict[str, Any]] = []
    grouped = points(summaries)
    repeated = any(len(point.rows) > 1 for group in grouped.values() for point in group)
    for workload, group in grouped.items():
        for point in group:
            row: dict[str, Any] = {"workload": workload, "strategy": point.rows[0]["strategy"], **point.parameters}
            row |= {"verdict": _verdict(point), "runs": len(point.rows)}
            for name, measure in MEASURES.items():
                mean = point.mean(measure)
                row[name] = nan if mean is None else mean
                if repeated and name in _WITH_INTERVAL:
                    row[f"{name} 95 %"] = _interval_text(point.values(measure))
            rows.append(row)
    table = pd.DataFrame(rows)
    unknown = [name for name in MEASURES if name in table and table[name].isna().all()]
    table = table.drop(columns=[*unknown, *(f"{name} 95 %" for name in unknown if f"{name} 95 %" in table)])
    parameters = [name for group in grouped.values() for point in group for name in point.parameters]
    first = [*dict.fromkeys(["workload", "strategy", *parameters])] if rows else []
    return table[[*first, *(name for name in table if name not in first)]]


def sentences(summaries: Sequence[Row]) -> list[str]:
    """What the runs show, in sentences computed from them: verdicts first, then spike, silence, completion, recovery.

    Points with a bad verdict are reported and left out of the comparisons: speed does not make up for wrong results.
    Points within 10 % are called the same; where both were repeated, what may be chance (Welch, 95 %) is called so.
    """
    grouped = points(summaries)
    if not grouped:
        return ["There is no run to compare."]
    result = []
    for workload, group in grouped.items():
        prefix = f"{workload}: " if len(grouped) > 1 else ""
        result += [prefix + sentence for sentence in _about(group)]
    return result


def tradeoffs(summaries: Sequence[Row]) -> pd.DataFrame:
    """Spike against completion: one row per point, of the runs of one workload, for ``figures.pareto``.

    Columns: label, strategy, runs, verdict ("ok" or "bad"), spike_ms and completion_s (medians over the runs), their
    ranges in spike_low_ms, spike_high_ms, completion_low_s and completion_high_s, p99_before_ms and floor_s (medians),
    stays (less was sent than had to move: the rest waits for a record that asks for it), front (correct, and nobody
    correct is better in one and not worse in the other). A spike or completion is NaN if a run does not know it or is
    not correct. Raises BadInput for runs of several workloads.
    """
    grouped = points(summaries)
    if len(grouped) > 1:
        raise BadInput(f"tradeoffs: runs of the workloads {', '.join(grouped)} cannot be compared; give those of one")
    rows = [_tradeoff(point) for group in grouped.values() for point in group]
    names = ["label", "strategy", "runs", "verdict", "stays", "p99_before_ms", "floor_s", *_SPREAD]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(front=on_front(frame))


def on_front(costs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Of which rows both spike_ms and completion_s are known, and nobody is better in one and not worse in the other.

    Shape (rows,).
    """
    both = costs[["spike_ms", "completion_s"]].to_numpy("float64")
    no_worse = (both[:, None, :] <= both[None, :, :]).all(axis=2)  # [i, j]: i is as good as j in both; NaN never is
    better = no_worse & (both[:, None, :] < both[None, :, :]).any(axis=2)
    return np.asarray(~np.isnan(both).any(axis=1) & ~better.any(axis=0))


def tradeoff_sentences(summaries: Sequence[Row]) -> list[str]:
    """What ``tradeoffs`` shows, in sentences: whom nobody beats, what lies how far above the floor, what stays."""
    frame = tradeoffs(summaries)
    known = frame.dropna(subset=["spike_ms", "completion_s"])
    if known.empty:
        return ["No strategy has both a spike and a completion to compare."]
    front = list(known[known["front"]].sort_values("completion_s")["label"])
    others = list(known[~known["front"]]["label"])
    said = []
    if others:
        said.append(
            f"{enumerated(front)}: no other strategy is better in both spike and completion. "
            f"{enumerated(others)}: {'one of those is' if len(front) > 1 else 'it is'} at least as good in both."
        )
    elif len(front) > 1:
        said.append(f"{enumerated(front)}: each pays for a lower spike with a later completion.")
    whole = known[~known["stays"]].dropna(subset="floor_s")
    if len(whole):
        first = whole.sort_values("completion_s").iloc[0]
        said.append(
            f"Of what moves everything {first['label']} completes first, in {_s(first['completion_s'])}; the floor, a "
            f"bare copy of the same bytes, is {_s(first['floor_s'])}."
        )
    staying = list(known[known["stays"]]["label"])
    if staying:
        said.append(
            f"{enumerated(staying)}: completion is the change of owner only; part of the state stays where it was "
            "until a record asks for it."
        )
    return said


def _about(group: list[Point]) -> list[str]:
    runs = sum(len(point.rows) for point in group)
    correct = [point for point in group if not point.bad]
    said = [_wrong(point) for point in group if point.bad]
    if said and correct:
        said.append(
            f"{enumerated([point.label for point in correct])}: correct, nothing lost, duplicated, reordered or wrong."
        )
    if not said:
        how_many = {1: "The run is", 2: "Both runs are"}.get(runs, f"All {runs} runs are")
        said = [f"{how_many} correct: nothing lost, duplicated, reordered or wrong."]
    if not correct:
        return said
    said += _compare_spike(correct)
    said += _compare(
        correct,
        lambda row: row.get("silence_ms"),
        one="{best} left at most {value} without a result.",
        two="{best} left at most {value} without a result; {worst} up to {worst_value}: {times}.",
        tie="The longest time without a result is about the same everywhere, {value}.",
        show=_ms,
    )
    said += _compare(
        correct,
        lambda row: row.get("completion_s"),
        one="{best} completed in {value}.",
        two="{best} completed first, in {value}; {worst} took {worst_value}: {times}.",
        tie="All took about the same time to complete, {value}.",
        show=_s,
    )
    unfinished = [point.label for point in correct if not point.all_know("completion_s")]
    if unfinished:
        said.append(f"A completion time is missing for {enumerated(unfinished)}.")
    unrecovered = [point.label for point in correct if not point.all_know("recover_s")]
    if unrecovered:
        said.append(f"P99 was not seen back under its objective for good with {enumerated(unrecovered)}.")
    return said


def _tradeoff(point: Point) -> dict[str, Any]:
    row: dict[str, Any] = {"label": point.label, "strategy": point.rows[0]["strategy"], "runs": len(point.rows)}
    share = _share(point)
    row |= {"verdict": "bad" if point.bad else "ok", "stays": share is not None and share < STAYS}
    for column, name in (("p99_before_ms", "p99_ms"), ("floor_s", "floor_s")):
        row[column] = _median(point.values(_field(name)))
    for name, unit in (("spike", "ms"), ("completion", "s")):
        values = point.values(_field(f"{name}_{unit}"))
        if len(values) < len(point.rows) or point.bad:
            values = []
        row |= {f"{name}_{unit}": _median(values)}
        row |= {f"{name}_low_{unit}": min(values, default=nan), f"{name}_high_{unit}": max(values, default=nan)}
    return row


def _share(point: Point) -> float | None:
    """Of what had to move, how much was sent, copies included."""
    return point.mean(
        lambda row: (
            None
            if row.get("bytes_moved") is None or not row.get("bytes_minimum")
            else (row["bytes_moved"] + (row.get("bytes_copied") or 0)) / row["bytes_minimum"]
        )
    )


def _field(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _median(values: list[float]) -> float:
    return median(values) if values else nan


def _wrong(point: Point) -> str:
    bad = [row for row in point.rows if row["verdict"] != "ok"]
    counts = [(sum(row[kind] for row in bad), kind) for kind in ("lost", "duplicated", "reordered", "wrong")]
    what = ", ".join(f"{count} {kind}" for count, kind in counts if count) or "another check failed, see its manifest"
    of = f" in {len(bad)} of {len(point.rows)} runs" if len(point.rows) > 1 else ""
    return f"{point.label} is not correct{of} ({what}): it is left out of the comparison."


def _compare_spike(group: list[Point]) -> list[str]:
    def factor(row: Row) -> float | None:
        return _ratio(row, "spike_ms", "p99_ms")

    def spike(point: Point) -> str:
        return _ms(point.mean(lambda row: row.get("spike_ms")) or nan)

    known = _ranked(group, factor)
    said = []
    if len(known) == 1:
        point, value = known[0]
        said = [f"{point.label} kept the P99 spike at {spike(point)}, {_times(value)} its value before."]
    elif known:
        (best, low), (worst, high) = known[0], known[-1]
        if high <= TIE * low:
            said = [f"The P99 spike is about the same everywhere, {_times(high)} its value before."]
        else:
            said = [
                f"{best.label} kept the P99 spike at {spike(best)}, {_times(low)} its value before; "
                f"{worst.label} reached {spike(worst)}, {_times(high)}: {_contrast(best, worst, factor, 'much')}."
            ]
    left_out = [point.label for point in group if point not in [ranked for ranked, _ in known]]
    return said + ([f"P99 before and at its spike are not both known for {enumerated(left_out)}."] if left_out else [])


def _compare(
    group: list[Point],
    measure: Callable[[Row], float | None],
    *,
    one: str,
    two: str,
    tie: str,
    show: Callable[[float], str],
) -> list[str]:
    known = _ranked(group, measure)
    if not known:
        return []
    (best, low), (worst, high) = known[0], known[-1]
    text = one if len(known) == 1 else tie if high <= TIE * low else two
    return [
        text.format(
            best=best.label,
            worst=worst.label,
            value=show(low),
            worst_value=show(high),
            times=_contrast(best, worst, measure, "long"),
        )
    ]


def _ranked(group: list[Point], measure: Callable[[Row], float | None]) -> list[tuple[Point, float]]:
    """Points with their means, smallest first; those with no value left out."""
    known = [(point, mean) for point in group if (mean := point.mean(measure)) is not None]
    return sorted(known, key=lambda pair: pair[1])


def _contrast(best: Point, worst: Point, measure: Callable[[Row], float | None], word: str) -> str:
    """How far apart two means are, or that the repetitions do not tell."""
    low, high = best.mean(measure), worst.mean(measure)
    assert low is not None and high is not None  # they are ranked
    if differ(best.values(measure), worst.values(measure)) is False:
        return "with 95 % confidence that may be chance"
    return f"{digits(high / low)} times as {word}" if low > 0 else "no multiple of nothing"


def _mib(row: Row, name: str) -> float | None:
    size = row.get(name)
    return None if size is None else size / MIB


def _ratio(row: Row, above: str, below: str) -> float | None:
    top, bottom = row.get(above), row.get(below)
    return None if top is None or not bottom else top / bottom


def _verdict(point: Point) -> str:
    if not point.bad:
        return "ok"
    return "bad" if len(point.rows) == 1 else f"bad ({point.bad} of {len(point.rows)})"


def _interval_text(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    _, low, high, _ = interval(values)
    return f"{max(low, 0):.3g} to {high:.3g}"


def enumerated(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; there must be one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _ms(value: float) -> str:
    return _s(value / 1e3) if value >= 1000 else f"{digits(value)} ms"


def _s(value: float) -> str:
    return f"{digits(value)} s" if value >= 1 else f"{digits(value * 1e3)} ms"


def _times(value: float) -> str:
    return f"{digits(value)} ×"


def digits(value: float) -> str:
    """Two significant digits, without an exponent."""
    if value < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"
