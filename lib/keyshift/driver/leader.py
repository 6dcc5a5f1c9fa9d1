"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back.

Whatever it is told, by any thread, goes through one inbox: requests, acknowledgements, plans. Plans are made by a
thread of their own, since a plan may wait for measurements and copies.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from keyshift.clock import now_us
from keyshift.driver.appointments import Appointments, publish
from keyshift.driver.step_log import StepLog, read_published
from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import NO_VERSION, Assignment, Step, Version
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import StepOutcome
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine
from keyshift.wire import nodes
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import Fault

TICK_S = 0.1
MakeSteps = Callable[[Assignment], Sequence[Step]]  # the steps of a migration from an assignment
# Something that happened, to be told to the machine.
Heard = Callable[[CoordinatorMachine], list[protocol.CoordinatorEffect]]


class CoordinatorDied(Exception):
    """A deliberate fault: the leader ends where it stands."""


@dataclass(frozen=True, eq=False)
class _Request:
    """A request for a migration, or to take back what has not begun; see ``Coordinator.request``."""

    make_steps: MakeSteps | None
    replace: bool
    behind: Version

    def __call__(self, machine: CoordinatorMachine) -> list[protocol.CoordinatorEffect]:
        return machine.cancel(_ms()) if self.make_steps is None else machine.submit(self, self.replace)


Planned = Callable[[_Request, Sequence[Step], Assignment], list[protocol.CoordinatorEffect]]


