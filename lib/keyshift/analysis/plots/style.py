"""How figures look: one theme, and one colour, line, marker and name per strategy.

Colours are Okabe and Ito's and Tol's, chosen to stay apart for colour-blind readers; where two strategies of a family
share one, line and marker tell them apart.
"""

import io
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, Literal, NamedTuple
from zlib import crc32

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from keyshift.model.errors import BadInput

LEGEND_COLUMNS = 3
CHARACTERS_PER_INCH = 17  # of a legend
_ALONE = RLock()  # settings of figures are those of all threads


class Style(NamedTuple):
    """How a strategy is drawn: matplotlib colour, line style and marker, and the name a reader sees."""

    colour: str
    line: str
    marker: str
    label: str

    @property
    def marked_line(self) -> dict[str, Any]:
        """A line with markers, as matplotlib takes it."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}

    @property
    def sign(self) -> dict[str, Any]:
        """A marker without a line, as matplotlib takes it."""
        return self.marked_line | {"linestyle": "", "markersize": 8}

    @property
    def in_legend(self) -> Line2D:
        """The marker with the name, for a legend."""
        return legend_line(self.label, **self.sign)


_VERMILLION, _ORANGE, _BLUE, _SKY, _GREEN = "#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73"
_PINK, _BLACK, _WINE, _INDIGO = "#CC79A7", "#000000", "#882255", "#332288"
_STYLES = {
    "stop_restart": Style(_VERMILLION, "-", "X", "stop and restart"),
    "flink_restart": Style("#661100", "-.", "P", "stop and restart, Flink"),
    "flink_rescale": Style("#661100", ":", "*", "rescale from a checkpoint, Flink"),
    "spark_restart": Style("#661100", "--", "X", "stop, repartition and restart, Spark"),
    "spark_state": Style("#666666", "-.", "x", "Spark's own state"),
    "no_support": Style("#666666", ":", "+", "no support for migration"),
    "pause_resume": Style(_VERMILLION, "--", "P", "pause and resume (Trisk)"),
    "all_at_once": Style(_ORANGE, "-", "s", "all at once"),
    "order_unaware": Style(_ORANGE, "--", "D", "order-unaware"),
    "fluid": Style(_BLUE, "-", "o", "fluid"),
    "fluid_per_source": Style(_SKY, "-", "^", "fluid per source"),
    "matched": Style(_GREEN, "-", "v", "matched"),
    "spacker_dynamic": Style(_GREEN, "--", "d", "dynamic (Spacker)"),
    "chunked": Style(_PINK, "-", "<", "chunked"),
    "hot_first": Style(_PINK, "--", ">", "hot first"),
    "meces": Style(_BLACK, "-", "p", "Meces"),
    "drrs": Style(_BLACK, "--", "h", "DRRS"),
    "rhino": Style(_WINE, "-", "H", "Rhino"),
    "replicated": Style(_WINE, "--", "*", "replicated"),
    "lazy": Style(_INDIGO, "-", "8", "lazy"),
    "hybrid": Style(_INDIGO, "--", "x", "hybrid"),
    "none": Style(_BLACK, "-", "o", "no order"),
    "live_robin": Style(_GREEN, "-", "s", "LiveRobin"),
    "kazoo": Style(_BLUE, "-", "^", "KaZoo"),
    "time_merge": Style(_PINK, "-", "D", "time merge"),
    "passive": Style(_VERMILLION, "-", "X", "passive, from a snapshot"),
    "moved away": Style(_ORANGE, "-", "v", "moved away in time"),
}
_EXTRA_COLOURS = ("#999933", "#117733", "#AA4499", "#661100", "#6699CC")
_LINES, _MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "P", "X", "*")
_EXTRA_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def style_of(strategy: str) -> Style:
    """Choose how ``strategy`` is drawn; a name that is not known gets a style of its own that depends on the name only.

    A point such as "q5, fluid" is drawn as its strategy.
    """
    return next(_looks(strategy))


def _looks(strategy: str) -> Iterator[Style]:
    """The style that a strategy of the library has, or one from the name; then those to take if it is taken."""
    if (last := strategy.partition(" (")[0].rpartition(", ")[2]) in _STYLES:
        look = _STYLES[last] if last == strategy else _STYLES[last]._replace(label=strategy)
        yield look
        markers = dict.fromkeys((*_EXTRA_MARKERS, *(each.marker for each in _STYLES.values())))
        for number, marker in enumerate(markers, start=1):
            yield look._replace(line=_LINES[number % len(_LINES)], marker=marker)
    else:
        own = [(marker, colour) for marker in _EXTRA_MARKERS for colour in _EXTRA_COLOURS]
        first = crc32(strategy.encode()) % len(own)
        yield from (Style(colour, "-.", marker, strategy) for marker, colour in [*own[first:], *own[:first]])


def styles(names: Sequence[Hashable], of: str = "strategy") -> dict[Any, Style]:
    """Choose how groups are drawn side by side, where no two look alike, as they might each alone: strategies as
    everywhere, values of a parameter from dark to light.
    """
    if of == "strategy":
        drawn: dict[Any, Style] = {}
        for name in names:
            taken = {(other.colour, other.marker) for other in drawn.values()}
            colours = {colour for colour, _ in taken}  # bars have no markers: other colours as long as there are some
            looks = _looks(str(name))
            drawn[name] = min(looks, key=lambda each: ((each.colour, each.marker) in taken, each.colour in colours))
        return drawn
    shades = sns.color_palette("cividis", len(names) + 1).as_hex()  # the lightest is hard to see on white
    return {
        name: Style(
            shades[number], _LINES[number % len(_LINES)], _MARKERS[number % len(_MARKERS)], f"{of} = {shown(name)}"
        )
        for number, name in enumerate(names)
    }


def shown(value: Hashable) -> str:
    """A value of a parameter, numbers without a point that says nothing."""
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


@contextmanager
def theme() -> Iterator[None]:
    """A context in which figures are made in the project's style; others are left alone."""
    with _ALONE:
        with mpl.rc_context(
            {
                **sns.axes_style("whitegrid"),
                **sns.plotting_context("notebook", font_scale=0.85),
                "axes.edgecolor": "#888888",
                "grid.color": "#E6E6E6",
                "savefig.dpi": 150,
                "svg.hashsalt": "keyshift",  # the same figure gives the same bytes
            }
        ):
            yield
            interactive = mpl.is_interactive()
        # The first figure loads a notebook's backend, which turns this on; were it turned off again with the rest of
        # the context, the notebook would show no figure but that first one.
        mpl.interactive(interactive)


