"""Plans as Gantt charts, from ``plans.modelled``: what goes where in which step. Nothing in them is measured."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from keyshift.analysis.metrics import need
from keyshift.analysis.plans import COLUMNS
from keyshift.analysis.plots.style import finish, heading, label_lowest, legend_line, panel_grid
from keyshift.model.errors import BadInput

Colour = tuple[float, float, float]
PANELS_PER_ROW = 3
_AGREEING = "#E4E4E4"
_WAITING = {"slots": "#F4D9B0", "router": "#F4D9B0", "query": "#BDBDBD"}  # gate to shade
_WAITS = {"#F4D9B0": "affected slots wait", "#BDBDBD": "the query is down"}


def plan_panels(plans: Mapping[str, pd.DataFrame], *, title: str = "Plans, by the model: nothing measured") -> Figure:
    """Plans in modelled time, a panel each: a bar for each unit on its way to a slot (y), coloured by its source.

    ``plans``: by name, from ``plans.modelled``. A tick marks a unit of which only the owner changes. Steps whose gate
    makes records wait are shaded. All panels have the same slots, colours and time, and each has its numbers. A plan
    that stops the query may reach beyond the common time, which is that of the others; its note says how far.
    """
    if not plans:
        raise BadInput("plan_panels: no plan given")
    for name, plan in plans.items():
        need(plan, COLUMNS, f"plan_panels, {name}")
    every = pd.concat(plans.values())
    slots, sources = sorted(every["destination"].unique()), sorted(every["source"].unique())
    palette = "colorblind" if len(sources) <= 10 else "husl"  # for colour-blind readers; by hue beyond
    colours = dict(zip(sources, sns.color_palette(palette, len(sources)), strict=True))
    columns = min(len(plans), PANELS_PER_ROW)
    live = [plan["end_s"].max() for plan in plans.values() if len(plan) and not (plan["gate"] == "query").any()]
    end = max(live, default=every["end_s"].max() if len(every) else 1.0)
    size = (3.2, 1.15 + 0.22 * max(len(slots), 2))
    figure, axes = panel_grid(len(plans), columns, size, sharex=True, sharey=True)
    for ax, (name, plan) in zip(axes, plans.items(), strict=True):
        _gantt(ax, plan, colours, {slot: row for row, slot in enumerate(slots)})
        ax.set_yticks(range(len(slots)), [str(slot) for slot in slots])
        ax.set_ylim(max(len(slots), 1) - 0.5, -0.5)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.grid(visible=False, axis="y")
        heading(ax, name, _note(plan))
        ax.set_ylabel("to slot")
        ax.label_outer()
    axes[0].set_xlim(0, end * 1.02)
    label_lowest(axes, columns, "modelled time (s)")
    return finish(figure, title, _handles(list(plans.values()), colours))


def _gantt(ax: Axes, plan: pd.DataFrame, colours: Mapping[int, Colour], rows: Mapping[int, int]) -> None:
    """The bars of one plan. ``colours``: of source slots; ``rows``: of destination slots."""
    for _, step in plan.groupby("step"):
        if (gate := step["gate"].iloc[0]) != "none":
            ax.axvspan(step["step_begin_s"].iloc[0], step["end_s"].max(), color=_WAITING[gate], linewidth=0, zorder=0)
    steps = plan[plan["gate"] != "query"].groupby(["step", "destination"])
    taken = steps[["step_begin_s", "begin_s"]].min().reset_index()
    _spans(ax, taken["destination"].map(rows), taken["step_begin_s"], taken["begin_s"], color=_AGREEING, zorder=1)
    moving, changing = plan[~plan["asked_for"]], plan[plan["asked_for"]]
    source_colours = [colours[source] for source in moving["source"]]
    _spans(ax, moving["destination"].map(rows), moving["begin_s"], moving["end_s"], color=source_colours, zorder=2)
    # Owners of many units change at the same moment: side by side, each can still be seen.
    offset = changing.groupby("destination").cumcount() / changing.groupby("destination")["unit"].transform("size")
    places = changing["destination"].map(rows) + 0.7 * (offset - 0.5)
    source_colours = [colours[source] for source in changing["source"]]
    ax.scatter(changing["begin_s"], places, s=80, marker="_", linewidths=1, color=source_colours, zorder=2)


def _spans(ax: Axes, rows: pd.Series, begins: pd.Series, ends: pd.Series, **how: Any) -> None:
    ax.barh(rows, ends - begins, 0.7, begins, linewidth=0, **how)


def _note(plan: pd.DataFrame) -> str:
    steps = plan["step"].nunique()
    took = plan["end_s"].max() if len(plan) else 0.0
    return f"{steps} step{'s' * (steps != 1)}, {len(plan)} units, {np.round(took, 2):g} s"


def _handles(plans: list[pd.DataFrame], colours: Mapping[int, Colour]) -> list[Artist]:
    handles: list[Artist] = [Patch(color=colour, label=f"from slot {source}") for source, colour in colours.items()]
    handles.append(Patch(color=_AGREEING, label="the step is agreed on"))
    shades = {_WAITING[gate] for plan in plans for gate in plan["gate"].unique() if gate != "none"}
    handles += [Patch(color=shade, label=text) for shade, text in _WAITS.items() if shade in shades]
    if any(plan["asked_for"].any() for plan in plans):
        handles.append(legend_line("owner changes, state when asked for", color="#444444", linewidth=1.5))
    return handles
