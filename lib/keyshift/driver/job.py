"""One job: a query, its coordinator, its savepoints; possibly several attempts, each a new query from a savepoint."""

import contextlib
import dataclasses
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keyshift.clock import now_us
from keyshift.driver.attempt import Unfinished
from keyshift.driver.completed import CompletedSnapshot, CompletedSnapshots, is_damaged
from keyshift.driver.job_faults import JobFaults, ServicesToHit
from keyshift.driver.query import Query, StartQuery
from keyshift.driver.snapshotter import Snapshotter
from keyshift.driver.stage import LedStage
from keyshift.driver.stage_history import StageHistory
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import NO_VERSION, Assignment, Version, Versions, VersionsInJson
from keyshift.model.markers import StateWritten
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.model.records import UnitCame, all_came, restart_record
from keyshift.registry import unknown
from keyshift.runtime.protocol_log import LogEvent
from keyshift.traffic.traffic import Traffic
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination, attempts
from keyshift.wire.epoch import Epoch
from keyshift.wire.savepoint import Savepoint, SavepointManifest, SavepointStore
from keyshift.worker.slot.snapshots import SAY_S

# Versions that a resume leaves out and revokes, at the least: of what its machine had in memory alone when that went
# down, ZooKeeper may have confirmed so much that nobody knows of any more. A journal is a minute old at the most, and a
# step takes milliseconds. Of a resume that went down before its first journal nobody knows where it began: so each
# begins at what the clock says in microseconds, if that is further: nobody makes a step in each of them.
GAP = 1_000_000


@dataclass(frozen=True)
class Past:
    """The way of a job until now, for ``Job.resume`` in another process. The fields are those of ``Job``."""

    stages: dict[str, StageHistory]
    savepoints: list[Savepoint]
    snapshots: list[CompletedSnapshot]
    notes: list[Note]
    revoked: VersionsInJson
    begun_from: Savepoint | None
    first_version: Version


