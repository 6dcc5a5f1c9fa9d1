"""One job: a query, its coordinator, its savepoints; possibly several attempts, each a new query from a savepoint."""

import contextlib
import dataclasses
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from keyshift.clock import now_us
from keyshift.errors import QueryDied, ServiceUnavailable
from keyshift.executor import protocol_logs
from keyshift.executor.config import JobConfig
from keyshift.executor.faults import Fault
from keyshift.executor.inquiry import answers
from keyshift.executor.leader import Coordinator, MakeSteps
from keyshift.executor.savepoint import Savepoint, SavepointStore, manifest_of, participants
from keyshift.executor.snapshotter import KEPT, Said, Snapshot, Snapshotter
from keyshift.executor.spark import start_query, telling_line
from keyshift.executor.zookeeper import Coordination
from keyshift.keys import Assignment, Mode, Move, Step, UnitId
from keyshift.protocol.record import StepRecord
from keyshift.runtime.protocol_log import Event
from keyshift.waiting import wait_until

SETTLE_S = 10.0  # until slots that were told that a unit has gone for good let go of its keys
CHECK_S = 0.2  # between two looks at them


@dataclass(frozen=True)
class Past:
    """The way of a job until now, for ``Job.resume`` in another process. The fields are those of ``Job``."""

    assignments: list[Assignment]
    begins: list[int]
    records: list[StepRecord]
    savepoints: list[Savepoint]
    snapshots: list[Snapshot]
    troubles: list[str]
    revoked: set[int]
    begun_from: Savepoint | None
    first_version: int


class Output(Said, Protocol):
    """The results topic, as far as a job has to know what has come out of it; see ``traffic.traffic.Traffic``."""

    @property
    def received(self) -> int:
        """So much has come out that counts: grows as long as something does."""

    def await_slots(self, slots: Collection[int], said: Mapping[str, Any], check: Callable[[], None]) -> None:
        """Until a marker that has what ``said`` has has come from each slot."""

    def revoke(self, versions: Collection[int]) -> None:
        """What came out under ``versions`` counts for nothing: it comes once more."""


