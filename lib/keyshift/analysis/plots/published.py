"""A curve of a publication, and ours beside it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from keyshift.analysis.metrics import need
from keyshift.analysis.plots.style import heading, legend_below, legend_line, new_axes, plain_log, styles

PUBLISHED: dict[str, Any] = {"color": "#000000", "linestyle": "--", "marker": "s"}


def published_figure(lines: Mapping[str, pd.DataFrame], measure: str, *, title: str = "") -> Axes:
    """Published values in black, ours in colour, a line each, over the points of the curve on a log axis.

    ``lines``: ours by their names, with the columns point, published and ours (NaN: not known); the points and the
    published values of all are the same.
    """
    first = next(iter(lines.values()))
    need(first, ["point", "published", "ours"], "published_figure")
    ax = new_axes((max(5.0, 1.1 * len(first)), 3.4 + 0.15 * len(lines)))
    handles = [legend_line("published", **PUBLISHED)]
    ax.plot(range(len(first)), first["published"], **PUBLISHED)
    for name, look in styles(list(lines)).items():
        how = look.marked_line | {"linestyle": "-"}
        ax.plot(range(len(first)), lines[name]["ours"], **how)
        handles.append(legend_line(look.label, **how))
    ax.set_xticks(range(len(first)), [name.replace(", ", "\n") for name in first["point"]])
    ax.set_ylabel(measure)
    plain_log(ax, "y")
    heading(ax, title)
    legend_below(ax, handles)
    return ax
