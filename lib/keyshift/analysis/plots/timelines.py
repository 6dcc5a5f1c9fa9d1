"""Figures of runs over time: a panel for each, with the trigger at 0, the migration shaded and faults dotted.

``runs``: strategy, or another name, to what is drawn of a run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from keyshift.analysis.machine import FULL, disturbed, shares
from keyshift.analysis.metrics import need
from keyshift.analysis.plots.style import (
    columns_for,
    finish,
    from_zero,
    heading,
    label_lowest,
    legend_line,
    panel_grid,
    plain_log,
    style_of,
    styles,
)
from keyshift.analysis.tables import RunTables
from keyshift.analysis.timelines import faults as faults_of
from keyshift.analysis.timelines import grown, resources, snapshots, throughput
from keyshift.model.errors import BadInput

Timeline = tuple[pd.DataFrame, pd.DataFrame | None]  # per-second latency, migration
_SIZE = (4.3, 2.8)  # of a panel, in inches
_GREY = "#444444"  # for all strategies
_PROCESSES: dict[str, tuple[Any, Any, str]] = {  # colour, dashes and name
    "spark_jvm": ("#0072B2", "-", "Spark's JVM"),
    "python_workers": ("#E69F00", "--", "Python workers"),
    "total": ("#000000", (0, (1, 1)), "together"),
}
_MACHINE = {  # stacked: share, its colour and name
    "ours": ("#BBBBBB", "busy for the run"),
    "others": ("#56B4E9", "busy for others"),
    "stolen": ("#CC79A7", "stolen by others on the host"),
}
_RESOURCES = (  # metric, what is drawn of it, axis, factor
    ("cpu_cores", resources, "CPU (%)", 100.0),
    ("rss_mib", resources, "RSS (MiB)", 1.0),
    ("sent_mib", grown, "sent so far (MiB)", 1.0),
)
_PERHAPS = "sent_mib"  # of them: older runs do not know it, nor do others than Linux
_SNAPSHOTS = (("took_s", "time until it was complete (s)", "Time"), ("written_mib", "MiB written", "Size"))

_PAUSE_S = 1.0  # shorter pauses are those between steps, and not to be seen beside latency per second
_TRIGGER: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": "--"}
_FAULT: dict[str, Any] = {"color": "#D55E00", "linewidth": 1.6, "linestyle": ":"}
_MIGRATION: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.45, "linewidth": 1.2}  # its edge shows a short one
_DISTURBED: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": "#999999",
    "hatch": "////",
    "linewidth": 0,
    "alpha": 0.6,
}
_BAND = 0.05  # of the height of a panel, for disturbed seconds: they may be all of it
_OBJECTIVE: dict[str, Any] = {"color": _GREY, "linewidth": 1, "linestyle": "-."}
_P50: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (1, 1))}
_P99: dict[str, Any] = {"linewidth": 2.0}


def panels(
    runs: Mapping[str, Timeline],
    *,
    title: str = "Latency while state moves",
    objective_ms: float | None = None,
    faults: Mapping[str, Collection[float]] | None = None,
) -> Figure:
    """Per-second P50 and P99 on a log axis, a panel each, all with the same axes.

    Latency per second is from ``metrics.per_second``, or from ``metrics.over_repetitions``: then the range of P99 over
    the repetitions is drawn too. The shade runs from the first routing switch to the last installed unit; where nothing
    is on its way for a second, there is none.
    Seconds that others disturbed are hatched below, where they are known (``machine.with_disturbed``).
    ``faults``: strategy to their moments (s).
    """
    columns, faults = columns_for(len(runs)), faults or {}
    figure, axes = panel_grid(len(runs), columns, (4.3, 3.0), sharex=True, sharey=True)
    limits = []
    for ax, (name, (seconds, migration)) in zip(axes, runs.items(), strict=True):
        need(seconds, ["second", "p50_ms", "p99_ms"], f"panels, {name}")
        limits += [draw_latency(ax, seconds, style_of(name).colour), *_migration_spans(migration)]
        heading(ax, style_of(name).label)
        ax.set_ylabel("latency (ms)")
    migrations = [migration for _, migration in runs.values()]
    hatched = [
        seconds.loc[seconds["disturbed"], "second"] if "disturbed" in seconds else () for seconds, _ in runs.values()
    ]
    marks = _mark(axes, columns, migrations, [faults.get(name, ()) for name in runs], hatched)
    axes[0].set_xlim(min(begin for begin, _ in limits), max(end for _, end in limits))
    # The first panels fixed the axis that all share, before the others had drawn anything on it.
    axes[0].autoscale(axis="y")
    plain_log(axes[0], "y")
    signs = [*latency_signs([seconds for seconds, _ in runs.values()]), *marks]
    if objective_ms is not None:
        for ax in axes:
            ax.axhline(objective_ms, zorder=1, **_OBJECTIVE)
        signs.append(legend_line(f"objective ({objective_ms:.3g} ms)", **_OBJECTIVE))
    return finish(figure, title, signs)


def every_second(seconds: pd.DataFrame) -> pd.DataFrame:
    """Latency per second by its second; one without results is there, too, and breaks a line."""
    every = seconds.set_index("second").sort_index()
    return every.reindex(range(int(every.index[0]), int(every.index[-1]) + 1)) if len(every) else every


def draw_latency(ax: Axes, seconds: pd.DataFrame, colour: str, shift_s: float = 0.0) -> tuple[float, float]:
    """P50 and P99 of each second, as steps, ``shift_s`` to the right; gives from when to when, 0 included."""
    every = every_second(seconds)
    # Steps, not slopes: a line from second to second would rise before the trigger.
    middle = every.index.to_numpy("float64") + 0.5 + shift_s
    for column, how in (("p50_ms", _P50), ("p99_ms", _P99)):
        ax.plot(middle, every[column], color=colour, drawstyle="steps-mid", zorder=3, **how)
    if "p99_low_ms" in every:
        low, high = every["p99_low_ms"], every["p99_high_ms"]
        ax.fill_between(middle, low, high, step="mid", color=colour, alpha=0.25, linewidth=0, zorder=2)
    return (min(middle[0] - 0.5, 0.0), float(middle[-1] + 0.5)) if len(every) else (0.0, 1.0)


def latency_signs(runs: Iterable[pd.DataFrame]) -> list[Artist]:
    """Signs for a legend of what ``draw_latency`` has drawn of these."""
    signs: list[Artist] = [legend_line("P99", color=_GREY, **_P99), legend_line("P50", color=_GREY, **_P50)]
    if any("p99_low_ms" in seconds for seconds in runs):
        signs.append(Patch(color=_GREY, alpha=0.25, label="P99, range of repetitions"))
    return signs


def throughput_panels(runs: Mapping[str, RunTables], *, title: str = "Results while state moves") -> Figure:
    """Results per second over time, one panel per run, all with the same axes. Tables: latency, migration, metrics."""
    columns = columns_for(len(runs))
    figure, axes = panel_grid(len(runs), columns, _SIZE, sharex=True, sharey=True)
    for ax, (name, tables) in zip(axes, runs.items(), strict=True):
        seconds, how = throughput(tables["latency"]), style_of(name)
        middle = seconds["second"] + 0.5
        ax.plot(middle, seconds["results_per_s"], color=how.colour, linewidth=1.8, drawstyle="steps-mid", zorder=3)
        ax.set_ylabel("results per second")
        heading(ax, how.label)
    return finish(figure, title, _mark_from_zero(axes, columns, list(runs.values())))


def snapshot_figure(runs: Mapping[str, RunTables], *, title: str = "Snapshots") -> Figure:
    """How long each snapshot took and what it wrote, over time, a line for each run. Tables: snapshots.

    A snapshot stands at its request; time 0, dotted, is the request to move. Raises BadInput if no run has one.
    """
    of_all = {name: snapshots(tables["snapshots"]) for name, tables in runs.items()}
    if not (taken := {name: each for name, each in of_all.items() if len(each)}):
        raise BadInput("snapshot_figure: no run has a snapshot; set snapshot_s, seconds between snapshots")
    looks = styles(list(taken))
    figure, axes = panel_grid(len(_SNAPSHOTS), len(_SNAPSHOTS), (4.6, 3.4))
    for ax, (column, label, name) in zip(axes, _SNAPSHOTS, strict=True):
        for run, each in taken.items():
            ax.plot(each["begun_s"], each[column], **looks[run].marked_line, markersize=6)
        ax.axvline(0, color="#444444", linestyle=":", linewidth=1.2, zorder=1)
        ax.set(xlabel="time since the trigger (s)", ylabel=label)
        from_zero(ax)
        heading(ax, name)
    return finish(figure, title, [legend_line(look.label, **look.marked_line) for look in looks.values()])


def resource_panels(runs: Mapping[str, RunTables], *, title: str = "Processors and memory while state moves") -> Figure:
    """CPU (100 % is one processor) and resident memory of the job over time, two panels per run; and below them what it
    has sent over the network, and how full the machine was, and for whom, each if all of them know. Tables: migration,
    metrics.
    """
    columns = len(runs)
    known = all(_PERHAPS in set(tables["metrics"]["metric"]) for tables in runs.values())
    drawn = [each for each in _RESOURCES if known or each[0] != _PERHAPS]
    machines = [_stacked(shares(tables["metrics"])) for tables in runs.values()]
    rows = len(drawn) + all(len(machine) for machine in machines)
    figure, axes = panel_grid(rows * columns, columns, _SIZE, sharex=True, sharey="row")
    every = pd.concat([tables["metrics"] for tables in runs.values()])
    there = every.loc[every["metric"].isin([metric for metric, *_ in drawn]), "instance"].unique()
    others = styles([name for name in there if name not in _PROCESSES], "instance")  # replicas, pods
    lines: dict[str, Artist] = {}
    for column, (name, tables) in enumerate(runs.items()):
        for ax, (metric, over_time, label, factor) in zip(axes[column::columns], drawn, strict=False):
            frame = over_time(tables["metrics"], metric) * factor
            for instance in map(str, frame.columns):
                colour, dashes, text = _PROCESSES.get(instance) or (*others[instance][:2], instance)
                how: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
                ax.plot(frame.index + 0.5, frame[instance], zorder=3, **how)
                lines[instance] = legend_line(text, **how)
            ax.set_ylabel(label)
        heading(axes[column], style_of(name).label)
    for ax, machine in zip(axes[len(drawn) * columns :], machines, strict=False):
        colours = [colour for colour, _ in _MACHINE.values()]
        ax.stackplot(machine.index + 0.5, *(machine[share] for share in _MACHINE), colors=colours, zorder=2)
        ax.axhline(100 * FULL, color="#777777", linewidth=0.8, zorder=3)
        ax.set_ylabel("all processors (%)")
    if rows > len(drawn):
        lines |= {name: Patch(color=colour, label=name) for colour, name in _MACHINE.values()}
    return finish(figure, title, [*lines.values(), *_mark_from_zero(axes, columns, list(runs.values()) * rows)])


def _stacked(found: pd.DataFrame) -> pd.DataFrame:
    """The shares of ``_MACHINE`` in %, from ``machine.shares``. What is busy in a container with a quota, where no host
    is known, is busy for the run. Where one is and others are not, nobody knows for whom it is: such seconds are not
    there.
    """
    found = found[found["others"].notna() | found["stolen"].isna()]
    others, stolen = (found[name].fillna(0.0) for name in ("others", "stolen"))
    return pd.DataFrame({"ours": found["busy"] - others, "others": others, "stolen": stolen}) * 100


def mark_runs(axes: Sequence[Axes], columns: int, runs: Sequence[RunTables]) -> list[Artist]:
    """Mark when what happened to the run of each panel; gives the handles for it. Tables: migration, metrics."""
    struck = [[at_s for at_s, _ in faults_of(tables["metrics"])] for tables in runs]
    hatched = [disturbed(tables["metrics"]) or () for tables in runs]
    return _mark(axes, columns, [tables["migration"] for tables in runs], struck, hatched)


def _mark_from_zero(axes: Sequence[Axes], columns: int, runs: Sequence[RunTables]) -> list[Artist]:
    """Mark as ``mark_runs`` does, on axes from 0 on."""
    marks = mark_runs(axes, columns, runs)
    for ax in axes:
        from_zero(ax)  # the first panels fixed the axis that all of a row share
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return marks


def _mark(
    axes: Sequence[Axes],
    columns: int,
    migrations: Iterable[pd.DataFrame | None],
    faults: Sequence[Collection[float]],
    hatched: Sequence[Collection[int]],
) -> list[Artist]:
    """Mark trigger, migrations, faults and disturbed seconds behind what is measured in each panel; gives the handles
    for a legend.
    """
    spans = [_migration_spans(migration) for migration in migrations]
    for ax, of_panel, moments, seconds in zip(axes, spans, faults, hatched, strict=True):
        ax.axvline(0, zorder=1, **_TRIGGER)
        for span in of_panel:
            ax.axvspan(*span, zorder=0, **_MIGRATION)
        for at_s in moments:
            ax.axvline(at_s, zorder=2, **_FAULT)
        for begin, end in _stretches(seconds):
            ax.axvspan(begin, end, 0, _BAND, zorder=0, **_DISTURBED)
        ax.label_outer()
    label_lowest(axes, columns, "time since the trigger (s)")
    found: list[Artist] = [legend_line("trigger", **_TRIGGER)]
    if any(spans):
        found.append(Patch(label="migration", **_MIGRATION))
    if any(faults):
        found.append(legend_line("fault", **_FAULT))
    if any(len(seconds) for seconds in hatched):
        found.append(Patch(label="disturbed by others", **_DISTURBED))
    return found


def _stretches(seconds: Collection[int]) -> list[tuple[float, float]]:
    """Seconds that follow each other as one, from when to when."""
    ordered = np.array(sorted(seconds), dtype="float64")
    pieces = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1) if len(ordered) else []
    return [(float(piece[0]), float(piece[-1]) + 1) for piece in pieces]


def _migration_spans(migration: pd.DataFrame | None) -> list[tuple[float, float]]:
    """Spans from a first switch to a last install, without the pauses between migrations; none if there is none."""
    if migration is None:
        return []
    need(migration, ["switched_s", "installed_s"], "a migration in a figure")
    known = migration.dropna(subset=["switched_s", "installed_s"]).sort_values("switched_s")
    reached = known["installed_s"].cummax()
    fresh = known["switched_s"] - reached.shift() > _PAUSE_S
    of = known.assign(reached=reached).groupby(fresh.cumsum())
    return list(zip(of["switched_s"].min(), of["reached"].max(), strict=True))
