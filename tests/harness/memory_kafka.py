"""Kafka in memory: as much of kafka-python's clients as topics, generator and collector use."""

import threading
import time
from types import SimpleNamespace
from typing import Any

from engine import Topic
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from places import here

POLL_S = 0.005


def away() -> Exception:
    """What a broker that does not answer is for a client."""
    return KafkaTimeoutError("injected: the broker does not answer")


class LoggedTopic(Topic):
    """With the time, in milliseconds, at which each record was stored."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self._times: list[list[int]] = [[] for _ in range(partitions)]
        self._lock = threading.Lock()

    def append(self, partition: int, value: bytes) -> int:
        """One more record; its offset."""
        with self._lock:
            self._times[partition].append(time.time_ns() // 1_000_000)
            self.partitions[partition].append(value)
            return len(self.partitions[partition]) - 1

    def cut(self, ends: list[int]) -> None:
        """Have only what was before these ends of the partitions: what was confirmed behind them is lost."""
        with self._lock:
            for of_all in (self.partitions, self._times):
                for some, end in zip(of_all, ends, strict=True):
                    del some[end:]

    def record(self, partition: int, offset: int) -> Any:
        """As a consumer gets it."""
        value, stored_ms = self.partitions[partition][offset], self._times[partition][offset]
        return SimpleNamespace(partition=partition, offset=offset, value=value, timestamp=stored_ms)


class Broker:
    """All topics by their names, and those that were deleted."""

    def __init__(self) -> None:
        self.topics: dict[str, LoggedTopic] = {}
        self.deleted: dict[str, LoggedTopic] = {}

    def topic(self, name: str) -> LoggedTopic:
        """Raises UnknownTopicOrPartitionError."""
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(name)
        return self.topics[name]

    def archive(self) -> "Broker":
        """With all topics that there ever were."""
        archive = Broker()
        archive.topics = self.deleted | self.topics
        return archive


class _Client:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._place = broker, here()
        self._calling("kafka look")

    def _calling(self, call: str) -> None:
        """Raises what befalls it before the call; ``after`` it is the same here."""
        assert self._place is not None
        with self._place.calling(call, away):
            pass

    def close(self, timeout: float | None = None) -> None:
        """Nothing is open."""


class Admin(_Client):
    """``KafkaAdminClient``."""

    def create_topics(self, wanted: dict[str, Any], timeout_ms: int, wait_for_metadata: bool) -> None:
        for name, config in wanted.items():
            with self._place.calling("kafka create", away):  # type: ignore[union-attr]
                if name in self._broker.topics:
                    raise TopicAlreadyExistsError(name)
                self._broker.topics[name] = LoggedTopic(config["num_partitions"])

    def delete_topics(self, names: list[str], timeout_ms: int) -> None:
        for name in names:
            with self._place.calling("kafka delete", away):  # type: ignore[union-attr]
                self._broker.deleted[name] = self._broker.topic(name)
                del self._broker.topics[name]

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        self._calling("kafka look")
        return [{"partitions": self._broker.topic(name).partitions} for name in names]


class Consumer(_Client):
    """``KafkaConsumer``."""

    def assign(self, assigned: list[TopicPartition]) -> None:
        self._next = dict.fromkeys(assigned, 0)

    def seek_to_beginning(self, *assigned: TopicPartition) -> None:
        self._next |= dict.fromkeys(assigned, 0)

    def beginning_offsets(self, assigned: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._calling("kafka look")
        return dict.fromkeys(assigned, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._next[partition] = offset

    def end_offsets(self, assigned: list[TopicPartition], timeout_ms: int = 0) -> dict[TopicPartition, int]:
        self._calling("kafka look")
        return {each: self._end(each) for each in assigned}

    def position(self, partition: TopicPartition) -> int:
        return self._next[partition]

    def highwater(self, partition: TopicPartition) -> int:
        return self._end(partition)

    def poll(self, timeout_ms: int, max_records: int = 10_000) -> dict[TopicPartition, list[Any]]:
        self._calling("kafka poll")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            found = {each: self._records(each, begin) for each, begin in self._next.items() if self._end(each) > begin}
            if found or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        for each, records in found.items():
            self._next[each] += len(records)
        return found

    def _records(self, partition: TopicPartition, begin: int) -> list[Any]:
        topic = self._broker.topic(partition.topic)
        return [topic.record(partition.partition, offset) for offset in range(begin, self._end(partition))]

    def _end(self, partition: TopicPartition) -> int:
        return len(self._broker.topic(partition.topic).partitions[partition.partition])


class Producer(_Client):
    """``confluent_kafka.Producer``: what is sent is there at once, or never."""

    def produce(self, topic: str, value: bytes, partition: int, on_delivery: Any) -> None:
        try:
            with self._place.calling("kafka send", away):  # type: ignore[union-attr]
                offset = self._broker.topic(topic).append(partition, bytes(value))
        except (KafkaTimeoutError, UnknownTopicOrPartitionError) as failure:
            words = repr(failure)
            on_delivery(SimpleNamespace(str=lambda: words), None)
        else:
            on_delivery(None, SimpleNamespace(partition=lambda: partition, offset=lambda: offset))

    def poll(self, timeout: float) -> None:
        """Whoever sent was told already."""

    def flush(self, timeout: float) -> int:
        """Nothing is under way."""
        return 0
