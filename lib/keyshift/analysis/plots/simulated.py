"""Simulated migrations: figures, and what they say in words; with how far the simulator is off, where it was measured.

``table`` is from ``forecast.simulation.simulate``, ``validation`` from ``forecast.calibration.calibrate``.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keyshift.analysis.conclusions import digits, enumerated
from keyshift.analysis.metrics import need
from keyshift.analysis.plots.strategies import pareto
from keyshift.analysis.plots.style import finish, heading, legend_line, panel_grid, plain_log, style_of, styles
from keyshift.analysis.tables import on_front

COMPARED = {"completion_s": ("completion (s)", "Completion"), "spike_ms": ("P99 spike (ms)", "P99 spike")}
OVER = {"completion_s": ("completion (s)", "Completion"), "longest_s": ("longest wait (s)", "Longest wait of a record")}
NEEDED = (*COMPARED, "p99_ms", "floor_s", "bytes_moved", "bytes_minimum")
FLOOR: dict[str, Any] = {"color": "#444444", "linestyle": ":", "linewidth": 1.4}


class Off(NamedTuple):
    """Measured ÷ simulated over so many runs: lowest, median and highest; 1 if there are none."""

    low: float
    median: float
    high: float
    runs: int


def model_error(validation: pd.DataFrame) -> dict[str, Off]:
    """Measure how far completion_s and spike_ms are off, over runs that the costs are not from."""
    need(validation, ["held_out", *COMPARED], "model_error")
    apart = validation[validation["held_out"] != ""]
    found = {}
    for name in COMPARED:
        ratio = (apart[name] / apart[f"simulated_{name}"]).dropna()
        low, median, high = np.quantile(ratio, (0, 0.5, 1)).tolist() if len(ratio) else (1.0, 1.0, 1.0)
        found[name] = Off(low, median, high, len(ratio))
    return found


def validation_figure(validation: pd.DataFrame) -> Figure:
    """Simulated against measured: a marker for each run, empty if the costs are from it, too, and where both agree."""
    need(validation, ["strategy", "held_out", *COMPARED], "validation_figure")
    figure, axes = panel_grid(len(COMPARED), 2, (4.6, 4.0))
    for ax, (name, (label, title)) in zip(axes, COMPARED.items(), strict=True):
        known = validation.dropna(subset=[name, f"simulated_{name}"])
        for row in known.to_dict("records"):
            empty = {} if row["held_out"] else {"markerfacecolor": "none"}
            ax.plot(row[name], row[f"simulated_{name}"], **style_of(row["strategy"]).sign | empty)
        plain_log(ax, "x")
        plain_log(ax, "y")
        ends = min(ax.get_xlim()[0], ax.get_ylim()[0]), max(ax.get_xlim()[1], ax.get_ylim()[1])
        ax.plot(ends, ends, color="#444444", linewidth=1, zorder=1)
        ax.fill_between(ends, np.array(ends) / 2, np.array(ends) * 2, color="#BBBBBB", alpha=0.3, linewidth=0, zorder=0)
        ax.set(xlim=ends, ylim=ends)
        ax.set(xlabel=f"measured {label}", ylabel=f"simulated {label}")
        heading(ax, title)
    handles = [style_of(name).in_legend for name in validation["strategy"].unique()]
    notes = ["grey: off by a factor of at most 2"]
    if (validation["held_out"] == "").any():
        notes.append("empty: the costs are from this run, too")
    return finish(figure, "Runs, and the same runs simulated with costs from others", handles, notes)


def simulated_pareto(table: pd.DataFrame, validation: pd.DataFrame) -> Axes:
    """``pareto`` of the points; bars reach as far as measured runs were off from simulated ones."""
    need(table, ["point", "strategy", *NEEDED], "simulated_pareto")
    frame = table.rename(columns={"point": "label", "p99_ms": "p99_before_ms"})
    frame = frame.assign(verdict="ok", stays=False, recovered=True, front=on_front(table[["spike_ms", "completion_s"]]))
    for name, off in model_error(validation).items():
        measure, _, unit = name.rpartition("_")
        least = np.minimum(table[name], table["floor_s"]) if name == "completion_s" else table["p99_ms"]
        least = np.where(_moves_all(table), least, 0.0)
        frame[f"{measure}_low_{unit}"] = np.maximum(table[name] * min(off.low, 1.0), least)
        frame[f"{measure}_high_{unit}"] = table[name] * max(off.high, 1.0)
    ax = pareto(frame)
    heading(ax, "Simulated migrations; bars: as far as measured runs were off")
    return ax


def simulated_lines(table: pd.DataFrame, over: str, label: str, title: str, scale: float = 1.0) -> Figure:
    """Completion, its floor and the longest wait over ``over``, a column, by ``scale``: a line per strategy."""
    need(table, ["strategy", over, *OVER, "floor_s"], "simulated_lines")
    figure, axes = panel_grid(len(OVER), 2, (4.6, 3.6))
    looks = styles(table["strategy"].unique().tolist())
    lines = {name: look.marked_line | {"markersize": 6, "linewidth": 1.6} for name, look in looks.items()}
    for ax, (name, (unit, heading_)) in zip(axes, OVER.items(), strict=True):
        for strategy, line in table.sort_values(over).groupby("strategy", sort=False):
            ax.plot(line[over] / scale, line[name], **lines[strategy])
        if name == "completion_s":
            floor = table.groupby(over)["floor_s"].max()
            ax.plot(floor.index / scale, floor, **FLOOR)
        plain_log(ax, "x")
        plain_log(ax, "y")
        ax.set(xlabel=label, ylabel=f"simulated {unit}")
        heading(ax, heading_)
    handles = [legend_line(looks[name].label, **line) for name, line in lines.items()]
    return finish(figure, title, [*handles, legend_line("floor: a bare copy over the links", **FLOOR)])


def simulation_sentences(table: pd.DataFrame, validation: pd.DataFrame) -> list[str]:
    """Say what the points of ``table`` would cost, behind how sure that is: see ``simulation_doubts``."""
    need(table, ["point", *OVER, *NEEDED], "simulation_sentences")
    off = model_error(validation)["completion_s"]
    said = simulation_doubts(validation)
    table = table.sort_values("completion_s", kind="stable", ignore_index=True)
    whole = table[_moves_all(table)]
    if len(whole):
        took, floor = whole["completion_s"].iloc[0], whole["floor_s"].iloc[0]
        first = whole.loc[whole["completion_s"] <= 1.01 * took, "point"].tolist()
        low = max(min(floor, took), took * off.low)
        high = max(low, took * off.high)
        between = f", or {_s(low)} to {_s(high)} if the simulator is as far off as above" if off.runs else ""
        said.append(
            f"Of what moves everything {enumerated(first)} would complete first, in {_s(took)}{between}; a bare copy "
            f"over the links takes {_s(floor)}."
        )
        calm = whole[whole["completion_s"] <= 2 * took].nsmallest(1, "longest_s").iloc[0]
        said.append(
            f"Of those that take at most twice as long a record would wait least with {calm['point']}: up to "
            f"{_s(calm['longest_s'])}, and it completes after {_s(calm['completion_s'])}."
        )
    least, most = table.iloc[table["longest_s"].argmin()], table.iloc[table["longest_s"].argmax()]
    if most["longest_s"] > least["longest_s"]:
        said.append(
            f"A record would wait longest with {most['point']}, up to {_s(most['longest_s'])}; with {least['point']} "
            f"up to {_s(least['longest_s'])}, and that completes after {_s(least['completion_s'])}."
        )
    calm_p99 = (table["spike_ms"] < 1.5 * table["p99_ms"]) & (1000 * table["longest_s"] > 2 * table["p99_ms"])
    if hidden := table.loc[calm_p99, "point"].tolist():
        said.append(
            f"P99 of all events hardly shows {enumerated(hidden)}: in no second does one event in a hundred wait for "
            "long. Those few wait all the same: see the longest wait."
        )
    return said


def simulation_doubts(validation: pd.DataFrame) -> list[str]:
    """Say how far the simulator was off where it was measured, and what nobody can know."""
    said = []
    for name, off in model_error(validation).items():
        if off.runs:
            said.append(
                f"{COMPARED[name][1]}, over {off.runs} runs that the costs are not from: measured is "
                f"{digits(off.low)} to {digits(off.high)} times simulated (median {digits(off.median)})."
            )
    if inside := validation.loc[validation["held_out"] == "", "strategy"].unique().tolist():
        said.append(f"Too few other runs to validate {enumerated(inside)}: how far off that is, nobody knows.")
    said.append(
        "The error at the size of a cluster cannot be measured here: hosts are assumed to differ from this machine in "
        "number, cores and links alone."
    )
    return said


def _moves_all(table: pd.DataFrame) -> "pd.Series[bool]":
    """Find which points send all of it behind the request, so that they cannot be faster than the floor."""
    return table["bytes_moved"] >= table["bytes_minimum"] * (1 - 1e-9)


def _s(value: float) -> str:
    return f"{digits(value)} s" if value < 600 else f"{digits(value / 60)} min"
