"""What replicas of a job are for, and what they cost: around a death, and under loads without one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keyshift.analysis.interruptions import LEAST_S
from keyshift.analysis.metrics import need, per_second
from keyshift.analysis.plots.style import (
    columns_for,
    finish,
    heading,
    label_lowest,
    legend_below,
    legend_line,
    new_axes,
    panel_grid,
    plain_log,
)
from keyshift.analysis.plots.style import styles as looks_of
from keyshift.analysis.plots.timelines import Timeline, draw_latency, every_second, latency_signs, mark_runs
from keyshift.analysis.timelines import resources
from keyshift.model.errors import BadInput

WHISKERS = 1.0, 99.0  # percentiles, as in the publications
_OFFERED: dict[str, Any] = {"color": "#888888", "linewidth": 1.2}
_DASHES = ("-", "--", "-.", ":")  # of the sources


def masking_panels(runs: Mapping[str, Mapping[str, pd.DataFrame]], *, title: str) -> Figure:
    """The P99 of each second, and below it the CPU used so far; a column for each run, marked as in ``panels``.

    Tables: latency, migration, metrics. CPU is of all processes of the job, all replicas, in seconds of a processor
    from the first second that is shown. Raises BadInput if no run is given.
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
        heading(above, looks[name].label)
    marks = mark_runs(axes, len(runs), [*runs.values()] * 2)
    axes[0].set_ylabel("P99 (ms)")
    axes[len(runs)].set_ylabel("CPU so far (s)")
    axes[0].autoscale(axis="y")
    plain_log(axes[0], "y")
    axes[len(runs)].autoscale(axis="y")
    axes[len(runs)].set_ylim(bottom=0)
    return finish(figure, title, marks)


def staircase_panels(
    runs: Mapping[str, Timeline],
    offered: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    *,
    trigger_s: float,
    title: str,
) -> Figure:
    """Per-second P50 and P99 over the second in which events were due, a panel for each run, and on the axis to the
    right what is offered of the sources whose rate changes. Time is measured time, in which the trigger is at
    ``trigger_s``.

    ``runs`` as for ``panels``. ``offered``: of each run, by source, the moments (s of measured time, ascending) from
    which on so many events per second are offered; the last one ends what is known. Raises BadInput if no run is given.
    """
    if not runs:
        raise BadInput("staircase_panels: no run given")
    columns = columns_for(len(runs))
    figure, axes = panel_grid(len(runs), columns, (4.6, 2.8), sharex=True, sharey=True)
    looks, names = looks_of(list(runs)), sorted({source for each in offered.values() for source in each})
    dashes = {name: _DASHES[number % len(_DASHES)] for number, name in enumerate(names)}
    highest = max((rate for each in offered.values() for steps in each.values() for _, rate in steps), default=0.0)
    for number, (ax, (name, (seconds, _))) in enumerate(zip(axes, runs.items(), strict=True)):
        draw_latency(ax, seconds, looks[name].colour, trigger_s)
        heading(ax, looks[name].label)
        ax.set_ylabel("latency (ms)")
        ax.label_outer()
        right = ax.twinx()
        for source, steps in offered.get(name, {}).items():
            moments, rates = zip(*steps, strict=True)
            right.step(moments, rates, where="post", linestyle=dashes[source], **_OFFERED)
        right.set_ylim(0, 1.1 * highest or 1.0)
        right.grid(visible=False)
        if number % columns == columns - 1 or number == len(runs) - 1:  # the last of its row
            right.set_ylabel("offered (events/s)")
        else:
            right.tick_params(labelright=False)
    label_lowest(axes, columns, "measured time (s)")
    axes[0].autoscale(axis="both")
    plain_log(axes[0], "y")
    lines = [legend_line(f"rate of {name}", linestyle=dashes[name], **_OFFERED) for name in names]
    return finish(figure, title, [*latency_signs([seconds for seconds, _ in runs.values()]), *lines])


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
