"""Figures of strategies side by side, from stored results; nothing is aggregated here.

How a strategy looks, in every figure, is in ``style``.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from keyshift.analysis.marks import handles, mark, migration_spans
from keyshift.analysis.metrics import need
from keyshift.analysis.plots.style import (
    LEGEND_COLUMNS,
    columns_for,
    finish,
    heading,
    label_lowest,
    legend_below,
    new_axes,
    panel_grid,
    style_of,
)
from keyshift.model.errors import BadInput

PHASE_COLOURS = {  # light to dark in the order they happen, so that they also read in grey
    "prepare": "#E0E0E0",
    "align": "#F0C75E",
    "transfer": "#56B4E9",
    "install": "#0072B2",
    "catch up": "#332244",
}
_PHASE_ENDS = ("prepared_s", "switched_s", "aligned_s", "received_s", "installed_s", "drained_s")
Timeline = tuple[pd.DataFrame, pd.DataFrame | None]  # per-second latency, migration


def panels(
    runs: Mapping[str, Timeline],
    *,
    title: str = "Latency while state moves",
    notes: Mapping[str, str] | None = None,
    objective_ms: float | None = None,
    faults: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Per-second P50 and P99 on a log axis, the trigger at 0, the migration shaded, faults dotted. A panel each.

    Latency per second is from ``metrics.per_second``, or from ``metrics.over_repetitions``: then the range of P99 over
    the repetitions is drawn too. The shade runs from the first routing switch to the last installed unit; where nothing
    is on its way for a second, there is none. All panels have the same axes.
    ``notes``: strategy to a text below its title. ``faults``: strategy to their moments (s).
    """
    if not runs:
        raise BadInput("panels: no run given")
    columns = columns_for(len(runs))
    figure, axes = panel_grid(len(runs), columns, (4.3, 3.0), sharex=True, sharey=True)
    limits = []
    for ax, (strategy, (seconds, migration)) in zip(axes, runs.items(), strict=True):
        need(seconds, ["second", "p50_ms", "p99_ms"], f"panels, {strategy}")
        drawn = style_of(strategy)
        limits.append(_timeline(ax, seconds, drawn.colour))
        mark(ax, migration, (faults or {}).get(strategy, ()))
        if objective_ms is not None:
            ax.axhline(objective_ms, color="#444444", linewidth=1, linestyle="-.", zorder=1)
        heading(ax, drawn.label, (notes or {}).get(strategy, ""))
        ax.set_ylabel("latency (ms)")
        ax.label_outer()
    spans = [span for _, migration in runs.values() for span in migration_spans(migration)]
    axes[0].set_xlim(min(begin for begin, _ in limits), max(end for _, end in [*limits, *spans]))
    # The first panels fixed the axis that all share, before the others had drawn anything on it.
    axes[0].autoscale(axis="y")
    plain_log(axes[0], "y")
    label_lowest(axes, columns, "time since the trigger (s)")
    ranged = any("p99_low_ms" in seconds for seconds, _ in runs.values())
    marks = handles(bool(spans), any((faults or {}).values()))
    return finish(figure, title, _timeline_handles(marks, objective_ms, ranged))


def _timeline(ax: Axes, seconds: pd.DataFrame, colour: str) -> tuple[float, float]:
    """Draws P50 and P99 of each second, as steps; gives from when to when, the trigger included."""
    every = seconds.set_index("second").sort_index()
    if len(every):  # a second without results breaks the line
        every = every.reindex(range(int(every.index[0]), int(every.index[-1]) + 1))
    # Steps, not slopes: a line from second to second would rise before the trigger.
    middle = every.index.to_numpy("float64") + 0.5
    for measure, width, dots in (("p50", 1.2, (0, (1, 1))), ("p99", 2.0, "-")):
        ax.plot(
            middle,
            every[f"{measure}_ms"],
            color=colour,
            linewidth=width,
            linestyle=dots,
            drawstyle="steps-mid",
            zorder=3,
        )
    if "p99_low_ms" in every:
        low, high = every["p99_low_ms"], every["p99_high_ms"]
        ax.fill_between(middle, low, high, step="mid", color=colour, alpha=0.25, linewidth=0, zorder=2)
    return (min(middle[0] - 0.5, 0.0), float(middle[-1] + 0.5)) if len(every) else (0.0, 1.0)


