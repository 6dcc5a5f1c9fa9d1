"""How the input of a slot ends: router by router at a savepoint, or all at once with the batch.

At a snapshot it only stands still: what a router sends behind it is kept back until all state was looked at.
"""

from dataclasses import dataclass, field

from keyshift.model.keys import Version
from keyshift.protocol.slot.effects import Freeze


@dataclass(slots=True)
class InputEnd:
    """The end of the input from ``routers``."""

    routers: int
    over: bool = False  # with the batch, which is an implicit barrier from every router
    savepoint: str | None = None
    stopped: set[int] = field(default_factory=set)  # routers that stand at the savepoint
    frozen: bool = False

    def stop(self, router: int, savepoint: str) -> None:
        """Note that ``router`` stands at ``savepoint``."""
        self.savepoint = savepoint
        self.stopped.add(router)

    @property
    def at_savepoint(self) -> bool:
        """Whether every router stands there."""
        return len(self.stopped) == self.routers

    def freeze(self) -> list[Freeze]:
        """Have all state written down, as it is here, if every router stands at a savepoint; once."""
        if self.savepoint is None or not self.at_savepoint or self.frozen:
            return []
        self.frozen = True
        return [Freeze(self.savepoint)]


@dataclass(slots=True)
class PendingSnapshot:
    """A snapshot that was published, until this slot's state was looked at, or it does not happen."""

    name: str
    version: Version  # under which all behind it is routed
    standing: set[int] = field(default_factory=set)  # routers whose records belong to the time behind it
    prepared: bool = False  # all state was here, and that was reported
