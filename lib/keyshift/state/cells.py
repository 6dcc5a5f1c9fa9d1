"""The values of one state that are in Python, in front of a table."""

from typing import TYPE_CHECKING, Any

from keyshift.state.tracking import Noting, Value, ValueDict

if TYPE_CHECKING:
    from keyshift.state.cached import CachedStore

UNKNOWN: Any = object()  # neither a value nor None


class Cells(ValueDict[Value | None]):
    """The young values of one state; None for a key that is known to have none. ``place``: of the others, in the table.

    Its owner reads and sets without the lock. All else happens under the lock of the table, item by item: what is set
    meanwhile is not lost.
    """

    def __init__(self, store: "CachedStore", place: Any) -> None:
        super().__init__()
        self.store, self.place = store, place
        self.old: dict[int, Value | None] = {}
        self.dirty: set[int] = set()  # keys whose value in the table is another one
        self.blind: set[int] = set()  # those of them that nobody looked for before they were set
        self.count = 0  # of keys, as if all of ``blind`` had been there

    def __missing__(self, key: int) -> Value | None:
        return self.store.one(self, key)

    __hash__ = object.__hash__  # type: ignore[assignment]  # one is like no other
    __eq__ = object.__eq__

    def __setitem__(self, key: int, value: Value | None) -> None:
        before = self.get(key, UNKNOWN)
        if before is UNKNOWN:
            before = self.old.get(key, UNKNOWN)
        if before is UNKNOWN:
            self.blind.add(key)
        elif (before is None) != (value is None) and key not in self.blind:
            self.count += 1 if before is None else -1
        dict.__setitem__(self, key, value)
        self.dirty.add(key)

    def now(self, key: int) -> Value | None:
        """The value of a key that is here."""
        value = self.get(key, UNKNOWN)
        return self.old[key] if value is UNKNOWN else value

    def keep(self, key: int, value: Value | None) -> None:
        """``value`` is what the table has."""
        dict.__setitem__(self, key, value)

    def forget(self, key: int) -> None:
        """What the table has from now on is another value."""
        self.dirty.discard(key)
        self.pop(key, None)
        self.old.pop(key, None)

    def grow_old(self) -> None:
        """What was old goes."""
        self.old = {key: self.old[key] for key in list(self.dirty) if key in self.old}  # set since they were written
        while self:
            key, value = self.popitem()
            self.old[key] = value


class NotingCells(Noting[Value | None], Cells):
    """The same, with a note of every key that is set."""
