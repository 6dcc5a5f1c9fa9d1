"""States whose values are in a *table*, outside of Python: what is in use is kept here as Python values, and some more.

A store has two generations of values. Those that were used lately are *young*. When they are many, the *old* ones go
and the young ones become old; a value that is used again becomes young again. What was changed is written before it
goes, or with the next load if the store writes ``through``. So a load is one exchange with the table: what is due to be
written, and what is wanted and not here.

Several threads may be in one store at a time, each with states of its own; the table's lock is held while something
goes to the table or values change their generation.
"""

import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from keyshift.model.errors import ProtocolViolation
from keyshift.state.packing import Packing, in_chunks
from keyshift.state.table import Changes, Table, slices
from keyshift.state.tracking import TrackedState, Value, ValueDict

_VALUE_BYTES = 200  # of memory that a value takes beside its bytes: a tuple, an int, two entries of a dictionary
_UNKNOWN: Any = object()  # neither a value nor None


class Cells(ValueDict[Value | None]):
    """The young values of one state; None for a key that is known to have none. ``region``: where the table has others.

    Its owner reads and sets without the lock. All else happens under the lock of the table, item by item: what is set
    meanwhile is not lost.
    """

    def __init__(self, store: "CachedStore", region: Any) -> None:
        super().__init__()
        self.store, self.region = store, region
        self.old: dict[int, Value | None] = {}
        self.dirty: set[int] = set()  # keys whose value in the table is another one
        self.blind: set[int] = set()  # those of them that nobody looked for before they were set
        self.count = 0  # of keys, as if all of ``blind`` had been there

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

    def now(self, key: int) -> Value | None:
        """The value of a key that is here."""
        value = self.get(key, _UNKNOWN)
        return self.old[key] if value is _UNKNOWN else value

    def keep(self, key: int, value: Value | None) -> None:
        """Keep ``value``, which is what the table has."""
        dict.__setitem__(self, key, value)

    def forget(self, key: int) -> None:
        """Forget what is here of ``key``: the table has another value from now on."""
        self.dirty.discard(key)
        self.pop(key, None)
        self.old.pop(key, None)

    def grow_old(self) -> None:
        """Let the young values grow old; what was old goes."""
        self.old = {key: self.old[key] for key in list(self.dirty) if key in self.old}  # set since they were written
        while self:
            key, value = self.popitem()
            self.old[key] = value


class CachedState(TrackedState[Cells]):
    """See ``UnitState``."""

    def __init__(self, cells: Cells) -> None:
        super().__init__(cells)
        self._store, self._table = cells.store, cells.store.table

    def delete(self, key: int) -> None:  # noqa: D102
        self.values[key] = None

    def __len__(self) -> int:
        return self._store.count(self.values)

    def keys(self) -> list[int]:  # noqa: D102
        changed = self._unwritten()
        return [
            *(key for key in self._table.scan_keys(self.values.region) if key not in changed),
            *(key for key, value in changed.items() if value is not None),
        ]

    def take(self, keys: Iterable[int]) -> list[tuple[int, Value]]:
        """See ``UnitState``. They are not kept here."""
        cells, keys = self.values, list(keys)
        with self._table.lock:
            here = {key: cells.now(key) for key in keys if key in cells or key in cells.old}
            missing = [key for key in keys if key not in here]
            if missing:
                [found] = self._store.exchange([], [(cells, missing)])
                here |= zip(missing, map(self._store.unpacked, found), strict=True)
        return [(key, value) for key in keys if (value := here[key]) is not None]

    def hand_over(self) -> str | None:
        """See ``UnitState``. What is not written yet is in the order of an export, so it is not written any more."""
        with self._table.lock:
            self._store.alive.discard(self.values)
        return None

    def copy(self) -> "CachedState":  # noqa: D102
        with self._table.lock:
            count, changed = len(self), self._unwritten()
            other = self._store.state(self._table.copied_region(self.values.region), grows_old=False)
        other.values.old, other.values.dirty, other.values.count = changed, set(changed), count
        return other

    def export(self, chunk_bytes: int) -> Iterator[pa.RecordBatch]:  # noqa: D102
        changed, packing = self._unwritten(), self._store.packing

        def rows() -> Iterator[tuple[int, bytes]]:
            yield from ((key, data) for key, data in self._table.scan(self.values.region) if key not in changed)
            yield from ((key, packing.pack(value)) for key, value in changed.items() if value is not None)

        return (packing.batch(keys, values) for keys, values in in_chunks(rows(), chunk_bytes))

    def install(self, batches: Iterable[pa.RecordBatch]) -> None:  # noqa: D102
        cells = self.values
        arriving = (self._store.packing.rows(batch) for batch in batches)
        if not len(self) and not cells.dirty and not cells and not cells.old:
            self._table.fill(cells.region, self._counted(arriving))
            return
        for keys, values in arriving:
            for some in slices(list(zip(keys, values, strict=True))):
                with self._table.lock:
                    cells.count += len(some) - len(self.take(key for key, _ in some))
                    for key, _ in some:  # the newcomer counts
                        cells.forget(key)
                    self._store.exchange([(cells, dict(some))], [])

    def _counted(self, parts: Iterable[tuple[list[int], list[bytes]]]) -> Iterator[tuple[list[int], list[bytes]]]:
        for keys, values in parts:
            self.values.count += len(keys)
            yield keys, values

    def _unwritten(self) -> dict[int, Value | None]:
        with self._table.lock:
            return {key: self.values.now(key) for key in self.values.dirty}


