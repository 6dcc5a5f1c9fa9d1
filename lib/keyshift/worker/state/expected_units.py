"""Units that a slot owns when it opens, and whose state is elsewhere: in another process, or in a savepoint.

All of them are fetched at once, in the background: Spark ends a Python process a minute after its last task, and with
it what was left there.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.nodes import Location
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import Parcel
from keyshift.worker.state.outbox import again


class ExpectedUnits:
    """Fetches the state of ``units`` for one slot, up to ``most`` of them in one call.

    ``wanted()``: units whose state the slot waits for, the most urgent first; ``arrived``: takes units that have come.
    A call that fails is repeated. Raises ServiceUnavailable if nothing has come for ``deadline_s``.
    """

    def __init__(
        self,
        slot: int,
        units: Iterable[int],
        wanted: Callable[[], list[int]],
        arrived: Callable[[list[Parcel]], object],
        closed: threading.Event,
        most: int,
        deadline_s: float,
    ) -> None:
        self._slot, self._wanted, self._arrived = slot, wanted, arrived
        self._closed, self._most, self._deadline_s = closed, most, deadline_s
        self._missing = set(units)
        self._here: list[int] = []

    def pull(self, clients: StateClients, address: str) -> None:
        """From the process at ``address``, which held the slot in the batch before."""

        def get(units: list[int]) -> None:
            clients.pull(address, self._slot, units, self._came)
            with contextlib.suppress(ServiceUnavailable):  # what was not told keeps its memory there, no more
                clients.tell(address, "taken", {"slot": self._slot, "units": self._here})

        self._fetch(f"slot {self._slot} from {address}", get)

    def restore(self, store: SavepointStore, savepoint: str, stage: str) -> None:
        """From a savepoint."""
        places: dict[int, list[Location]] = {}

        def get(units: list[int]) -> None:
            places.update(places or store.places(savepoint, stage))
            for unit in units:
                batches, timers = store.read(*places[unit])
                self._came([Parcel(unit, batches=batches, timers=timers)])

        self._fetch(f"slot {self._slot} from savepoint {savepoint}", get)

    def _fetch(self, name: str, get: Callable[[list[int]], None]) -> None:
        def some() -> None:
            missing = len(self._missing)
            try:
                get(self._next())
            except ServiceUnavailable:
                if len(self._missing) == missing:
                    raise  # otherwise it goes on where it broke, and the deadline begins anew

        while self._next() and not self._closed.is_set():
            again(name, self._closed, some, self._deadline_s)

    def _next(self) -> list[int]:
        return [unit for unit in self._wanted() if unit in self._missing][: self._most]

    def _came(self, parcels: list[Parcel]) -> None:
        self._arrived(parcels)
        self._here += (parcel.unit for parcel in parcels)
        self._missing.difference_update(self._here)
