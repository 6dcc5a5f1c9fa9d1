"""The collector process: reads results from Kafka, and writes all of them, with their times, for the verdict.

A result is there when Kafka has appended it to its log. Kafka notes that moment, in milliseconds, so nobody has to wake
up for each result: they are read ``READ_MS`` at a time. The milliseconds are rounded down; half of one is added.

``traffic.messages`` has what it is told and says. Latency is that from ``t`` to arrival. Results of timers (position
-1) are kept, but not counted or timed in what is said every second.

The file has the result columns, ``slot`` (the partition), ``log_offset`` (offset in that partition) and ``arrived_us``
(microseconds since the epoch); rows of one partition are in the order of its log.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord
from pydantic import Field

from keyshift.clock import SECOND_US, now_us
from keyshift.model import frames
from keyshift.model.errors import BadInput
from keyshift.model.records import Second
from keyshift.trace import Trace
from keyshift.traffic import lines
from keyshift.traffic.entry import CommandLines, TrafficConfig, run
from keyshift.traffic.messages import BUCKETS_MS, Collected, Latencies, Ready, SecondDone
from keyshift.traffic.process import say
from keyshift.traffic.topics import ANSWER_MS

PART_ROWS = 1 << 16  # are written at once: some MiB, which take milliseconds
_ARRIVAL = (pa.field("slot", pa.int32()), pa.field("log_offset", pa.int64()), pa.field("arrived_us", pa.int64()))
READ_MS = 100
_LATE_US = 400_000  # so long after its end all of a second has been read, but for what is told with the next one
_QUIET_S = 1.0  # after stop, results may still be on their way for this long
_DRAIN_S = 10.0  # ... but a job that never falls silent is cut off here


class CollectorConfig(TrafficConfig):
    """What the collector is told first: of results, whose topic has a partition for each slot."""

    output: Path = Field(description="parquet file to write")


class ResultsFile:
    """All results so far, in a parquet file; those of the last minutes are still to be written."""

    def __init__(self, result_fields: tuple[pa.Field, ...], output: Path) -> None:
        self.schema = pa.schema([*frames.RESULT_FIELDS, *result_fields])
        self.count = 0
        self._writer = pq.ParquetWriter(output, pa.schema([*self.schema, *_ARRIVAL]))
        self._tables: list[pa.Table] = []  # of about one second each
        self._unwritten = 0  # rows of them
        self._batches: list[pa.RecordBatch] = []
        self._origin: list[tuple[int, int, int]] = []  # slot, log_offset, arrived_us of each batch

    @property
    def waiting(self) -> bool:
        """Whether something has come that is in no table yet."""
        return bool(self._batches)

    def add(self, batch: pa.RecordBatch, slot: int, log_offset: int, arrived_us: int) -> None:
        """Take one frame of results."""
        self._batches.append(batch.replace_schema_metadata(None))
        self._origin.append((slot, log_offset, arrived_us))
        self.count += batch.num_rows

    def roll(self, before_us: float = math.inf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Close the current table, of what arrived before ``before_us``; returns latency, in ms, assignment version and
        slot of each event in it.
        """
        origin = np.array(self._origin, np.int64).reshape(-1, 3)
        now = origin[:, 2] < before_us
        batches = list(itertools.compress(self._batches, now))
        self._batches = list(itertools.compress(self._batches, ~now))
        self._origin = list(itertools.compress(self._origin, ~now))
        rows = [batch.num_rows for batch in batches]
        slot, log_offset, arrived = origin[now].T
        # combine_chunks copies: the many small frames would otherwise keep the whole fetch responses in memory
        table = pa.Table.from_batches(batches, self.schema).combine_chunks()
        arrived_us = np.repeat(arrived, rows)
        slots = np.repeat(slot, rows)
        table = table.append_column("slot", pa.array(slots, pa.int32()))
        table = table.append_column("log_offset", pa.array(np.repeat(log_offset, rows)))
        table = table.append_column("arrived_us", pa.array(arrived_us))
        self._tables.append(table)
        self._unwritten += table.num_rows
        if self._unwritten >= PART_ROWS:
            self._write()
        of_event = table.column("position").to_numpy() >= 0
        latencies_ms = (arrived_us - table.column("t").to_numpy()) / 1000
        return latencies_ms[of_event], table.column("version").to_numpy()[of_event], slots[of_event]

    def close(self) -> None:
        """The file has everything. Nothing can read it before."""
        self.roll()
        self._write()
        self._writer.close()

    def _write(self) -> None:
        self._writer.write_table(pa.concat_tables(self._tables))
        self._tables, self._unwritten = [], 0


