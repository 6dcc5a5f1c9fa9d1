"""A query under test, fed in bursts: one generator per burst, one collector for all of them."""

import contextlib
import math
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from bench.plain import ShortestJob
from keyshift.driver.job import Job
from keyshift.driver.spark import start_query
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec
from keyshift.lab.system import job_config, job_traffic
from keyshift.peers.plain_job import BATCH_S, assignment
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.traffic import Traffic
from keyshift.wire.config import JobConfig

ANSWER_S = 30.0  # for late results after a burst
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


class UnmovedJob(Job):
    """keyshift's pipeline; no migration happens."""

    label = "keyshift"

    def __init__(self, spark: SparkSession, config: JobConfig, work: Path, batch_s: float, output: Traffic) -> None:
        super().__init__(partial(start_query, spark), config, work, batch_s, output)

    def begin(self) -> None:
        """Start the job with the owners that units have in the plain one."""
        self.start([assignment(self.config)])


class Subject:
    """A running job with its topics and its collector. A context manager that leaves nothing behind.

    ``trace``: a folder for the moments at which frames pass (``keyshift.trace``).
    """

    def __init__(
        self,
        kind: type[UnmovedJob] | type[ShortestJob],
        spark: SparkSession,
        endpoints: Endpoints,
        spec: RunSpec,
        work: Path,
        trace: str = "",
    ) -> None:
        self.name, self._spec = kind.label, spec
        config = job_config(spec, f"bench-{self.name}-{secrets.token_hex(4)}", endpoints, None)
        self.config = replace(config, slots=spec.job.slots, trace=trace)
        self._traffic = job_traffic(spec.workload, self.config, self.config.slots, work)
        self._job = kind(spark, self.config, work, BATCH_S, self._traffic)

    def __enter__(self) -> "Subject":
        try:
            self._traffic.open()
            ticks = self._traffic.feed([SourceLoad(self._spec.run.rate)], self._spec.run.frame_ms)
            self._job.begin()
            self._traffic.end(ticks)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # all of them, whatever of it fails
            for step in (self._traffic.close, self._job.clean, self._job.stop):
                stack.callback(step)

    def burst(self, rate: float, frame_ms: float, seconds: float, give_up: bool = False) -> Burst:
        """Offer ``rate`` events/s for ``seconds``, and wait until the results are there.

        ``give_up``: end the burst as soon as it is clear that the rate is not sustained. Raises ServiceUnavailable if
        a process dies.
        """
        traffic = self._traffic
        seconds_before, received_before = len(traffic.seconds), traffic.received
        feed = traffic.feed([SourceLoad(rate)], frame_ms)
        try:
            feed.await_ready()
            start = time.time() + LEAD_S
            feed.begin(start, seconds)
            first, end = math.ceil(start + UNMEASURED_S), math.floor(start + seconds)

            def hopeless() -> bool:
                said = traffic.seconds[seconds_before:]
                return any(s.second >= first and (s.p50_ms or 0.0) > HOPELESS_P99_MS for s in said)

            while time.time() < start + seconds and not (give_up and hopeless()):
                time.sleep(0.1)
                self._check()
            if time.time() < start + seconds:
                feed.stop()
            feed.await_done()
            complete = self._await_results(received_before + (feed.due or 0))
        finally:
            traffic.end(feed)
        said = traffic.seconds[seconds_before:]
        measured = [s for s in said if first <= s.second < end and s.results]
        kept_up = complete and time.time() >= start + seconds and not hopeless() and bool(measured)
        return Burst([s.p50_ms or 0.0 for s in measured], [s.p99_ms or 0.0 for s in measured], kept_up)

    def _await_results(self, wanted: int) -> bool:
        deadline = time.monotonic() + ANSWER_S

        def over() -> bool:
            self._check()
            return self._traffic.received >= wanted or time.monotonic() > deadline

        self._traffic.await_results(over, QUIET_S)
        return self._traffic.received >= wanted

    def _check(self) -> None:
        self._job.check()
        self._traffic.check()
