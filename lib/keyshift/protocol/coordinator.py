"""The coordinator: one step after the other, each prepared, switched and acknowledged before the next switches.

While the slots of a step move their units, those of the next one prepare: it is *ahead*. A *snapshot* is a step in
which every slot takes part and nothing moves. It comes between two steps of a migration, or at any other time.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import NO_VERSION, Assignment, Step, Version

StepPhase = Literal["prepared", "installed", "released", "captured"]


@dataclass(frozen=True, slots=True)
class PublishSteps:
    """Let the slots of ``steps`` prepare; ``rest`` is what comes after them.

    ``steps``: what is under way, by the version it switches to, oldest first: at most one that has switched and is not
    complete, and the one ahead of it. ``version`` is the last one used: what is not among ``steps`` up to it is
    complete, or does not happen. ``rest`` is always the end of the plan that was made last: what was dropped is not in
    it, so whoever takes over does not do it.
    """

    version: Version
    steps: tuple[tuple[Version, Step], ...] = ()
    rest: tuple[Step, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Appointment:
    """Something that happens behind ``epoch``, which is a place on the schedule of each router; see ``ordering``.

    It ``holds`` when each of them has confirmed that it has not come so far. Until then none of them passes the epoch.
    """

    epoch: int
    holds: bool = False


@dataclass(frozen=True, slots=True)
class PublishAssignment:
    """Let the routers switch, and keep back records for ``paused`` slots until this is published without them.

    ``snapshot``: what the switch is for, if it moves nothing. ``appointment``: where they switch, if slots work in
    turns; until there they route by the assignment ``before``. Whoever carries this out makes it.
    """

    assignment: Assignment
    paused: frozenset[int] = frozenset()
    snapshot: str = ""
    appointment: Appointment | None = None
    before: Assignment | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """Every unit of the step of ``version`` is where it belongs."""

    version: Version


class Dropped(NamedTuple):
    """How much was taken back: it has not begun, and does not happen."""

    steps: int
    requests: int


NOTHING = Dropped(0, 0)


@dataclass(frozen=True, slots=True)
class MigrationDone:
    """Every step is complete, but for those that were taken back before they had begun."""

    dropped: Dropped = NOTHING


@dataclass(frozen=True, slots=True)
class StepLate:
    """A phase passed its deadline; later steps and waiting requests are dropped, and the job goes on.

    Rolled back: nothing was switched. Otherwise the step goes forward: records of units that have not moved still wait,
    the routers keep nothing back any more, and a later migration begins when this step is complete.
    """

    version: Version
    phase: str
    missing: tuple[int, ...]
    rolled_back: bool
    dropped: Dropped = NOTHING


@dataclass(frozen=True, slots=True)
class SnapshotLate:
    """A snapshot was given up, as some slots did not finish a phase before the deadline; the job goes on.

    If slots work in turns, and its switch was published, nothing else switches before all slots have come to it.
    """

    version: Version
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanNext:
    """Make a plan for ``request`` from the assignment as it is now, and give it to ``planned``; meanwhile goes on."""

    request: Any


CoordinatorEffect = PublishSteps | PublishAssignment | StepDone | MigrationDone | StepLate | SnapshotLate | PlanNext


@dataclass(slots=True)
class _UnderWay:
    step: Step
    after: Assignment
    progress: Literal["preparing", "switching", "late"]
    since_ms: float
    waiting: dict[StepPhase, set[int]]

    @property
    def version(self) -> Version:
        return self.after.version

    @property
    def slots(self) -> frozenset[int]:
        return frozenset(slot for move in self.step.moves for slot in (move.source, move.destination))


class CoordinatorMachine:
    """Runs the steps of one migration at a time over ``assignment``; further requests wait their turn.

    ``in_turns``: switches are appointed, and a router that begins a batch is told of the newest one alone. So none is
    published before all slots have come to the one before.
    """

    def __init__(self, assignment: Assignment, deadline_ms: float, slots: int, in_turns: bool = False) -> None:
        self.assignment = assignment
        self.deadline_ms = deadline_ms
        self._slots = slots  # those included that own nothing
        self._in_turns = in_turns
        self._version = assignment.version  # the last one used: not used again for another step after a rollback
        self._rest: list[Step] = []
        self._migrating = False
        self._dropped = NOTHING  # of the migration under way
        self._wanted = ""  # the snapshot to be taken next
        self._turn_of_steps = False  # a snapshot was begun last: a step that waits comes first
        self._requests: deque[Any] = deque()
        self._planning: Any = None  # the request for which a plan is made
        self._unwanted = False  # it was taken back meanwhile
        self.told_ms = -math.inf  # when routers had been told of the newest assignment: others may have had to agree
        self._current: _UnderWay | None = None
        self._ahead: _UnderWay | None = None  # only behind a current one that has switched

    @property
    def busy(self) -> bool:
        """Whether a migration is planned or under way. One that failed forward is not; its step may still end."""
        return self._planning is not None or self._migrating

    @property
    def late(self) -> bool:
        """Whether a step has failed forward and not ended: units are still to come. Not if a migration waits for it."""
        current = self._current
        return current is not None and current.progress == "late" and bool(current.step.moves)

    @property
    def unbegun(self) -> list[Any]:
        """The requests of which nothing was published, in their order."""
        planning = self._planning is not None and not self._unwanted
        return [*([self._planning] if planning else []), *self._requests]

    def planned(
        self, steps: Iterable[Step], begin: Assignment, now_ms: float, behind: Version = NO_VERSION
    ) -> list[CoordinatorEffect]:
        """Take the plan that ``PlanNext`` was about, made from the assignment ``begin``. Its steps have later versions
        than ``behind``: another coordinator may have used that.

        It begins, unless its request was taken back; if the assignment has changed meanwhile, it is made anew.
        """
        request, self._planning = self._planning, None
        if self._unwanted:
            return [MigrationDone(self._dropped), *self._next_request()]
        if begin.owner != self.assignment.owner:
            self._requests.appendleft(request)
            return self._next_request()
        if steps := list(steps):  # else no version is used, and nobody can know that this one was
            self._version = max(self._version, behind)
        return self.start(steps, now_ms)

    def start(self, steps: Iterable[Step], now_ms: float) -> list[CoordinatorEffect]:
        """Begin a migration, as soon as a step that is late has ended. Raises ProtocolViolation if one is under way."""
        if self.busy:
            raise ProtocolViolation("coordinator: a migration was started while another is under way")
        self._rest, self._dropped, self._migrating = list(steps), NOTHING, True
        if self._current is None:
            return self._next(now_ms)
        if self._current.progress == "late" and self._current.step.moves:
            self._current.progress, self._current.since_ms = "switching", now_ms
        return [self._publish()] if self._rest else []

    def snapshot(self, name: str, now_ms: float) -> list[CoordinatorEffect]:
        """Take a snapshot as soon as no step is under way; it replaces one that was asked for and has not begun."""
        self._wanted = name
        return [] if self._current else self._next(now_ms)

    def submit(self, request: Any, replace: bool = False) -> list[CoordinatorEffect]:
        """Ask for a migration: after all others, or instead of what has not begun of them."""
        effects = self._drop_rest() if replace else []
        self._requests.append(request)
        return effects if self.busy else effects + self._next_request()

    def cancel(self, now_ms: float) -> list[CoordinatorEffect]:
        """Take back what has not begun. The step under way is finished if it has switched, and rolled back if not.

        A plan that is being made is taken back when it comes.
        """
        effects = self._drop_rest()
        if self._current is None or self._current.progress != "preparing" or self._current.step.snapshot:
            return effects
        self._dropped = self._dropped._replace(steps=self._dropped.steps + 1)
        self._current = None
        return [self._publish(), *self._next(now_ms)]

    def acknowledged(self, phase: StepPhase, version: Version, slot: int, now_ms: float) -> list[CoordinatorEffect]:
        """Note that ``slot`` finished ``phase`` of the step of ``version``. Repeated and outdated calls change nothing.

        Raises ProtocolViolation if a slot moved state before the switch.
        """
        meant = next((each for each in (self._current, self._ahead) if each and each.version == version), None)
        if meant is None:
            return []
        if meant.progress == "preparing" and phase != "prepared":
            raise ProtocolViolation(f"coordinator: slot {slot} reports {phase!r} before the switch to {version}")
        meant.waiting[phase].discard(slot)
        return self._go_on(meant, now_ms) if meant is self._current else []

    def tick(self, now_ms: float) -> list[CoordinatorEffect]:
        """Let time pass. A step that is late before its switch is rolled back; one late after it goes forward."""
        current = self._current
        if current is None or current.progress == "late":
            return []
        if now_ms - max(current.since_ms, self.told_ms) <= self.deadline_ms:
            return []
        if current.step.snapshot:
            waiting = current.waiting["prepared" if current.progress == "preparing" else "captured"]
            given_up = SnapshotLate(current.version, tuple(sorted(waiting)))
            if self._in_turns and current.progress == "switching":
                current.progress = "late"
                return [given_up]
            self._current = None
            return [self._publish(), given_up, *self._next(now_ms)]
        effects = self._drop_rest()
        if current.progress == "preparing":
            self._migrating, self._current = False, None
            missing = tuple(sorted(current.waiting["prepared"]))
            late = StepLate(current.version, "prepare", missing, True, self._dropped)
            return [self._publish(), late, *self._next(now_ms)]
        current.progress = "late"
        self._migrating = False  # only now: another thread that sees this asks whether it is late
        if current.step.mode.gate == "router":  # nobody may be there any more when the step ends
            effects.append(PublishAssignment(self.assignment))
        missing = tuple(sorted(set().union(*current.waiting.values())))
        return [*effects, StepLate(current.version, "transfer", missing, False, self._dropped)]

    def recover(
        self, version: Version, steps: Iterable[tuple[Version, Step]], rest: Iterable[Step], now_ms: float
    ) -> list[CoordinatorEffect]:
        """Take over from a coordinator that is gone: ``version``, ``steps`` and ``rest`` were published last (see
        ``PublishSteps``). To be called on a new machine, with the assignment that was published last; what was
        acknowledged of these steps has to come once more (``acknowledged``).
        """
        self._version = max(self._version, version)
        self._rest = list(rest)
        under_way = [(of, step) for of, step in steps if of >= self.assignment.version]  # others are complete
        self._migrating = bool(self._rest or not under_way or any(step.moves for _, step in under_way))
        if not under_way:
            return self._next(now_ms)
        for of, step in under_way:
            if of == self.assignment.version:
                self._current = _under_way(step, self.assignment, self._slots, now_ms)
                self._current.progress, self._current.waiting["prepared"] = "switching", set()
            elif self._current is None:
                self._current = self._prepare(of, step, now_ms)
            else:
                self._ahead = self._prepare(of, step, now_ms)
        if self._current and self._current.progress == "switching" and self._ahead is None:
            return self._look_ahead(now_ms)
        return []

    def _prepare(self, version: Version, step: Step, now_ms: float) -> _UnderWay:
        after = Assignment(version, self.assignment.after(step).owner)
        return _under_way(step, after, self._slots, now_ms)

    def _prepare_next(self, step: Step, now_ms: float) -> _UnderWay:
        self._version = Version(self._version + 1)
        return self._prepare(self._version, step, now_ms)

    def _look_ahead(self, now_ms: float) -> list[CoordinatorEffect]:
        """Let the next step prepare, but not beside a snapshot: at its barriers no slot may have begun with another."""
        if not self._rest or self._wanted or (self._current and self._current.step.snapshot):
            return []
        self._ahead = self._prepare_next(self._rest.pop(0), now_ms)
        return [self._publish()]

    def _publish(self) -> PublishSteps:
        steps = tuple((each.version, each.step) for each in (self._current, self._ahead) if each)
        return PublishSteps(self._version, steps, tuple(self._rest))

    def _go_on(self, current: _UnderWay, now_ms: float) -> list[CoordinatorEffect]:
        if current.progress == "preparing":
            return [] if current.waiting["prepared"] else self._switch(current, now_ms)
        return [] if any(current.waiting.values()) else self._complete(current, now_ms)

    def _switch(self, current: _UnderWay, now_ms: float) -> list[CoordinatorEffect]:
        current.progress, current.since_ms = "switching", now_ms
        self.assignment = current.after
        paused = current.slots if current.step.mode.gate == "router" else frozenset()
        switch = PublishAssignment(current.after, paused, current.step.snapshot)
        return [switch, *self._look_ahead(now_ms)]

    def _complete(self, current: _UnderWay, now_ms: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = [StepDone(current.version)]
        if current.step.mode.gate == "router":
            effects.append(PublishAssignment(self.assignment))
        self._current, self._ahead = self._ahead, None
        if self._current is not None:
            self._current.since_ms = now_ms
            return effects + self._go_on(self._current, now_ms)
        following = self._next(now_ms)
        if current.step.snapshot and self._current is None:
            # What was acknowledged of it is withdrawn: whoever takes over later must not wait for that.
            effects.append(self._publish())
        return effects + following

    def _next(self, now_ms: float) -> list[CoordinatorEffect]:
        """Begin the next step, or a snapshot that is wanted: no step is under way."""
        effects: list[CoordinatorEffect] = []
        if self._migrating and not self._rest:
            self._migrating = False
            effects += [MigrationDone(self._dropped), *self._next_request()]
        if self._wanted and not (self._rest and self._turn_of_steps):
            step, self._wanted, self._turn_of_steps = Step((), snapshot=self._wanted), "", True
        elif self._rest:
            step, self._turn_of_steps = self._rest.pop(0), False
        else:
            return effects
        self._current = self._prepare_next(step, now_ms)
        return [*effects, self._publish()]

    def _next_request(self) -> list[CoordinatorEffect]:
        if not self._requests:
            return []
        self._planning, self._unwanted, self._dropped = self._requests.popleft(), False, NOTHING
        return [PlanNext(self._planning)]

    def _drop_rest(self) -> list[CoordinatorEffect]:
        """Take back what has not begun, requests too; what was published of it has to be published without it."""
        steps = len(self._rest) + (self._ahead is not None)
        planning = self._planning is not None
        requests = len(self._requests) + (planning and not self._unwanted)
        before = self._dropped
        self._dropped = Dropped(before.steps + steps, before.requests + requests)
        self._ahead, self._rest, self._unwanted = None, [], planning
        self._requests.clear()
        return [self._publish()] if steps else []


def _under_way(step: Step, after: Assignment, slots: int, now_ms: float) -> _UnderWay:
    sources, destinations = {m.source for m in step.moves}, {m.destination for m in step.moves}
    everybody = set(range(slots)) if step.snapshot else set[int]()
    waiting: dict[StepPhase, set[int]] = {
        "prepared": set(sources | destinations | everybody),
        "installed": set(destinations),
        "released": set(sources),
        "captured": everybody,
    }
    return _UnderWay(step, after, "preparing", now_ms, waiting)
