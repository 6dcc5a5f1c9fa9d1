"""The migration protocol as state machines without IO: router, slot, coordinator.

Every machine takes events and returns effects; a shell carries the effects out and feeds what happens back. There is no
clock, thread, socket or random number here, so the same machines run under the simulation, in tests and in Spark.
An event that the state does not allow raises ``ProtocolViolation`` and changes nothing.
"""

from keyshift.protocol.coordinator import CoordinatorMachine
from keyshift.protocol.router import RouterMachine
from keyshift.protocol.slot import SlotMachine

__all__ = ["CoordinatorMachine", "RouterMachine", "SlotMachine"]
