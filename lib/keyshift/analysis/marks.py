"""What happened when, in every figure over time: the trigger at 0, the migration shaded, faults dotted."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyshift.analysis.metrics import need

_PAUSE_S = 1.0  # shorter pauses are those between steps, and not to be seen beside latency per second
_MIGRATION: dict[str, Any] = {
    "color": "#BBBBBB",
    "alpha": 0.45,
    "linewidth": 1.2,
}  # with an edge, so that a short one is seen
_TRIGGER: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": "--"}
_FAULT: dict[str, Any] = {"color": "#D55E00", "linewidth": 1.6, "linestyle": ":"}


def mark(ax: Axes, migration: pd.DataFrame | None, faults: Iterable[float] = ()) -> None:
    """Draw them behind what is measured. ``migration``: the table; ``faults``: their moments, as all times in s."""
    ax.axvline(0, zorder=1, **_TRIGGER)
    for span in migration_spans(migration):
        ax.axvspan(*span, zorder=0, **_MIGRATION)
    for at_s in faults:
        ax.axvline(at_s, zorder=2, **_FAULT)


def handles(moved: bool, struck: bool) -> list[Artist]:
    """For a legend. ``moved``: there is a migration somewhere in the figure; ``struck``: a fault."""
    found: list[Artist] = [Line2D([], [], label="trigger", **_TRIGGER)]
    if moved:
        found.append(Patch(label="migration", **_MIGRATION))
    if struck:
        found.append(Line2D([], [], label="fault", **_FAULT))
    return found


def migration_spans(migration: pd.DataFrame | None) -> list[tuple[float, float]]:
    """From a first switch to a last install, without the pauses between migrations; none if there is none to draw."""
    if migration is None:
        return []
    need(migration, ["switched_s", "installed_s"], "a migration in a figure")
    known = migration.dropna(subset=["switched_s", "installed_s"]).sort_values("switched_s")
    reached = known["installed_s"].cummax()
    fresh = known["switched_s"] - reached.shift() > _PAUSE_S
    of = known.assign(reached=reached).groupby(fresh.cumsum())
    return list(zip(of["switched_s"].min(), of["reached"].max(), strict=True))
