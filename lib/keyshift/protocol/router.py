"""The router: adopts assignments at frame boundaries and tells every slot when it did."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from keyshift.model.keys import Assignment, Version

NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Barrier:
    """To every slot: all later frames of this router are routed under ``version`` or a later one.

    With ``snapshot`` they belong to the time after the snapshot of that name.
    """

    version: Version
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class SavepointBarrier:
    """To every slot: nothing of this router comes any more, its next frame belongs to the time after the savepoint."""

    savepoint: str


@dataclass(frozen=True, slots=True)
class Resume:
    """What was kept back for paused slots goes out now, in its order and before anything else."""


@dataclass(frozen=True, slots=True)
class CaptureBarrier:
    """To every slot: the state is to be written down as it is here; see ``row.CAPTURE``."""

    snapshot: str


RouterEffect = Barrier | SavepointBarrier | CaptureBarrier | Resume


class RouterMachine:
    """One router. ``assignment`` is the one to route by, until ``boundary`` says otherwise.

    ``paused``: slots whose records are kept back here (gate ``router``); barriers and ticks go to them all the same.
    """

    def __init__(self, assignment: Assignment, paused: AbstractSet[int] = NOBODY) -> None:
        self.assignment = assignment
        self.paused: AbstractSet[int] = NOBODY
        self.stopped_for: str | None = None  # the savepoint after which no data is forwarded any more
        self._next: Assignment | None = assignment  # the first boundary announces where we start
        self._next_snapshot = ""  # that the switch to it belongs to; in the middle of a batch only
        self._next_paused = paused
        self._savepoint: str | None = None  # whose barrier goes out at the next boundary
        self._capture: str | None = None  # likewise, of a snapshot that is no switch

    def announce(self, assignment: Assignment, paused: AbstractSet[int] = NOBODY, snapshot: str = "") -> None:
        """Take a new assignment that was published, or other pauses under the same; they count from the next boundary.

        Older versions are ignored. ``snapshot``: what the switch is for, if it moves nothing.
        """
        newest = self.newest
        if assignment.version > newest:
            self._next, self._next_snapshot = assignment, snapshot
        if assignment.version >= newest:
            self._next_paused = paused

    def release(self) -> None:
        """Pause no slot any more, from the next boundary on: the step that paused some is complete."""
        self._next_paused = NOBODY

    def request_savepoint(self, savepoint: str) -> None:
        """Ask for a savepoint barrier at the next boundary. Asking again changes nothing."""
        if self.stopped_for is None:
            self._savepoint = savepoint

    def request_capture(self, snapshot: str) -> None:
        """Ask for the barrier of a snapshot that is no switch, at the next boundary: not behind a savepoint."""
        if self.stopped_for is None:
            self._capture = snapshot

    @property
    def newest(self) -> Version:
        """The version of the newest assignment that was announced."""
        return (self._next or self.assignment).version

    @property
    def may_resume(self) -> bool:
        """Whether the next boundary lets go what was kept back."""
        return self._next is not None or not self._next_paused

    def boundary(self) -> list[RouterEffect]:
        """Switch to what was announced, and give what follows: Resume, and the barriers that go to every slot before
        anything of the next frame. To be called before each frame.
        """
        effects: list[RouterEffect] = []
        if self.paused and self.may_resume:
            effects.append(Resume())  # a newer version is there, so the step that paused is complete
        self.paused = self._next_paused
        if self._next is not None:
            self.assignment, self._next = self._next, None
            effects.append(Barrier(self.assignment.version, self._next_snapshot))
            self._next_snapshot = ""
        if self._capture is not None:
            effects.append(CaptureBarrier(self._capture))
            self._capture = None
        if self._savepoint is not None and not self.paused:
            self.stopped_for, self._savepoint = self._savepoint, None
            effects.append(SavepointBarrier(self.stopped_for))
        return effects
