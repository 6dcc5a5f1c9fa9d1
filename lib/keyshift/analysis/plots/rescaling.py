"""Several migrations of one run, one after the other: what each of them cost."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from keyshift.analysis.metrics import bytes_sent, completion_s, left_out, migration_of, need, spike_ms
from keyshift.analysis.plots.style import heading, lines_between, plain_log, styles, theme
from keyshift.analysis.statistics import interval
from keyshift.analysis.tables import MIB
from keyshift.model.errors import BadInput

_WIDTH = 0.6  # of the points of a migration, side by side; 1 is the distance to the next migration


def rescalings(
    seconds: pd.DataFrame, migration: pd.DataFrame, decisions: pd.DataFrame, requested_s: list[float]
) -> pd.DataFrame:
    """One row per migration: number (from 0), requested_s, units, moved_mib, completion_s, spike_ms.

    ``seconds`` is from ``metrics.per_second``, the others are tables of the run. ``requested_s``: when each migration
    was requested, relative to the first one. The spike is the highest P99 of a second from there to the next request,
    at which a migration that takes longer still goes on: so that is in the next one's spike. What is not known is NaN.
    """
    need(migration, ["bytes", "switched_s", "sent_s", "installed_s"], "rescalings")
    moved = migration.assign(migration=migration_of(migration, decisions))
    rows = []
    for number, (begin, end) in enumerate(zip(requested_s, [*requested_s[1:], np.inf], strict=True)):
        mine, planned = moved[moved["migration"] == number], decisions[decisions["migration"] == number]
        sent = bytes_sent(mine)
        later = seconds.assign(second=seconds["second"] - np.floor(begin))
        rows.append(
            {
                "number": number,
                "requested_s": begin,
                "units": int(mine["installed_s"].notna().sum()),
                "moved_mib": np.nan if sent is None else sent / MIB,
                "completion_s": np.nan if left_out(mine, planned) else completion_s(mine),
                "spike_ms": spike_ms(later, np.floor(end) - np.floor(begin)),
            }
        )
    return pd.DataFrame(rows).astype({"completion_s": "float64", "spike_ms": "float64"})


def rescaling_figure(tables: Mapping[str, pd.DataFrame], names: list[str]) -> Figure:
    """Completion and P99 spike of each migration, both on log axes, a marker for each strategy.

    ``tables``: of ``rescalings``; of several runs of a strategy one below the other: then markers are means, with 95 %
    intervals (Student-t). ``names``: of the migrations.
    """
    if not tables:
        raise BadInput("rescaling_figure: no run given")
    panels = (("completion_s", "completion (s)", "Completion"), ("spike_ms", "P99 spike (ms)", "P99 spike"))
    looks = styles(list(tables))
    with theme():
        figure, grid = plt.subplots(1, 2, figsize=(max(8.0, 2.0 + 1.6 * len(names)), 3.9), layout="constrained")
        for ax, (column, label, title) in zip(grid, panels, strict=True):
            for place, (strategy, table) in enumerate(tables.items()):
                need(table, ["number", column], f"rescaling_figure, {strategy}")
                aside = _WIDTH * ((place + 0.5) / len(tables) - 0.5)
                where, reach = _means(table, column)
                ax.errorbar(where["number"] + aside, where["mean"], yerr=reach, capsize=3, **looks[strategy].sign)
            plain_log(ax, "y")
            ax.set_ylabel(label)
            ax.set_xlim(-0.5, len(names) - 0.5)
            ax.set_xticks(range(len(names)), names)
            lines_between(ax, len(names))
            ax.set_xlabel("migration (slots before → after)" if "→" in "".join(names) else "migration")
            heading(ax, f"{title} of each migration")
        handles = [look.in_legend for look in looks.values()]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
    return figure


def _means(table: pd.DataFrame, column: str) -> tuple[pd.DataFrame, np.ndarray | None]:
    """The mean of each migration over the runs that know it, and how far its interval reaches down and up; None if no
    migration was repeated.
    """
    rows = []
    for number, values in table.dropna(subset=[column]).groupby("number")[column]:
        mean, low, high, _ = interval(values.tolist())
        rows.append((number, mean, mean - max(low, 0.05 * mean), high - mean))  # the axis is logarithmic
    means = pd.DataFrame(rows, columns=["number", "mean", "down", "up"], dtype="float64")
    reach = np.nan_to_num(means[["down", "up"]].to_numpy().T)
    return means, reach if reach.any() else None
