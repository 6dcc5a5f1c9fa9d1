"""The jobs of a replicated one, each with the Spark application that it runs in: how they are made and how they end."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from keyshift.driver.job import Job
from keyshift.driver.job_faults import ServicesToHit
from keyshift.experiment.spec import RunSpec
from keyshift.lab.replicas.spark import Application
from keyshift.lab.system import KeyshiftJob
from keyshift.model.notes import Doing
from keyshift.ordering import orderings
from keyshift.runtime.protocol_log import LogEvent
from keyshift.traffic.traffic import Traffic
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination


@dataclass(eq=False)
class LedReplica:
    """The ``number``-th, from 0. ``lives``: it has not died; one that has does not come back."""

    number: int
    application: Application
    job: Job
    system: KeyshiftJob
    lives: bool = True


class Replicas:
    """Those of a job, with what ``driver.job.Job`` has for its end. For the controlling thread.

    ``configs``: of each. ``open_application``: makes that of a number, which is not begun. ``log`` gets what
    ``read_log`` reads of all of them. ``differences``: between them, so far. ``order``: the topic of
    their order log, if they have one.
    """

    def __init__(
        self,
        spec: RunSpec,
        configs: Iterable[JobConfig],
        open_application: Callable[[int], Application],
        work: Path,
        traffic: Traffic,
        say: Callable[[Doing], None],
        services: ServicesToHit,
        log: list[LogEvent],
    ) -> None:
        self._log, self.differences, self.order = log, traffic.differences, traffic.order
        self._common: JobConfig | None = None  # of one of them, if there is something that all have together
        # What fails is for all of them, and ``replicas.system`` looks after it.
        calm = dataclasses.replace(spec, scenario=spec.scenario.model_copy(update={"fault": ""}))
        self.all: list[LedReplica] = []
        for config in configs:
            if orderings.get(config.ordering).leads:
                self._common = config
            application = open_application(config.replica)
            job = Job(application.start_query, config, work, spec.job.batch_s, traffic, say, services)
            self.all.append(LedReplica(config.replica, application, job, KeyshiftJob(calm, job)))

    @property
    def living(self) -> list[LedReplica]:
        """Those that have not died."""
        return [replica for replica in self.all if replica.lives]

    def begin(self) -> None:
        """Start their applications, all at once. Raises ServiceUnavailable if one does not start."""
        if self._common:
            with _together(self._common) as participant:
                participant.begin()
        for replica in self.all:
            replica.application.begin()
        for replica in self.all:
            replica.application.await_ready()

    def require_driver(self) -> None:
        """Raises Deposed if another process has claimed one of the jobs."""
        for replica in self.all:
            replica.job.require_driver()

    def read_log(self) -> None:
        """The last protocol events of all that live into the log, with the replica in front of the place."""
        for replica in self.living:
            replica.job.log = []
            replica.job.read_log()
            self._log += [event._replace(place=f"replica-{replica.number} {event.place}") for event in replica.job.log]

    def stop(self) -> None:
        """Stop the queries and end the applications, all of them even if something fails. Safe to call twice."""
        self._each(lambda replica: replica.application.end())
        self._each(lambda replica: replica.job.stop())

    def end(self) -> None:
        """The jobs are over, after ``stop``."""
        self._each(lambda replica: replica.job.end())

    def clean(self) -> None:
        """Remove what they left in ZooKeeper, MinIO and on disk."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._clean_common)
            self._each(lambda replica: replica.job.clean())

    def _clean_common(self) -> None:
        if self._common:
            with _together(self._common) as participant:
                participant.withdraw(nodes.ALL)

    def _each(self, end: Callable[[LedReplica], None]) -> None:
        with contextlib.ExitStack() as stack:
            for replica in self.all:
                stack.callback(end, replica)


def _together(config: JobConfig) -> contextlib.closing[Coordination]:
    """A place in ZooKeeper, at the root of what all replicas have together."""
    return contextlib.closing(Coordination(config.endpoints.zookeeper, nodes.of_job(config.shared), config.token))
