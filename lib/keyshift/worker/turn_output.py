"""Where the turns of a slot go: out to Kafka, or on to the next stage."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from keyshift.model.keys import SlotId
from keyshift.model.markers import SlotMarker, TurnTold
from keyshift.ordering import Position
from keyshift.runtime.turn_sender import Sender, TurnSender
from keyshift.runtime.turns import TurnEnd
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.worker.output import TELL_TURNS, NextStage, Results, Sink, SlotOutput, passed_on
from keyshift.worker.turn_router import TurnRouting


class NextTurns(TurnRouting, SlotOutput):
    """The output to the stage of ``config``, by turns. ``sender``: of the slot, as it begins the batch; ``stage``: its
    own.

    A turn waits here until it is known whether what is appointed before its end holds. If there are other replicas, one
    of ten is told to be compared: so it is known in which stage they differ.
    """

    _core: TurnSender[pa.RecordBatch, pa.RecordBatch]

    def __init__(self, config: JobConfig, sender: Sender, stage: str) -> None:
        self._sender, self._of, self._marked = sender, stage, sender.slot % config.slots
        super().__init__(config)
        self.listen(sender.slot)

    def _begun(self, watermark: int) -> TurnSender[pa.RecordBatch, pa.RecordBatch]:
        config, self._begin = self._config, self.coordination.require(nodes.ASSIGNMENT)
        shape = config.slots, config.queue_bytes, self._split, config.heartbeat_us
        return TurnSender(self._sender, self._begin, *shape, self.stage.from_all)

    def give(self, results: Results, markers: Sequence[SlotMarker], now_us: int) -> list[pa.RecordBatch]:  # noqa: D102
        self.coordination.check()
        with self._lock:
            self._require_good()
            rows = self._out(self._sender.slot, self._core.give(results))
        return self.in_batch(passed_on(self._marked, [*markers, *self._told(results)]) + rows)

    def _told(self, results: Results) -> Iterator[SlotMarker]:
        heartbeat_us = self._config.heartbeat_us
        for end in results if self._config.replicated else ():
            if isinstance(end, TurnEnd) and end.chain is not None and end.number % TELL_TURNS == 0:
                told = TurnTold(self._of, end.number, end.reached // heartbeat_us, end.chain)
                yield SlotMarker(self._sender.slot, told)

    def rest(self) -> list[pa.RecordBatch]:  # noqa: D102
        self.hand_over()
        return []

    @property
    def holds(self) -> bool:  # noqa: D102
        return self._core.holds


def make_output(config: JobConfig, slot: SlotId, position: Position | None) -> SlotOutput:
    """Make the output of a slot of the stage of ``config``. ``position``: of one that works in turns, if it has had
    any.
    """
    following = config.next
    if following is None:
        return Sink(config)
    if not config.in_turns:
        return NextStage(following, slot)
    sender = Sender(slot, position.turn, position.time) if position else Sender(slot)
    return NextTurns(following, sender, config.stage)