def ccdf_figure(curves: Mapping[str, pd.DataFrame]) -> Axes:
    """For each strategy the fraction of results slower than a latency, both axes logarithmic.

    ``curves``: strategy to a frame of ``metrics.ccdf``. The last point of a line, marked, is the slowest result.
    """
    if not curves:
        raise BadInput("ccdf_figure: no curve given")
    ax = new_axes((7.5, 4.2 + 0.2 * len(curves) / LEGEND_COLUMNS))
    drawn_lines: list[Line2D] = []
    for strategy, curve in curves.items():
        need(curve, ["latency_ms", "fraction"], f"ccdf_figure, {strategy}")
        drawn = style_of(strategy)
        drawn_lines += ax.plot(
            curve["latency_ms"],
            curve["fraction"],
            color=drawn.colour,
            linestyle=drawn.line,
            linewidth=1.8,
            marker=drawn.marker,
            markevery=[-1] if len(curve) else [],
            label=drawn.label,
        )
    ax.set_yscale("log")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    for fraction, name in ((0.5, "P50"), (0.1, "P90"), (0.01, "P99"), (1e-3, "P99.9"), (1e-4, "P99.99")):
        if fraction >= ax.get_ylim()[0]:
            ax.axhline(fraction, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
            ax.annotate(
                name,
                (1, fraction),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
                color="#555555",
            )
    ax.set(xlabel="latency (ms)", ylabel="fraction of results at least as slow")
    heading(ax, "Latency distribution")
    legend_below(ax, drawn_lines)
    return ax


def steps_gantt(migration: pd.DataFrame) -> Axes:
    """When each moved unit was in which phase: one bar per unit, steps from top to bottom.

    A phase whose begin or end is unknown is left blank.
    """
    need(migration, ["step", "unit", "source", "destination", *_PHASE_ENDS], "steps_gantt")
    ax = new_axes((7.5, 4.5))
    units = migration.sort_values(["step", "switched_s", "installed_s", "unit"]).reset_index(drop=True)
    rows = np.arange(len(units))
    for (name, colour), begin, end in zip(PHASE_COLOURS.items(), _PHASE_ENDS, _PHASE_ENDS[1:], strict=False):
        width = units[end] - units[begin]
        there = (width > 0).to_numpy()
        ax.barh(
            rows[there],
            width[there],
            left=units.loc[there, begin],
            height=1 if len(units) > 40 else 0.8,
            color=colour,
            linewidth=0,
            label=name,
        )
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
    legend_below(ax, [Patch(color=colour, label=name) for name, colour in PHASE_COLOURS.items()])
    return ax


def pareto(tradeoffs: pd.DataFrame) -> Axes:
    """P99 spike against completion of each strategy, both axes logarithmic: better is further down and to the left.

    ``tradeoffs`` is from ``tables.tradeoffs``. Markers are medians, their bars reach from the lowest to the highest of
    the repetitions. Lines: P99 before the migration, the floor (the time of a bare copy of what had to move), and the
    front of those that nobody beats in both. A strategy that cannot be drawn is named in the legend, with the reason.
    """
    need(tradeoffs, ["label", "strategy", "verdict", "stays", "front", "spike_ms", "completion_s"], "pareto")
    ax = new_axes((8.5, max(4.6, 1.6 + 0.27 * len(tradeoffs))))
    drawn = tradeoffs.dropna(subset=["spike_ms", "completion_s"]).sort_values("completion_s")
    front = drawn[drawn["front"]]
    signs: list[Artist] = [_cost(ax, row) for row in drawn.to_dict("records")]
    for column, line, dashes, text in (
        ("p99_before_ms", ax.axhline, ":", "P99 before: {:.3g} ms"),
        ("floor_s", ax.axvline, "--", "floor, a bare copy: {:.2g} s"),
    ):
        value = drawn[column].median()
        if pd.notna(value):
            style: dict[str, Any] = {"color": "#444444", "linestyle": dashes, "linewidth": 1.2}
            line(value, zorder=1, **style)
            signs.append(Line2D([], [], label=text.format(value), **style))
    if len(front) > 1:
        ribbon: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.5, "linewidth": 6, "solid_capstyle": "round"}
        ax.plot(front["completion_s"], front["spike_ms"], zorder=1, **ribbon)
        signs.append(Line2D([], [], label="nobody is better in both", **ribbon))
    if drawn["stays"].any():
        signs.append(Line2D([], [], linestyle="", label="* part of the state stays behind"))
    for row in tradeoffs[~tradeoffs.index.isin(drawn.index)].to_dict("records"):
        reason = "not correct" if row["verdict"] != "ok" else "spike or completion not known"
        signs.append(Line2D([], [], linestyle="", label=f"{_name(row)}: {reason}"))
    plain_log(ax, "x")
    plain_log(ax, "y")
    ax.set(xlabel="completion: first switch to last unit in place (s)", ylabel="P99 spike (ms)")
    heading(ax, "What a migration costs")
    ax.legend(handles=signs, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
    return ax


def _cost(ax: Axes, row: dict[Hashable, Any]) -> Line2D:
    """One strategy of ``pareto``, and its handle for the legend."""
    how = style_of(row["strategy"])
    ax.errorbar(
        row["completion_s"],
        row["spike_ms"],
        xerr=[[row["completion_s"] - row["completion_low_s"]], [row["completion_high_s"] - row["completion_s"]]],
        yerr=[[row["spike_ms"] - row["spike_low_ms"]], [row["spike_high_ms"] - row["spike_ms"]]],
        color=how.colour,
        marker=how.marker,
        markersize=8,
        linewidth=1.2,
        zorder=3,
    )
    name = _name(row) + (" *" if row["stays"] else "")
    return Line2D([], [], color=how.colour, marker=how.marker, linestyle="", label=name)


def _name(row: dict[Hashable, Any]) -> str:
    """The strategy's name for readers; with its parameters, if there are several points of it."""
    return style_of(row["strategy"]).label + str(row["label"]).removeprefix(row["strategy"])


def plain_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """A log axis with plain numbers, which spans at least a decade so that it has labels to read."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    if low <= 0:  # nothing was drawn
        ax.set(**{f"{which}lim": (1, 1000)})
    elif high / low < 20:
        middle = np.sqrt(low * high)
        ax.set(**{f"{which}lim": (middle / 5, middle * 5)})
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _timeline_handles(marks: list[Artist], objective_ms: float | None, ranged: bool) -> list[Artist]:
    colour = "#444444"  # for all strategies
    found: list[Artist] = [
        Line2D([], [], color=colour, linewidth=2.0, label="P99"),
        Line2D([], [], color=colour, linewidth=1.2, linestyle=(0, (1, 1)), label="P50"),
    ]
    if ranged:
        found.append(Patch(color=colour, alpha=0.25, label="P99, range of repetitions"))
    found += marks
    if objective_ms is not None:
        text = f"objective ({objective_ms:.3g} ms)"
        found.append(Line2D([], [], color="#444444", linewidth=1, linestyle="-.", label=text))
    return found
