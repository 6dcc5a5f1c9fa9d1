"""How another process goes on with a job whose driver is gone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from keyshift.driver.completed import CompletedSnapshot
from keyshift.driver.job import Job, Past
from keyshift.driver.snapshotter import SNAPSHOT_PREFIX
from keyshift.driver.stage import history_of
from keyshift.driver.stage_history import StageHistory
from keyshift.lab.live.presence import Presence
from keyshift.lab.plans.job_plans import JobPlans
from keyshift.lab.plans.stage_plans import PlansPast
from keyshift.model.errors import Damaged, InputLost, NotThere
from keyshift.model.keys import NO_VERSION
from keyshift.model.notes import Note
from keyshift.objects import surely
from keyshift.traffic.copies import Incarnation, Superseded
from keyshift.traffic.topics import Epochs
from keyshift.wire.config import JobConfig
from keyshift.wire.savepoint import Savepoint, SavepointStore


@dataclass(frozen=True)
class Written:
    """A ``savepoint`` that the job ``of`` a replica has written, with its ``histories`` and ``plans`` by stage."""

    of: str
    savepoint: Savepoint
    histories: dict[str, StageHistory]
    plans: dict[str, PlansPast]


@dataclass(frozen=True)
class ReplicasPast:
    """What the journal of a job with replicas has beside that of another job. ``Past.begun_from`` is then what one of
    the replicas wrote last, whose job is ``of``, and the rest of that past is as it was at that moment. ``began``: see
    ``LedReplica``; ``requested``: migrations of each stage. ``superseded``: what came of processes before. ``before``:
    what was written before, for the case that the last is damaged.
    """

    of: str
    began: dict[int, list[Incarnation]]
    requested: dict[str, int]
    superseded: list[Superseded]
    before: Written | None = None


@dataclass(frozen=True, kw_only=True)
class SystemJournal:
    """What another process needs to go on with a job: who the job is, and its way so far.

    Events, results and snapshots are in Kafka and MinIO, and what has happened since is in ZooKeeper. ``token`` is the
    job's secret; ``attempt`` and ``slots`` (of each stage) are those under way. ``of_replicas``: None if it has none.
    """

    run_id: str
    token: str
    attempt: int
    slots: dict[str, int]
    past: Past
    plans: dict[str, PlansPast]
    of_replicas: ReplicasPast | None = None

    @property
    def snapshots(self) -> tuple[str, list[str]]:
        """The name of the job that wrote what it goes on from, and what that is, the newest last."""
        if self.of_replicas is None:
            return self.run_id, [snapshot.name for snapshot in self.past.snapshots]
        return self.of_replicas.of, [self.past.begun_from.name] if self.past.begun_from else []

    @property
    def newest(self) -> CompletedSnapshot | Savepoint | None:
        """What the job goes on from; None: the beginning of the input."""
        return self.past.snapshots[-1] if self.past.snapshots else self.past.begun_from

    @property
    def offsets(self) -> Mapping[int, int]:
        """How far the input of each router is in what the job goes on from; none for the beginning."""
        return self.newest.offsets if self.newest else {}


J = TypeVar("J", bound=SystemJournal)


class JobFailover:
    """How another process goes on with ``job``, whose migrations ``plans`` planned, or it where another replica stands;
    for the controlling thread. ``ReplicasFailover`` has the same for a job with replicas.
    """

    def __init__(self, job: Job, plans: JobPlans) -> None:
        self._job, self._plans = job, plans
        self._past: Past | None = None  # in the journal that was told last

    @property
    def progress(self) -> tuple[int, int]:
        """The attempt, and how many snapshots there are: a journal that was made while either was another is old."""
        return self._job.config.attempt, len(self._job.snapshots.taken)

    def require_driver(self) -> None:
        """Raise Deposed if another process has claimed the job."""
        self._job.require_driver()

    def journal(self) -> SystemJournal:
        """Return what another process needs to go on. Raises as ``require_driver`` does."""
        self.require_driver()
        config = self._job.config
        self._past = self._job.past()
        return SystemJournal(
            run_id=config.job,
            token=config.token,
            attempt=config.attempt,
            slots={each.stage: each.slots for each in config.chain()},
            past=self._past,
            plans=self.plans(),
        )

    def journal_written(self) -> None:
        """Hear that the journal that was told last is written down: what only older ones refer to may go."""
        if (past := self._past) is None:
            return
        self._job.snapshots.journaled({snapshot.name for snapshot in past.snapshots})
        names = [savepoint.name for savepoint in past.savepoints]
        if past.snapshots and past.begun_from and past.begun_from.name in names:  # these came behind it
            self._job.snapshots.supersede(names[: names.index(past.begun_from.name)])

    def presence(self, token: str) -> Presence:
        """The presence of drivers of the job, whose secret ``token`` is."""
        return Presence(self._job.config.endpoints, self._job.config.job, token)

    def claim(self, journal: SystemJournal) -> int:
        """Become the driver of the job that the journal is of, before anything else; gives the epoch of its input."""
        self._job.config = self._config_of(journal)
        return self._job.claim()

    def readable(self, journal: J) -> J:
        """The journal without what has read events that Kafka has lost, to be on disk before any event is offered: all
        that came out behind what is left is revoked, also of those events, and comes once more. What cannot be read
        stays: an attempt dies of it, and the next begins from the one before, in this process or another.

        Raises InputLost if each committed snapshot is to be judged, for which all that it has read has to be there.
        """
        config = self._job.config
        if config.keep_snapshots:
            store = SavepointStore(config.endpoints, config.job)
            furthest: Counter[int] = Counter()
            for name in store.committed(SNAPSHOT_PREFIX):
                # Of one that cannot be read the verdict is bad, whatever it has read.
                with suppress(Damaged, NotThere):
                    furthest |= Counter(surely(store.manifest, name, store.committed).offsets)
            self._job.output.require_input(furthest)
        while begin := journal.newest:
            try:
                self._job.output.require_input(begin.offsets)
                break
            except InputLost as error:
                journal = replace(journal, past=_without_newest(journal.past, f"{begin.name} counts no more: {error}"))
        return journal

    def supersede(self, journal: SystemJournal) -> Sequence[Superseded]:
        """Give what the job has given, and will give once more; after ``claim``. Nothing: versions are revoked."""
        return ()

    def resume(self, journal: SystemJournal, epochs: Epochs) -> None:
        """Go on from there, instead of ``start``. ``epochs``: of the input."""
        self.take(journal.plans)
        self._job.config = replace(self._config_of(journal), epochs=epochs)
        self._job.resume(journal.past)

    # -- where another replica stands ---------------------------------------------------------------------------------

    def histories(self) -> dict[str, StageHistory]:
        """The histories of its stages, while nothing moves."""
        return {stage.name: history_of(stage) for stage in self._job.stages}

    def plans(self) -> dict[str, PlansPast]:
        """The plans of its stages."""
        return {name: replace(each.past) for name, each in self._plans.of.items()}

    def follow(self, histories: dict[str, StageHistory], plans: dict[str, PlansPast]) -> None:
        """Take over this past, before the job begins under the newest assignments of that."""
        for stage in self._job.stages:
            stage.history = histories[stage.name].before_the_newest()
        self.take(plans)

    def take(self, plans: dict[str, PlansPast]) -> None:
        """Take over these plans."""
        for name, each in self._plans.of.items():
            each.past = replace(plans[name])

    def _config_of(self, journal: SystemJournal) -> JobConfig:
        """The configuration of the job in the attempt that was under way."""
        return replace(self._job.config.with_slots(journal.slots), attempt=journal.attempt, token=journal.token)


def _without_newest(past: Past, why: str) -> Past:
    noted = replace(past, notes=[*past.notes, Note(why)])
    if past.snapshots:
        return replace(noted, snapshots=past.snapshots[:-1])
    return replace(noted, begun_from=None, first_version=NO_VERSION)
