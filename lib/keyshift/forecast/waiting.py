"""Who waits how long: the latency of each second, from the times in which records wait for state."""

import math

import numpy as np
import pandas as pd

from keyshift.forecast.model import LEVELS, Costs, Floats, Ints, Load
from keyshift.model.errors import BadInput

WIDTH = 0.02  # of a class of waits: they are counted by size
LEAST_S = 1e-4  # a shorter wait is none
AT_ONCE = 4_000_000  # waits that are looked at together, to bound memory
PER_S = 16  # frames per second that are looked at, at the least
# Each second has latencies of its own, and the more of them, the longer records wait.
LONGEST_WAIT_S, LONGEST_S = 86_400.0, 1e6  # until all is processed that has waited; of a migration
_NOTHING: tuple[Ints, Floats] = np.zeros(0, np.int64), np.zeros(0)
_REMEDY = "raise link (a number alone is bytes per second, write 10Gbit), or lower state or rate"


class Waits:
    """Collects waits, by the second in which an event was created and by length."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._counts: dict[int, tuple[Ints, Floats]] = {}  # by second: classes that occur, and the events of each
        self.longest_s = 0.0

    def add(self, begins: Floats, ends: Floats, rates: Floats, busy: Floats) -> None:
        """Add records that wait from the first frame of each router (``begins``, ascending) to an end of their own.

        ``ends``, ``rates`` (events/s) and ``busy`` (the share of a server's time that they take) are of shape (n,):
        what has waited is processed in order, so the queue is gone only after its end, and later events wait for it.
        Raises BadInput if that takes more than a day, or ends later than ``LONGEST_S``.
        """
        origin, frame_s = begins.mean(), self._load.frame_s
        gone = (ends - busy * origin) / (1 - busy)
        if (queued_s := gone.max() - begins[0]) > LONGEST_WAIT_S:
            raise BadInput(
                f"records would wait for up to {ends.max() - begins[0]:.3g} s, and all that have waited would be "
                f"processed {queued_s:.3g} s after the first: no more than a day is simulated; {_REMEDY}"
            )
        if (last_s := gone.max()) > LONGEST_S:  # of many short steps this is the first that ends too late
            raise BadInput(
                f"it would take {last_s:.3g} s at least: no more than {LONGEST_S:g} s are simulated; {_REMEDY}"
            )
        rounds = math.ceil((gone.max() - begins[0]) / frame_s)
        arrivals = (begins + frame_s * np.arange(max(rounds, 0))[:, None]).ravel()
        arrivals = arrivals[arrivals < gone.max()]
        if not len(arrivals):
            return
        every = max(1, len(arrivals) // max(256, math.ceil(PER_S * (gone.max() - begins[0]))))
        arrivals = arrivals[every // 2 :: every]
        self.longest_s = max(self.longest_s, float((ends[rates > 0] - begins[0]).max(initial=0.0)))
        second = np.floor(arrivals - frame_s / 2).astype(np.int64)
        events = rates * frame_s / len(begins) * every
        for some in np.array_split(np.arange(len(ends)), -(-len(ends) * len(arrivals) // AT_ONCE)):
            waits = ends[some, None] - arrivals + busy[some, None] * (arrivals - origin)
            row, column = np.nonzero((waits > LEAST_S) & (arrivals < gone[some, None]))
            classes = np.round(np.log(waits[row, column] / LEAST_S) / WIDTH).astype(np.int64)
            self._count(second[column], classes, events[some][row])

    def _count(self, seconds: Ints, classes: Ints, events: Floats) -> None:
        order = np.argsort(seconds, kind="stable")
        found, begins = np.unique(seconds[order], return_index=True)
        for second, here in zip(found, np.split(order, begins)[1:], strict=True):
            known, before = self._counts.get(int(second), _NOTHING)
            counted = np.bincount(np.concatenate([known, classes[here]]), np.concatenate([before, events[here]]))
            (occurring,) = np.nonzero(counted)
            self._counts[int(second)] = occurring, counted[occurring].astype(np.float64)

    def per_second(self, costs: Costs, end_s: float) -> pd.DataFrame:
        """Columns second, count (events), p50_ms, p99_ms: as ``metrics.per_second``, from the trigger to ``end_s``.

        An event has a latency as without a migration, and its wait on top of it.
        """
        usual, offered = costs.latency_ms(self._load.frame_s), float(self._load.rates.sum())
        rows = []
        for second in range(max([0, math.ceil(end_s), *self._counts]) + 1):
            classes, counted = self._counts.get(second, _NOTHING)
            waiting = min(offered, counted.sum())
            events = np.concatenate([[offered - waiting], counted * (waiting / (counted.sum() or 1.0))])
            waits_ms = np.concatenate([[0.0], 1000 * LEAST_S * np.exp(classes * WIDTH)])
            latency = (waits_ms[:, None] + usual).ravel()
            order = np.argsort(latency)
            below = np.cumsum(np.repeat(events / len(LEVELS), len(LEVELS))[order])
            p50, p99 = (latency[order][np.searchsorted(below, share * below[-1])] for share in (0.5, 0.99))
            rows.append((second, offered, p50, p99))
        return pd.DataFrame(rows, columns=["second", "count", "p50_ms", "p99_ms"])
