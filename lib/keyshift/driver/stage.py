"""A keyed stage of a job over all its attempts, and the attempt under way."""

import contextlib
from collections.abc import Callable

from keyshift.driver import agreement
from keyshift.driver.attempt import SayDoing, StageAttempt, Unfinished
from keyshift.driver.leader import Coordinator, MakeSteps
from keyshift.driver.questions import Questions
from keyshift.driver.stage_history import StageHistory
from keyshift.driver.step_log import StepLog
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import NO_VERSION, Assignment, Version
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import Fault


class LedStage:
    """One stage of a job. ``alive()`` raises if the query has died.

    ``ask``, ``request``, ``cancel``, ``fail`` and what says so are for any thread, all else is for one controlling
    thread. What needs an attempt raises ServiceUnavailable between two of them. ``notes``: of the job, gets one for
    each step that did not go as planned. ``say`` hears what is being done. Both name the stage if the job has several.
    """

    def __init__(self, config: JobConfig, notes: list[Note], alive: Callable[[], None], say: SayDoing) -> None:
        self.config = config  # of the attempt under way
        self.name = config.stage  # as the workload has it
        self._called = config.stage if config.number or config.onward else ""
        self._notes, self._alive, self._heard = notes, alive, say
        self.doing = Doing(Activity.STEADY)  # what was said last in this attempt; for any thread
        self.history = StageHistory()  # of the attempts before
        self._asked: Questions | None = None  # of the attempt, from ``publish`` to ``leave``
        # Hears from the leader's thread where a step begins.
        self.at_phase: Callable[[LedStage, str], None] = lambda stage, phase: None
        self.agrees: agreement.MemberSay | None = None  # with other replicas of the job, in the next attempt

    def note(self, text: str, kind: NoteKind = NoteKind.MIGRATION) -> Note:
        """Make a note of ``text`` about this stage: on its migrations, unless ``kind`` says otherwise."""
        return Note(text, self._called, kind)

    def say(self, doing: Doing) -> None:
        """Tell that ``doing`` is done with the stage from now on."""
        self.doing = doing
        self._heard(doing._replace(stage=self._called))

    # -- the attempt under way ----------------------------------------------------------------------------------------

    @property
    def ask(self) -> Questions:
        """Its slots and routers."""
        if (asked := self._asked) is None:
            raise _absent(self.config.job)
        return asked

    @property
    def participant(self) -> Coordination:
        """Its place in ZooKeeper."""
        return self.ask.attempt.participant

    @property
    def led(self) -> Coordinator:
        """Its coordinator."""
        return self._led.coordinator

    @property
    def _led(self) -> StageAttempt:
        attempt = self.ask.attempt
        if attempt.over:
            raise _absent(self.config.job)
        return attempt

    @property
    def assignment(self) -> Assignment:
        """The newest assignment; for any thread."""
        if (asked := self._asked) is None:
            return self.history.assignments[-1]
        attempt = asked.attempt  # which is over before the history has it
        return attempt.coordinator.log.history[-1] if attempt.over else attempt.coordinator.assignment

    @property
    def log(self) -> StepLog | None:
        """What became of its steps, if somebody leads; for any thread."""
        coordinator = _leader(self._asked)
        return coordinator.log if coordinator else None

    @property
    def busy(self) -> bool:
        """Whether anything that was requested is not over yet; for any thread."""
        coordinator = _leader(self._asked)
        return coordinator is not None and coordinator.busy

    @property
    def late(self) -> bool:
        """Whether units of a step that was late are still to come, though nothing is under way; for any thread."""
        coordinator = _leader(self._asked)
        return coordinator is not None and coordinator.late

    def request(self, make_steps: MakeSteps, replace: bool = False, behind: Version = NO_VERSION) -> None:
        """Ask for a migration; see ``Coordinator.request``."""
        self._led.request(make_steps, replace, behind)

    def cancel(self) -> None:
        """Take back the steps of migrations that have not begun."""
        self._led.request(None)

    def fail(self, fault: Fault) -> None:
        """Let ``fault`` hit its coordinator; see ``Coordinator.fail``."""
        self._led.fail(fault)

    def check(self) -> None:
        """Raises whatever ended the coordinator."""
        if self._asked:
            self._asked.attempt.check()

    # -- from attempt to attempt --------------------------------------------------------------------------------------

    def publish(self, config: JobConfig, left: Unfinished) -> None:
        """Let an attempt begin, see ``StageAttempt``."""
        self.config, self.doing = config, Doing(Activity.STEADY)
        self.history.begins.append(left.assignment.version)
        attempt = StageAttempt(config, left, self.say, lambda phase: self.at_phase(self, phase), self.agrees)
        self._asked = Questions(attempt, self._alive)

    def start(self) -> None:
        """Lead it, until ``end``."""
        self._led.start()

    def end(self) -> None:
        """Lead no more, and write down what came of the attempt. Safe to call twice."""
        if self._asked is None or self._asked.attempt.over:
            return
        attempt = self._asked.attempt
        attempt.end()
        log = attempt.coordinator.log
        with contextlib.suppress(ServiceUnavailable):  # then there are fewer measurements
            log.read_acknowledgements(attempt.participant)
        self.history = self.history.with_attempt(log)
        self._notes += map(self.note, log.notes)

    def unfinished(self, decided: Assignment) -> Unfinished:
        """Return what is left to the next attempt; between ``end`` and ``leave``. ``decided``: the newest assignment
        that the coordinator had, of which nobody may know whether it was published. Raises ServiceUnavailable.
        """
        newest = max(self.history.assignments[-1], decided, key=lambda each: each.version)
        self.history.cancel_behind(newest.version)
        attempt = self.ask.attempt
        return Unfinished(newest, *attempt.coordinator.unfinished(attempt.participant, newest.version))

    def leave(self) -> None:
        """Leave ZooKeeper, after ``end`` and the end of the query. Safe to call twice."""
        if self._asked:
            self._asked.attempt.leave()
            self._asked = None


def history_of(stage: LedStage) -> StageHistory:
    """All that is known of ``stage`` by now, while nothing moves in it."""
    if stage.log is not None:
        stage.log.read_acknowledgements(stage.participant)
    return stage.history.with_attempt(stage.log)


def _leader(asked: Questions | None) -> Coordinator | None:
    """Who leads the attempt, if somebody does."""
    return asked.attempt.coordinator if asked and not asked.attempt.over else None


def _absent(job: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"job {job} is not running now: try again when it is")
