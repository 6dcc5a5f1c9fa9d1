"""Around an order machine that follows a leader: the order log is read, and the replica stands for election.

The machine decides, and the slot's task has it. Here are the threads that tell it what was read and when it leads.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from keyshift.model.keys import SlotId
from keyshift.wire.config import JobConfig
from keyshift.wire.election import Election
from keyshift.worker.order.log import OrderLog

if TYPE_CHECKING:
    from keyshift.worker.slot.intake import LedIntake

READ_S = 0.02  # so often a leader is asked, at the least, whether its record is late


class Following:
    """One ``slot`` follows the order log during a batch, from ``offset`` on. The replica stands for election when it
    has read what is there, and has the rows: one that comes back would make the others wait for it.

    ``append``, ``resign`` and ``withdraw`` are for whoever carries out what the machine wants.
    """

    def __init__(self, config: JobConfig, slot: SlotId, offset: int) -> None:
        endpoints, replica = config.endpoints, config.replica
        self._log = OrderLog(endpoints, config.order_topic, config.slots_before + slot, offset, replica)
        stage_and_slot, session_s = (config.stage, slot), config.session_ms / 1000
        self._election = Election(endpoints.zookeeper, config.token, config.shared, stage_and_slot, replica, session_s)
        self._over, self._abreast = threading.Event(), threading.Event()
        self.append, self.resign, self.withdraw = self._log.append, self._election.resign, self._election.withdraw

    def works(
        self, follower: "LedIntake", turn: Callable[[], AbstractContextManager[object]]
    ) -> tuple[Callable[[], None], ...]:
        """Give the work of each thread, until ``close``. ``turn``: in which the ``follower`` is told."""

        def elected(term: int) -> None:
            with turn():
                follower.elected(term)

        def stand() -> None:
            self._abreast.wait()
            self._election.stand(elected)

        return partial(self._read, follower, turn), stand, self._election.keep

    def _read(self, follower: "LedIntake", turn: Callable[[], AbstractContextManager[object]]) -> None:
        try:
            end = self._log.end()
            while not self._over.is_set():
                records = self._log.read(READ_S)
                with turn():
                    follower.heard(records)
                    if self._log.next >= end and follower.abreast:
                        self._abreast.set()
        finally:
            self._abreast.set()  # who waits ends, too
            self._log.close()

    def close(self) -> None:
        """End with the batch. Another replica leads at once, if this one has led."""
        self._over.set()
        self._election.close()
