"""Keys that are still elsewhere although their unit's ownership is here: records wait per key, and ask for it once.

With transfer ``access`` a key that was asked for moves here. With ``remote`` it stays where it is: a copy comes, is
changed here and written back; without a cache the copy goes when nobody needs it any more.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from keyshift.model.keys import UnitId

Record = TypeVar("Record")


@dataclass(slots=True)
class _Unit(Generic[Record]):
    here: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    queues: dict[int, deque[Record]] = field(default_factory=dict)
    fetching: bool = False  # what no record asked for is on its way
    rest: bool = False  # and has come
    whole: bool = False  # and what was asked for, too


class AbsentKeys(Generic[Record]):
    """The absent keys of one slot's partial units. Like the slot's machine it never sees state or records' content."""

    def __init__(self) -> None:
        self._units: dict[UnitId, _Unit[Record]] = {}
        self._wanted: dict[UnitId, list[int]] = {}
        self._ripe: dict[UnitId, None] = {}  # units in which records may wait no longer, or which may be done
        self.waiting = 0  # records

    def __contains__(self, unit: UnitId) -> bool:
        return unit in self._units

    def open(self, unit: UnitId) -> None:
        """Note that ``unit`` has arrived without its keys."""
        self._units[unit] = _Unit()

    def admit(self, unit: UnitId, keys: Iterable[int]) -> set[int]:
        """Find which of ``keys`` of a partial unit have to wait; their records go to ``hold``."""
        part = self._units[unit]
        return {key for key in keys if key in part.queues or not (part.whole or key in part.here)}

    def hold(self, unit: UnitId, key: int, record: Record) -> None:
        """Queue a record of a key that ``admit`` said must wait; the key is asked for, once."""
        self._units[unit].queues.setdefault(key, deque()).append(record)
        self.waiting += 1
        self.want(unit, key)

    def want(self, unit: UnitId, key: int) -> None:
        """Ask for ``key``, once: it is needed, whether a record waits for it or not."""
        part = self._units[unit]
        if not part.whole and key not in part.here and key not in part.asked:
            part.asked.add(key)
            self._wanted.setdefault(unit, []).append(key)

    def requests(self) -> dict[UnitId, list[int]]:
        """Give the keys to ask for since the last call, by unit."""
        wanted, self._wanted = self._wanted, {}
        return wanted

    def arrived(self, unit: UnitId, keys: Iterable[int]) -> None:
        """Note that these keys are here, or are known to exist nowhere."""
        if part := self._units.get(unit):
            self._ripe[unit] = None
            part.here.update(keys)
            part.asked.difference_update(part.here)
            part.whole = part.rest and not part.asked

    def fetch_rest(self, unit: UnitId) -> bool:
        """Note that all keys that are elsewhere are to come. Gives whether nobody has asked for them before.

        From now on no copy is dropped: what comes may be older than what was written back.
        """
        part = self._units[unit]
        first, part.fetching = not part.fetching, True
        return first

    def arrived_whole(self, unit: UnitId) -> None:
        """Note that all keys that were elsewhere are here, but for those asked for before, which are on their way."""
        part = self._units[unit]
        self._ripe[unit] = None
        part.rest, part.whole = True, not part.asked

    def lacks(self, unit: UnitId, keys: Iterable[int]) -> set[int]:
        """Find which of ``keys`` are not here yet; what comes of the others is older than what is here."""
        part = self._units.get(unit)
        return set() if part is None or part.whole else {key for key in keys if key not in part.here}

    def evict(self, unit: UnitId, keys: Iterable[int]) -> set[int]:
        """Keep no copies of ``keys``, which are written back. Gives which of them may be dropped (nobody waits)."""
        part = self._units.get(unit)
        if part is None or part.fetching:
            return set()
        gone = {key for key in keys if key in part.here and key not in part.queues}
        part.here -= gone
        return gone

    def drain(self, most: int) -> tuple[list[Record], list[UnitId]]:
        """Give up to ``most`` records whose key is here by now, oldest first per key; and the units that are done:
        complete, with nothing waiting. They are not known here any more.
        """
        records: list[Record] = []
        done = []
        for unit in list(self._ripe):
            part = self._units[unit]
            for key in [key for key in part.queues if part.whole or key in part.here]:
                queue = part.queues[key]
                while queue and len(records) < most:
                    records.append(queue.popleft())
                if queue:
                    break
                del part.queues[key]
            else:
                del self._ripe[unit]
            if part.whole and not part.queues:
                del self._units[unit]
                done.append(unit)
        self.waiting -= len(records)
        return records, done