class Job:
    """Starts and stops queries and moves their state.

    ``request``, ``cancel``, ``measure`` and what says so are for any thread, all else is for one controlling thread.
    ``say`` hears the phase. Methods that wait raise QueryDied if the query dies, MigrationFailed if a slot does not
    answer in time, and ServiceUnavailable if a service is not there any more.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: JobConfig,
        work: Path,
        batch_s: float,
        output: Output,
        say: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.config = config
        self._spark, self._work, self._batch_s, self._output, self._say = spark, work, batch_s, output, say
        self._query: StreamingQuery | None = None
        self._coordination: Coordination | None = None
        self._coordinator: Coordinator | None = None
        self._leader: threading.Thread | None = None
        self._failure: BaseException | None = None  # what ended the coordinator
        self._begun_from: Savepoint | None = None
        self._first_version = 0  # of the attempt that began from there
        self._snapshotter: Snapshotter | None = None
        self._measuring = threading.Lock()  # a question hides the one before it
        self._copying: tuple[str, set[int]] | None = None  # the name of the order, and the owners of what is copied
        self.assignments: list[Assignment] = []  # every version that routers were ever told to use
        self.begins: list[int] = []  # the version that each attempt began with
        self.records: list[StepRecord] = []  # every step that was begun
        self.savepoints: list[Savepoint] = []  # all that were committed
        self.snapshots: list[Snapshot] = []  # all that were complete
        self.troubles: list[str] = []  # one line for each migration that did not go as planned, and each death
        self.log: list[Event] = []  # what ``read_log`` has read, one attempt behind the other
        self.revoked: set[int] = set()  # versions of attempts that died: what came out under them counts for nothing

    @property
    def assignment(self) -> Assignment:
        """The newest assignment; for any thread."""
        coordinator = self._coordinator
        return coordinator.assignment if coordinator else self.assignments[-1]

    @property
    def troubles_so_far(self) -> list[str]:
        """``troubles``, with those of the attempt under way; for any thread."""
        coordinator = self._coordinator
        return [*self.troubles, *(coordinator.troubles if coordinator else ())]

    @property
    def under_way(self) -> list[StepRecord]:
        """The steps that have begun and are not over; for any thread."""
        coordinator = self._coordinator
        records = list(coordinator.records.values()) if coordinator else []
        return [record for record in records if record.outcome == "under way"]

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, assignment: Assignment, offsets: dict[int, int] | None = None) -> None:
        """Start the query and lead it, until every router and slot has put a first row through."""
        config = self.config
        self.begins.append(assignment.version)
        self._coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self._coordination.publish("assignment", assignment.to_json() | {"paused": [], "snapshot": ""})
        self._coordinator = self._new_coordinator(assignment)
        self._failure, self._copying = None, None  # copies do not outlive an attempt
        checkpoint = self._work / "checkpoints" / f"{config.job}-{config.attempt}"
        self._query = start_query(self._spark, config, checkpoint, self._batch_s, offsets)
        self._leader = threading.Thread(target=self._try_to_lead, name="keyshift-leader", daemon=True)
        self._leader.start()
        ready = {"marker": "ready", "attempt": config.attempt}
        self._output.await_slots(range(config.slots), ready, self.check)
        if config.snapshot_s:
            self._snapshotter = Snapshotter(
                config, self._coordination, self._led, self._output, self.snapshots, self.troubles.append
            )

    def _new_coordinator(self, assignment: Assignment) -> Coordinator:
        assert self._coordination is not None
        config = self.config
        return Coordinator(self._coordination, config.job, assignment, config.deadline_s, config.slots, self._say)

    def _try_to_lead(self) -> None:
        try:
            self._lead()
        except BaseException as error:  # the controlling thread's now
            self._failure = error

    def _lead(self) -> None:
        assert self._coordinator is not None and self._coordination is not None
        self._coordinator.lead(self._coordination.check)

    def check(self) -> None:
        """Raises QueryDied with the first telling line if the query has died, and whatever ended the coordinator."""
        if self._query is None:
            return
        if not self._query.isActive:
            error = self._query.exception()
            raise QueryDied(f"the Spark query has ended: {telling_line(str(error)) if error else 'stopped'}")
        if self._failure is not None:
            raise self._failure
        assert self._coordination is not None
        self._coordination.check()

    def stop(self) -> None:
        """Stop the query where it is and leave ZooKeeper. Safe to call twice."""
        self._end_snapshots()
        if self._coordinator and self._leader:
            self._coordinator.end()
            self._leader.join()
            self._leader = None
        coordinator, self._coordinator = self._coordinator, None
        if coordinator:
            self.assignments += coordinator.history
            with contextlib.suppress(ServiceUnavailable):  # then there are fewer measurements
                coordinator.read_acknowledgements()
            self.records += coordinator.records.values()
            self.troubles += coordinator.troubles
        if self._query is not None:
            self._query.stop()
        if coordinator:
            coordinator.await_planner()  # which sees that the query has ended
        self._query = None
        if self._coordination is not None:
            self._coordination.close()
            self._coordination = None

    def restart(self, target: Assignment, slots: int = 0) -> None:
        """Savepoint, stop, start anew under ``target``, with as many slots as it has, and at least ``slots``.

        Every unit is written and read again, whether it moves or not: it is one step in ``records``.
        """
        current, begun_us = self.assignment, now_us()
        savepoint = self.savepoint()
        aligned_us = now_us()
        self._say("stopping")
        self.stop()
        stopped_us = now_us()
        self._say("starting anew")
        attempt, slots = self.config.attempt + 1, max(slots, *(owner + 1 for owner in target.owner))
        self.config = dataclasses.replace(self.config, attempt=attempt, slots=slots, restore=savepoint.name)
        self._begun_from, self._first_version, self.snapshots = savepoint, current.version + 1, []
        self.start(Assignment(self._first_version, target.owner), savepoint.offsets)
        self._say("restoring")
        restored = self._by_slot("restored", set(range(slots)), "the restore")
        self._say("restored")
        self.records.append(_restarted(current, target, savepoint, restored, begun_us, aligned_us, stopped_us))

    def recover(self) -> None:
        """After the death of the query: the next attempt, from the newest complete snapshot, and what came out behind
        it is revoked.

        Without one, from the savepoint that the job was started from, or else the beginning of the input. A snapshot
        that the attempt that died could not read counts no more. The newest assignment holds, as every unit is made
        anew wherever it belongs; steps that had not switched are not repeated, nor are copies.
        """
        newest = self.assignment
        self.read_log()
        self._end_snapshots()
        if self._restoring():
            self.snapshots.pop()
        self.stop()
        begin = self.snapshots[-1] if self.snapshots else self._begun_from
        behind = self.snapshots[-1].version if self.snapshots else self._first_version
        self.revoked.update(each.version for each in self.assignments if each.version >= behind)
        self._output.revoke(self.revoked)
        self.config = dataclasses.replace(
            self.config, attempt=self.config.attempt + 1, restore=begin.name if begin else None
        )
        self.start(Assignment(newest.version + 1, newest.owner), begin.offsets if begin else None)

    def past(self) -> Past:
        """The way until now. What slots said of steps of this attempt is not in it, but in ZooKeeper."""
        coordinator = self._coordinator
        history = list(coordinator.history) if coordinator else []
        records = list(coordinator.records.values()) if coordinator else []
        return Past(
            assignments=[*self.assignments, *history],
            begins=list(self.begins),
            records=[*self.records, *records],
            savepoints=list(self.savepoints),
            snapshots=list(self.snapshots[-KEPT:]),
            troubles=self.troubles_so_far,
            revoked=set(self.revoked),
            begun_from=self._begun_from,
            first_version=self._first_version,
        )

    def resume(self, past: Past) -> None:
        """Go on with a job whose driver is gone, as after the death of the query. ``config``: of an attempt that is not
        older than ``past``. What has happened since then is found in ZooKeeper.
        """
        self.assignments, self.begins, self.records = past.assignments, past.begins, past.records
        self.savepoints, self.snapshots, self.troubles = past.savepoints, past.snapshots, past.troubles
        self.revoked, self._begun_from, self._first_version = past.revoked, past.begun_from, past.first_version
        attempt, newest = self._left_behind_by_driver()
        known = {each.version for each in self.assignments}
        behind = self.snapshots[-1].version if self.snapshots else self._first_version
        self.revoked.update(range(behind, newest.version + 1))
        if newest.version not in known:
            self.assignments.append(newest)
        self._output.revoke(self.revoked)
        begin = self.snapshots[-1] if self.snapshots else self._begun_from
        self.config = dataclasses.replace(self.config, attempt=attempt + 1, restore=begin.name if begin else None)
        self.start(Assignment(newest.version + 1, newest.owner), begin.offsets if begin else None)

    def _left_behind_by_driver(self) -> tuple[int, Assignment]:
        """The last attempt and its newest assignment; ``records`` get what slots have said."""
        config = self.config
        nodes = Coordination(config.endpoints.zookeeper, f"/keyshift/{config.job}", config.token)
        try:
            attempt = max((int(name) for name in nodes.children("") if name.isdigit()), default=None)
            if attempt is None:
                raise ServiceUnavailable(f"ZooKeeper has nothing of job {config.job}: it cannot be resumed")
            root = f"{attempt}/{config.stage}"
            for record in self.records:
                if not record.acknowledgements:
                    for name, said in nodes.read_below(f"{root}/acks/{record.version}").items():
                        phase, slot = name.rsplit("-", 1)
                        record.acknowledgements[phase, int(slot)] = said
            return attempt, Assignment.from_json(nodes.require(f"{root}/assignment"))
        finally:
            nodes.close()

    def _end_snapshots(self) -> None:
        """What is not complete by now never is."""
        if self._snapshotter is not None:
            self._snapshotter.end()
            self._snapshotter = None

    def _restoring(self) -> bool:
        """Whether the attempt has begun from the newest snapshot, and not every slot has read its part of it."""
        if self._coordination is None or not self.snapshots or self.snapshots[-1].name != self.config.restore:
            return False
        with contextlib.suppress(ServiceUnavailable):  # then nobody knows
            return len(self._coordination.children("restored")) < self.config.slots
        return False

    def clean(self) -> None:
        """Remove what the job left in ZooKeeper, MinIO and on disk (its results stay where the run put them)."""
        config = self.config
        coordination = Coordination(config.endpoints.zookeeper, f"/keyshift/{config.job}", config.token)
        try:
            coordination.withdraw("")
        finally:
            coordination.close()
        SavepointStore(self.config.endpoints, self.config.job).delete_all()
        for attempt in range(self.config.attempt + 1):
            shutil.rmtree(self._work / "checkpoints" / f"{self.config.job}-{attempt}", ignore_errors=True)

    def hit(self, fault: Fault) -> None:
        """``fault`` hits the process of the first slot now."""
        self._say(f"fault: {fault.action}")
        self._publish("fault", {"slot": 0, "action": fault.action, "seconds": fault.seconds, "at_us": now_us()})

    def read_log(self) -> None:
        """Read the last protocol events of the attempt into ``log``, of slots and routers as far as they answer."""
        if self._coordination is None or self._coordinator is None or self._query is None:
            return
        with contextlib.suppress(ServiceUnavailable):  # then nobody answers
            places, steps = self.config.slots + self.config.routers, self._coordinator.records.values()
            self.log += protocol_logs.gather(self._coordination, places, steps, self._query.isActive)

    # -- moving state -------------------------------------------------------------------------------------------------

    def request(self, make_steps: MakeSteps, replace: bool = False) -> None:
        """Ask for a migration; see ``Coordinator.request``. Raises ServiceUnavailable between two attempts."""
        self._led().request(make_steps, replace)

    def cancel(self) -> None:
        """Take back the steps of migrations that have not begun. Raises ServiceUnavailable between two attempts."""
        self._led().cancel()

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet; for any thread."""
        return self._coordinator is not None and self._coordinator.busy

    def _led(self) -> Coordinator:
        if (coordinator := self._coordinator) is None:
            raise ServiceUnavailable(f"job {self.config.job} is not running now: try again when it is")
        return coordinator

    def savepoint(self) -> Savepoint:
        """Bring all routers to a barrier, write the state down, commit. Afterwards the slots emit nothing more.

        The barriers come behind all that is on its way, which may be much: the deadline is for silence, and begins
        anew with each answer and each result. The last result of every slot has come out at the end.
        """
        config = self.config
        name = f"{config.attempt}-{secrets.token_hex(3)}"
        self._say("savepoint")
        self._end_snapshots()  # nothing goes on behind this one
        self._publish("savepoint", {"id": name})
        wanted = participants(config.routers, config.slots)
        said = self._answers(f"savepoints/{name}", wanted, f"savepoint {name}", lambda: self._output.received)
        manifest = manifest_of(said, self.assignment)
        SavepointStore(config.endpoints, config.job).commit(name, manifest)
        unit_bytes = {row[0]: row[3] for rows in manifest["places"].values() for row in rows}
        savepoint = Savepoint(name, manifest["offsets"], sum(unit_bytes.values()), unit_bytes)
        self.savepoints.append(savepoint)
        self._output.await_slots(range(config.slots), {"marker": "sealed", "savepoint": name}, self.check)
        return savepoint

    def copy(self, copies: tuple[Move, ...], every_s: float, lag_keys: int, whole: bool) -> None:
        """Keep copies of units at other slots from now on (unit, owner, holder)."""
        name = secrets.token_hex(3)
        rows = [[move.unit, move.source, move.destination] for move in copies]
        order = {"id": name, "copies": rows, "every_s": every_s, "lag_keys": lag_keys, "whole": whole}
        self._publish("copies", order)
        self._copying = name, {move.source for move in copies}

    def await_copies(self) -> dict[int, dict[str, Any]] | None:
        """Until the copies ordered last are close; what each owner measured. None if there are none."""
        if self._copying is None:
            return None
        name, owners = self._copying
        return self._by_slot(f"copied/{name}", owners, "copying")

    # -- questions ----------------------------------------------------------------------------------------------------

    def measure(self) -> dict[int, dict[str, Any]]:
        """What each slot has seen since the attempt began: ``seconds``, ``records`` (rows of unit, count), bytes."""
        with self._measuring:
            name = secrets.token_hex(3)
            self._publish("measure", {"id": name})
            measured = self._by_slot(f"measured/{name}", set(range(self.config.slots)), "measure")
            assert self._coordination is not None
            self._coordination.withdraw(f"measured/{name}")  # a job that lasts is asked often
            return measured

    def left_behind(self) -> set[tuple[int, int]]:
        """Units, and slots that have keys of them which are elsewhere, too. They are told soon that they may go."""
        left: set[tuple[int, int]] = set()

        def settled() -> bool:
            nonlocal left
            left = {(unit, slot) for slot, measured in self.measure().items() for unit in measured["left_behind"]}
            return not left

        wait_until(settled, SETTLE_S, CHECK_S)
        return left

    def _by_slot(self, path: str, slots: set[int], what: str) -> dict[int, dict[str, Any]]:
        return {int(slot): said for slot, said in sorted(self._answers(path, set(map(str, slots)), what).items())}

    def _answers(
        self, path: str, wanted: set[str], what: str, progress: Callable[[], object] = lambda: None
    ) -> dict[str, Any]:
        assert self._coordination is not None
        return answers(self._coordination, path, wanted, what, self.config.deadline_s, self.check, progress)

    def _publish(self, path: str, value: dict[str, Any]) -> None:
        assert self._coordination is not None
        self._coordination.publish(path, value)


def _restarted(
    before: Assignment,
    after: Assignment,
    savepoint: Savepoint,
    restored: dict[int, dict[str, Any]],
    begun_us: int,
    aligned_us: int,
    stopped_us: int,
) -> StepRecord:
    """A restart as one step, in which every unit leaves its slot and arrives at one."""
    sizes = sorted(savepoint.unit_bytes.items())
    moves = tuple(Move(UnitId(unit), before.owner[unit], after.owner[unit]) for unit, _ in sizes)
    drained_us = max(installed_us for answer in restored.values() for _, _, installed_us in answer["units"])
    said: dict[tuple[str, int], dict[str, Any]] = {
        ("installed", slot): {"units": answer["units"], "drained_us": drained_us} for slot, answer in restored.items()
    }
    for slot in set(before.owner):
        units = [[unit, size, aligned_us, stopped_us] for unit, size in sizes if before.owner[unit] == slot]
        said["released", slot] = {"units": units}
    step, version = Step(moves, Mode(gate="query")), before.version + 1
    return StepRecord(version, step, begun_us, begun_us, begun_us, drained_us, "complete", said)
