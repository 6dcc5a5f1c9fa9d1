"""What runs pay while nothing moves, next to those of another point: a table, and sentences."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from keyshift.analysis.conclusions import digits, enumerated
from keyshift.analysis.statistics import differ
from keyshift.analysis.tables import interval_text


def overhead_table(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each point: means over its runs, NaN for what none of them knows. If a point was repeated, columns
    ``<measure> 95 %`` hold the confidence interval as text.

    ``runs``: of each point a row for each run, a column for each measure, whose names have their units.
    """
    repeated = any(len(each) > 1 for each in runs.values())
    rows = []
    for each in runs.values():
        row: dict[str, Any] = {}
        for measure, values in each.items():
            row[str(measure)] = values.mean()
            if repeated:
                row[f"{measure} 95 %"] = interval_text(values.dropna().tolist())
        rows.append(row)
    return pd.DataFrame(rows, index=[*runs])


def overhead_sentences(runs: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say how many times as much as the first point each other one pays, of means over their runs; also what may be
    chance (Welch, 95 %), as is all that is known of one run alone, and which of them ran once. A measure that one of
    both does not know, or of which the first one pays nothing, is left out, and so is one that is below 0, as a latency
    is if the clock of Kafka's log is behind.

    ``runs``: see ``overhead_table``, of points all of whose runs are correct.
    """
    if not runs:
        return []
    (first, base), *others = runs.items()
    said = []
    for name, each in others:
        once = [point for point, its in ((first, base), (name, each)) if len(its) == 1]
        times, chance = [], []
        for measure in each:
            mine, theirs = each[measure].dropna(), base[measure].dropna()
            if theirs.mean() > 0 and mine.mean() >= 0:  # so none of both is NaN
                over = mine.mean() / theirs.mean()
                times.append(f"{measure} {digits(over) if once or over < 0.1 else f'{over:.2f}'} times")
                chance += [] if once or differ(theirs, mine) else [str(measure)]
        doubt = f"; {enumerated(once)} ran once, so all of it may be chance" if once else ""
        if chance:
            doubt = f"; of {enumerated(chance)} that may be chance (Welch, 95 %)"
        if times:
            said.append(f"{name} next to {first}: {', '.join(times)}{doubt}.")
    return said
