"""A router in Spark: gives its core frames and published assignments, and carries out what follows.

A task of the query routes what it reads from Kafka (``tasks``), and a slot what it gives to the next stage
(``output``).
"""

import threading

import pyarrow as pa

from keyshift.clock import now_us
from keyshift.model import frames
from keyshift.model.keys import NO_VERSION
from keyshift.protocol import RouterMachine
from keyshift.protocol.coordinator import PublishAssignment
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.router import RouterCore
from keyshift.runtime.row import Row
from keyshift.runtime.succession import UnitsMoved
from keyshift.wire import nodes, protocol_logs, spark_rows
from keyshift.wire.config import JobConfig, slot_schema
from keyshift.wire.coordination import Coordination
from keyshift.worker.attempt import AttemptWatch
from keyshift.worker.used import tells_used
from keyshift.workloads import Source

RoutedBytes = tuple[int, bytes]  # a row, and the slot it goes to


class Routing:
    """One router of the stage of ``config`` during one batch.

    What is published comes from ZooKeeper's thread and counts between two frames.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config, self.stage = config, config.make_stage()
        self.coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self.coordination.catch_up()  # with the batch before, and all that was published since it began
        self._lock = threading.Lock()
        first = config.number == 0
        schema = slot_schema(self.stage, first)
        self._split = ArrowSplit(schema, config.slots, config.key_groups, config.bins, placed=not first)
        primer = Row(spark_rows.PRIMER, 0, NO_VERSION, 0, 0)
        self._primers = [(slot, primer) for slot in range(config.slots)]  # not sent yet
        self._core = self._open()
        self.coordination.watch(nodes.LOG, self._log_wanted)

    def _open(self) -> RouterCore[pa.RecordBatch]:
        """The core, which hears from now on of what is published."""
        config, self._begin = self._config, self.coordination.require(nodes.ASSIGNMENT)
        machine = RouterMachine(self._begin.assignment, self._begin.paused)
        self._core = RouterCore(machine, config.slots, config.queue_bytes, self._split)
        self.coordination.watch(nodes.ASSIGNMENT, self._announced)
        return self._core

    def _announced(self, told: PublishAssignment) -> None:
        with self._lock:
            self._announce(told)

    def _announce(self, told: PublishAssignment) -> None:
        """Tell the core what is published; under the lock."""
        self._core.machine.announce(told.assignment, told.paused, told.snapshot)

    def _log_wanted(self, question: str) -> None:
        with self._lock:
            protocol_logs.answer(self.coordination, question, self._core.log)

    def request_savepoint(self, savepoint: str) -> None:
        """Let the barrier of ``savepoint`` go out with the next frame, and nothing after it."""
        with self._lock:
            self._core.machine.request_savepoint(savepoint)

    def report(self) -> None:
        """Put what led to the failure of the task into the log of its worker, and tell the job."""
        with self._lock:
            protocol_logs.report(self.coordination, self._core.log)

    @property
    def watermark(self) -> int:
        """The watermark of the last frame."""
        return self._core.watermark

    def routed(
        self, router: int, offset: int, events: pa.RecordBatch, watermark: int, time_us: int | None = None
    ) -> tuple[list[RoutedBytes], list[str]]:
        """Rows for all slots, and savepoints whose barriers are among them; see ``RouterCore.frame``.

        Raises ServiceUnavailable if ZooKeeper has been away for so long that nobody would hear of a switch.
        """
        self.coordination.check()
        with self._lock:
            return self._routed(router, offset, events, watermark, time_us)

    def _routed(
        self, router: int, offset: int, events: pa.RecordBatch, watermark: int, time_us: int | None
    ) -> tuple[list[RoutedBytes], list[str]]:
        """Rows for all slots, as ``routed`` gives them; under the lock."""
        rows, savepoints = self._core.frame(router, offset, events, watermark, time_us)
        return self._out(router, rows), savepoints

    def _out(self, router: int, rows: list[tuple[int, Row]]) -> list[RoutedBytes]:
        """Give what the core has said, as it goes out; under the lock."""
        if self._core.log.new:
            self._core.log.stamp(now_us())
        if router == 0 and self._primers:
            rows, self._primers = self._primers + rows, []
        return _packed(rows)

    def moved(self, router: int, offset: int, said: UnitsMoved) -> list[RoutedBytes]:
        """Rows for all slots about units that move in the stage before."""
        with self._lock:
            return _packed(self._core.moved(router, offset, said))

    def resume(self) -> list[RoutedBytes]:
        """Give what was kept back, in its order."""
        return _packed(self._core.resume())

    @property
    def full(self) -> bool:
        """Whether more is kept back than should be: no further frame is to be taken, they wait where they come from."""
        with self._lock:
            return self._core.full

    def in_batch(self, rows: list[RoutedBytes]) -> list[pa.RecordBatch]:
        """Rows as Spark takes them: one batch, or none."""
        return [spark_rows.routed(rows, self._config.slots_per_process)] if rows else []

    def close(self) -> None:
        """End the session. The task, and with it the batch, does not wait for that."""
        threading.Thread(target=self._disconnect, name="keyshift-router-end", daemon=True).start()

    def _disconnect(self) -> None:
        protocol_logs.keep(self.coordination, self._core.log)
        self.coordination.close(prepare_next=True)


class RouterTask(Routing):
    """A router of the first stage during one batch: frames of the source come in."""

    def __init__(self, config: JobConfig) -> None:
        self._source: Source | None = None  # known with the first frame: a task reads one partition
        self._closed = threading.Event()
        super().__init__(config)
        self.watch = AttemptWatch(config, self.coordination)  # for whoever waits until it may go on

    def _open(self) -> RouterCore[pa.RecordBatch]:
        core = super()._open()
        self.coordination.watch(nodes.SAVEPOINT, self._savepoint_called)
        return core

    def _savepoint_called(self, called: nodes.SavepointCalled) -> None:
        self.request_savepoint(called.id)

    def frame(self, router: int, offset: int, value: pa.Buffer) -> list[RoutedBytes]:
        """Rows for all slots; see ``Routing.routed``. Of a frame that is stale there are none."""
        source = self._source = self._source or self._begun_as(router)
        events, facts = frames.decode(value, source.schema)
        if (epochs := self._config.epochs) and facts.epoch < max(
            (epoch for begin, epoch in epochs[router] if begin <= offset), default=frames.FIRST_EPOCH
        ):
            return []
        rows, savepoints = self.routed(router, offset, source.mapped(events), facts.watermark)
        for savepoint in savepoints:
            node = nodes.saved(savepoint)[nodes.of_router(router)]
            self.coordination.acknowledge(node, nodes.RouterSaved(offset + self._core.behind, self.watermark))
        return rows

    def _begun_as(self, router: int) -> Source:
        """The source of this router. From now on it tells what its pod uses, if it is in one."""
        if tell := tells_used(self.coordination, nodes.of_router(router), self._closed):
            threading.Thread(target=tell, name=f"keyshift-router-{router}-used", daemon=True).start()
        return self._config.make_source(router)

    def hand_over(self) -> None:
        """End with the batch: nothing more is routed in it."""

    def close(self) -> None:  # noqa: D102
        self._closed.set()
        super().close()


def _packed(rows: list[tuple[int, Row]]) -> list[RoutedBytes]:
    return [(slot, spark_rows.packed(row)) for slot, row in rows]
