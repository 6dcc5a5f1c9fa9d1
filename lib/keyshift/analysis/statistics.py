"""Statistics over repetitions: intervals, and whether two points differ. Pure: numbers in, numbers out."""

from collections.abc import Iterable
from math import cos, floor, isfinite, nan, pi, sin, sqrt, tan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keyshift.model.errors import BadInput


class Interval(NamedTuple):
    """A mean over repetitions and its confidence interval; ``low`` and ``high`` are NaN for one value."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Iterable[float | None], confidence: float = 0.95) -> Interval:
    """Mean and Student-t confidence interval of repetitions; missing values are left out.

    The t interval, not a bootstrap, because with three to five repetitions a bootstrap covers far less than it says.
    Raises BadInput if no value is known, or ``confidence`` is not between 0 and 1.
    """
    known = _known(values, confidence)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, nan, nan, 1)
    half = _student_t(confidence, len(known) - 1) * float(known.std(ddof=1)) / sqrt(len(known))
    return Interval(mean, mean - half, mean + half, len(known))


def difference(one: Iterable[float | None], other: Iterable[float | None], confidence: float = 0.95) -> Interval:
    """Mean of ``other`` minus that of ``one``, with Welch's confidence interval: the two may scatter differently.

    ``n`` is the number of values of both. Degrees of freedom are rounded down, so the interval is never too narrow.
    ``low`` and ``high`` are NaN unless both have two values. Raises BadInput as ``interval``.
    Source: Welch 1947, with the degrees of freedom of Satterthwaite 1946.
    """
    first, second = (_known(values, confidence) for values in (one, other))
    mean, n = float(second.mean() - first.mean()), len(first) + len(second)
    if min(len(first), len(second)) < 2:
        return Interval(mean, nan, nan, n)
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    if not sum(parts):
        return Interval(mean, mean, mean, n)
    shares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    half = _student_t(confidence, floor(sum(parts) ** 2 / shares + 1e-9)) * sqrt(sum(parts))
    return Interval(mean, mean - half, mean + half, n)


def differ(one: Iterable[float | None], other: Iterable[float | None], confidence: float = 0.95) -> bool | None:
    """Whether two points differ by more than chance explains: 0 is outside of ``difference``. None: cannot be known."""
    found = difference(one, other, confidence)
    return None if found.low != found.low else not found.low <= 0 <= found.high


def _known(values: Iterable[float | None], confidence: float) -> npt.NDArray[np.float64]:
    if not 0 < confidence < 1:
        raise BadInput(f"confidence = {confidence}: must be between 0 and 1, e.g. 0.95")
    known = np.array([value for value in values if value is not None and isfinite(value)], dtype="float64")
    if not len(known):
        raise BadInput("interval: none of the values is known")
    return known


def _student_t(confidence: float, freedom: int) -> float:
    """The t that a fraction ``confidence`` of Student's distribution lies within, either side of 0.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4 (the exact series for whole degrees of freedom), bisected.
    """

    def within(theta: float) -> float:  # t = sqrt(freedom) * tan(theta)
        first = 1 if freedom % 2 == 0 else 2
        term, total = (1.0 if first == 1 else cos(theta)), 0.0
        for k in range(first, freedom, 2):
            total += term
            term *= cos(theta) ** 2 * k / (k + 1)
        return sin(theta) * total if first == 1 else 2 / pi * (theta + sin(theta) * total)

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return sqrt(freedom) * tan((low + high) / 2)
