"""The collector process: reads results from Kafka, and writes all of them, with their times, for the verdict.

A result is there when Kafka has appended it to its log. Kafka notes that moment, in milliseconds, so nobody has to wake
up for each result: they are read ``READ_MS`` at a time. The milliseconds are rounded down; half of one is added.

``traffic.messages`` has what it is told and says. Latency is that from ``t`` to arrival. Results of timers (position
-1) are kept, but not counted or timed in what is said every second.

The file has the result columns, ``slot`` (the partition), ``log_offset`` (offset in that partition), ``arrived_us``
(microseconds since the epoch), ``replica``, the ``epoch`` behind the turn (0 without an order), and ``first``, whether
it is the first copy. Rows of one partition are in the order of its log.

A job with replicas has a topic of results for each. The first copy is the one that Kafka has appended first, as far as
is known when a second is told: what is read later than that is a repeat. Only first copies are counted and timed. If
replicas move their state one after the other (``apart``), first copies are told by unit, as a slot does not tell them.
What another process has ``superseded`` is left out.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from pydantic import Field

from keyshift.clock import SECOND_US, now_us
from keyshift.model import frames
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.keys import units_of
from keyshift.model.markers import TurnTold
from keyshift.model.records import Second
from keyshift.trace import Trace
from keyshift.traffic import lines
from keyshift.traffic.copies import UNKNOWN, Chains, FirstCopies, FirstResults, Superseded
from keyshift.traffic.entry import CommandLines, TrafficConfig, run
from keyshift.traffic.messages import BUCKETS_MS, Arrived, Collected, Diverged, KeepingUp, Latencies, Ready, SecondDone
from keyshift.traffic.process import say
from keyshift.traffic.topics import ANSWER_MS, RECONNECT_MS, Topic

PART_ROWS = 1 << 16  # are written at once: some MiB, which take milliseconds
PART_TABLES = 600  # at most, however few their rows are: each takes some KiB beside them
NO_TURN = frames.OfTurn(0, 0, 0)  # of results of a slot that takes rows as they come
READ_MS = 100
_LATE_US = 400_000  # so long after its end all of a second has been read, but for what is told with the next one
_DRAIN_S = 10.0  # after stop, to read what is there by then


class CollectorConfig(TrafficConfig):
    """What the collector is told first about results, whose topic has a partition for each slot."""

    output: Path = Field(description="parquet file to write")
    others: tuple[Topic, ...] = Field(default=(), description="of replicas 1, 2, …; ``topic`` is that of replica 0")
    near_us: int = Field(default=0, description="a replica that is later than another one by this keeps up")
    apart: bool = Field(default=False, description="replicas may have different assignments for a while")
    superseded: tuple[Superseded, ...] = Field(default=(), description="counts for nothing")


class _Origin(NamedTuple):
    """Where a frame has come from, and when."""

    slot: int
    log_offset: int
    arrived_us: int
    replica: int
    turn: frames.OfTurn


Counts = Callable[[_Origin, pa.RecordBatch], np.ndarray]  # a truth value for each row


def first_copies() -> Counts:
    """Make what says which rows count, of replicas with the same assignment."""
    copies = FirstCopies()

    def counts(origin: _Origin, batch: pa.RecordBatch) -> np.ndarray:
        return np.full(batch.num_rows, copies.counts(origin.slot, origin.turn.number, origin.turn.piece))

    return counts


def first_results(slots: int, key_groups: int, bins: int) -> Counts:
    """Make what says which rows count, of replicas of which one moves after the other."""
    found = FirstResults(slots)

    def counts(origin: _Origin, batch: pa.RecordBatch) -> np.ndarray:
        units = units_of(batch["key"].to_numpy(), key_groups, bins).tolist()
        return np.array(found.count(origin.replica, origin.slot, origin.turn.number, units), np.bool_)

    return counts


def _versions(batch: pa.RecordBatch) -> np.ndarray:
    """The versions under which the events were routed whose results these are."""
    return batch["version"].to_numpy()[batch["position"].to_numpy() >= 0]


def _version(batch: pa.RecordBatch) -> int:
    """The version under which all events of a turn were routed."""
    of_events = _versions(batch)
    return int(of_events[0]) if len(of_events) else UNKNOWN


def _counted(versions: np.ndarray) -> dict[int, int]:
    return dict(np.stack(np.unique(versions, return_counts=True), axis=1).tolist())


class ResultsFile:
    """All results so far, in a parquet file; those of the last minutes are still to be written.

    ``counts``: which rows of a frame do, if there are replicas.
    """

    def __init__(self, result_fields: tuple[pa.Field, ...], output: Path, counts: Counts | None = None) -> None:
        self.schema, self._counts = pa.schema([*frames.RESULT_FIELDS, *result_fields]), counts
        self.count = 0
        self._writer = pq.ParquetWriter(output, pa.schema([*self.schema, *frames.ARRIVAL_FIELDS]))
        self._tables: list[pa.Table] = []  # of about one second each
        self._unwritten = 0  # rows of them
        self._frames: list[tuple[_Origin, pa.RecordBatch]] = []
        self._latest: dict[tuple[int, int], int] = {}  # by replica and slot: when its last frame arrived

    @property
    def waiting(self) -> bool:
        """Whether something has come that is in no table yet."""
        return bool(self._frames)

    def add(
        self,
        batch: pa.RecordBatch,
        slot: int,
        log_offset: int,
        arrived_us: int,
        replica: int = 0,
        turn: frames.OfTurn | None = None,
    ) -> None:
        """Take one frame of results, of this ``turn`` if its slot works in turns."""
        if self._counts:  # by the order of arrival: Kafka's clock may step back between two frames of one log
            arrived_us = self._latest[replica, slot] = max(arrived_us, self._latest.get((replica, slot), 0))
        origin = _Origin(slot, log_offset, arrived_us, replica, turn or NO_TURN)
        self._frames.append((origin, batch.replace_schema_metadata(None)))
        self.count += batch.num_rows

    def latest_us(self, replica: int, slot: int) -> int:
        """Return when the last frame of this log arrived, with replicas: none comes that arrived before. 0: none."""
        return self._latest.get((replica, slot), 0)

    def roll(self, before_us: float = math.inf) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Close the current table, of what arrived before ``before_us``; returns latency, in ms, assignment version,
        slot and arrival, in microseconds since the epoch, of each event in it that counts.
        """
        now = [frame for frame in self._frames if frame[0].arrived_us < before_us]
        self._frames = [frame for frame in self._frames if frame[0].arrived_us >= before_us]
        if self._counts:
            now.sort(key=lambda frame: frame[0].arrived_us)  # of one log they stay in order
        origins, batches = [origin for origin, _ in now], [batch for _, batch in now]
        rows = [batch.num_rows for batch in batches]
        columns = [(*each[:-1], each.turn.number, each.turn.attempt) for each in origins]
        # combine_chunks copies: the many small frames would otherwise keep the whole fetch responses in memory
        table = pa.Table.from_batches(batches, self.schema).combine_chunks()
        first = np.ones(table.num_rows, np.bool_)
        if self._counts and now:
            first = np.concatenate([self._counts(*frame) for frame in now])
        of_frames = np.array(columns, np.int64).reshape(-1, len(frames.ARRIVAL_FIELDS) - 1)
        of_rows = [*np.repeat(of_frames, rows, axis=0).T, first]
        for field, values in zip(frames.ARRIVAL_FIELDS, of_rows, strict=True):
            table = table.append_column(field, pa.array(values).cast(field.type))
        if table.num_rows:
            self._tables.append(table)
            self._unwritten += table.num_rows
        if self._unwritten >= PART_ROWS or len(self._tables) >= PART_TABLES:
            self._write()
        slots, _, arrived_us, *_ = of_rows
        of_event = (table.column("position").to_numpy() >= 0) & first
        latencies_ms = (arrived_us - table.column("t").to_numpy()) / 1000
        versions = table.column("version").to_numpy()
        return latencies_ms[of_event], versions[of_event], slots[of_event], arrived_us[of_event]

    def close(self) -> None:
        """Complete the file. Nothing can read it before."""
        self.roll()
        if self._tables:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        self._writer.write_table(pa.concat_tables(self._tables))
        self._tables, self._unwritten = [], 0


