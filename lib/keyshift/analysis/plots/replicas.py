"""What replicas of a job are for, and what they cost: around a death, under a load without one, in one figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keyshift.analysis.interruptions import LEAST_S
from keyshift.analysis.metrics import need, per_second
from keyshift.analysis.plots.style import finish, heading, legend_below, legend_line, new_axes, panel_grid, plain_log
from keyshift.analysis.plots.style import styles as looks_of
from keyshift.analysis.plots.timelines import FAULT, every_second
from keyshift.analysis.timelines import faults, resources
from keyshift.model.errors import BadInput

WHISKERS = 1.0, 99.0  # percentiles, as in the publications


def masking_panels(runs: Mapping[str, Mapping[str, pd.DataFrame]], *, title: str) -> Figure:
    """The P99 of each second, and below it the CPU used so far; a column for each run, faults dotted.

    Tables: latency, metrics. CPU is of all processes of the job, all replicas, in seconds of a processor from the first
    second that is shown. Raises BadInput if no run is given.
    """
    if not runs:
        raise BadInput("masking_panels: no run given")
    figure, axes = panel_grid(2 * len(runs), len(runs), (3.6, 2.6), sharex=True, sharey="row")
    looks = looks_of(list(runs))
    for column, (name, tables) in enumerate(runs.items()):
        above, below = axes[column], axes[column + len(runs)]
        every = every_second(per_second(tables["latency"]))
        used = resources(tables["metrics"], "cpu_cores")["total"].reindex(every.index).fillna(0.0).cumsum()
        how: dict[str, Any] = {"color": looks[name].colour, "drawstyle": "steps-mid", "linewidth": 1.8, "zorder": 3}
        above.plot(every.index + 0.5, every["p99_ms"], **how)
        below.plot(every.index + 0.5, used, **how)
        for ax in (above, below):
            for at_s, _ in faults(tables["metrics"]):
                ax.axvline(at_s, zorder=2, **FAULT)
        heading(above, looks[name].label)
        below.set_xlabel("time since the trigger (s)")
    axes[0].set_ylabel("P99 (ms)")
    axes[len(runs)].set_ylabel("CPU so far (s)")
    axes[0].autoscale(axis="y")
    plain_log(axes[0], "y")
    axes[len(runs)].autoscale(axis="y")
    axes[len(runs)].set_ylim(bottom=0)
    return finish(figure, title, [legend_line("fault", **FAULT)])


def cost_figure(table: pd.DataFrame) -> Axes:
    """The longest silence of each run against the CPU of its job: better is further down and to the left.

    ``table``: a row for each run, columns point, cpu (processors that the job uses before the fault), silence_s.
    Runs of a point have one sign. Raises BadInput if no run is known in both.
    """
    need(table, ["point", "cpu", "silence_s"], "cost_figure")
    known = table.dropna(subset=["cpu", "silence_s"])
    if known.empty:
        raise BadInput("cost_figure: no run with both CPU and silence")
    ax = new_axes((6.5, 4.2))
    looks = looks_of(list(known["point"].unique()))
    for name, mine in known.groupby("point", sort=False):
        ax.plot(mine["cpu"] * 100, mine["silence_s"].clip(lower=LEAST_S) * 1000, **looks[name].sign)
    ax.set_xlim(left=0)
    plain_log(ax, "y")
    ax.set(xlabel="CPU of the job before the fault (% of a processor)", ylabel="longest silence (ms)")
    heading(ax, "What it costs to be heard")
    legend_below(ax, [look.in_legend for look in looks.values()])
    return ax


def latency_boxes(latencies: Mapping[str, Sequence[pd.DataFrame]], *, title: str) -> Axes:
    """Latency of each point: box and median, whiskers from the 1st to the 99th percentile, over all its runs.

    ``latencies``: latency tables of a point's runs. Raises BadInput for a point without any result.
    """
    boxes = []
    for name, tables in latencies.items():
        values = np.concatenate([table["latency_ms"].to_numpy("float64") for table in tables]) if tables else ()
        if not len(values):
            raise BadInput(f"latency_boxes: {name} has no result")
        low, q1, middle, q3, high = np.percentile(values, (WHISKERS[0], 25, 50, 75, WHISKERS[1]))
        boxes.append({"label": name, "whislo": low, "q1": q1, "med": middle, "q3": q3, "whishi": high, "fliers": []})
    if not boxes:
        raise BadInput("latency_boxes: no point given")
    ax = new_axes((max(5.0, 1.1 * len(boxes) + 1.5), 4.2))
    looks = looks_of(list(latencies))
    drawn = ax.bxp(boxes, showfliers=False, patch_artist=True, widths=0.55)
    for name, box, median in zip(latencies, drawn["boxes"], drawn["medians"], strict=True):
        box.set(facecolor=looks[name].colour, alpha=0.45)
        median.set(color="black", linewidth=1.6)
    ax.tick_params(axis="x", rotation=20 if len(boxes) > 4 else 0)
    plain_log(ax, "y")
    ax.set_ylabel("latency (ms), whiskers at P1 and P99")
    heading(ax, title)
    return ax
