"""What snapshots of running jobs cost: how long each took, and what it wrote."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from keyshift.analysis.plots.style import finish, heading, legend_line, panel_grid, styles
from keyshift.analysis.timelines import snapshots
from keyshift.model.errors import BadInput

_PANELS = (("took_s", "time until it was complete (s)", "Time"), ("written_mib", "MiB written", "Size"))


def snapshot_figure(runs: Mapping[str, Mapping[str, pd.DataFrame]], *, title: str = "Snapshots") -> Figure:
    """Time and size of each snapshot over time, a line for each run. Tables: snapshots.

    A snapshot stands at its request; time 0, dotted, is the request to move. Raises BadInput if no run has one.
    """
    of_all = {name: snapshots(tables["snapshots"]) for name, tables in runs.items()}
    if not (taken := {name: each for name, each in of_all.items() if len(each)}):
        raise BadInput("snapshot_figure: no run has a snapshot; set snapshot_s, seconds between snapshots")
    looks = styles(list(taken))
    figure, axes = panel_grid(len(_PANELS), len(_PANELS), (4.6, 3.4))
    for ax, (column, label, name) in zip(axes, _PANELS, strict=True):
        for run, each in taken.items():
            ax.plot(each["begun_s"], each[column], **looks[run].marked_line, markersize=6)
        ax.axvline(0, color="#444444", linestyle=":", linewidth=1.2, zorder=1)
        ax.set(xlabel="time since the trigger (s)", ylabel=label)
        ax.set_ylim(bottom=0)
        heading(ax, name)
    return finish(figure, title, [legend_line(look.label, **look.marked_line) for look in looks.values()])
