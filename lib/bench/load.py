"""A query under test, fed in bursts: one generator per burst, one collector for all of them."""

import contextlib
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench.plain import ShortestJob
from keyshift.driver.job import Job
from keyshift.driver.spark import start_query
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec
from keyshift.lab.scripts.highest_rate import UNMEASURED_S, Burst, burst_of, hopeless
from keyshift.lab.system import job_config, job_traffic
from keyshift.peers.plain_job import BATCH_S, assignment
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.traffic import Traffic
from keyshift.wire.config import JobConfig

ANSWER_S = 30.0  # for late results after a burst
QUIET_S = 3.0  # no result for so long: what is missing does not come any more
LEAD_S = 0.3  # before the first event of a burst


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
        self.name, self.spec = kind.label, spec
        config = job_config(spec, f"bench-{self.name}-{secrets.token_hex(4)}", endpoints, None)
        self.config = replace(config, trace=trace)
        self._traffic = job_traffic(spec.workload, self.config, self.config.slots, work)
        self._job = kind(spark, self.config, work, BATCH_S, self._traffic)

    def __enter__(self) -> "Subject":
        try:
            self._traffic.open()
            ticks = self._traffic.feed([SourceLoad(self.spec.run.rate)], self.spec.run.frame_ms)
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

    @property
    def pids(self) -> dict[int, str]:
        """The processes of its traffic, with their names."""
        return self._traffic.pids

    def burst(
        self,
        seconds: float,
        rate: float | None = None,
        frame_ms: float | None = None,
        give_up: bool = False,
        began: Callable[[float], object] = lambda start_s: None,
    ) -> Burst:
        """Offer ``rate`` events/s, or those of the spec, for ``seconds``, and wait until the results are there.

        ``give_up``: end the burst as soon as it is clear that the rate is not sustained. ``began`` hears when its first
        event is due, as soon as that is known. Raises ServiceUnavailable if a process dies.
        """
        traffic, run = self._traffic, self.spec.run
        seconds_before, told_before = len(traffic.seconds), self._told
        feed = traffic.feed([SourceLoad(rate or run.rate)], frame_ms or run.frame_ms)
        try:
            feed.await_ready()
            start = time.time() + LEAD_S
            feed.begin(start, seconds)
            began(start)
            first, end = math.ceil(start + UNMEASURED_S), math.floor(start + seconds)

            while time.time() < start + seconds and not (give_up and hopeless(traffic.seconds[seconds_before:], first)):
                time.sleep(0.1)
                self._check()
            if time.time() < start + seconds:
                feed.stop()
            feed.await_done()
            complete = self._await_results(told_before + (feed.due or 0))
        finally:
            traffic.end(feed)
        return burst_of(traffic.seconds[seconds_before:], first, end, complete and time.time() >= start + seconds)

    def _await_results(self, wanted: int) -> bool:
        deadline = time.monotonic() + ANSWER_S

        def over() -> bool:
            self._check()
            return self._told >= wanted or time.monotonic() > deadline

        self._traffic.await_results(over, QUIET_S)
        return self._told >= wanted

    @property
    def _told(self) -> int:
        """Results of seconds that are over: those are measured."""
        return self._traffic.received - self._traffic.early

    def _check(self) -> None:
        self._job.check()
        self._traffic.check()
