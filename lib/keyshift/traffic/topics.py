"""Topics of a run: made, deleted, and read back for the verdict."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from keyshift.endpoints import OPEN, SignIn
from keyshift.model import frames
from keyshift.model.errors import BadInput, RunsElsewhere, ServiceUnavailable, service_errors
from keyshift.workloads import KeyedStage, results_due

SILENCE_S = 2.0  # a generator that lives writes many times in it
RETENTION_MS = 24 * 3600 * 1000  # of a run that nobody cleans up
FOR_EVER_MS = -1  # until the topic is deleted
ANSWER_MS = 15_000  # how long a broker may take to answer before it counts as down
Epochs = tuple[tuple[tuple[int, int], ...], ...]  # of each partition: offsets at which an epoch begins, and the epoch
_READ_BYTES = 8 << 20  # per partition and fetch, when reading a topic back


class Offered(NamedTuple):
    """What was offered until now: ``events`` of each partition, and how many results are ``due`` for them."""

    events: list[int]
    due: int
    epochs: Epochs


def broker_errors(kafka: str, doing: str) -> AbstractContextManager[None]:
    """Turns errors of the Kafka client into ServiceUnavailable, one line."""
    remedy = "see `keyshift status`, or start it with `keyshift up`"
    return service_errors(KafkaError, lambda error: f"Kafka at {kafka}: {doing} failed: {error}; {remedy}")


@contextmanager
def _admin(kafka: str, sign_in: SignIn, doing: str) -> Iterator[KafkaAdminClient]:
    with broker_errors(kafka, doing):
        client = KafkaAdminClient(
            bootstrap_servers=kafka,
            bootstrap_timeout_ms=ANSWER_MS,
            request_timeout_ms=ANSWER_MS,
            **sign_in.client(),
        )
        try:
            yield client
        finally:
            client.close()


def create_topic(
    kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN, retention_ms: int = RETENTION_MS
) -> None:
    """Make ``topic`` and wait until every partition has a leader. ``retention_ms``: how long Kafka keeps a record.

    Raises ServiceUnavailable if the broker does not answer in time or refuses (the topic exists already, say).
    """
    configs = {"retention.ms": str(retention_ms), "max.message.bytes": str(frames.MAX_FRAME_BYTES)}
    wanted = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}}
    with _admin(kafka, sign_in, f"creating topic {topic!r}") as client:
        client.create_topics(wanted, timeout_ms=ANSWER_MS, wait_for_metadata=True)


def delete_topic(kafka: str, topic: str, sign_in: SignIn = OPEN) -> None:
    """Delete ``topic``; nothing happens if it is not there. Raises ServiceUnavailable."""
    with _admin(kafka, sign_in, f"deleting topic {topic!r}") as client, suppress(UnknownTopicOrPartitionError):
        client.delete_topics([topic], timeout_ms=ANSWER_MS)


def await_silence(kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN) -> None:
    """Wait until nobody has written into ``topic`` for ``SILENCE_S``. Raises RunsElsewhere if somebody goes on."""
    with _looking(kafka, topic, partitions, sign_in) as (consumer, assigned):
        ends, since, begin = None, time.monotonic(), time.monotonic()
        while time.monotonic() - since < SILENCE_S:
            if (now := consumer.end_offsets(assigned)) != ends:
                ends, since = now, time.monotonic()
            if time.monotonic() - begin > ANSWER_MS / 1000:
                raise RunsElsewhere(
                    f"somebody still writes into topic {topic!r}: the job runs elsewhere; "
                    "`keyshift resume NAME --take-over` goes on with it all the same, and the other process ends"
                )
            time.sleep(0.2)


def require_partitions(kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN) -> None:
    """Raises BadInput if ``topic`` has another number of partitions (none at all, if it does not exist)."""
    with _admin(kafka, sign_in, f"looking at topic {topic!r}") as client:
        described = client.describe_topics([topic])
    found = len(described[0]["partitions"])
    if found != partitions:
        raise BadInput(f"topic {topic!r} has {found} partitions, expected {partitions}; make it anew")


def length(kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN) -> int:
    """How many records were written into ``topic`` until now. Raises ServiceUnavailable."""
    with _looking(kafka, topic, partitions, sign_in) as (consumer, assigned):
        return sum(consumer.end_offsets(assigned).values())


def begins(kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN) -> dict[int, int]:
    """By partition the offset of the oldest record that is still in ``topic``. Raises ServiceUnavailable."""
    with _looking(kafka, topic, partitions, sign_in) as (consumer, assigned):
        return {each.partition: offset for each, offset in consumer.beginning_offsets(assigned).items()}


@contextmanager
def _looking(
    kafka: str, topic: str, partitions: int, sign_in: SignIn
) -> Iterator[tuple[KafkaConsumer, list[TopicPartition]]]:
    with _consumer(kafka, sign_in, f"looking at topic {topic!r}") as consumer:
        yield consumer, [TopicPartition(topic, partition) for partition in range(partitions)]


@contextmanager
def _consumer(kafka: str, sign_in: SignIn, doing: str, **more: Any) -> Iterator[KafkaConsumer]:
    with broker_errors(kafka, doing):
        consumer = KafkaConsumer(
            bootstrap_servers=kafka,
            bootstrap_timeout_ms=ANSWER_MS,
            request_timeout_ms=ANSWER_MS,
            enable_auto_commit=False,
            metrics_enabled=False,
            **more,
            **sign_in.client(),
        )
        try:
            yield consumer
        finally:
            consumer.close()


def records(
    kafka: str, topic: str, partitions: int, sign_in: SignIn = OPEN, since: float | None = None
) -> Iterator[tuple[TopicPartition, list[ConsumerRecord]]]:
    """Read what is in ``topic`` at the time of the call, records of a partition in their order.

    ``since``: only what was written then or later, in seconds since the epoch.

    Raises ServiceUnavailable if the broker does not answer.
    """
    assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
    most = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": _READ_BYTES}
    with _consumer(kafka, sign_in, f"reading topic {topic!r}", **most) as consumer:
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        consumer.seek_to_beginning(*assigned)
        if since is not None:
            found = consumer.offsets_for_times(dict.fromkeys(assigned, math.floor(since * 1000)))
            for partition, first in found.items():
                consumer.seek(partition, first.offset if first else ends[partition])
        while any(consumer.position(p) < end for p, end in ends.items()):
            fetched = consumer.poll(timeout_ms=ANSWER_MS, max_records=10_000)
            if not fetched:
                raise ServiceUnavailable(
                    f"Kafka at {kafka}: no record of topic {topic!r} within {ANSWER_MS / 1000:g} s; see its log"
                )
            for partition, some in fetched.items():
                if kept := [record for record in some if record.offset < ends[partition]]:
                    yield partition, kept


def result_times(kafka: str, topic: str, partitions: int, since: float, sign_in: SignIn = OPEN) -> list[int]:
    """When each frame with results was written that was written since ``since``, which is in seconds since the epoch:
    microseconds since the epoch, in no order. Raises ServiceUnavailable.
    """
    found = []
    for _, some in records(kafka, topic, partitions, sign_in, since):
        found += [record.timestamp * 1000 for record in some if frames.row_count(record.value)]
    return found


def read_facts(
    kafka: str, where: TopicPartition, offset: int, schema: pa.Schema, sign_in: SignIn = OPEN
) -> dict[str, Any]:
    """The metadata of the frame of ``schema`` that is at ``offset``. Raises ServiceUnavailable if there is none."""
    with _consumer(kafka, sign_in, f"reading topic {where.topic!r}") as consumer:
        consumer.assign([where])
        consumer.seek(where, offset)
        for some in consumer.poll(timeout_ms=ANSWER_MS, max_records=1).values():
            return frames.decode(some[0].value, schema)[1]
    raise ServiceUnavailable(f"Kafka at {kafka}: no record {offset} of topic {where.topic!r} within {ANSWER_MS} ms")


def read_topic(
    kafka: str,
    topic: str,
    schema: pa.Schema,
    partitions: int,
    before: Mapping[int, int] | None = None,
    sign_in: SignIn = OPEN,
    stage: KeyedStage | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the events and the frames that are in ``topic`` at the time of the call.

    What is stale (see ``keyshift.model.frames``) is left out. Events: columns router, offset, position and those of
    ``schema``, or what routers make of them for ``stage``; with ``before`` only those before that offset of each
    partition. Frames, all of them: columns router, offset, watermark (0 if it has none), events, how many of the
    source, and epoch.
    Raises ServiceUnavailable if the broker does not answer, ProtocolViolation if a frame is not of ``schema``.
    """
    tables = [(schema if stage is None else stage.events).empty_table()]
    seen = [np.empty((0, 6), np.int64)]
    for router, some in _valid_frames(kafka, topic, schema, partitions, sign_in):
        batches: list[pa.RecordBatch] = []
        rows_seen: list[tuple[int, int, int, int, int, int]] = []
        for offset, epoch, batch, meta in some:
            rows = -1
            if before is None or offset < before[router]:
                batches.append((batch if stage is None else stage.mapped(batch)).replace_schema_metadata(None))
                rows = batches[-1].num_rows
            rows_seen.append((router, offset, meta.get("watermark", 0), batch.num_rows, epoch, rows))
        # Copied: a small frame would otherwise keep its record in memory, which is a hundred times as large.
        tables.append(pa.Table.from_batches(batches, tables[0].schema).combine_chunks())
        seen.append(np.array(rows_seen, np.int64).reshape(-1, 6))
    columns = ["router", "offset", "watermark", "events", "epoch"]
    *of_frames, of_rows = np.concatenate(seen).T
    all_frames = pd.DataFrame(dict(zip(columns, of_frames, strict=True)))
    wanted, rows = all_frames[of_rows >= 0], of_rows[of_rows >= 0]
    events = pa.concat_tables(tables).to_pandas()
    events.insert(0, "router", np.repeat(wanted["router"].to_numpy(np.int32), rows))
    events.insert(1, "offset", np.repeat(wanted["offset"].to_numpy(), rows))
    events.insert(2, "position", positions(rows))
    return events, all_frames


