"""What is offered of a source."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class SourceLoad(NamedTuple):
    """``rate`` events per second, and from each of ``steps`` (seconds since the start of the load, ascending) on
    another number of them. ``injectors``: generators that share the partitions of the source.
    """

    rate: float
    steps: Sequence[tuple[float, float]] = ()
    injectors: int = 1

    def events(self, seconds: float) -> float:
        """How many there are to be in so many ``seconds``, not rounded."""
        stretches = [(0.0, self.rate), *self.steps, (seconds, 0.0)]
        return sum(rate * (end - begin) for (begin, rate), (end, _) in pairwise(stretches))
