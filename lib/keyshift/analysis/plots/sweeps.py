"""Figures of a sweep: measures, and the phases of a migration, over a varied parameter.

Each is one call with the summary rows of the runs. Marks are means, bars of an interval are 95 % by Student-t over the
repetitions. Runs whose verdict is not ok are left out, and the legend says how many.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from keyshift.analysis.conclusions import enumerated
from keyshift.analysis.plots.strategies import PHASE_COLOURS
from keyshift.analysis.plots.style import (
    columns_for,
    finish,
    from_zero,
    heading,
    legend_line,
    lines_between,
    panel_grid,
    plain_log,
    shown,
    style_of,
    styles,
)
from keyshift.analysis.rates import HIGHEST, open_ended
from keyshift.analysis.sweeps import in_order, sweep
from keyshift.analysis.tables import MEASURES, Measure, SummaryRow, phase_name
from keyshift.model.errors import BadInput

MEASURED = ("P99 spike (ms)", "completion (s)")
LOG_SPAN = 8.0  # a parameter, or a measure, that varies by this factor is drawn on a log axis
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))  # so that lines stay apart in grey, too
HATCHES = ("", "///", "...", "\\\\\\", "xx", "++", "oo", "--")
_INTERVAL = {"elinewidth": 1.1, "capsize": 2.5, "ecolor": "#333333"}
_BAR: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5, "error_kw": _INTERVAL}
PHASE_STYLES = {"plan": ("#FFFFFF", "..."), **{name: (colour, "") for name, colour in PHASE_COLOURS.items()}}
# Of replication, which runs beside the phases.
_ASIDE: dict[str, Any] = {"facecolor": "#FFFFFF", "hatch": "////", "edgecolor": "#555555"}
_TOTAL = "total"
_PHASE_MEASURES: dict[str, Measure] = {name: MEASURES[phase_name(name)] for name in (*PHASE_STYLES, "replicate")}


def sweep_lines(
    summaries: Sequence[SummaryRow],
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
    swept = _Swept(summaries, parameter, measures, group, label)
    values = swept.values
    numeric = all(isinstance(value, (int, float, np.number)) for value in values)
    figure, panels = swept.panels("measure", (4.6, 3.4))
    drawn_as: dict[Hashable, dict[str, Any]] = {
        name: how.marked_line | {"markersize": 7, "linestyle": DASHES[number % len(DASHES)]}
        for number, (name, how) in enumerate(swept.styles.items())
    }
    for ax, measure, of_measure in panels:
        for name, line in of_measure.groupby("group", sort=False):
            where = line["value"].astype("float64") if numeric else line["value"].map(values.index)
            more: dict[str, Any] = {"linewidth": 1.6, "elinewidth": 1.1, "capsize": 3}
            ax.errorbar(where, line["mean"], yerr=_reach(line), **drawn_as[name], **more)
        if numeric:
            swept.place_numbers(ax)
        else:
            swept.place_names(ax)
        _measure_axis(ax, of_measure, measure)
    handles = [legend_line(how.label, **drawn_as[name]) for name, how in swept.styles.items()]
    return finish(figure, title or swept.title, handles, swept.notes)


def sweep_bars(
    summaries: Sequence[SummaryRow],
    parameter: str,
    measures: Sequence[str] | Mapping[str, Measure] = MEASURED,
    group: str = "strategy",
    *,
    title: str | None = None,
    label: str | None = None,
) -> Figure:
    """As ``sweep_lines``, with a bar per group beside each other at every value of the parameter.

    On a log axis, where the length of a bar would say nothing, it is a marker. A star above one: it differs from the
    first group at the same value by more than chance (Welch, 95 %).
    """
    swept = _Swept(summaries, parameter, measures, group, label)
    values, groups = swept.values, list(swept.styles)
    hatches = {name: HATCHES[number % len(HATCHES)] for number, name in enumerate(groups)}
    width = 0.8 / len(groups)
    figure, panels = swept.panels("measure", (max(4.6, 0.28 * len(groups) * len(values) + 1.5), 3.4))
    barred = False
    for ax, measure, of_measure in panels:
        barred |= not (far := _far_apart(of_measure))
        for name, points in of_measure.groupby("group", sort=False):
            xs = points["value"].map(values.index) + (groups.index(name) - (len(groups) - 1) / 2) * width
            if far:
                ax.errorbar(xs, points["mean"], yerr=_reach(points), capsize=3, **swept.styles[name].sign)
            else:
                how = {"color": swept.styles[name].colour, "hatch": hatches[name]} | _BAR
                ax.bar(xs, points["mean"], width, yerr=_reach(points), **how)
            differs = points["differs"].eq(True)
            for x, top in zip(xs[differs], points["high"].fillna(points["mean"])[differs], strict=True):
                ax.annotate("*", (x, top), ha="center", va="bottom", fontweight="bold")
        swept.place_names(ax)
        ax.set_xlim(-0.6, len(values) - 0.4)
        lines_between(ax, len(values) if far else 1)  # bars need none
        ax.margins(y=0.12)  # for the stars
        _measure_axis(ax, of_measure, measure)
    handles = [
        Patch(facecolor=how.colour, edgecolor="white", hatch=hatches[name], label=how.label)
        if barred
        else how.in_legend
        for name, how in swept.styles.items()
    ]
    starred = swept.points["differs"].eq(True).any()
    stars = [f"* differs from {swept.styles[groups[0]].label} (95 %, Welch)"] if starred else []
    return finish(figure, title or swept.title, handles, [*stars, *swept.notes])


def phase_bars(summaries: Sequence[SummaryRow], parameter: str = "strategy", group: str | None = None) -> Figure:
    """Stacked bars of a migration's phases (means, seconds), one per value of ``parameter``, a panel per ``group``.

    plan, prepare, align, transfer, install and catch up add up to the time from the trigger to the last drained unit,
    whose interval is drawn. Without ``group``, runs of several workloads have a panel each.
    Making copies ahead is in no sum: it has a slim bar of its own, beside them. A phase that no run knows is missing.
    """
    swept = _Swept(summaries, parameter, {**_PHASE_MEASURES, _TOTAL: _total}, group or "workload")
    xs = np.arange(len(swept.values))
    figure, panels = swept.panels("group", (max(3.6, 0.55 * len(xs) + 1.2), 3.4), sharey=True)
    signs: dict[str, Patch] = {}
    for ax, name, of_group in panels:
        means = of_group.pivot(index="value", columns="measure", values="mean").reindex(swept.values)
        heights = means[[*PHASE_STYLES]]
        bases = heights.fillna(0).cumsum(axis=1).shift(axis=1, fill_value=0)
        for phase, (colour, hatch) in PHASE_STYLES.items():
            if (heights[phase] > 0).any():
                look: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": "#555555"}
                ax.bar(xs, heights[phase], 0.6, bases[phase], linewidth=0.6, **look)
                signs[phase] = Patch(label=phase.replace("_", " "), **look)
        if (means["replicate"] > 0).any():
            ax.bar(xs + 0.38, means["replicate"], 0.12, linewidth=0.6, **_ASIDE)
            signs["replicate"] = Patch(label="copies (beside)", **_ASIDE)
        totals = of_group[of_group["measure"] == _TOTAL].set_index("value").reindex(swept.values)
        if (reach := _reach(totals)) is not None:
            ax.errorbar(xs, totals["mean"], yerr=reach, fmt="none", ecolor="#333333", capsize=3)
        swept.place_names(ax)
        ax.grid(visible=False, axis="x")
        heading(ax, swept.styles[name].label if group or len(panels) > 1 else "")
    for ax, _, _ in panels[:: columns_for(len(panels))]:
        ax.set_ylabel("time (s)")
    handles = [signs[phase] for phase in (*PHASE_STYLES, "replicate") if phase in signs]
    notes = _notes(swept.points[swept.points["measure"] == _TOTAL])
    return finish(figure, "Where the time of a migration goes", handles, notes)


def _total(row: SummaryRow) -> float | None:
    """Seconds from the trigger until the last unit is drained; None if a phase is not known (a plan that was not
    measured took none).
    """
    found = [_PHASE_MEASURES[name](row) for name in PHASE_STYLES]
    return None if None in found[1:] else sum(value or 0.0 for value in found)


class _Swept:
    """What a figure draws: ``points`` of ``sweeps.sweep``, the values of the parameter, how groups look, and ``notes``
    for the legend. Raises BadInput if there is nothing to draw.
    """

    def __init__(
        self,
        summaries: Sequence[SummaryRow],
        parameter: str,
        measures: Sequence[str] | Mapping[str, Measure],
        group: str,
        label: str | None = None,
    ) -> None:
        self.points = sweep(summaries, parameter, measures, group)
        if self.points.empty or not self.points["runs"].any():
            raise BadInput(
                f"nothing to draw over {parameter}: of {len(summaries)} runs none is correct and knows a measure"
            )
        self.values = in_order(parameter, self.points["value"])
        self.styles = styles(list(self.points["group"].unique()), group)
        self._parameter, self._label = parameter, label or parameter
        self.notes = _notes(self.points)
        if HIGHEST in measures and (searches := len(open_ended(summaries))):
            self.notes.append(f"{searches} search{'es' * (searches > 1)}: at least, the next rate was offered late")

    @property
    def title(self) -> str:
        """The title of a figure that has none."""
        names = [name.partition(" (")[0] for name in self.points["measure"].unique()]
        return f"{enumerated(names)} over {self._label}"

    def panels(
        self, by: str, size: tuple[float, float], **shared: Any
    ) -> tuple[Figure, list[tuple[Axes, Any, pd.DataFrame]]]:
        """A figure with a panel for each value of a column, and the points of each."""
        parts = list(self.points.groupby(by, sort=False))
        figure, axes = panel_grid(len(parts), columns_for(len(parts)), size, **shared)
        return figure, [(ax, name, part) for ax, (name, part) in zip(axes, parts, strict=True)]

    def place_numbers(self, ax: Axes) -> None:
        """The values at their places on the axis, a log axis if they are far apart."""
        ax.set_xlabel(self._label)
        numbers = [float(value) for value in self.values]
        if numbers[0] > 0 and numbers[-1] / numbers[0] >= LOG_SPAN:
            ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(numbers, [f"{number:g}" for number in numbers])

    def place_names(self, ax: Axes) -> None:
        """The values side by side, strategies by the names that readers know."""
        ax.set_xlabel(self._label)
        strategies = self._parameter == "strategy"
        names = [style_of(str(value)).label if strategies else shown(value) for value in self.values]
        ax.set_xticks(range(len(names)), names)
        if max(len(name) for name in names) * len(names) > 40:
            ax.tick_params(axis="x", rotation=30)
            plt.setp(ax.get_xticklabels(), ha="right", rotation_mode="anchor")


def _reach(points: pd.DataFrame) -> np.ndarray | None:
    """Compute how far the intervals reach below and above the means, never below 0; None if no point was repeated."""
    if points["low"].isna().all():
        return None
    reach = np.array([points["mean"] - points["low"].clip(lower=0), points["high"] - points["mean"]])
    return np.nan_to_num(reach)


def _measure_axis(ax: Axes, points: pd.DataFrame, measure: str) -> None:
    """A log axis where the means are far apart; else it begins at 0."""
    if _far_apart(points):
        plain_log(ax, "y")
    else:
        from_zero(ax)
    heading(ax, measure)


def _far_apart(points: pd.DataFrame) -> bool:
    means = points["mean"].dropna()
    return len(means) > 0 and bool(means.min() > 0 and means.max() / means.min() >= LOG_SPAN)


def _notes(points: pd.DataFrame) -> list[str]:
    """List what a reader of the figure has to know about the runs behind it."""
    each = points.drop_duplicates(["group", "value"])
    fewest, most = points.loc[points["runs"] > 0, "runs"].min(), points["runs"].max()
    runs = f"{most}" if fewest == most else f"{fewest} to {most}"
    notes = [f"mean and 95 % interval of {runs} runs"] if most > 1 else []
    if left_out := int(each["left_out"].sum()):
        notes.append(f"{left_out} run{'s' * (left_out > 1)} left out: not correct")
    if unknown := int(points["unknown"].sum()):
        notes.append(f"{unknown} value{'s' * (unknown > 1)} not known")
    return notes
