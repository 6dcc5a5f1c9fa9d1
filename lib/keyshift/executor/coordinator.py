"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back."""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keyshift.executor.coordination import Coordination
from keyshift.keys import Assignment, Step
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine

TICK_S = 0.1
Request = Callable[[Assignment], Sequence[Step]]  # the steps of a migration from an assignment
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
    """A migration that is asked for at a moment (monotonic seconds): ``request``, or None to cancel what has not begun.

    ``replace``: instead of what has not begun of earlier ones; otherwise after them.
    """

    at_s: float
    request: Request | None
    replace: bool = False


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election, and take over."""

    def __init__(self, coordination: Coordination, name: str, assignment: Assignment, deadline_s: float) -> None:
        self._coordination = coordination
        self._name = name
        self._machine = CoordinatorMachine(assignment, deadline_s * 1000)
        self._inbox: queue.Queue[Heard] = queue.Queue()
        self._began = False
        self.history: list[Assignment] = [assignment]
        self.records: list[StepRecord] = []
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
        if wish.request is None or wish.replace:
            self._publish_plan([])
        if wish.request is None:
            return self._machine.cancel(_ms())
        return self._machine.submit(wish.request, _ms(), wish.replace)

    def _take_over(self) -> list[protocol.Effect]:
        """Go on with what another coordinator left under way; nothing, if there was none."""
        self._began = True
        step = self._coordination.read("step")
        if step is None:
            return []
        published = Assignment.from_json(self._coordination.require("assignment"))
        self._machine = CoordinatorMachine(published, self._machine.deadline_ms)
        self.history.append(published)
        version = step["version"]
        plan = [Step.from_json(raw) for raw in self._coordination.require("plan")["steps"]]
        current = None if step["cancelled"] else Step.from_json(step)
        rest = plan[plan.index(current) + 1 :] if current in plan else []
        if current is not None:
            self.records.append(StepRecord(version, current, _us()))
        effects = self._machine.recover(version, current, rest, [], _ms())
        self._listen(version)  # what was acknowledged is heard again
        return effects

    def _carry_out(self, effect: protocol.Effect, say: Callable[[str], None]) -> None:
        now, records = _us(), self.records
        match effect:
            case protocol.PlanNext(request):
                say("planning")
                steps = request(self._machine.assignment)
                self._publish_plan(steps)
                for more in self._machine.start(steps, _ms()):
                    self._carry_out(more, say)
            case protocol.PublishStep(version, step, rest):
                self._ended("complete")
                records.append(StepRecord(version, step, now))
                self._listen(version)
                self._coordination.publish("step", {"version": version, "cancelled": False} | step.to_json())
                say(f"step {len(records)} preparing, {len(rest)} to come")
            case protocol.PublishAssignment(assignment, paused):
                if assignment.version != self.history[-1].version:  # otherwise only the pause ends
                    records[-1].prepared_us = now
                    records[-1].switched_us = _us()
                    self.history.append(assignment)
                    say(f"step {len(records)} moving")
                self._coordination.publish("assignment", assignment.to_json() | {"paused": sorted(paused)})
            case protocol.CancelStep(version):
                self._ended("cancelled")
                self._coordination.publish("step", {"version": version, "cancelled": True})
            case protocol.MigrationDone(cancelled):
                self._ended("complete")
                if cancelled:
                    self.troubles.append(f"{cancelled} steps were taken back before they had begun")
                say("migrated")
            case protocol.MigrationFailed(version, phase, missing, rolled_back):
                records[-1].outcome = "rolled back" if rolled_back else "late"
                outcome = "rolled back" if rolled_back else "goes forward: what has not moved yet waits for its state"
                self.troubles.append(
                    f"step of version {version}: slots {list(missing)} did not finish phase {phase!r} within "
                    f"{self._machine.deadline_ms / 1000:g} s; {outcome}; the job goes on"
                )
                say(records[-1].outcome)

    def _publish_plan(self, steps: Sequence[Step]) -> None:
        """For whoever has to take over."""
        self._coordination.publish("plan", {"steps": [step.to_json() for step in steps]})

    def _ended(self, outcome: str) -> None:
        if self.records and self.records[-1].outcome == "under way":
            self.records[-1].outcome, self.records[-1].completed_us = outcome, _us()

    def _listen(self, version: int) -> None:
        """Puts each acknowledgement of ``version`` into the inbox, once."""
        seen: set[str] = set()
        record = self.records[-1] if self.records else None

        def changed(names: list[str]) -> bool:
            for name in sorted(set(names) - seen):
                seen.add(name)
                phase, slot = name.rsplit("-", 1)
                data = self._coordination.read(f"acks/{version}/{name}") or {}
                if record is not None:
                    record.acknowledgements[phase, int(slot)] = data

                def heard(machine: CoordinatorMachine, phase: Any = phase, slot: str = slot) -> list[protocol.Effect]:
                    return machine.acknowledged(phase, version, int(slot), _ms())

                self._inbox.put(heard)
            return version >= self._machine.assignment.version  # False ends the watch of an old step

        self._coordination.watch_children(f"acks/{version}", changed)


def _ms() -> float:
    return time.monotonic() * 1000


def _us() -> int:
    return time.time_ns() // 1000
