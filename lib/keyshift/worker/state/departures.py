"""What leaves a slot for other slots: units in an outbox for each of them, and messages with a courier for each."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from keyshift.model.errors import KeyshiftError
from keyshift.model.keys import Mode, SlotId, Step, UnitId
from keyshift.protocol.slot import Open, Request
from keyshift.worker.flight.messages import Acknowledged, KeysDropped, OfStep, Opened, Shipment, Wanted
from keyshift.worker.slot.cores import ArrowCore
from keyshift.worker.slot.shared import Shared
from keyshift.worker.state.addresses import Addresses
from keyshift.worker.state.outbox import Courier, Outbox

StepMessage = Request | Open
CoreTurn = Callable[[], AbstractContextManager[ArrowCore]]  # the core, for a moment


class Departures:
    """What leaves a slot. ``sent(unit, size)``: some state of this unit is on its way."""

    def __init__(self, shared: Shared, addresses: Addresses, turn: CoreTurn, sent: Callable[[int, int], None]) -> None:
        self._slot, self._clients, self._failed = shared.slot, shared.clients, shared.background.failed
        self._at, self._addresses = shared.host.server.address, addresses
        self._turn, self._sent = turn, sent
        self._outboxes: dict[SlotId, Outbox] = {}
        self._messengers: dict[SlotId, Courier[StepMessage]] = {}
        self._greeted: set[str] = set()  # addresses

    def greet(self, step: Step) -> None:
        """Connect with those that units go to or come from, before anything waits for it."""
        pairs = {(move.source, move.destination) for move in step.moves}
        for slot in {slot for pair in pairs if self._slot in pair for slot in pair} - {self._slot}:
            with contextlib.suppress(KeyshiftError):  # whoever needs the slot will wait for it, and tell
                if (address := self._addresses.of(slot, within_s=0)) not in self._greeted:
                    self._clients.tell(address, KeysDropped())
                    self._greeted.add(address)

    def send(self, destination: SlotId, shipments: list[Shipment]) -> None:
        """Send these units."""
        if destination not in self._outboxes:
            name, push = f"slot {self._slot} to {destination}", partial(self._push, destination)
            self._outboxes[destination] = Outbox(name, push, self._failed)
        self._outboxes[destination].put(*shipments)

    def hurry(self, unit: UnitId) -> None:
        """Send this unit before all others, if it still waits."""
        for outbox in self._outboxes.values():
            outbox.hurry(unit)

    def tell(self, slot: SlotId, messages: list[StepMessage], mode: Mode) -> None:
        """Deliver messages of a step of this mode."""
        if slot not in self._messengers:
            deliver = partial(self._deliver, slot)
            self._messengers[slot] = Courier(f"slot {self._slot} to {slot}", deliver, self._failed)
        self._messengers[slot].send(*messages, pause_s=mode.fetch_interval_ms / 1000)

    def close(self) -> None:
        """Send no more."""
        for outbox in self._outboxes.values():
            outbox.close()
        for messenger in self._messengers.values():
            messenger.close()

    # -- couriers' threads --------------------------------------------------------------------------------------------

    def _push(self, destination: SlotId, shipments: Iterator[Shipment]) -> None:
        outbox = self._outboxes[destination]

        def sent(shipment: Shipment, size: int) -> None:
            self._sent(shipment.unit, size)

        def acknowledged(answers: Acknowledged) -> None:
            known = [(unit, taken, outbox.acknowledged(unit)) for unit, taken in answers]
            refused = [shipment for _, taken, shipment in known if shipment is not None and not taken]
            if refused:  # the copies they were to be added to are gone: the whole, then
                outbox.put(*(replace(shipment, delta_of=None) for shipment in refused))
            with self._turn() as core:
                for unit, taken, shipment in known:
                    if shipment is not None and taken:
                        core.acknowledged(unit)

        self._clients.push(self._addresses.of(destination), destination, self._at, shipments, sent, acknowledged)

    def _deliver(self, slot: SlotId, messages: list[StepMessage]) -> None:
        wanted = tuple(Wanted(m.unit, m.version, m.router, m.hop) for m in messages if isinstance(m, Request))
        opened = tuple(Opened(m.unit, m.version) for m in messages if isinstance(m, Open))
        self._clients.tell(self._addresses.of(slot), OfStep(slot, wanted, opened))
        with self._turn() as core:
            for unit, _ in opened:
                core.acknowledged(unit)
