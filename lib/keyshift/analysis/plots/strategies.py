"""Figures of strategies side by side, from stored results; nothing is aggregated here."""

from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from keyshift.analysis.metrics import MOMENTS, need
from keyshift.analysis.plots.style import (
    LEGEND_COLUMNS,
    Style,
    heading,
    legend_below,
    legend_line,
    new_axes,
    plain_log,
    plain_numbers,
    style_of,
    styles,
)
from keyshift.analysis.tables import SPIKE, cost_of, shared
from keyshift.model.errors import BadInput

PUBLISHED: dict[str, Any] = {"color": "#000000", "linestyle": "--", "marker": "s"}
PHASE_COLOURS = {  # light to dark in the order they happen, so that they also read in grey
    "prepare": "#E0E0E0",
    "align": "#F0C75E",
    "transfer": "#56B4E9",
    "install": "#0072B2",
    "catch_up": "#332244",
}
_PHASE_ENDS = ("prepared_s", *MOMENTS)


def ccdf_figure(curves: Mapping[str, pd.DataFrame], counted: bool = False) -> Axes:
    """The fraction of results slower than a latency, for each strategy, both axes logarithmic.

    ``curves``: strategy to a frame of ``metrics.ccdf``. The last point of a line, marked, is the slowest result.
    ``counted``: how many results of a run, not the fraction. Of runs of different lengths fractions cannot be compared,
    as the longer one has more results in all.
    """
    shown = "results" if counted else "fraction"
    if not curves:
        raise BadInput("ccdf_figure: no curve given")
    ax = new_axes((7.5, 4.2 + 0.2 * len(curves) / LEGEND_COLUMNS))
    drawn_lines: list[Line2D] = []
    looks = styles(list(curves))
    for strategy, curve in curves.items():
        need(curve, ["latency_ms", shown], f"ccdf_figure, {strategy}")
        drawn = looks[strategy]
        how = drawn.marked_line | {"linewidth": 1.8, "markevery": [-1] if len(curve) else []}
        drawn_lines += ax.plot(curve["latency_ms"], curve[shown], label=drawn.label, **how)
    if not any(map(len, curves.values())):  # without data a log axis has no limits
        ax.set(xlim=(1, 1000), ylim=(1e-3, 1))
    ax.set_yscale("log")
    ax.set_xscale("log")
    plain_numbers(ax.xaxis)
    for fraction, name in ((0.5, "P50"), (0.1, "P90"), (0.01, "P99"), (1e-3, "P99.9"), (1e-4, "P99.99")):
        if not counted and fraction >= ax.get_ylim()[0]:
            ax.axhline(fraction, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
            beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            ax.annotate(name, (1, fraction), (4, 0), va="center", fontsize="small", color="#555555", **beside)
    ax.set(xlabel="latency (ms)", ylabel=f"{'results of a run' if counted else 'fraction of results'} at least as slow")
    heading(ax, "Latency distribution")
    legend_below(ax, drawn_lines)
    return ax


def steps_gantt(migration: pd.DataFrame) -> Axes:
    """Draw when each moved unit was in which phase: one bar per unit, steps from top to bottom.

    A phase whose begin or end is unknown is left blank.
    """
    need(migration, ["step", "unit", "source", "destination", *_PHASE_ENDS], "steps_gantt")
    ax = new_axes((7.5, 4.5))
    units = migration.sort_values(["step", "switched_s", "installed_s", "unit"]).reset_index(drop=True)
    rows = np.arange(len(units))
    height = 1 if len(units) > 40 else 0.8
    for colour, (begin, end) in zip(PHASE_COLOURS.values(), pairwise(_PHASE_ENDS), strict=True):
        width = units[end] - units[begin]
        there = (width > 0).to_numpy()
        ax.barh(rows[there], width[there], height, units.loc[there, begin], color=colour, linewidth=0)
    for row in rows[1:][np.diff(units["step"]) != 0] if units["step"].nunique() <= 12 else []:
        ax.axhline(row - 0.5, color="#888888", linewidth=0.6)
    if len(units) <= 24:
        names = [f"{u.unit}  ({u.source} → {u.destination})" for u in units.itertuples()]
        ax.set_yticks(rows, names)
        ax.set_ylabel("unit (from → to slot), by step")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel(f"{len(units)} units, in {units['step'].nunique()} steps")
    ax.set_ylim(max(len(units), 1) - 0.5, -0.5)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))  # the trigger is in the picture
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("time since the trigger (s)")
    heading(ax, "Units on their way")
    legend_below(ax, [Patch(color=colour, label=name.replace("_", " ")) for name, colour in PHASE_COLOURS.items()])
    return ax


