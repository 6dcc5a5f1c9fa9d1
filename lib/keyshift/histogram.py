"""Times counted by their size, in classes 5 % wide: few enough to be sent often, and they can be added up."""

import math
from collections.abc import Mapping

_WIDTH = math.log(1.05)
LEAST_MS = 0.01  # shorter times count as so long


def class_of(ms: float) -> int:
    """The class of a time in milliseconds."""
    return round(math.log(max(ms, LEAST_MS)) / _WIDTH)


def quantile(counts: Mapping[int, int], share: float) -> float:
    """Milliseconds that this ``share`` of all times does not exceed, by at most half a class; NaN if there are none.

    ``counts``: by class.
    """
    rank, below = share * sum(counts.values()), 0
    for each in sorted(counts):
        below += counts[each]
        if below >= rank:
            return math.exp(each * _WIDTH)
    return math.nan
