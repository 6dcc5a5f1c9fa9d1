"""What is offered of a source, and when."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keyshift.clock import SECOND_US


class SourceLoad(NamedTuple):
    """The load of a source: ``rate`` events per second, and from each of ``steps`` (seconds since the start of the
    load, ascending) on another number of them. ``injectors``: generators that share the partitions of the source.
    ``file``: that the events are in; empty: they are drawn.
    """

    rate: float
    steps: Sequence[tuple[float, float]] = ()
    injectors: int = 1
    file: str = ""

    def events(self, seconds: float) -> float:
        """Compute how many events there are to be in the first ``seconds``, not rounded."""
        stretches = pairwise(self.stretches(seconds))
        return sum(rate * max(0.0, min(end, seconds) - begin) for (begin, rate), (end, _) in stretches)

    def stretches(self, seconds: float) -> list[tuple[float, float]]:
        """From when on which rate is offered, in so many ``seconds``, at whose end there is nothing any more."""
        return [(0.0, self.rate), *self.steps, (seconds, 0.0)]


class Schedule:
    """When each event of a source is due: event i of partition r is the (i * routers + r)-th of all, if so many routers
    read the source. They come at equal distances as long as the rate is the same: ``rate``, and from each of ``steps``
    (seconds since the start) on another. Without ``seconds`` there is no end until ``end`` says one.
    """

    def __init__(
        self, start_us: int, seconds: float | None, rate: float, routers: int, steps: Sequence[tuple[float, float]] = ()
    ) -> None:
        self.start_us = start_us
        self._routers = routers
        begins, rates = zip((0.0, rate), *steps, strict=True)
        self._begins_us, self._rates = np.array(begins) * SECOND_US, np.array(rates)  # of each stretch, since the start
        self._before = np.append(0.0, np.cumsum(np.diff(begins) * self._rates[:-1]))  # events before each stretch
        self.end_us: float = math.inf
        self.total: list[float] = [math.inf] * routers
        if seconds is not None:
            whole = self._before[-1] + (seconds - begins[-1]) * rates[-1]
            self._end(start_us + round(seconds * SECOND_US), whole)

    def _end(self, end_us: int, whole: float) -> None:
        self.end_us = end_us
        self.total = [max(0, math.ceil((whole - router) / self._routers)) for router in range(self._routers)]

    def end(self, at_us: int) -> None:
        """End the load at ``at_us``; what is due by then is still of it."""
        self._end(at_us, self._events(at_us - self.start_us))

    def change(self, at_us: int, rate: float) -> None:
        """Change to ``rate`` from ``at_us`` on, whatever was planned for later. Nothing before that changes."""
        passed_us = max(0, at_us - self.start_us)
        events, kept = self._events(passed_us), self._begins_us < passed_us
        self._begins_us = np.append(self._begins_us[kept], passed_us)
        self._rates = np.append(self._rates[kept], rate)
        self._before = np.append(self._before[kept], events)

    def _events(self, passed_us: float) -> float:
        """Compute how many events, not rounded, all routers together have until so long after the start."""
        stretch = max(0, int(np.searchsorted(self._begins_us, passed_us, side="right")) - 1)
        if not self._rates[stretch]:  # an event that is due just when a pause begins, also the first, comes behind it
            before = self._before[stretch]
            return float(before - np.spacing(before + 1))  # + 1: what is next to 0 is 0 again when it is divided
        since_us = passed_us - self._begins_us[stretch]
        return float(self._before[stretch] + since_us * self._rates[stretch] / SECOND_US)

    def due(self, router: int, now_us: int) -> int:
        """Count the events of ``router`` that are due at ``now_us``, since the start."""
        passed = self._events(now_us - self.start_us)
        return int(min(self.total[router], max(0, math.floor((passed - router) / self._routers) + 1)))

    def times(self, router: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Microseconds since the epoch at which events ``begin`` to ``end - 1`` of ``router`` are due."""
        numbers = np.arange(begin, end, dtype=np.int64) * self._routers + router
        stretch = np.searchsorted(self._before, numbers, side="right") - 1
        since_us = (numbers - self._before[stretch]) * SECOND_US / self._rates[stretch]
        return self.start_us + (self._begins_us[stretch] + since_us).astype(np.int64)
