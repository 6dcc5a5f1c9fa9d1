"""A keyed stage of a job, seen by whoever leads it: its place in ZooKeeper, its coordinator, what was written down."""

import contextlib
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from keyshift.driver.leader import (
    Coordinator,
    CoordinatorDied,
    MakeSteps,
    left_over,
    note_acknowledgements,
    publish_plan,
)
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, Assignments, Move, Step
from keyshift.model.notes import Doing, Note, Phase
from keyshift.model.records import Measured, StepRecord
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.protocol_log import Event
from keyshift.waiting import wait_until
from keyshift.wire import nodes, protocol_logs
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.epoch import Epoch
from keyshift.wire.faults import Fault
from keyshift.wire.inquiry import answers
from keyshift.wire.nodes import Folder, Node

SETTLE_S = 10.0  # until slots that were told that a unit has gone for good let go of its keys
CHECK_S = 0.2  # between two looks at them
Say = Callable[[Doing], None]
T = TypeVar("T")
AtPhase = Callable[["LedStage", str], None]


@dataclass(frozen=True)
class StagePast:
    """The way of a stage until now, for ``LedStage.resume`` in another process. Fields are those of ``LedStage``."""

    assignments: Assignments
    begins: list[int]
    records: list[StepRecord]


@dataclass(frozen=True)
class Unfinished:
    """What an attempt has left to the next one: its newest assignment, under which its slots may have answered; the
    steps of its plan that had not switched; requests that had not begun.
    """

    assignment: Assignment
    steps: Sequence[Step] = ()
    requests: Sequence[MakeSteps] = ()


