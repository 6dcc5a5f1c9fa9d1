"""What of a slot's state a snapshot has to write down: all of a unit once, later what has changed since.

The state goes on meanwhile: what is taken here is the shell's, to be written by another thread. Each part has a number
and names the one that it follows: a unit's parts are its state if each follows the one before, and the first follows
none. So whoever puts them together sees whether one of them got lost.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from keyshift.model.keys import UnitId
from keyshift.state import UnitState, rows
from keyshift.state.timers import Timers

NAME = "snapshot"  # of whom the changes are tracked for
# A unit is written as a whole again behind so many parts, and up to as many more: not all units at once.
MOST_PARTS = 24
WHOLE = "-whole"  # the end of a snapshot's name, if it has all units as wholes: of what was written before some is gone


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The ``whole`` state of a unit, or the rows that were set and the keys that were deleted since its part before.

    The timers are all there are. ``number``: of the call of ``take``, from 1. ``follows``: the number of the part
    before; 0 for a whole.
    """

    unit: UnitId
    number: int
    follows: int
    timers: Timers
    whole: UnitState | None
    changed: list[rows.KeyValue]
    deleted: list[int]


@dataclass(slots=True)
class _Written:
    state: weakref.ref[UnitState]  # the slot may be in another process by now: then nobody else needs it
    number: int
    edits: int  # of its timers
    keys: int  # when it was written as a whole
    parts: int = 1
    rows: int = 0  # in the parts behind the whole


class Snapshots:
    """The snapshots of one slot, as long as it stays in its process. ``tracks`` what changes for the next one;
    otherwise each has all units as wholes: what changes for days, with none to come, would fill the memory.
    """

    def __init__(self, tracks: bool = True) -> None:
        self._tracks = tracks
        self._written: dict[UnitId, _Written] = {}  # by unit; none, if nothing is tracked
        self._number = 0

    def take(self, states: Mapping[UnitId, UnitState], whole: bool = False) -> list[SnapshotPart]:
        """Take what is to be written of ``states``, as they are now; a unit in which nothing has changed has no part.
        ``whole``: all of each unit, whatever was written before.
        """
        self._number += 1
        if whole:
            self._written.clear()
        parts = []
        for unit, state in sorted(states.items()):
            before = self._written.get(unit)
            if before is None or before.state() is not state:
                if self._tracks:
                    state.track(NAME)
                parts.append(self._whole(unit, state))
                continue
            changes, edits = state.changed_keys(NAME), state.timers.edits
            if not changes and edits == before.edits:
                continue
            before.parts, before.rows, before.edits = before.parts + 1, before.rows + len(changes), edits
            if before.parts > MOST_PARTS + unit % MOST_PARTS or before.rows > before.keys:
                parts.append(self._whole(unit, state))
                continue
            found = state.take(sorted(changes))
            deleted = sorted(changes - {key for key, _ in found})
            its = unit, self._number, before.number, state.timers.copy()
            parts.append(SnapshotPart(*its, None, found, deleted))
            before.number = self._number
        for unit in self._written.keys() - states.keys():
            del self._written[unit]
        return parts

    def _whole(self, unit: UnitId, state: UnitState) -> SnapshotPart:
        if self._tracks:
            self._written[unit] = _Written(weakref.ref(state), self._number, state.timers.edits, len(state))
        return SnapshotPart(unit, self._number, 0, state.timers.copy(), state.copy(), [], [])

    def forget(self, parts: list[SnapshotPart]) -> None:
        """Forget ``parts`` that were not written: the next part of these units is the whole again."""
        for part in parts:
            self._written.pop(part.unit, None)
