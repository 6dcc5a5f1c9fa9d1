"""What a load costs on this machine: CPU of a row, of an event and of a job without load, measured in a real job.

The job gets two rates in turn, and then longer frames. How many frames and events fell into each part is counted
afterwards, from what Kafka has: on a busy machine frames come late or together, and a row must not seem cheap for that.
All processes of ours count: the services, generator and collector, Spark and its workers, and this one.
"""

import time
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keyshift.clock import SECOND_US
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import write_whole
from keyshift.forecast.fitting import non_negative
from keyshift.lab.machine.sampler import MOST_OTHERS, CpuWatch, Stretch
from keyshift.lab.run_loop import LEAD_S, RunLoop, Script
from keyshift.model.errors import ServiceUnavailable
from keyshift.results.manifest import Machine, describe_machine
from keyshift.services import limits
from keyshift.traffic.feed import Before
from keyshift.traffic.load import SourceLoad

RATES = 1000.0, 21_000.0  # events per second, in turn
FRAMES_MS = 25.0, 100.0  # milliseconds between frames, one behind the other
WARM_S, PART_S, PARTS = 3.0, 1.5, 4  # seconds of load before, of each part, and parts with frames of the one kind
SETTLE_S = 0.25  # between a change of the load and its part


class LoadCost(BaseModel):
    """Costs on a machine, or on those of its processors that may be used. ``keyshift``: whose version was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: Machine
    keyshift: str
    base_cores: float = Field(ge=0, description="processors that a job takes whatever is offered, with its services")
    row_ms: float = Field(ge=0, description="CPU of a row, in milliseconds")
    event_us: float = Field(ge=0, description="CPU of an event of the workload keycount, in microseconds")
    others: float = Field(ge=0, description="share of the processors that others had meanwhile, 0 to 1")

    def cores(self, rows_per_s: float, events_per_s: float, more_us: float = 0.0) -> float:
        """Processors that a load is expected to take. ``more_us``: CPU of an event beyond one of ``keycount``."""
        return self.base_cores + rows_per_s * self.row_ms / 1e3 + events_per_s * (self.event_us + more_us) / 1e6

    @property
    def disturbed(self) -> bool:
        """Whether others had so much that it may be wrong: rows that wait for a processor come in fewer wake-ups."""
        return self.others >= MOST_OTHERS

    def __str__(self) -> str:
        words = f"a row costs {self.row_ms:.2f} ms of CPU, an event {self.event_us:.1f} µs"
        return f"{words}, a job without load {self.base_cores:.2f} of {self.machine.cpus} processors"


def rows_per_s(spec: RunSpec, frame_ms: float) -> float:
    """Rows into routers and slots, if all slots own state: a frame is a row of its router; see ``JobPart.rows``."""
    return (spec.routers + spec.job.rows(spec.routers, spec.tasks.values())) * 1e3 / frame_ms


def cost_spec() -> RunSpec:
    """The spec of the job in which costs are measured: as many slots as a default run has when its state has moved."""
    slots = make_spec({}).scenario.to_slots
    load = {"rate": RATES[0], "frame_ms": FRAMES_MS[0], "recoveries": 0}
    return make_spec(load | {"slots": slots, "trigger": "balance"})


def kept_cost(home: Path) -> LoadCost | None:
    """Read what was measured on this machine, with as many processors and by this version; None if nothing was."""
    try:
        cost = LoadCost.model_validate_json(_file(home).read_text(encoding="utf-8"))
    except (OSError, ValidationError):  # not measured yet, or of an older keyshift
        return None
    return cost if (cost.machine, cost.keyshift) == (describe_machine(), metadata.version("keyshift")) else None


def keep(cost: LoadCost, home: Path) -> None:
    """Keep what was measured, for ``kept_cost``. Raises OSError."""
    write_whole(_file(home), cost.model_dump_json(indent=2))


def _file(home: Path) -> Path:
    return home / f"load-cost-{describe_machine().cpus}.json"  # fewer processors, other costs: they are kept beside


def cost_script(parts: list[Stretch], run: RunLoop) -> Script:
    """Offer the loads to the job of ``run``, and put what each took into ``parts``."""
    yield run.began_at + WARM_S
    yield from _watch(parts, run, RATES)
    yield partial(_with_frames, run, FRAMES_MS[1])
    yield time.time() + LEAD_S
    yield from _watch(parts, run, RATES[:1])


def _watch(parts: list[Stretch], run: RunLoop, rates: Sequence[float]) -> Script:
    for number in range(PARTS):
        yield partial(run.change_rate, rates[number % len(rates)])
        yield time.time() + SETTLE_S
        watch = CpuWatch(run.around)
        yield time.time() + PART_S
        parts.append(watch.part())


def _with_frames(run: RunLoop, frame_ms: float) -> None:
    """Let another generator offer frames of this length from now on."""
    before, traffic = run.feed, run.traffic
    assert before is not None
    before.end_load()
    before.await_done()
    traffic.end(before)
    run.feed = feed = traffic.feed([SourceLoad(RATES[0])], frame_ms)
    feed.before = Before(before.offered or 0, before.due or 0, before.took_s)
    feed.await_ready()
    feed.begin(time.time() + LEAD_S, None)


def cost_of(parts: Sequence[Stretch], frames: pd.DataFrame) -> LoadCost:
    """Find the costs by least squares, from a job of ``cost_spec``. ``frames``: columns watermark (µs) and events.

    Raises ServiceUnavailable if frames did not come: nothing can be said then.
    """
    spec, machine = cost_spec(), describe_machine()
    per_frame = rows_per_s(spec, 1e3) / spec.routers
    at_s, events = frames["watermark"].to_numpy() / SECOND_US, frames["events"].to_numpy()
    within = [(part.begin <= at_s) & (at_s < part.end) for part in parts]
    took_s = np.array([part.end - part.begin for part in parts])
    offered = np.array([took_s, [some.sum() * per_frame for some in within], [events[some].sum() for some in within]])
    if not offered.all():
        raise ServiceUnavailable("no frames came for a second: this machine is too busy to say what a load costs")
    base_cores, row_s, event_s = non_negative(offered.T, np.array([part.ours_s for part in parts])).tolist()
    return LoadCost(
        machine=machine,
        keyshift=metadata.version("keyshift"),
        base_cores=base_cores,
        row_ms=row_s * 1e3,
        event_us=event_s * 1e6,
        others=sum(part.others_s for part in parts) / took_s.sum() / limits.visible(),
    )
