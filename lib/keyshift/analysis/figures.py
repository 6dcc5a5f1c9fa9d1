"""Figures from stored results: each function draws into one Axes and returns it, and aggregates nothing.

A strategy has the same colour, line, marker and name in every figure. Colours are Okabe and Ito's and Tol's, chosen to
stay apart for colour-blind readers; where two strategies of a family share one, line and marker tell them apart.
"""

import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from zlib import crc32

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from keyshift.analysis.metrics import need
from keyshift.errors import BadInput


class Look(NamedTuple):
    """How a strategy is drawn: matplotlib colour, line style and marker, and the name a reader sees."""

    colour: str
    line: str
    marker: str
    label: str


_VERMILLION, _ORANGE, _BLUE, _SKY, _GREEN = "#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73"
_PINK, _BLACK, _WINE, _INDIGO = "#CC79A7", "#000000", "#882255", "#332288"
_LOOKS = {
    "stop_restart": Look(_VERMILLION, "-", "X", "stop and restart"),
    "pause_resume": Look(_VERMILLION, "--", "P", "pause and resume (Trisk)"),
    "all_at_once": Look(_ORANGE, "-", "s", "all at once"),
    "order_unaware": Look(_ORANGE, "--", "D", "order-unaware"),
    "fluid": Look(_BLUE, "-", "o", "fluid"),
    "fluid_per_source": Look(_SKY, "-", "^", "fluid per source"),
    "matched": Look(_GREEN, "-", "v", "matched"),
    "spacker_dynamic": Look(_GREEN, "--", "d", "dynamic (Spacker)"),
    "chunked": Look(_PINK, "-", "<", "chunked"),
    "hot_first": Look(_PINK, "--", ">", "hot first"),
    "meces": Look(_BLACK, "-", "p", "Meces"),
    "drrs": Look(_BLACK, "--", "h", "DRRS"),
    "rhino": Look(_WINE, "-", "H", "Rhino"),
    "replicated": Look(_WINE, "--", "*", "replicated"),
    "lazy": Look(_INDIGO, "-", "8", "lazy"),
    "hybrid": Look(_INDIGO, "--", "x", "hybrid"),
}
_EXTRA_COLOURS = ("#999933", "#117733", "#AA4499", "#661100", "#6699CC")
_EXTRA_MARKERS = ("1", "2", "3", "4", "+", "|", "_")

PHASE_COLOURS = {  # light to dark in the order they happen, so that they also read in grey
    "prepare": "#E0E0E0",
    "align": "#F0C75E",
    "transfer": "#56B4E9",
    "install": "#0072B2",
    "catch up": "#332244",
}
LEGEND_COLUMNS = 3
_PHASE_ENDS = ("prepared_s", "switched_s", "aligned_s", "received_s", "installed_s", "drained_s")

Timeline = tuple[pd.DataFrame, pd.DataFrame | None]  # per-second latency, migration


