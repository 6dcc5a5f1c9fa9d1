"""How the input of a slot ends: router by router at a savepoint, or all at once with the batch.

At a savepoint behind which the job goes on, it ends only until all state is written down.
"""

from dataclasses import dataclass, field

from keyshift.keys import Behind
from keyshift.protocol.slot.effects import Freeze


@dataclass(slots=True)
class Ending:
    """The end of the input from ``routers``."""

    routers: int
    over: bool = False  # with the batch, which is an implicit barrier from every router
    savepoint: str | None = None
    behind: Behind = "stop"
    stopped: set[int] = field(default_factory=set)  # routers that stand at the savepoint
    frozen: bool = False

    def stop(self, router: int, savepoint: str, behind: Behind) -> None:
        """``router`` stands at ``savepoint``."""
        self.savepoint, self.behind = savepoint, behind
        self.stopped.add(router)

    @property
    def at_savepoint(self) -> bool:
        """Whether every router stands there."""
        return len(self.stopped) == self.routers

    def freeze(self) -> list[Freeze]:
        """All state is here: it is written down if every router stands at a savepoint, once."""
        if self.savepoint is None or not self.at_savepoint or self.frozen:
            return []
        freeze = Freeze(self.savepoint, self.behind)
        if self.behind == "stop":
            self.frozen = True
        else:
            self.savepoint = None
            self.stopped.clear()
        return [freeze]
