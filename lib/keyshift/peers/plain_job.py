"""A job without support for migration: the same frames and operator in the same engine, and nothing that could move.

Fixed routing to the owners with which a job that can migrate begins, units in memory, result frames of the same
columns. No protocol, ZooKeeper, queues or ticks.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from keyshift.driver.spark import start_query, why_ended
from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import NO_VERSION, Assignment, SlotId, UnitId, Version, units_of
from keyshift.model.markers import SlotMarker, SlotStarted
from keyshift.runtime.arrow import by_slot
from keyshift.runtime.row import DATA, Row
from keyshift.state import UnitState
from keyshift.state.memory import MemoryStore
from keyshift.traffic.traffic import Traffic
from keyshift.wire import spark_rows
from keyshift.wire.config import JobConfig, result_schema
from keyshift.wire.spark_rows import PRIMER
from keyshift.worker.tasks import RecordBatches, Task

BATCH_S = 3600.0  # what units have does not survive the end of a batch
VERSION = Version(1)  # of the one assignment
AnswerRow = Callable[[Row], bytes | None]  # the result frame of a row, if there are results


def _router(config: JobConfig) -> Task:
    """Split each frame: a row per slot with events; an empty one goes to all, so that they begin before the load."""
    source, slots = config.make_source(), config.slots
    schema, slot_of = slot_schema(config), assignment(config).slot_of

    def split(events: pa.RecordBatch) -> dict[int, bytes]:
        def in_order(order: npt.NDArray[np.intp]) -> pa.RecordBatch:
            columns = events.take(pa.array(order)).columns
            return pa.RecordBatch.from_arrays([*columns, pa.array(order.astype(np.int32))], schema=schema)

        return by_slot(slot_of[units_of(events["key"].to_numpy(), config.key_groups, config.bins)], slots, in_order)

    def run(batches: RecordBatches) -> RecordBatches:
        primed = False
        for batch in batches:
            for partition, offset, value in zip(*batch.columns, strict=True):
                if not value.is_valid:
                    continue
                router = partition.as_py()
                events, _ = frames.decode(value.as_buffer(), source.schema)
                events = source.mapped(events)
                parts = split(events) if events.num_rows else dict.fromkeys(range(slots), b"")
                at = router, NO_VERSION, offset.as_py(), 0
                rows = [(n, spark_rows.packed(Row(DATA, *at, part))) for n, part in parts.items()]
                if router == 0 and not primed:
                    primed, first = True, spark_rows.packed(Row(PRIMER, router, NO_VERSION, 0, 0))
                    rows = [*((n, first) for n in range(slots)), *rows]
                yield spark_rows.routed(rows)

    return run


def operating(config: JobConfig, slot: int) -> AnswerRow:
    """Give the stage's operator over the units of ``slot``, in memory."""
    operator, schema, results = config.make_stage().operator(), slot_schema(config), result_schema(config.make_stage())
    store = MemoryStore("", operator.state_schema, None)
    states: dict[UnitId, UnitState] = {unit: store.unit(unit) for unit in assignment(config).units_of(SlotId(slot))}
    for unit, state in states.items():
        operator.initial(unit, state)

    def answer(row: Row) -> bytes | None:
        events = pa.ipc.read_record_batch(row.payload, schema)
        units = units_of(events["key"].to_numpy(), config.key_groups, config.bins)
        found = operator.process(events.append_column("unit", pa.array(units, pa.int32())), states.__getitem__)
        if not found.num_rows:
            return None
        return result_frame(dict(zip(found.schema.names, found.columns, strict=True)), found.num_rows, row, results)

    return answer


def result_frame(columns: dict[str, Any], rows: int, row: Row, results: pa.Schema) -> bytes:
    """Make the frame that answers ``row``: ``columns`` and where they come from."""
    columns |= {
        "router": pa.repeat(pa.scalar(row.router, pa.int32()), rows),
        "offset": pa.repeat(pa.scalar(row.offset, pa.int64()), rows),
        "version": pa.repeat(pa.scalar(VERSION, pa.int64()), rows),
    }
    return frames.encode(pa.RecordBatch.from_arrays([columns[name] for name in results.names], schema=results))


def _slot(config: JobConfig, answering: Callable[[JobConfig, int], AnswerRow]) -> Task:
    """Answer with a result frame per row that has results, a ready marker with the first."""
    results = result_schema(config.make_stage())

    def run(batches: RecordBatches) -> RecordBatches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        answer = answering(config, number)
        said = SlotMarker(number, SlotStarted(config.stage, config.attempt, VERSION))
        ready = [frames.encode(frames.empty(results), frames.Facts(said=said))]
        for batch in batches:
            values, ready = ready, []
            rows = (row for row in spark_rows.received(batch) if row.kind == DATA and len(row.payload))
            values += filter(None, map(answer, rows))
            if values:
                yield spark_rows.answered(values)

    return run


def slot_schema(config: JobConfig) -> pa.Schema:
    """Columns of the events in a row."""
    return pa.schema([*config.make_stage().events, pa.field("position", pa.int32())])


def assignment(config: JobConfig) -> Assignment:
    """Say who owns which unit, from the beginning to the end: those who own it first in the job that can migrate, or
    under skew other slots would have the hot units.
    """
    return Assignment.contiguous(config.key_groups, config.slots, VERSION).by_bin(config.bins)


class PlainJob:
    """The plain job on the topics of ``config``; source, sink and options are those of ``start_query``.

    ``answering``: what a slot does with the rows that have events.
    """

    label = "plain"
    answering = staticmethod(operating)

    def __init__(self, spark: SparkSession, config: JobConfig, work: Path, batch_s: float, traffic: Traffic) -> None:
        self._spark, self.config, self._batch_s, self._traffic = spark, config, batch_s, traffic
        self._checkpoint = work / "checkpoints" / config.job
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Start it, and wait until its slots are ready."""
        config = self.config
        router, slot = _router(config), _slot(config, self.answering)
        self._query = start_query(self._spark, config, self._checkpoint, self._batch_s, router=router, slot=slot)
        self._traffic.await_slots(range(config.slots), SlotStarted(config.stage, config.attempt, VERSION), self.check)

    def check(self) -> None:
        """Raise ServiceUnavailable if it has ended."""
        if self._query is not None and not self._query.isActive:
            raise ServiceUnavailable(f"the plain query has ended: {why_ended(self._query) or 'stopped'}")

    def stop(self) -> None:
        """End it, if it runs."""
        if self._query is not None:
            self._query.stop()

    def clean(self) -> None:
        """Remove what it has left."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
