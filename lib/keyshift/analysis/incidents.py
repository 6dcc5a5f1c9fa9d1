"""An incident of other engines beside what helps against it here: how bad each point is, and whether it helped. Pure:
summary rows and tables in, a table or sentences out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from keyshift.analysis.conclusions import digits, doubts, enumerated, tie, verdict_sentences
from keyshift.analysis.metrics import need
from keyshift.analysis.statistics import differ
from keyshift.analysis.tables import OF_A_COMPARISON, Row, comparison_table, measured, middle

LATE = "late results (%)"
LEAST_LATE = 0.1  # of late results in %; a hiccup of the machine makes as many
THERE = "last unit there after (s)"
_OF_ROWS = ["P99 before (ms)", "P99 spike (ms)", "silence (ms)", "completion (s)", "moved (MiB)", "copied before (MiB)"]


def incident_table(
    rows: Sequence[Row],
    latencies: Mapping[str, Sequence[pd.DataFrame]],
    migrations: Mapping[str, Sequence[pd.DataFrame]],
    slo_ms: float,
) -> pd.DataFrame:
    """One row per point: verdict, runs, late results in %, seconds until the last unit was there, and some measures of
    ``comparison_table``. What its runs do not know is NaN.

    Late are results of events created from the request on whose latency is above ``slo_ms``. The last unit is there
    when it is installed, counted from the first request, whatever becomes of state that moves later. Both are medians
    over the correct runs, whose ``latencies`` and ``migrations`` (tables, by point) are given; NaN if there is none.
    """
    late = {name: middle(_late(latency, slo_ms) for latency in some) for name, some in latencies.items()}
    there = {name: middle(each["installed_s"].max() for each in some) for name, some in migrations.items()}
    table = comparison_table(rows).set_index("strategy")
    found = table[["verdict", "runs"]].assign(**{LATE: pd.Series(late), THERE: pd.Series(there)})
    return found.join(table.reindex(columns=_OF_ROWS))


def _late(latency: pd.DataFrame, slo_ms: float) -> float:
    need(latency, ["created_s", "latency_ms"], "incident_table")
    return float(100 * (latency.loc[latency["created_s"] >= 0, "latency_ms"] > slo_ms).mean())


def incident_sentences(
    rows: Sequence[Row], table: pd.DataFrame, against: Mapping[str, str], measures: Sequence[str]
) -> list[str]:
    """What the runs show: their verdicts, then whether each point helped ``against`` the one that shows the pain.

    ``table``: of ``incident_table``, perhaps with more columns. ``measures``: of its columns those that tell; in each
    less is better. What is within 10 % is called the same, or within a factor of 2 if one of the two ran once, and so
    are ``LEAST_LATE`` of late results; where both were repeated, what may be chance (Welch, 95 %) is called so. Nothing
    is known of a point whose runs died, or are wrong. Raises BadInput if there is no such measure.
    """
    need(table, measures, "incident_sentences")
    said = verdict_sentences(rows)
    said += doubts([row for row in rows if row["verdict"] == "ok"])
    runs = Counter(row["strategy"] for row in rows)
    for measure in measures:
        correct = table.loc[table["verdict"] == "ok", measure].dropna()
        known = {str(point): float(value) for point, value in correct.items()}
        for point, pain in against.items():
            missing = [name for name in (point, pain) if name not in known]
            if missing:
                told = f"not known for {enumerated(missing)}"
            else:
                each = (_values(rows, name, measure) for name in (point, pain))
                least, equal = LEAST_LATE if measure == LATE else 0.0, tie(runs[point], runs[pain])
                told = _relief(point, pain, known, least, equal, *each)
            said.append(f"{measure}: {told}.")
    return said


def _values(rows: Sequence[Row], point: str, measure: str) -> list[float]:
    """Of each run of the point; none if only tables of the runs tell the measure."""
    if measure not in OF_A_COMPARISON:
        return []
    return measured((row for row in rows if row["strategy"] == point), OF_A_COMPARISON[measure])


def _relief(
    point: str,
    pain: str,
    known: Mapping[str, float],
    least: float,
    equal: float,
    of_point: Sequence[float],
    of_pain: Sequence[float],
) -> str:
    value, hurt = known[point], known[pain]
    both = f"{digits(value)} with **{point}**, {digits(hurt)} with **{pain}**"
    if max(value, hurt) <= least:
        return f"{both}; there was nothing to help against here"
    if max(value, hurt) <= max(equal * min(value, hurt), min(value, hurt) + least):
        return f"{both}; it did not help here"
    if of_point and of_pain and differ(of_point, of_pain) is False:
        return f"{both}; that may be chance (Welch, 95 %)"
    if value > hurt:
        return f"{both}; it was worse here"
    return f"{both}; it helped, {f'{digits(hurt / value)} times less' if value else 'nothing is left of it'}"