def png(figure: Figure) -> bytes:
    """The figure as a picture; the same figure gives the same bytes."""
    content = io.BytesIO()
    with theme():
        figure.savefig(content, format="png", bbox_inches="tight")
    return content.getvalue()


def new_axes(size: tuple[float, float]) -> Axes:
    """Axes of a new figure of ``size`` inches, in the theme."""
    with theme():
        return plt.subplots(figsize=size, layout="constrained")[1]


def heading(ax: Axes, text: str, note: str = "") -> None:
    """A title in bold, on the left, and a note in small letters below it."""
    ax.set_title(text, loc="left", fontweight="bold", pad=18 if note else 6)
    if note:
        ax.text(0, 1.02, note, transform=ax.transAxes, fontsize="small", color="#333333", va="bottom")


def plain_numbers(axis: Axis) -> None:
    """The labels of a log axis as plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def lines_between(ax: Axes, columns: int) -> None:
    """Grid lines between so many ``columns`` side by side, at 0, 1, …, and none through them."""
    ax.xaxis.set_minor_locator(FixedLocator([column + 0.5 for column in range(columns - 1)]))
    ax.grid(visible=False, axis="x")
    ax.grid(visible=True, axis="x", which="minor")


def plain_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """A log axis with plain numbers, which spans at least a decade so that it has labels to read."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    if low <= 0:  # nothing was drawn
        ax.set(**{f"{which}lim": (1, 1000)})
    elif high / low < 20:
        middle = np.sqrt(low * high)
        ax.set(**{f"{which}lim": (middle / 5, middle * 5)})
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
    plain_numbers(axis)


def from_zero(ax: Axes) -> None:
    """A linear axis of values, from 0 to some way above the highest of them."""
    ax.update_datalim([(0, 0)], updatex=False)  # else values that are near each other would touch the frame
    ax.autoscale(axis="y")
    ax.margins(y=0.08)
    ax.set_ylim(bottom=0)


def legend_line(label: str, **how: Any) -> Line2D:
    """A sign for a legend, drawn as a line or marker is that has these properties."""
    return Line2D([], [], label=label, **how)


def legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    """A legend outside the Axes, with as many columns as are not wider than the figure: or they squeeze it."""
    columns = len(handles) if len(handles) <= 5 else LEGEND_COLUMNS
    widest = max((len(str(handle.get_label())) for handle in handles), default=0) + 6  # characters, with the sign
    figure = ax.get_figure(root=True)
    assert figure is not None  # it has not been removed
    columns = min(columns, max(1, int(figure.get_figwidth() * CHARACTERS_PER_INCH / widest)))
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, frameon=False, fontsize="small"
    )


def panel_grid(count: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, list[Axes]]:
    """A new figure in the theme with ``count`` panels of ``size`` inches each, at most ``columns`` in a row. Raises
    BadInput if there is none.
    """
    if not count:
        raise BadInput("no run given: a figure of runs needs at least one")
    columns = min(columns, count)
    rows = -(-count // columns)
    with theme():
        figure, grid = plt.subplots(
            rows,
            columns,
            figsize=(max(size[0] * columns, 6.5), size[1] * rows + 0.9),
            squeeze=False,
            layout=ConstrainedLayoutEngine(w_pad=0.12),  # with less, tick labels of neighbours touch
            **shared,
        )
    axes = list(grid.flat)
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes[:count]


def columns_for(count: int) -> int:
    """Choose how many panels of ``count`` go into a row, so that few places stay empty."""
    return count if count <= 3 else 2 if count == 4 else 3


def label_lowest(axes: Sequence[Axes], columns: int, text: str) -> None:
    """Name the shared x axis under the panels below which there is none, even if the last row is short."""
    for ax in axes[max(len(axes) - columns, 0) :]:
        ax.tick_params(labelbottom=True)
        ax.set_xlabel(text)


def finish(figure: Figure, title: str, handles: Sequence[Artist], notes: Sequence[str] = ()) -> Figure:
    """Title and legend of a figure of panels; ``notes`` are lines of the legend without a sign."""
    handles = [*handles, *(legend_line(note, linestyle="") for note in notes)]
    with theme():
        if handles:
            wide = max(len(str(handle.get_label())) for handle in handles) > 40
            figure.legend(
                handles=handles, loc="outside lower center", ncols=min(len(handles), 2 if wide else 5), frameon=False
            )
        figure.suptitle(title, fontsize="large", fontweight="bold", x=0.01, ha="left")
    return figure
