"""A job while it runs: what its statuses said, one after the other, and a picture of it that is drawn many times."""

import io
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from keyshift.analysis.conclusions import digits
from keyshift.analysis.plots.style import heading, plain_numbers, theme
from keyshift.analysis.tables import MIB

KEPT = 20_000  # samples: two hours of them
FADES = 0.8  # of a unit's colour in a slot it has left, per picture
DPI = 72
LINES = (("-", "#0072B2"), ("--", "#D55E00"))
TIMELINES = (
    ("Latency", "ms", {"p99_ms": "P99 of a second", "p50_ms": "median"}),
    ("Rate", "events/s", {"offered_per_s": "offered", "results_per_s": "results"}),
    ("Records that wait in slots", "MiB", {"queue_mib": "all slots"}),
)
Owners = Mapping[str, tuple[int, ...]]


class StatusSample(NamedTuple):
    """What a status of a job said. ``at_s``: seconds of its life; ``owners``: of each stage, the slot of each unit."""

    at_s: float
    p50_ms: float
    p99_ms: float
    offered_per_s: float
    results_per_s: float
    queue_mib: float
    owners: Owners


class History:
    """What was seen of a job. ``requests``: when something was asked of it, in seconds of its life, and what."""

    def __init__(self) -> None:
        self.samples: deque[StatusSample] = deque(maxlen=KEPT)
        self.requests: list[tuple[float, str]] = []
        self.slots: dict[str, int] = {}  # of each stage, those that are provisioned

    def add(self, status: Mapping[str, Any]) -> None:
        """Keep a ``status`` of a job that runs, as ``LiveJob.status`` gives it."""
        waiting = [of.get("queue_bytes", 0) for s in status["stages"].values() for of in s["of_slot"].values()]
        owners = {name: tuple(stage["owners"]) for name, stage in status["stages"].items()}
        if self.samples and owners == self.samples[-1].owners:
            owners = dict(self.samples[-1].owners)  # the same tuples again
        self.slots = {name: stage["provisioned"] for name, stage in status["stages"].items()}
        p50, p99 = (np.nan if status[name] is None else status[name] for name in ("p50_ms", "p99_ms"))
        at_s, rates = max(0.0, status["running_s"]), (status["rate"], status["results_per_s"])
        self.samples.append(StatusSample(at_s, p50, p99, *rates, sum(waiting) / MIB, owners))

    def note_request(self, what: str) -> None:
        """Note that something is asked of the job now."""
        self.requests.append((self.samples[-1].at_s if self.samples else 0.0, what))

    def table(self) -> pd.DataFrame:
        """A row per sample: its numbers, by name, and ``moved``, how many units have changed their slot since the one
        before.
        """
        samples = list(self.samples)  # a thread that watches the job adds to them
        numbers = pd.DataFrame([sample[:-1] for sample in samples], columns=list(StatusSample._fields[:-1]))
        owners = [np.concatenate([[], *sample.owners.values()]) for sample in samples]
        moved = [0, *(int((now != then).sum()) for then, now in pairwise(owners))]
        return numbers.assign(moved=moved[: len(numbers)])


class LiveFigure:
    """The last ``seconds`` of a job, and who owns each unit now. Made once: only what changes is set anew."""

    def __init__(self, history: History, seconds: float = 60.0) -> None:
        self._history, self._seconds = history, seconds
        with theme():
            self._figure = Figure(figsize=(11, 5.2))
            # Fixed, as to lay it out takes longer than to draw it.
            grid = self._figure.add_gridspec(
                2, 3, height_ratios=(1, 1.1), left=0.09, right=0.985, bottom=0.1, top=0.94, wspace=0.28, hspace=0.42
            )
            self._times = _Timelines([self._figure.add_subplot(grid[0, column]) for column in range(3)])
            self._map = self._figure.add_subplot(grid[1, :])
            heading(self._map, "Who owns each unit (it fades in slots that it has left)")
        self._held: npt.NDArray[np.float64] = np.zeros((0, 0))

    def png(self) -> bytes:
        """The figure as it is now."""
        samples = self._history.samples
        now = samples[-1].at_s if samples else 0.0
        content = io.BytesIO()
        with theme():
            self._times.show(self._history, max(0.0, now - self._seconds), max(now, self._seconds))
            if samples:
                self._show_owners(owned(samples[-1].owners, self._history.slots))
            self._figure.savefig(content, format="png", dpi=DPI)
        return content.getvalue()

    def _show_owners(self, here: npt.NDArray[np.float64]) -> None:
        ax = self._map
        if self._held.shape != here.shape:  # the first time, and after a restart with more slots
            self._held = here
            ax.clear()
            heading(ax, "Who owns each unit (it fades in slots that it has left)")
            self._image = ax.imshow(here, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1)
            slots = self._history.slots
            names = [f"{stage} {slot}" for stage, number in slots.items() for slot in range(number)]
            ax.set_yticks(range(len(names)), names)
            ax.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
            ax.grid(visible=False)
            ax.grid(which="minor", axis="y", color="#888888", linewidth=1)
            ax.set(xlabel="unit")
        self._held = np.maximum(here, self._held * FADES)
        self._image.set_data(self._held)


