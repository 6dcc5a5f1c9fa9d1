"""Takes a snapshot of a job every few seconds while it runs; see ``wire.savepoint`` for what there is of one."""

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from keyshift.clock import now_us
from keyshift.driver.completed import CompletedSnapshot, CompletedSnapshots
from keyshift.driver.leader import Coordinator
from keyshift.driver.stage import LedStage
from keyshift.driver.step_log import StepLog
from keyshift.model.errors import Deposed, MigrationFailed, NotThere, ServiceUnavailable
from keyshift.model.keys import Version, Versions
from keyshift.model.markers import StateWritten
from keyshift.model.records import SnapshotRecord
from keyshift.runtime.snapshots import WHOLE
from keyshift.traffic.traffic import Traffic
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.nodes import Saved, SlotSaved
from keyshift.wire.savepoint import Savepoint, SavepointManifest, SavepointStore

LOOK_S = 0.05
# Names of snapshots and of captures begin so, and those of savepoints do not.
SNAPSHOT_PREFIX, CAPTURE_PREFIX = "snapshot-", "capture-"


class _Over(Exception):
    """The attempt ends, or this snapshot does."""


class Snapshotter:
    """A thread that takes the snapshots of one attempt. ``completed`` gets those that are complete, and ``note`` one
    line if some fail, until one is complete. ``revoked``: versions whose results count for nothing. ``forget`` is
    called once, when a journal on disk has what was before this attempt.

    It begins at the last stage. When the routers of a stage know what is to come, the stage before begins: a slot that
    has come to the snapshot finds there what it has to say as a router.

    A snapshot may take as long as it is being written. The deadline is for silence; and none is requested while a slot
    writes, be it one that was given up. If the store has lost what one refers to, the next has all state anew.
    """

    def __init__(
        self,
        config: JobConfig,
        stages: Sequence[LedStage],
        output: Traffic,
        completed: CompletedSnapshots,
        note: Callable[[str], None],
        revoked: Versions,
        forget: Callable[[], None],
    ) -> None:
        self._config, self._stages, self._output = config, stages, output
        self._completed, self._note, self._revoked, self._forget = completed, note, revoked, forget
        self._store = SavepointStore(config.endpoints, config.job)
        self._over = threading.Event()
        self._completing = threading.Lock()  # held while one counts that is complete, and for the end
        self._number, self._end_of_name = 0, ""
        # How many were complete then, and of which steps all was written down before, by stage. It stays until a
        # journal has that, however many more come while the journal is written.
        self._noted: tuple[int, dict[str, set[Version]]] | None = None
        # What was told, and goes on: how snapshots fail, and that older ones cannot be removed. A store may be away for
        # hours, and of a live job each note is in the journal, which is written whole for it.
        self._failing, self._staying = set[type[Exception]](), False
        self._failure: BaseException | None = None  # what ended the thread
        self._thread = threading.Thread(target=self._run, name="keyshift-snapshots", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Take no more; what is not complete by now never is."""
        with self._completing:
            self._over.set()

    @property
    def writes(self) -> bool:
        """Whether it may still write something."""
        return self._thread.is_alive()

    def join(self, within_s: float) -> None:
        """Wait until nothing is written any more, after ``end``."""
        self._thread.join(within_s)

    def check(self) -> None:
        """Raises what has ended the thread before ``end``: then no snapshot is taken any more."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(self._config.snapshot_s):
                self._number += 1
                try:
                    self._await_writers()
                    self._clear()
                    name = f"{SNAPSHOT_PREFIX}{self._config.attempt:03d}-{self._number:06d}-{secrets.token_hex(2)}"
                    self._take(name + self._end_of_name)
                except _Over:
                    continue
                except NotThere as error:
                    self._end_of_name = WHOLE
                    self._failed(error, "the job goes on, and writes all of its state anew")
                except (MigrationFailed, ServiceUnavailable) as error:
                    self._failed(error, "the job goes on, the one before counts")
                else:
                    self._end_of_name = ""
                    self._failing.clear()
                    if not self._config.keep_snapshots:
                        self._remove_old()
        except Deposed as error:  # which says enough
            self._failure = error
        except BaseException as error:  # the controlling thread's now, unless the attempt has ended under way
            if not self._over.is_set():
                self._failure = error
                self._note(f"snapshot {self._number}: {type(error).__name__}: {error}; there are no more snapshots")

    def _take(self, name: str) -> None:
        config, written, begun_us = self._config, dict[str, int](), now_us()
        told = {stage.name: stage.led.log.told_by_all.copy() for stage in self._stages}
        manifest = SavepointManifest(config.workload, self._revoked)
        versions = [self._begun(stage, name) for stage in reversed(self._stages)][::-1]
        for stage, version in zip(self._stages, versions, strict=True):
            what, check = f"snapshot {self._number} of {stage.name}", partial(self._check, stage, name)
            said = _answers(stage, name, what, check)
            manifest.add(stage.name, said, stage.led.log.assignment_of(version))
            written[stage.name] = _bytes(said)
        self._await_results(name)
        self._stages[0].participant.require_epoch()
        self._store.commit(name, manifest)
        with self._completing:
            if self._over.is_set():
                return
            unit_bytes = manifest.unit_bytes
            state = {stage: sum(sizes.values()) for stage, sizes in unit_bytes.items()}
            snapshot = CompletedSnapshot(name, versions[-1], manifest.offsets, sum(written.values()), unit_bytes)
            self._completed.add(snapshot, SnapshotRecord(begun_us, now_us(), written, state, name))
            self._noted = self._noted or (len(self._completed.taken), told)

    def _failed(self, error: Exception, then: str) -> None:
        if type(error) not in self._failing:
            self._tell(f"{error}; {then}")
        self._failing.add(type(error))

    def _tell(self, what: str) -> None:
        if not self._over.is_set():
            self._note(f"snapshot {self._number}: {what}")

    def _remove_old(self) -> None:
        """Remove old snapshots from the store."""
        if self._over.is_set():
            return
        kept = self._completed.needed
        try:
            self._stages[0].participant.require_epoch()
            self._store.keep_only(sorted(kept), SNAPSHOT_PREFIX)
            for savepoint in self._completed.superseded:
                self._store.remove_state(savepoint)
                self._completed.removed(savepoint)
        except ServiceUnavailable as error:
            if not self._staying:
                self._tell(f"it is complete, and older ones stay where they are: {error}")
            self._staying = True
        else:
            self._staying = False

    def _await_writers(self) -> None:
        """Wait until nobody writes any more what was given up."""
        while any(not writing.over for stage in self._stages for writing in stage.ask.writers()):
            if self._over.wait(LOOK_S):
                raise _Over

    def _clear(self) -> None:
        """Clear what was said of earlier snapshots: their answers, and what was acknowledged of them.

        Of steps that move something that goes when a journal on disk has it: another process would read here what its
        journal lacks.
        """
        told: dict[str, set[Version]] = {}
        if self._noted and self._noted[0] <= self._completed.on_disk:
            told = self._noted[1]
            self._forget()
            self._forget = lambda: None
        for stage in self._stages:
            _clear_saved(stage, SNAPSHOT_PREFIX)
            clear_acknowledgements(stage, stage.led.log, told.get(stage.name, set()))
        if told:
            self._noted = None

    def _begun(self, stage: LedStage, name: str) -> Version:
        """Request the snapshot of ``stage``, and wait until its routers know: a migration may come first, and be long.

        Gives its version there.
        """
        asked: Coordinator | None = None
        while not self._told(coordinator := stage.led, name):
            if coordinator is not asked and name not in coordinator.log.snapshots:
                asked = coordinator  # with its predecessor a request is gone
                asked.snapshot(name)
            self._check(stage, name)
            self._over.wait(LOOK_S)
        return coordinator.log.snapshots[name]

    def _told(self, coordinator: Coordinator, name: str) -> bool:
        """Whether it has begun there, and its routers know of it if another stage has to begin behind that."""
        version = coordinator.log.snapshots.get(name)
        return version is not None and (len(self._stages) == 1 or coordinator.assignment.version >= version)

    def _await_results(self, name: str) -> None:
        """Wait until all that came before the snapshot has come out: it is not repeated."""
        last = self._stages[-1]
        marker = StateWritten(last.name, name)
        slots = set(range(last.config.slots))

        def there() -> bool:
            self._check(last, name)
            return slots <= self._output.slots_that_said(marker)

        if not wait_until(there, self._config.deadline_s, LOOK_S):
            raise MigrationFailed(f"results did not come out within {self._config.deadline_s:g} s")

    def _check(self, stage: LedStage, name: str) -> None:
        if self._over.is_set():
            raise _Over
        if name in stage.led.log.late_snapshots:
            raise MigrationFailed(f"not every slot of {stage.name} was ready within {self._config.deadline_s:g} s")
        stage.participant.check()


def clear_acknowledgements(stage: LedStage, log: StepLog, needless: Collection[Version]) -> None:
    """Clear what slots have acknowledged of steps that are ``needless``, as the ``log`` has it, and of what is no step
    in the log. What is published stays: a coordinator that takes over waits for it.
    """
    participant = stage.participant
    if (published := participant.read(nodes.STEPS)) is None:
        return
    under_way = dict(published.steps).keys()
    log.read_acknowledgements(participant, under_way=False)
    for version in map(Version, map(int, participant.children(nodes.ALL_ACKS))):
        needed = version in under_way or (version in log.records and version not in needless)
        if version <= published.version and not needed:
            participant.withdraw(nodes.acks(version))


def _clear_saved(stage: LedStage, prefix: str) -> None:
    """Clear what was answered of savepoints whose names begin with ``prefix``."""
    for name in stage.participant.children(nodes.ALL_SAVED):
        if name.startswith(prefix):
            stage.participant.withdraw(nodes.saved(name))


def capture(
    config: JobConfig, stages: Sequence[LedStage], check: Callable[[], None], name: str, end_of_name: str = ""
) -> tuple[Savepoint, dict[str, int]]:
    """Write down the state of a job that works in turns, as it is now, for another replica to go on from. No turn
    changes, and nothing of the job waits for it. One after the other, each under a ``name`` of its own, which begins
    with ``CAPTURE_PREFIX``. Gives how much was written for it, too, in bytes by stage: the rest was there from captures
    before. If the store has lost some of that, there is another one, with all state anew.

    Raises what ``check`` raises, MigrationFailed if somebody does not answer in time, and ServiceUnavailable if a slot
    could not write, or a service is not there.
    """
    begin, name = name, f"{name}-{secrets.token_hex(3)}{end_of_name}"
    stages[0].ask.call_savepoint(name, stops=False)
    manifest, written = SavepointManifest(config.workload), dict[str, int]()
    for stage in stages:
        said = _answers(stage, name, f"capture of {stage.name}", check)
        manifest.add(stage.name, said, stage.assignment)
        written[stage.name] = _bytes(said)
    stages[0].participant.withdraw(nodes.SAVEPOINT)  # all routers have said it: the next one need not ask
    for stage in stages:  # also of those that failed, and answers that came late
        _clear_saved(stage, CAPTURE_PREFIX)
    try:
        SavepointStore(config.endpoints, config.job).commit(name, manifest)
    except NotThere:
        if end_of_name:
            raise
        return capture(config, stages, check, begin, WHOLE)
    return Savepoint(name, manifest.offsets, manifest.unit_bytes, manifest.turns), written


def _bytes(said: Mapping[str, Saved]) -> int:
    """Count the bytes that were written."""
    return sum(answer.bytes for answer in said.values() if isinstance(answer, SlotSaved))


def _answers(stage: LedStage, name: str, what: str, check: Callable[[], None]) -> dict[str, Saved]:
    """The answers of all that take part. Raises ServiceUnavailable if a slot has failed."""
    said = stage.ask.saved(name, what, check=check)
    for who, answer in sorted(said.items()):
        if isinstance(answer, SlotSaved) and answer.failed:
            raise ServiceUnavailable(f"{who} of {stage.name}: {answer.failed}")
    return said
