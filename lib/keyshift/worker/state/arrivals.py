"""Units that come to a slot: from other slots, from the process that held it before, or from a savepoint."""

import time
from collections.abc import Callable, Sequence

from keyshift.clock import now_us
from keyshift.model.errors import Damaged, NotThere
from keyshift.model.records import UnitCame
from keyshift.state import UnitState
from keyshift.wire.nodes import RESTORED, RESTORING, UNREADABLE, Restored, Unreadable
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.flight.messages import Parcel
from keyshift.worker.slot.shared import Shared, slice_of_time
from keyshift.worker.state.departures import Turn
from keyshift.worker.state.expected_units import ExpectedUnits

SAY_S = 1.0  # between two words about what is being restored
PULL_GROUPS = 8  # so many key groups, or as many bins, are fetched in one call after a batch boundary


class Arrivals:
    """``turn()``: see ``SlotEffects.turn``. ``times``: unit -> received_us, installed_us, written down here."""

    def __init__(self, shared: Shared, turn: Turn, times: dict[int, tuple[int, int]]) -> None:
        self._shared, self._turn, self._times = shared, turn, times

    def take(self, parcels: list[Parcel]) -> list[bool]:
        """Builds the states, then hands them to the core.

        False for a delta over a copy that is not here. What is not awaited (any more) came twice.
        """
        received = now_us()
        with self._shared.lock:
            awaited = [parcel for parcel in parcels if self._awaits(parcel)]
        states = {parcel.unit: self._built(parcel) for parcel in awaited}
        try:
            with self._turn() as core:
                for parcel in awaited:
                    if (state := states[parcel.unit]) is not None and self._awaits(parcel):
                        home = parcel.home if parcel.partial else None
                        about = parcel.unit, parcel.version, parcel.hop, parcel.routers
                        core.arrived(*about, state, home, parcel.routed)
                        self._times[parcel.unit] = received, now_us()
                core.drain(now_us(), slice_of_time())  # now: the step that ends with it does not wait for a row
        except BaseException as error:
            self._shared.trouble.tell(error)  # what has arrived would not be taken again
            raise
        return [states.get(parcel.unit, True) is not None for parcel in parcels]

    def _awaits(self, parcel: Parcel) -> bool:
        return self._shared.core.machine.awaits(parcel.unit, parcel.version, parcel.hop)

    def _built(self, parcel: Parcel) -> UnitState | None:
        """What has come, on top of the copy here if it is a delta; None if there is no such copy."""
        state: UnitState | None
        if parcel.reference:
            state = self._shared.store.adopt(parcel.unit, parcel.reference)
        elif parcel.delta_of is None:
            state = self._shared.store.unit(parcel.unit)
        else:
            state = self._shared.host.copies.take(self._shared.slot, parcel.unit, parcel.delta_of)
            if state is None:
                return None
        if not parcel.reference:
            state.install(parcel.batches)
        for key in parcel.deleted:
            state.delete(key)
        if parcel.timers is not None:
            state.timers.install(parcel.timers)
        return state

    def pull(self, units: Sequence[int], address: str) -> None:
        """From the process at ``address``, which held the slot in the batch before."""
        self._expected(units, self.take).pull(self._shared.clients, address)

    def restore(self, units: Sequence[int], store: SavepointStore, savepoint: str) -> None:
        """From a savepoint, and say so; also how far it is meanwhile, and that it is not there as it was written."""
        begin_us, said_at, parts_came, shared = now_us(), time.monotonic(), 0, self._shared

        def took(parcels: list[Parcel]) -> None:
            nonlocal said_at, parts_came
            self.take(parcels)
            parts_came += len(parcels)
            if time.monotonic() - said_at >= SAY_S:
                said_at = time.monotonic()
                shared.coordination.publish(RESTORING[shared.slot], parts_came)

        try:
            self._expected(units, took).restore(store, savepoint, shared.config.stage)
        except (Damaged, NotThere) as error:
            shared.coordination.publish(UNREADABLE[shared.slot], Unreadable(savepoint, str(error)))
            raise
        with shared.lock:
            came = tuple(UnitCame(unit, *self._times[unit]) for unit in units if unit in self._times)
        shared.coordination.acknowledge(RESTORED[shared.slot], Restored(came, begin_us))

    def _expected(self, units: Sequence[int], arrived: Callable[[list[Parcel]], object]) -> ExpectedUnits:
        def wanted() -> list[int]:
            with self._shared.lock:
                return self._shared.core.machine.wanted

        shared, config = self._shared, self._shared.config
        most = PULL_GROUPS * config.bins
        return ExpectedUnits(shared.slot, units, wanted, arrived, shared.closed, most, config.deadline_s)
