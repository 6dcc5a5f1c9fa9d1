"""An incident of other engines beside what helps against it here: how bad each point is, and whether it helped."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite, nan
from types import MappingProxyType

import pandas as pd

from keyshift.analysis.conclusions import digits, enumerated, tie, verdict_sentences
from keyshift.analysis.machine import doubts
from keyshift.analysis.metrics import need
from keyshift.analysis.statistics import differ
from keyshift.analysis.tables import (
    OF_A_COMPARISON,
    UNTIL_RECOVERY,
    SummaryRow,
    comparison_table,
    correct,
    measured,
    middle,
    points,
    stood_still,
)

LATE = "late results (%)"
LEAST_LATE = 0.1  # of late results in %; a hiccup of the machine makes as many
THERE = "last unit there after (s)"
_OF_RUNS = "of each run"  # in ``attrs``: values by measure and point
_OF_ROWS = ["P99 before (ms)", "P99 spike (ms)", "silence (ms)", "completion (s)", "moved (MiB)", "copied before (MiB)"]


def incident_table(
    rows: Sequence[SummaryRow],
    latencies: Mapping[str, Sequence[pd.DataFrame]],
    migrations: Mapping[str, Sequence[pd.DataFrame]],
    slo_ms: float,
    more: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType({}),
) -> pd.DataFrame:
    """One row per point: verdict, runs, late results in %, seconds until the last unit was there, ``more``, and some
    measures of ``comparison_table``. What its runs do not know is NaN.

    Late are results of events created from the request on whose latency is above ``slo_ms``. The last unit is there
    when it is installed, counted from the first request, whatever becomes of state that moves later; never, if a run
    is incomplete. Both are medians over the correct runs, whose ``latencies`` and ``migrations`` (tables, by point, in
    the order of their rows) are given; NaN if there is none.
    So is each measure of ``more``, by its name, which has a value of each correct run, by point.
    What they are of each run is in ``attrs``, for ``incident_sentences``.
    """
    of_runs: dict[str, Mapping[str, Sequence[float]]] = {
        LATE: {name: [_late(latency, slo_ms) for latency in some] for name, some in latencies.items()},
        THERE: {name: [*map(_there_s, _correct(rows, name), some)] for name, some in migrations.items()},
        **more,
    }
    table = comparison_table(rows).set_index("strategy")
    medians = {name: pd.Series({point: middle(each) for point, each in by.items()}) for name, by in of_runs.items()}
    found = table[["verdict", "runs"]].assign(**medians).join(table.reindex(columns=_OF_ROWS))
    found.attrs[_OF_RUNS] = of_runs
    return found


def _correct(rows: Sequence[SummaryRow], point: str) -> list[SummaryRow]:
    return [row for row in correct(rows) if row["strategy"] == point]


def _there_s(row: SummaryRow, migration: pd.DataFrame) -> float:
    return nan if row.get("incomplete") else float(migration["installed_s"].max())


def _late(latency: pd.DataFrame, slo_ms: float) -> float:
    need(latency, ["created_s", "latency_ms"], "incident_table")
    return float(100 * (latency.loc[latency["created_s"] >= 0, "latency_ms"] > slo_ms).mean())


def incident_sentences(
    rows: Sequence[SummaryRow], table: pd.DataFrame, against: Mapping[str, str], measures: Sequence[str]
) -> list[str]:
    """Say what the runs show: their verdicts, then whether each point helped ``against`` the one that shows the pain.

    ``table``: of ``incident_table``, perhaps with more columns. ``measures``: of its columns those that tell; in each
    less is better. What is within 10 % is called the same, or within a factor of 2 if one of the two ran once or the
    measure is known of no single run (a column of one's own), and so are ``LEAST_LATE`` of late results; where both
    were repeated, what may be chance (Welch, 95 %) is called so. Nothing is known of a point whose runs died, or are
    wrong. One that was not seen to recover, or left units behind, may be worse than what is known of its spike and
    silence, so it is neither better than another one in them nor the same. A point of ``against`` at which nothing
    moved is told: no migration of it has helped. Raises BadInput if there is no such measure.
    """
    need(table, measures, "incident_sentences")
    said = verdict_sentences(rows)
    said += doubts(correct(rows))
    every = [point for group in points(rows).values() for point in group]
    cut_short = {point.rows[0]["strategy"] for point in every if point.incomplete or not point.recovered}
    for measure in measures:
        of_correct = table.loc[table["verdict"] == "ok", measure].dropna()
        known = {str(point): float(value) for point, value in of_correct.items()}
        for point, pain in against.items():
            missing = [name for name in (point, pain) if name not in known]
            if missing:
                told = f"not known for {enumerated(missing)}"
            else:
                values = {name: _values(rows, table, name, measure) for name in (point, pain)}
                unseen = cut_short if measure in UNTIL_RECOVERY else set()
                told = _relief(point, pain, known, LEAST_LATE if measure == LATE else 0.0, values, unseen)
            said.append(f"{measure}: {told}.")
    for point in against:
        mine = _correct(rows, point)
        if left := sum(stood_still(row) and not row.get("incomplete") for row in mine):
            said.append(
                f"In {left} of {len(mine)} runs of **{point}** nothing is known to have moved: the job was as it was."
            )
    for point in dict.fromkeys([*against, *against.values()]):
        mine = _correct(rows, point)
        if cut := sum(bool(row.get("incomplete")) for row in mine):
            said.append(
                f"In {cut} of {len(mine)} runs of **{point}** not all state came where it should: with more of it, "
                "figures may be larger."
            )
    return said


def overlap_sentences(rows: Sequence[SummaryRow], point: str, gap_s: float) -> list[str]:
    """In how many correct runs of ``point`` the second request, ``gap_s`` seconds behind the first, came too late to
    replace it; nothing if there is none. The plan of a request is one step.
    """
    steps = [row.get("steps") or 0 for row in _correct(rows, point)]
    late = sum(number > 1 for number in steps)
    if not late:
        return []
    return [
        f"In {late} of {len(steps)} runs of **{point}** state moved for both requests: copies for the first one were "
        f"there when the second one came, {digits(gap_s)} s later, and nothing of them was thrown away."
    ]


def _values(rows: Sequence[SummaryRow], table: pd.DataFrame, point: str, measure: str) -> list[float]:
    """The measure of each run of the point that knows it; none if the table has only what is said of all of them."""
    if measure in OF_A_COMPARISON:
        return measured((row for row in rows if row["strategy"] == point), OF_A_COMPARISON[measure])
    values = table.attrs.get(_OF_RUNS, {}).get(measure, {}).get(point, [])
    return [value for value in values if isfinite(value)]


def _relief(
    point: str,
    pain: str,
    known: Mapping[str, float],
    least: float,
    values: Mapping[str, Sequence[float]],
    unseen: Collection[str],
) -> str:
    """Whether the point helped against the pain. ``values``: those of each run, of which ``known`` is the middle.
    ``unseen``: who may be worse than is known.
    """
    value, hurt = known[point], known[pain]
    at_least = {name: "at least " * (name in unseen) for name in (point, pain)}
    of_each = (f"{at_least[name]}{digits(known[name])} with **{name}**" for name in (point, pain))
    both, (low, high) = ", ".join(of_each), sorted((value, hurt))
    if high <= least:
        return f"{both}; there was nothing to help against here"
    alike = high <= max(tie(len(values[point]), len(values[pain])) * low, low + least)
    better, worse = (point, pain) if value < hurt else (pain, point)
    if better in unseen or (alike and worse in unseen):
        ended = enumerated(name for name in (point, pain) if name in unseen)
        return f"{both}; whether it helped is not known, as the recovery of {ended} with all state there was not seen"
    if alike:
        return f"{both}; it did not help here"
    if values[point] and values[pain] and differ(values[point], values[pain]) is False:
        return f"{both}; that may be chance (Welch, 95 %)"
    if value > hurt:
        return f"{both}; it was worse here"
    less = f"{at_least[pain]}{digits(hurt / value)} times less" if value else "nothing is left of it"
    return f"{both}; it helped, {less}"
