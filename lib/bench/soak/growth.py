"""How fast something grows, by a regression that outliers and restarts of processes do not bend. Pure."""

from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

HOUR_S = 3600.0
Z = 1.96  # of a normal distribution, 95 % within
FEWEST = 5  # points of a life that counts: with fewer, no slope differs from 0 by more than chance explains


class Growth(NamedTuple):
    """Growth per hour: ``slope`` with its 95 % confidence interval; ``median`` of the values; how many ``points``."""

    slope: float
    low: float
    high: float
    median: float
    points: int

    def flat(self, tolerance: float) -> bool:
        """Whether there is no growth that chance does not explain, or less than ``tolerance`` per hour."""
        return self.low <= 0 or self.slope <= tolerance


def growth(lives: Iterable["pd.Series[Any]"], warm_up_s: float, bin_s: float) -> Growth | None:
    """The growth within the life of a process, of several lives together: what differs between them does not count.

    ``lives``: for each the values by the seconds since its beginning. What is before ``warm_up_s`` is left out, and of
    the rest one point is made of each ``bin_s`` (its median): neighbours in time are much the same, and would make the
    interval too narrow. None if there are too few points. Takes the square of the points of a life.
    Source: the slope of Theil and Sen, by blocks as Hirsch, Slack and Smith 1982 have it for the seasons of a year.
    """
    slopes: list[npt.NDArray[np.float64]] = []
    values: list[npt.NDArray[np.float64]] = []
    variance = 0.0
    for life in lives:
        points = pd.DataFrame({"t": life.index, "y": life.to_numpy()}, dtype="f8")
        points = points[points["t"] >= warm_up_s]
        bins = points.groupby((points["t"] - warm_up_s) // bin_s).agg({"t": "mean", "y": "median"})
        t, y, n = bins["t"].to_numpy(), bins["y"].to_numpy(), len(bins)
        if n < FEWEST:
            continue
        first, second = np.triu_indices(n, 1)
        slopes.append((y[second] - y[first]) / (t[second] - t[first]))
        values.append(y)
        variance += n * (n - 1) * (2 * n + 5) / 18
    if not slopes:
        return None
    ordered = np.sort(np.concatenate(slopes)) * HOUR_S
    every, half = np.concatenate(values), Z * sqrt(variance) / 2
    low, high = (round(len(ordered) / 2 + side * half) for side in (-1, 1))
    return Growth(
        float(np.median(ordered)),
        float(ordered[max(0, low - 1)]),
        float(ordered[min(len(ordered) - 1, high)]),
        float(np.median(every)),
        len(every),
    )
