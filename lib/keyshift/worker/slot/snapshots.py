"""Writes down what a slot's core has captured for snapshots, and its state for savepoints, beside everything else."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from keyshift.model.errors import Damaged, ServiceUnavailable
from keyshift.model.keys import UnitId
from keyshift.model.markers import StateWritten
from keyshift.objects import ByteProgress
from keyshift.ordering import Position
from keyshift.runtime.slot import Captured
from keyshift.runtime.snapshots import SnapshotPart
from keyshift.state import UnitState
from keyshift.wire.nodes import WRITING, Location, SlotSaved, Writing, of_slot, saved
from keyshift.wire.savepoint import SavepointStore, wholes
from keyshift.worker.slot.shared import Shared

UnitLocations = dict[UnitId, list[Location]]  # of each unit, where its parts are: those of earlier snapshots first
SAY_S = 1.0  # between two words about what is being written


class SlotSnapshots:
    """The writer of a slot's snapshots and savepoints. ``locations`` outlives the batch. ``stood``: see ``Intake``.

    One thing is written at a time. A snapshot that comes while another one is being written fails, as one does that
    cannot be written; the slot goes on, and the next one has the whole of all units that were in it. Whatever else goes
    wrong is the task's.
    """

    def __init__(
        self,
        shared: Shared,
        store: Callable[[], SavepointStore],
        locations: UnitLocations,
        stood: Mapping[str, Position],
    ) -> None:
        self._shared, self._store, self._locations, self._stood = shared, store, locations, stood
        self._writing = threading.Lock()
        self.busy = False  # a snapshot is being written; under the slot's lock

    def captured(self, effect: Captured) -> None:
        """Write what was captured, in a thread of its own; under the slot's lock."""
        if self.busy:
            self._shared.core.snapshots.forget(effect.parts)
            self._answer(effect.snapshot, SlotSaved(failed="the one before is still being written"))
            return
        self.busy = True
        threading.Thread(target=self._write, args=(effect,), name="keyshift-snapshot", daemon=True).start()

    def skipped(self, snapshot: str) -> None:
        """Answer that ``snapshot`` does not happen here."""
        why = "it did not come to all routers in one batch, state was on its way, or too much waited for it"
        self._answer(snapshot, SlotSaved(failed=why))

    def freeze(self, savepoint: str) -> None:
        """Write a savepoint of all state, in the background; under the slot's lock."""
        self._shared.markers.freeze()
        self._shared.background.put(partial(self._save, savepoint, sorted(self._shared.core.states.items())))

    def _save(self, savepoint: str, states: Sequence[tuple[UnitId, UnitState]]) -> None:
        with self._told(savepoint) as progress:
            locations = self._store_parts(savepoint, wholes(states), progress)
            self._answer(savepoint, SlotSaved(tuple(locations), position=self._stood.get(savepoint)))
        with self._shared.lock:
            self._shared.markers.sealed(StateWritten(self._shared.config.stage, savepoint))

    def _write(self, effect: Captured) -> None:
        complete = False
        try:
            with self._told(effect.snapshot) as progress:
                answer = self._written(effect, progress)
                self._answer(effect.snapshot, answer)
            complete = not answer.failed
        except BaseException as error:
            self._shared.background.failed(error)
        finally:
            with self._shared.lock:
                self.busy = False
                if complete:
                    self._shared.markers.say(StateWritten(self._shared.config.stage, effect.snapshot))

    def _written(self, effect: Captured, progress: ByteProgress) -> SlotSaved:
        """Write what was captured. Gives what there is to answer."""
        shared = self._shared
        try:
            locations = self._store_parts(effect.snapshot, effect.parts, progress)
        except Damaged:  # state, where it lives
            raise
        except ServiceUnavailable as error:
            with shared.lock:
                shared.core.snapshots.forget(effect.parts)
            return SlotSaved(failed=str(error))
        with shared.lock:
            for location in locations:
                before = self._locations.get(location.unit, []) if location.follows else []
                self._locations[location.unit] = [*before, location]
            for unit in self._locations.keys() - set(effect.units):
                del self._locations[unit]
            all_locations = tuple(location for unit in effect.units for location in self._locations.get(unit, ()))
        written = sum(location.length for location in locations)
        return SlotSaved(all_locations, written, position=self._stood.get(effect.snapshot))

    def _store_parts(self, name: str, parts: Iterable[SnapshotPart], progress: ByteProgress) -> list[Location]:
        config, schema = self._shared.config, self._shared.host.state_schema
        slot = f"{config.stage}-{self._shared.slot}"
        return self._store().write(name, slot, parts, schema, config.chunk_bytes, progress)

    @contextmanager
    def _told(self, name: str) -> Iterator[ByteProgress]:
        """Inside, what is written of ``name`` is told to whoever waits for it; its end, too, behind the answer."""
        node, size, said_at = WRITING[self._shared.slot], 0, time.monotonic()

        def say(over: bool = False) -> None:
            self._shared.coordination.publish(node, Writing(name, size, over))

        def progress(more: int) -> None:
            nonlocal size, said_at
            size += more
            if time.monotonic() - said_at >= SAY_S:
                said_at = time.monotonic()
                say()

        with self._writing:
            say()
            try:
                yield progress
            finally:
                say(over=True)

    def _answer(self, snapshot: str, answer: SlotSaved) -> None:
        self._shared.coordination.acknowledge(saved(snapshot)[of_slot(self._shared.slot)], answer)
