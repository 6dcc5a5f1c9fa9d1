"""Figures of a sweep: measures, and the phases of a migration, over a varied parameter.

Each is one call with the summary rows of the runs. Marks are means, bars of an interval are 95 % by Student-t over the
repetitions. Runs whose verdict is not ok are left out, and the legend says how many.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from keyshift.analysis.conclusions import enumerated
from keyshift.analysis.plots.strategies import PHASE_COLOURS, plain_log
from keyshift.analysis.plots.style import Style, columns_for, finish, heading, panel_grid, shown, style_of, styles
from keyshift.analysis.sweeps import in_order, sweep
from keyshift.analysis.tables import MEASURES, Measure, Row, phase_name
from keyshift.model.errors import BadInput

MEASURED = ("P99 spike (ms)", "completion (s)")
LOG_SPAN = 8.0  # a parameter, or a measure, that varies by this factor is drawn on a log axis
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))  # so that lines stay apart in grey, too
HATCHES = ("", "///", "...", "\\\\\\", "xx", "++", "oo", "--")
PHASE_STYLES = {  # colour and hatch, in the order they happen
    "plan": ("#FFFFFF", "..."),
    **{name.replace(" ", "_"): (colour, "") for name, colour in PHASE_COLOURS.items()},
}
_ASIDE = ("#FFFFFF", "////")  # replication, which runs beside the phases
_TOTAL = "total"
_PHASE_MEASURES: dict[str, Measure] = {name: MEASURES[phase_name(name)] for name in (*PHASE_STYLES, "replicate")}


def sweep_lines(
    summaries: Sequence[Row],
    parameter: str,
    measures: Sequence[str] | Mapping[str, Measure] = MEASURED,
    group: str = "strategy",
    *,
    title: str | None = None,
    label: str | None = None,
) -> Figure:
    """Measures over a parameter: a panel per measure, a line per ``group``; see ``sweeps.sweep`` for the names.

    ``label``: the name of the parameter with its unit, for the axis. Numbers stand at their place, on a log axis if
    they span a factor of eight; other values side by side.
    """
    points = _points(summaries, parameter, measures, group)
    drawn = styles(list(points["group"].unique()), group)
    values = in_order(parameter, points["value"])
    numeric = all(isinstance(value, (int, float, np.number)) for value in values)
    panels = points["measure"].nunique()
    figure, axes = panel_grid(panels, columns_for(panels), (4.6, 3.4))
    drawn_as: dict[Hashable, dict[str, Any]] = {
        name: {"color": how.colour, "marker": how.marker, "markersize": 7, "linestyle": DASHES[number % len(DASHES)]}
        for number, (name, how) in enumerate(drawn.items())
    }
    for ax, (measure, of_measure) in zip(axes, points.groupby("measure", sort=False), strict=True):
        for name, line in of_measure.groupby("group", sort=False):
            where = line["value"].astype("float64") if numeric else line["value"].map(values.index)
            more: dict[str, Any] = {"linewidth": 1.6, "elinewidth": 1.1, "capsize": 3}
            ax.errorbar(where, line["mean"], yerr=_reach(line), **drawn_as[name], **more)
        _value_axis(ax, values, numeric, parameter, label)
        _measure_axis(ax, of_measure, str(measure))
    handles = [Line2D([], [], label=drawn[name].label, **drawn_as[name]) for name in drawn]
    return finish(figure, title or _title(points, label or parameter), handles, _notes(points))


def sweep_bars(
    summaries: Sequence[Row],
    parameter: str,
    measures: Sequence[str] | Mapping[str, Measure] = MEASURED,
    group: str = "strategy",
    *,
    title: str | None = None,
    label: str | None = None,
) -> Figure:
    """As ``sweep_lines``, with a bar per group beside each other at every value of the parameter.

    A star above a bar: it differs from the first group at the same value by more than chance (Welch, 95 %).
    """
    points = _points(summaries, parameter, measures, group)
    drawn = styles(list(points["group"].unique()), group)
    values = in_order(parameter, points["value"])
    width = 0.8 / len(drawn)
    figure, axes = panel_grid(
        points["measure"].nunique(),
        columns_for(points["measure"].nunique()),
        (max(4.6, 0.28 * len(drawn) * len(values) + 1.5), 3.4),
    )
    for ax, (measure, of_measure) in zip(axes, points.groupby("measure", sort=False), strict=True):
        for number, (name, bars) in enumerate(of_measure.groupby("group", sort=False)):
            places = bars["value"].map(values.index) + (number - (len(drawn) - 1) / 2) * width
            _bars(ax, places, bars, width, drawn[name], HATCHES[number % len(HATCHES)])
        _value_axis(ax, values, False, parameter, label)
        ax.set_xlim(-0.6, len(values) - 0.4)
        ax.grid(visible=False, axis="x")
        ax.margins(y=0.12)  # for the stars
        _measure_axis(ax, of_measure, str(measure))
    handles: list[Artist] = [
        Patch(facecolor=how.colour, edgecolor="white", hatch=HATCHES[number % len(HATCHES)], label=how.label)
        for number, how in enumerate(drawn.values())
    ]
    first = next(iter(drawn.values())).label
    stars = [f"* differs from {first} (95 %, Welch)"] if points["differs"].eq(True).any() else []
    return finish(figure, title or _title(points, label or parameter), handles, [*stars, *_notes(points)])


def phase_bars(
    summaries: Sequence[Row],
    parameter: str = "strategy",
    group: str | None = None,
    *,
    title: str = "Where the time of a migration goes",
    label: str | None = None,
) -> Figure:
    """Stacked bars of a migration's phases (means, seconds), one per value of ``parameter``, a panel per ``group``.

    plan, prepare, align, transfer, install and catch up add up to the time from the trigger to the last drained unit,
    whose interval is drawn. Without ``group``, runs of several workloads have a panel each.
    Making copies ahead is in no sum: it has a slim bar of its own, beside them. A phase that no run knows is missing.
    """
    points = _points(summaries, parameter, {**_PHASE_MEASURES, _TOTAL: _total}, group or "workload")
    values = in_order(parameter, points["value"])
    groups = points["group"].unique()
    figure, axes = panel_grid(
        len(groups), columns_for(len(groups)), (max(3.6, 0.55 * len(values) + 1.2), 3.4), sharey=True
    )
    shown = set()
    for ax, name in zip(axes, groups, strict=True):
        of_group_rows = points[points["group"] == name]
        of_group = of_group_rows.set_index(["value", "measure"])["mean"]
        base = np.zeros(len(values))
        for phase in (*PHASE_STYLES, "replicate"):
            heights = np.array([of_group.get((value, phase), np.nan) for value in values])
            if not (heights > 0).any():
                continue
            shown.add(phase)
            aside = phase == "replicate"
            colour, hatch = _ASIDE if aside else PHASE_STYLES[phase]
            ax.bar(
                np.arange(len(values)) + (0.38 if aside else 0),
                heights,
                0.12 if aside else 0.6,
                bottom=0 if aside else base,
                color=colour,
                hatch=hatch,
                edgecolor="#555555",
                linewidth=0.6,
            )
            base += 0 if aside else np.nan_to_num(heights)
        totals = of_group_rows[of_group_rows["measure"] == _TOTAL].set_index("value").reindex(values)
        reach = _reach(totals)
        if reach is not None:
            ax.errorbar(range(len(values)), totals["mean"], yerr=reach, fmt="none", ecolor="#333333", capsize=3)
        _value_axis(ax, values, False, parameter, label)
        ax.grid(visible=False, axis="x")
        heading(ax, styles([name], group)[name].label if group else "")
    for ax in axes[:: columns_for(len(groups))]:
        ax.set_ylabel("time (s)")
    handles: list[Artist] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#555555", label=phase.replace("_", " "))
        for phase, (colour, hatch) in PHASE_STYLES.items()
        if phase in shown
    ]
    if "replicate" in shown:
        handles.append(Patch(facecolor=_ASIDE[0], hatch=_ASIDE[1], edgecolor="#555555", label="copies (beside)"))
    return finish(figure, title, handles, _notes(points[points["measure"] == _TOTAL]))


def _total(row: Row) -> float | None:
    """Trigger to last drained unit; None if a phase is not known (a plan that was not measured took no time)."""
    found = [_PHASE_MEASURES[name](row) for name in PHASE_STYLES]
    return None if None in found[1:] else sum(value or 0.0 for value in found)


def _title(points: pd.DataFrame, over: str) -> str:
    names = [name.partition(" (")[0] for name in points["measure"].unique()]
    return f"{enumerated(names)} over {over}"


def _points(
    summaries: Sequence[Row], parameter: str, measures: Sequence[str] | Mapping[str, Measure], group: str
) -> pd.DataFrame:
    if not summaries:
        raise BadInput(f"no run given: a figure over {parameter} needs at least one")
    points = sweep(summaries, parameter, measures, group)
    if points.empty or not points["runs"].any():
        raise BadInput(
            f"nothing to draw over {parameter}: of {len(summaries)} runs none is correct and knows a measure"
        )
    return points


def _bars(ax: Axes, places: pd.Series, bars: pd.DataFrame, width: float, how: Style, hatch: str) -> None:
    drawn: BarContainer = ax.bar(
        places, bars["mean"], width, yerr=_reach(bars), color=how.colour, hatch=hatch, edgecolor="white",
        linewidth=0.5, error_kw={"elinewidth": 1.1, "capsize": 2.5, "ecolor": "#333333"},
    )  # fmt: skip
    tops = bars["high"].fillna(bars["mean"])
    for patch, top, differs in zip(drawn.patches, tops, bars["differs"], strict=True):
        if differs is True:
            ax.annotate("*", (patch.get_x() + width / 2, top), ha="center", va="bottom", fontweight="bold")


def _reach(points: pd.DataFrame) -> np.ndarray | None:
    """How far the intervals reach below and above the means, never below 0; None if no point was repeated."""
    if points["low"].isna().all():
        return None
    reach = np.array([points["mean"] - points["low"].clip(lower=0), points["high"] - points["mean"]])
    return np.nan_to_num(reach)


def _value_axis(ax: Axes, values: Sequence[Hashable], numeric: bool, parameter: str, label: str | None) -> None:
    """Numbers at their place, other values side by side, strategies by the names that readers know."""
    ax.set_xlabel(label or parameter)
    if numeric:
        numbers = [float(str(value)) for value in values]
        if numbers[0] > 0 and numbers[-1] / numbers[0] >= LOG_SPAN:
            ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(numbers, [f"{number:g}" for number in numbers])
        return
    names = [style_of(str(value)).label if parameter == "strategy" else shown(value) for value in values]
    ax.set_xticks(range(len(values)), names)
    if max(len(name) for name in names) * len(names) > 40:
        ax.tick_params(axis="x", rotation=30)
        plt.setp(ax.get_xticklabels(), ha="right", rotation_mode="anchor")


def _measure_axis(ax: Axes, points: pd.DataFrame, measure: str) -> None:
    """A log axis where the means are far apart; else it begins at 0."""
    means = points["mean"].dropna()
    if len(means) and means.min() > 0 and means.max() / means.min() >= LOG_SPAN:
        plain_log(ax, "y")
    else:
        ax.margins(y=0.08)
        ax.set_ylim(bottom=0)
    heading(ax, measure)


def _notes(points: pd.DataFrame) -> list[str]:
    """What a reader of the figure has to know about the runs behind it."""
    each = points.drop_duplicates(["group", "value"])
    fewest, most = points.loc[points["runs"] > 0, "runs"].min(), points["runs"].max()
    runs = f"{most}" if fewest == most else f"{fewest} to {most}"
    notes = [f"mean and 95 % interval of {runs} runs"] if most > 1 else []
    if left_out := int(each["left_out"].sum()):
        notes.append(f"{left_out} run{'s' * (left_out > 1)} left out: not correct")
    if unknown := int(points["unknown"].sum()):
        notes.append(f"{unknown} value{'s' * (unknown > 1)} not known")
    return notes
