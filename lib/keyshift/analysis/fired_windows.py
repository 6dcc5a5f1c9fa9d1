"""Whether windows fired: what the timers of a run gave before, during and after its migration. Pure: tables in."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from keyshift.analysis.metrics import need

# Rows of the table ``metrics``, by the tenth of a second in which timers were due: results, and different moments.
TIMER_RESULTS, TIMER_MOMENTS = "timer_results", "timer_moments"
BIN_S = 0.1
COUNTED = {"windows": TIMER_MOMENTS, "results": TIMER_RESULTS}
PARTS = ("before", "during", "after")


def fired(runs: Mapping[str, Sequence[Mapping[str, pd.DataFrame]]]) -> pd.DataFrame:
    """A row for each run, named by its point: how many windows closed, and how many results they had.

    ``runs``: the tables of each run of each point. Columns: ``windows before``, ``during`` and ``after`` the migration
    (first switch to last drained queue, or last switch if that is the last that is known), ``results before`` and so
    on, ``results per window`` (NaN if none closed), ``moved`` (if nothing did, all is before). A window is a moment at
    which timers were due; where each key has its own, as sessions, auctions and rows of a join do, that is one of them.
    What timers gave is not counted twice if the query died in between.
    """
    each = [(name, tables) for name, some in runs.items() for tables in some]
    rows = []
    for name, tables in each:
        metrics, migration = tables["metrics"], tables["migration"]
        need(metrics, ["t_s", "metric", "value"], f"fired, {name}")
        need(migration, ["switched_s", "drained_s"], f"fired, {name}")
        moved = bool(migration["switched_s"].notna().any())  # a step that was rolled back has moved nothing
        # A death has cut off the moments behind a switch; nothing is behind a NaN.
        known = migration[["switched_s", "drained_s"]].max()
        begin, end = (migration["switched_s"].min(), known.max()) if moved else (np.inf, np.inf)
        when = np.select([metrics["t_s"] + BIN_S <= begin, metrics["t_s"] > end], ["before", "after"], "during")
        sums = metrics.groupby(["metric", when])["value"].sum()
        counts = {
            f"{what} {part}": int(sums.get((metric, part), 0)) for what, metric in COUNTED.items() for part in PARTS
        }
        windows, results = (sum(counts[f"{what} {part}"] for part in PARTS) for what in COUNTED)
        rows.append(counts | {"results per window": results / windows if windows else np.nan, "moved": moved})
    columns = [f"{what} {part}" for what in COUNTED for part in PARTS]
    return pd.DataFrame(rows, index=[name for name, _ in each], columns=[*columns, "results per window", "moved"])


def fired_sentences(table: pd.DataFrame) -> list[str]:
    """Say in sentences what ``fired`` found: where timers fired behind the migration, where not, and where none are."""
    total = table[[f"windows {part}" for part in PARTS]].sum(axis=1)
    moved = table["moved"].astype(bool)
    silent, still = _points(total == 0), _points(~moved)
    stuck = _points((total > 0) & (table["windows after"] == 0) & moved)
    well = table[table["windows after"] > 0].sort_values("windows after")
    said = []
    if len(well):
        least, most = (f"{number:.3g}" for number in well["results per window"].agg(["min", "max"]))
        said.append(
            f"Timers fired in {len(well)} of {len(table)} runs, behind the migration, too: at the least at "
            f"{well['windows after'].iloc[0]} moments ({well.index[0]}). Results per moment: "
            f"{least if least == most else f'{least} to {most}'} on average."
        )
    if stuck:
        said.append(f"No timer fired behind the migration of {'; '.join(stuck)}.")
    if still:
        said.append(f"Nothing moved in {'; '.join(still)}.")
    if silent:
        said.append(f"No timer gave a result in {'; '.join(silent)}.")
    return said


def _points(which: pd.Series) -> list[str]:
    """The points that have some of these runs, and of how many if not all of them are."""
    counts = which.groupby(level=0, sort=False).agg(["sum", "size"])
    return [
        f"{name} ({some} of {runs} runs)" if some < runs else str(name)
        for name, some, runs in counts.itertuples()
        if some
    ]
