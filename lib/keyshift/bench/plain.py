"""The job keyshift is compared with: the same frames through the same engine, with nothing that could move state.

Fixed modulo routing, a dictionary, result frames of the same columns. No protocol, no ZooKeeper, no queues.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from keyshift import frames
from keyshift.executor.config import JobConfig, result_schema
from keyshift.keys import units_of
from keyshift.lab.topics import MAX_FRAME_BYTES

Batches = Iterator[pa.RecordBatch]
_ROW_SCHEMA = "slot int, router int, offset bigint, value binary"
_ROW = pa.schema([("slot", pa.int32()), ("router", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
_WORD = 8  # bytes of the count at the beginning of a payload


def _router(config: JobConfig) -> Callable[[Batches], Batches]:
    """One row per slot with events in a frame; an empty frame goes to all, so that they begin before the load."""
    workload, slots = config.make_workload(), config.slots
    schema = _slot_schema(config)

    def split(events: pa.RecordBatch) -> dict[int, bytes]:
        slot_of = units_of(events["key"].to_numpy(), config.key_groups, config.bins) % slots
        order = np.argsort(slot_of, kind="stable")
        edges = np.searchsorted(slot_of[order], np.arange(slots + 1))
        columns = events.take(pa.array(order)).columns
        ordered = pa.RecordBatch.from_arrays([*columns, pa.array(order.astype(np.int32))], schema=schema)
        return {
            slot: ordered.slice(edges[slot], edges[slot + 1] - edges[slot]).serialize().to_pybytes()
            for slot in range(slots)
            if edges[slot] < edges[slot + 1]
        }

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for router, offset, value in zip(*batch.columns, strict=True):
                if value.as_buffer().size == 0:  # frames.NUDGE
                    continue
                events, _ = frames.decode(value.as_buffer(), workload.event_schema)
                parts = split(events) if events.num_rows else dict.fromkeys(range(slots), b"")
                rows = len(parts)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(list(parts), pa.int32()),
                        pa.array([router.as_py()] * rows, pa.int32()),
                        pa.array([offset.as_py()] * rows, pa.int64()),
                        pa.array(list(parts.values()), pa.binary()),
                    ],
                    schema=_ROW,
                )

    return run


def _slot(config: JobConfig) -> Callable[[Batches], Batches]:
    """Counts each key beside a payload of ``state_bytes``; one result frame per row, a ready marker with the first."""
    schema, results = _slot_schema(config), result_schema(config.make_workload())
    fresh = (0, bytes(config.parameters["state_bytes"]))

    def count(events: pa.RecordBatch, router: int, offset: int, state: dict[int, tuple[int, bytes]]) -> bytes:
        counts, stamps = [], []
        for key in events["key"].to_numpy().tolist():
            total, payload = state.get(key) or fresh
            stamps.append(int.from_bytes(payload[:_WORD], "little"))
            total += 1
            state[key] = (total, total.to_bytes(_WORD, "little") + payload[_WORD:])
            counts.append(total)
        rows = events.num_rows
        columns: dict[str, Any] = {
            "key": events["key"],
            "t": events["t"],
            "router": pa.repeat(pa.scalar(router, pa.int32()), rows),
            "offset": pa.repeat(pa.scalar(offset, pa.int64()), rows),
            "position": events["position"],
            "version": pa.repeat(pa.scalar(0, pa.int64()), rows),
            "count": pa.array(np.array(counts, np.int64)),
            "stamp": pa.array(np.array(stamps, np.int64)),
        }
        return frames.encode(pa.RecordBatch.from_arrays([columns[name] for name in results.names], schema=results))

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        state: dict[int, tuple[int, bytes]] = {}
        ready = [frames.encode(frames.empty(results), {"marker": "ready", "slot": number})]
        for batch in batches:
            values, ready = ready, []
            for _, router, offset, value in zip(*batch.columns, strict=True):
                if len(raw := value.as_buffer()):
                    events = pa.ipc.read_record_batch(raw, schema)
                    values.append(count(events, router.as_py(), offset.as_py(), state))
            if values:
                numbers = pa.array([number] * len(values), pa.int32())
                yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), numbers], ["value", "partition"])

    return run


def _slot_schema(config: JobConfig) -> pa.Schema:
    return pa.schema([*config.make_workload().event_schema, pa.field("position", pa.int32())])


def start_plain(spark: SparkSession, config: JobConfig, checkpoint: Path, batch_s: float) -> StreamingQuery:
    """Start the plain job on the topics of ``config``; source, sink and options are those of ``start_query``."""
    kafka = config.endpoints.kafka
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", config.events_topic)
        .option("startingOffsets", "earliest")
        .load()
        .select("partition", "offset", "value")
        .mapInArrow(_router(config), _ROW_SCHEMA)
        .repartitionById(config.slots, F.col("slot"))
        .mapInArrow(_slot(config), "value binary, partition int")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("topic", config.results_topic)
        .option("kafka.linger.ms", "0")
        .option("kafka.max.request.size", MAX_FRAME_BYTES)  # an overloaded slot has much to say at once
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .queryName(config.job)
        .trigger(realTime=f"{batch_s:g} seconds")  # type: ignore[call-overload]  # newer than pyspark's stubs
        .start()
    )
