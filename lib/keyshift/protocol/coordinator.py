"""The coordinator: one step after the other, each prepared, switched and acknowledged before the next begins."""

from dataclasses import dataclass, field
from typing import Literal

from keyshift.errors import ProtocolViolation
from keyshift.keys import Assignment, Step

Phase = Literal["prepared", "installed", "released"]


@dataclass(frozen=True, slots=True)
class PublishStep:
    """Let the slots of ``step`` prepare for the switch to ``version``."""

    version: int
    step: Step


@dataclass(frozen=True, slots=True)
class PublishAssignment:
    """Let the routers switch."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class CancelStep:
    """The step of ``version`` does not happen; nothing was switched."""

    version: int


@dataclass(frozen=True, slots=True)
class MigrationDone:
    """Every step is complete."""


@dataclass(frozen=True, slots=True)
class MigrationFailed:
    """A phase passed its deadline. ``rolled_back`` tells whether the job goes on with a consistent assignment."""

    version: int
    phase: str
    missing: tuple[int, ...]
    rolled_back: bool


Effect = PublishStep | PublishAssignment | CancelStep | MigrationDone | MigrationFailed


@dataclass(slots=True)
class _Current:
    step: Step
    after: Assignment
    phase: Literal["preparing", "switching"]
    since_ms: float
    waiting: dict[Phase, set[int]] = field(default_factory=dict)


class CoordinatorMachine:
    """Runs the steps of one migration at a time over ``assignment``."""

    def __init__(self, assignment: Assignment, deadline_ms: float) -> None:
        self.assignment = assignment
        self.deadline_ms = deadline_ms
        self._version = assignment.version  # the last one used: not used again for another step after a rollback
        self._rest: list[Step] = []
        self._current: _Current | None = None

    @property
    def busy(self) -> bool:
        """Whether a migration is under way."""
        return self._current is not None

    def start(self, steps: tuple[Step, ...], now_ms: float) -> list[Effect]:
        """Begin a migration. Raises ProtocolViolation if one is under way."""
        if self._current:
            raise ProtocolViolation("coordinator: a migration was started while another is under way")
        self._rest = list(steps)
        return self._next(now_ms)

    def acknowledged(self, phase: Phase, version: int, slot: int, now_ms: float) -> list[Effect]:
        """``slot`` finished ``phase`` of the step of ``version``. Repeated and outdated calls change nothing.

        Raises ProtocolViolation if a slot moved state before the switch.
        """
        current = self._current
        if current is None or version != current.after.version:
            return []
        if current.phase == "preparing" and phase != "prepared":
            raise ProtocolViolation(f"coordinator: slot {slot} reports {phase!r} before the switch to {version}")
        current.waiting[phase].discard(slot)
        if current.phase == "preparing" and not current.waiting["prepared"]:
            current.phase, current.since_ms = "switching", now_ms
            self.assignment = current.after
            return [PublishAssignment(current.after)]
        if current.phase == "switching" and not any(current.waiting.values()):
            return self._next(now_ms)
        return []

    def tick(self, now_ms: float) -> list[Effect]:
        """Time passes. A step that is late before its switch is rolled back; one that is late after it has failed."""
        current = self._current
        if current is None or now_ms - current.since_ms <= self.deadline_ms:
            return []
        version = current.after.version
        self._current, self._rest = None, []
        if current.phase == "preparing":
            missing = tuple(sorted(current.waiting["prepared"]))
            return [CancelStep(version), MigrationFailed(version, "prepare", missing, rolled_back=True)]
        missing = tuple(sorted(set().union(*current.waiting.values())))
        return [MigrationFailed(version, "transfer", missing, rolled_back=False)]

    def _next(self, now_ms: float) -> list[Effect]:
        if not self._rest:
            self._current = None
            return [MigrationDone()]
        step = self._rest.pop(0)
        self._version += 1
        after = Assignment(self._version, self.assignment.after(step).owner)
        sources, destinations = {m.source for m in step.moves}, {m.destination for m in step.moves}
        waiting: dict[Phase, set[int]] = {
            "prepared": set(sources | destinations),
            "installed": set(destinations),
            "released": set(sources),
        }
        self._current = _Current(step, after, "preparing", now_ms, waiting)
        return [PublishStep(after.version, step)]
