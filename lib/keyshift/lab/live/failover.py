"""How another process goes on with a job whose driver is gone, or one replica where another one stands."""

from dataclasses import dataclass, replace

from keyshift.driver.job import Job, Past
from keyshift.driver.stage import follow
from keyshift.lab.plans.job_plans import JobPlans
from keyshift.lab.plans.stage_plans import PlansPast
from keyshift.traffic.topics import Epochs
from keyshift.wire.config import JobConfig


@dataclass(frozen=True)
class SystemJournal:
    """What another process needs to go on with a job: who the job is, and its way so far.

    Events, results and snapshots are in Kafka and MinIO, and what has happened since is in ZooKeeper. ``token`` is the
    job's secret; ``attempt`` and ``slots`` (of each stage) are those under way.
    """

    run_id: str
    token: str
    attempt: int
    slots: dict[str, int]
    past: Past
    plans: dict[str, PlansPast]


class Failover:
    """Of ``job``, whose migrations were planned by ``plans``. For the controlling thread."""

    def __init__(self, job: Job, plans: JobPlans) -> None:
        self._job, self._plans = job, plans
        self._past: Past | None = None  # in the journal that was told last

    @property
    def progress(self) -> tuple[int, int]:
        """The attempt, and how many snapshots there are so far: a journal that was made before either grew is old."""
        return self._job.config.attempt, len(self._job.snapshots.taken)

    def journal(self) -> SystemJournal:
        """What another process needs to go on. Raises Deposed if another one has claimed the job."""
        self._job.require_driver()
        config, plans = self._job.config, {name: replace(each.past) for name, each in self._plans.of.items()}
        slots = {each.stage: each.slots for each in config.chain()}
        self._past = self._job.past()
        return SystemJournal(config.job, config.token, config.attempt, slots, self._past, plans)

    def kept(self) -> None:
        """The journal that was told last is written down: what only older ones refer to may go."""
        if self._past is not None:
            self._job.snapshots.journaled({snapshot.name for snapshot in self._past.snapshots})

    def claim(self, journal: SystemJournal) -> int:
        """Be the driver of the job that the journal is of, before anything else; gives the epoch."""
        self._job.config = self._config_of(journal)
        return self._job.claim()

    def resume(self, journal: SystemJournal, epochs: Epochs) -> None:
        """Go on from there, instead of ``start``. ``epochs``: of the input."""
        for name, plans in self._plans.of.items():
            plans.past = replace(journal.plans[name])
        self._job.config = replace(self._config_of(journal), epochs=epochs)
        self._job.resume(journal.past)

    def follow(self, other: "Failover") -> None:
        """Have the past of another replica, before ``start``."""
        for mine, theirs in zip(self._job.stages, other._job.stages, strict=True):
            follow(mine, theirs)
        for name, plans in self._plans.of.items():
            plans.past = replace(other._plans.of[name].past)

    def _config_of(self, journal: SystemJournal) -> JobConfig:
        """As in the attempt that was under way."""
        return replace(self._job.config.with_slots(journal.slots), attempt=journal.attempt, token=journal.token)
