"""What the parts of a slot's driver have in common: ``slot_task``, ``slot_effects``, ``slot_answers``, ``arrivals``."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from keyshift.state import Store
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import FaultPoints
from keyshift.worker.flight.client import StateClients
from keyshift.worker.slot.cores import ArrowCore
from keyshift.worker.slot.host import SlotHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One slot during one batch. ``turn()``: the core, for a moment, under the ``lock``; what follows is carried out.

    ``closed``: set when the batch is over. ``failed(error)``: the task's thread raises it.
    """

    config: JobConfig
    slot: int
    core: ArrowCore
    store: Store
    host: SlotHost
    coordination: Coordination
    clients: StateClients
    lock: threading.Lock
    closed: threading.Event
    turn: Callable[[], AbstractContextManager[ArrowCore]]
    failed: Callable[[BaseException], None]
    faults: FaultPoints
