"""The arithmetic of the benchmark: medians of alternating repetitions, a search for the highest rate, the table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

STEP = 2.0  # between the first rungs of a staircase
LOWEST_PER_S, HIGHEST_PER_S = 250.0, 4_000_000.0


@dataclass(frozen=True)
class Row:
    """One measure of keyshift, one value per repetition, and of what it is compared with (empty: nothing).

    ``aim``: what the ratio should not exceed. ``more_is_better``: the ratio is then other / keyshift, so that in every
    row a ratio above 1 is what keyshift costs.
    """

    part: str
    measure: str
    unit: str
    keyshift: list[float]
    other: list[float]
    aim: float | None = None
    more_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """The median over the ratios of neighbouring repetitions: what disturbs the machine disturbs both."""
        if not self.other:
            return None
        pairs = list(zip(self.keyshift, self.other, strict=True))
        return median(other / ours if self.more_is_better else ours / other for ours, other in pairs)

    def to_json(self) -> dict[str, Any]:
        """All of it, with the medians and the ratio."""
        medians = {"keyshift_median": median(self.keyshift), "other_median": median(self.other) if self.other else None}
        return asdict(self) | medians | {"ratio": self.ratio}


def staircase(sustains: Callable[[float], bool], start: float, bisections: int) -> float:
    """The highest rate, in events/s, that ``sustains`` said yes to: by doubling (or halving) until the answer changes,
    then by bisecting that factor. 0 if not even LOWEST_PER_S is sustained.
    """
    rate = start
    if sustains(rate):
        while rate < HIGHEST_PER_S and sustains(rate * STEP):
            rate *= STEP
    else:
        rate /= STEP
        while rate >= LOWEST_PER_S and not sustains(rate):
            rate /= STEP
        if rate < LOWEST_PER_S:
            return 0.0
    factor = STEP
    for _ in range(bisections):
        factor = math.sqrt(factor)
        if sustains(rate * factor):
            rate *= factor
    return rate


def table(rows: Sequence[Row]) -> str:
    """The rows for people: medians, the runs' range, and the ratio with its aim."""
    heads = ("part", "measure", "unit", "keyshift", "(range)", "compared", "(range)", "ratio", "aim")
    lines = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    left = (0, 1, 2)
    return "\n".join(
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    aim = "" if row.aim is None else f"<= {row.aim:.2f}"
    return (row.part, row.measure, row.unit, *_spread(row.keyshift), *_spread(row.other), ratio, aim)


def _spread(values: list[float]) -> tuple[str, str]:
    if not values:
        return "", ""
    digits = 0 if median(values) >= 1000 else 1
    return f"{median(values):.{digits}f}", f"{min(values):.{digits}f}-{max(values):.{digits}f}"
