"""Topics of a run: made, deleted, and read back for the verdict."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from keyshift.endpoints import OPEN, Endpoints, SignIn
from keyshift.model import frames
from keyshift.model.errors import BadInput, NotThere, RunsElsewhere, ServiceUnavailable, service_errors
from keyshift.workloads import ORIGIN, KeyedStage, Source, results_due

SILENCE_S = 2.0  # a generator that lives writes many times in it, unless its frames are long
SILENT_FRAMES = 3  # which then have not come
RETENTION_MS = 24 * 3600 * 1000  # of a run that nobody cleans up, beside the length of its load
FOR_EVER_MS = -1  # until the topic is deleted
ANSWER_MS = 15_000  # how long a broker may take to answer before it counts as down
RECONNECT_MS = 1000  # at the most, between two tries to reach one that is away; the client would take half a minute
Epochs = tuple[tuple[tuple[int, int], ...], ...]  # of each partition: offsets at which an epoch begins, and the epoch
_READ_BYTES = 8 << 20  # per partition and fetch, when reading a topic back


class OfferedSoFar(NamedTuple):
    """What was offered until now: ``events`` of each partition, and how many results are ``due`` for them."""

    events: list[int]
    due: int
    epochs: Epochs


@dataclass(frozen=True)
class Topic:
    """A topic of Kafka, which may not exist yet. Every method raises ServiceUnavailable, one line, if the broker does
    not answer in time.
    """

    kafka: str
    name: str
    partitions: int = 1
    sign_in: SignIn = OPEN
    replication: int = 1  # brokers that have a copy of each record, once it is made

    @classmethod
    def at(cls, endpoints: Endpoints, name: str, partitions: int = 1) -> "Topic":
        """The topic ``name`` of the Kafka of ``endpoints``."""
        return cls(endpoints.kafka, name, partitions, endpoints.sign_in, endpoints.replication)

    @property
    def parts(self) -> list[TopicPartition]:
        """Its partitions, as clients name them."""
        return [TopicPartition(self.name, partition) for partition in range(self.partitions)]

    def errors(self, doing: str) -> AbstractContextManager[None]:
        """Turns errors of the Kafka client into ServiceUnavailable; ``doing``: something to the topic, in words."""
        begin = f"Kafka at {self.kafka}: {doing} topic {self.name!r} failed"
        remedy = "see `keyshift status`, or start it with `keyshift up`"
        return service_errors(KafkaError, lambda error: f"{begin}: {error}; {remedy}")

    def create(self, retention_ms: int = RETENTION_MS) -> None:
        """Make it and wait until every partition has a leader. ``retention_ms``: how long Kafka keeps a record, however
        much there is; FOR_EVER_MS: until it is deleted.

        Raises ServiceUnavailable also if the broker refuses (the topic exists already, say).
        """
        configs = {"retention.ms": str(retention_ms), "max.message.bytes": str(frames.MAX_FRAME_BYTES)}
        configs["retention.bytes"] = "-1"  # a limit of the brokers would take from a run what its verdict needs
        configs["message.timestamp.type"] = "LogAppendTime"  # when it was there for all, by one clock
        if self.replication > 2:  # one may be away, and each record is in two: of two brokers both would be needed
            configs["min.insync.replicas"] = "2"
        wanted = {"num_partitions": self.partitions, "replication_factor": self.replication, "configs": configs}
        with self._admin("creating") as client:
            client.create_topics({self.name: wanted}, timeout_ms=ANSWER_MS, wait_for_metadata=True)

    def delete(self) -> None:
        """Delete it; nothing happens if it is not there."""
        with self._admin("deleting") as client, suppress(UnknownTopicOrPartitionError):
            client.delete_topics([self.name], timeout_ms=ANSWER_MS)

    def await_silence(self, frame_ms: float) -> None:
        """Wait until nobody has written into it for ``SILENCE_S``, or for some frames of ``frame_ms``, if they take
        longer. Raises RunsElsewhere if somebody goes on.
        """
        silent_s = max(SILENCE_S, SILENT_FRAMES * frame_ms / 1000)
        with self._consumer("looking at") as consumer:
            ends, since, begin = None, time.monotonic(), time.monotonic()
            while time.monotonic() - since < silent_s:
                if (now := consumer.end_offsets(self.parts)) != ends:
                    ends, since = now, time.monotonic()
                if time.monotonic() - begin > silent_s + ANSWER_MS / 1000:
                    raise RunsElsewhere(f"somebody still writes into topic {self.name!r}: the job runs elsewhere")
                time.sleep(0.2)

    def require_partitions(self) -> None:
        """Refuse a topic with another number of partitions (none at all, if it does not exist): BadInput."""
        with self._admin("looking at") as client:
            found = len(client.describe_topics([self.name])[0]["partitions"])
        if found != self.partitions:
            raise BadInput(f"topic {self.name!r} has {found} partitions, expected {self.partitions}; make it anew")

    def length(self) -> int:
        """Count the records that were written until now."""
        return sum(self.ends().values())

    def ends(self) -> dict[int, int]:
        """By partition the offset of the next record."""
        with self._consumer("looking at") as consumer:
            return {each.partition: offset for each, offset in consumer.end_offsets(self.parts).items()}

    def extents(self) -> dict[int, tuple[int, int]]:
        """By partition the offset of the oldest record that is still there, and that of the next record."""
        with self._consumer("looking at") as consumer:
            begins, ends = consumer.beginning_offsets(self.parts), consumer.end_offsets(self.parts)
            return {each.partition: (begins[each], ends[each]) for each in self.parts}

    def require_whole(self) -> None:
        """Refuse a topic in which not all is still there that was ever written: NotThere."""
        for partition, (begin, _) in sorted(self.extents().items()):
            if begin:
                raise NotThere(
                    f"topic {self.name!r} begins at offset {begin} of partition {partition} by now: Kafka has removed "
                    "what is before, see its retention, so what the job was offered and gave is not known"
                )

    def records(self, since: float | None = None) -> Iterator[tuple[int, list[ConsumerRecord]]]:
        """Read what is there at the time of the call: some records of one partition at a time, in their order.

        ``since``: only what was written then or later, in seconds since the epoch.
        """
        most = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": _READ_BYTES}
        with self._consumer("reading", **most) as consumer:
            consumer.assign(self.parts)
            ends = consumer.end_offsets(self.parts)
            consumer.seek_to_beginning(*self.parts)
            if since is not None:
                found = consumer.offsets_for_times(dict.fromkeys(self.parts, math.floor(since * 1000)))
                for partition, first in found.items():
                    consumer.seek(partition, first.offset if first else ends[partition])
            while any(consumer.position(p) < end for p, end in ends.items()):
                fetched = consumer.poll(timeout_ms=ANSWER_MS, max_records=10_000)
                if not fetched:
                    raise ServiceUnavailable(
                        f"Kafka at {self.kafka}: no record of topic {self.name!r} within {ANSWER_MS / 1000:g} s; "
                        "see its log"
                    )
                for partition, some in fetched.items():
                    if kept := [record for record in some if record.offset < ends[partition]]:
                        yield partition.partition, kept

    def result_times(self, since: float) -> list[int]:
        """Read when each frame with results was written that was written since ``since``, which is in seconds since the
        epoch: microseconds since the epoch, in no order.
        """
        some = (record for _, records in self.records(since) for record in records)
        return [record.timestamp * 1000 for record in some if frames.row_count(record.value)]

    def facts(self, partition: int, offset: int, schema: pa.Schema) -> frames.Facts:
        """The facts of the frame of ``schema`` that is at ``offset``. Raises ServiceUnavailable if there is none."""
        where = TopicPartition(self.name, partition)
        with self._consumer("reading") as consumer:
            consumer.assign([where])
            consumer.seek(where, offset)
            for some in consumer.poll(timeout_ms=ANSWER_MS, max_records=1).values():
                return frames.decode(some[0].value, schema)[1]
        raise ServiceUnavailable(
            f"Kafka at {self.kafka}: no record {offset} of topic {self.name!r} within {ANSWER_MS} ms"
        )

    def read(
        self,
        source: Source,
        before: Mapping[int, int] | None = None,
        stage: KeyedStage | None = None,
        first: int = 0,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Read the events of ``source`` and the frames that are there at the time of the call.

        What is stale (see ``keyshift.model.frames``) is left out. Events: columns router, offset, position and those of
        the source, or what routers make of them for ``stage``; with ``before`` only those before that offset of each
        router. Frames, all of them: columns router, offset, watermark (0 if it has none), events, how many of the
        source, and epoch. ``first``: the router of partition 0. Raises ProtocolViolation if a frame is not of
        ``source``.
        """
        events, seen = zip(*self.portions(source, before, stage, first), strict=True)
        return pa.concat_tables(events).to_pandas(), pd.concat(seen, ignore_index=True)

    def portions(
        self,
        source: Source,
        before: Mapping[int, int] | None = None,
        stage: KeyedStage | None = None,
        first: int = 0,
    ) -> Iterator[tuple[pa.Table, pd.DataFrame]]:
        """Events and frames as ``read`` gives them, some of one router at a time; at least a table without rows."""
        schema = source.schema if stage is None else stage.events
        columns = ["router", "offset", "watermark", "events", "epoch"]
        nothing: list[tuple[int, pa.RecordBatch, frames.Facts]] = []
        for partition, some in chain([(0, nothing)], self._valid_frames(source.schema)):
            router = first + partition
            batches: list[pa.RecordBatch] = []
            seen: list[tuple[int, int, int, int, int]] = []
            kept: list[tuple[int, int]] = []  # offset, and rows
            for offset, batch, facts in some:
                seen.append((router, offset, facts.watermark, batch.num_rows, facts.epoch))
                if before is None or offset < before[router]:
                    batches.append((batch if stage is None else source.mapped(batch)).replace_schema_metadata(None))
                    kept.append((offset, batches[-1].num_rows))
            # Copied: a small frame would otherwise keep its record in memory, which is a hundred times as large.
            events = pa.Table.from_batches(batches, schema).combine_chunks()
            offsets, rows = np.array(kept, np.int64).reshape(-1, 2).T
            places = np.full(len(events), router), np.repeat(offsets, rows), positions(rows)
            for number, (field, values) in enumerate(zip(ORIGIN, places, strict=True)):
                events = events.add_column(number, field, pa.array(values, field.type))
            yield events, pd.DataFrame(np.array(seen, np.int64).reshape(-1, len(columns)), columns=columns)

    def count(self, source: Source, stages: Sequence[KeyedStage]) -> OfferedSoFar:
        """Count what is there of ``source`` now, but for what is stale (see ``keyshift.model.frames``).

        In little memory, however long the topic is. Raises as ``read``.
        """
        events, due = [0] * self.partitions, 0
        begins: list[list[tuple[int, int]]] = [[] for _ in events]
        for router, some in self._valid_frames(source.schema):
            for offset, _, facts in some:
                if not begins[router] or facts.epoch > begins[router][-1][1]:
                    begins[router].append((offset, facts.epoch))
            batches = [batch.replace_schema_metadata(None) for _, batch, _ in some]
            for batch in pa.Table.from_batches(batches, source.schema).combine_chunks().to_batches():
                events[router] += batch.num_rows
                due += results_due(source, stages, batch)
        return OfferedSoFar(events, due, tuple(map(tuple, begins)))

    def _valid_frames(self, schema: pa.Schema) -> Iterator[tuple[int, list[tuple[int, pa.RecordBatch, frames.Facts]]]]:
        """Frames that are not stale, some of one router at a time: offset, events and facts of each."""
        newest = [frames.FIRST_EPOCH] * self.partitions
        for router, some in self.records():
            valid = []
            for record in some:
                batch, facts = frames.decode(record.value, schema)
                if facts.epoch >= newest[router]:
                    newest[router] = facts.epoch
                    valid.append((record.offset, batch, facts))
            yield router, valid

    @contextmanager
    def _admin(self, doing: str) -> Iterator[KafkaAdminClient]:
        with self.errors(doing), closing(KafkaAdminClient(**_client(self))) as client:
            yield client

    @contextmanager
    def _consumer(self, doing: str, **more: Any) -> Iterator[KafkaConsumer]:
        plain = {"enable_auto_commit": False, "metrics_enabled": False}
        with self.errors(doing), closing(KafkaConsumer(**_client(self), **plain, **more)) as consumer:
            yield consumer


def _client(topic: Topic) -> dict[str, Any]:
    """Return what every client of a topic's Kafka is told."""
    patience = {"bootstrap_timeout_ms": ANSWER_MS, "request_timeout_ms": ANSWER_MS}
    again = {"reconnect_backoff_max_ms": RECONNECT_MS}
    return {"bootstrap_servers": topic.kafka, **patience, **again, **topic.sign_in.client()}


def positions(rows: np.ndarray) -> np.ndarray:
    """0..n-1 for each n of ``rows``, one after the other: int32."""
    begin = np.cumsum(rows) - rows
    return (np.arange(rows.sum()) - np.repeat(begin, rows)).astype(np.int32)
