"""What parallelism brings: highest sustained rates, and latencies below them, from summary rows of searches."""

from collections.abc import Sequence
from math import inf

from keyshift.analysis.conclusions import digits, verdict_sentences
from keyshift.analysis.sweeps import sweep, value_of
from keyshift.analysis.tables import Measure, SummaryRow, correct

HIGHEST = "highest sustained rate (events/s)"
# Latencies are medians over the seconds of a burst.
RATE_MEASURES: dict[str, Measure] = {
    HIGHEST: lambda row: row.get("highest_per_s"),
    "P50 of a second at 80 % of it (ms)": lambda row: row.get("held_p50_ms"),
    "P99 of a second at 80 % of it (ms)": lambda row: row.get("held_p99_ms"),
}


def open_ended(summaries: Sequence[SummaryRow]) -> list[SummaryRow]:
    """The correct runs whose highest rate is known *at least*: the next one, if there is one, was offered late."""
    return [row for row in summaries if row["verdict"] == "ok" and row.get("highest_per_s") and row.get("at_least")]


def rate_sentences(summaries: Sequence[SummaryRow], parameter: str = "slots", group: str = "chain") -> list[str]:
    """Say how the highest rate grows with a number ``parameter``, for each ``group``, and how closely it is known; see
    ``sweeps.sweep`` for the names. Runs whose verdict is not ok count for nothing, and are told of.
    """
    said = verdict_sentences(summaries)
    found = sweep(summaries, parameter, {HIGHEST: RATE_MEASURES[HIGHEST]}, group)
    good = correct(summaries)
    at_least = open_ended(summaries)
    more = {(value_of(row, group), value_of(row, parameter)) for row in at_least}
    for name, line in found.dropna(subset="mean").groupby("group", sort=False):
        first, last = line.iloc[0], line.iloc[-1]
        least = ["at least " if (name, each["value"]) in more else "" for each in (first, last)]
        text = f"{name}: {least[0]}{first['mean']:.0f} events/s with {parameter} = {first['value']}"
        if len(line) > 1:
            text += f", {least[1]}{last['mean']:.0f} with {last['value']}"
            if not any(least):  # the other rate is known to a step of the search, so nobody knows the least multiple
                text += (
                    f": {last['mean'] / first['mean']:.2g} times as many with "
                    f"{last['value'] / first['value']:.2g} times the {parameter}"
                )
        said.append(text + ".")
    if more:
        said.append(
            "At least: the next rate that was tried, if there is one, was offered late: it says nothing of the job."
        )
    known = [row for row in good if row not in at_least and row.get("highest_per_s") and row.get("above_per_s")]
    if known:
        step = max(row["above_per_s"] / row["highest_per_s"] for row in known) - 1
        each = "Each other rate" if more else "Each rate"
        said.append(f"{each} is known to within {100 * step:.0f} %: the next one that was tried is not sustained.")
    for point in found[found["unknown"] > 0].to_dict("records"):
        name, value, none, some = (point[each] for each in ("group", "value", "unknown", "runs"))
        of_point = [row for row in summaries if (value_of(row, group), value_of(row, parameter)) == (name, value)]
        lowest = min(row["lowest_per_s"] for row in of_point)
        of = f" in {none} of {none + some} searches" if some else ""
        said.append(f"{name}: not even {lowest:g} events/s with {parameter} = {value}{of}.")
    return said


def rate_ratio_sentences(summaries: Sequence[SummaryRow]) -> list[str]:
    """The highest rate of the first strategy as a multiple of that of each other one, of points all of whose runs are
    correct and have one; both are alike if, on average, each lies below what the other one did not sustain.
    """
    known: dict[str, tuple[float, float, bool]] = {}
    for name in dict.fromkeys(row["strategy"] for row in summaries):
        mine = [row for row in summaries if row["strategy"] == name]
        if all(row["verdict"] == "ok" and row.get("highest_per_s") for row in mine):
            highest = sum(row["highest_per_s"] for row in mine) / len(mine)
            above = sum(row["above_per_s"] or inf for row in mine) / len(mine)
            known[name] = highest, above, any(row["at_least"] for row in mine)
    first = next((row["strategy"] for row in summaries), "")
    if first not in known:
        return [f"{first} is not compared: a run of it is not correct, or sustains no rate."] if first else []
    rate, next_one, more = known.pop(first)
    said = []
    for name, (other, next_other, other_more) in known.items():
        if more and other_more:
            said.append(f"{first} and {name} are not compared: of both, the next rate was offered late.")
        elif not (more or other_more) and rate < next_other and other < next_one:
            said.append(f"{first} sustains about as many events/s as {name}.")
        else:
            # Of one that is known to a step, what it sustains lies between both of its rates.
            times, how = rate / other, ""
            if more:
                times, how = rate / next_other, "at least "
            elif other_more:
                times, how = next_one / other, "at most "
            said.append(f"{first} sustains {how}{digits(times)} times as many events/s as {name}.")
    return said
