"""Carries out what a slot's core decides: units, messages, errands and acknowledgements leave the slot."""

import contextlib
from collections.abc import Callable, Iterator

from keyshift.clock import now_us
from keyshift.model.keys import NO_VERSION, SlotId, Version
from keyshift.model.records import UnitCame, UnitLeft, UnitsCame, UnitsLeft
from keyshift.protocol import slot as protocol
from keyshift.protocol.coordinator import StepPhase
from keyshift.runtime.key_access import Errand
from keyshift.runtime.slot import Captured, Leave
from keyshift.wire.nodes import Acknowledgement, PhaseDone, ack
from keyshift.worker.flight.messages import Shipment
from keyshift.worker.output import Results
from keyshift.worker.slot.cores import ArrowCore
from keyshift.worker.slot.shared import Shared
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.state.addresses import Addresses
from keyshift.worker.state.departures import Departures, StepMessage
from keyshift.worker.state.key_couriers import KeyCouriers
from keyshift.worker.state.replicator import Replicator


class SlotEffects:
    """The effects, with a courier for each kind that leaves. ``promise(results)``: see ``SlotOutput.promise``."""

    def __init__(self, shared: Shared, snapshots: SlotSnapshots, promise: Callable[[Results], Version]) -> None:
        self._shared, self._snapshots, self._promise = shared, snapshots, promise
        addresses = Addresses(shared.coordination, shared.config.deadline_s)
        self._aligned_us: dict[int, int] = {}
        self._outgoing: dict[int, tuple[int, int, int]] = {}  # unit -> bytes, aligned_us, sent_us
        self.incoming: dict[int, tuple[int, int]] = {}  # unit -> received_us, installed_us
        self.lent_bytes = 0  # of what was sent and came back, or was given back
        self.couriers = KeyCouriers(shared.clients, shared.core.keys, self.turn, shared.background.failed)
        self.departures = Departures(shared, addresses, self.turn, self._sent)
        self.replicator = Replicator(shared, addresses)

    def close(self) -> None:
        """Send no more, but for copies: their thread ends with ``replicator.close()``, when no call is open."""
        self.departures.close()
        self.couriers.close()

    @contextlib.contextmanager
    def turn(self) -> Iterator[ArrowCore]:
        """Give the core, under the slot's lock; at the end what follows is carried out."""
        with self._shared.lock:
            yield self._shared.core
            self._carry_out()
            if self._shared.core.waits:
                self._shared.waits.set()

    def _carry_out(self) -> None:
        core = self._shared.core
        if core.log.new:
            self._shared.faults.heard(core.log.new)
            core.log.stamp(now_us())
        leaving: dict[SlotId, list[Shipment]] = {}  # by slot, as what goes together travels together
        messages: dict[SlotId, list[StepMessage]] = {}
        effects = core.take_effects()
        routed = self._promise(core.results) if any(isinstance(effect, Leave) for effect in effects) else NO_VERSION
        for effect in effects:
            match effect:
                case Leave():
                    leaving.setdefault(effect.send.destination, []).append(self._shipment(effect, routed))
                case Errand():
                    self.couriers.send(effect)
                case protocol.Prepared(version):
                    self._acknowledge(version, "prepared", PhaseDone(now_us()))
                case protocol.Open():
                    messages.setdefault(effect.destination, []).append(effect)
                case protocol.Request():
                    messages.setdefault(effect.slot, []).append(effect)
                case protocol.Hurry(unit):
                    self.departures.hurry(unit)
                case protocol.Installed(version, units):
                    for unit in units:
                        self._count_lent(unit)
                    came = tuple(UnitCame(unit, *self.incoming.pop(unit)) for unit in sorted(units))
                    self._acknowledge(version, "installed", UnitsCame(came, now_us(), now_us()))
                case protocol.Released(version, units):
                    left = tuple(UnitLeft(unit, *self._outgoing.pop(unit)) for unit in sorted(units))
                    self._acknowledge(version, "released", UnitsLeft(left, now_us()))
                case protocol.Freeze(savepoint):
                    self.replicator.pause()
                    self._snapshots.freeze(savepoint)
                    self._shared.background.put(self.replicator.go_on)  # when it is written
                case Captured(snapshot, version):
                    self._acknowledge_captured(version)
                    self._snapshots.captured(effect)
                case protocol.Skip(snapshot, version):
                    self._acknowledge_captured(version)
                    self._snapshots.skipped(snapshot)
        for slot, shipments in leaving.items():
            self.departures.send(slot, shipments)
        for slot, some in messages.items():
            self.departures.tell(slot, some, core.modes[some[0].version])

    def _shipment(self, leave: Leave, routed: Version) -> Shipment:
        send = leave.send
        self._count_lent(send.unit)
        self._aligned_us[send.unit] = now_us()
        shipment = Shipment(
            send.unit, send.version, send.hop, send.routers, leave.keys_stay, routed=routed, state=leave.state
        )
        if leave.keys_stay:  # for whoever asks
            self._shared.host.lend((send.unit, send.version), leave.state)
        return self.replicator.shrink(shipment, send.destination)

    def _sent(self, unit: int, size: int) -> None:
        self._outgoing[unit] = size, self._aligned_us[unit], now_us()
        self._shared.faults.sending(lambda: self._shared.clients.cut(self._shared.host.server.address))

    def _count_lent(self, unit: int) -> None:
        """``unit`` leaves, or is here to stay: what was sent of it before in this step was not the last of it."""
        size, *_ = self._outgoing.pop(unit, (0,))
        self.lent_bytes += size

    def _acknowledge_captured(self, version: Version) -> None:
        if version != NO_VERSION:  # otherwise it is of no step
            self._acknowledge(version, "captured", PhaseDone(now_us()))

    def _acknowledge(self, version: Version, phase: StepPhase, value: Acknowledgement) -> None:
        self._shared.coordination.acknowledge(ack(version, phase, self._shared.slot), value)