class CachedStore:
    """See ``Store``. ``keep_bytes``: of values that stay here between two loads, about; 0: none. ``through``: with each
    load all changes are written, or only what is to go.
    """

    def __init__(self, table: Table, schema: pa.Schema, keep_bytes: int, through: bool) -> None:
        self.table, self.packing = table, Packing(schema)
        self._keep_bytes, self._through = keep_bytes, through
        self._value_bytes = 1024.0  # of a value, about
        self.alive: weakref.WeakSet[Cells] = weakref.WeakSet()  # whose values grow old
        self._touched: set[Cells] = set()  # since the last load
        self._due: deque[tuple[Cells, Sequence[int]]] = deque()  # old values that are to be written before they go
        self._young = 0  # values that became so since the last change of generations
        self._gone: deque[Any] = deque()  # regions that nobody refers to any more

    def unit(self, unit: int) -> CachedState:  # noqa: D102
        return self.state(self.table.region(unit))

    def adopt(self, unit: int, reference: str) -> CachedState:
        """Never called, unless states are shared."""
        raise ProtocolViolation(f"unit {unit} cannot be taken over by reference: its values are in another process")

    def load(self, wanted: Iterable[tuple[Any, Collection[int]]]) -> None:  # noqa: D102
        with self.table.lock:
            used: list[tuple[Cells, Collection[int]]] = [(state.values, keys) for state, keys in wanted]
            changes = self._changes_due(sum(len(keys) for _, keys in used))
            lacking = [(cells, missing) for cells, keys in used if (missing := self._recall(cells, keys))]
            found = self.exchange(changes, lacking)
            if not self._keep_bytes:
                for cells in self._touched:
                    for key in cells.keys() - cells.dirty:
                        cells.pop(key, None)
            for (cells, missing), values in zip(lacking, found, strict=True):
                for key, data in zip(missing, values, strict=True):
                    cells.keep(key, self.unpacked(data))
                self._young += len(missing)
            self._touched = {cells for cells, _ in used}
            if self._keep_bytes and self._young * (self._value_bytes + _VALUE_BYTES) > self._keep_bytes / 2:
                self._change_generations()

    def checkpoint(self) -> None:
        """See ``Store``. What is not written yet need not be: an export looks at it, too."""
        self.table.check()

    def close(self) -> None:  # noqa: D102
        with self.table.lock:
            self.alive.clear()
            self.table.close()

    def _recall(self, cells: Cells, keys: Collection[int]) -> list[int]:
        """Make old values young. Gives which keys are not here, or are about to go."""
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

    def _changes_due(self, wanted: int) -> list[tuple[Cells, Changes]]:
        if self._through:
            return [(cells, self._packed(cells)) for cells in self._touched if cells.dirty and cells in self.alive]
        changes = []
        budget = 2 * wanted  # so that all is written before the next change of generations
        while self._due and budget > 0:
            cells, keys = self._due.popleft()
            if cells in self.alive and (keys := [key for key in keys if key in cells.dirty and key not in cells]):
                changes.append((cells, self._packed(cells, keys)))
                budget -= len(keys)
        return changes

    def _change_generations(self) -> None:
        alive = list(self.alive)
        late = [(cells, keys) for cells in alive if (keys := [key for key in cells.old if key in cells.dirty])]
        self.exchange([(cells, self._packed(cells, keys)) for cells, keys in late], [])
        self._due.clear()
        for cells in alive:
            cells.grow_old()
            self._due += ((cells, some) for some in slices([key for key in list(cells.dirty) if key in cells.old]))
        self._young = 0

    def exchange(
        self, changes: list[tuple[Cells, Changes]], wanted: list[tuple[Cells, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        """Exchange with the table; what could not be written is still to be written."""
        if self._gone:
            self.table.drop([self._gone.popleft() for _ in range(len(self._gone))])
        if not changes and not wanted:
            return []
        try:
            return self.table.exchange(
                [(cells.region, written) for cells, written in changes],
                [(cells.region, keys) for cells, keys in wanted],
            )
        except BaseException:
            for cells, some in changes:
                cells.dirty |= some.keys()
            raise

    def _packed(self, cells: Cells, keys: Sequence[int] | None = None) -> Changes:
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

    def unpacked(self, data: bytes | None) -> Value | None:
        """A value from the table."""
        if data is None:
            return None
        self._value_bytes += (len(data) - self._value_bytes) / 64
        return self.packing.unpack(data)

    # -- for states ---------------------------------------------------------------------------------------------------

    def state_of(self, cells: Cells) -> CachedState:
        """The state whose values these are."""
        return CachedState(cells)

    def state(self, region: Any, grows_old: bool = True) -> CachedState:
        """The state whose values are in a region, which is dropped when nobody refers to them any more. ``grows_old``:
        its values do; not those of a copy, which stays as it is.
        """
        cells = Cells(self, region)
        weakref.finalize(cells, self._gone.append, region).atexit = False
        if grows_old:
            with self.table.lock:
                self.alive.add(cells)
        return self.state_of(cells)

    def one(self, cells: Cells, key: int) -> Value | None:
        """The value of a key that is not young. For a frame they are loaded together."""
        with self.table.lock:
            value = cells.old.pop(key, _UNKNOWN)
            if value is _UNKNOWN:
                [[data]] = self.exchange([], [(cells, [key])])
                value = self.unpacked(data)
            cells.keep(key, value)
            self._young += 1
            self._touched.add(cells)
            return cast(Value | None, value)

    def count(self, cells: Cells) -> int:
        """Count the keys."""
        with self.table.lock:
            for some in slices(list(cells.blind)):
                [before] = self.exchange([], [(cells, list(some))])
                cells.count += sum(cells.now(key) is not None for key in some)
                cells.count -= sum(data is not None for data in before)
                cells.blind.difference_update(some)
            return cells.count

    def write(self, cells: Cells) -> None:
        """Write all that is not written yet. Under the lock."""
        self.exchange([(cells, self._packed(cells))] if cells.dirty else [], [])
