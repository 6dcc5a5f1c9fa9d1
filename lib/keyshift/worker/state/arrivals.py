"""Units that come to a slot: from other slots, from the process that held it before, or from a savepoint."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from keyshift.clock import now_us
from keyshift.model.errors import Damaged, NotThere, ServiceUnavailable
from keyshift.model.keys import UnitId
from keyshift.model.records import UnitCame
from keyshift.objects import damage_told
from keyshift.runtime.row import Row
from keyshift.state import UnitState
from keyshift.wire.nodes import RESTORED, RESTORING, UNREADABLE, Location, Restored, Unreadable
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.flight.messages import Shipment, Taken
from keyshift.worker.slot.shared import Shared, slice_of_time
from keyshift.worker.state.departures import CoreTurn
from keyshift.worker.state.outbox import again

SAY_S = 1.0  # between two words about what is being restored
PULL_GROUPS = 8  # so many key groups, or as many bins, are fetched in one call after a batch boundary
PULL_CALLS = 64  # or more of them, so that there are not more calls than that: each asks what is wanted most


class Arrivals:
    """What arrives. ``turn()``: see ``SlotEffects.turn``. ``times``: unit -> received_us, installed_us, written down
    here.
    """

    def __init__(self, shared: Shared, turn: CoreTurn, times: dict[int, tuple[int, int]]) -> None:
        self._shared, self._turn, self._times = shared, turn, times
        self._here: list[UnitId] = []  # units that were fetched

    def take(self, shipments: list[Shipment]) -> list[bool]:
        """Builds the states, then hands them to the core.

        False for a delta over a copy that is not here. What is not awaited (any more) came twice.
        """
        received = now_us()
        with self._shared.lock:
            awaited = [shipment for shipment in shipments if self._awaits(shipment)]
        states = {shipment.unit: self._built_or_failed(shipment) for shipment in awaited}
        try:
            with self._turn() as core:
                for shipment in awaited:
                    if (state := states[shipment.unit]) is not None and self._awaits(shipment):
                        home = shipment.home if shipment.partial else None
                        about = shipment.unit, shipment.version, shipment.hop, shipment.routers
                        core.arrived(*about, state, home, shipment.routed)
                        self._times[shipment.unit] = received, now_us()
                core.drain(now_us(), slice_of_time())  # now: the step that ends with it does not wait for a row
        except BaseException as error:
            self._shared.background.failed(error)  # what has arrived would not be taken again
            raise
        return [states.get(shipment.unit, True) is not None for shipment in shipments]

    def _awaits(self, shipment: Shipment) -> bool:
        return self._shared.core.machine.awaits(shipment.unit, shipment.version, shipment.hop)

    def _built_or_failed(self, shipment: Shipment) -> UnitState | None:
        """See ``_built``. The slot fails if that fails, and would if the unit came again, as it does without end."""
        try:
            return self._built(shipment)
        except BaseException as error:
            for_now = isinstance(error, ServiceUnavailable) and not isinstance(error, Damaged | NotThere)
            with self._shared.lock:
                if not for_now and self._awaits(shipment):  # otherwise it came twice, and is here by now
                    self._shared.background.failed(error)
            raise

    def _built(self, shipment: Shipment) -> UnitState | None:
        """Build what has come, on top of the copy here if it is a delta; None if there is no such copy."""
        state: UnitState | None
        if shipment.reference:
            state = self._shared.store.adopt(shipment.unit, shipment.reference)
        elif shipment.delta_of is None:
            state = self._shared.store.unit(shipment.unit)
        else:
            state = self._shared.host.copies.take(self._shared.slot, shipment.unit, shipment.delta_of)
            if state is None:
                return None
        if not shipment.reference:
            state.install(shipment.batches)
        for key in shipment.deleted:
            state.delete(key)
        if shipment.timers is not None:
            state.timers.install(shipment.timers)
        return state

    # -- units that the slot owns when it opens, and whose state is elsewhere ------------------------------------------
    #
    # All of them are fetched at once, in the background: a process for which Spark has no more use stays for a while
    # only (``daemon.STAYS_S``). A call that fails is repeated. Raises ServiceUnavailable if nothing has come for the
    # deadline.

    def pull(self, units: Sequence[UnitId], address: str) -> None:
        """Fetch units from the process at ``address``, which held the slot in the batch before."""
        slot, clients = self._shared.slot, self._shared.clients

        def tell() -> None:
            with contextlib.suppress(ServiceUnavailable):  # what was not told keeps its memory there for a while
                clients.tell(address, Taken(slot, tuple(self._here)))

        def get(some: list[UnitId]) -> None:
            clients.pull(address, slot, some, self._came)
            tell()

        if not units:  # or that process would wait for whoever fetches nothing
            tell()
        most = max(PULL_GROUPS * self._shared.config.bins, len(units) // PULL_CALLS)
        self._fetch(f"slot {slot} from {address}", units, get, most)

    def left_rows(self, address: str) -> list[Row]:
        """Fetch the rows that the slot has not worked on in the batch before, from the process that held it."""
        shared = self._shared
        name = f"rows of slot {shared.slot} from {address}"
        get = partial(shared.clients.left_rows, address, shared.slot)
        return again(name, shared.closed, get, shared.config.deadline_s)

    def restore(self, units: Sequence[UnitId], store: SavepointStore, savepoint: str) -> None:
        """Restore units from a savepoint, and say so; also how far it is, and if it is not there as it was written."""
        said_at, shared = time.monotonic(), self._shared
        locations: dict[UnitId, list[Location]] = {}

        def get(some: list[UnitId]) -> None:
            nonlocal said_at
            locations.update(locations or store.locations(savepoint, shared.config.stage))
            for portion in store.read({unit: locations[unit] for unit in some}):
                self._came([Shipment(each.unit, batches=each.values, timers=each.timers) for each in portion])
                if time.monotonic() - said_at >= SAY_S:
                    said_at = time.monotonic()
                    shared.coordination.publish(RESTORING[shared.slot], len(self._here))

        try:
            with damage_told(store.committed, savepoint):  # behind the deadline
                self._fetch(f"slot {shared.slot} from savepoint {savepoint}", units, get, len(units))
        except (Damaged, NotThere) as error:
            shared.coordination.publish(UNREADABLE[shared.slot], Unreadable(savepoint, str(error)))
            raise
        with shared.lock:
            came = tuple(UnitCame(unit, *self._times[unit]) for unit in units if unit in self._times)
        shared.coordination.acknowledge(RESTORED[shared.slot], Restored(came))

    def _fetch(self, name: str, units: Sequence[UnitId], get: Callable[[list[UnitId]], None], most: int) -> None:
        """Call ``get`` with at most ``most`` units, again and again, those first that the slot waits for most."""
        shared = self._shared

        def following() -> list[UnitId]:
            with shared.lock:
                wanted = shared.core.machine.wanted
            missing = set(units).difference(self._here)
            return [unit for unit in wanted if unit in missing][:most]

        def some() -> None:
            here = len(self._here)
            try:
                get(following())
            except ServiceUnavailable:
                if len(self._here) == here:
                    raise  # otherwise it goes on where it broke, and the deadline begins anew

        while following() and not shared.closed.is_set():
            again(name, shared.closed, some, shared.config.deadline_s)

    def _came(self, shipments: list[Shipment]) -> None:
        self.take(shipments)
        self._here += (shipment.unit for shipment in shipments)