def pareto(tradeoffs: pd.DataFrame, measure: str = SPIKE) -> Axes:
    """P99 spike against completion of each strategy, both axes logarithmic: better is further down and to the left.

    ``tradeoffs`` is from ``tables.tradeoffs``, with the same ``measure``: the longest latency instead of the spike, for
    one. Markers are medians, their bars reach from the lowest to the highest of the repetitions. Lines: P99 before the
    migration, the floor (the time of a bare copy of what had to move), and the front of those that nobody beats in
    both: P99 and floor if they are about the same for all, and the front unless floors differ, as then it would be of
    different jobs. Who was not seen to recover is marked, as the spike may not be over. A strategy that cannot be drawn
    is named in the legend, with the reason.
    """
    cost = cost_of(measure)
    both = [f"{cost}_ms", "completion_s"]
    need(tradeoffs, ["label", "strategy", "verdict", "stays", "recovered", "front", "floor_s", *both], "pareto")
    ax = new_axes((8.5, max(4.6, 1.6 + 0.27 * len(tradeoffs))))
    drawn = tradeoffs.dropna(subset=both).sort_values("completion_s")
    front = drawn[drawn["front"]]
    looks = styles(list(tradeoffs["label"].unique()))
    signs: list[Artist] = [_cost(ax, row, cost, looks[row["label"]]) for row in drawn.to_dict("records")]
    for column, line, dashes, text in (
        ("p99_before_ms", ax.axhline, ":", "P99 before: {:.3g} ms"),
        ("floor_s", ax.axvline, "--", "floor, a bare copy: {:.2g} s"),
    ):
        value = drawn[column].median()
        if pd.notna(value) and shared(drawn[column]):
            style: dict[str, Any] = {"color": "#444444", "linestyle": dashes, "linewidth": 1.2}
            line(value, zorder=1, **style)
            signs.append(legend_line(text.format(value), **style))
    if len(front) > 1 and shared(drawn["floor_s"]):
        ribbon: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.5, "linewidth": 6, "solid_capstyle": "round"}
        ax.plot(front["completion_s"], front[f"{cost}_ms"], zorder=1, **ribbon)
        signs.append(legend_line("nobody is better in both", **ribbon))
    if drawn["stays"].any():
        signs.append(legend_line("* part of the state stays behind", linestyle=""))
    if not drawn["recovered"].all():
        signs.append(legend_line("† load ended before recovery", linestyle=""))
    for row in tradeoffs[~tradeoffs.index.isin(drawn.index)].to_dict("records"):
        reason = "not correct" if row["verdict"] != "ok" else f"{measure.removesuffix(' (ms)')} or completion not known"
        signs.append(legend_line(f"{_name(row)}: {reason}", linestyle=""))
    plain_log(ax, "x")
    plain_log(ax, "y")
    ax.set(xlabel="completion: first switch to last unit in place (s)", ylabel=measure)
    heading(ax, "What a migration costs")
    ax.legend(handles=signs, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
    return ax


def published_figure(lines: Mapping[str, pd.DataFrame], measure: str, *, title: str = "") -> Axes:
    """Published values in black, ours in colour, a line each, over the points of the curve on a log axis.

    ``lines``: ours by their names, with the columns point, published and ours (NaN: not known); the points and the
    published values of all are the same.
    """
    first = next(iter(lines.values()))
    need(first, ["point", "published", "ours"], "published_figure")
    ax = new_axes((max(5.0, 1.1 * len(first)), 3.4 + 0.15 * len(lines)))
    handles = ax.plot(range(len(first)), first["published"], label="published", **PUBLISHED)
    for name, look in styles(list(lines)).items():
        how = look.marked_line | {"linestyle": "-"}
        handles += ax.plot(range(len(first)), lines[name]["ours"], label=look.label, **how)
    ax.set_xticks(range(len(first)), [name.replace(", ", "\n") for name in first["point"]])
    ax.set_ylabel(measure)
    plain_log(ax, "y")
    heading(ax, title)
    legend_below(ax, handles)
    return ax


def _cost(ax: Axes, row: dict[Hashable, Any], cost: str, how: Style) -> Line2D:
    """One strategy of ``pareto``, and its handle for the legend."""
    took, high = row["completion_s"], row[f"{cost}_ms"]
    across = [[took - row["completion_low_s"]], [row["completion_high_s"] - took]]
    up = [[high - row[f"{cost}_low_ms"]], [row[f"{cost}_high_ms"] - high]]
    look: dict[str, Any] = {"color": how.colour, "marker": how.marker, "markersize": 8, "linewidth": 1.2, "zorder": 3}
    ax.errorbar(took, high, up, across, **look)
    name = _name(row) + (" *" if row["stays"] else "") + ("" if row["recovered"] else " †")
    return legend_line(name, color=how.colour, marker=how.marker, linestyle="")


def _name(row: dict[Hashable, Any]) -> str:
    """The strategy's name for readers; with its parameters, if there are several points of it."""
    return style_of(row["strategy"]).label + str(row["label"]).removeprefix(row["strategy"])