def look(strategy: str) -> Look:
    """How ``strategy`` is drawn; a name that is not known gets a look of its own that depends on the name only."""
    if strategy in _LOOKS:
        return _LOOKS[strategy]
    code = crc32(strategy.encode())
    colour = _EXTRA_COLOURS[code % len(_EXTRA_COLOURS)]
    marker = _EXTRA_MARKERS[code // len(_EXTRA_COLOURS) % len(_EXTRA_MARKERS)]
    return Look(colour, "-.", marker, strategy)


def theme() -> AbstractContextManager[None]:
    """A context in which figures are made in the project's style; others are left alone."""
    return mpl.rc_context(
        {
            **sns.axes_style("whitegrid"),
            **sns.plotting_context("notebook", font_scale=0.85),
            "axes.edgecolor": "#888888",
            "grid.color": "#E6E6E6",
            "savefig.dpi": 150,
            "svg.hashsalt": "keyshift",  # the same figure gives the same bytes
        }
    )


def latency_timeline(
    seconds: pd.DataFrame,
    migration: pd.DataFrame | None = None,
    *,
    ax: Axes | None = None,
    strategy: str | None = None,
    objective_ms: float | None = None,
    legend: bool = True,
) -> Axes:
    """Per-second P50 and P99 of one strategy on a log axis, the trigger at 0, the migration shaded.

    ``seconds`` is from ``metrics.per_second``, or from ``metrics.over_repetitions``: then the range of P99
    over the repetitions is drawn too. The shade runs from the first routing switch to the last installed unit.
    """
    need(seconds, ["second", "p50_ms", "p99_ms"], "latency_timeline")
    ax = _axes((7.5, 4.0)) if ax is None else ax
    drawn = _LOOKS["fluid"] if strategy is None else look(strategy)
    every = seconds.set_index("second").sort_index()
    if len(every):  # a second without results breaks the line
        every = every.reindex(range(int(every.index[0]), int(every.index[-1]) + 1))
    # Steps, not slopes: a line from second to second would rise before the trigger.
    middle = every.index.to_numpy("float64") + 0.5
    for measure, width, dots in (("p50", 1.2, (0, (1, 1))), ("p99", 2.0, "-")):
        ax.plot(
            middle,
            every[f"{measure}_ms"],
            color=drawn.colour,
            linewidth=width,
            linestyle=dots,
            drawstyle="steps-mid",
            zorder=3,
        )
    if "p99_low_ms" in every:
        low, high = every["p99_low_ms"], every["p99_high_ms"]
        ax.fill_between(middle, low, high, step="mid", color=drawn.colour, alpha=0.25, linewidth=0, zorder=2)
    span = _span(migration)
    if span is not None:
        ax.axvspan(*span, color="#BBBBBB", alpha=0.45, linewidth=0, zorder=0)
    ax.axvline(0, color="black", linewidth=1, linestyle="--", zorder=1)
    if objective_ms is not None:
        ax.axhline(objective_ms, color="#444444", linewidth=1, linestyle="-.", zorder=1)
    if len(every):
        ax.set_xlim(min(middle[0] - 0.5, 0), max(middle[-1] + 0.5, span[1] if span else 0))
    _log_ms(ax)
    ax.set_xlabel("time since the trigger (s)")
    ax.set_ylabel("latency (ms)")
    _title(ax, f"Latency per second: {drawn.label}" if strategy else "Latency per second")
    if legend:
        handles = _timeline_handles(drawn.colour, span is not None, objective_ms, "p99_low_ms" in seconds)
        _legend_below(ax, handles)
    return ax


def panels(
    runs: Mapping[str, Timeline],
    *,
    title: str = "Latency while state moves",
    notes: Mapping[str, str] | None = None,
    objective_ms: float | None = None,
) -> Figure:
    """One ``latency_timeline`` per strategy, all with the same axes; ``notes`` (strategy to text) go below titles."""
    if not runs:
        raise BadInput("panels: no run given")
    columns = len(runs) if len(runs) <= 3 else 2 if len(runs) == 4 else 3
    rows = -(-len(runs) // columns)
    with theme():
        figure, grid = plt.subplots(
            rows,
            columns,
            figsize=(max(4.3 * columns, 6.5), 3.0 * rows + 0.9),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout=ConstrainedLayoutEngine(w_pad=0.12),  # with less, tick labels of neighbours touch
        )
        axes = list(grid.flat)
        limits = []
        for ax, (strategy, (seconds, migration)) in zip(axes, runs.items(), strict=False):
            latency_timeline(seconds, migration, ax=ax, strategy=strategy, objective_ms=objective_ms, legend=False)
            limits.append(ax.get_xlim())
            note = (notes or {}).get(strategy)
            _title(ax, look(strategy).label, pad=18 if note else 6)
            if note:
                ax.text(0, 1.02, note, transform=ax.transAxes, fontsize="small", color="#333333", va="bottom")
            ax.label_outer()
        axes[0].set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        # The first panels fixed the axis that all share, before the others had drawn anything on it.
        axes[0].autoscale(axis="y")
        _log_ms(axes[0])
        for ax in axes[len(runs) :]:
            ax.set_visible(False)
        for ax in axes[max(len(runs) - columns, 0) : len(runs)]:  # nothing below these, even if the last row is short
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("time since the trigger (s)")
        moved = any(_span(migration) is not None for _, migration in runs.values())
        ranged = any("p99_low_ms" in seconds for seconds, _ in runs.values())
        handles = _timeline_handles("#444444", moved, objective_ms, ranged)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), frameon=False)
        figure.suptitle(title, fontsize="large", fontweight="bold", x=0.01, ha="left")
    return figure