def owned(owners: Owners, slots: Mapping[str, int]) -> npt.NDArray[np.float64]:
    """1 where a slot owns a unit, else 0: shape (slots of all stages, units)."""
    rows = [np.asarray(owners[stage])[None, :] == np.arange(number)[:, None] for stage, number in slots.items()]
    return np.concatenate(rows).astype(float)


def exploration(history: History) -> Figure:
    """All that was seen of a job: its timelines, and below them the slot of each unit over time.

    Of a chain the units of its stages are one above the other.
    """
    samples = list(history.samples)
    end = samples[-1].at_s if samples else 1.0
    with theme():
        figure = plt.figure(figsize=(11, 6), layout="constrained")
        grid = figure.add_gridspec(2, 3)
        _Timelines([figure.add_subplot(grid[0, column]) for column in range(3)]).show(history, 0.0, end)
        ax = figure.add_subplot(grid[1, :])
        heading(ax, "Slot of each unit over time")
        if samples:
            slot_of = np.array([np.concatenate(list(sample.owners.values())) for sample in samples]).T
            edges = np.append([sample.at_s for sample in samples], end + 0.5)
            most = max(*history.slots.values(), 1 + slot_of.max())  # there may have been more slots than now
            mesh = ax.pcolormesh(
                edges,
                np.arange(len(slot_of) + 1),
                slot_of,
                cmap=plt.get_cmap("cividis", most),
                vmin=-0.5,
                vmax=most - 0.5,
            )
            figure.colorbar(mesh, ax=ax, ticks=range(most), label="slot")
        ax.grid(visible=False)
        ax.set(xlabel="seconds since the load began", ylabel="unit")
        for at_s, what in history.requests:
            ax.axvline(at_s, color="white", linestyle="--", linewidth=1)
            box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            ax.annotate(what, (at_s, 0.97), xycoords=("data", "axes fraction"), va="top", fontsize="small", bbox=box)
    return figure


def exploration_sentences(history: History) -> list[str]:
    """Say what was asked of a job and what was seen of it until the next time: P99, units that moved, how long that
    took.

    Each second of P99 counts for what was asked last before it.
    """
    table, said = history.table(), []
    if table.empty:
        return ["nothing was seen of the job"]
    marks = [(float(table["at_s"].iloc[0]), "the beginning"), *history.requests]
    ends = [at_s for at_s, _ in marks[1:]] + [float(table["at_s"].iloc[-1])]
    for (begin, what), end in zip(marks, ends, strict=True):
        part = table[(table["at_s"] > begin) & (table["at_s"] <= end)]
        moves = part[part["moved"] > 0]
        words = f"**{what}** at {begin:.0f} s: "
        if moves.empty:
            words += "no unit moved"
        else:
            words += f"{moves['moved'].sum()} units moved, the last seen {moves['at_s'].iloc[-1] - begin:.1f} s later"
        if part["p99_ms"].notna().any():
            middle, most = digits(part["p99_ms"].median()), digits(part["p99_ms"].max())
            words += f"; median of the P99 {middle} ms, at most {most} ms"
        said.append(words)
    return said


class _Timelines:
    """Latency, rate and queues over time."""

    def __init__(self, axes: list[Axes]) -> None:
        self._axes = axes
        self._lines: dict[str, Line2D] = {}
        self._marks: list[list[Line2D]] = []
        for ax, (title, unit, names) in zip(axes, TIMELINES, strict=True):
            heading(ax, title)
            for (name, label), (style, colour) in zip(names.items(), LINES, strict=False):
                [self._lines[name]] = ax.plot([], [], style, color=colour, label=label)
            ax.set(xlabel="seconds since the load began", ylabel=unit)
            if unit == "ms":
                ax.set_yscale("log")
                plain_numbers(ax.yaxis)
            ax.legend(loc="upper left", frameon=False, fontsize="small")

    def show(self, history: History, begin: float, end: float) -> None:
        """Draw what was seen from ``begin`` to ``end``."""
        samples = [sample for sample in list(history.samples) if sample.at_s >= begin - 1]
        numbers = np.array([sample[:-1] for sample in samples], float).reshape(-1, len(StatusSample._fields) - 1)
        for name, line in self._lines.items():
            line.set_data(numbers[:, 0], numbers[:, StatusSample._fields.index(name)])
        for ax, (_, _, names) in zip(self._axes, TIMELINES, strict=True):
            columns = numbers[:, [StatusSample._fields.index(name) for name in names]]
            seen = columns[np.isfinite(columns) & (columns > 0)]
            least, most = (seen.min(), seen.max()) if len(seen) else (1.0, 1.0)
            log = ax.get_yscale() == "log"  # there is room for the legend above the lines
            ax.set(xlim=(begin, end), ylim=(least / 2, most * (most / least) ** 0.4 * 3) if log else (0, 1.5 * most))
        for at_s, _ in history.requests[len(self._marks) :]:
            self._marks.append([ax.axvline(at_s, color="#888888", linestyle=":", linewidth=1) for ax in self._axes])
