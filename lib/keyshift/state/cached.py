"""States whose values are outside of Python, in a *table*: what is in use is kept here as Python values, and some more.

A store has two generations of values. Those that were used lately are *young*. When they are many, the *old* ones go
and the young ones become old; a value that is used again becomes young again. What was changed is written before it
goes, or with the next load if the store writes ``through``. So a load is one exchange with the table: what is due to be
written, and what is wanted and not here.

Several threads may be in one store at a time, each with states of its own; the store's lock is held while something
goes to the table or values change their generation.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from keyshift.model.errors import ProtocolViolation
from keyshift.state.packing import Packing, in_chunks
from keyshift.state.timers import Timers

Value = tuple[Any, ...]
Changes = dict[int, bytes | None]  # None: the key is deleted

_UNKNOWN: Any = object()
_SLICE_KEYS = 256  # written or read at a time where all of a state is
_VALUE_BYTES = 200  # of memory that a value takes beside its bytes: a tuple, an int, two entries of a dictionary


class Cells(dict[int, Value | None]):
    """The young values of one state; None for a key that is known to have none. ``place``: of the others, in the table.

    Its owner reads and sets without the lock. All else happens under the lock of the store, item by item: what is set
    meanwhile is not lost.
    """

    def __init__(self, store: "CachedStore", place: Any) -> None:
        super().__init__()
        self.store, self.place = store, place
        self.old: dict[int, Value | None] = {}
        self.dirty: set[int] = set()  # keys whose value in the table is another one
        self.blind: set[int] = set()  # those of them that nobody looked for before they were set
        self.count = 0  # of keys, as if all of ``blind`` had been there
        self.changed: set[int] = set()
        self.told: dict[str, set[int]] = {}  # what was changed before, by who has not asked for it yet

    def __missing__(self, key: int) -> Value | None:
        return self.store.one(self, key)

    __hash__ = object.__hash__  # type: ignore[assignment]  # one is like no other
    __eq__ = object.__eq__

    def __setitem__(self, key: int, value: Value | None) -> None:
        before = self.get(key, _UNKNOWN)
        if before is _UNKNOWN:
            before = self.old.get(key, _UNKNOWN)
        if before is _UNKNOWN:
            self.blind.add(key)
        elif (before is None) != (value is None) and key not in self.blind:
            self.count += 1 if before is None else -1
        dict.__setitem__(self, key, value)
        self.dirty.add(key)

    def tell(self) -> None:
        """``changed`` to all who track it."""
        for told in self.told.values():
            told |= self.changed
        self.changed.clear()

    def now(self, key: int) -> Value | None:
        """The value of a key that is here."""
        value = self.get(key, _UNKNOWN)
        return self.old[key] if value is _UNKNOWN else value

    def keep(self, key: int, value: Value | None) -> None:
        """``value`` is what the table has."""
        dict.__setitem__(self, key, value)

    def grow_old(self) -> None:
        """What was old goes."""
        self.old = {key: self.old[key] for key in list(self.dirty) if key in self.old}  # set since they were written
        while self:
            key, value = self.popitem()
            self.old[key] = value


class TrackedCells(Cells):
    """The same, with a note of every key that is set."""

    def __setitem__(self, key: int, value: Value | None) -> None:
        super().__setitem__(key, value)
        self.changed.add(key)


class CachedState:
    """See ``UnitState``."""

    shared = False

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.timers = Timers()

    @property
    def values(self) -> Cells:  # noqa: D102
        return self.cells

    def delete(self, key: int) -> None:  # noqa: D102
        self.cells[key] = None

    def __len__(self) -> int:
        return self.cells.store.count(self.cells)

    def keys(self) -> list[int]:  # noqa: D102
        return self.cells.store.keys(self.cells)

    def take(self, keys: Iterable[int]) -> list[tuple[int, Value]]:  # noqa: D102
        return self.cells.store.take(self.cells, keys)

    def track(self, who: str) -> None:  # noqa: D102
        self.cells.tell()
        self.cells.told[who] = set()
        self.cells.__class__ = TrackedCells  # in place: whoever holds the values writes to these from now on

    def changes(self, who: str) -> set[int]:  # noqa: D102
        self.cells.tell()
        found, self.cells.told[who] = self.cells.told[who], set()
        return found

    def copy(self) -> "CachedState":  # noqa: D102
        return type(self)(self.cells.store.copied(self.cells))

    def export(self, chunk_bytes: int) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return self.cells.store.export(self.cells, chunk_bytes)

    def install(self, batches: Iterable[pa.RecordBatch]) -> None:  # noqa: D102
        self.cells.store.install(self.cells, batches)

    def hand_over(self) -> str | None:  # noqa: D102
        return None


class CachedStore(ABC):
    """See ``Store``. ``keep_bytes``: of values that stay here between two loads, about; 0: none. ``through``: with each
    load all changes are written, or only what is to go.
    """

    def __init__(self, schema: pa.Schema, keep_bytes: int, through: bool) -> None:
        self.packing = Packing(schema)
        self._keep_bytes, self._through = keep_bytes, through
        self._value_bytes = 1024.0  # of a value, about
        self.lock = threading.RLock()
        self._alive: weakref.WeakSet[Cells] = weakref.WeakSet()
        self._touched: set[Cells] = set()  # since the last load
        self._due: deque[tuple[Cells, list[int]]] = deque()  # old values that are to be written before they go
        self._young = 0  # values that became so since the last change of generations
        self._gone: deque[Any] = deque()  # places that nobody refers to any more

    # -- the table ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def exchange(
        self, written: list[tuple[Any, Changes]], wanted: list[tuple[Any, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        """Write, then read, each by place; one round trip. Under the lock."""

    @abstractmethod
    def scan(self, place: Any) -> Iterator[tuple[int, bytes]]:
        """All that is there, each key once; from any thread."""

    @abstractmethod
    def scan_keys(self, place: Any) -> Iterable[int]:
        """All keys that are there."""

    @abstractmethod
    def fill(self, place: Any, parts: Iterable[tuple[list[int], list[bytes]]]) -> None:
        """Many values come to a place where nothing is yet; from any thread."""

    @abstractmethod
    def place(self, unit: int) -> Any:
        """A new place."""

    @abstractmethod
    def copied_place(self, place: Any) -> Any:
        """One in which all is as it is here now. Under the lock."""

    @abstractmethod
    def drop(self, places: list[Any]) -> None:
        """Nobody needs these any more. Under the lock."""

    def cells(self, place: Any) -> Cells:
        """Those of a place; it is dropped when nobody refers to them any more."""
        cells = Cells(self, place)
        weakref.finalize(cells, self._gone.append, place).atexit = False
        return cells

    def _living(self, place: Any) -> Cells:
        """The same, whose values grow old."""
        cells = self.cells(place)
        with self.lock:
            self._alive.add(cells)
        return cells

    # -- a store ------------------------------------------------------------------------------------------------------

    def unit(self, unit: int) -> Any:  # noqa: D102
        return CachedState(self._living(self.place(unit)))

    def adopt(self, unit: int, reference: str) -> Any:
        """Never called, unless states are shared."""
        raise ProtocolViolation(f"unit {unit} cannot be taken over by reference: its values are in another process")

    def load(self, wanted: Iterable[tuple[Any, Collection[int]]]) -> None:  # noqa: D102
        with self.lock:
            used: list[tuple[Cells, Collection[int]]] = [(state.cells, keys) for state, keys in wanted]
            changes = self._changes_due(sum(len(keys) for _, keys in used))
            lacking = [(cells, missing) for cells, keys in used if (missing := self._recall(cells, keys))]
            found = self._exchange(changes, lacking)
            if not self._keep_bytes:
                self._forget(self._touched)
            for (cells, missing), values in zip(lacking, found, strict=True):
                for key, data in zip(missing, values, strict=True):
                    cells.keep(key, self._unpacked(data))
                self._young += len(missing)
            self._touched = {cells for cells, _ in used}
            if self._keep_bytes and self._young * (self._value_bytes + _VALUE_BYTES) > self._keep_bytes / 2:
                self._change_generations()

    def checkpoint(self) -> None:  # noqa: B027 - nothing to do: an export looks at what is not written yet
        """See ``Store``."""

    def close(self) -> None:  # noqa: D102
        with self.lock:
            self._alive.clear()

    def _recall(self, cells: Cells, keys: Collection[int]) -> list[int]:
        """Old values become young; which keys are not here, or are about to go."""
        if not self._keep_bytes:
            return [key for key in keys if key not in cells.dirty]
        missing = []
        for key in keys:
            if key not in cells:
                value = cells.old.pop(key, _UNKNOWN)
                if value is _UNKNOWN:
                    missing.append(key)
                else:
                    cells.keep(key, value)
                    self._young += 1
        return missing

    def _forget(self, some: Iterable[Cells]) -> None:
        for cells in some:
            for key in cells.keys() - cells.dirty:
                cells.pop(key, None)

    def _changes_due(self, wanted: int) -> list[tuple[Cells, Changes]]:
        if self._through:
            return [(cells, self._packed(cells)) for cells in self._touched if cells.dirty]
        changes = []
        room = 2 * wanted  # so that all is written before the next change of generations
        while self._due and room > 0:
            cells, keys = self._due.popleft()
            if keys := [key for key in keys if key in cells.dirty and key not in cells]:
                changes.append((cells, self._packed(cells, keys)))
                room -= len(keys)
        return changes

    def _change_generations(self) -> None:
        alive = list(self._alive)
        late = [(cells, keys) for cells in alive if (keys := [key for key in cells.old if key in cells.dirty])]
        self._exchange([(cells, self._packed(cells, keys)) for cells, keys in late], [])
        self._due.clear()
        for cells in alive:
            cells.grow_old()
            keys = [key for key in list(cells.dirty) if key in cells.old]
            self._due += ((cells, keys[i : i + _SLICE_KEYS]) for i in range(0, len(keys), _SLICE_KEYS))
        self._young = 0

    def _exchange(
        self, changes: list[tuple[Cells, Changes]], wanted: list[tuple[Cells, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        """With the table; what could not be written is still to be written."""
        if self._gone:
            self.drop([self._gone.popleft() for _ in range(len(self._gone))])
        if not changes and not wanted:
            return []
        try:
            return self.exchange(
                [(cells.place, written) for cells, written in changes], [(cells.place, keys) for cells, keys in wanted]
            )
        except BaseException:
            for cells, written in changes:
                cells.dirty |= written.keys()
            raise

    def _packed(self, cells: Cells, keys: list[int] | None = None) -> Changes:
        """The values of these keys (None: all) that are not written yet, which they count as from now on."""
        if cells.blind:
            self.count(cells)
        changes: Changes = {}
        for key in list(cells.dirty) if keys is None else keys:
            cells.dirty.discard(key)
            value = cells.now(key)
            changes[key] = data = None if value is None else self.packing.pack(value)
            self._value_bytes += (len(data or b"") - self._value_bytes) / 64
        return changes

    def _unpacked(self, data: bytes | None) -> Value | None:
        if data is None:
            return None
        self._value_bytes += (len(data) - self._value_bytes) / 64
        return self.packing.unpack(data)

    # -- states -------------------------------------------------------------------------------------------------------

    def one(self, cells: Cells, key: int) -> Value | None:
        """The value of a key that is not young. For a frame they are loaded together."""
        with self.lock:
            value = cells.old.pop(key, _UNKNOWN)
            if value is _UNKNOWN:
                [[data]] = self._exchange([], [(cells, [key])])
                value = self._unpacked(data)
            cells.keep(key, value)
            self._young += 1
            self._touched.add(cells)
            return cast(Value | None, value)

    def take(self, cells: Cells, keys: Iterable[int]) -> list[tuple[int, Value]]:
        """Values of ``keys`` as far as they are there, without keeping them here."""
        keys = list(keys)
        with self.lock:
            here = {key: cells.now(key) for key in keys if key in cells or key in cells.old}
            missing = [key for key in keys if key not in here]
            if missing:
                [found] = self._exchange([], [(cells, missing)])
                here |= zip(missing, map(self._unpacked, found), strict=True)
        return [(key, value) for key in keys if (value := here[key]) is not None]

    def count(self, cells: Cells) -> int:
        """How many keys there are."""
        with self.lock:
            if cells.blind:
                blind = list(cells.blind)
                for begin in range(0, len(blind), _SLICE_KEYS):
                    some = blind[begin : begin + _SLICE_KEYS]
                    [before] = self._exchange([], [(cells, some)])
                    cells.count += sum(cells.now(key) is not None for key in some)
                    cells.count -= sum(data is not None for data in before)
                    cells.blind.difference_update(some)
            return cells.count

    def keys(self, cells: Cells) -> list[int]:
        """All keys, in no order."""
        changed = self._unwritten(cells)
        return [
            *(key for key in self.scan_keys(cells.place) if key not in changed),
            *(key for key, value in changed.items() if value is not None),
        ]

    def copied(self, cells: Cells) -> Cells:
        """As they are now."""
        with self.lock:
            count, changed = self.count(cells), self._unwritten(cells)
            other = self.cells(self.copied_place(cells.place))
        other.old, other.dirty, other.count = changed, set(changed), count
        return other

    def export(self, cells: Cells, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        """See ``UnitState``."""
        changed = self._unwritten(cells)

        def rows() -> Iterator[tuple[int, bytes]]:
            yield from ((key, data) for key, data in self.scan(cells.place) if key not in changed)
            yield from ((key, self.packing.pack(value)) for key, value in changed.items() if value is not None)

        return (self.packing.batch(keys, values) for keys, values in in_chunks(rows(), chunk_bytes))

    def _unwritten(self, cells: Cells) -> dict[int, Value | None]:
        with self.lock:
            return {key: cells.now(key) for key in cells.dirty}

    def install(self, cells: Cells, batches: Iterable[pa.RecordBatch]) -> None:
        """See ``UnitState``."""
        if not self.count(cells) and not cells.dirty and not cells and not cells.old:
            self.fill(cells.place, self._counted(cells, batches))
            return
        for batch in batches:
            all_keys, all_values = self.packing.rows(batch)
            for begin in range(0, len(all_keys), _SLICE_KEYS):
                keys = all_keys[begin : begin + _SLICE_KEYS]
                with self.lock:
                    cells.count += len(keys) - len(self.take(cells, keys))
                    for key in keys:  # the newcomer counts
                        cells.dirty.discard(key)
                        cells.pop(key, None)
                        cells.old.pop(key, None)
                    values = all_values[begin : begin + _SLICE_KEYS]
                    self._exchange([(cells, dict(zip(keys, values, strict=True)))], [])

    def _counted(self, cells: Cells, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[int], list[bytes]]]:
        for batch in batches:
            keys, values = self.packing.rows(batch)
            cells.count += len(keys)
            yield keys, values
