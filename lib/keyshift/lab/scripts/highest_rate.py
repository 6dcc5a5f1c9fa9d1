"""The highest rate that a job keeps up with: rates in turn, all of them offered to one job, which has one verdict."""

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from keyshift.experiment.spec import RunSpec
from keyshift.lab.run_loop import LOOK_S, RunLoop, Script, ScriptStep
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import Second
from keyshift.traffic.feed import Progress

STEP = 2.0  # between the first rungs of a staircase
LOWEST_PER_S, HIGHEST_PER_S = 250.0, 4_000_000.0
TRIES = 2  # of a rate: what else runs on the machine can make a burst fail, but none succeed
SUSTAINED_P99_MS = 500.0
HOPELESS_P99_MS = 2 * SUSTAINED_P99_MS  # a burst that is to show whether the rate is sustained is over then
LATE_MS = SUSTAINED_P99_MS / 2  # of its events, before they are offered: then a burst tells little of the job
UNMEASURED_S = 2.0  # of each burst, at its beginning
TOLD_S = 1.0  # so old may be what a generator has said of itself
REST_PER_S, CALM_S = 100.0, 2  # between two bursts: a rate, and so many seconds with a low latency
HELD = 0.8  # of the highest rate, at which latency is measured in the end


@dataclass(frozen=True)
class Burst:
    """The result of one burst: p50 and p99 of each measured second, in ms, whether all results came soon enough, and
    whether all events were offered ``in_time``: if not, nobody knows what the job would have done.
    """

    p50s_ms: list[float]
    p99s_ms: list[float]
    kept_up: bool
    in_time: bool = True

    @property
    def p50_ms(self) -> float:
        """Median over the seconds; NaN if none was measured."""
        return median(self.p50s_ms or [math.nan])

    @property
    def p99_ms(self) -> float:
        """Median over the seconds of each second's P99; NaN if none was measured."""
        return median(self.p99s_ms or [math.nan])

    @property
    def sustained(self) -> bool:
        """Whether latency was still low in the last third, and nothing was left behind."""
        last = self.p99s_ms[-max(1, len(self.p99s_ms) // 3) :]
        return self.kept_up and bool(last) and median(last) < SUSTAINED_P99_MS

    def __str__(self) -> str:
        p99 = f"p99 {self.p99_ms:.0f} ms" if self.p99s_ms else "no second measured"
        late = "" if self.in_time else ", offered late"
        return f"{'sustained' if self.sustained else 'not sustained'}, {p99}{late}"


def burst_of(said: list[Second], first: int, end: int, complete: bool, in_time: bool = True) -> Burst:
    """The burst that was measured from second ``first`` until ``end``, of all that was ``said`` until its results were
    there. ``complete``: none of them is missing. ``in_time``: see ``Burst``.
    """
    measured = [each for each in said if first <= each.second < end and each.results]
    kept_up = complete and bool(measured) and not hopeless(said, first)
    return Burst([each.p50_ms or 0.0 for each in measured], [each.p99_ms or 0.0 for each in measured], kept_up, in_time)


def hopeless(said: list[Second], first: int) -> bool:
    """Whether it is clear already that the rate of a burst is not sustained."""
    return any(each.second >= first and (each.p50_ms or 0.0) > HOPELESS_P99_MS for each in said)


def late_ms(progress: Sequence[Progress], since: float, rate: float) -> float:
    """Compute how late the last events of a burst are offered, of which ``rate`` a second are due from the moment
    ``since`` on, all sources together; 0 if nobody can say. A generator that is full offers the same share of them all
    the time.
    """
    told = [each for each in progress if each.at >= since + TOLD_S]
    if len(told) < 2:
        return 0.0
    first, last = told[0], told[-1]
    share = (last.events - first.events) / (rate * (last.at - first.at))
    return 1000 * (1 - share) * (last.at - since)


def staircase(start: float, bisections: int, tries: int = TRIES) -> Generator[float, bool, float]:
    """Yields rates in events/s, and gets whether each is sustained. Gives the highest one that is: by doubling (or
    halving) until the answer changes, then by bisecting that factor. 0 if not even LOWEST_PER_S is sustained.
    """

    def sustained(rate: float) -> Generator[float, bool, bool]:
        for _ in range(tries):
            if (yield rate):
                return True
        return False

    rate, factor = start, STEP
    if (yield from sustained(rate)):
        while rate < HIGHEST_PER_S and (yield from sustained(rate * STEP)):
            rate *= STEP
    else:
        below = False
        while not below:
            if rate <= LOWEST_PER_S:
                return 0.0
            above, rate = rate, max(rate / STEP, LOWEST_PER_S)
            below, factor = (yield from sustained(rate)), above / rate
    for _ in range(bisections):
        factor = math.sqrt(factor)
        if (yield from sustained(rate * factor)):
            rate *= factor
    return rate


def expected_s(spec: RunSpec, bisections: int) -> float:
    """Seconds of load that a search takes about: the first rate is sustained, and every second one of the others."""
    bursts = 1 + TRIES + bisections * (1 + TRIES) / 2 + 1  # the last one is at HELD
    return spec.run.warmup_s + bursts * (UNMEASURED_S + spec.run.seconds + CALM_S)


class Tried(NamedTuple):
    """A rate in events per second, and what came of it."""

    rate: float
    burst: Burst


class RateSearch:
    """Tries rates in the job of a run that moves nothing, from its ``rate`` on, each for its ``seconds``.

    When it has run, ``highest`` is the highest rate that is sustained, 0 if none is, and ``held`` is the burst at HELD
    of that, None if there is no such rate.
    """

    def __init__(self, bisections: int) -> None:
        self._bisections = bisections
        self.tried: list[Tried] = []
        self.highest = 0.0
        self.held: Burst | None = None

    @property
    def above(self) -> float | None:
        """The next rate that was tried above the highest; None if there is none."""
        return min((rate for rate, _ in self.tried if rate > self.highest), default=None)

    @property
    def at_least(self) -> bool:
        """Whether more than the highest rate may be sustained: nothing above it was tried, or only offered late."""
        return not any(burst.in_time for rate, burst in self.tried if rate == self.above)

    def script(self, run: RunLoop) -> Script:
        """Search in the job of ``run``. Raises ServiceUnavailable if it works no backlog off between two rates."""
        yield run.began_at + run.spec.run.warmup_s
        rates = staircase(run.spec.run.rate, self._bisections)
        rate = next(rates)
        while True:
            burst = yield from self._burst(run, rate)
            self.tried.append(Tried(rate, burst))
            run.reporter.say(f"  {rate:.0f} events/s: {burst}")
            try:
                rate = rates.send(burst.sustained)
            except StopIteration as end:
                self.highest = end.value
                break
        found = f"none is sustained, not even {LOWEST_PER_S:g} events/s"
        if self.highest:
            self.held = yield from self._burst(run, HELD * self.highest)
            found = f"the highest sustained is {self.highest:.0f} events/s, P99 of a second at {HELD:.0%} of it "
            found += f"{self.held.p99_ms:.1f} ms"
            if self.at_least and self.above:
                found += f"; {self.above:.0f} events/s were offered late, so it may be higher"
        run.system.note(f"the rate was searched, {len(self.tried)} were tried: {found}")

    def _burst(self, run: RunLoop, rate: float) -> Generator[ScriptStep, None, Burst]:
        run.reporter.enter(Doing(Activity.STEADY, f"{rate:.0f} events/s"))
        seconds, told = run.traffic.seconds, len(run.traffic.seconds)
        yield partial(run.change_rate, rate)
        since, offered = time.time(), sum(run.rates.values())
        first = math.ceil(time.time() + UNMEASURED_S)
        end = first + max(1, round(run.spec.run.seconds))
        while time.time() < end and not hopeless(seconds[told:], first):
            yield time.time() + LOOK_S
        given_up = time.time() < end
        assert run.feed is not None
        late = late_ms([*run.feed.progress], since, offered) > LATE_MS + run.spec.run.frame_ms
        yield from self._calm_down(run)
        return burst_of(seconds[told:], first, end, complete=not given_up, in_time=not late)

    def _calm_down(self, run: RunLoop) -> Script:
        """Offer a rate that any job takes, until no backlog is left."""
        run.reporter.enter(Doing(Activity.CATCHING_UP))
        yield partial(run.change_rate, REST_PER_S)
        since, allowed_s = time.time(), run.spec.run.catch_up_s
        while not run.calm(since, CALM_S, SUSTAINED_P99_MS):
            if time.time() > since + allowed_s:
                raise ServiceUnavailable(
                    f"catch_up_s = {allowed_s:g}: so long after a rate was too high latency was not yet below "
                    f"{SUSTAINED_P99_MS:g} ms at {REST_PER_S:g} events/s; raise catch_up_s"
                )
            yield time.time() + LOOK_S
