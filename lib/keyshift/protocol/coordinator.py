"""The coordinator: one step after the other, each prepared, switched and acknowledged before the next begins."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from keyshift.errors import ProtocolViolation
from keyshift.keys import Assignment, Step

Phase = Literal["prepared", "installed", "released"]


@dataclass(frozen=True, slots=True)
class PublishStep:
    """Let the slots of ``step`` prepare for the switch to ``version``; ``rest`` is what comes after it."""

    version: int
    step: Step
    rest: tuple[Step, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class PublishAssignment:
    """Let the routers switch, and keep back what is for ``paused`` slots until this is published without them."""

    assignment: Assignment
    paused: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CancelStep:
    """The step of ``version`` does not happen; nothing was switched."""

    version: int


@dataclass(frozen=True, slots=True)
class MigrationDone:
    """Every step is complete, or (``cancelled`` of them) was taken back before it had begun."""

    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class MigrationFailed:
    """A phase passed its deadline; later steps are dropped and the job goes on.

    Rolled back: nothing was switched. Otherwise the step goes forward: what has not moved yet still waits, and a later
    migration begins when this step is complete.
    """

    version: int
    phase: str
    missing: tuple[int, ...]
    rolled_back: bool


@dataclass(frozen=True, slots=True)
class PlanNext:
    """Make a plan for ``request``, from the assignment as it is now, and ``start`` it."""

    request: Any


Effect = PublishStep | PublishAssignment | CancelStep | MigrationDone | MigrationFailed | PlanNext


@dataclass(slots=True)
class _Current:
    step: Step
    after: Assignment
    phase: Literal["preparing", "switching", "late"]
    since_ms: float
    waiting: dict[Phase, set[int]] = field(default_factory=dict)

    @property
    def slots(self) -> frozenset[int]:
        return frozenset(slot for move in self.step.moves for slot in (move.source, move.destination))


class CoordinatorMachine:
    """Runs the steps of one migration at a time over ``assignment``; further requests wait their turn."""

    def __init__(self, assignment: Assignment, deadline_ms: float) -> None:
        self.assignment = assignment
        self.deadline_ms = deadline_ms
        self._version = assignment.version  # the last one used: not used again for another step after a rollback
        self._rest: list[Step] = []
        self._dropped = 0
        self._requests: deque[Any] = deque()
        self._current: _Current | None = None

    @property
    def busy(self) -> bool:
        """Whether a migration is under way. One that failed forward is not, though its step may still end."""
        return self._current is not None and self._current.phase != "late"

    def start(self, steps: Iterable[Step], now_ms: float) -> list[Effect]:
        """Begin a migration, as soon as a step that is late has ended. Raises ProtocolViolation if one is under way."""
        if self.busy:
            raise ProtocolViolation("coordinator: a migration was started while another is under way")
        self._rest, self._dropped = list(steps), 0
        if self._current:
            self._current.phase, self._current.since_ms = "switching", now_ms
            return []
        return self._next(now_ms)

    def submit(self, request: Any, now_ms: float, replace: bool = False) -> list[Effect]:
        """Ask for a migration: after all others, or instead of what has not begun of them."""
        if replace:
            self._drop_rest()
        self._requests.append(request)
        return [] if self.busy else self._next_request()

    def cancel(self, now_ms: float) -> list[Effect]:
        """Take back what has not begun. The step under way is finished if it has switched, and rolled back if not."""
        self._drop_rest()
        current = self._current
        if current is None or current.phase != "preparing":
            return []
        self._dropped += 1
        self._current = None
        return [CancelStep(current.after.version), *self._next(now_ms)]

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
        if current.phase == "preparing":
            return [] if current.waiting["prepared"] else self._switch(current, now_ms)
        return [] if any(current.waiting.values()) else self._complete(current, now_ms)

    def tick(self, now_ms: float) -> list[Effect]:
        """Time passes. A step that is late before its switch is rolled back; one that is late after it goes forward."""
        current = self._current
        if current is None or current.phase == "late" or now_ms - current.since_ms <= self.deadline_ms:
            return []
        version = current.after.version
        self._rest = []
        self._requests.clear()
        if current.phase == "preparing":
            self._current = None
            missing = tuple(sorted(current.waiting["prepared"]))
            return [CancelStep(version), MigrationFailed(version, "prepare", missing, rolled_back=True)]
        current.phase = "late"
        missing = tuple(sorted(set().union(*current.waiting.values())))
        return [MigrationFailed(version, "transfer", missing, rolled_back=False)]

    def recover(
        self, version: int, step: Step | None, rest: Iterable[Step], done: Iterable[tuple[Phase, int]], now_ms: float
    ) -> list[Effect]:
        """Take over from a coordinator that is gone: ``step`` of ``version`` was published last (None: it was taken
        back), ``rest`` was to come, ``done`` was acknowledged. To be called on a new machine, with the assignment that
        was published last.
        """
        self._version = max(self._version, version)
        self._rest = list(rest)
        if step is None:
            return self._next(now_ms)
        if version > self.assignment.version:
            current = self._begin(step, Assignment(version, self.assignment.after(step).owner), "preparing", now_ms)
            effects: list[Effect] = [] if current.waiting["prepared"] else self._switch(current, now_ms)
        else:
            self._begin(step, self.assignment, "switching", now_ms)
            effects = []
        for phase, slot in done:
            effects += self.acknowledged(phase, version, slot, now_ms)
        return effects

    def _begin(
        self, step: Step, after: Assignment, phase: Literal["preparing", "switching"], now_ms: float
    ) -> _Current:
        sources, destinations = {m.source for m in step.moves}, {m.destination for m in step.moves}
        waiting: dict[Phase, set[int]] = {
            "prepared": set(sources | destinations) if phase == "preparing" else set(),
            "installed": set(destinations),
            "released": set(sources),
        }
        self._current = _Current(step, after, phase, now_ms, waiting)
        return self._current

    def _switch(self, current: _Current, now_ms: float) -> list[Effect]:
        current.phase, current.since_ms = "switching", now_ms
        self.assignment = current.after
        paused = current.slots if current.step.mode.gate == "router" else frozenset()
        return [PublishAssignment(current.after, paused)]

    def _complete(self, current: _Current, now_ms: float) -> list[Effect]:
        resume: list[Effect] = []
        if current.step.mode.gate == "router":
            resume.append(PublishAssignment(self.assignment))
        self._current = None
        if current.phase == "late":
            return resume
        return resume + self._next(now_ms)

    def _next(self, now_ms: float) -> list[Effect]:
        if not self._rest:
            self._current = None
            return [MigrationDone(self._dropped), *self._next_request()]
        step = self._rest.pop(0)
        self._version += 1
        after = Assignment(self._version, self.assignment.after(step).owner)
        self._begin(step, after, "preparing", now_ms)
        return [PublishStep(after.version, step, tuple(self._rest))]

    def _next_request(self) -> list[Effect]:
        return [PlanNext(self._requests.popleft())] if self._requests else []

    def _drop_rest(self) -> None:
        self._dropped += len(self._rest)
        self._rest = []
        self._requests.clear()