def decoded(
    records: Sequence[ConsumerRecord], expected: pa.Schema, as_lines: bool
) -> Iterator[tuple[ConsumerRecord, pa.RecordBatch, frames.Facts]]:
    """Results and facts of each frame, with the record it came in. Of lines: those that count of all that came into
    Kafka's log in the same millisecond, with the last one of them.
    """
    if as_lines:
        batch, first = lines.decode([record.value for record in records], expected), 0
        for _, some in groupby(records, key=attrgetter("timestamp")):
            *_, last = together = list(some)
            now = batch.slice(first, len(together))
            yield last, now.filter(pc.greater_equal(now["position"], 0)), frames.NO_FACTS
            first += len(together)
        return
    for record in records:
        yield record, *frames.decode(record.value, expected)


def report(
    second: int,
    latencies_ms: np.ndarray,
    versions: np.ndarray,
    slots: np.ndarray,
    arrived_us: np.ndarray,
    begun_us: int = 0,
) -> None:
    """Say what arrived in one second. What had arrived before ``begun_us`` counts, but is in no second: after a resume
    that is all that came before.
    """
    now_ms = latencies_ms[arrived_us >= begun_us]
    p50, p99 = np.percentile(now_ms, (50, 99)).round(3).tolist() if len(now_ms) else (None, None)
    by_slot = {slot: _latencies(latencies_ms[slots == slot]) for slot in np.unique(slots).tolist()}
    say(SecondDone(Second(second, len(now_ms), p50, p99), _counted(versions), by_slot))


def _latencies(all_ms: np.ndarray) -> Latencies:
    within = np.bincount(np.searchsorted(BUCKETS_MS, all_ms), minlength=len(BUCKETS_MS) + 1)
    return Latencies(round(float(all_ms.sum()), 3), tuple(within.tolist()))


