"""Latency and highest rate of the pipeline, beside the plain job in the same Spark session; its legs."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import legs
from bench.load import Subject, UnmovedJob
from bench.measurements import Measurement
from bench.plain import ShortestJob
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import make_spec
from keyshift.folders import work_folder
from keyshift.lab.scripts.highest_rate import staircase
from keyshift.peers.runs import local_spark
from keyshift.progress import tell

LATENCY_AIM, RATE_AIM = 1.1, 1.05
FRAME_MS = (10.0, 15.0, 20.0, 30.0, 50.0)
FIRST_RATE_PER_S = 32_000.0


@dataclass(frozen=True)
class Effort:
    """How long and how often is measured."""

    repetitions: int = 3
    seconds: float = 12.0  # of a burst that measures latency
    rate_repetitions: int = 2
    rate_seconds: float = 8.0  # of a rung of the staircase
    bisections: int = 4


QUICK = Effort(repetitions=1, seconds=8.0, rate_repetitions=1, rate_seconds=6.0, bisections=2)


def measure(parts: set[str], effort: Effort, endpoints: Endpoints, home: Path) -> list[Measurement]:
    """Parts a (against the plain job), c (against the frame interval) and d (leg by leg), those of ``parts``."""
    # The defaults, but every slot owns state from the beginning: there is no migration to make room for.
    spec = make_spec({"slots": make_spec({}).scenario.to_slots})
    rows: list[Measurement] = []
    if "d" in parts:
        with local_spark(spec.cores, home, tell, {}) as spark, work_folder(home, "bench-") as work:
            rows += legs.measure(spark, endpoints, spec, work, effort.seconds)
    if not parts & {"a", "c"}:
        return rows
    with contextlib.ExitStack() as stack:
        cores = spec.cores * (2 if "a" in parts else 1)
        spark = stack.enter_context(local_spark(cores, home, tell, {}))
        work = stack.enter_context(work_folder(home, "bench-"))

        def start(kind: type[UnmovedJob] | type[ShortestJob]) -> Subject:
            subject = stack.enter_context(Subject(kind, spark, endpoints, spec, work))
            tell(f"{subject.name}: ready")
            return subject

        ours = start(UnmovedJob)
        if "a" in parts:
            plain = start(ShortestJob)
            for subject in (ours, plain):
                subject.burst(effort.seconds)  # warm up
            rows += _latency(ours, plain, effort)
            rows.append(_highest_rate(ours, plain, effort))
        if "c" in parts:
            rows += _frame_intervals(ours, effort)
    return rows


def _latency(ours: Subject, plain: Subject, effort: Effort) -> list[Measurement]:
    p50s: dict[str, list[float]] = {ours.name: [], plain.name: []}
    p99s: dict[str, list[float]] = {ours.name: [], plain.name: []}
    at = f"{ours.spec.run.rate:.0f} events/s"
    for subject in _in_turn(ours, plain, effort.repetitions):
        burst = subject.burst(effort.seconds)
        p50s[subject.name].append(burst.p50_ms)
        p99s[subject.name].append(burst.p99_ms)
        tell(f"a: {subject.name:8s} {at}: p50 {burst.p50_ms:.1f}, p99 {burst.p99_ms:.1f} ms")
    return [
        Measurement("a", f"{name} at {at}, against the plain job", "ms", of[ours.name], of[plain.name], LATENCY_AIM)
        for name, of in (("p50", p50s), ("p99", p99s))
    ]


def _highest_rate(ours: Subject, plain: Subject, effort: Effort) -> Measurement:
    rates: dict[str, list[float]] = {ours.name: [], plain.name: []}
    for subject in _in_turn(ours, plain, effort.rate_repetitions):
        done = rates[subject.name]
        start = FIRST_RATE_PER_S if not done else 0.75 * done[-1]  # other rungs than before
        done.append(_climbed(subject, start, effort))
    measure = "highest sustained rate, against the plain job"
    found = rates[ours.name], rates[plain.name]
    return Measurement("a", measure, "events/s", *found, RATE_AIM, more_is_better=True)


def _climbed(subject: Subject, start: float, effort: Effort) -> float:
    rates = staircase(start, effort.bisections)
    rate = next(rates)
    while True:
        burst = subject.burst(effort.rate_seconds, rate, give_up=True)
        tell(f"a: {subject.name:8s} {rate:.0f} events/s: {burst}")
        try:
            rate = rates.send(burst.sustained)
        except StopIteration as end:
            return float(end.value)


def _frame_intervals(ours: Subject, effort: Effort) -> list[Measurement]:
    found: dict[float, list[tuple[float, float]]] = {frame_ms: [] for frame_ms in FRAME_MS}
    for _ in range(effort.repetitions):
        for frame_ms in FRAME_MS:
            burst = ours.burst(effort.seconds, frame_ms=frame_ms)
            found[frame_ms].append((burst.p50_ms, burst.p99_ms))
            tell(f"c: frames of {frame_ms:g} ms: p50 {burst.p50_ms:.1f}, p99 {burst.p99_ms:.1f} ms")
    return [
        Measurement("c", f"{name} with frames of {frame_ms:g} ms", "ms", [pair[i] for pair in pairs], [])
        for frame_ms, pairs in found.items()
        for i, name in enumerate(("p50", "p99"))
    ]


def _in_turn(ours: Subject, plain: Subject, repetitions: int) -> Iterator[Subject]:
    """Both in each repetition; who comes second in one comes first in the next."""
    for repetition in range(repetitions):
        yield from (ours, plain) if repetition % 2 == 0 else (plain, ours)
