"""The slot: serves its units, hands over those that leave once they are final, queues records of those that arrive.

Where a unit is, and what may happen to it: ``phases``. What a slot knows and may be asked: ``situation``. What happens
to the slot: ``machine``; what follows from it: ``consequences``.

With ``fetch_back`` a unit may be lent to its destination before all routers switched: it serves the routers that had
switched there, and comes back for a late record of the others, until the source says that it is there for good.
With transfer ``access`` or ``remote`` a unit arrives without its keys: it is *partial* until the rest is fetched, and
cannot be handed on before that; which keys are here is known to ``protocol.absent_keys``.

The machine never sees state or the content of records: ``Record`` is whatever the shell wants back.
"""

from keyshift.protocol.slot.effects import (
    Capture,
    Complete,
    Freeze,
    Hurry,
    Installed,
    Open,
    Prepared,
    Released,
    Request,
    Send,
    Skip,
    SlotEffect,
)
from keyshift.protocol.slot.machine import SlotMachine, TurnMachine

__all__ = [
    "Capture",
    "Complete",
    "Freeze",
    "Hurry",
    "Installed",
    "Open",
    "Prepared",
    "Released",
    "Request",
    "Send",
    "Skip",
    "SlotEffect",
    "SlotMachine",
    "TurnMachine",
]
