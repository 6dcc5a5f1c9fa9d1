"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from keyshift import frames
from keyshift.executor.config import BARRIER, DATA, SAVEPOINT, TICK, JobConfig, slot_schema
from keyshift.executor.coordination import Coordination
from keyshift.executor.slot_task import SlotTask
from keyshift.keys import Assignment, units_of
from keyshift.protocol.router import Barrier, RouterMachine

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


def router(config: JobConfig) -> Callable[[Batches], Batches]:
    """The router's task: rows of partition, offset, value in; rows of ``ROW_SCHEMA`` out, one per slot and frame."""

    def run(batches: Batches) -> Batches:
        task = RouterTask(config)
        try:
            for batch in batches:
                for partition, offset, value in zip(*batch.columns, strict=True):
                    yield task.frame(partition.as_py(), offset.as_py(), value.as_buffer())
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
            while not task.settled():
                if values := task.finish():
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
        self._machine = RouterMachine(Assignment.from_json(self._coordination.require("assignment")))
        self._coordination.watch("assignment", self._announced)
        self._coordination.watch("savepoint", self._savepoint_wanted)

    def _announced(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.announce(Assignment.from_json(raw))

    def _savepoint_wanted(self, raw: dict) -> None:  # type: ignore[type-arg]
        with self._lock:
            self._machine.request_savepoint(raw["id"])

    def frame(self, router: int, offset: int, value: pa.Buffer) -> pa.RecordBatch:
        """Rows for all slots: barriers that are due, then the slot's part of the frame, or a tick."""
        events, meta = frames.decode(value, self._workload.event_schema)
        with self._lock:
            barriers = self._machine.boundary()
            assignment, stopped = self._machine.assignment, self._machine.stopped_for
        everyone = range(self._config.slots)
        slots: list[int] = []
        kinds: list[int] = []
        values: list[bytes] = []
        for barrier in barriers:
            slots += everyone
            kinds += [BARRIER if isinstance(barrier, Barrier) else SAVEPOINT] * len(everyone)
            values += [b"" if isinstance(barrier, Barrier) else barrier.savepoint.encode()] * len(everyone)
            if not isinstance(barrier, Barrier):
                self._coordination.acknowledge(f"savepoints/{barrier.savepoint}/router-{router}", {"offset": offset})
        parts = self._split(events, assignment) if events.num_rows and stopped is None else {}
        for number in everyone:
            slots.append(number)
            kinds.append(DATA if number in parts else TICK)
            values.append(parts.get(number, b""))
        count = len(slots)
        return pa.RecordBatch.from_arrays(
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
