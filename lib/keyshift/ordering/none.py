"""No order: a slot works on rows as they come, as one does whose job is not replicated.

A job without replicas needs no such machine; it is there to show what the others are for. Time is the slot's own, so a
turn says 0.
"""

from collections.abc import Iterable

from keyshift.ordering.machine import Ordering
from keyshift.ordering.model import Local, Position, Setting
from keyshift.runtime.row import KINDS, Row
from keyshift.runtime.turn import Turn


class Unordered(Ordering):
    """What has come makes a turn: barriers are among its rows."""

    def __init__(self, setting: Setting, position: Position) -> None:
        super().__init__(setting, position)
        self._here: list[Row] = []

    def arrived(self, rows: Iterable[Row]) -> None:
        """Take rows that have come: all of them are the core's, but for markers."""
        for row in rows:
            if row.kind in KINDS:
                self._here.append(row)
            else:
                self._effects.append(Local(row))

    def take(self, ready: bool) -> Turn | None:
        """What has come, whether the slot is ready or not: records of units that are not there wait in its core."""
        if not self._here:
            return None
        rows, self._here = self._here, []
        return self._rows(rows, 0, 0)

    def save(self) -> tuple[Position, list[Row]]:
        """Give where it stands, and what has come since the last turn."""
        position, _ = super().save()
        return position, list(self._here)
