"""Copies of units, made before they move: the whole once, then what changed, off the processing thread.

When the unit moves to where its copy is, only what changed since has to travel (Rhino; Spacker resends the whole unit
if anything in it has changed).
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from keyshift.clock import now_us
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import SlotId, UnitId
from keyshift.runtime.key_access import SLICE_KEYS
from keyshift.state import rows
from keyshift.wire.nodes import COPYING, CopiesClose, CopiesWanted, copied
from keyshift.worker.flight.messages import CopyDropped, CopyPart, Shipment
from keyshift.worker.slot.shared import Shared
from keyshift.worker.state.addresses import Addresses

COPIES = "copies"  # of whom the changes are tracked for
SAY_S = 1.0  # between two words about what is being copied, and at most between two rounds until that is close


@dataclass(slots=True)
class _Copy:
    holder: SlotId
    epoch: int = 0  # of this beginning: a part of an earlier one, also of a batch before, may still be on its way
    number: int = -1  # of the last part that is there
    pending: set[int] = field(default_factory=set)  # keys of the part that is on its way, perhaps


@dataclass(slots=True)
class _Rounds:
    """The rounds of one order. ``bytes_before``: copied until it began, for others."""

    order: CopiesWanted
    bytes_before: int
    began_us: int = field(default_factory=now_us)
    number: int = 0
    changed: int = 0  # keys in the last one
    close: bool = False
    said_at: float = field(default_factory=time.monotonic)

    def ends(self, changed: int) -> bool:
        """Note that another round has found so many changed keys. Gives whether the copies have become close by it."""
        no_closer = self.number > 1 and changed >= self.changed  # and never will be, at this rate of changes
        was_close, self.number, self.changed = self.close, self.number + 1, changed
        self.close = was_close or changed <= self.order.lag_keys or no_closer
        return self.close and not was_close

    @property
    def pause_s(self) -> float:
        """The pause before the next round. Until copies are close somebody waits, and gives up after a long silence."""
        if self.close:
            return self.order.every_s
        return 0.0 if self.number == 1 else min(self.order.every_s, SAY_S)


class Replicator:
    """The copies of the units of one slot. That all are close is acknowledged once for each order; how much was copied
    is told now and then until they are.
    """

    def __init__(self, shared: Shared, addresses: Addresses) -> None:
        self._shared, self._addresses = shared, addresses
        self._states, self._lock = shared.core.states, shared.lock
        self._wanted: dict[UnitId, SlotId] = {}  # holders of copies that have not begun, as the unit was not here yet
        self._copies: dict[UnitId, _Copy] = {}
        self._useless: list[CopyDropped] = []
        self._away: set[SlotId] = set()  # holders that have refused a part, and do not listen: their batch is over
        self._rounds: _Rounds | None = None  # of the newest order
        self._closed = threading.Event()
        self._free = threading.Condition(shared.lock)  # to look at states; also told of an order, and of the end
        self._paused = False
        self._thread: threading.Thread | None = None
        self.copied_bytes = 0  # for all orders so far

    def start(self, order: CopiesWanted) -> None:
        """Keep a copy of each unit of the slot at its holder from now on; under the slot's lock.

        A copy that is there for an earlier order stays, also one that is on its way, and is brought up to date.
        """
        before = self._rounds
        if self._closed.is_set() or (before is not None and before.order.id == order.id):
            return
        if before is None or before.close:
            self._rounds = _Rounds(order, self.copied_bytes)
        else:  # nobody was told what was copied for that one
            self._rounds = _Rounds(order, before.bytes_before, before.began_us)
        wanted: dict[UnitId, SlotId] = {unit: to for unit, owner, to in order.copies if owner == self._shared.slot}
        kept = {unit: copy for unit, copy in self._copies.items() if wanted.get(unit) == copy.holder}
        for unit, copy in self._copies.items():
            if unit not in kept:
                self._drop(unit, copy)
        self._wanted = {unit: holder for unit, holder in wanted.items() if unit not in kept}
        self._copies = kept
        self._begin_copies()
        for unit, state in self._states.items():
            if unit not in self._copies:  # it may have been tracked for an earlier order, also of the batch before
                state.untrack(COPIES)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="keyshift-copies", daemon=True)
            self._thread.start()
        self._free.notify_all()

    def _begin_copies(self) -> bool:
        """Begin copies of wanted units that are here; under the slot's lock. Gives whether others are still to come."""
        for unit in [unit for unit in self._wanted if unit in self._states]:
            holder, state = self._wanted.pop(unit), self._states[unit]
            if not state.shared:  # no copies of what others reach anyway
                self._copies[unit] = _Copy(holder)
                state.track(COPIES)
        return not self._shared.core.machine.expected.isdisjoint(self._wanted)

    def shrink(self, shipment: Shipment, destination: int) -> Shipment:
        """Shrink a unit that leaves to what changed, if its copy is where it goes; under the slot's lock."""
        self._wanted.pop(shipment.unit, None)
        copy = self._copies.pop(shipment.unit, None)
        if copy is None:
            return shipment
        if copy.holder == destination and copy.number >= 0 and shipment.routers is None and not shipment.partial:
            assert shipment.state is not None and self._rounds is not None
            changed = shipment.state.changed_keys(COPIES) | copy.pending
            if not (changed and self._rounds.order.whole):
                return replace(shipment, delta_of=CopyPart(copy.epoch, copy.number), changed=frozenset(changed))
        self._drop(shipment.unit, copy)
        return shipment

    def _drop(self, unit: UnitId, copy: _Copy) -> None:
        self._useless.append(CopyDropped(copy.holder, unit, copy.epoch))

    def pause(self) -> None:
        """Look at no state until ``go_on``: another thread reads them without the slot's lock; under that lock."""
        self._paused = True

    def go_on(self) -> None:
        """Look at states again, behind ``pause``."""
        with self._free:
            self._paused = False
            self._free.notify_all()

    def stop(self) -> None:
        """Look at no state from now on, it is to be another one's; under the slot's lock."""
        self._closed.set()
        self._free.notify_all()

    def close(self) -> None:
        """Stop, and wait for what is on its way."""
        with self._lock:
            self.stop()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while not self._closed.is_set():
                self._drop_useless()
                self._away = {holder for holder in self._away if not self._addresses.listens(holder)}
                with self._turn():
                    if self._closed.is_set():
                        return
                    rounds, more, units = self._rounds, self._begin_copies(), list(self._copies)
                assert rounds is not None
                changed = 0
                for unit in units:
                    changed += self._round(unit, rounds)
                    if not rounds.close and time.monotonic() - rounds.said_at >= SAY_S:
                        rounds.said_at = time.monotonic()
                        self._shared.coordination.publish(COPYING[self._shared.slot], self.copied_bytes)
                with self._lock:
                    if self._closed.is_set():  # nothing is known of the units whose turn did not come
                        return
                    ends = self._rounds is rounds and not more and rounds.ends(changed)
                    sent, copies = self.copied_bytes - rounds.bytes_before, len(self._copies)
                if ends:
                    close = CopiesClose(rounds.began_us, rounds.number, sent, copies, changed, now_us())
                    self._shared.coordination.acknowledge(copied(rounds.order.id)[self._shared.slot], close)
                self._pause(rounds)
        except BaseException as error:
            if not self._closed.is_set():
                self._shared.background.failed(error)

    def _pause(self, rounds: _Rounds) -> None:
        """Wait until the next round; another order does not wait for it."""
        with self._free:
            self._free.wait_for(lambda: self._closed.is_set() or self._rounds is not rounds, rounds.pause_s)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the slot's lock, when states may be looked at, or never again."""
        with self._free:
            self._free.wait_for(lambda: self._closed.is_set() or not self._paused)
            yield

    def _drop_useless(self) -> None:
        with self._lock:
            useless, self._useless = self._useless, []
        for dropped in useless:
            with contextlib.suppress(ServiceUnavailable):  # then it goes when the holder's batch ends
                self._shared.clients.tell(self._addresses.of(dropped.slot), dropped)

    def _round(self, unit: UnitId, rounds: _Rounds) -> int:
        """Bring one copy up to date, if ``rounds`` are of the newest order. Gives how many keys that takes."""
        with self._turn():
            copy, state = self._copies.get(unit), self._states.get(unit)
            if self._closed.is_set() or self._rounds is not rounds or copy is None or state is None:
                return 0
            if copy.holder in self._away:  # all of them, as it begins anew
                return len(state)
            first = copy.number < 0
            if first:
                copy.epoch = secrets.randbits(48)
            changes = state.changed_keys(COPIES) | copy.pending
            keys = state.keys() if first else sorted(changes)
            copy.pending = changes
        if not keys and not first:
            return 0
        batches, gone = [], []
        for begin in range(0, len(keys), SLICE_KEYS):
            with self._turn():  # what leaves meanwhile is not ours to read any more
                if self._closed.is_set() or self._states.get(unit) is not state:
                    return 0
                some = keys[begin : begin + SLICE_KEYS]
                found = state.take(some)
            batches.append(rows.pack(self._shared.host.state_schema, found))
            gone += sorted(set(some) - {key for key, _ in found})
        part = CopyPart(copy.epoch, copy.number + 1)
        try:
            self._shared.clients.copy(self._addresses.of(copy.holder), copy.holder, unit, part, batches, gone)
        except ServiceUnavailable:  # the holder is gone or has begun anew: so does the copy
            with self._lock:
                copy.number, copy.pending = -1, set()
            if not self._addresses.listens(copy.holder):
                self._away.add(copy.holder)
            return len(keys)
        with self._lock:
            copy.number, copy.pending = copy.number + 1, set()
            self.copied_bytes += sum(batch.nbytes for batch in batches)
        return len(keys)
