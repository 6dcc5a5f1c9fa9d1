"""What a slot says to the job among its results."""

import time

from keyshift.model.markers import Marker, SlotMarker, StateWritten

SEALED_EVERY_S = 0.2


class Markers:
    """Markers of one slot during one batch, and those of slots of the stage before. Used under the slot's lock."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._once: list[SlotMarker] = []
        self._freezing = False  # a savepoint is being written, or nobody has been told that it is
        self._sealed: SlotMarker | None = None  # the savepoint is written: said again and again
        self._sealed_at = 0.0

    @property
    def pending(self) -> bool:
        """Whether the batch must not end yet: something is still to be said."""
        return self._freezing or bool(self._once)

    def say(self, marker: Marker) -> None:
        """Say this once."""
        self.pass_on(SlotMarker(self._slot, marker))

    def pass_on(self, said: SlotMarker) -> None:
        """Say once what another slot has said."""
        self._once.append(said)

    def freeze(self) -> None:
        """Note that a savepoint begins: there will be a word when it is written."""
        self._freezing = True

    def sealed(self, marker: StateWritten) -> None:
        """Note that the savepoint is written."""
        self._sealed, self._sealed_at = SlotMarker(self._slot, marker), 0.0

    def take(self) -> list[SlotMarker]:
        """Take what is to be said now."""
        said, self._once = self._once, []
        if self._sealed and time.monotonic() >= self._sealed_at:
            said.append(self._sealed)
            self._sealed_at = time.monotonic() + SEALED_EVERY_S
            self._freezing = False
        return said
