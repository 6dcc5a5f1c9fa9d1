"""The arithmetic of the benchmark: medians of alternating repetitions, the table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Measurement:
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

    @property
    def met(self) -> bool | None:
        """Whether the ratio is within the aim; None if there is no aim, or nothing to compare with."""
        return None if self.aim is None or self.ratio is None else self.ratio <= self.aim

    def to_json(self) -> dict[str, Any]:
        """All of it, with the medians, the ratio and whether the aim is met."""
        medians = {"keyshift_median": median(self.keyshift), "other_median": median(self.other) if self.other else None}
        return asdict(self) | medians | {"ratio": self.ratio, "met": self.met}


def table(rows: Sequence[Measurement]) -> str:
    """The rows for people: medians, the runs' range, and the ratio with its aim."""
    heads = ("part", "measure", "unit", "keyshift", "(range)", "compared", "(range)", "ratio", "aim", "")
    return aligned([heads, *(_cells(row) for row in rows)], left=(0, 1, 2, 9))


def aligned(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Lines of cells as columns; those of ``left`` begin at the left, others end at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _spread(values: Sequence[float]) -> tuple[str, str]:
    """The median and the range; empty without values."""
    if not values:
        return "", ""
    digits = 0 if median(values) >= 1000 else 1
    return f"{median(values):.{digits}f}", f"{min(values):.{digits}f}-{max(values):.{digits}f}"


def _cells(row: Measurement) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    aim = "" if row.aim is None else f"<= {row.aim:.2f}"
    met = {None: "", True: "met", False: "missed"}[row.met]
    return (row.part, row.measure, row.unit, *_spread(row.keyshift), *_spread(row.other), ratio, aim, met)