def ccdf_figure(curves: Mapping[str, pd.DataFrame], *, ax: Axes | None = None) -> Axes:
    """For each strategy the fraction of results slower than a latency, both axes logarithmic.

    ``curves``: strategy to a frame of ``metrics.ccdf``. The last point of a line, marked, is the slowest result.
    """
    if not curves:
        raise BadInput("ccdf_figure: no curve given")
    ax = _axes((7.5, 4.2 + 0.2 * len(curves) / LEGEND_COLUMNS)) if ax is None else ax
    handles: list[Line2D] = []
    for strategy, curve in curves.items():
        need(curve, ["latency_ms", "fraction"], f"ccdf_figure, {strategy}")
        drawn = look(strategy)
        handles += ax.plot(
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
    for fraction, name in ((0.5, "P50"), (0.1, "P90"), (0.01, "P99"), (1e-4, "P99.99")):
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
    ax.set_xlabel("latency (ms)")
    ax.set_ylabel("fraction of results at least as slow")
    _title(ax, "Latency distribution")
    _legend_below(ax, handles)
    return ax


def steps_gantt(migration: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """When each moved unit was in which phase: one bar per unit, steps from top to bottom.

    A phase whose begin or end is unknown is left blank.
    """
    need(migration, ["step", "unit", "source", "destination", *_PHASE_ENDS], "steps_gantt")
    ax = _axes((7.5, 4.5)) if ax is None else ax
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
    _title(ax, "Units on their way")
    _legend_below(ax, [Patch(color=colour, label=name) for name, colour in PHASE_COLOURS.items()])
    return ax


def save(figure: Figure, name: str, data: pd.DataFrame, svg: bool = False) -> dict[str, bytes]:
    """File name to content: ``name``.png, its data ``name``.csv and, if wanted, ``name``.svg. Writes nothing."""
    files = {f"{name}.csv": data.to_csv(index=False).encode()}
    with theme():
        for kind in ("png", "svg") if svg else ("png",):
            content = io.BytesIO()
            figure.savefig(
                content, format=kind, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None
            )
            files[f"{name}.{kind}"] = content.getvalue()
    return files


def _axes(size: tuple[float, float]) -> Axes:
    with theme():
        return plt.subplots(figsize=size, layout="constrained")[1]


def _span(migration: pd.DataFrame | None) -> tuple[float, float] | None:
    """First switch and last install; None if there is none to draw."""
    if migration is None:
        return None
    need(migration, ["switched_s", "installed_s"], "latency_timeline")
    begin, end = migration["switched_s"].min(), migration["installed_s"].max()
    return None if pd.isna(begin) or pd.isna(end) else (float(begin), float(end))


def _log_ms(ax: Axes) -> None:
    """A log axis with plain numbers, which spans at least a decade so that it has labels to read."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if low <= 0:  # nothing was drawn
        ax.set_ylim(1, 1000)
    elif high / low < 20:
        middle = np.sqrt(low * high)
        ax.set_ylim(middle / 5, middle * 5)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _timeline_handles(colour: str, moved: bool, objective_ms: float | None, ranged: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, linewidth=2.0, label="P99"),
        Line2D([], [], color=colour, linewidth=1.2, linestyle=(0, (1, 1)), label="P50"),
    ]
    if ranged:
        handles.append(Patch(color=colour, alpha=0.25, label="P99, range of repetitions"))
    handles.append(Line2D([], [], color="black", linewidth=1, linestyle="--", label="trigger"))
    if moved:
        handles.append(Patch(color="#BBBBBB", alpha=0.45, label="migration"))
    if objective_ms is not None:
        text = f"objective ({objective_ms:.3g} ms)"
        handles.append(Line2D([], [], color="#444444", linewidth=1, linestyle="-.", label=text))
    return handles


def _title(ax: Axes, text: str, pad: float = 6) -> None:
    ax.set_title(text, loc="left", fontweight="bold", pad=pad)


def _legend_below(ax: Axes, handles: Sequence[Line2D | Patch]) -> None:
    """A legend outside the Axes; more than one row of it goes by fewer columns, or wide names squeeze the figure."""
    columns = len(handles) if len(handles) <= 5 else LEGEND_COLUMNS
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, frameon=False, fontsize="small"
    )
