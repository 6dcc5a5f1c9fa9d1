"""A query under test, fed in bursts: one generator per burst, one collector for all of them."""

import contextlib
import math
import queue
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from keyshift.bench.plain import start_plain
from keyshift.endpoints import Endpoints
from keyshift.errors import KeyshiftError, ServiceUnavailable
from keyshift.executor.config import JobConfig
from keyshift.executor.job import Job, telling_line
from keyshift.keys import Assignment, SlotId
from keyshift.lab.spec import RunSpec
from keyshift.traffic import topics
from keyshift.traffic.process import JsonProcess
from keyshift.waiting import wait_until

BATCH_S = 3600.0  # longer than any bench: no batch boundary falls into a measurement
READY_S = 120.0
ANSWER_S = 30.0  # for a generator to get ready, and for late results after a burst
QUIET_S = 3.0  # no result for so long: what is missing does not come any more
LEAD_S, UNMEASURED_S = 0.3, 2.0  # before the first event of a burst; of each burst, at its beginning
SUSTAINED_P99_MS = 500.0
HOPELESS_P99_MS = 2 * SUSTAINED_P99_MS  # a burst that is to show whether the rate is sustained is over then


@dataclass(frozen=True)
class Burst:
    """The result of one burst: p50 and p99 of each measured second, in ms, and whether all results came soon enough."""

    p50s_ms: list[float]
    p99s_ms: list[float]
    kept_up: bool

    @property
    def p50_ms(self) -> float:
        """Median over the seconds."""
        return median(self.p50s_ms)

    @property
    def p99_ms(self) -> float:
        """Median over the seconds of each second's P99."""
        return median(self.p99s_ms)

    @property
    def sustained(self) -> bool:
        """Whether latency was still low in the last third, and nothing was left behind."""
        last = self.p99s_ms[-max(1, len(self.p99s_ms) // 3) :]
        return self.kept_up and bool(last) and median(last) < SUSTAINED_P99_MS


class Subject:
    """A running query with its topics and its collector. A context manager that leaves nothing behind.

    ``trace``: a folder for the moments at which frames pass (``keyshift.trace``).
    """

    def __init__(
        self, name: str, spark: SparkSession, endpoints: Endpoints, spec: RunSpec, work: Path, trace: str = ""
    ) -> None:
        self.name, self._spec, self._endpoints, self._work, self._spark = name, spec, endpoints, work, spark
        self.config = JobConfig(
            job=f"bench-{name}-{secrets.token_hex(4)}",
            attempt=0,
            endpoints=endpoints,
            workload=spec.workload.name,
            parameters=spec.workload.model_dump(),
            stage=spec.workload.stages[0].name,
            routers=spec.job.routers,
            slots=spec.job.slots,
            key_groups=spec.workload.key_groups,
            token=secrets.token_urlsafe(24),
            trace=trace,
        )
        self._output = work / f"{self.config.job}.parquet"
        self._markers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._seconds: list[dict[str, Any]] = []
        self._received = 0
        self._collector: JsonProcess | None = None

    def __enter__(self) -> "Subject":
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        config, kafka = self.config, self._endpoints.kafka
        topics.create_topic(kafka, config.events_topic, config.routers)
        topics.create_topic(kafka, config.results_topic, config.slots)
        sink = {"topic": config.results_topic, "partitions": config.slots, "output": str(self._output)}
        self._collector = JsonProcess("keyshift.traffic.collector", self._common() | sink, self._heard)
        self._start()
        generator = self._generator(self._spec.run.rate, self._spec.run.frame_ms)  # only ticks
        try:
            self._await_ready()
        finally:
            generator.kill()

    def _common(self) -> dict[str, Any]:
        config = self.config
        common = {"kafka": self._endpoints.kafka, "workload": config.workload, "parameters": config.parameters}
        return common | {"trace": config.trace}

    def __exit__(self, *_: object) -> None:
        config, kafka = self.config, self._endpoints.kafka
        steps: list[Callable[[], object]] = [
            self._stop,
            self._end_collector,
            self._clean,
            lambda: topics.delete_topic(kafka, config.events_topic),
            lambda: topics.delete_topic(kafka, config.results_topic),
        ]
        errors = []
        for step in steps:
            try:
                step()
            except KeyshiftError as error:  # the rest must go as well
                errors.append(error)
        if errors:
            raise errors[0]

    def _end_collector(self) -> None:
        if self._collector is not None:
            self._collector.kill()

    # -- what differs between the two jobs ----------------------------------------------------------------------------

    def _start(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def _clean(self) -> None:
        raise NotImplementedError

    def _check_query(self) -> None:
        raise NotImplementedError

    # -- load ---------------------------------------------------------------------------------------------------------

    def burst(self, rate: float, frame_ms: float, seconds: float, give_up: bool = False) -> Burst:
        """Offer ``rate`` events/s for ``seconds``, and wait until the results are there.

        ``give_up``: end the burst as soon as it is clear that the rate is not sustained. Raises ServiceUnavailable if
        a process dies.
        """
        self._seconds, self._received = [], 0
        generator = self._generator(rate, frame_ms)
        try:
            _answer(generator, "ready")
            start = time.time() + LEAD_S
            generator.tell({"start_at_us": int(start * 1e6), "seconds": seconds})
            first, end = math.ceil(start + UNMEASURED_S), math.floor(start + seconds)
            while time.time() < start + seconds and not (give_up and self._hopeless(first)):
                time.sleep(0.1)
                self._check(generator)
            if time.time() < start + seconds:
                generator.tell({"stop": True})
            due = _answer(generator, "done")["due"]
            complete = self._await_results(due, generator)
        finally:
            generator.kill()
        measured = [s for s in self._seconds if first <= s["second"] < end and s["p50_ms"] is not None]
        kept_up = complete and time.time() >= start + seconds and not self._hopeless(first) and bool(measured)
        return Burst([s["p50_ms"] for s in measured], [s["p99_ms"] for s in measured], kept_up)

    def _hopeless(self, first: int) -> bool:
        return any(s["second"] >= first and (s["p50_ms"] or 0.0) > HOPELESS_P99_MS for s in self._seconds)

    def _generator(self, rate: float, frame_ms: float) -> JsonProcess:
        config = self.config
        load = {"topic": config.events_topic, "rate": rate, "routers": config.routers, "frame_ms": frame_ms}
        return JsonProcess("keyshift.traffic.generator", self._common() | load)

    def _await_results(self, due: int, generator: JsonProcess) -> bool:
        deadline = time.monotonic() + ANSWER_S

        def over() -> bool:
            self._check(generator)
            return self._received >= due or time.monotonic() > deadline

        wait_until(over, QUIET_S, progress=lambda: self._received)
        return self._received >= due

    def _await_ready(self) -> None:
        missing = set(range(self.config.slots))

        def ready() -> bool:
            self._check(None)
            with contextlib.suppress(queue.Empty):
                missing.discard(self._markers.get(timeout=0.2)["slot"])
            return not missing

        if not wait_until(ready, READY_S, 0.0):
            raise ServiceUnavailable(f"slots {sorted(missing)} of {self.name} not ready within {READY_S:g} s")

    def _check(self, generator: JsonProcess | None) -> None:
        self._check_query()
        if self._collector:
            self._collector.check()
        if generator:
            generator.check()

    def _heard(self, report: dict[str, Any]) -> None:
        if "marker" in report:
            self._markers.put(report)
        elif "second" in report:
            self._seconds.append(report)
            self._received += report["results"]


class KeyshiftSubject(Subject):
    """keyshift's pipeline; no migration happens."""

    def _start(self) -> None:
        self._job = Job(self._spark, self.config, self._work, BATCH_S)
        slots = self.config.slots
        owners = tuple(SlotId(unit % slots) for unit in range(self.config.key_groups))  # those of the plain job
        self._job.start(Assignment(1, owners))

    def _stop(self) -> None:
        if hasattr(self, "_job"):
            self._job.stop()

    def _clean(self) -> None:
        if hasattr(self, "_job"):
            self._job.clean()

    def _check_query(self) -> None:
        self._job.check()


class PlainSubject(Subject):
    """The job of ``keyshift.bench.plain``."""

    _query: StreamingQuery | None = None

    def _start(self) -> None:
        self._query = start_plain(self._spark, self.config, self._checkpoint, BATCH_S)

    @property
    def _checkpoint(self) -> Path:
        return self._work / "checkpoints" / self.config.job

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def _clean(self) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _check_query(self) -> None:
        if self._query is not None and not self._query.isActive:
            error = self._query.exception()
            raise ServiceUnavailable(f"the plain query has ended: {telling_line(str(error)) if error else 'stopped'}")


def _answer(generator: JsonProcess, state: str) -> dict[str, Any]:
    report: dict[str, Any] = {}

    def heard() -> bool:
        nonlocal report
        report = generator.report(ANSWER_S)
        return report.get("state") == state

    if not wait_until(heard, ANSWER_S, 0.0):
        raise ServiceUnavailable(f"the generator was not {state} within {ANSWER_S:g} s")
    return report
