"""What the runs of ``bench.strategies`` say: the aims, and hand-over by dirty bytes.

A row is one of ``Study.rows``: the summary of a run. Of ``all_at_once`` it has ``copy_s``, too: the seconds of a bare
copy of the same bytes between as many processes, made right after the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.measurements import Measurement, aligned
from keyshift.folders import MIB

CALM = ("fluid", "matched", "meces", "lazy")  # presets that users should hardly notice
AT_MOST_BEFORE = 2.0  # their spike, times the P99 before
# Their spike, against that of the presets that a naive user would take.
AT_MOST_OF = {"order_unaware": 1 / 5, "stop_restart": 1 / 20}
AT_MOST_COPY = 1.5  # completion of all_at_once, times a bare copy of the same bytes

Row = Mapping[str, Any]


def aims(rows: Sequence[Row]) -> list[Measurement]:
    """The aims that these runs can tell about: each compares neighbours of a repetition, correct ones only."""
    known: dict[tuple[str, str], dict[int, float]] = {}  # of a preset, a figure in ms by the seed
    for row in rows:
        for figure, value in _figures(row):
            if value is not None:
                known.setdefault((row["strategy"], figure), {})[row["parameters"]["seed"]] = value

    def against(measure: str, ours: tuple[str, str], other: tuple[str, str], aim: float | None) -> Measurement:
        mine, others = known.get(ours, {}), known.get(other, {})
        both = [seed for seed in mine if others.get(seed)]
        return Measurement("d", measure, "ms", [mine[seed] for seed in both], [others[seed] for seed in both], aim)

    found = []
    for preset in CALM:
        spike, spike_of = (preset, "spike"), f"spike of {preset}, against"
        found.append(against(f"{spike_of} P99 before", spike, (preset, "before"), AT_MOST_BEFORE))
        for other, at_most in AT_MOST_OF.items():
            found.append(against(f"{spike_of} that of {other}", spike, (other, "spike"), at_most))
    whole, hand_over, copy = (("all_at_once", figure) for figure in ("completion", "hand-over", "copy"))
    found.append(against("completion of all_at_once, against a bare copy", whole, copy, AT_MOST_COPY))
    found.append(against("of it transfer and install, against the same", hand_over, copy, None))
    return [row for row in found if row.keyshift]


def _figures(row: Row) -> Iterator[tuple[str, float | None]]:
    """What aims are about, in ms; nothing of a run that is not correct."""
    if row["verdict"] == "ok":
        yield from {"spike": row["spike_ms"], "before": row["p99_ms"]}.items()
        seconds = {"completion": row["completion_s"], "hand-over": hand_over_s(row), "copy": row.get("copy_s")}
        yield from ((figure, None if value is None else value * 1000) for figure, value in seconds.items())


def hand_over_s(row: Row) -> float | None:
    """From the last unit aligned to the last one in place: what travels, travels in that time."""
    phases = [row["phases"][name] for name in ("transfer", "install")]
    return None if row["completion_s"] is None or None in phases else float(sum(phases))


@dataclass(frozen=True)
class HandOverFit:
    """Hand-over as a straight line over dirty bytes, by least squares; ``explained``: its R², 1 is all on the line."""

    fixed_ms: float
    ms_per_mib: float
    explained: float


def fit(points: Sequence[tuple[float, float]]) -> HandOverFit | None:
    """The line through points of (bytes, seconds); None if they do not differ enough to tell one."""
    if len({size for size, _ in points}) < 2:
        return None
    mib, ms = np.array([(size / MIB, seconds * 1000) for size, seconds in points]).T
    slope, fixed = np.polyfit(mib, ms, 1)
    scatter = ((ms - ms.mean()) ** 2).sum()
    missed = ((ms - fixed - slope * mib) ** 2).sum()
    return HandOverFit(float(fixed), float(slope), float(1 - missed / scatter) if scatter else 1.0)


def dirty_points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(Bytes, seconds) of each hand-over over a copy, of correct runs, fewest bytes first."""
    points = [(row["bytes_moved"], hand_over_s(row)) for row in rows if row["verdict"] == "ok"]
    return sorted((size, seconds) for size, seconds in points if size is not None and seconds is not None)


def hand_over_table(rows: Sequence[Row]) -> str:
    """A line per hand-over over a copy, fewest dirty bytes first, and the line through them in words."""
    points = dirty_points(rows)
    sizes = [row["bytes_minimum"] for row in rows if row["verdict"] == "ok" and row["bytes_minimum"] is not None]
    minimum_bytes = median(sizes) if sizes else float("nan")
    heads = ("dirty MiB", "of what moves", "hand-over ms", "ms per MiB")
    lines = [
        (
            f"{size / MIB:.1f}",
            f"{100 * size / minimum_bytes:.0f} %",
            f"{seconds * 1000:.0f}",
            f"{seconds * 1000 / (size / MIB):.1f}",
        )
        for size, seconds in points
        if size
    ]
    text = aligned([heads, *lines], left=())
    line = fit(points)
    if line is None:
        return f"{text}\ntoo few hand-overs to tell how the time depends on the dirty bytes"
    (few, quick), (many, slow) = points[0], points[-1]
    growth = f"; {many / few:.1f} times the bytes took {slow / quick:.1f} times as long" if few and quick else ""
    formula = f"{line.fixed_ms:z.0f} ms + {line.ms_per_mib:.2f} ms per dirty MiB (R² {line.explained:.2f})"
    return f"{text}\nhand-over = {formula}{growth}"
