"""Where the slots listen."""

import threading
from functools import partial

from keyshift.model.errors import MigrationFailed
from keyshift.model.keys import SlotId
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ADDRESSES


class Addresses:
    """The addresses that slots publish in ZooKeeper. Each is watched from the first request on.

    Thread-safe, but not for kazoo's thread, which delivers the addresses.
    """

    def __init__(self, coordination: Coordination, deadline_s: float) -> None:
        self._coordination, self._deadline_s = coordination, deadline_s
        self._known: dict[SlotId, str | None] = {}
        self._changed = threading.Condition()

    def of(self, slot: SlotId, within_s: float | None = None) -> str:
        """The address of ``slot``; after a batch boundary it may take a moment until there is one.

        A slot whose batch is over is where it was: it still says what it has (``slot.host.EndedSlot``). Raises
        MigrationFailed if it did not say where it is for ``within_s`` (None: the deadline).
        """
        within_s = self._deadline_s if within_s is None else within_s
        with self._changed:
            first = slot not in self._known
            self._known.setdefault(slot, None)
        if first:
            self._coordination.watch(ADDRESSES[slot], partial(self._heard, slot))
        with self._changed:
            if not self._changed.wait_for(lambda: self._known[slot], within_s):
                raise MigrationFailed(f"slot {slot} did not say where it is within {within_s:g} s")
            return str(self._known[slot])

    def listens(self, slot: SlotId) -> bool:
        """Whether ``slot`` says now where it is: its batch is not over."""
        return self._coordination.read(ADDRESSES[slot]) is not None

    def _heard(self, slot: SlotId, address: str) -> None:
        with self._changed:
            self._known[slot] = address
            self._changed.notify_all()
