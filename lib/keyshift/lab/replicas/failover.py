"""How another process goes on with a job with replicas: all of them from what one has written, see ``resume_points``.

Behind that everything comes once more, as all that replicas do follows from their input. Only a migration comes no
more, if it was begun since: so what was given behind that turn counts for nothing, see ``traffic.copies.Superseded``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from keyshift.driver.job import Past
from keyshift.lab.live.failover import J, ReplicasPast, SystemJournal
from keyshift.lab.live.presence import Presence
from keyshift.lab.replicas.jobs import Replicas
from keyshift.lab.replicas.resume_points import ResumePoint, ResumePoints
from keyshift.model.errors import Damaged, InputLost, NotThere
from keyshift.model.keys import NO_VERSION, Versions
from keyshift.model.notes import Note
from keyshift.objects import surely
from keyshift.traffic.copies import Superseded
from keyshift.traffic.topics import Epochs
from keyshift.wire.savepoint import SavepointManifest, SavepointStore


class ReplicasFailover:
    """``JobFailover`` of ``replicas``. ``requested`` gives the migrations of each stage so far, ``notes`` the notes so
    far. ``go_on`` gets what the journal says, and the epochs of the input.
    """

    def __init__(
        self,
        replicas: Replicas,
        points: ResumePoints,
        requested: Callable[[], dict[str, int]],
        notes: Callable[[], list[Note]],
        go_on: Callable[[SystemJournal, Epochs], None],
    ) -> None:
        self._replicas, self._points = replicas, points
        self._requested, self._notes, self.resume = requested, notes, go_on
        self._superseded: Sequence[Superseded] = ()  # in processes before
        self._told: tuple[ResumePoint, ...] = ()  # in the journal that was told last

    @property
    def progress(self) -> tuple[list[int], str]:
        """How many incarnations each replica has had, and what was written down last."""
        newest = self._points.newest
        return [len(each.began) for each in self._replicas.all], newest.savepoint.name if newest else ""

    def require_driver(self) -> None:
        """Raise Deposed if another process has claimed one of the jobs."""
        self._replicas.require_driver()

    def journal(self) -> SystemJournal:
        """See ``JobFailover``."""
        self.require_driver()
        self._told = self._points.for_journal()
        before, point = (None, None, *self._told)[-2:]
        configs = [each.job.config for each in self._replicas.all]
        return SystemJournal(
            run_id=configs[0].shared,
            token=configs[0].token,
            attempt=max(config.attempt for config in configs),
            slots={each.stage: each.slots for each in configs[0].chain()},
            past=Past(
                stages=point.histories if point else {},
                savepoints=[],
                snapshots=[],
                notes=self._notes(),
                revoked=Versions(),
                begun_from=point.savepoint if point else None,
                first_version=NO_VERSION,
            ),
            plans=point.plans if point else {},
            of_replicas=ReplicasPast(
                of=point.of if point else "",
                began={each.number: list(each.began) for each in self._replicas.all},
                requested=self._requested(),
                superseded=list(self._superseded),
                before=before,
            ),
        )

    def journal_written(self) -> None:
        """See ``JobFailover``."""
        self._points.in_journals = self._told

    def presence(self, token: str) -> Presence:
        """See ``JobFailover``. It is below the root of the first replica's job."""
        return self._replicas.all[0].system.failover.presence(token)

    def claim(self, journal: SystemJournal) -> int:
        """Claim the jobs of all replicas, and give the largest epoch. Each replica's job has its own epochs, and all of
        them grow: so does the largest.
        """
        claimed = []
        for replica in self._replicas.all:
            replica.job.config = replace(replica.job.config, token=journal.token)
            claimed.append(replica.job.claim())
        return max(claimed)

    def readable(self, journal: J) -> J:
        """See ``JobFailover``. Reads all of the last, with its checksums, if there is another one."""
        lost: list[str] = []
        while last := journal.past.begun_from:
            if not (why := self._why_lost(journal)):
                break
            lost.append(f"what was written last, {last.name}, {why}")
            journal = _as_before(journal)
        if not lost:
            return journal
        where = f"what was written before, {last.name}" if last else "the beginning of the input"
        note = Note("; ".join([*lost, f"the job went on from {where}"]))
        return replace(journal, past=replace(journal.past, notes=[*journal.past.notes, note]))

    def _why_lost(self, journal: SystemJournal) -> str:
        """Say why the job cannot go on from what was written last; empty if it can."""
        of, last, replicas = journal.of_replicas, journal.past.begun_from, self._replicas
        assert of is not None and last is not None
        try:
            replicas.traffic.require_input(last.offsets)
        except InputLost as error:
            return f"counts no more ({error})"
        if not replicas.order and of.before is None:
            return ""
        store = SavepointStore(replicas.all[0].job.config.endpoints, of.of)
        try:
            if replicas.order:
                manifest = surely(store.manifest, last.name, store.committed)
                if _ahead(manifest, replicas.order.ends()):
                    return "has read more of the order log than Kafka has kept"
            if of.before is not None:
                surely(store.require_whole, last.name, store.committed)
        except (Damaged, NotThere) as error:
            return f"cannot be read ({error})"
        return ""

    def supersede(self, journal: SystemJournal) -> Sequence[Superseded]:
        """See ``JobFailover``."""
        assert journal.of_replicas is not None
        begin, logs = journal.past.begun_from, self._replicas.traffic.result_logs
        ends = tuple(log.ends() for log in logs)
        before = [each.within(ends) for each in journal.of_replicas.superseded]
        self._superseded = [*before, Superseded(ends, begin.turns if begin else {})]
        return self._superseded


def _as_before(journal: J) -> J:
    """The journal as it would be if what was written last had not been."""
    of = journal.of_replicas
    assert of is not None
    if (before := of.before) is None:
        past = replace(journal.past, begun_from=None, stages={})
        return replace(journal, past=past, plans={}, of_replicas=replace(of, of=""))
    past = replace(journal.past, begun_from=before.savepoint, stages=before.histories)
    return replace(journal, past=past, plans=before.plans, of_replicas=replace(of, of=before.of, before=None))


def _ahead(manifest: SavepointManifest, ends: Mapping[int, int]) -> bool:
    """Whether a slot has read more of its order log than is there. There are leaders in a first stage alone."""
    positions = (each for saved in manifest.stages.values() for each in saved.positions.items())
    return any(position.log.offset >= ends[slot] for slot, position in positions)


def point_of(journal: SystemJournal) -> ResumePoint | None:
    """The point that another process goes on from; None: the beginning of the input."""
    begin = journal.past.begun_from
    if begin is None or journal.of_replicas is None:
        return None
    return ResumePoint(journal.of_replicas.of, begin, journal.past.stages, journal.plans)
