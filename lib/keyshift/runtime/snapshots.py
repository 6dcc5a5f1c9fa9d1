"""What of a slot's state a snapshot has to write down: all of a unit once, later what has changed since.

The state goes on meanwhile: what is taken here is the driver's, to be written by another thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from keyshift.state import UnitState, rows
from keyshift.state.timers import Timers

NAME = "snapshot"  # of whom the changes are tracked for
# A unit is written as a whole again behind so many parts, and up to as many more: not all units at once.
MOST_PARTS = 24


@dataclass(frozen=True, slots=True)
class Part:
    """The ``whole`` state of a unit, or the rows that were set and the keys that were deleted since its part before.

    The timers are all there are.
    """

    unit: int
    timers: Timers
    whole: UnitState | None
    changed: list[rows.Row]
    deleted: list[int]


@dataclass(slots=True)
class _Written:
    state: UnitState
    edits: int  # of its timers
    keys: int  # when it was written as a whole
    parts: int = 1
    rows: int = 0  # in the parts behind the whole


class Snapshots:
    """Of one slot, during one batch."""

    def __init__(self) -> None:
        self._written: dict[int, _Written] = {}  # by unit

    def take(self, states: Mapping[int, UnitState]) -> list[Part]:
        """What is to be written of ``states``, as they are now; a unit in which nothing has changed has no part."""
        parts = []
        for unit, state in sorted(states.items()):
            before = self._written.get(unit)
            if before is None or before.state is not state:
                state.track(NAME)
                parts.append(self._whole(unit, state))
                continue
            changes, edits = state.changes(NAME), state.timers.edits
            if not changes and edits == before.edits:
                continue
            before.parts, before.rows, before.edits = before.parts + 1, before.rows + len(changes), edits
            if before.parts > MOST_PARTS + unit % MOST_PARTS or before.rows > before.keys:
                parts.append(self._whole(unit, state))
                continue
            found = state.take(sorted(changes))
            deleted = sorted(changes - {key for key, _ in found})
            parts.append(Part(unit, state.timers.copy(), None, found, deleted))
        for unit in self._written.keys() - states.keys():
            del self._written[unit]
        return parts

    def _whole(self, unit: int, state: UnitState) -> Part:
        self._written[unit] = _Written(state, state.timers.edits, len(state))
        return Part(unit, state.timers.copy(), state.copy(), [], [])

    def forget(self, parts: list[Part]) -> None:
        """They were not written: the next part of these units is the whole again."""
        for part in parts:
            self._written.pop(part.unit, None)
