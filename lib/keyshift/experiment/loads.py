"""What is offered of each source, and how many routers read it, from parameters that name sources."""

from collections.abc import Iterator, Mapping, Sequence

from keyshift.model.errors import BadInput
from keyshift.registry import by_name, require_new
from keyshift.traffic.load import Schedule, SourceLoad
from keyshift.workloads import Source, Workload, taken_names, untold
from keyshift.workloads.event_files import EventFile

MOST_ROUTERS = 64  # of a source
MOST_RATE = 1e9  # events per second, of a source
_A_RATE = f"a rate from 0 to {MOST_RATE:g}"


def loads_of(
    sources: Sequence[Source],
    rate: float,
    rates: str,
    rate_steps: str,
    injectors: int,
    warmup_s: float,
    seconds: float,
    events: str = "",
) -> list[SourceLoad]:
    """The load of each of ``sources``; see the parameters of these names. Raises BadInput."""
    first, *others = [source.name for source in sources]
    if rates and not others:
        raise BadInput(f"rates = {rates!r}: {first} is the only source, and its rate is rate = {rate:g}")
    given = by_name("rates", rates, "source", others, float, 0, MOST_RATE, f"{_A_RATE}, e.g. control:5")
    steps = {
        name: [(warmup_s + second, rate) for second, rate in pairs]
        for name, pairs in _steps(rate_steps, [first, *others], seconds).items()
    }
    rate_of = {source.name: rate if source.rate is None else source.rate for source in sources[1:]} | given
    return [SourceLoad(rate_of.get(name, rate), steps.get(name, []), injectors, events) for name in (first, *others)]


def routers_of(sources: Sequence[Source], routers: int, source_routers: str) -> dict[str, int]:
    """Return how many routers read each of ``sources``; see the parameters of these names. Raises BadInput."""
    names = [source.name for source in sources]
    what = f"a number of routers from 1 to {MOST_ROUTERS}, e.g. {names[-1]}:1"
    given = by_name("source_routers", source_routers, "source", names, int, 1, MOST_ROUTERS, what)
    return dict.fromkeys(names, routers) | given


def check_sources(workload: Workload, rate_steps: str, events: float) -> None:
    """Raise BadInput if no ``events`` are offered, what routers make of them is not said by the sources, or something
    of ``workload`` has no place in the results.
    """
    if not events:
        raise BadInput(f"rate_steps = {rate_steps}: nothing is offered; raise a rate")
    if (first := workload.stages[0]).map is not None:
        raise BadInput(
            f"workload = {workload.name}: stage {first.name} is the first one and has a map; that belongs to the "
            "source, Source(…, map=…)"
        )
    named = (line for stage in workload.stages for line in taken_names(stage))
    if unfit := [*untold(workload.model_dump(mode="json")), *named]:
        raise BadInput(f"workload = {workload.name}: {unfit[0]}")


def check_injectors(injectors: int, routers: int) -> None:
    """Raise BadInput if there are more than ``routers``, the most of a source."""
    if injectors > routers:
        raise BadInput(
            f"injectors = {injectors}: each has partitions of its own, and no source has more than {routers}; lower "
            "injectors or raise routers"
        )


def schedules_of(
    workload: Workload, routers: Mapping[str, int], loads: Sequence[SourceLoad], load_s: float
) -> Iterator[tuple[Source, Schedule]]:
    """Say when the events of each source are due, in microseconds since the start of a load of ``load_s`` seconds."""
    for source, load in zip(workload.sources, loads, strict=True):
        yield source, Schedule(0, load_s, load.rate, routers[source.name], load.steps)


def check_events(
    path: str, workload: Workload, routers: Mapping[str, int], loads: Sequence[SourceLoad], load_s: float | None
) -> None:
    """Raise BadInput if the events of this file cannot be offered to these ``routers``, or are not enough for
    ``load_s`` seconds of ``loads``; None: how many are needed is not known yet.
    """
    file = EventFile(path)
    file.require(workload, routers)
    for source, schedule in () if load_s is None else schedules_of(workload, routers, loads, load_s):
        file.require_enough(source.name, list(map(int, schedule.total)))


def _steps(text: str, known: Sequence[str], seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Read ``0:2000,10:6000``, for the first source, and ``name=0:2000,10:6000``, with ``;`` between several."""
    found: dict[str, list[tuple[float, float]]] = {}
    for part in text.split(";") if text else ():
        name, named, steps = part.strip().rpartition("=")
        name = name.strip() if named else known[0]
        require_new("rate_steps", text, "source", name, known, found)
        found[name] = list(_pairs(text, steps, seconds))
    return found


def _pairs(text: str, steps: str, seconds: float) -> Iterator[tuple[float, float]]:
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
    yield from pairs
