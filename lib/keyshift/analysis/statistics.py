"""Statistics over repetitions: intervals, and whether two points differ. Pure: numbers in, numbers out."""

import warnings
from collections.abc import Iterable
from math import isfinite, nan
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
    from scipy import stats  # here: it takes half a second, and most commands compare nothing

    half = float(stats.t.ppf((1 + confidence) / 2, len(known) - 1) * stats.sem(known))
    return Interval(mean, mean - half, mean + half, len(known))


def difference(one: Iterable[float | None], other: Iterable[float | None], confidence: float = 0.95) -> Interval:
    """Mean of ``other`` minus that of ``one``, with Welch's confidence interval: the two may scatter differently.

    ``n`` is the number of values of both. ``low`` and ``high`` are NaN unless both have two values. Raises BadInput as
    ``interval``. Source: Welch 1947, with the degrees of freedom of Satterthwaite 1946.
    """
    first, second = (_known(values, confidence) for values in (one, other))
    mean, n = float(second.mean() - first.mean()), len(first) + len(second)
    if min(len(first), len(second)) < 2:
        return Interval(mean, nan, nan, n)
    if not (np.ptp(first) or np.ptp(second)):
        mean = float(second[0] - first[0])  # means of equal values may differ by rounding
        return Interval(mean, mean, mean, n)
    from scipy import stats  # as in ``interval``

    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # if those of one do not scatter
        low, high = stats.ttest_ind(second, first, equal_var=False).confidence_interval(confidence)
    return Interval(mean, float(low), float(high), n)


def differ(one: Iterable[float | None], other: Iterable[float | None], confidence: float = 0.95) -> bool | None:
    """Whether two points differ by more than chance explains: 0 is outside of ``difference``. None: cannot be known.

    Of their logarithms, if all are above 0: times and bytes scatter by factors, and so they are compared.
    """
    first, second = (_known(values, confidence) for values in (one, other))
    if min(first.min(), second.min()) > 0:
        first, second = np.log(first), np.log(second)
    found = difference(first, second, confidence)
    return None if found.low != found.low else not found.low <= 0 <= found.high


def _known(values: Iterable[float | None], confidence: float) -> npt.NDArray[np.float64]:
    if not 0 < confidence < 1:
        raise BadInput(f"confidence = {confidence}: must be between 0 and 1, e.g. 0.95")
    known = np.array([value for value in values if value is not None and isfinite(value)], dtype="float64")
    if not len(known):
        raise BadInput("interval: none of the values is known")
    return known