def _make_plan(request: _Request, current: Assignment, told: Callable[[Heard], None], planned: Planned) -> None:
    """Make a plan, in a thread of its own; ``told`` gets what becomes of it."""
    assert request.make_steps is not None
    try:
        steps = request.make_steps(current)
    except BaseException as error:
        failure = error

        def failed(_: CoordinatorMachine) -> list[protocol.CoordinatorEffect]:
            raise failure

        told(failed)
    else:
        told(lambda machine: planned(request, steps, current))


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election, and take over.

    ``log`` has what happened.
    """

    def __init__(
        self,
        coordination: Coordination,
        name: str,
        assignment: Assignment,
        deadline_s: float,
        slots: int,
        say: Callable[[Doing], None] = lambda doing: None,
        at_phase: Callable[[str], None] = lambda phase: None,
        appointments: Appointments | None = None,
    ) -> None:
        self._coordination, self._name, self._say = coordination, name, say
        self._at_phase = at_phase  # ``prepare``, or ``switch``: about to be published
        self._appointments = appointments  # if slots work in turns
        in_turns = appointments is not None
        self._machine_of = partial(CoordinatorMachine, deadline_ms=deadline_s * 1000, slots=slots, in_turns=in_turns)
        self._machine = self._machine_of(assignment)
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._asked: dict[_Request, None] = {}  # that is in there, or being done: a successor has to do it
        self._faults: list[Fault] = []  # that are in there: they hit a successor otherwise
        self._plan_name = ""  # the name of the plan that was written down last
        self._beginning: tuple[str, _Request] | None = None  # a plan of which nothing may have been written down yet
        self._completed = 0  # steps of the migration under way
        self._telling = False  # the migration under way may be late, and that is not written down yet
        self._planner: threading.Thread | None = None
        self._thread: threading.Thread | None = None  # that leads
        self._began, self._ending = False, threading.Event()
        self._under_way: dict[Version, Callable[[], None]] = {}  # by version, what ends to listen to its slots
        self.log = StepLog(assignment)

    @property
    def assignment(self) -> Assignment:
        """The assignment that routers route by, or were told to."""
        return self._machine.assignment

    # -- from any thread ----------------------------------------------------------------------------------------------

    def request(self, make_steps: MakeSteps | None, replace: bool = False, behind: Version = NO_VERSION) -> None:
        """Ask for a migration: after all others, or with ``replace`` instead of what has not begun of them. None: only
        take that back. ``behind``: its steps have later versions than this one, which another replica has used.

        What ``make_steps`` raises ends ``lead``.
        """
        request = _Request(make_steps, replace or make_steps is None, behind)
        self._asked[request] = None
        self._inbox.put(request)

    def snapshot(self, name: str) -> None:
        """Take a snapshot as soon as no step is under way; one that was asked for before and has not begun is not."""
        self._inbox.put(lambda machine: machine.snapshot(name, _ms()))

    def fail(self, fault: Fault) -> None:
        """Let ``fault`` hit whoever leads: here and now if that is who calls."""

        def struck(_: CoordinatorMachine) -> list[protocol.CoordinatorEffect]:
            self._faults.remove(fault)
            if fault.action == "kill":
                raise CoordinatorDied
            self._ending.wait(fault.seconds)
            return []

        self._faults.append(fault)
        if threading.current_thread() is self._thread:
            struck(self._machine)
        else:
            self._inbox.put(struck)

    def inherit(self, before: "Coordinator") -> None:
        """Go on where ``before`` has died: with what is known of its steps, what it was asked for and had not begun,
        and faults that have not hit it. All else is in ZooKeeper.
        """
        self.log, self._beginning, self._completed = before.log, before._beginning, before._completed
        for request in before._waiting:
            self._asked[request] = None
            self._inbox.put(request)
        for fault in before._faults:
            self.fail(fault)

    @property
    def _waiting(self) -> list[_Request]:
        """What was asked for and has not begun. What is being done is done from its beginning."""
        unbegun = (each for each in self._machine.unbegun if each not in self._asked)
        return [*(replace(each, replace=False) for each in unbegun), *self._asked]

    def unfinished(self, participant: Coordination, version: Version) -> tuple[list[Step], list[MakeSteps]]:
        """Give, after the end of the attempt, which has come to ``version``, the steps of its plan that had not
        switched, and the requests that had not begun. Raises ServiceUnavailable.
        """
        left, beginning = read_published(participant), self._beginning
        steps = left.to_come(version) if left else []
        requests = [beginning[1]] if beginning and not (left and left.plan == beginning[0]) else []
        for request in self._waiting:
            if request.replace:
                steps, requests = [], []
            requests.append(request)
        return steps, [each.make_steps for each in requests if each.make_steps]

    @property
    def busy(self) -> bool:
        """Whether anything that was requested, or was left by another one, is not over yet."""
        waiting = not self._began or self._inbox.unfinished_tasks > 0
        return waiting or self._machine.busy or self._telling  # in this order: each leads to the next

    @property
    def late(self) -> bool:
        """Whether units of a step that failed forward are still to come; see ``CoordinatorMachine.late``."""
        return self._machine.late

    def end(self) -> None:
        """Let ``lead`` return, wherever it stands; another one may take over."""
        self._ending.set()
        self._inbox.put(lambda machine: [])

    def await_planner(self) -> None:
        """Wait until no plan is made any more."""
        if self._planner is not None:
            self._planner.join()

    # -- leading ------------------------------------------------------------------------------------------------------

    def lead(self, check: Callable[[], None]) -> None:
        """Lead until ``end``.

        ``check`` is called while nothing is heard, and may raise. A step that is late is rolled back, or left to go
        forward; the job goes on.
        """
        self._coordination.lead(self._name, lambda: self._lead(check))

    def _lead(self, check: Callable[[], None]) -> None:
        self._thread = threading.current_thread()
        if not self._began:
            self._carry_out(self._take_over())
            self._began = True
        while not self._ending.is_set():
            try:
                heard = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                check()
                self._telling = self._machine.busy
                self._carry_out(self._machine.tick(_ms()))
                self._telling = False
            else:
                self._carry_out(heard(self._machine))
                if isinstance(heard, _Request):
                    self._asked.pop(heard)
                self._inbox.task_done()
        self._ending.clear()  # of this time

    def _planned(self, request: _Request, steps: Sequence[Step], begin: Assignment) -> list[protocol.CoordinatorEffect]:
        effects = self._machine.planned(steps, begin, _ms(), request.behind)
        if any(isinstance(effect, protocol.PublishSteps) for effect in effects):
            # For whoever takes over: what is published next says by the name that it is of this plan.
            name = secrets.token_hex(4)
            self._beginning = name, request
            self._coordination.publish(nodes.PLAN, nodes.WrittenPlan(name, tuple(steps)))
            self._plan_name = name
        return effects

    def _take_over(self) -> list[protocol.CoordinatorEffect]:
        """Go on with what another coordinator left under way, or the attempt before; nothing, if there was none."""
        left, beginning = read_published(self._coordination), self._beginning
        effects: list[protocol.CoordinatorEffect] = []
        if left:
            self._machine = self._machine_of(left.assignment)
            self.log.switched(left.assignment)
            self._plan_name = left.plan
            effects += self._machine.recover(left.version, left.steps, left.rest, _ms())
            self._listen(left.steps)  # what was acknowledged is heard again
            self.log.published(left.version, left.steps, now_us())
            for of, _ in left.steps:
                if of < left.assignment.version:  # the next one has switched: its leader did not live to publish that
                    self._ended(of, "complete")
        if beginning and not (left and left.plan == beginning[0]):  # nobody has heard of it
            effects += self._machine.submit(beginning[1])
        self._beginning = None
        told = self._coordination.read(nodes.ASSIGNMENT)
        if told and told.appointment and not told.appointment.holds:  # its leader did not live to hear the answers
            publish(self._coordination, self._appointments, told, told.assignment, lambda: not self._ending.is_set())
            self._machine.told_ms = _ms()
        return effects

    def _carry_out(self, effects: Iterable[protocol.CoordinatorEffect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: protocol.CoordinatorEffect) -> None:
        now, say, log = now_us(), self._say, self.log
        match effect:
            case protocol.PlanNext(request):
                say(Doing(Activity.PLANNING))
                self._completed = 0
                given = request, self._machine.assignment, self._inbox.put, self._planned
                self._planner = threading.Thread(target=_make_plan, args=given, name="keyshift-planner", daemon=True)
                self._planner.start()
            case protocol.PublishSteps(version, steps, rest):
                for of in self._under_way.keys() - dict(steps).keys():
                    self._ended(of, "cancelled")
                    if steps:  # it was ahead of them, and had not begun
                        log.records.pop(of, None)
                self._listen(steps)
                told = nodes.PublishedSteps(version, steps, len(rest), self._plan_name)
                self._coordination.publish(nodes.STEPS, told)
                self._beginning = None
                log.published(version, steps, now)
                if steps and steps[0][0] > self._machine.assignment.version and not steps[0][1].snapshot:
                    say(Doing(Activity.PREPARING, f"step {len(log.records)} preparing, {len(rest)} to come"))
                    self._at_phase("prepare")
            case protocol.PublishAssignment(assignment, _, snapshot):
                switches = assignment.version != log.history[-1].version  # otherwise only the pause ends
                if switches and not snapshot:
                    self._at_phase("switch")
                before = log.history[-1]
                publish(self._coordination, self._appointments, effect, before, lambda: not self._ending.is_set())
                self._machine.told_ms = _ms()
                if switches and (record := log.records.get(assignment.version)):
                    record.prepared_us = record.switched_us = now
                    say(Doing(Activity.MOVING, f"step {len(log.records)} moving"))
                log.switched(assignment)
            case protocol.SnapshotLate(version):
                self._ended(version, "late")
                log.snapshot_late(version)
            case protocol.StepDone(version):
                self._ended(version, "complete")
                self._completed += version in log.records
            case protocol.MigrationDone(dropped):
                log.taken_back(dropped)
                say(Doing(Activity.MIGRATED if self._completed else Activity.STEADY))
            case protocol.StepLate():
                if self._appointments and self._appointments.leave():
                    who = ", ".join(f"slot {slot}" for slot in effect.missing)
                    raise MigrationFailed(
                        f"a step is late in phase {effect.phase} ({who}), and other replicas go on without this one"
                    )
                log.late(effect, self._machine.deadline_ms / 1000)
                say(Doing(Activity.ROLLED_BACK if effect.rolled_back else Activity.LATE))

    def _ended(self, version: Version, outcome: StepOutcome) -> None:
        if version in self._under_way:
            self._under_way.pop(version)()
        self.log.ended(version, outcome, now_us())

    def _listen(self, steps: Iterable[tuple[Version, Step]]) -> None:
        for version, _ in steps:
            if version not in self._under_way:
                self._under_way[version] = _listen_to(self._coordination, version, self._inbox.put)


def _listen_to(coordination: Coordination, version: Version, told: Callable[[Heard], None]) -> Callable[[], None]:
    """``told`` gets each acknowledgement of ``version``, once, until what this gives is called."""
    seen: set[str] = set()

    def changed(names: list[str]) -> None:
        for name in sorted(set(names) - seen):
            seen.add(name)

            def heard(machine: CoordinatorMachine, name: str = name) -> list[protocol.CoordinatorEffect]:
                phase, slot = nodes.phase_and_slot(name)
                return machine.acknowledged(phase, version, slot, _ms())

            told(heard)

    return coordination.watch_children(nodes.acks(version), changed)


def _ms() -> float:
    return time.monotonic() * 1000