def decoded(
    records: Sequence[ConsumerRecord], expected: pa.Schema, as_lines: bool
) -> Iterator[tuple[ConsumerRecord, pa.RecordBatch, frames.Facts]]:
    """Results and facts of each frame, with the record it came in. Of lines: of all together, with the last one."""
    if as_lines:
        yield records[-1], lines.decode([record.value for record in records], expected), frames.NO_FACTS
        return
    for record in records:
        yield record, *frames.decode(record.value, expected)


def report(second: int, latencies_ms: np.ndarray, versions: np.ndarray, slots: np.ndarray) -> None:
    """Say what arrived in one second."""
    p50, p99 = np.percentile(latencies_ms, (50, 99)).round(3).tolist() if len(latencies_ms) else (None, None)
    by_version = dict(np.stack(np.unique(versions, return_counts=True), axis=1).tolist())
    by_slot = {slot: _latencies(latencies_ms[slots == slot]) for slot in np.unique(slots).tolist()}
    say(SecondDone(Second(second, len(latencies_ms), p50, p99), by_version, by_slot))


def _latencies(all_ms: np.ndarray) -> Latencies:
    within = np.bincount(np.searchsorted(BUCKETS_MS, all_ms), minlength=len(BUCKETS_MS) + 1)
    return Latencies(round(float(all_ms.sum()), 3), tuple(within.tolist()))


def collect(config: CollectorConfig, commands: CommandLines) -> None:
    """The process: collect until told to stop. Raises ServiceUnavailable, BadInput, ProtocolViolation."""
    *_, stage = config.make_workload().stages
    if not config.output.parent.is_dir():
        raise BadInput(f"output = {config.output}: its folder does not exist; make it first")
    topic = config.topic
    topic.require_partitions()
    with topic.errors("connecting to"):
        consumer = KafkaConsumer(
            bootstrap_servers=topic.kafka,
            bootstrap_timeout_ms=ANSWER_MS,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_min_bytes=1 << 20,
            fetch_max_wait_ms=READ_MS,
            max_partition_fetch_bytes=4 << 20,
            max_poll_records=10_000,
            check_crcs=False,
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **topic.sign_in.client(),
        )
        consumer.assign(topic.parts)
        consumer.seek_to_beginning(*topic.parts)
    results = ResultsFile(stage.result_fields, config.output)
    columns = ["slot", "router", "offset", "arrived_us"]
    trace = Trace(config.trace, "collector", columns) if config.trace else None
    say(Ready())

    second = now_us() // SECOND_US

    def tell() -> None:
        nonlocal second
        while (end_us := (second + 1) * SECOND_US) < now_us() - _LATE_US:
            report(second, *results.roll(end_us))
            second += 1

    stopped_at: float | None = None
    heard_at = time.monotonic()
    while stopped_at is None or (
        time.monotonic() - max(heard_at, stopped_at) < _QUIET_S and time.monotonic() - stopped_at < _DRAIN_S
    ):
        if stopped_at is None and commands.next(timeout_s=0):
            stopped_at = time.monotonic()
        with topic.errors("reading"):
            fetched = consumer.poll(timeout_ms=READ_MS)
        for (_, slot), records in fetched.items():
            for record, batch, facts in decoded(records, results.schema, config.lines):
                arrived_us = record.timestamp * 1000 + 500
                if batch.num_rows:
                    heard_at = time.monotonic()
                    results.add(batch, slot, record.offset, arrived_us)
                    if trace:
                        origins = zip(batch["router"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                        for router, offset in set(origins):
                            trace.add(slot, router, offset, arrived_us)
                elif facts.said:
                    say(facts.said)
        tell()
    while results.waiting:  # of the last seconds
        report(second, *results.roll((second + 1) * SECOND_US))
        second += 1
    results.close()
    say(Collected(results.count))


if __name__ == "__main__":
    run(CollectorConfig, collect)
