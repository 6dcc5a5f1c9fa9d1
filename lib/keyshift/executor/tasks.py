"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from keyshift import frames
from keyshift.clock import now_us
from keyshift.executor import channel, protocol_logs
from keyshift.executor.config import JobConfig, slot_schema
from keyshift.executor.slot_task import SlotTask
from keyshift.executor.zookeeper import Coordination
from keyshift.keys import Assignment
from keyshift.protocol import RouterMachine
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.router import RouterCore
from keyshift.runtime.row import DATA, Row
from keyshift.trace import Trace

STALL_S = 0.005

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]  # what runs in one task of a stage, for ``mapInArrow``
Routed = tuple[int, bytes]  # a row, and the slot it goes to


def _assignment(raw: dict[str, Any]) -> tuple[Assignment, frozenset[int]]:
    """The assignment that was published, and the slots that are paused under it."""
    return Assignment.from_json(raw), frozenset(raw["paused"])


def router(config: JobConfig, batch_s: float) -> Task:
    """The router's task, in batches of ``batch_s``: rows of partition, offset, value in; rows ``channel.ROUTED`` out.

    Here and in a slot, rows without a value have only pushed others.
    """

    def run(batches: Batches) -> Batches:
        task = RouterTask(config)
        # Then little comes any more. A router that waited for room would keep the batch from ending, and wait for ever
        # if another one has ended its own without switching: slots take the end of all for its barrier.
        over = time.monotonic() + batch_s
        columns = ["router", "offset", "frame_us", "came_us", "went_us"]
        trace = Trace(config.trace, "router", columns) if config.trace else None
        try:
            for batch in batches:
                for partition, offset, value in zip(*batch.columns, strict=True):
                    if not value.is_valid:
                        continue
                    came_us = now_us()
                    rows = task.frame(partition.as_py(), offset.as_py(), value.as_buffer())
                    if trace:
                        trace.add(partition.as_py(), offset.as_py(), task.watermark, came_us, now_us())
                    if rows:
                        yield channel.routed(rows)
                    while task.stalled() and time.monotonic() < over:
                        time.sleep(STALL_S)
            if rest := task.resume():
                yield channel.routed(rest)
        except Exception:  # not if Spark only needs the task no more
            task.report()
            raise
        finally:
            task.close()

    return run


def slot(config: JobConfig) -> Task:
    """The slot's task: values of rows in, as routers made them; rows ``channel.ANSWERED`` out."""

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # there is one in every task
        number = context.partitionId()
        task = SlotTask(config, number, batch_id=context.getLocalProperty("streaming.sql.batchId") or "?")
        columns = ["slot", "router", "offset", "came_us", "went_us"]
        trace = Trace(config.trace, "slot", columns) if config.trace else None
        try:
            task.open()
            for batch in batches:
                came_us = now_us()
                rows = list(channel.received(batch))
                values = task.on_rows(rows)
                if trace:
                    for row in rows:
                        if row.kind == DATA:
                            trace.add(number, row.router, row.offset, came_us, now_us())
                if values:
                    yield channel.answered(values)
                while task.stalled():
                    if values := task.wait():
                        yield channel.answered(values)
            while not task.settled():
                if values := task.wait():
                    yield channel.answered(values)
            task.seal()
        except Exception:
            task.report()
            raise
        finally:
            task.close()

    return run


class RouterTask:
    """One router during one batch. What is published comes from ZooKeeper's thread and counts between two frames."""

    def __init__(self, config: JobConfig) -> None:
        self._event_schema, self._stage = config.make_source().schema, config.make_stage()
        self._coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self._lock = threading.Lock()
        machine = RouterMachine(*_assignment(self._coordination.require("assignment")))
        split = ArrowSplit(slot_schema(self._stage), config.slots, config.key_groups, config.bins)
        self._core: RouterCore[pa.RecordBatch] = RouterCore(machine, config.slots, config.queue_bytes, split)
        self._primers = [(slot, Row(channel.PRIMER, 0, 0, 0, 0)) for slot in range(config.slots)]  # not sent yet
        self._coordination.watch("assignment", self._announced)
        self._coordination.watch("savepoint", self._savepoint_wanted)
        self._coordination.watch("log", self._log_wanted)

    def _announced(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._core.machine.announce(*_assignment(raw), raw["snapshot"])

    def _savepoint_wanted(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._core.machine.request_savepoint(raw["id"])

    def _log_wanted(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            protocol_logs.answer(self._coordination, raw["id"], self._core.log)

    def report(self) -> None:
        """The task fails: what led to that goes into the log of its worker, and to the job."""
        with self._lock:
            protocol_logs.report(self._coordination, self._core.log)

    @property
    def watermark(self) -> int:
        """Of the last frame."""
        return self._core.watermark

    def frame(self, router: int, offset: int, value: pa.Buffer) -> list[Routed]:
        """Rows for all slots; see ``RouterCore.frame``.

        Raises ServiceUnavailable if ZooKeeper has been away for so long that nobody would hear of a switch.
        """
        self._coordination.check()
        events, meta = frames.decode(value, self._event_schema)
        events = self._stage.mapped(events)
        with self._lock:
            rows, savepoints = self._core.frame(router, offset, events, meta.get("watermark", 0))
            if self._core.log.new:
                self._core.log.stamp(now_us())
        for savepoint in savepoints:
            self._coordination.acknowledge(f"savepoints/{savepoint}/router-{router}", {"offset": offset})
        if router == 0 and self._primers:
            rows, self._primers = self._primers + rows, []
        return _packed(rows)

    def resume(self) -> list[Routed]:
        """What was kept back, in its order."""
        return _packed(self._core.resume())

    def stalled(self) -> bool:
        """Whether more is kept back than should be: no further frame is to be taken, they wait in Kafka."""
        with self._lock:
            return self._core.full

    def close(self) -> None:
        """End the session. The task, and with it the batch, does not wait for that."""
        protocol_logs.keep(self._coordination, self._core.log)
        threading.Thread(target=self._coordination.close, args=(True,), name="keyshift-router-end", daemon=True).start()


def _packed(rows: list[tuple[int, Row]]) -> list[Routed]:
    return [(slot, channel.packed(row)) for slot, row in rows]
