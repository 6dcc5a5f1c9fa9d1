"""Carries the errands of a slot to the homes of its partial units, with a thread for each home."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

import pyarrow as pa

from keyshift.runtime.key_access import Errand, KeyAccess, Stay
from keyshift.state import rows
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import KeysDropped, KeysOf
from keyshift.worker.state.outbox import Courier


class KeyCouriers:
    """``keys`` are asked and told within ``turn()``, and only there; what follows is carried out at its end.

    ``measures``: what went over the wire, apart from whole units.
    """

    def __init__(
        self,
        clients: StateClients,
        keys: KeyAccess[pa.RecordBatch],
        turn: Callable[[], AbstractContextManager[object]],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._clients, self._keys, self._turn, self._failed = clients, keys, turn, failed
        self._moved: dict[str, list[KeysOf]] = {}  # address -> keys that it need not keep
        self._couriers: dict[str, Courier[Errand]] = {}
        self.measures = Counter[str]()

    def send(self, errand: Errand) -> None:
        """Carry this out, soon; within a turn."""
        address = errand.home.address
        if address not in self._couriers:

            def run(errands: list[Errand]) -> None:
                self._run(address, errands)

            self._couriers[address] = Courier(f"keys of {address}", run, self._failed)
        self._couriers[address].send(errand, pause_s=errand.home.mode.fetch_interval_ms / 1000)

    def close(self) -> None:
        """Stop the threads."""
        for courier in self._couriers.values():
            courier.close()

    def _run(self, address: str, errands: list[Errand]) -> None:
        """Carry out ``errands`` at ``address``. May break anywhere and be called again: nothing is taken away there
        before it is here, and what has come or gone by then is not asked for or given again.
        """
        asked = [(*errand.home.stay, list(errand.keys)) for errand in errands if errand.what == "fetch"]
        with self._turn():
            news = list(self._keys.unwritten(_stays(errands, "write")))
        if news or asked:
            moved = self._moved.get(address, [])
            answer = self._clients.keys(address, asked, moved, [written for written, _ in news])
            self._moved[address] = []
            with self._turn():
                fetched_keys = sum(map(len, answer.found))
                self.measures.update(
                    fetched_bytes=answer.nbytes, fetched_keys=fetched_keys, written_bytes=answer.written_bytes
                )
                for (stay, *_), changes in news:
                    self._keys.written(stay, changes)
                for found, (unit, version, keys) in zip(answer.found, asked, strict=True):
                    if self._keys.arrived((unit, version), keys, found):
                        self._moved[address].append((unit, version, keys))
        errands[:] = [errand for errand in errands if errand.what in ("rest", "drop")]
        with self._turn():
            rests = self._keys.rests(_stays(errands, "rest"))
        if rests:
            self._clients.rest(address, rests, self._rest_arrived)
        if done := _stays(errands, "drop"):
            self._clients.tell(address, KeysDropped(tuple(done)))

    def _rest_arrived(self, stay: Stay, batch: pa.RecordBatch, last: bool) -> None:
        """Take one slice of the rest at a time: nobody waits long for the lock."""
        keys = batch["key"].to_pylist()
        with self._turn():
            self.measures.update(fetched_bytes=batch.nbytes, fetched_keys=len(keys))
            self._keys.rest_arrived(stay, keys, rows.unpack(batch), last)


def _stays(errands: list[Errand], what: str) -> list[Stay]:
    return list(dict.fromkeys(errand.home.stay for errand in errands if errand.what == what))