def _valid_frames(
    kafka: str, topic: str, schema: pa.Schema, partitions: int, sign_in: SignIn
) -> Iterator[tuple[int, list[tuple[int, int, pa.RecordBatch, dict[str, Any]]]]]:
    """Frames that are not stale, some of one router at a time: offset, epoch, events and metadata of each."""
    newest = [frames.FIRST_EPOCH] * partitions
    for partition, some in records(kafka, topic, partitions, sign_in):
        router, valid = partition.partition, []
        for record in some:
            batch, meta = frames.decode(record.value, schema)
            if (epoch := frames.epoch_of(meta)) >= newest[router]:
                newest[router] = epoch
                valid.append((record.offset, epoch, batch, meta))
        yield router, valid


def count(
    kafka: str, topic: str, schema: pa.Schema, partitions: int, stages: Sequence[KeyedStage], sign_in: SignIn = OPEN
) -> Offered:
    """Count what is in ``topic`` of a source now, but for what is stale (see ``keyshift.model.frames``).

    In little memory, however long the topic is. Raises as ``read_topic``.
    """
    events, due = [0] * partitions, 0
    begins: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
    for router, some in _valid_frames(kafka, topic, schema, partitions, sign_in):
        for offset, epoch, *_ in some:
            if not begins[router] or epoch > begins[router][-1][1]:
                begins[router].append((offset, epoch))
        batches = [batch.replace_schema_metadata(None) for *_, batch, _ in some]
        for batch in pa.Table.from_batches(batches, schema).combine_chunks().to_batches():
            events[router] += batch.num_rows
            due += results_due(stages, batch)
    return Offered(events, due, tuple(map(tuple, begins)))


def positions(rows: np.ndarray) -> np.ndarray:
    """0..n-1 for each n of ``rows``, one after the other: int32."""
    begin = np.cumsum(rows) - rows
    return (np.arange(rows.sum()) - np.repeat(begin, rows)).astype(np.int32)
