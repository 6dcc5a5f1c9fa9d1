"""The records that wait for the state of their unit."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from keyshift.model.keys import UnitId

Record = TypeVar("Record")


class Queues(dict[UnitId, deque[tuple[int, Record, int]]], Generic[Record]):
    """The records that wait, by unit, oldest first, with their routers and sizes. ``bytes``: the sizes of all of them.

    A unit that is expected has a queue, be it empty; any other has one as long as records are in it. ``filled``: the
    units of which records wait, in the order in which they began to.
    """

    def __init__(self, units: Iterable[UnitId]) -> None:
        super().__init__((unit, deque()) for unit in units)
        self.bytes = 0
        self.filled: dict[UnitId, None] = {}

    def open(self, unit: UnitId) -> None:
        """Give ``unit`` a queue from now on."""
        self.setdefault(unit, deque())

    def close(self, unit: UnitId) -> None:
        """Close the queue of ``unit``, which is here, if no record waits."""
        if not self.get(unit, True):
            del self[unit]

    def put(self, unit: UnitId, router: int, record: Record, size: int) -> None:
        """Put ``record``, of ``size`` bytes, behind all others of its unit."""
        self.open(unit)
        self[unit].append((router, record, size))
        self.bytes += size
        self.filled[unit] = None

    def take(self, unit: UnitId, most: int, routers: AbstractSet[int] | None = None) -> list[Record]:
        """The oldest records of ``unit``, up to ``most``; only those of ``routers``, if these are given."""
        queue = self[unit]
        records: list[Record] = []
        passed: list[tuple[int, Record, int]] = []
        while queue and len(records) < most:
            waiting = queue.popleft()
            if routers is None or waiting[0] in routers:
                records.append(waiting[1])
                self.bytes -= waiting[2]
            else:
                passed.append(waiting)
        queue.extendleft(reversed(passed))
        if not queue:
            self.filled.pop(unit, None)
        self.close(unit)
        return records
