"""A slot that works in turns is a router of the next stage: each of its turns is one row for each slot there.

The row goes out when the turn has ended, with the turn's results or none: the next stage knows that none is missing. It
says up to when time has come, and which chain is behind the turn. That is part of the digest of who gets the row, so
the chains of the last stage vouch for those before. Nothing is gathered: whoever gets the row waits for the same time
of all senders anyway.

A savepoint or capture to which the slot has come stands right behind the row of the turn behind which it was. Units
that move need no word: all slots of a stage have switched behind the same turn, and the next stage takes the same turns
of all of them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Generic, NamedTuple, TypeVar

from keyshift.model.keys import Assignment, SlotId
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.router import Events, Routed
from keyshift.runtime.slot import Cut, Divider, Moved
from keyshift.runtime.turn_router import TurnRouter
from keyshift.runtime.turns import TurnEnd

Result = TypeVar("Result")


class Sender(NamedTuple):
    """The ``slot``, whose last ``turn`` was in the batch before; its channels had come to this ``watermark`` then, in
    microseconds.
    """

    slot: SlotId
    turn: int = 0
    watermark: int = 0


class TurnSender(TurnRouter[Events], Generic[Events, Result]):
    """A slot as a router. ``sender``: as it begins a batch. ``together``: makes events of the next stage of a turn's
    results. For the others see ``TurnRouter``.
    """

    each_counts = True

    def __init__(
        self,
        sender: Sender,
        told: PublishAssignment,
        slots: int,
        queue_bytes: int,
        split: Callable[[Events, Assignment], Mapping[int, Sized]],
        heartbeat_us: int,
        together: Callable[[Sequence[Result]], Events],
    ) -> None:
        reached = sender.watermark // heartbeat_us * heartbeat_us  # by its last turn, which said no other time
        super().__init__(told, slots, queue_bytes, split, heartbeat_us, reached)
        self._slot, self._turn = sender.slot, sender.turn
        self._together = together
        self._of_turn: list[Result] = []  # which has not ended
        self._waiting: deque[Result | Divider | TurnEnd] = deque()

    @property
    def holds(self) -> bool:
        """Whether a turn waits here until it is known if what is appointed before its end holds."""
        return bool(self._waiting)

    def give(self, results: Sequence[Result | Divider | TurnEnd]) -> list[Routed]:
        """Rows for all slots: of the turns that have ended with these ``results``, and of what waited."""
        self._waiting += results
        rows: list[Routed] = []
        while self._waiting and self._may_go(self._waiting[0]):
            each = self._waiting.popleft()
            if isinstance(each, TurnEnd):
                rows += self._ended(each)
            elif isinstance(each, Cut):
                rows += self._cut(each)
            elif not isinstance(each, Moved):
                self._of_turn.append(each)
        return rows

    def _may_go(self, each: Result | Divider | TurnEnd) -> bool:
        return not isinstance(each, TurnEnd) or self.may_take(each.reached)

    def _ended(self, end: TurnEnd) -> list[Routed]:
        results, self._of_turn = self._of_turn, []
        self._turn = end.number
        rows, _ = self.frame(self._slot, end.number, self._together(results), end.reached)
        return [(slot, row._replace(chain=end.chain or 0)) for slot, row in rows]

    def _cut(self, cut: Cut) -> list[Routed]:
        # A snapshot is a capture: one that is a step has another version in each stage, and is refused in turns.
        request = self.machine.request_capture if cut.snapshot else self.machine.request_savepoint
        request(cut.name)
        rows, _ = self._barriers(self._slot, self._turn, self.watermark)
        return rows
