"""``rate=auto`` and ``frame_ms=auto``: the default load, or as much of it as half of the processors can take.

Never more than the default, so that quick machines have one load. Frames become longer before events become fewer,
since rows are what a load costs. The other half is what a migration needs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from keyshift.experiment.parts import RunPart
from keyshift.experiment.spec import RunSpec
from keyshift.forecast.cost import event_us
from keyshift.lab.machine.load_cost import LoadCost, cost_spec, rows_per_s

SHARE = 0.5  # of the processors, that a load may take
EVENTS_SHARE = 0.3  # of that, which events may take where frames can become longer
DEFAULT = RunPart()
FRAMES_MS = (DEFAULT.frame_ms, 25.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0, 150.0, 200.0)
LEAST_RATE = 100.0  # events per second: with fewer, seconds have no P99


class AutoLoad(NamedTuple):
    """Events per second, milliseconds between frames, and processors that this is expected to take."""

    rate: float
    frame_ms: float
    cores: float

    def words(self, cost: LoadCost) -> str:
        """One line for a person, with what to do if that is too much."""
        line = (
            f"auto: rate = {self.rate:g}, frame_ms = {self.frame_ms:g}, which is expected to take {self.cores:.2f} of "
            f"{cost.machine.cpus} processors ({cost})"
        )
        most = SHARE * cost.machine.cpus
        return line if self.cores <= most else f"{line}: more than the half that it should, which nothing less takes"


def chosen(specs: Sequence[RunSpec], cost: LoadCost) -> AutoLoad:
    """The one load for all of ``specs`` that left something open: as much as the dearest of them can have."""
    of_keycount = event_us(cost_spec().workload)
    more = [max(0.0, event_us(spec.workload) - of_keycount) for spec in specs]
    loads = [_chosen(spec, cost, more_us) for spec, more_us in zip(specs, more, strict=True)]
    rate, frame_ms = min(load.rate for load in loads), max(load.frame_ms for load in loads)
    cores = [
        _cores(spec.settled(rate=rate, frame_ms=frame_ms), cost, more_us)
        for spec, more_us in zip(specs, more, strict=True)
    ]
    return AutoLoad(rate, frame_ms, max(cores))


def _chosen(spec: RunSpec, cost: LoadCost, more_us: float) -> AutoLoad:
    us, row_s = cost.event_us + more_us, cost.row_ms / 1e3
    most = SHARE * cost.machine.cpus - cost.base_cores - sum(load.rate for load in spec.loads[1:]) * us / 1e6
    rate, frame_ms = spec.run.rate, spec.run.frame_ms  # the default where they are open
    if "rate" in spec.unsettled:
        open_frames = "frame_ms" in spec.unsettled
        left = most * EVENTS_SHARE if open_frames else most - rows_per_s(spec, frame_ms) * row_s
        fits = left / us * 1e6 if us else math.inf
        rate = min(rate, max(LEAST_RATE, _rounded(fits)))
    if "frame_ms" in spec.unsettled:
        left = most - rate * us / 1e6
        frame_ms = next((each for each in FRAMES_MS if rows_per_s(spec, each) * row_s <= left), FRAMES_MS[-1])
    return AutoLoad(rate, frame_ms, 0.0)


def _cores(spec: RunSpec, cost: LoadCost, more_us: float) -> float:
    return cost.cores(rows_per_s(spec, spec.run.frame_ms), sum(load.rate for load in spec.loads), more_us)


def _rounded(rate: float) -> float:
    """Down, to two digits that a person remembers."""
    if not 0 < rate < math.inf:
        return max(0.0, rate)
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return math.floor(rate / unit) * unit
