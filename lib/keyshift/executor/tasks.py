"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from keyshift import frames
from keyshift.executor import channel
from keyshift.executor.channel import BARRIER, DATA, PRIMER, SAVEPOINT, TICK, Row
from keyshift.executor.config import JobConfig, slot_schema
from keyshift.executor.operation import now_us
from keyshift.executor.slot_task import SlotTask
from keyshift.executor.zookeeper import Coordination
from keyshift.keys import Assignment, units_of
from keyshift.protocol.router import Barrier, Resume, RouterMachine, SavepointBarrier
from keyshift.trace import Trace

STALL_S = 0.005
# A slot for which a frame has no events gets a row all the same so often, and with every frame so long after a switch:
# it acts on what came for it beside its rows, and learns how far time has come, when a row comes.
TICK_US, AWAKE_US = 50_000, 2_000_000

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
        finally:
            task.close()

    return run


class RouterTask:
    """Splits frames by slot. The assignment comes from ZooKeeper's thread and is adopted between two frames."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._workload = config.make_workload()
        self._schema = slot_schema(self._workload)
        self._coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
        self._lock = threading.Lock()
        self._machine = RouterMachine(*_assignment(self._coordination.require("assignment")))
        self.watermark = 0  # of the last frame
        self._kept: list[Routed] = []  # rows for paused slots
        self._kept_bytes = 0
        self._primed = False
        self._last_us = [0] * config.slots  # the watermark of the last frame that each slot got something of
        self._awake_us = 0  # until this watermark each slot gets something of every frame
        self._coordination.watch("assignment", self._announced)
        self._coordination.watch("savepoint", self._savepoint_wanted)

    def _announced(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.announce(*_assignment(raw))

    def _savepoint_wanted(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.request_savepoint(raw["id"])

    def frame(self, router: int, offset: int, value: pa.Buffer) -> list[Routed]:
        """Rows for all slots: barriers that are due, then the slot's part of the frame, or a tick.

        Raises ServiceUnavailable if ZooKeeper has been away for so long that nobody would hear of a switch.
        """
        self._coordination.check()
        events, meta = frames.decode(value, self._workload.event_schema)
        self.watermark = max(self.watermark, meta.get("watermark", 0))  # a cut frame has it once
        with self._lock:
            effects = self._machine.boundary()
            assignment, stopped = self._machine.assignment, self._machine.stopped_for
            paused = self._machine.paused
        rows: list[Routed] = []

        def row(kind: int, payload: bytes = b"", watermark: int = 0) -> bytes:
            return Row(kind, router, assignment.version, offset, watermark, payload).to_bytes()

        def all_of_them(value: bytes) -> list[Routed]:
            return [(slot, value) for slot in range(self._config.slots)]

        if router == 0 and not self._primed:
            self._primed = True
            rows += all_of_them(row(PRIMER))
        for effect in effects:
            match effect:
                case Resume():
                    rows += self.resume()
                case Barrier():
                    self._awake_us = self.watermark + AWAKE_US
                    rows += all_of_them(row(BARRIER))
                case SavepointBarrier(savepoint):
                    rows += all_of_them(row(SAVEPOINT, savepoint.encode()))
                    self._coordination.acknowledge(f"savepoints/{savepoint}/router-{router}", {"offset": offset})
        parts = self._split(events, assignment) if events.num_rows and stopped is None else {}
        tick, bare_tick = row(TICK, watermark=self.watermark), row(TICK)
        for number, last_us in enumerate(self._last_us):
            if number not in parts and self.watermark - last_us < TICK_US and self.watermark > self._awake_us:
                continue
            self._last_us[number] = self.watermark
            value = row(DATA, parts[number], self.watermark) if number in parts else tick
            if number in paused:  # what they get is a row to act on, and no time passes
                self._kept.append((number, value))
                self._kept_bytes += len(value)
                value = bare_tick
            rows.append((number, value))
        return rows

    def resume(self) -> list[Routed]:
        """What was kept back, in its order."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept

    def stalled(self) -> bool:
        """Whether more is kept back than should be: no further frame is to be taken, they wait in Kafka."""
        with self._lock:
            return self._kept_bytes > self._config.queue_bytes and not self._machine.may_resume

    def _split(self, events: pa.RecordBatch, assignment: Assignment) -> dict[int, bytes]:
        units = units_of(events["key"].to_numpy(), self._config.key_groups, self._config.bins)
        slot_of = assignment.slot_of[units]
        order = np.argsort(slot_of, kind="stable")
        edges = np.searchsorted(slot_of[order], np.arange(self._config.slots + 1))
        taken = events.take(pa.array(order))
        ordered = pa.RecordBatch.from_arrays(
            [*taken.columns, pa.array(order.astype(np.int32)), pa.array(units[order])], schema=self._schema
        )
        return {
            number: ordered.slice(edges[number], edges[number + 1] - edges[number]).serialize().to_pybytes()
            for number in range(self._config.slots)
            if edges[number] < edges[number + 1]
        }

    def close(self) -> None:
        """End the session. The task, and with it the batch, does not wait for that."""
        threading.Thread(target=self._coordination.close, args=(True,), name="keyshift-router-end", daemon=True).start()
