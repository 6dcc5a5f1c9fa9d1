"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyshift import frames
from keyshift.executor.config import BARRIER, DATA, SAVEPOINT, TICK, JobConfig, slot_schema
from keyshift.executor.coordination import Coordination
from keyshift.executor.slot_task import SlotTask
from keyshift.keys import Assignment, units_of
from keyshift.protocol.router import Barrier, Resume, RouterMachine, SavepointBarrier

STALL_S = 0.005

Batches = Iterator[pa.RecordBatch]

_ROW = pa.schema(
    [
        ("slot", pa.int32()),
        ("kind", pa.int32()),
        ("router", pa.int32()),
        ("version", pa.int64()),
        ("offset", pa.int64()),
        ("watermark", pa.int64()),
        ("value", pa.binary()),
    ]
)


def _assignment(raw: dict[str, Any]) -> tuple[Assignment, frozenset[int]]:
    """The assignment that was published, and the slots that are paused under it."""
    return Assignment.from_json(raw), frozenset(raw["paused"])


def router(config: JobConfig) -> Callable[[Batches], Batches]:
    """The router's task: rows of partition, offset, value in; rows of ``ROW_SCHEMA`` out, one per slot and frame."""

    def run(batches: Batches) -> Batches:
        task = RouterTask(config)
        try:
            for batch in batches:
                for partition, offset, value in zip(*batch.columns, strict=True):
                    if (frame := value.as_buffer()).size:  # not frames.NUDGE
                        yield task.frame(partition.as_py(), offset.as_py(), frame)
                        while task.stalled():
                            time.sleep(STALL_S)
            if (rest := task.resume()) is not None:
                yield rest
        finally:
            task.close()

    return run


def slot(config: JobConfig) -> Callable[[Batches], Batches]:
    """The slot's task: rows of ``ROW_SCHEMA`` in; rows of value (a result frame or a marker) and partition out."""

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # there is one in every task
        number = context.partitionId()
        task = SlotTask(config, number, batch_id=context.getLocalProperty("streaming.sql.batchId") or "?")
        partition = pa.array([number], pa.int32())

        def rows(values: list[bytes]) -> pa.RecordBatch:
            partitions = pa.concat_arrays([partition] * len(values))
            return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), partitions], ["value", "partition"])

        try:
            task.open()
            for batch in batches:
                if values := task.on_rows(batch):
                    yield rows(values)
                while task.stalled():
                    if values := task.wait():
                        yield rows(values)
            while not task.settled():
                if values := task.wait():
                    yield rows(values)
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
        self._coordination = Coordination(config.endpoints.zookeeper, config.root)
        self._lock = threading.Lock()
        self._machine = RouterMachine(*_assignment(self._coordination.require("assignment")))
        self._kept: list[pa.RecordBatch] = []  # rows for paused slots
        self._kept_bytes = 0
        self._coordination.watch("assignment", self._announced)
        self._coordination.watch("savepoint", self._savepoint_wanted)

    def _announced(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.announce(*_assignment(raw))

    def _savepoint_wanted(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.request_savepoint(raw["id"])

    def frame(self, router: int, offset: int, value: pa.Buffer) -> pa.RecordBatch:
        """Rows for all slots: barriers that are due, then the slot's part of the frame, or a tick."""
        events, meta = frames.decode(value, self._workload.event_schema)
        with self._lock:
            effects = self._machine.boundary()
            assignment, stopped = self._machine.assignment, self._machine.stopped_for
            paused = self._machine.paused
        everyone = range(self._config.slots)
        slots: list[int] = []
        kinds: list[int] = []
        values: list[bytes] = []
        first: pa.RecordBatch | None = None
        for effect in effects:
            match effect:
                case Resume():
                    first = self.resume()
                case Barrier():
                    slots += everyone
                    kinds += [BARRIER] * len(everyone)
                    values += [b""] * len(everyone)
                case SavepointBarrier(savepoint):
                    slots += everyone
                    kinds += [SAVEPOINT] * len(everyone)
                    values += [savepoint.encode()] * len(everyone)
                    self._coordination.acknowledge(f"savepoints/{savepoint}/router-{router}", {"offset": offset})
        parts = self._split(events, assignment) if events.num_rows and stopped is None else {}
        for number in everyone:
            slots.append(number)
            kinds.append(DATA if number in parts else TICK)
            values.append(parts.get(number, b""))
        count = len(slots)
        rows = pa.RecordBatch.from_arrays(
            [
                pa.array(slots, pa.int32()),
                pa.array(kinds, pa.int32()),
                pa.array([router] * count, pa.int32()),
                pa.array([assignment.version] * count, pa.int64()),
                pa.array([offset] * count, pa.int64()),
                pa.array([meta.get("watermark", 0)] * count, pa.int64()),
                pa.array(values, pa.binary()),
            ],
            schema=_ROW,
        )
        if paused:
            rows = self._keep_back(rows, paused)
        return rows if first is None else pa.concat_batches([first, rows])

    def _keep_back(self, rows: pa.RecordBatch, paused: AbstractSet[int]) -> pa.RecordBatch:
        """Everything but the records for paused slots and the watermark behind them: ticks instead, as without rows
        nothing would push a barrier through.
        """
        waits = pc.and_(
            pc.is_in(rows["slot"], pa.array(sorted(paused), pa.int32())),
            pc.is_in(rows["kind"], pa.array([DATA, TICK], pa.int32())),
        )
        kept = rows.filter(waits)
        self._kept.append(kept)
        self._kept_bytes += kept.nbytes
        count = kept.num_rows
        ticks = {"kind": [TICK] * count, "watermark": [0] * count, "value": [b""] * count}
        columns = [pa.array(ticks[f.name], f.type) if f.name in ticks else kept[f.name] for f in _ROW]
        return pa.concat_batches([rows.filter(pc.invert(waits)), pa.RecordBatch.from_arrays(columns, schema=_ROW)])

    def resume(self) -> pa.RecordBatch | None:
        """What was kept back, in its order; None if nothing was."""
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return pa.concat_batches(kept) if kept else None

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
        """End the session."""
        self._coordination.close()
