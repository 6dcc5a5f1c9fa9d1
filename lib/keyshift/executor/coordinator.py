"""The coordinator's shell: carries the machine's effects to ZooKeeper and brings the acknowledgements back."""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keyshift.errors import MigrationFailed
from keyshift.executor.coordination import Coordination
from keyshift.keys import Assignment, Step
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.coordinator import CoordinatorMachine

TICK_S = 0.1


@dataclass(slots=True)
class StepRecord:
    """What happened in one step; times in microseconds since the epoch."""

    version: int
    step: Step
    published_us: int
    prepared_us: int | None = None
    switched_us: int | None = None
    completed_us: int | None = None
    acknowledgements: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # (phase, slot) -> its data


class Coordinator:
    """Leads one attempt of a job. Only the elected one acts: others wait in ZooKeeper's election."""

    def __init__(self, coordination: Coordination, name: str, assignment: Assignment, deadline_s: float) -> None:
        self._coordination = coordination
        self._name = name
        self._machine = CoordinatorMachine(assignment, deadline_s * 1000)
        self._inbox: queue.Queue[tuple[protocol.Phase, int, int, dict[str, Any]]] = queue.Queue()
        self.history: list[Assignment] = [assignment]
        self.records: list[StepRecord] = []

    @property
    def assignment(self) -> Assignment:
        """What the routers route by, or were told to."""
        return self._machine.assignment

    def migrate(
        self, steps: tuple[Step, ...], say: Callable[[str], None], check: Callable[[], None]
    ) -> list[StepRecord]:
        """Run the steps to their end; ``say`` hears the phase, ``check`` may raise if the job has died.

        Raises MigrationFailed; the job goes on if the message says that the step was rolled back.
        """
        records: list[StepRecord] = []
        self._coordination.lead(self._name, lambda: self._lead(steps, records, say, check))
        return records

    def _lead(
        self,
        steps: tuple[Step, ...],
        records: list[StepRecord],
        say: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        effects = self._machine.start(steps, _ms())
        while True:
            for effect in effects:
                if self._carry_out(effect, records, say, len(steps)):
                    return
            try:
                phase, version, slot, data = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                check()
                effects = self._machine.tick(_ms())
                continue
            if records and version == records[-1].version:
                records[-1].acknowledgements[phase, slot] = data
            effects = self._machine.acknowledged(phase, version, slot, _ms())

    def _carry_out(
        self, effect: protocol.Effect, records: list[StepRecord], say: Callable[[str], None], steps: int
    ) -> bool:
        """True when the migration is over."""
        now = time.time_ns() // 1000
        match effect:
            case protocol.PublishStep(version, step):
                if records:
                    records[-1].completed_us = now
                records.append(StepRecord(version, step, now))
                self.records.append(records[-1])
                self._coordination.watch_children(f"acks/{version}", self._listener(version))
                self._coordination.publish("step", {"version": version, "moves": step.to_json(), "cancelled": False})
                say(f"step {len(records)}/{steps} preparing")
            case protocol.PublishAssignment(assignment):
                records[-1].prepared_us = now
                records[-1].switched_us = time.time_ns() // 1000
                self.history.append(assignment)
                self._coordination.publish("assignment", assignment.to_json())
                say(f"step {len(records)}/{steps} moving")
            case protocol.CancelStep(version):
                self._coordination.publish("step", {"version": version, "moves": [], "cancelled": True})
            case protocol.MigrationDone():
                if records:
                    records[-1].completed_us = now
                say("migrated")
                return True
            case protocol.MigrationFailed(version, phase, missing, rolled_back):
                outcome = "rolled back, the job goes on" if rolled_back else "the job cannot go on"
                raise MigrationFailed(
                    f"step of version {version}: slots {list(missing)} did not finish phase {phase!r} within "
                    f"{self._machine.deadline_ms / 1000:g} s; {outcome}"
                )
        return False

    def _listener(self, version: int) -> Callable[[list[str]], bool]:
        """For kazoo's thread: puts each acknowledgement into the inbox once."""
        seen: set[str] = set()

        def changed(names: list[str]) -> bool:
            for name in sorted(set(names) - seen):
                seen.add(name)
                phase, slot = name.rsplit("-", 1)
                data = self._coordination.read(f"acks/{version}/{name}") or {}
                self._inbox.put((phase, version, int(slot), data))  # type: ignore[arg-type]
            return version >= self._machine.assignment.version  # False ends the watch of an old step

        return changed


def _ms() -> float:
    return time.monotonic() * 1000
