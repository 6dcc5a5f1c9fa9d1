"""What replicas of a job are for, and what they cost: around a death, and under loads without one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keyshift.analysis.interruptions import LEAST_S
from keyshift.analysis.machine import SAMPLED_S
from keyshift.analysis.metrics import need, per_second
from keyshift.analysis.plots.style import (
    columns_for,
    finish,
    from_zero,
    heading,
    label_lowest,
    legend_line,
    new_axes,
    panel_grid,
    plain_log,
)
from keyshift.analysis.plots.style import styles as looks_of
from keyshift.analysis.plots.timelines import Timeline, draw_latency, every_second, latency_signs, mark_runs
from keyshift.analysis.timelines import so_far
from keyshift.model.errors import BadInput

WHISKERS = 1.0, 99.0  # percentiles, as in the publications
_OFFERED: dict[str, Any] = {"color": "#888888", "linewidth": 1.2}
_DASHES = ("-", "--", "-.", ":")  # of the sources


def masking_panels(runs: Mapping[str, Mapping[str, pd.DataFrame]], *, title: str) -> Figure:
    """The P99 of each second, and below it the CPU used and the bytes sent so far; a column for each run, marked as in
    ``panels``.

    Tables: latency, migration, metrics. CPU and bytes are of all processes of the job, all replicas, in seconds of a
    processor and MiB from the first second that is shown; bytes only if they are known of some run.
    """
    seconds = {name: every_second(per_second(tables["latency"])) for name, tables in runs.items()}
    rows = [("P99 (ms)", {name: every["p99_ms"] for name, every in seconds.items()})]
    for axis, used_so_far in (("CPU so far (s)", _cpu_so_far), ("sent so far (MiB)", _sent_so_far)):
        used = {name: used_so_far(tables["metrics"], seconds[name].index) for name, tables in runs.items()}
        if any(each.notna().any() for each in used.values()):
            rows.append((axis, used))
    figure, axes = panel_grid(len(rows) * len(runs), len(runs), (3.6, 2.6), sharex=True, sharey="row")
    looks = looks_of(list(runs))
    for row, (_, of_runs) in enumerate(rows):
        for ax, (name, values) in zip(axes[row * len(runs) :], of_runs.items(), strict=False):
            ax.plot(
                values.index + 0.5, values, color=looks[name].colour, drawstyle="steps-mid", linewidth=1.8, zorder=3
            )
    for ax, name in zip(axes, runs, strict=False):
        heading(ax, looks[name].label)
    marks = mark_runs(axes, len(runs), [*runs.values()] * len(rows))
    for first, (axis, _) in zip(axes[:: len(runs)], rows, strict=True):
        first.set_ylabel(axis)
    axes[0].autoscale(axis="y")
    plain_log(axes[0], "y")
    for first in axes[len(runs) :: len(runs)]:
        from_zero(first)
    return finish(figure, title, marks)


def _cpu_so_far(metrics: pd.DataFrame, seconds: pd.Index) -> pd.Series:
    """CPU used so far, in seconds of a processor; a sample is of the time since the look before."""
    samples = metrics[metrics["metric"] == "cpu_cores"].sort_values("t_s")
    looks_s = samples["t_s"].drop_duplicates()
    took_s = looks_s.diff().fillna(SAMPLED_S).set_axis(looks_s)
    used_s = samples["value"] * samples["t_s"].map(took_s)
    return used_s.groupby(np.floor(samples["t_s"])).sum().reindex(seconds).fillna(0.0).cumsum()


def _sent_so_far(metrics: pd.DataFrame, seconds: pd.Index) -> pd.Series:
    """Bytes sent so far, in MiB; NaN where it is not known."""
    if "sent_mib" not in set(metrics["metric"]):
        return pd.Series(np.nan, index=seconds)
    total = so_far(metrics, "sent_mib").reindex(seconds).ffill()
    return total - total.dropna().iloc[:1].sum()


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
    which on so many events per second are offered; the last one ends what is known.
    """
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


COSTS = {
    "cpu": ("CPU before the fault (% of a processor)", 100.0),
    "memory_mib": ("memory at its peak (MiB)", 1.0),
    "sent_mib_per_s": ("sent before the fault (MiB/s)", 1.0),
}  # columns of ``cost_figure``: axis, factor


def cost_figure(table: pd.DataFrame) -> Figure:
    """The longest silence around each death against what the job costs, a panel for each cost that is known: better is
    further down and to the left.

    ``table``: a row for each death, or for a run without one: columns point, silence_s, and some of ``COSTS``: cpu
    (processors that the job uses), memory_mib, sent_mib_per_s (over the network). Deaths of a point have one sign.
    Raises BadInput if none has a silence and a cost.
    """
    need(table, ["point", "silence_s"], "cost_figure")
    heard = table.dropna(subset=["silence_s"])
    costs = [name for name in COSTS if name in heard and heard[name].notna().any()]
    if not costs:
        raise BadInput(f"cost_figure: no run with a silence and one of {', '.join(COSTS)}")
    figure, axes = panel_grid(len(costs), len(costs), (4.0, 3.2), sharey=True)
    looks = looks_of(list(heard["point"].unique()))
    for ax, cost in zip(axes, costs, strict=True):
        axis, factor = COSTS[cost]
        for name, mine in heard.groupby("point", sort=False):
            ax.plot(mine[cost] * factor, mine["silence_s"].clip(lower=LEAST_S) * 1000, **looks[name].sign)
        ax.set_xlim(left=0)
        ax.set_xlabel(axis)
    plain_log(axes[0], "y")
    axes[0].set_ylabel("longest silence (ms)")
    return finish(figure, "What it costs to be heard", [look.in_legend for look in looks.values()])


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