class LedStage:
    """One stage over all attempts of its job, with a coordinator that leads, and another one if that dies. ``alive()``
    raises if the query has died.

    ``request``, ``cancel``, ``measure`` and what says so are for any thread, all else is for one controlling thread.
    ``notes``: of the job, gets one for each step that did not go as planned. ``say`` hears what is being done. Both
    name the stage if the job has several. Methods that wait raise what ``alive`` raises, MigrationFailed if a slot does
    not answer in time, and ServiceUnavailable if a service is not there any more.
    """

    def __init__(self, config: JobConfig, notes: list[Note], alive: Callable[[], None], say: Say) -> None:
        self.config = config  # of the attempt under way
        self._alive, self._heard = alive, say
        self.doing = Doing(Phase.STEADY)  # what was said last in this attempt; for any thread
        self._coordinator: Coordinator | None = None
        self._leader: threading.Thread | None = None
        self._session: Coordination | None = None  # the leader's own, which ends with it
        self._changing = threading.Lock()  # who leads, and who asks for something
        self._stopping = False
        self._failure: BaseException | None = None  # what ended the coordinator
        self._copying: tuple[str, set[int]] | None = None  # the name of the order, and the owners of what is copied
        self.coordination: Coordination | None = None  # None between two attempts
        self.assignments = Assignments()  # every version that routers were ever told to use
        self.begins: list[int] = []  # the version that each attempt began with
        self.records: list[StepRecord] = []  # every step that was begun
        self._notes = notes
        self._measuring = threading.Lock()  # a question hides the one before it
        self._ended: Coordinator | None = None  # whose planner may still be at work
        self.at_phase: AtPhase = lambda stage, phase: None  # hears from the leader's thread where a step begins

    @property
    def name(self) -> str:
        """As the workload has it."""
        return self.config.stage

    @property
    def assignment(self) -> Assignment:
        """The newest assignment; for any thread."""
        coordinator = self._coordinator
        return coordinator.assignment if coordinator else self.assignments[-1]

    @property
    def new_notes(self) -> list[Note]:
        """Those of the attempt under way; for any thread."""
        coordinator = self._coordinator
        return [self.note(text) for text in coordinator.notes] if coordinator else []

    def note(self, text: str) -> Note:
        """``text`` about this stage."""
        return Note(text, self._called)

    def say(self, doing: Doing) -> None:
        """From now on ``doing`` is what is done with the stage."""
        self.doing = doing
        self._heard(doing._replace(stage=self._called))

    @property
    def _called(self) -> str:
        return self.name if self.config.number or self.config.onward else ""

    @property
    def under_way(self) -> list[StepRecord]:
        """The steps that have begun and are not over; for any thread."""
        coordinator = self._coordinator
        records = list(coordinator.records.values()) if coordinator else []
        return [record for record in records if record.outcome == "under way"]

    @property
    def participant(self) -> Coordination:
        """Its place in ZooKeeper. Raises ServiceUnavailable between two attempts."""
        if (coordination := self.coordination) is None:
            raise ServiceUnavailable(f"job {self.config.job} is not running now: try again when it is")
        return coordination

    # -- life ---------------------------------------------------------------------------------------------------------

    def publish(self, config: JobConfig, left: Unfinished) -> None:
        """Let an attempt begin: from now on its tasks find what they need. Whoever leads it first goes on with what is
        ``left``.
        """
        self.config, assignment = config, left.assignment
        self.begins.append(assignment.version)
        self.coordination = self._new_session()
        self.coordination.begin()
        if left.steps:
            publish_plan(self.coordination, f"of attempt {config.attempt - 1}", left.steps)
        self.coordination.publish(nodes.ASSIGNMENT, PublishAssignment(assignment))
        self._coordinator, self._session = self._elected_next(assignment)
        for make_steps in left.requests:
            self._coordinator.request(make_steps)
        self._stopping, self.doing = False, Doing(Phase.STEADY)
        self._failure, self._copying = None, None  # copies do not outlive an attempt

    def start(self) -> None:
        """Lead, until ``stop``."""
        self._leader = threading.Thread(target=self._try_to_lead, name=f"keyshift-leader-{self.name}", daemon=True)
        self._leader.start()

    def _new_session(self) -> Coordination:
        config = self.config
        return Coordination(config.endpoints.zookeeper, config.root, config.token, Epoch(config.job, config.epoch))

    def _elected_next(self, assignment: Assignment) -> tuple[Coordinator, Coordination]:
        config, session = self.config, self._new_session()
        coordinator = Coordinator(
            session,
            config.job,
            assignment,
            config.deadline_s,
            config.slots,
            self.say,
            lambda phase: self.at_phase(self, phase),
        )
        return coordinator, session

    def _try_to_lead(self) -> None:
        try:
            self._lead()
        except BaseException as error:  # the controlling thread's now
            self._failure = error

    def _lead(self) -> None:
        while True:
            assert self._coordinator is not None and self._session is not None
            try:
                return self._coordinator.lead(self._session.check)
            except CoordinatorDied:
                self._succeed(self._coordinator, self._session)

    def _succeed(self, before: Coordinator, session: Coordination) -> None:
        """Another one is to be elected: from now on it leads."""
        before.await_planner()  # which publishes nothing any more
        session.close()
        coordinator, self._session = self._elected_next(before.assignment)
        with self._changing:
            coordinator.inherit(before)
            self._coordinator = coordinator
            if self._stopping:
                coordinator.end()

    def fail(self, fault: Fault) -> None:
        """``fault`` hits the leader; for any thread. Raises ServiceUnavailable between two attempts."""
        self.led().fail(fault)

    def check(self) -> None:
        """Raises whatever ended the coordinator."""
        if self._failure is not None:
            raise self._failure
        if self.coordination is not None:
            self.coordination.check()

    def end(self) -> None:
        """Lead no more, and write down what came of the attempt. Safe to call twice."""
        if self._coordinator and self._leader:
            with self._changing:
                self._stopping = True
                self._coordinator.end()
            self._leader.join()
            self._leader = None
        self._ended, self._coordinator = self._coordinator, None
        if self._ended:
            self.assignments += self._ended.history
            with contextlib.suppress(ServiceUnavailable):  # then there are fewer measurements
                self._ended.read_acknowledgements()
            self.records += self._ended.records.values()
            self._notes += map(self.note, self._ended.notes)

    def unfinished(self, decided: Assignment) -> Unfinished:
        """What is left to the next attempt; between ``end`` and ``leave``. ``decided``: the newest assignment that the
        coordinator had, of which nobody may know whether it was published. Raises ServiceUnavailable.
        """
        newest = max(self.assignments[-1], decided, key=lambda each: each.version)
        assert self._ended is not None
        for record in self.records:
            if record.outcome == "under way" and record.version > newest.version:
                record.outcome = "cancelled"  # it comes again
        return Unfinished(newest, *self._ended.unfinished(self.participant, newest.version))

    def leave(self) -> None:
        """Leave ZooKeeper, after ``end`` and the end of the query. Safe to call twice."""
        if self._ended:
            self._ended.await_planner()  # which sees that the query has ended
            self._ended = None
        for session in (self._session, self.coordination):
            if session is not None:
                session.close()
        self._session = self.coordination = None

    def past(self) -> StagePast:
        """The way until now. What slots said of steps of this attempt is not in it, but in ZooKeeper."""
        coordinator = self._coordinator
        history = coordinator.history if coordinator else Assignments()
        records = list(coordinator.records.values()) if coordinator else []
        return StagePast(self.assignments + history, list(self.begins), [*self.records, *records])

    def resume(self, past: StagePast, participant: Coordination, attempt: int) -> Unfinished:
        """Go on from there in another process. ``participant``: at the root of the job, where what has happened since
        then is.

        Gives what the last ``attempt`` has left, or the one before if that had just begun; requests are lost. Raises
        ServiceUnavailable if there is none.
        """
        self.assignments, self.begins, self.records = past.assignments, past.begins, past.records
        roots = [nodes.of_stage(number, self.name) for number in range(attempt, -1, -1)]
        begun = (each for each in roots if participant.read(nodes.ASSIGNMENT.below(each)) is not None)
        root = next(begun, roots[0])
        for record in self.records:
            if not (record.released or record.installed):
                note_acknowledgements(record, participant.read_below(nodes.acks(record.version).below(root)))
        newest = participant.require(nodes.ASSIGNMENT.below(root)).assignment
        if not self.assignments or newest.version > self.assignments[-1].version:
            self.assignments.append(newest)
        left = left_over(participant, root)
        return Unfinished(newest, left.to_come(newest.version) if left else ())

    # -- moving state -------------------------------------------------------------------------------------------------

    def led(self) -> Coordinator:
        """The coordinator. Raises ServiceUnavailable between two attempts."""
        if (coordinator := self._coordinator) is None:
            raise ServiceUnavailable(f"job {self.config.job} is not running now: try again when it is")
        return coordinator

    def request(self, make_steps: MakeSteps, replace: bool = False) -> None:
        """Ask for a migration; see ``Coordinator.request``. Raises ServiceUnavailable between two attempts."""
        with self._changing:
            self.led().request(make_steps, replace)

    def cancel(self) -> None:
        """Take back the steps of migrations that have not begun. Raises ServiceUnavailable between two attempts."""
        with self._changing:
            self.led().cancel()

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet; for any thread."""
        return self._coordinator is not None and self._coordinator.busy

    def copy(self, copies: tuple[Move, ...], every_s: float, lag_keys: int, whole: bool) -> None:
        """Keep copies of units at other slots from now on (unit, owner, holder)."""
        name = secrets.token_hex(3)
        self.tell(nodes.COPIES, nodes.CopiesWanted(name, copies, every_s, lag_keys, whole))
        self._copying = name, {move.source for move in copies}

    def end_copies(self) -> None:
        """Keep none from now on."""
        if self._copying is not None:
            self.copy((), 1.0, 0, whole=False)
            self._copying = None

    def await_copies(self) -> dict[int, nodes.CopiesClose] | None:
        """Until the copies ordered last are close; what each owner measured. None if there are none."""
        if self._copying is None:
            return None
        name, owners = self._copying
        return self.by_slot(nodes.copied(name), owners, "copying")

    def copied_by_now(self) -> dict[int, nodes.CopiesClose]:
        """Of the copies ordered last, what those owners measured whose are close by now."""
        if self._copying is None:
            return {}
        name, _ = self._copying
        return {int(slot): said for slot, said in self.participant.read_below(nodes.copied(name)).items()}

    # -- questions ----------------------------------------------------------------------------------------------------

    def measure(self) -> dict[int, Measured]:
        """What each slot has seen since the attempt began."""
        with self._measuring:
            name = secrets.token_hex(3)
            self.tell(nodes.MEASURE, name)
            measured = self.by_slot(nodes.measured(name), range(self.config.slots), "measure")
            self.participant.withdraw(nodes.measured(name))  # a job that lasts is asked often
            return measured

    def left_behind(self) -> set[tuple[int, int]]:
        """Units, and slots that have keys of them which are elsewhere, too. They are told soon that they may go."""
        left: set[tuple[int, int]] = set()

        def settled() -> bool:
            nonlocal left
            left = {(unit, slot) for slot, measured in self.measure().items() for unit in measured.left_behind}
            return not left

        wait_until(settled, SETTLE_S, CHECK_S)
        return left

    def tell(self, node: Node[T], value: T) -> None:
        """Publish something for the tasks of the stage."""
        self.participant.publish(node, value)

    def by_slot(
        self, folder: Folder[T], slots: Collection[int], what: str, progress: Callable[[], object] = lambda: None
    ) -> dict[int, T]:
        """What each of ``slots`` answers in ``folder``."""
        said = self.answers(folder, set(map(str, slots)), what, progress)
        return {int(slot): said[slot] for slot in sorted(said)}

    def await_restored(self) -> dict[int, nodes.Restored]:
        """What each slot says of the units that it has restored, as soon as it has all of them."""
        progress = partial(self.participant.read_below, nodes.RESTORING)
        return self.by_slot(nodes.RESTORED, range(self.config.slots), "the restore", progress)

    def answers(
        self, folder: Folder[T], wanted: set[str], what: str, progress: Callable[[], object] = lambda: None
    ) -> dict[str, T]:
        """See ``inquiry.answers``."""
        return answers(self.participant, folder, wanted, what, self.config.deadline_s, self._alive, progress)

    def read_log(self, alive: bool) -> list[Event]:
        """The last protocol events of the attempt, of slots and routers as far as they answer. ``alive``: the query."""
        if self.coordination is None or self._coordinator is None:
            return []
        with contextlib.suppress(ServiceUnavailable):  # then nobody answers
            places = self.config.slots + self.config.routers
            return protocol_logs.gather(self.coordination, places, self._coordinator.records.values(), alive)
        return []
