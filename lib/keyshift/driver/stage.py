"""A keyed stage of a job over all its attempts: what was written down, and the attempt under way."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from keyshift.driver.attempt import Say, StageAttempt, Unfinished
from keyshift.driver.leader import Coordinator, MakeSteps, left_over, note_acknowledgements
from keyshift.driver.questions import Questions
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, Assignments
from keyshift.model.notes import Doing, Note, Phase
from keyshift.model.records import StepRecord
from keyshift.runtime.protocol_log import Event
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import Fault

AtPhase = Callable[["LedStage", str], None]


@dataclass(frozen=True)
class StagePast:
    """The way of a stage until now, for ``LedStage.resume`` in another process. Fields are those of ``LedStage``."""

    assignments: Annotated[Assignments, PlainValidator(Assignments.from_json), PlainSerializer(Assignments.to_json)]
    begins: list[int]
    records: list[StepRecord]


class LedStage:
    """One stage of a job. ``alive()`` raises if the query has died.

    ``ask``, ``request``, ``cancel`` and what says so are for any thread, all else is for one controlling thread. What
    needs an attempt raises ServiceUnavailable between two of them. ``notes``: of the job, gets one for each step that
    did not go as planned. ``say`` hears what is being done. Both name the stage if the job has several.
    """

    def __init__(self, config: JobConfig, notes: list[Note], alive: Callable[[], None], say: Say) -> None:
        self.config = config  # of the attempt under way
        self._notes, self._alive, self._heard = notes, alive, say
        self.doing = Doing(Phase.STEADY)  # what was said last in this attempt; for any thread
        self._asked: Questions | None = None  # of the attempt, from ``publish`` to ``leave``
        self.assignments = Assignments()  # every version that routers were ever told to use
        self.begins: list[int] = []  # the version that each attempt began with
        self.records: list[StepRecord] = []  # every step that was begun
        self.at_phase: AtPhase = lambda stage, phase: None  # hears from the leader's thread where a step begins

    @property
    def name(self) -> str:
        """As the workload has it."""
        return self.config.stage

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

    # -- the attempt under way ----------------------------------------------------------------------------------------

    @property
    def ask(self) -> Questions:
        """Its slots and routers."""
        if (asked := self._asked) is None:
            raise self._absent()
        return asked

    @property
    def participant(self) -> Coordination:
        """Its place in ZooKeeper."""
        return self.ask.attempt.participant

    @property
    def coordination(self) -> Coordination | None:
        """The same, or None between two attempts."""
        return asked.attempt.participant if (asked := self._asked) else None

    @property
    def led(self) -> Coordinator:
        """Its coordinator."""
        return self._led.coordinator

    @property
    def _led(self) -> StageAttempt:
        attempt = self.ask.attempt
        if attempt.over:
            raise self._absent()
        return attempt

    def _absent(self) -> ServiceUnavailable:
        return ServiceUnavailable(f"job {self.config.job} is not running now: try again when it is")

    @property
    def _leads(self) -> Coordinator | None:
        asked = self._asked
        return asked.attempt.coordinator if asked and not asked.attempt.over else None

    @property
    def assignment(self) -> Assignment:
        """The newest assignment; for any thread."""
        coordinator = self._leads
        return coordinator.assignment if coordinator else self.assignments[-1]

    @property
    def new_notes(self) -> list[Note]:
        """Those of the attempt under way; for any thread."""
        coordinator = self._leads
        return [self.note(text) for text in coordinator.notes] if coordinator else []

    @property
    def new_records(self) -> list[StepRecord]:
        """Those of the attempt under way; for any thread."""
        coordinator = self._leads
        return list(coordinator.records.values()) if coordinator else []

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet; for any thread."""
        coordinator = self._leads
        return coordinator is not None and coordinator.busy

    def request(self, make_steps: MakeSteps, replace: bool = False) -> None:
        """Ask for a migration; see ``Coordinator.request``."""
        self._led.request(make_steps, replace)

    def cancel(self) -> None:
        """Take back the steps of migrations that have not begun."""
        self._led.cancel()

    def fail(self, fault: Fault) -> None:
        """``fault`` hits the leader; for any thread."""
        self.led.fail(fault)

    def check(self) -> None:
        """Raises whatever ended the coordinator."""
        if self._asked:
            self._asked.attempt.check()

    def read_log(self, alive: bool) -> list[Event]:
        """See ``Questions.read_log``; nothing if nobody leads."""
        return self.ask.read_log(alive) if self._leads else []

    # -- from attempt to attempt --------------------------------------------------------------------------------------

    def publish(self, config: JobConfig, left: Unfinished) -> None:
        """Let an attempt begin, see ``StageAttempt``."""
        self.config, self.doing = config, Doing(Phase.STEADY)
        self.begins.append(left.assignment.version)
        self._asked = Questions(self._new_attempt(left), self._alive)

    def _new_attempt(self, left: Unfinished) -> StageAttempt:
        return StageAttempt(self.config, left, self.say, lambda phase: self.at_phase(self, phase))

    def start(self) -> None:
        """Lead it, until ``end``."""
        self._led.start()

    def end(self) -> None:
        """Lead no more, and write down what came of the attempt. Safe to call twice."""
        if self._asked is None or self._asked.attempt.over:
            return
        attempt = self._asked.attempt
        attempt.end()
        ended = attempt.coordinator
        self.assignments += ended.history
        with contextlib.suppress(ServiceUnavailable):  # then there are fewer measurements
            ended.read_acknowledgements()
        self.records += ended.records.values()
        self._notes += map(self.note, ended.notes)

    def unfinished(self, decided: Assignment) -> Unfinished:
        """What is left to the next attempt; between ``end`` and ``leave``. ``decided``: the newest assignment that the
        coordinator had, of which nobody may know whether it was published. Raises ServiceUnavailable.
        """
        newest = max(self.assignments[-1], decided, key=lambda each: each.version)
        for record in self.records:
            if record.outcome == "under way" and record.version > newest.version:
                record.outcome = "cancelled"  # it comes again
        attempt = self.ask.attempt
        return Unfinished(newest, *attempt.coordinator.unfinished(attempt.participant, newest.version))

    def leave(self) -> None:
        """Leave ZooKeeper, after ``end`` and the end of the query. Safe to call twice."""
        if self._asked:
            self._asked.attempt.leave()
            self._asked = None

    # -- for another process ------------------------------------------------------------------------------------------

    def past(self) -> StagePast:
        """The way until now. What slots said of steps of this attempt is not in it, but in ZooKeeper."""
        coordinator = self._leads
        history = coordinator.history if coordinator else Assignments()
        return StagePast(self.assignments + history, list(self.begins), [*self.records, *self.new_records])

    def resume(self, past: StagePast, participant: Coordination, attempt: int) -> Unfinished:
        """Go on from there. ``participant``: at the root of the job, where what has happened since then is.

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
