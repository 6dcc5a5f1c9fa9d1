"""Writes down what a slot's core has captured for snapshots, beside everything else it does."""

import threading
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from keyshift.errors import ServiceUnavailable
from keyshift.executor.savepoint import Location, SavepointStore
from keyshift.executor.slot_shared import Shared
from keyshift.runtime.slot import Captured

Places = dict[int, list[Location]]  # of each unit, where its parts are: those of earlier snapshots first


class SlotSnapshots:
    """``places`` outlives the batch. ``say(marker)``: into the results, behind all that came out before.

    One that cannot be written is given up; the slot goes on, and the next one is whole.
    """

    def __init__(
        self, shared: Shared, store: Callable[[], SavepointStore], places: Places, say: Callable[[dict[str, Any]], None]
    ) -> None:
        self._shared, self._store, self._places, self._say = shared, store, places, say
        self._writing = 0

    @property
    def busy(self) -> bool:
        """Whether one is being written; under the slot's lock."""
        return self._writing > 0

    def captured(self, effect: Captured) -> None:
        """Write it, in a thread of its own; under the slot's lock."""
        self._writing += 1
        threading.Thread(target=self._write, args=(effect,), name="keyshift-snapshot", daemon=True).start()

    def skipped(self, snapshot: str) -> None:
        """It does not happen here."""
        self._answer(snapshot, {"failed": "it did not come to all routers in one batch, or too much waited for it"})

    def _write(self, effect: Captured) -> None:
        shared, snapshot = self._shared, effect.snapshot
        try:
            places = self._store().write_parts(
                snapshot,
                f"{shared.config.stage}-{shared.slot}",
                effect.parts,
                shared.host.state_schema,
                shared.config.chunk_bytes,
            )
        except ServiceUnavailable as error:
            with shared.lock:
                shared.core.snapshots.forget(effect.parts)
                self._writing -= 1
            self._answer(snapshot, {"failed": str(error)})
            return
        except BaseException as error:  # the task's thread raises it
            shared.failed(error)
            raise
        whole = {part.unit for part in effect.parts if part.whole is not None}
        with shared.lock:
            for place in places:
                before = [] if place.unit in whole else self._places[place.unit]
                self._places[place.unit] = [*before, place]
            for unit in self._places.keys() - set(effect.units):
                del self._places[unit]
            rows = [list(astuple(place)) for unit in effect.units for place in self._places[unit]]
        self._answer(snapshot, {"places": rows, "bytes": sum(place.length for place in places)})
        with shared.lock:
            self._writing -= 1
            self._say({"marker": "sealed", "savepoint": snapshot})

    def _answer(self, snapshot: str, value: dict[str, Any]) -> None:
        self._shared.coordination.acknowledge(f"savepoints/{snapshot}/slot-{self._shared.slot}", value)
