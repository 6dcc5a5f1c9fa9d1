"""Latency and highest rate of the pipeline, beside the plain job in the same Spark session; its legs."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from bench import legs
from bench.load import Subject, UnmovedJob
from bench.measurements import Measurement
from bench.plain import ShortestJob
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec, make_spec
from keyshift.folders import work_folder
from keyshift.lab.scripts.highest_rate import staircase
from keyshift.peers.runs import local_spark
from keyshift.progress import Say

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


def _spec() -> RunSpec:
    """The defaults of a run, every slot owning state from the beginning: there is no migration to make room for."""
    return make_spec({"slots": make_spec({}).scenario.to_slots})


def measure(parts: set[str], effort: Effort, endpoints: Endpoints, home: Path, say: Say) -> list[Measurement]:
    """Parts a (against the plain job), c (against the frame interval) and d (leg by leg), those of ``parts``."""
    spec = _spec()
    rows: list[Measurement] = []
    if "d" in parts:
        with local_spark(spec.cores, home, say, {}) as spark, work_folder(home, "bench-") as work:
            rows += legs.measure(spark, endpoints, spec, work, effort.seconds)
    if not parts & {"a", "c"}:
        return rows
    with contextlib.ExitStack() as stack:
        cores = spec.cores * (2 if "a" in parts else 1)
        spark = stack.enter_context(local_spark(cores, home, say, {}))
        work = stack.enter_context(work_folder(home, "bench-"))

        def start(kind: type[UnmovedJob] | type[ShortestJob]) -> Subject:
            subject = stack.enter_context(Subject(kind, spark, endpoints, spec, work))
            say(f"{subject.name}: ready")
            return subject

        ours = start(UnmovedJob)
        if "a" in parts:
            plain = start(ShortestJob)
            for subject in (ours, plain):
                subject.burst(spec.run.rate, spec.run.frame_ms, effort.seconds)  # warm up
            rows += _latency(ours, plain, spec, effort, say)
            rows.append(_highest_rate(ours, plain, spec, effort, say))
        if "c" in parts:
            rows += _frame_intervals(ours, spec, effort, say)
    return rows


def _latency(ours: Subject, plain: Subject, spec: RunSpec, effort: Effort, say: Say) -> list[Measurement]:
    bursts: dict[str, list[tuple[float, float]]] = {ours.name: [], plain.name: []}
    for repetition in range(effort.repetitions):
        for subject in _in_turn(ours, plain, repetition):
            burst = subject.burst(spec.run.rate, spec.run.frame_ms, effort.seconds)
            bursts[subject.name].append((burst.p50_ms, burst.p99_ms))
            say(f"a: {subject.name:8s} {spec.run.rate:.0f} events/s: p50 {burst.p50_ms:.1f}, p99 {burst.p99_ms:.1f} ms")
    (our_p50s, our_p99s), (plain_p50s, plain_p99s) = (zip(*bursts[s.name], strict=True) for s in (ours, plain))
    at = f"at {spec.run.rate:.0f} events/s"
    return [
        Measurement("a", f"p50 {at}, against the plain job", "ms", list(our_p50s), list(plain_p50s), LATENCY_AIM),
        Measurement("a", f"p99 {at}, against the plain job", "ms", list(our_p99s), list(plain_p99s), LATENCY_AIM),
    ]


def _highest_rate(ours: Subject, plain: Subject, spec: RunSpec, effort: Effort, say: Say) -> Measurement:
    rates: dict[str, list[float]] = {ours.name: [], plain.name: []}
    for repetition in range(effort.rate_repetitions):
        for subject in _in_turn(ours, plain, repetition):
            done = rates[subject.name]
            start = FIRST_RATE_PER_S if not done else 0.75 * done[-1]  # other rungs than before
            done.append(_climbed(subject, start, spec, effort, say))
    return Measurement(
        "a",
        "highest sustained rate, against the plain job",
        "events/s",
        rates[ours.name],
        rates[plain.name],
        RATE_AIM,
        more_is_better=True,
    )


def _climbed(subject: Subject, start: float, spec: RunSpec, effort: Effort, say: Say) -> float:
    rates = staircase(start, effort.bisections)
    rate = next(rates)
    while True:
        try:
            rate = rates.send(_burst_sustained(subject, rate, spec, effort, say))
        except StopIteration as end:
            return float(end.value)


def _burst_sustained(subject: Subject, rate: float, spec: RunSpec, effort: Effort, say: Say) -> bool:
    burst = subject.burst(rate, spec.run.frame_ms, effort.rate_seconds, give_up=True)
    say(f"a: {subject.name:8s} {rate:.0f} events/s: {burst}")
    return burst.sustained


def _frame_intervals(ours: Subject, spec: RunSpec, effort: Effort, say: Say) -> list[Measurement]:
    found: dict[float, list[tuple[float, float]]] = {frame_ms: [] for frame_ms in FRAME_MS}
    for _ in range(effort.repetitions):
        for frame_ms in FRAME_MS:
            burst = ours.burst(spec.run.rate, frame_ms, effort.seconds)
            found[frame_ms].append((burst.p50_ms, burst.p99_ms))
            say(f"c: frames of {frame_ms:g} ms: p50 {burst.p50_ms:.1f}, p99 {burst.p99_ms:.1f} ms")
    return [
        Measurement("c", f"{name} with frames of {frame_ms:g} ms", "ms", [pair[i] for pair in pairs], [])
        for frame_ms, pairs in found.items()
        for i, name in enumerate(("p50", "p99"))
    ]


def _in_turn(ours: Subject, plain: Subject, repetition: int) -> tuple[Subject, Subject]:
    return (ours, plain) if repetition % 2 == 0 else (plain, ours)
