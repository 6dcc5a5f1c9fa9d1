"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back.

Whatever it is told, by any thread, goes through one inbox: requests, acknowledgements, plans. Plans are made by a
thread of their own, since a plan may wait for measurements and copies.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyshift.clock import now_us
from keyshift.executor.faults import Fault
from keyshift.executor.zookeeper import Coordination, steps_of, steps_to_json
from keyshift.keys import Assignment, Step
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine
from keyshift.protocol.record import StepRecord

TICK_S = 0.1
MakeSteps = Callable[[Assignment], Sequence[Step]]  # the steps of a migration from an assignment
Heard = Callable[[CoordinatorMachine], list[protocol.Effect]]  # something that happened, to be told to the machine


class CoordinatorDied(Exception):
    """A deliberate fault: the leader ends where it stands."""


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election, and take over."""

    def __init__(
        self,
        coordination: Coordination,
        name: str,
        assignment: Assignment,
        deadline_s: float,
        slots: int,
        say: Callable[[str], None] = lambda phase: None,
        at_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._coordination, self._name, self._slots, self._say = coordination, name, slots, say
        self._at_phase = at_phase  # ``prepare``, or ``switch``: about to be published
        self._machine = CoordinatorMachine(assignment, deadline_s * 1000, slots)
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._asked: dict[Heard, None] = {}  # what is in there and was asked for: a successor has to do it
        self._planner: threading.Thread | None = None
        self._thread: threading.Thread | None = None  # that leads
        self._began, self._ending = False, False
        self._under_way: set[int] = set()  # versions
        self.history: list[Assignment] = [assignment]
        self.records: dict[int, StepRecord] = {}  # by version
        self.snapshots: dict[str, int] = {}  # that were begun, and the versions behind them
        self.late_snapshots: set[str] = set()  # that were given up
        self.to_come: dict[int, Sequence[Step]] = {}  # of the plan under way, behind each snapshot's version
        self.troubles: list[str] = []  # one line for each step that did not go as planned

    @property
    def assignment(self) -> Assignment:
        """What the routers route by, or were told to."""
        return self._machine.assignment

    def assignment_of(self, version: int) -> Assignment:
        """That of ``version``, which was published."""
        return next(assignment for assignment in self.history if assignment.version == version)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def request(self, make_steps: MakeSteps, replace: bool = False) -> None:
        """Ask for a migration: after all others, or with ``replace`` instead of what has not begun of them.

        What ``make_steps`` raises ends ``lead``.
        """
        self._ask(lambda machine: machine.submit(make_steps, _ms(), replace))

    def snapshot(self, name: str) -> None:
        """Take a snapshot as soon as no step is under way; one that was asked for before and has not begun is not."""
        self._inbox.put(lambda machine: machine.snapshot(name, _ms()))

    def cancel(self) -> None:
        """Take back what has not begun."""
        self._ask(lambda machine: machine.cancel(_ms()))

    def _ask(self, heard: Heard) -> None:
        self._asked[heard] = None
        self._inbox.put(heard)

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
        self.history, self.records, self.troubles = before.history, before.records, before.troubles
        self.snapshots, self.late_snapshots, self.to_come = before.snapshots, before.late_snapshots, before.to_come
        for make_steps in before._machine.unbegun:
            self.request(make_steps)
        for heard in before._asked:
            self._ask(heard)

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
        forward (``troubles``); the job goes on.
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
                self._asked.pop(heard, None)
                self._carry_out_all(heard(self._machine))
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
            self._inbox.put(lambda machine: self._planned(machine, steps, current))

    def _planned(self, machine: CoordinatorMachine, steps: Sequence[Step], begin: Assignment) -> list[protocol.Effect]:
        # For whoever takes over. None of it happens before it is said with ``steps`` how much of it is to come.
        self._coordination.publish("plan", {"steps": [step.to_json() for step in steps]})
        return machine.planned(steps, begin, _ms())

    def _take_over(self) -> list[protocol.Effect]:
        """Go on with what another coordinator left under way; nothing, if there was none."""
        raw = self._coordination.read("steps")
        if raw is None:
            return []
        published = Assignment.from_json(self._coordination.require("assignment"))
        self._machine = CoordinatorMachine(published, self._machine.deadline_ms, self._slots)
        if published.version != self.history[-1].version:
            self.history.append(published)
        version, steps = steps_of(raw)
        plan = (self._coordination.read("plan") or {"steps": []})["steps"]  # none if it was only a snapshot
        rest = [Step.from_json(step) for step in plan[len(plan) - raw["rest"] :]]
        effects = self._machine.recover(version, steps, rest, [], _ms())
        self._hear(steps)  # what was acknowledged is heard again
        self._note(steps, rest, now_us())
        for of, _ in steps:
            if of < published.version:  # the next one has switched: this one's leader did not live to publish that
                self._ended(of, "complete")
        return effects

    def _carry_out_all(self, effects: Iterable[protocol.Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: protocol.Effect) -> None:
        now, say = now_us(), self._say
        match effect:
            case protocol.PlanNext(make_steps):
                say("planning")
                planning = (make_steps, self._machine.assignment)
                self._planner = threading.Thread(target=self._plan, args=planning, name="keyshift-planner", daemon=True)
                self._planner.start()
            case protocol.PublishSteps(version, steps, rest):
                for of in self._under_way - dict(steps).keys():
                    self._ended(of, "cancelled")
                    if steps:  # it was ahead of them, and had not begun
                        self.records.pop(of, None)
                self._hear(steps)
                self._coordination.publish("steps", steps_to_json(version, steps, len(rest)))
                self._note(steps, rest, now)
                if steps and steps[0][0] > self._machine.assignment.version and not steps[0][1].snapshot:
                    say(f"step {len(self.records)} preparing, {len(rest)} to come")
                    self._at_phase("prepare")
            case protocol.PublishAssignment(assignment, paused, snapshot):
                told = {"paused": sorted(paused), "snapshot": snapshot}
                if assignment.version != self.history[-1].version and not snapshot:
                    self._at_phase("switch")
                self._coordination.publish("assignment", assignment.to_json() | told)
                if assignment.version != self.history[-1].version:  # otherwise only the pause ends
                    if record := self.records.get(assignment.version):
                        record.prepared_us = record.switched_us = now
                        say(f"step {len(self.records)} moving")
                    self.history.append(assignment)
            case protocol.SnapshotLate(version):
                self._ended(version, "late")
                self.late_snapshots |= {name for name, of in self.snapshots.items() if of == version}
            case protocol.StepDone(version):
                self._ended(version, "complete")
            case protocol.MigrationDone(dropped):
                if any(dropped):
                    self.troubles.append(f"{_words(dropped)} were taken back before they had begun")
                say("migrated")
            case protocol.StepLate(version, phase, missing, rolled_back, dropped):
                record = self.records[version]
                record.outcome = "rolled back" if rolled_back else "late"
                outcome = "rolled back" if rolled_back else "goes forward: what has not moved yet waits for its state"
                also = f"; {_words(dropped)} behind it were dropped" if any(dropped) else ""
                self.troubles.append(
                    f"step of version {version}: slots {list(missing)} did not finish phase {phase!r} within "
                    f"{self._machine.deadline_ms / 1000:g} s; {outcome}{also}; the job goes on"
                )
                say(record.outcome)

    def _hear(self, steps: Iterable[tuple[int, Step]]) -> None:
        for version, _ in steps:
            if version not in self._under_way:
                self._under_way.add(version)
                self._listen(version)

    def _note(self, steps: Iterable[tuple[int, Step]], rest: Sequence[Step], at_us: int) -> None:
        """What was published, and only then: the version of what was not is another step's when another one leads.

        ``rest``: what comes behind ``steps``.
        """
        for version, step in steps:
            if step.snapshot:
                self.snapshots[step.snapshot] = version
                if rest:
                    self.to_come[version] = tuple(rest)
            elif version not in self.records:
                self.records[version] = StepRecord(version, step, at_us)

    def _ended(self, version: int, outcome: str) -> None:
        self._under_way.discard(version)
        if (record := self.records.get(version)) and record.outcome == "under way":
            record.outcome, record.completed_us = outcome, now_us()

    def read_acknowledgements(self) -> None:
        """Complete ``records``: what slots measured is of no interest while steps wait for each other."""
        for version, record in self.records.items():
            for name, data in self._coordination.read_below(f"acks/{version}").items():
                phase, slot = name.rsplit("-", 1)
                record.acknowledgements[phase, int(slot)] = data

    def _listen(self, version: int) -> None:
        """Puts each acknowledgement of ``version`` into the inbox, once."""
        seen: set[str] = set()

        def changed(names: list[str]) -> bool:
            for name in sorted(set(names) - seen):
                seen.add(name)
                phase, slot = name.rsplit("-", 1)

                def heard(machine: CoordinatorMachine, phase: Any = phase, slot: str = slot) -> list[protocol.Effect]:
                    return machine.acknowledged(phase, version, int(slot), _ms())

                self._inbox.put(heard)
            return version >= self._machine.assignment.version  # False ends the watch of an old step

        self._coordination.watch_children(f"acks/{version}", changed)


def _words(dropped: protocol.Dropped) -> str:
    counts = (dropped.steps, "steps"), (dropped.requests, "requests for a migration")
    return " and ".join(f"{count} {what}" for count, what in counts if count)


def _ms() -> float:
    return time.monotonic() * 1000
