"""The slot of a replicated job, which has the barriers of all routers at once, between two turns.

State comes early in one replica and late in another one. So that state has come must count for nothing as long as the
barriers of its step were not delivered here, even if other slots have theirs.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from keyshift.model.keys import UnitId, Version
from keyshift.protocol.slot.machine import SlotMachine
from keyshift.protocol.slot.queues import Record
from keyshift.protocol.slot.situation import ActiveStep


class TurnMachine(SlotMachine[Record]):
    """One slot that works in turns."""

    @property
    def all_here(self) -> bool:
        """Whether no record can come whose unit is elsewhere: the next turn may be worked on."""
        return self.expected <= self._of_later

    @property
    def _of_later(self) -> AbstractSet[UnitId]:
        """Units that are this slot's only behind barriers that were not delivered."""
        step = self._step
        return step.arriving if step and step.version not in self._heard.values() else frozenset()

    def version_of(self, unit: UnitId) -> Version:
        """The version of the barriers that were delivered last: what is here then belongs here. When a step ends in a
        slot is up to how quickly state travels.
        """
        return Version(max(self._heard.values()))

    def idle(self, units: Iterable[UnitId]) -> list[UnitId]:
        """See ``Situation.idle``. No time passes for what came early: it left a slot that may be behind this one."""
        later = self._of_later
        return super().idle(unit for unit in units if unit not in later)

    def stands(self, unit: UnitId) -> bool:
        """Say no: a unit leaves with the barriers of all routers, and no record is worked on between them.

        A slot without turns takes state that has come for a sign that routers have switched, and stops the time of what
        leaves.
        """
        return False

    def _installed(self, step: ActiveStep) -> bool:
        """Whether all is installed: not before the barriers, as an ended step says nothing of what came early."""
        return self._ready(step) and super()._installed(step)
