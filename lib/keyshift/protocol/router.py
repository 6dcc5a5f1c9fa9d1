"""The router: adopts assignments at frame boundaries and tells every slot when it did."""

from dataclasses import dataclass

from keyshift.keys import Assignment


@dataclass(frozen=True, slots=True)
class Barrier:
    """To every slot: all later frames of this router are routed under ``version`` or a later one."""

    version: int


@dataclass(frozen=True, slots=True)
class SavepointBarrier:
    """To every slot: the next frame of this router belongs to the time after the savepoint."""

    savepoint: str


class RouterMachine:
    """One router. ``assignment`` is the one to route by, until ``boundary`` says otherwise."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.stopped_for: str | None = None  # the savepoint after which no data is forwarded any more
        self._next: Assignment | None = assignment  # the first boundary announces where we start
        self._savepoint: str | None = None

    def announce(self, assignment: Assignment) -> None:
        """A new assignment was published; it is adopted at the next boundary. Older versions are ignored."""
        if assignment.version > (self._next or self.assignment).version:
            self._next = assignment

    def request_savepoint(self, savepoint: str) -> None:
        """Ask for a savepoint barrier at the next boundary. Asking again for the same one changes nothing."""
        if self.stopped_for is None:
            self._savepoint = savepoint

    def boundary(self) -> list[Barrier | SavepointBarrier]:
        """To be called before each frame; the barriers go to every slot before anything of that frame."""
        barriers: list[Barrier | SavepointBarrier] = []
        if self._next is not None:
            self.assignment, self._next = self._next, None
            barriers.append(Barrier(self.assignment.version))
        if self._savepoint is not None:
            self.stopped_for, self._savepoint = self._savepoint, None
            barriers.append(SavepointBarrier(self.stopped_for))
        return barriers
