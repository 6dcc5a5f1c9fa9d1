"""The complete snapshots that a job may go on from (Flink's completed checkpoint store)."""

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from keyshift.model.errors import Damaged, NotThere
from keyshift.model.keys import Version
from keyshift.model.records import SnapshotRecord
from keyshift.objects import surely
from keyshift.wire.savepoint import SavepointStore

KEPT = 2  # the newest, and the one before if it cannot be read


@dataclass(frozen=True, slots=True)
class CompletedSnapshot:
    """A complete snapshot. Results under its ``version`` and later ones come behind it. ``bytes``: that were written;
    ``unit_bytes``: those that make the state, by stage and unit.
    """

    name: str
    version: Version
    offsets: dict[int, int]
    bytes: int
    unit_bytes: dict[str, dict[int, int]]


class CompletedSnapshots:
    """The complete snapshots of a job, for any thread: the ``newest`` ``KEPT``, in the order in which they were taken.

    ``taken``: what is to be known of each that was ever complete in this process. ``on_disk``: how many of them there
    were when the journal that was written last was made.
    """

    def __init__(self) -> None:
        self.taken: list[SnapshotRecord] = []
        self.newest: tuple[CompletedSnapshot, ...] = ()
        self.on_disk = 0
        self._told = 0  # likewise, of the journal that was made last
        self._journaled: set[str] = set()  # names of those that a journal on disk may have
        self._superseded: set[str] = set()  # names of savepoints
        self._removed: set[str] = set()  # ... whose state is not there any more
        self._changing = threading.Lock()

    @property
    def last(self) -> CompletedSnapshot | None:
        """The newest snapshot, if there is one."""
        return self.newest[-1] if self.newest else None

    def add(self, snapshot: CompletedSnapshot, record: SnapshotRecord) -> None:
        """Add a snapshot that is complete."""
        with self._changing:
            self.newest = (*self.newest, snapshot)[-KEPT:]
        self.taken.append(record)

    def replace(self, snapshots: Iterable[CompletedSnapshot]) -> None:
        """Let only these count from now on."""
        with self._changing:
            self.newest = tuple(snapshots)[-KEPT:]

    def for_journal(self) -> list[CompletedSnapshot]:
        """Give the newest. None of them is removed from the store before ``journaled`` is told of a later journal."""
        with self._changing:
            self._told = len(self.taken)
            self._journaled = self._journaled | {snapshot.name for snapshot in self.newest}
            return list(self.newest)

    def journaled(self, names: Collection[str]) -> None:
        """Note that the journal that was made last is on disk and has these, and that no other one is there."""
        with self._changing:
            self._journaled, self.on_disk = set(names), self._told

    def supersede(self, savepoints: Iterable[str]) -> None:
        """Note that nobody goes on from these savepoints any more, whatever journal is on disk."""
        with self._changing:
            self._superseded |= set(savepoints) - self._removed

    @property
    def superseded(self) -> list[str]:
        """The names of savepoints whose state may go from the store."""
        with self._changing:
            return sorted(self._superseded)

    def removed(self, savepoint: str) -> None:
        """Note that the state of one of them is not there any more."""
        with self._changing:
            self._superseded.discard(savepoint)
            self._removed.add(savepoint)

    @property
    def needed(self) -> set[str]:
        """The names of those that have to stay in the store."""
        with self._changing:
            return self._journaled | {snapshot.name for snapshot in self.newest}


def is_damaged(store: SavepointStore, savepoint: str) -> bool:
    """Whether a savepoint or a snapshot cannot be read here, as a slot has said: what was gone may be back, or the slot
    had a fault of its own. Raises ServiceUnavailable.
    """
    try:
        surely(store.require_whole, savepoint, store.committed)
    except (Damaged, NotThere):
        return True
    return False
