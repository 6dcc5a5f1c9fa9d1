"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back.

Whatever it is told, by any thread, goes through one inbox: requests, acknowledgements, plans. Plans are made by a
thread of their own, since a plan may wait for measurements and copies.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyshift.clock import now_us
from keyshift.model.keys import Assignment, Assignments, Step
from keyshift.model.notes import Doing, Phase
from keyshift.model.records import Installed, Released, StepRecord
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import Fault

TICK_S = 0.1
MakeSteps = Callable[[Assignment], Sequence[Step]]  # the steps of a migration from an assignment
Heard = Callable[[CoordinatorMachine], list[protocol.Effect]]  # something that happened, to be told to the machine


class CoordinatorDied(Exception):
    """A deliberate fault: the leader ends where it stands."""


@dataclass(frozen=True, eq=False)
class _Asked:
    """A request for a migration; without ``make_steps``, to take back what has not begun."""

    make_steps: MakeSteps | None
    replace: bool = True

    def __call__(self, machine: CoordinatorMachine) -> list[protocol.Effect]:
        if self.make_steps is None:
            return machine.cancel(_ms())
        return machine.submit(self.make_steps, _ms(), self.replace)


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election, and take over."""

    def __init__(
        self,
        coordination: Coordination,
        name: str,
        assignment: Assignment,
        deadline_s: float,
        slots: int,
        say: Callable[[Doing], None] = lambda doing: None,
        at_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._coordination, self._name, self._slots, self._say = coordination, name, slots, say
        self._at_phase = at_phase  # ``prepare``, or ``switch``: about to be published
        self._machine = CoordinatorMachine(assignment, deadline_s * 1000, slots)
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._asked: dict[_Asked, None] = {}  # that is in there, or being done: a successor has to do it
        self._plan_name = ""  # the name of the plan that was written down last
        self._beginning: tuple[str, MakeSteps] | None = None  # a plan of which nothing may have been written down yet
        self._completed = 0  # steps of the migration under way
        self._planner: threading.Thread | None = None
        self._thread: threading.Thread | None = None  # that leads
        self._began, self._ending = False, False
        self._under_way: set[int] = set()  # versions
        self.history = Assignments([assignment])
        self.records: dict[int, StepRecord] = {}  # by version
        self.snapshots: dict[str, int] = {}  # the one that was begun last, and the version behind it
        self.late_snapshots: set[str] = set()  # if it was given up
        self.notes: list[str] = []  # one line for each step that did not go as planned

    @property
    def assignment(self) -> Assignment:
        """What the routers route by, or were told to."""
        return self._machine.assignment

    def assignment_of(self, version: int) -> Assignment:
        """That of a snapshot's ``version``, under which nothing moves; whoever has published it may have died since."""
        return Assignment(version, self.history.of(version).owner)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def request(self, make_steps: MakeSteps, replace: bool = False) -> None:
        """Ask for a migration: after all others, or with ``replace`` instead of what has not begun of them.

        What ``make_steps`` raises ends ``lead``.
        """
        self._ask(_Asked(make_steps, replace))

    def snapshot(self, name: str) -> None:
        """Take a snapshot as soon as no step is under way; one that was asked for before and has not begun is not."""
        self._inbox.put(lambda machine: machine.snapshot(name, _ms()))

    def cancel(self) -> None:
        """Take back what has not begun."""
        self._ask(_Asked(None))

    def _ask(self, asked: _Asked) -> None:
        self._asked[asked] = None
        self._inbox.put(asked)

    def fail(self, fault: Fault) -> None:
        """``fault`` hits whoever leads: here and now if that is who calls."""

        def struck(_: CoordinatorMachine) -> list[protocol.Effect]:
            if fault.action == "kill":
                raise CoordinatorDied
            time.sleep(fault.seconds)
            return []

        if threading.current_thread() is self._thread:
            struck(self._machine)
        else:
            self._inbox.put(struck)

    def inherit(self, before: "Coordinator") -> None:
        """Go on where ``before`` has died: with what is known of its steps, and what it was asked for and had not
        begun. All else is in ZooKeeper.
        """
        self.history, self.records, self.notes = before.history, before.records, before.notes
        self.snapshots, self.late_snapshots = before.snapshots, before.late_snapshots
        self._beginning, self._completed = before._beginning, before._completed
        for asked in before._waiting:
            self._ask(asked)

    @property
    def _waiting(self) -> "list[_Asked]":
        """What was asked for and has not begun. What is being done is done from its beginning."""
        again = {asked.make_steps for asked in self._asked}
        return [*(_Asked(make, False) for make in self._machine.unbegun if make not in again), *self._asked]

    def unfinished(self, participant: Coordination, version: int) -> tuple[list[Step], list[MakeSteps]]:
        """After the end of the attempt, which has come to ``version``: the steps of its plan that had not switched, and
        the requests that had not begun. Raises ServiceUnavailable.
        """
        left, beginning = left_over(participant), self._beginning
        steps = left.to_come(version) if left else []
        requests = [beginning[1]] if beginning and not (left and left.plan == beginning[0]) else []
        for asked in self._waiting:
            if asked.replace:
                steps, requests = [], []
            requests += [asked.make_steps] if asked.make_steps else []
        return steps, requests

    @property
    def busy(self) -> bool:
        """Whether anything that was requested, or was left by another one, is not over yet."""
        waiting = not self._began or self._inbox.unfinished_tasks > 0
        return waiting or self._machine.busy  # in this order: the first leads to the second

    def end(self) -> None:
        """Let ``lead`` return, wherever it stands; another one may take over."""
        self._ending = True
        self._inbox.put(lambda machine: [])

    def await_planner(self) -> None:
        """Until no plan is made any more."""
        if self._planner is not None:
            self._planner.join()

    # -- leading ------------------------------------------------------------------------------------------------------

    def lead(self, check: Callable[[], None]) -> None:
        """Lead until ``end``; ``records`` has what happened.

        ``check`` is called while nothing is heard, and may raise. A step that is late is rolled back, or left to go
        forward (``notes``); the job goes on.
        """
        self._coordination.lead(self._name, lambda: self._lead(check))

    def _lead(self, check: Callable[[], None]) -> None:
        self._thread = threading.current_thread()
        if not self._began:
            self._carry_out_all(self._take_over())
            self._began = True
        while not self._ending:
            try:
                heard = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                check()
                self._carry_out_all(self._machine.tick(_ms()))
            else:
                self._carry_out_all(heard(self._machine))
                if isinstance(heard, _Asked):
                    self._asked.pop(heard)
                self._inbox.task_done()
        self._ending = False  # of this time

    def _plan(self, make_steps: MakeSteps, current: Assignment) -> None:
        try:
            steps = make_steps(current)
        except BaseException as error:
            failure = error

            def failed(_: CoordinatorMachine) -> list[protocol.Effect]:
                raise failure

            self._inbox.put(failed)
        else:
            self._inbox.put(lambda machine: self._planned(machine, make_steps, steps, current))

    def _planned(
        self, machine: CoordinatorMachine, make_steps: MakeSteps, steps: Sequence[Step], begin: Assignment
    ) -> list[protocol.Effect]:
        effects = machine.planned(steps, begin, _ms())
        if any(isinstance(effect, protocol.PublishSteps) for effect in effects):
            # For whoever takes over: what is published next says by the name that it is of this plan.
            name = secrets.token_hex(4)
            self._beginning = name, make_steps
            publish_plan(self._coordination, name, steps)
            self._plan_name = name
        return effects

    def _take_over(self) -> list[protocol.Effect]:
        """Go on with what another coordinator left under way, or the attempt before; nothing, if there was none."""
        left, beginning = left_over(self._coordination), self._beginning
        effects: list[protocol.Effect] = []
        if left:
            self._machine = CoordinatorMachine(left.assignment, self._machine.deadline_ms, self._slots)
            if left.assignment.version != self.history[-1].version:
                self.history.append(left.assignment)
            self._plan_name = left.plan
            effects += self._machine.recover(left.version, left.steps, left.rest, [], _ms())
            self._hear(left.steps)  # what was acknowledged is heard again
            self._note(left.steps, now_us())
            for of, _ in left.steps:
                if of < left.assignment.version:  # the next one has switched: its leader did not live to publish that
                    self._ended(of, "complete")
        if beginning and not (left and left.plan == beginning[0]):  # nobody has heard of it
            effects += self._machine.submit(beginning[1], _ms())
        self._beginning = None
        return effects

    def _carry_out_all(self, effects: Iterable[protocol.Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: protocol.Effect) -> None:
        now, say = now_us(), self._say
        match effect:
            case protocol.PlanNext(make_steps):
                say(Doing(Phase.PLANNING))
                self._completed = 0
                planning = (make_steps, self._machine.assignment)
                self._planner = threading.Thread(target=self._plan, args=planning, name="keyshift-planner", daemon=True)
                self._planner.start()
            case protocol.PublishSteps(version, steps, rest):
                for of in self._under_way - dict(steps).keys():
                    self._ended(of, "cancelled")
                    if steps:  # it was ahead of them, and had not begun
                        self.records.pop(of, None)
                self._hear(steps)
                told = nodes.PublishedSteps(version, steps, len(rest), self._plan_name)
                self._coordination.publish(nodes.STEPS, told)
                self._beginning = None
                self._note(steps, now)
                if steps and steps[0][0] > self._machine.assignment.version and not steps[0][1].snapshot:
                    say(Doing(Phase.PREPARING, f"step {len(self.records)} preparing, {len(rest)} to come"))
                    self._at_phase("prepare")
            case protocol.PublishAssignment(assignment, _, snapshot):
                if assignment.version != self.history[-1].version and not snapshot:
                    self._at_phase("switch")
                self._coordination.publish(nodes.ASSIGNMENT, effect)
                if assignment.version != self.history[-1].version:  # otherwise only the pause ends
                    if record := self.records.get(assignment.version):
                        record.prepared_us = record.switched_us = now
                        say(Doing(Phase.MOVING, f"step {len(self.records)} moving"))
                    self.history.append(assignment)
            case protocol.SnapshotLate(version):
                self._ended(version, "late")
                self.late_snapshots = {name for name, of in self.snapshots.items() if of == version}
            case protocol.StepDone(version):
                self._ended(version, "complete")
                self._completed += version in self.records
            case protocol.MigrationDone(dropped):
                if any(dropped):
                    self.notes.append(f"{_words(dropped)} were taken back before they had begun")
                say(Doing(Phase.MIGRATED if self._completed else Phase.STEADY))
            case protocol.StepLate(version, phase, missing, rolled_back, dropped):
                record = self.records[version]
                record.outcome = "rolled back" if rolled_back else "late"
                outcome = "rolled back" if rolled_back else "goes forward: what has not moved yet waits for its state"
                also = f"; {_words(dropped)} behind it were dropped" if any(dropped) else ""
                self.notes.append(
                    f"step of version {version}: slots {list(missing)} did not finish phase {phase!r} within "
                    f"{self._machine.deadline_ms / 1000:g} s; {outcome}{also}; the job goes on"
                )
                say(Doing(Phase.ROLLED_BACK if rolled_back else Phase.LATE))

    def _hear(self, steps: Iterable[tuple[int, Step]]) -> None:
        for version, _ in steps:
            if version not in self._under_way:
                self._under_way.add(version)
                self._listen(version)

    def _note(self, steps: Iterable[tuple[int, Step]], at_us: int) -> None:
        """What was published, and only then: the version of what was not is another step's when another one leads."""
        for version, step in steps:
            if step.snapshot:
                self.snapshots = {step.snapshot: version}
            elif version not in self.records:
                self.records[version] = StepRecord(version, step, at_us)

    def _ended(self, version: int, outcome: str) -> None:
        self._under_way.discard(version)
        if (record := self.records.get(version)) and record.outcome == "under way":
            record.outcome, record.completed_us = outcome, now_us()

    def read_acknowledgements(self) -> None:
        """Complete ``records``: what slots measured is of no interest while steps wait for each other."""
        for version, record in self.records.items():
            note_acknowledgements(record, self._coordination.read_below(nodes.acks(version)))

    def _listen(self, version: int) -> None:
        """Puts each acknowledgement of ``version`` into the inbox, once."""
        seen: set[str] = set()

        def changed(names: list[str]) -> bool:
            for name in sorted(set(names) - seen):
                seen.add(name)

                def heard(machine: CoordinatorMachine, name: str = name) -> list[protocol.Effect]:
                    phase, slot = nodes.phase_and_slot(name)
                    return machine.acknowledged(phase, version, slot, _ms())

                self._inbox.put(heard)
            return version >= self._machine.assignment.version  # False ends the watch of an old step

        self._coordination.watch_children(nodes.acks(version), changed)


def note_acknowledgements(record: StepRecord, said: Mapping[str, nodes.Acknowledgement]) -> None:
    """Put into ``record`` what its slots have ``said``, by the names of their nodes."""
    for name, each in said.items():
        _, slot = nodes.phase_and_slot(name)
        if isinstance(each, Released):
            record.released[slot] = each
        elif isinstance(each, Installed):
            record.installed[slot] = each


@dataclass(frozen=True)
class LeftOver:
    """What a coordinator has left in ZooKeeper: ``version``, ``steps`` and ``rest``, see ``protocol.PublishSteps``, of
    the ``plan`` of this name; the ``assignment`` that was published last.
    """

    assignment: Assignment
    version: int
    steps: Sequence[tuple[int, Step]]
    rest: Sequence[Step]
    plan: str

    def to_come(self, version: int) -> list[Step]:
        """The steps of a migration that had not switched when ``version`` was the newest."""
        return [*(step for of, step in self.steps if of > version and step.moves), *self.rest]


def left_over(participant: Coordination, folder: str = "") -> LeftOver | None:
    """What is there of an attempt and a stage: in ``folder``, or at the root. None if there were no steps.

    Raises ServiceUnavailable.
    """
    steps, plan, begun = nodes.STEPS, nodes.PLAN, nodes.ASSIGNMENT
    if folder:
        steps, plan, begun = steps.below(folder), plan.below(folder), begun.below(folder)
    published, written = participant.read(steps), participant.read(plan) or nodes.WrittenPlan("", ())
    if published is None and not written.steps:
        return None
    assignment, whole = participant.require(begun).assignment, written.steps
    if published is None:
        return LeftOver(assignment, assignment.version, [], whole, written.name)
    known = published.plan == written.name  # otherwise nothing of it was published yet
    rest = whole[len(whole) - published.rest :] if known else whole
    return LeftOver(assignment, published.version, published.steps, rest, written.name)


def publish_plan(participant: Coordination, name: str, steps: Iterable[Step]) -> None:
    """Write ``steps`` down. None of it happens before it is said with ``steps`` how much of it is to come, or another
    coordinator takes over.
    """
    participant.publish(nodes.PLAN, nodes.WrittenPlan(name, tuple(steps)))


def _words(dropped: protocol.Dropped) -> str:
    counts = (dropped.steps, "steps"), (dropped.requests, "requests for a migration")
    return " and ".join(f"{count} {what}" for count, what in counts if count)


def _ms() -> float:
    return time.monotonic() * 1000
