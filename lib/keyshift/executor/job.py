"""One job: a query, its coordinator, its savepoints; possibly several attempts, each a new query from a savepoint."""

import contextlib
import dataclasses
import queue
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from keyshift.errors import MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.executor import protocol_logs
from keyshift.executor.config import JobConfig
from keyshift.executor.leader import Coordinator, StepRecord, Wish
from keyshift.executor.savepoint import SavepointStore
from keyshift.executor.spark import start_query
from keyshift.executor.zookeeper import Coordination
from keyshift.keys import Assignment, Move
from keyshift.runtime.protocol_log import Event
from keyshift.waiting import wait_until

CHECK_S = 0.2  # between looks at whether the query lives, while something is awaited
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A committed savepoint: where each router continues, and how much state it holds."""

    name: str
    offsets: dict[int, int]
    state_bytes: int
    unit_bytes: dict[int, int]


class Job:
    """Starts and stops queries and moves their state. Not thread-safe: one controlling thread."""

    def __init__(self, spark: SparkSession, config: JobConfig, work: Path, batch_s: float) -> None:
        self.config = config
        self._spark = spark
        self._work = work
        self._batch_s = batch_s
        self._query: StreamingQuery | None = None
        self._coordination: Coordination | None = None
        self._coordinator: Coordinator | None = None
        self._begun_from: Savepoint | None = None
        self.assignments: list[Assignment] = []  # every version that routers were ever told to use
        self.begins: list[int] = []  # the version that each attempt began with
        self.records: list[StepRecord] = []  # every step that was begun
        self.troubles: list[str] = []  # one line for each migration that did not go as planned, and each death
        self.log: list[Event] = []  # what ``read_log`` has read, one attempt behind the other
        self.revoked: set[int] = set()  # versions of attempts that died: what came out under them counts for nothing

    @property
    def assignment(self) -> Assignment:
        """The newest assignment."""
        return self._coordinator.assignment if self._coordinator else self.assignments[-1]

    def start(self, assignment: Assignment, offsets: dict[int, int] | None = None) -> None:
        """Start the query. It is ready when the collector has seen every slot's ready marker."""
        config = self.config
        self.begins.append(assignment.version)
        self._coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self._coordination.publish("assignment", assignment.to_json() | {"paused": []})
        self._coordinator = Coordinator(self._coordination, config.job, assignment, config.deadline_s)
        checkpoint = self._work / "checkpoints" / f"{config.job}-{config.attempt}"
        self._query = start_query(self._spark, config, checkpoint, self._batch_s, offsets)

    def check(self) -> None:
        """Raises QueryDied with the first telling line if the query has died, ServiceUnavailable without ZooKeeper."""
        if self._query is None:
            return
        if not self._query.isActive:
            error = self._query.exception()
            raise QueryDied(f"the Spark query has ended: {telling_line(str(error)) if error else 'stopped'}")
        assert self._coordination is not None
        self._coordination.check()

    def serve(self, wishes: list[Wish], until_s: float, say: Say, check: Callable[[], None]) -> None:
        """Let the query run until ``until_s`` (monotonic seconds) and migrate when it is wished; see ``Coordinator``.

        ``check`` is called now and then and may raise.
        """
        assert self._coordinator is not None
        self._coordinator.serve(wishes, until_s, say, check)

    def cancel(self) -> None:
        """Take back the steps of migrations that have not begun, while in ``serve``."""
        assert self._coordinator is not None
        self._coordinator.cancel()

    def measure(self) -> dict[int, dict[str, Any]]:
        """What each slot has seen since the attempt began: ``seconds``, ``records`` (rows of unit, count), and bytes.

        Raises MigrationFailed if a slot does not answer.
        """
        assert self._coordination is not None
        name = secrets.token_hex(3)
        self._coordination.publish("measure", {"id": name})
        return self._answers(f"measured/{name}", set(range(self.config.slots)), "measure")

    def read_log(self) -> None:
        """Read the last protocol events of the attempt into ``log``, of slots and routers as far as they answer."""
        if self._coordination is None or self._coordinator is None or self._query is None:
            return
        with contextlib.suppress(ServiceUnavailable):  # then nobody answers
            places, steps = self.config.slots + self.config.routers, self._coordinator.records.values()
            self.log += protocol_logs.gather(self._coordination, places, steps, self._query.isActive)

    def copy(self, copies: tuple[Move, ...], every_s: float, lag_keys: int, whole: bool) -> str:
        """Keep copies of units at other slots from now on (unit, owner, holder); gives a name to ask about them by."""
        assert self._coordination is not None
        name = secrets.token_hex(3)
        rows = [[move.unit, move.source, move.destination] for move in copies]
        order = {"id": name, "copies": rows, "every_s": every_s, "lag_keys": lag_keys, "whole": whole}
        self._coordination.publish("copies", order)
        return name

    def await_copies(self, name: str, owners: set[int]) -> dict[int, dict[str, Any]]:
        """Until the copies of all units of ``owners`` are close; what each owner measured. Raises MigrationFailed."""
        return self._answers(f"copied/{name}", owners, "copying")

    def _answers(self, path: str, slots: set[int], what: str) -> dict[int, dict[str, Any]]:
        assert self._coordination is not None
        self._await_children(path, set(map(str, slots)), what)
        return {int(slot): answer for slot, answer in sorted(self._coordination.read_below(path).items())}

    def await_restored(self) -> list[dict[str, Any]]:
        """After ``restart``: wait until every slot has read its state; what each slot measured.

        Raises MigrationFailed after the deadline, ServiceUnavailable if the query dies.
        """
        assert self._coordination is not None
        return list(self._answers("restored", set(range(self.config.slots)), "the restore").values())

    def _await_children(
        self, path: str, wanted: set[str], what: str, progress: Callable[[], object] = lambda: None
    ) -> None:
        assert self._coordination is not None
        answered: queue.Queue[set[str]] = queue.Queue()

        def changed(names: list[str]) -> bool:
            answered.put(set(names))
            return not wanted <= set(names)  # then nobody has to look any more

        self._coordination.watch_children(path, changed)
        missing = wanted

        def all_there() -> bool:
            nonlocal missing
            self.check()
            with contextlib.suppress(queue.Empty):
                missing = wanted - answered.get(timeout=CHECK_S)
            return not missing

        if not wait_until(all_there, self.config.deadline_s, 0.0, lambda: (missing, progress())):
            raise MigrationFailed(
                f"{what}: {', '.join(sorted(missing))} did not answer within {self.config.deadline_s:g} s"
            )

    def savepoint(self, say: Say, progress: Callable[[], object] = lambda: None) -> Savepoint:
        """Bring all routers to a barrier, write the state down, commit. Afterwards the slots emit nothing more.

        The barriers come behind all that is on its way, which may be much: the deadline is for silence, and begins
        anew with each answer, and while what ``progress`` gives changes. Raises MigrationFailed, naming who is missing,
        after the deadline; ServiceUnavailable if the query dies.
        """
        config, coordination = self.config, self._coordination
        assert coordination is not None
        name = f"{config.attempt}-{secrets.token_hex(3)}"
        say("savepoint")
        coordination.publish("savepoint", {"id": name, "behind": "stop"})
        wanted = {f"router-{n}" for n in range(config.routers)} | {f"slot-{n}" for n in range(config.slots)}
        self._await_children(f"savepoints/{name}", wanted, f"savepoint {name}", progress)
        answers = coordination.read_below(f"savepoints/{name}")
        offsets = {n: int(answers[f"router-{n}"]["offset"]) for n in range(config.routers)}
        places = {n: answers[f"slot-{n}"]["places"] for n in range(config.slots)}
        manifest = {"offsets": offsets, "assignment": self.assignment.to_json(), "places": places}
        SavepointStore(config.endpoints, config.job).commit(name, manifest)
        unit_bytes = {row[0]: row[3] for rows in places.values() for row in rows}
        return Savepoint(name, offsets, sum(unit_bytes.values()), unit_bytes)

    def stop(self) -> None:
        """Stop the query where it is and leave ZooKeeper. Safe to call twice."""
        if self._coordinator:
            self.assignments += self._coordinator.history
            with contextlib.suppress(ServiceUnavailable):  # then there are fewer measurements
                self._coordinator.read_acknowledgements()
            self.records += self._coordinator.records.values()
            self.troubles += self._coordinator.troubles
            self._coordinator = None
        if self._query is not None:
            query, self._query = self._query, None
            query.stop()
        if self._coordination is not None:
            self._coordination.close()
            self._coordination = None

    def restart(self, savepoint: Savepoint, assignment: Assignment, slots: int) -> None:
        """Start the next attempt from a savepoint, with another number of slots."""
        self.config = dataclasses.replace(
            self.config, attempt=self.config.attempt + 1, slots=slots, restore=savepoint.name
        )
        self._begun_from = savepoint
        self.start(assignment, savepoint.offsets)

    def recover(self) -> None:
        """After the death of the query: the next attempt, from where the one that died had begun.

        That is the savepoint it was started from, or else the beginning of the input. The newest assignment holds,
        as every unit is made anew wherever it belongs; steps that had not switched are not repeated.
        """
        newest = self.assignment
        first = len(self.assignments)
        self.read_log()
        self.stop()
        self.revoked.update(assignment.version for assignment in self.assignments[first:])
        self.config = dataclasses.replace(self.config, attempt=self.config.attempt + 1)
        self.start(Assignment(newest.version + 1, newest.owner), self._begun_from.offsets if self._begun_from else None)

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


def telling_line(text: str) -> str:
    """The line of a Spark error that says what happened: the last Python exception in it, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.startswith("keyshift.errors.") or "Error:" in line]
    return (python[-1] if python else lines[0])[:400]
