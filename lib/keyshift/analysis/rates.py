"""What parallelism brings: highest sustained rates, and latencies below them, from summary rows of searches."""

from collections.abc import Sequence

from keyshift.analysis.conclusions import verdict_sentences
from keyshift.analysis.sweeps import sweep, value_of
from keyshift.analysis.tables import Measure, SummaryRow

HIGHEST = "highest sustained rate (events/s)"
RATE_MEASURES: dict[str, Measure] = {
    HIGHEST: lambda row: row.get("highest_per_s"),
    "P50 at 80 % of it (ms)": lambda row: row.get("held_p50_ms"),
    "P99 at 80 % of it (ms)": lambda row: row.get("held_p99_ms"),
}


def rate_sentences(summaries: Sequence[SummaryRow], parameter: str = "slots", group: str = "chain") -> list[str]:
    """How the highest rate grows with a number ``parameter``, for each ``group``; see ``sweeps.sweep`` for the names.

    And how closely such a rate is known. Runs whose verdict is not ok count for nothing, and are told of.
    """
    said = verdict_sentences(summaries)
    found = sweep(summaries, parameter, {HIGHEST: RATE_MEASURES[HIGHEST]}, group)
    for name, line in found.dropna(subset="mean").groupby("group", sort=False):
        first, last = line.iloc[0], line.iloc[-1]
        text = f"{name}: {first['mean']:.0f} events/s with {parameter} = {first['value']}"
        if len(line) > 1:
            text += (
                f", {last['mean']:.0f} with {last['value']}: {last['mean'] / first['mean']:.2g} times as many with "
                f"{last['value'] / first['value']:.2g} times the {parameter}"
            )
        said.append(text + ".")
    known = [row for row in summaries if row["verdict"] == "ok" and row.get("highest_per_s") and row.get("above_per_s")]
    if known:
        step = max(row["above_per_s"] / row["highest_per_s"] for row in known) - 1
        said.append(f"Each rate is known to within {100 * step:.0f} %: the next one that was tried is not sustained.")
    for point in found[found["unknown"] > 0].to_dict("records"):
        name, value, none, some = (point[each] for each in ("group", "value", "unknown", "runs"))
        of_point = [row for row in summaries if (value_of(row, group), value_of(row, parameter)) == (name, value)]
        lowest = min(row["lowest_per_s"] for row in of_point)
        of = f" in {none} of {none + some} searches" if some else ""
        said.append(f"{name}: not even {lowest:g} events/s with {parameter} = {value}{of}.")
    return said
