"""What happened when, in every figure over time: the trigger at 0, the migration shaded, faults dotted."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyshift.analysis.metrics import need

_MIGRATION: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.45, "linewidth": 0}
_TRIGGER: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": "--"}
_FAULT: dict[str, Any] = {"color": "#D55E00", "linewidth": 1.6, "linestyle": ":"}


def mark(ax: Axes, migration: pd.DataFrame | None, faults: Iterable[float] = ()) -> None:
    """Draw them behind what is measured. ``migration``: the table; ``faults``: their moments, as all times in s."""
    ax.axvline(0, zorder=1, **_TRIGGER)
    if (span := migration_span(migration)) is not None:
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


def migration_span(migration: pd.DataFrame | None) -> tuple[float, float] | None:
    """First switch and last install, relative to the trigger (s); None if there is none to draw."""
    if migration is None:
        return None
    need(migration, ["switched_s", "installed_s"], "latency_timeline")
    begin, end = migration["switched_s"].min(), migration["installed_s"].max()
    return None if pd.isna(begin) or pd.isna(end) else (float(begin), float(end))