class Job:
    """Starts and stops queries and moves their state.

    For one controlling thread; what is for any thread says so, as ``LedStage`` does. ``say`` hears what is being done.
    Methods that wait raise QueryDied if the query dies, MigrationFailed if a slot does not answer in time, Deposed if
    another process has claimed the job, and ServiceUnavailable if a service is not there any more. ``start_query``:
    starts each attempt. ``services`` can be hit.
    """

    def __init__(
        self,
        start_query: StartQuery,
        config: JobConfig,
        work: Path,
        batch_s: float,
        output: Traffic,
        say: Callable[[Doing], None] = lambda doing: None,
        services: ServicesToHit | None = None,
    ) -> None:
        self.config = config  # of the first stage
        self._work, self.output, self._say = work, output, say
        self._begun_from: Savepoint | None = None
        self._first_version = NO_VERSION  # of the last stage in the attempt that began from there
        self._called = ""  # the name of the savepoint that routers were told of, and nobody has awaited
        self.savepoints: list[Savepoint] = []  # all that were committed
        self.snapshots = CompletedSnapshots()
        self.notes: list[Note] = []  # one for each migration that did not go as planned, and each death
        self.log: list[LogEvent] = []  # what ``read_log`` has read, one attempt behind the other
        self.revoked = Versions()  # of the last stage: what came out under them counts for nothing
        self.stages = [LedStage(each, self.notes, self.check, say) for each in config.chain()]
        self.faults = JobFaults(config.faults, self.stages, say, services)
        given = output, self.snapshots, self.note

        def begin_snapshots(attempt: JobConfig) -> Snapshotter:
            return Snapshotter(attempt, self.stages, *given, self.revoked, lambda: forget_attempts(self.config))

        self._query = Query(start_query, work, batch_s, self.stages, output, self.faults.listen, begin_snapshots)

    def stage(self, name: str) -> LedStage:
        """The stage of this name. Raises BadInput if there is none."""
        stages = {stage.name: stage for stage in self.stages}
        if name not in stages:
            raise unknown("stage", name, list(stages))
        return stages[name]

    @property
    def notes_so_far(self) -> list[Note]:
        """The job's ``notes``, with those of the attempt under way; for any thread."""
        return [*self.notes, *(stage.note(text) for stage in self.stages if (log := stage.log) for text in log.notes)]

    def note(self, text: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Add a note about the whole job, behind those until now."""
        self.notes.append(Note(text, kind=kind))

    # -- who drives it ------------------------------------------------------------------------------------------------

    def claim(self, first: bool = False) -> int:
        """Become the job's driver, and give the epoch: another process that was its driver is deposed.

        ``first``: there was none before. Raises JobOver, or NotThere, if the job is over.
        """
        with _at_root(self.config) as participant:
            self.config = dataclasses.replace(self.config, epoch=participant.claim(self.config.job, first).number)
        return self.config.epoch

    def require_driver(self) -> None:
        """Refuse to go on if another process has claimed the job meanwhile: Deposed."""
        with contextlib.suppress(ServiceUnavailable):  # there is none, or it was away for too long: another one asks
            return self.stages[0].participant.require_epoch()
        if self.config.epoch:
            with _at_root(self.config) as participant:
                participant.require_epoch()

    def end(self) -> None:
        """End the job, after ``stop``: nobody claims it any more, and what it left may go.

        Raises Deposed if another process has claimed it.
        """
        if self.config.epoch:
            with _at_root(self.config) as participant:
                participant.end_epoch()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, assignments: Sequence[Assignment], begin: Savepoint | None = None) -> None:
        """Start the query and lead it, until every router and slot has put a first row through.

        ``assignments``: of each stage. ``begin``: what ``config`` says to restore, if that is of another job.
        """
        if not self.config.epoch:
            self.claim(first=True)
        self._begun_from = begin
        unfinished = [Unfinished(assignment) for assignment in assignments]
        self._query.start(self.config, unfinished, begin.offsets if begin else None)

    def check(self) -> None:
        """Raise what has ended the query; see ``Query.check``."""
        self._query.check()

    def stop(self) -> None:
        """Stop the query where it is and leave ZooKeeper. Safe to call twice."""
        self._query.stop()

    def restart(self, name: str, target: Assignment, slots: int = 0) -> None:
        """Take a savepoint, stop, and start anew with the stage of this ``name`` under ``target``, and as many slots as
        it has, at least ``slots``.

        Every unit is written and read again, whether it moves or not: those of the stage are one step in its
        ``records``. If the new attempt dies first, ``recover`` completes that, or ``resume``: the target holds.
        """
        begun_us, restarted = now_us(), self.stage(name)
        savepoint = self.savepoint()
        aligned_us = now_us()
        self._say(Doing(Activity.STOPPING))
        left = dict(zip((stage.name for stage in self.stages), self._query.stop_for_the_next(), strict=True))
        before = left[name].assignment
        stopped_us = now_us()
        self._say(Doing(Activity.STARTING_ANEW))
        config = self.config.with_slots({name: max(slots, *(owner + 1 for owner in target.owner))})
        self.config = dataclasses.replace(config, attempt=self.config.attempt + 1, restore=savepoint.name)
        after = {each: _next_version(of) for each, of in left.items()}
        restart = Assignment(after[name].assignment.version, target.owner)
        record = restart_record(before, target, savepoint.unit_bytes[name], begun_us, aligned_us, stopped_us)
        restarted.history.records.append(record)
        after[name] = Unfinished(restart, (), after[name].requests, record)
        self._begun_from, self._first_version = savepoint, after[self.stages[-1].name].assignment.version
        self.snapshots.replace([])
        self._query.start(self.config, list(after.values()), savepoint.offsets)
        _complete_restarts(self.stages, self._say)

    def recover(self) -> None:
        """Begin the next attempt after the death of the query, from the newest complete snapshot; what came out behind
        that is revoked.

        Without one, from the savepoint that the job was started from, or else the beginning of the input; raises
        NotThere if what comes behind that is gone. A snapshot or savepoint counts no more if a slot has said that it is
        damaged or gone, and it is, whatever else has ended the attempt. The newest assignments hold, as every unit is
        made anew wherever it belongs. Steps that had not switched, and requests that had not begun, come afterwards;
        copies are not repeated.
        """
        self.read_log()
        self._query.end_snapshots()
        if not self.config.restore_of:  # which another replica has written
            with contextlib.suppress(ServiceUnavailable):  # then nobody knows
                self._give_up_unreadable([stage.participant.read_below(nodes.UNREADABLE) for stage in self.stages])
        self._go_on(self._query.stop_for_the_next())

    def _go_on(self, unfinished: Sequence[Unfinished], resumed: bool = False) -> None:
        """Begin the next attempt, as ``recover`` says. ``unfinished``: of each stage, what the one before has left.
        ``resumed``: versions behind that may have been used, too.
        """
        self._called = ""  # nobody in the next one has heard of that
        snapshot = self.snapshots.last
        begin = snapshot or self._begun_from
        offsets = begin.offsets if begin else None
        behind = snapshot.version if snapshot else self._first_version
        begins = [_next_version(left, _unknown(left) if resumed else 0) for left in unfinished]
        restore = begin.name if begin else None
        with ThreadPoolExecutor(1) as aside:  # Kafka takes as long to tell as Spark to begin
            there = aside.submit(self.output.require_input, offsets or {})

            def settled() -> None:
                there.result()
                self.revoked = self.revoked.plus(behind, begins[-1].assignment.version)
                self.output.revoke(self.revoked)

            self.config = dataclasses.replace(self.config, attempt=self.config.attempt + 1, restore=restore)
            self._query.start(self.config, begins, offsets, settled)
        _complete_restarts(self.stages, self._say)

    def past(self) -> Past:
        """Give the job's way until now. What slots said of steps of this attempt is in it if there is a snapshot behind
        that, and otherwise in ZooKeeper.

        No snapshot that it has is removed before ``snapshots.journaled`` is told of a later one.
        """
        snapshots = self.snapshots.for_journal()  # first: what was written down before them is in the stages, then
        return Past(
            stages={stage.name: stage.history.with_attempt(stage.log) for stage in self.stages},
            savepoints=list(self.savepoints),
            snapshots=snapshots,
            notes=self.notes_so_far,
            revoked=self.revoked,
            begun_from=self._begun_from,
            first_version=self._first_version,
        )

    def resume(self, past: Past) -> None:
        """Go on with a job that was claimed from another driver, as after the death of the query. ``config``: of an
        attempt that is not older than ``past``. What has happened since then is found in ZooKeeper, also which
        snapshots cannot be read, and nothing more happens there: the version that this driver goes on with is one that
        the other never publishes, and never has, even if ZooKeeper has lost its last seconds.
        """
        self.savepoints, self.notes[:] = past.savepoints, past.notes
        self.snapshots.replace(past.snapshots)
        self.revoked = past.revoked
        self._begun_from, self._first_version = past.begun_from, past.first_version
        self.snapshots.journaled({snapshot.name for snapshot in past.snapshots})
        config = self.config
        attempt = max(config.attempt, newest_attempt(config))
        with _at_root(self.config) as participant:
            for stage in self.stages:
                stage.history = past.stages[stage.name]
            left = [stage.history.find_later(participant, stage.name, attempt) for stage in self.stages]
            roots = [nodes.of_stage(n, stage.name) for n in attempts(participant, config.job) for stage in self.stages]
            with contextlib.suppress(ServiceUnavailable):
                self._give_up_unreadable([participant.read_below(nodes.UNREADABLE.below(root)) for root in roots])
        tasks = {  # a restart that was under way may have led to more
            each.stage: max(each.slots, *(owner + 1 for owner in of.assignment.owner))
            for each, of in zip(config.chain(), left, strict=True)
        }
        self.config = dataclasses.replace(config.with_slots(tasks), attempt=attempt)
        self._go_on(left, resumed=True)

    def _give_up_unreadable(self, said: Iterable[Mapping[str, nodes.Unreadable]]) -> None:
        """Give up the newest snapshot, and without one the savepoint of a restart, as long as slots have ``said`` that
        it is damaged, and it is. That a slot has not read its part says nothing: it may have been killed.
        """
        store = SavepointStore(self.config.endpoints, self.config.job)
        why = {each.name: each.why for some in said for each in some.values()}
        while (last := self.snapshots.last or self._begun_from) and last.name in why and is_damaged(store, last.name):
            if not self.snapshots.last:
                self._begun_from, self._first_version = None, NO_VERSION
            self.snapshots.replace(self.snapshots.newest[:-1])
            before = self.snapshots.last or self._begun_from
            words = before.name if before else "the beginning of the input"
            self.note(f"{last.name} counts no more: {why[last.name]}; the job goes on from {words}")

    def clean(self) -> None:
        """Remove what the job left in ZooKeeper, MinIO and on disk (its results stay where the run put them).

        After ``end``: it is not asked here whose the job is.
        """
        config = self.config
        self._query.await_writers(config.deadline_s)  # what is still being written would come behind the removal
        for attempt in range(config.attempt + 1):
            shutil.rmtree(self._work / "checkpoints" / f"{config.job}-{attempt}", ignore_errors=True)
        store = SavepointStore(config.endpoints, config.job)
        with contextlib.ExitStack() as stack:  # one service may be away
            stack.callback(store.delete_all)
            participant = stack.enter_context(_at_root(dataclasses.replace(config, epoch=0)))
            folders = [nodes.WRITING.below(nodes.of_stage(config.attempt, each.stage)) for each in config.chain()]
            writing = [each for folder in folders for each in participant.read_below(folder).values() if not each.over]
            participant.withdraw(nodes.ALL)
        if writing:  # in a process that finds out with its next word, and until then writes behind the removal
            time.sleep(2 * SAY_S)
            store.delete_all()

    def read_log(self) -> None:
        """Read the last protocol events of the attempt into ``log``, of slots and routers as far as they answer."""
        for stage in self.stages:
            if stage.log is not None:
                events = stage.ask.read_log(self._query.alive)
                self.log += events if len(self.stages) == 1 else [event.within(stage.name) for event in events]

    def call_savepoint(self, at_us: int = 0) -> int:
        """Let routers begin with the next ``savepoint``; see ``Questions.call_savepoint``."""
        name = f"{self.config.attempt}-{secrets.token_hex(3)}"
        self._say(Doing(Activity.SAVEPOINT))
        self._query.end_snapshots()  # nothing goes on behind this one
        epoch = self.stages[0].ask.call_savepoint(name, at_us)
        self._called = name  # otherwise routers were told that it does not come
        return epoch

    def savepoint(self) -> Savepoint:
        """Bring all routers to a barrier, write the state down, commit. Afterwards the slots emit nothing more.

        The barriers come behind all that is on its way, which may be much: the deadline is for silence, and begins
        anew with each answer and each result, and while a slot writes. The last result of every slot has come out at
        the end.
        """
        if not self._called:
            self.call_savepoint()
        config, name, self._called = self.config, self._called, ""
        manifest = SavepointManifest(config.workload)
        for stage in self.stages:
            said = stage.ask.saved(name, f"savepoint {name} of {stage.name}", lambda: self.output.received)
            manifest.add(stage.name, said, stage.assignment)
        store = SavepointStore(config.endpoints, config.job)
        store.commit(name, manifest)
        savepoint = Savepoint(name, manifest.offsets, manifest.unit_bytes)
        self.savepoints.append(savepoint)
        last = self.stages[-1]
        sealed = StateWritten(last.name, name)
        self.output.await_slots(range(last.config.slots), sealed, self.check, config.replica)
        return savepoint


def _at_root(config: JobConfig) -> contextlib.closing[Coordination]:
    """A place in ZooKeeper, at the root of the whole job; what is written there needs the epoch, if there is one."""
    root, epoch = nodes.of_job(config.job), Epoch(config.job, config.epoch) if config.epoch else None
    return contextlib.closing(Coordination(config.endpoints.zookeeper, root, config.token, epoch))


def newest_attempt(config: JobConfig) -> int:
    """The number of a claimed job's newest attempt, as ZooKeeper has it. Raises ServiceUnavailable if it has none."""
    with _at_root(config) as participant:
        participant.require_epoch()
        if begun := attempts(participant, config.job):
            return max(begun)
    raise ServiceUnavailable(f"ZooKeeper has nothing of job {config.job}: it cannot be resumed")


def _complete_restarts(stages: Sequence[LedStage], say: Callable[[Doing], None]) -> None:
    """Write down when all state was there of the restarts that led to this attempt, or to one that died before."""
    under_way = [
        (stage, record)
        for stage in stages
        for record in stage.history.records
        if record.restarts and record.outcome == "under way"
    ]
    if not under_way:
        return
    say(Doing(Activity.RESTORING))
    came = {stage.name: _came(stage) for stage in stages}
    say(Doing(Activity.RESTORED))
    for stage, record in under_way:
        record.complete_restart(came[stage.name])


def _came(stage: LedStage) -> dict[int, tuple[UnitCame, ...]]:
    """Return what each slot has restored; all units, and now, if the attempt began without any state."""
    if stage.config.restore is None:
        return all_came(stage.assignment, now_us())
    return {slot: said.units for slot, said in stage.ask.await_restored().items()}


def forget_attempts(config: JobConfig) -> None:
    """Remove what ZooKeeper has of attempts before the last one, unless it is away. Whoever resumes the job asks for
    the newest that has begun, and for restarts that no journal has.
    """
    with contextlib.suppress(ServiceUnavailable), _at_root(config) as participant:
        for attempt in attempts(participant, config.job):
            if attempt < config.attempt - 1:
                participant.withdraw(nodes.of_attempt(attempt))


def _unknown(left: Unfinished) -> int:
    """Count the versions behind the last known one that another driver may have used."""
    return max(GAP, now_us() - left.assignment.version)


def _next_version(left: Unfinished, gap: int = 0) -> Unfinished:
    assignment = left.assignment
    return dataclasses.replace(left, assignment=Assignment(Version(assignment.version + gap + 1), assignment.owner))
