"""What the parts of a slot have in common during one batch."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from keyshift.model.keys import SlotId
from keyshift.state import Store
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import FaultPoints
from keyshift.worker.flight.client import StateClients
from keyshift.worker.slot.background import Background
from keyshift.worker.slot.cores import ArrowCore
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.slot.markers import Markers

DRAIN_S = 0.003  # so long queued work is processed between two rows, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One slot during one batch. Its ``core`` is used under the ``lock``, mostly in a turn: see ``SlotEffects.turn``.

    ``closed``: set when the batch is over. ``waits``: set when something waits in the core, or the batch is over.
    """

    config: JobConfig
    slot: SlotId
    core: ArrowCore
    store: Store
    host: SlotHost
    coordination: Coordination
    clients: StateClients
    faults: FaultPoints
    background: Background
    markers: Markers
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        """Tell all parts that the batch is over."""
        self.closed.set()
        self.waits.set()


def slice_of_time() -> Callable[[], bool]:
    """Begins a slice of queued work; what it returns says whether the slice goes on."""
    until = time.monotonic() + DRAIN_S
    return lambda: time.monotonic() < until
