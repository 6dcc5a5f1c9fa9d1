"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back."""

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keyshift.executor.zookeeper import Coordination, steps_of, steps_to_json
from keyshift.keys import Assignment, Step
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine

TICK_S = 0.1
MakeSteps = Callable[[Assignment], Sequence[Step]]  # the steps of a migration from an assignment
Heard = Callable[[CoordinatorMachine], list[protocol.Effect]]  # something that happened, to be told to the machine


@dataclass(slots=True)
class StepRecord:
    """What happened in one step; times in microseconds since the epoch."""

    version: int
    step: Step
    published_us: int
    prepared_us: int | None = None
    switched_us: int | None = None
    completed_us: int | None = None
    outcome: str = "under way"  # or complete, rolled back, late, cancelled
    acknowledgements: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # (phase, slot) -> its data


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a migration, to be made at a moment (monotonic seconds); None cancels what has not begun.

    ``replace``: instead of what has not begun of earlier ones; otherwise after them.
    """

    at_s: float
    request: MakeSteps | None
    replace: bool = False


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election, and take over."""

    def __init__(self, coordination: Coordination, name: str, assignment: Assignment, deadline_s: float) -> None:
        self._coordination = coordination
        self._name = name
        self._machine = CoordinatorMachine(assignment, deadline_s * 1000)
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._began = False
        self._under_way: set[int] = set()  # versions
        self.history: list[Assignment] = [assignment]
        self.records: dict[int, StepRecord] = {}  # by version
        self.troubles: list[str] = []  # one line for each step that did not go as planned

    @property
    def assignment(self) -> Assignment:
        """What the routers route by, or were told to."""
        return self._machine.assignment

    def serve(self, wishes: list[Wish], until_s: float, say: Callable[[str], None], check: Callable[[], None]) -> None:
        """Lead until ``until_s`` (monotonic), or as much longer as migrations take; ``records`` has what happened.

        Each of ``wishes`` is granted when its moment comes, and is taken out of the list then. ``say`` hears the phase,
        ``check`` may raise if the job has died. A step that is late is rolled back, or left to go forward
        (``troubles``); the job goes on.
        """
        wishes.sort(key=lambda wish: wish.at_s)
        self._coordination.lead(self._name, lambda: self._lead(wishes, until_s, say, check))

    def cancel(self) -> None:
        """Take back what has not begun, as soon as ``serve`` gets to it."""
        self._inbox.put(lambda _: self._grant(Wish(0.0, None)))

    def _lead(self, wishes: list[Wish], until_s: float, say: Callable[[str], None], check: Callable[[], None]) -> None:
        effects = [] if self._began else self._take_over()
        while True:
            for effect in effects:
                self._carry_out(effect, say)
            now = time.monotonic()
            if wishes and now >= wishes[0].at_s:
                effects = self._grant(wishes.pop(0))
                continue
            if not wishes and not self._machine.busy and now >= until_s:
                return
            soon = min(TICK_S, max(0.0, (wishes[0].at_s if wishes else until_s) - now) or TICK_S)
            try:
                effects = self._inbox.get(timeout=soon)(self._machine)
            except queue.Empty:
                check()
                effects = self._machine.tick(_ms())

    def _grant(self, wish: Wish) -> list[protocol.Effect]:
        if wish.request is None:
            return self._machine.cancel(_ms())
        return self._machine.submit(wish.request, _ms(), wish.replace)

    def _take_over(self) -> list[protocol.Effect]:
        """Go on with what another coordinator left under way; nothing, if there was none."""
        self._began = True
        raw = self._coordination.read("steps")
        if raw is None:
            return []
        published = Assignment.from_json(self._coordination.require("assignment"))
        self._machine = CoordinatorMachine(published, self._machine.deadline_ms)
        self.history.append(published)
        version, steps = steps_of(raw)
        plan = self._coordination.require("plan")["steps"]
        rest = [Step.from_json(step) for step in plan[len(plan) - raw["rest"] :]]
        effects = self._machine.recover(version, steps, rest, [], _ms())
        self._begin(steps)  # what was acknowledged is heard again
        return effects

    def _carry_out(self, effect: protocol.Effect, say: Callable[[str], None]) -> None:
        now = _us()
        match effect:
            case protocol.PlanNext(request):
                say("planning")
                steps = request(self._machine.assignment)
                # For whoever takes over. None of it happens before it is said with ``steps`` how much of it is to come.
                self._coordination.publish("plan", {"steps": [step.to_json() for step in steps]})
                for more in self._machine.start(steps, _ms()):
                    self._carry_out(more, say)
            case protocol.PublishSteps(version, steps, rest):
                for of in self._under_way - dict(steps).keys():
                    self._ended(of, "cancelled")
                    if steps:  # it was ahead of them, and had not begun
                        del self.records[of]
                self._begin(steps)
                self._coordination.publish("steps", steps_to_json(version, steps, len(rest)))
                if steps and steps[0][0] > self._machine.assignment.version:
                    say(f"step {len(self.history)} preparing, {len(rest)} to come")
            case protocol.PublishAssignment(assignment, paused):
                self._coordination.publish("assignment", assignment.to_json() | {"paused": sorted(paused)})
                if assignment.version != self.history[-1].version:  # otherwise only the pause ends
                    record = self.records[assignment.version]
                    record.prepared_us = record.switched_us = now
                    say(f"step {len(self.history)} moving")
                    self.history.append(assignment)
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

    def _begin(self, steps: Iterable[tuple[int, Step]]) -> None:
        for version, step in steps:
            if version not in self.records:
                self.records[version] = StepRecord(version, step, _us())
                self._under_way.add(version)
                self._listen(version)

    def _ended(self, version: int, outcome: str) -> None:
        self._under_way.discard(version)
        if self.records[version].outcome == "under way":
            self.records[version].outcome, self.records[version].completed_us = outcome, _us()

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


def _us() -> int:
    return time.time_ns() // 1000
