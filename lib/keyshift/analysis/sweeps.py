"""A measure over a varied parameter, with intervals over repetitions. Pure: summary rows in, a tidy frame out.

Runs whose verdict is not ok never count: ``left_out`` says how many, and who draws the frame says so, too.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any

import pandas as pd

from keyshift.analysis.conclusions import digits, enumerated
from keyshift.analysis.statistics import differ, interval
from keyshift.analysis.tables import (
    MEASURES,
    UNTIL_RECOVERY,
    Measure,
    Point,
    SummaryRow,
    correct,
    is_hit,
    measured,
    moves,
    points,
)
from keyshift.model.errors import BadInput

_NAMES = ("strategy", "workload")  # what a run has beside parameters
_OF_A_MOVE = ("bytes_moved", "bytes_minimum")  # of a summary, where 0 is nothing that was good at it
_OF_A_HIT = ("spike_ms", "silence_ms", "longest_ms", "recover_s")  # of a summary: of whatever happened in the run
COLUMNS = ["group", "value", "measure", "mean", "low", "high", "runs", "left_out", "unknown", "differs"]


def sweep(
    summaries: Sequence[SummaryRow],
    parameter: str,
    measures: Sequence[str] | Mapping[str, Measure],
    group: str = "strategy",
) -> pd.DataFrame:
    """One row per value of ``group`` and of ``parameter`` and per measure; values in ascending order.

    ``parameter`` and ``group`` are names of parameters, or "strategy" or "workload". ``measures``: names of
    ``MEASURES``, or functions of one's own, by a name with the unit.
    Columns: group, value, measure; mean, low and high (Student-t over the repetitions; NaN where not known); runs that
    count; left_out (their verdict is not ok); unknown (the measure is not); differs (from the first group at the same
    value, by Welch's test: True, False, or None if that cannot be known).
    Raises BadInput for a name that is not known, naming those that are.
    """
    wanted = dict(measures) if isinstance(measures, Mapping) else {name: _measure(name) for name in measures}
    runs: dict[tuple[Hashable, Hashable], list[SummaryRow]] = {}
    for row in summaries:
        runs.setdefault((value_of(row, group), value_of(row, parameter)), []).append(row)
    names, values = in_order(group, (name for name, _ in runs)), in_order(parameter, (value for _, value in runs))
    rows = []
    for name, value in sorted(runs, key=lambda point: (names.index(point[0]), values.index(point[1]))):
        good, of_first = correct(runs[name, value]), correct(runs.get((names[0], value), []))
        for measure, function in wanted.items():
            found, first = measured(good, function), measured(of_first, function)
            mean, low, high, _ = interval(found) if found else (nan, nan, nan, 0)
            left_out, unknown = len(runs[name, value]) - len(good), len(good) - len(found)
            differs = differ(first, found) if name != names[0] and found and first else None
            rows.append((name, value, measure, mean, low, high, len(found), left_out, unknown, differs))
    return pd.DataFrame(rows, columns=COLUMNS)


def ranking(summaries: Sequence[SummaryRow], measure: str = "P99 spike (ms)") -> pd.DataFrame:
    """Find who has the smallest mean of ``measure``, for each workload: a row per point that is correct and knows it.

    A run in which nothing was to happen, or to move, knows nothing of spike, silence, longest latency and recovery; if
    nothing moved, nor of the bytes that had to. A point has no rank by these if a run was not seen to recover, or is
    incomplete, and none by its completion, or by what was moved, if a run did not complete.
    Columns: workload, rank (from 1), label, runs, mean, low and high (Student-t), first (False: worse than the first by
    more than chance, by Welch's test; True: that cannot be said, or it is the first; None: it was not repeated).
    Raises BadInput for an unknown measure.
    """
    found = _measure(measure)

    def function(row: SummaryRow) -> float | None:
        unknown = (() if is_hit(row) else _OF_A_HIT) + (() if moves(row) else _OF_A_MOVE)
        return found({**row, **dict.fromkeys(unknown)})

    rows = []
    for workload, group in points(summaries).items():
        whole = [point for point in group if not point.bad and not _cut_short(point, measure)]
        known = [(point.label, values) for point in whole if (values := point.values(function))]
        known.sort(key=lambda pair: sum(pair[1]) / len(pair[1]))
        for rank, (label, values) in enumerate(known, start=1):
            worse = differ(known[0][1], values)
            mean, low, high, runs = interval(values)
            first = True if rank == 1 else None if worse is None else not worse
            rows.append((workload, rank, label, runs, mean, low, high, first))
    names = ["workload", "rank", "label", "runs", "mean", "low", "high", "first"]
    return pd.DataFrame(rows, columns=names).astype({"first": "object"})


def ranking_sentences(summaries: Sequence[SummaryRow], measure: str = "P99 spike (ms)") -> list[str]:
    """Say what ``ranking`` shows: the first of each workload, who may be as good, and who has no rank as a run was cut
    short.
    """
    ranked = ranking(summaries, measure)
    said = []
    for workload, group in points(summaries).items():
        parts = []
        if known := ranked[ranked["workload"] == workload].to_dict("records"):
            best, *others = known
            parts.append(f"{best['label']} has the smallest {measure}, {digits(best['mean'])} (n = {best['runs']})")
            if close := [row["label"] for row in others if row["first"] is True]:
                parts.append(f"the difference to {enumerated(close)} may be chance")
            if unclear := [row["label"] for row in others if row["first"] is None]:
                parts.append(f"{enumerated(unclear)}: too few repetitions to tell")
        short: dict[str, list[str]] = {}
        for point in group:
            if not point.bad and _cut_short(point, measure):
                what = "recover" if measure in UNTIL_RECOVERY and not point.recovered else "complete"
                short.setdefault(what, []).append(point.label)
        parts += [f"{enumerated(some)}: no rank, as not every run was seen to {what}" for what, some in short.items()]
        if parts:
            said.append(f"{workload}: {'; '.join(parts)}.")
    return said


def _cut_short(point: Point, measure: str) -> bool:
    """Whether a run ended before all was seen that the measure is of: the others alone would tell too little."""
    if measure in UNTIL_RECOVERY:
        return point.incomplete or not point.recovered
    return measure.startswith(("completion", "moved")) and point.lacks("completion (s)")


def value_of(row: SummaryRow, name: str) -> Hashable:
    """The value of a parameter in a run, or its strategy or workload. Raises BadInput if the run has none so named."""
    if name in _NAMES:
        return str(row[name])
    parameters: dict[str, Any] = row["parameters"]
    if name not in parameters:
        known = ", ".join([*_NAMES, *sorted(parameters)])
        raise BadInput(f"run {row['run_id']} has no parameter {name!r}: it has {known}")
    value: Hashable = parameters[name]
    return value


def in_order(name: str, values: Iterable[Any]) -> list[Any]:
    """Different values of a parameter: numbers ascending, then others by their text (a sweep may end in "all"), in
    which numbers are numbers.

    Strategies and workloads stay in the order of the runs.
    """
    different = list(dict.fromkeys(values))
    if name in _NAMES:
        return different
    return sorted(
        different, key=lambda v: (0, float(v), []) if isinstance(v, (int, float)) else (1, 0.0, _parts(str(v)))
    )


def _parts(text: str) -> list[tuple[float, str]]:
    """The numbers in a text, and what is between them, for sorting."""
    return [(float(part), "") if part.isdecimal() else (inf, part) for part in re.split(r"(\d+)", text) if part]


def _measure(name: str) -> Measure:
    if name not in MEASURES:
        raise BadInput(f"unknown measure {name!r}: known: {', '.join(MEASURES)}")
    return MEASURES[name]
