"""What is offered of each source, and how many routers read it, from parameters that name sources."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from keyshift.experiment.parts import MOST_RATE, RunPart
from keyshift.model.errors import BadInput
from keyshift.registry import by_name, require_new
from keyshift.traffic.load import Schedule, SourceLoad
from keyshift.workloads import Source, taken_names, untold
from keyshift.workloads.event_files import EventFile, event_writer

if TYPE_CHECKING:
    from keyshift.experiment.spec import RunSpec

MOST_ROUTERS = 64  # of a source
GROUP_EVENTS = 1 << 16  # in a row group of a file of events, and in memory at once
_A_RATE = f"a rate from 0 to {MOST_RATE:g}"


def loads_of(sources: Sequence[Source], run: RunPart) -> list[SourceLoad]:
    """The load of each of ``sources``. Raises BadInput."""
    first, *others = [source.name for source in sources]
    if run.rates and not others:
        raise BadInput(f"rates = {run.rates!r}: {first} is the only source, and its rate is rate = {run.rate:g}")
    given = by_name("rates", run.rates, "source", others, float, 0, MOST_RATE, f"{_A_RATE}, e.g. control:5")
    rate_of = {source.name: run.rate if source.rate is None else source.rate for source in sources[1:]} | given
    steps = {
        name: [(run.warmup_s + second, rate) for second, rate in pairs]
        for name, pairs in _steps(run.rate_steps, [first, *others], run.seconds).items()
    }
    return [
        SourceLoad(rate_of.get(name, run.rate), steps.get(name, []), run.injectors, run.events)
        for name in (first, *others)
    ]


def routers_of(sources: Sequence[Source], routers: int, source_routers: str) -> dict[str, int]:
    """Return how many routers read each of ``sources``; see the parameters of these names. Raises BadInput."""
    names = [source.name for source in sources]
    what = f"a number of routers from 1 to {MOST_ROUTERS}, e.g. {names[-1]}:1"
    given = by_name("source_routers", source_routers, "source", names, int, 1, MOST_ROUTERS, what)
    return dict.fromkeys(names, routers) | given


def check_loads(spec: "RunSpec") -> None:
    """Raise BadInput if nothing is offered, or not by so many generators, or what a file has is not enough; if what
    routers make of events is not said by the sources, or something of the workload has no place in the results.
    """
    run, workload, most = spec.run, spec.workload, max(spec.routers_of.values())
    if not sum(load.events(run.load_s) for load in spec.loads):
        raise BadInput(f"rate_steps = {run.rate_steps}: nothing is offered; raise a rate")
    if (first := workload.stages[0]).map is not None:
        raise BadInput(
            f"workload = {workload.name}: stage {first.name} is the first one and has a map; that belongs to the "
            "source, Source(…, map=…)"
        )
    named = (line for stage in workload.stages for line in taken_names(stage))
    if unfit := [*untold(workload.model_dump(mode="json")), *named]:
        raise BadInput(f"workload = {workload.name}: {unfit[0]}")
    if run.injectors > most:
        raise BadInput(
            f"injectors = {run.injectors}: each has partitions of its own, and no source has more than {most}; lower "
            "injectors or raise routers"
        )
    if run.events:
        file = EventFile(run.events)
        file.require(workload, spec.routers_of)
        for source, schedule in () if "rate" in spec.unsettled else _schedules(spec):  # else how many is not known yet
            file.require_enough(source.name, list(map(int, schedule.total)))


def _schedules(spec: "RunSpec") -> Iterator[tuple[Source, Schedule]]:
    """Say when the events of each source are due, in microseconds since the start of the load."""
    for source, load in zip(spec.workload.sources, spec.loads, strict=True):
        yield source, Schedule(0, spec.run.load_s, load.rate, spec.routers_of[source.name], load.steps)


def write_events(spec: "RunSpec", path: Path) -> int:
    """Write all events of ``spec`` into a new file, with times since the start of the load: other runs are offered the
    same. Gives how many.

    Raises BadInput if it does not draw them, how many is not known yet, or the file cannot be written.
    """
    if spec.run.events:
        raise BadInput(f"events = {spec.run.events!r}: a file is written of drawn events; leave it out")
    if "rate" in spec.unsettled:
        raise BadInput("rate = auto: is chosen when a run begins, and a file needs to know it; give a number")
    schedules = list(_schedules(spec))
    whole = int(sum(sum(schedule.total) for _, schedule in schedules))
    with (
        event_writer(path, spec.workload, spec.routers_of) as out,
        tqdm(total=whole, unit=" events", desc=path.name, leave=False, file=sys.stderr, disable=None) as bar,
    ):
        for source, schedule in schedules:
            for number, events in enumerate(map(int, schedule.total)):
                partition = source.partition(number)
                for begin in range(0, events, GROUP_EVENTS):
                    end = min(events, begin + GROUP_EVENTS)
                    out.write(source.name, number, partition.take(schedule.times(number, begin, end)))
                    bar.update(end - begin)
    return whole


def _steps(text: str, known: Sequence[str], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Read ``0:2000,10:6000``, for the first source, and ``name=0:2000,10:6000``, with ``;`` between several."""
    found: dict[str, list[tuple[float, float]]] = {}
    for part in text.split(";") if text else ():
        name, named, steps = part.strip().rpartition("=")
        name = name.strip() if named else known[0]
        require_new("rate_steps", text, "source", name, known, found)
        found[name] = _pairs(text, steps, seconds)
    return found


def _pairs(text: str, steps: str, seconds: float) -> list[tuple[float, float]]:
    try:
        parts = [step.split(":") for step in steps.split(",") if step]
        pairs = [(float(second), float(rate)) for second, rate in parts]
    except ValueError:
        pairs = [(-1.0, 0.0)]
    moments = [second for second, _ in pairs]
    good = all(0 <= second < seconds and 0 <= rate <= MOST_RATE for second, rate in pairs)
    if not good or moments != sorted(set(moments)):
        raise BadInput(
            f"rate_steps = {text!r}: must be seconds of measured time, ascending and below seconds = {seconds:g}, each "
            f"with {_A_RATE}, e.g. 0:2000,10:6000"
        )
    return pairs
