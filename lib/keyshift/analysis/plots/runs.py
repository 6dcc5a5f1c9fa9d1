"""Figures of single runs, second by second: panels of each run, the migration shaded and faults marked.

``runs``: strategy, or another name, to the tables of a run by name, as ``ResultStore.get_tables`` gives them.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from keyshift.analysis.marks import handles, mark, migration_spans
from keyshift.analysis.plots.style import columns_for, finish, heading, label_lowest, panel_grid, style_of
from keyshift.analysis.timelines import faults, resources, throughput
from keyshift.model.errors import BadInput

Tables = Mapping[str, pd.DataFrame]
_SIZE = (4.3, 2.8)  # of a panel, in inches
_LINES = {  # by process
    "spark_jvm": ("#0072B2", "-", "Spark's JVM"),
    "python_workers": ("#E69F00", "--", "Python workers"),
    "total": ("#000000", (0, (1, 1)), "together"),
}
_RESOURCES = (("cpu_cores", "CPU (%)", 100.0), ("rss_mib", "RSS (MiB)", 1.0))  # metric, axis, factor


def throughput_panels(runs: Mapping[str, Tables], *, title: str = "Results while state moves") -> Figure:
    """Results per second over time, one panel per run, all with the same axes. Tables: latency, migration, metrics."""
    _require(runs)
    columns = columns_for(len(runs))
    figure, axes = panel_grid(len(runs), columns, _SIZE, sharex=True, sharey=True)
    for ax, (name, tables) in zip(axes, runs.items(), strict=True):
        seconds = throughput(tables["latency"])
        middle, how = seconds["second"] + 0.5, style_of(name)
        ax.plot(middle, seconds["results_per_s"], color=how.colour, linewidth=1.8, drawstyle="steps-mid", zorder=3)
        ax.set_ylabel("results per second")
        heading(ax, how.label)
    return finish(figure, title, _happened(axes, list(runs.values()), columns))


def resource_panels(runs: Mapping[str, Tables], *, title: str = "Processors and memory while state moves") -> Figure:
    """CPU (100 % is one processor) and resident memory over time: two panels per run. Tables: migration, metrics."""
    _require(runs)
    columns = len(runs)
    figure, axes = panel_grid(2 * columns, columns, _SIZE, sharex=True, sharey="row")
    lines: dict[str, Artist] = {}
    for column, (name, tables) in enumerate(runs.items()):
        for ax, (metric, label, factor) in zip(axes[column::columns], _RESOURCES, strict=True):
            frame = resources(tables["metrics"], metric) * factor
            for instance in map(str, frame.columns):
                colour, dashes, text = _LINES.get(instance, ("#777777", "-.", instance))
                how: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
                ax.plot(frame.index + 0.5, frame[instance], zorder=3, **how)
                lines[instance] = Line2D([], [], label=text, **how)
            ax.set_ylabel(label)
        heading(axes[column], style_of(name).label)
    return finish(figure, title, [*lines.values(), *_happened(axes, list(runs.values()) * 2, columns)])


def _require(runs: Mapping[str, Tables]) -> None:
    if not runs:
        raise BadInput("no run given: a figure of runs needs at least one")


def _happened(axes: list[Axes], tables: list[Tables], columns: int) -> list[Artist]:
    """Marks when what happened, in the panel of each run; gives the handles for it."""
    struck = [[at_s for at_s, _ in faults(of_run["metrics"])] for of_run in tables]
    for ax, of_run, moments in zip(axes, tables, struck, strict=True):
        mark(ax, of_run["migration"], moments)
        ax.autoscale(axis="y")  # the first panels fixed the axis that all of a row share
        ax.margins(y=0.08)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.label_outer()
    label_lowest(axes, columns, "time since the trigger (s)")
    return handles(any(migration_spans(of_run["migration"]) for of_run in tables), any(struck))
