"""How a run ends, and whether what another process could go on from is then deleted: decided here, and nowhere else."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from keyshift.model.errors import Deposed, KeyshiftError
from keyshift.progress import Say


class Unwanted(KeyshiftError):
    """Ends a run when nobody wants the job any more, nor its verdict."""


class Ending(StrEnum):
    """How a run, or the process of a live job, ends."""

    STOPPED = "stopped"  # the verdict is stored
    GIVEN_UP = "given up"  # by who had started it
    DIED = "died"  # and nothing can go on with it: a run, or a job that keeps no journal or had not begun
    RESUMABLE = "resumable"  # a job that had begun, whatever has happened to it
    DEPOSED = "deposed"  # another process drives the job now, and all that there is of it is that one's

    @property
    def over(self) -> bool:
        """Whether nobody goes on with it: then topics, nodes in ZooKeeper, snapshots and the journal go."""
        return self not in (Ending.RESUMABLE, Ending.DEPOSED)


class RunEnd:
    """How one run ends. Nothing can go on with it, unless a subclass says otherwise."""

    outlives = False  # whether what there is of it may be there longer than its process

    def __init__(self) -> None:
        self.ending: Ending | None = None  # until it is decided
        self.error: BaseException | None = None  # of that decision; what comes while it is tidied up is not the reason
        self.deleted = False  # all that was to be
        self.undeleted: list[str] = []  # what could not be deleted, and why

    def resumable(self) -> bool:
        """Whether another process could go on with it."""
        return False

    def decided(self, ending: Ending) -> None:
        """Hear the ending before anything is deleted."""

    def decide(self, error: BaseException | None) -> Ending:
        """Decide how a run ends that ``error`` has ended, or that has stored its verdict. The first decision holds."""
        if self.ending is None:
            self.ending, self.error = self.of(error), error
            self.decided(self.ending)
        return self.ending

    def of(self, error: BaseException | None) -> Ending:
        """Give the ending that ``decide`` would choose."""
        if error is None:
            return Ending.STOPPED
        if isinstance(error, Deposed):
            return Ending.DEPOSED
        if isinstance(error, Unwanted):
            return Ending.GIVEN_UP
        return Ending.RESUMABLE if self.resumable() else Ending.DIED


def all_of(steps: Mapping[str, Callable[[], None]], say: Say) -> list[str]:
    """Carry out each of ``steps``, whatever becomes of the others, and give what failed. Raises Deposed at once."""
    failed = []
    for name, step in steps.items():
        try:
            step()
        except Deposed:
            raise
        except Exception as error:
            failed.append(f"{name} ({type(error).__name__}: {error})")
            say(f"cleaning up: {failed[-1]}")
    return failed
