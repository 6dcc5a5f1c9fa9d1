"""How figures look: one theme, and one colour, line, marker and name per strategy.

Colours are Okabe and Ito's and Tol's, chosen to stay apart for colour-blind readers; where two strategies of a family
share one, line and marker tell them apart.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LEGEND_COLUMNS = 3


class Look(NamedTuple):
    """How a strategy is drawn: matplotlib colour, line style and marker, and the name a reader sees."""

    colour: str
    line: str
    marker: str
    label: str


_VERMILLION, _ORANGE, _BLUE, _SKY, _GREEN = "#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73"
_PINK, _BLACK, _WINE, _INDIGO = "#CC79A7", "#000000", "#882255", "#332288"
_LOOKS = {
    "stop_restart": Look(_VERMILLION, "-", "X", "stop and restart"),
    "pause_resume": Look(_VERMILLION, "--", "P", "pause and resume (Trisk)"),
    "all_at_once": Look(_ORANGE, "-", "s", "all at once"),
    "order_unaware": Look(_ORANGE, "--", "D", "order-unaware"),
    "fluid": Look(_BLUE, "-", "o", "fluid"),
    "fluid_per_source": Look(_SKY, "-", "^", "fluid per source"),
    "matched": Look(_GREEN, "-", "v", "matched"),
    "spacker_dynamic": Look(_GREEN, "--", "d", "dynamic (Spacker)"),
    "chunked": Look(_PINK, "-", "<", "chunked"),
    "hot_first": Look(_PINK, "--", ">", "hot first"),
    "meces": Look(_BLACK, "-", "p", "Meces"),
    "drrs": Look(_BLACK, "--", "h", "DRRS"),
    "rhino": Look(_WINE, "-", "H", "Rhino"),
    "replicated": Look(_WINE, "--", "*", "replicated"),
    "lazy": Look(_INDIGO, "-", "8", "lazy"),
    "hybrid": Look(_INDIGO, "--", "x", "hybrid"),
}
_EXTRA_COLOURS = ("#999933", "#117733", "#AA4499", "#661100", "#6699CC")
_EXTRA_MARKERS = ("1", "2", "3", "4", "+", "|", "_")


def look(strategy: str) -> Look:
    """How ``strategy`` is drawn; a name that is not known gets a look of its own that depends on the name only."""
    if strategy in _LOOKS:
        return _LOOKS[strategy]
    code = crc32(strategy.encode())
    colour = _EXTRA_COLOURS[code % len(_EXTRA_COLOURS)]
    marker = _EXTRA_MARKERS[code // len(_EXTRA_COLOURS) % len(_EXTRA_MARKERS)]
    return Look(colour, "-.", marker, strategy)


@contextmanager
def theme() -> Iterator[None]:
    """A context in which figures are made in the project's style; others are left alone."""
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
    # The first figure loads a notebook's backend, which turns this on; were it turned off again with the rest of the
    # context, the notebook would show no figure but that first one.
    mpl.interactive(interactive)


def save(figure: Figure, name: str, data: pd.DataFrame, svg: bool = False) -> dict[str, bytes]:
    """File name to content: ``name``.png, its data ``name``.csv and, if wanted, ``name``.svg. Writes nothing."""
    files = {f"{name}.csv": data.to_csv(index=False).encode()}
    with theme():
        for kind in ("png", "svg") if svg else ("png",):
            content = io.BytesIO()
            figure.savefig(
                content, format=kind, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None
            )
            files[f"{name}.{kind}"] = content.getvalue()
    return files


def new_axes(size: tuple[float, float]) -> Axes:
    """Axes of a new figure of ``size`` inches, in the theme."""
    with theme():
        return plt.subplots(figsize=size, layout="constrained")[1]


def heading(ax: Axes, text: str, pad: float = 6) -> None:
    """A title in bold, on the left."""
    ax.set_title(text, loc="left", fontweight="bold", pad=pad)


def legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    """A legend outside the Axes; more than one row of it goes by fewer columns, or wide names squeeze the figure."""
    columns = len(handles) if len(handles) <= 5 else LEGEND_COLUMNS
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, frameon=False, fontsize="small"
    )
