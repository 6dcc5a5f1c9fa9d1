"""Statistics over repetitions: intervals, and whether two points differ. Pure: numbers in, numbers out."""

import warnings
from collections.abc import Iterable
from math import isfinite, nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keyshift.model.errors import BadInput

CONFIDENCE = 0.95  # of every interval


class Interval(NamedTuple):
    """A mean over repetitions and its 95 % confidence interval; ``low`` and ``high`` are NaN for one value."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Iterable[float | None]) -> Interval:
    """Mean and Student-t confidence interval of repetitions; missing values are left out.

    The t interval, not a bootstrap, because with three to five repetitions a bootstrap covers far less than it says.
    Raises BadInput if no value is known.
    """
    known = _known_values(values)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, nan, nan, 1)
    from scipy import stats  # here: it takes half a second, and most commands compare nothing

    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1) * stats.sem(known))
    return Interval(mean, mean - half, mean + half, len(known))


def differ(one: Iterable[float | None], other: Iterable[float | None]) -> bool | None:
    """Whether two points differ by more than chance explains: 0 is outside of Welch's confidence interval of their
    difference, as the two may scatter differently. None: it cannot be known, as one of them has a single value.

    Of their logarithms, if all are above 0: times and bytes scatter by factors, and so they are compared. Raises
    BadInput as ``interval``. Source: Welch 1947, with the degrees of freedom of Satterthwaite 1946.
    """
    first, second = _known_values(one), _known_values(other)
    if min(len(first), len(second)) < 2:
        return None
    if min(first.min(), second.min()) > 0:
        first, second = np.log(first), np.log(second)
    if not (np.ptp(first) or np.ptp(second)):
        return bool(first[0] != second[0])  # means of equal values may differ by rounding
    from scipy import stats  # as in ``interval``

    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # if those of one do not scatter
        low, high = stats.ttest_ind(second, first, equal_var=False).confidence_interval(CONFIDENCE)
    return None if low != low else not low <= 0 <= high


def _known_values(values: Iterable[float | None]) -> npt.NDArray[np.float64]:
    known = np.array([value for value in values if value is not None and isfinite(value)], dtype="float64")
    if not len(known):
        raise BadInput("interval: none of the values is known")
    return known
