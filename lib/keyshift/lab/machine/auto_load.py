"""``rate=auto`` and ``frame_ms=auto``: the default load, or as much of it as half of the processors can take.

Never more than the default, so that quick machines have one load. Frames become longer before events become fewer,
since rows are what a load costs. The other half is what a migration needs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from keyshift.experiment.parts import RunPart
from keyshift.experiment.spec import MAX_FRAMES_PER_S, RunSpec, slot_rows_per_s
from keyshift.forecast.cost import event_us, more_cpu_us
from keyshift.lab.machine.load_cost import LoadCost, cost_spec, rows_per_s
from keyshift.ordering import orderings
from keyshift.traffic.load import SourceLoad

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
    frames = frames_for(specs)
    loads = [_chosen(spec, cost, frames) for spec in specs]
    rate, frame_ms = min(_of_open("rate", specs, loads)), max(_of_open("frame_ms", specs, loads))
    return AutoLoad(rate, frame_ms, max(cores_of(spec.settled(rate=rate, frame_ms=frame_ms), cost) for spec in specs))


def frames_for(specs: Sequence[RunSpec]) -> list[float]:
    """The lengths of frames that may be chosen: none is longer than an epoch, or else makes too many rows."""
    open_ones = [spec for spec in specs if "frame_ms" in spec.unsettled]
    heartbeats = [spec.job.heartbeat_ms for spec in open_ones if orderings.get(spec.job.ordering).agrees]
    frames = [frame_ms for frame_ms in FRAMES_MS if frame_ms <= min(heartbeats, default=math.inf)]
    few = [each for each in frames if all(slot_rows_per_s(spec, each) <= MAX_FRAMES_PER_S for spec in open_ones)]
    return few or frames[-1:]


def _of_open(name: str, specs: Sequence[RunSpec], loads: Sequence[AutoLoad]) -> list[float]:
    """List what the runs would have that left ``name`` open, or all if none did: others have what they were given."""
    values = [getattr(load, name) for load in loads]
    return [value for value, spec in zip(values, specs, strict=True) if name in spec.unsettled] or values


def _chosen(spec: RunSpec, cost: LoadCost, frames: Sequence[float]) -> AutoLoad:
    us, row_s = cost.event_us + _more_us(spec), cost.row_ms / 1e3
    first, *others = spec.loads
    most = SHARE * cost.machine.cpus - cost.base_cores - sum(map(_peak, others)) * us / 1e6
    rate, frame_ms = spec.run.rate, spec.run.frame_ms  # the default where they are open
    open_frames = "frame_ms" in spec.unsettled
    if "rate" in spec.unsettled:
        left = most - rows_per_s(spec, frames[-1] if open_frames else frame_ms) * row_s
        if open_frames:
            left = min(left, most * EVENTS_SHARE)
        fits = left / us * 1e6 if us else math.inf
        slots = sum(spec.slots_of.values()) * SHARE / event_us(spec.workload) * 1e6  # an event may wait, too
        rate = min(rate, max(LEAST_RATE, _rounded(min(fits, slots))))
    if open_frames:
        left = most - _peak(first._replace(rate=rate)) * us / 1e6
        frame_ms = next((each for each in frames if rows_per_s(spec, each) * row_s <= left), frames[-1])
    return AutoLoad(rate, frame_ms, 0.0)


def cores_of(spec: RunSpec, cost: LoadCost) -> float:
    """Processors that the load of ``spec`` is expected to take at its peak; with replicas, at the least."""
    of_one = cost.cores(rows_per_s(spec, spec.run.frame_ms), sum(map(_peak, spec.loads)), _more_us(spec))
    return spec.job.replicas * of_one


def _more_us(spec: RunSpec) -> float:
    """See ``LoadCost.cores``."""
    return more_cpu_us(spec.workload, cost_spec().workload)


def _peak(load: SourceLoad) -> float:
    """The largest of its rates."""
    return max(rate for _, rate in load.stretches(0.0))


def _rounded(rate: float) -> float:
    """Round down, to two digits that a person remembers."""
    if not 0 < rate < math.inf:
        return max(0.0, rate)
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return math.floor(rate / unit) * unit