def collect(config: CollectorConfig, commands: CommandLines) -> None:
    """The process: collect until told to stop. Raises ServiceUnavailable, BadInput, ProtocolViolation."""
    workload = config.make_workload()
    *_, stage = workload.stages
    if not config.output.parent.is_dir():
        raise BadInput(f"output = {config.output}: its folder does not exist; make it first")
    topic, topics = config.topic, [config.topic, *config.others]
    for each in topics:
        each.require_partitions()
    with topic.errors("connecting to"):
        consumer = KafkaConsumer(
            bootstrap_servers=topic.kafka,
            bootstrap_timeout_ms=ANSWER_MS,
            reconnect_backoff_max_ms=RECONNECT_MS,
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
        parts = [part for each in topics for part in each.parts]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
    replicas = {each.name: number for number, each in enumerate(topics)}
    chains = Chains(topic.partitions, config.near_us, config.apart)
    before = defaultdict[str, Chains](Chains)  # of the stages before the last one
    counts = first_results(topic.partitions, workload.key_groups, workload.bins) if config.apart else first_copies()
    results = ResultsFile(stage.result_fields, config.output, counts if config.others else None)
    columns = ["slot", "router", "offset", "arrived_us"]
    trace = Trace(config.trace, "collector", columns) if config.trace else None
    say(Ready())

    begun = second = now_us() // SECOND_US
    read = dict.fromkeys(parts, 0)  # up to which offset

    def known_us() -> float:
        """Until when all that replicas have given is known: one of them may have a gap that others fill."""
        ends = {part: consumer.highwater(part) for part in parts} if config.others else {}
        behind = [part for part, end in ends.items() if end is None or read[part] < end]
        return min((results.latest_us(replicas[part.topic], part.partition) for part in behind), default=math.inf)

    def tell() -> None:
        nonlocal second
        while (end_us := (second + 1) * SECOND_US) < now_us() - _LATE_US:
            report(second, *results.roll(min(end_us, known_us())), begun * SECOND_US)
            second += 1
            if config.others:
                say(KeepingUp(chains.standings(), chains.behind()))

    def compare(known: Chains, name: str, replica: int, slot: int, *told: Any) -> None:
        if found := known.told(replica, slot, *told):
            say(Diverged(name, found))

    def stale(replica: int, record: ConsumerRecord, of: str, slot: int, turn: int) -> bool:
        where = replica, record.partition, record.offset, of, slot, turn
        return any(each.covers(*where) for each in config.superseded)

    ends: dict[TopicPartition, int] | None = None  # where to stop, once it was told to
    until = math.inf  # seconds of the monotonic clock

    def left() -> bool:
        with topic.errors("reading"):
            return ends is None or any(consumer.position(part) < end for part, end in ends.items())

    while left() and time.monotonic() < until:
        with topic.errors("reading"):
            fetched = consumer.poll(timeout_ms=READ_MS)
        came: list[np.ndarray] = []  # versions of results
        for part, records in fetched.items():
            (name, slot), read[part] = part, records[-1].offset + 1
            replica = replicas[name]
            for record, batch, facts in decoded(records, results.schema, config.lines):
                if facts.turn and stale(replica, record, stage.name, slot, facts.turn.number):
                    continue
                arrived_us = record.timestamp * 1000 + 500
                if batch.num_rows or facts.turn:
                    results.add(batch, slot, record.offset, arrived_us, replica, facts.turn)
                if batch.num_rows:
                    came.append(_versions(batch))
                    if trace:
                        origins = zip(batch["router"].to_pylist(), batch["offset"].to_pylist(), strict=True)
                        for router, offset in set(origins):
                            trace.add(slot, router, offset, arrived_us)
                elif facts.said and isinstance(told := facts.said.marker, TurnTold):
                    if not stale(replica, record, told.stage, facts.said.slot, told.number):
                        turn = frames.OfTurn(told.number, told.epoch, told.chain)
                        compare(before[told.stage], told.stage, replica, facts.said.slot, turn, arrived_us)
                elif facts.said:
                    say(replace(facts.said, replica=replica))
                if config.others and facts.turn:
                    version = _version(batch) if config.apart else UNKNOWN
                    compare(chains, stage.name, replica, slot, facts.turn, arrived_us, version)
        if came and not config.others:
            say(Arrived(_counted(np.concatenate(came))))
        tell()
        if ends is None and commands.next(timeout_s=0):
            with topic.errors("reading"):
                ends = consumer.end_offsets(parts, ANSWER_MS)
            until = time.monotonic() + _DRAIN_S
    if left():  # what is not in the file would be judged as lost
        raise ServiceUnavailable(
            f"Kafka at {topic.kafka}: not all results could be read within {_DRAIN_S:g} s behind the stop; see its log"
        )
    while results.waiting:  # of the last seconds
        report(second, *results.roll((second + 1) * SECOND_US), begun * SECOND_US)
        second += 1
    results.close()
    say(Collected(results.count, chains.compared))


if __name__ == "__main__":
    run(CollectorConfig, collect)
