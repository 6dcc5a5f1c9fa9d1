"""Tables of the runs of ``bench.strategies``: a line per preset, the aims, hand-over by dirty bytes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.measurements import Measurement, aligned, spread

CALM = ("fluid", "matched", "meces", "lazy")  # presets that users should hardly notice
AT_MOST_BEFORE = 2.0  # their spike, times the P99 before
# Their spike, against that of the presets that a naive user would take.
AT_MOST_OF = {"order_unaware": 1 / 5, "stop_restart": 1 / 20}
AT_MOST_COPY = 1.5  # completion of all_at_once, times a bare copy of the same bytes
MIB = 2**20


@dataclass(frozen=True)
class Run:
    """One run of one preset, or why there is no summary (``results.manifest.Summary``, as JSON) of it.

    ``copy_s``: seconds of a bare copy of the same bytes between as many processes, made right after it.
    """

    preset: str
    repetition: int
    summary: dict[str, Any] | None = None
    error: str = ""
    copy_s: float | None = None

    @property
    def verdict(self) -> str:
        """The verdict, ok or bad; or that it died."""
        return "died" if self.summary is None else str(self.summary["verdict"])

    def get(self, name: str) -> float | None:
        """A figure of the summary; None if it is not known, or the run is not correct."""
        if self.summary is None or self.verdict != "ok" or self.summary.get(name) is None:
            return None
        return float(self.summary[name])

    @property
    def hand_over_s(self) -> float | None:
        """From the last unit aligned to the last one in place: what travels, travels in that time."""
        if self.get("completion_s") is None:
            return None
        assert self.summary is not None
        phases = [self.summary["phases"][name] for name in ("transfer", "install")]
        return None if None in phases else float(sum(phases))

    def to_json(self) -> dict[str, Any]:
        """All of it, with the verdict and the hand-over."""
        return asdict(self) | {"verdict": self.verdict, "hand_over_s": self.hand_over_s}


def aims(runs: Sequence[Run]) -> list[Measurement]:
    """The aims that these runs can tell about: each compares neighbours of a repetition, correct ones only."""
    rows = []
    for preset in CALM:
        rows.append(
            _row(f"spike of {preset}, against P99 before", _pairs(runs, preset, preset, "p99_ms"), AT_MOST_BEFORE)
        )
        rows += [
            _row(f"spike of {preset}, against that of {other}", _pairs(runs, preset, other, "spike_ms"), at_most)
            for other, at_most in AT_MOST_OF.items()
        ]
    copied = [run for run in runs if run.preset == "all_at_once" and run.copy_s]
    whole = [(run.get("completion_s"), run.copy_s) for run in copied]
    travelled = [(run.hand_over_s, run.copy_s) for run in copied]
    rows.append(_row("completion of all_at_once, against a bare copy", _in_ms(whole), AT_MOST_COPY))
    rows.append(_row("of it transfer and install, against the same", _in_ms(travelled), None))
    return [row for row in rows if row.keyshift]


def _row(measure: str, pairs: list[tuple[float, float]], aim: float | None) -> Measurement:
    return Measurement("d", measure, "ms", [ours for ours, _ in pairs], [other for _, other in pairs], aim)


def _pairs(runs: Sequence[Run], preset: str, other: str, against: str) -> list[tuple[float, float]]:
    """The spike of ``preset`` and a figure of ``other``, of each repetition that has both."""
    theirs = {run.repetition: run.get(against) for run in runs if run.preset == other}
    pairs = [(run.get("spike_ms"), theirs.get(run.repetition)) for run in runs if run.preset == preset]
    return [(ours, value) for ours, value in pairs if ours is not None and value]


def _in_ms(pairs: list[tuple[float | None, float | None]]) -> list[tuple[float, float]]:
    return [(ours * 1000, other * 1000) for ours, other in pairs if ours is not None and other]


def preset_table(runs: Sequence[Run]) -> str:
    """A line per preset, in order of first appearance: medians and ranges over the correct runs, and all verdicts."""
    heads: tuple[str, ...] = (
        "preset",
        "P99 before",
        "spike ms",
        "(range)",
        "x before",
        "(range)",
        "completion s",
        "(range)",
    )
    heads += ("floor s", "moved MiB", "copied", "minimum", "silence ms", "verdict")
    lines: list[tuple[str, ...]] = [heads]
    for preset in dict.fromkeys(run.preset for run in runs):
        mine = [run for run in runs if run.preset == preset]
        times = [ours / before for ours, before in _pairs(mine, preset, preset, "p99_ms")]
        lines.append(
            (
                preset,
                spread(_known(mine, "p99_ms"), 0)[0],
                *spread(_known(mine, "spike_ms"), 0),
                *spread(times, 2),
                *spread(_known(mine, "completion_s"), 2),
                spread(_known(mine, "floor_s"), 2)[0],
                *(spread([v / MIB for v in _known(mine, f"bytes_{n}")], 0)[0] for n in ("moved", "copied", "minimum")),
                spread(_known(mine, "silence_ms"), 0)[0],
                _verdicts(mine),
            )
        )
    return aligned(lines, left=(0, len(heads) - 1))


def _known(runs: Sequence[Run], name: str) -> list[float]:
    return [value for run in runs if (value := run.get(name)) is not None]


def _verdicts(runs: Sequence[Run]) -> str:
    found = [run.verdict for run in runs]
    if len(set(found)) == 1:
        return found[0]
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in ("ok", "bad", "died") if verdict in found)


@dataclass(frozen=True)
class Fit:
    """Hand-over as a straight line over dirty bytes, by least squares; ``explained``: its R², 1 is all on the line."""

    fixed_ms: float
    ms_per_mib: float
    explained: float


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The line through points of (bytes, seconds); None if they do not differ enough to tell one."""
    if len({size for size, _ in points}) < 2:
        return None
    mib, ms = np.array([(size / MIB, seconds * 1000) for size, seconds in points]).T
    slope, fixed = np.polyfit(mib, ms, 1)
    scatter = ((ms - ms.mean()) ** 2).sum()
    missed = ((ms - fixed - slope * mib) ** 2).sum()
    return Fit(float(fixed), float(slope), float(1 - missed / scatter) if scatter else 1.0)


def dirty_points(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """(Bytes, seconds) of each hand-over over a copy, fewest bytes first."""
    points = [(run.get("bytes_moved"), run.hand_over_s) for run in runs]
    return sorted((size, seconds) for size, seconds in points if size is not None and seconds is not None)


def hand_over_table(runs: Sequence[Run], minimum_bytes: float) -> str:
    """A line per hand-over over a copy, fewest dirty bytes first, and the line through them in words."""
    points = dirty_points(runs)
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


def moved_minimum_bytes(runs: Sequence[Run]) -> float:
    """Bytes of state that had to move, the median over the runs that know it; NaN if none does."""
    values = _known(runs, "bytes_minimum")
    return median(values) if values else float("nan")
