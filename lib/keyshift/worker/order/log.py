"""The order log of one slot, in Kafka: a partition, into which whoever leads writes, and from which all deliver.

Kafka appends what one client sends in its order, and once. It may append late, and then it comes behind the beginning
of another term: machines drop it.
"""

import logging

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from keyshift.endpoints import Endpoints
from keyshift.model import messages
from keyshift.model.errors import ServiceUnavailable
from keyshift.ordering import Record

AWAY_MS = 60_000  # so long Kafka may be away; who leads resigns long before
MOST = 1000  # records that are read at once


class OrderLog:
    """Partition ``partition`` of ``topic``, read from ``offset`` on. One thread reads; any may append. ``next``: the
    offset from which it reads on.

    ``replica``: whose records are written here; only people read that.
    """

    def __init__(self, endpoints: Endpoints, topic: str, partition: int, offset: int, replica: int) -> None:
        self._topic, self._partition, self._key = topic, partition, str(replica)
        common: dict[str, str | int | bool] = {
            "bootstrap.servers": endpoints.kafka,
            "socket.nagle.disable": True,
            "reconnect.backoff.max.ms": 200,
            "allow.auto.create.topics": False,
            **endpoints.sign_in.c_client(),
        }
        logger = logging.getLogger("kafka")
        writing = {"enable.idempotence": True, "acks": "all", "linger.ms": 0, "message.timeout.ms": AWAY_MS}
        self._producer = Producer(common | writing, logger=logger)
        reading = {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True}
        self._consumer = Consumer(common | reading, logger=logger)
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        self.next = offset

    def append(self, record: Record) -> None:
        """Append ``record``, and do not wait; what comes of that is read."""
        self._producer.produce(self._topic, messages.encode(record), key=self._key, partition=self._partition)
        self._producer.poll(0)

    def read(self, timeout_s: float) -> list[tuple[int, Record]]:
        """Read records with their offsets, as soon as there are some. Raises ServiceUnavailable if they are gone."""
        found = []
        first = self._consumer.poll(timeout_s)
        more = self._consumer.consume(MOST, 0) if first is not None else []
        for message in [first, *more] if first is not None else []:
            if error := message.error():
                raise ServiceUnavailable(f"Kafka: reading topic {self._topic!r} failed: {error.str()}")
            offset, value = message.offset(), message.value()
            assert offset is not None and value is not None  # of all that is no error
            found.append((offset, messages.decode(Record, value)))
            self.next = offset + 1
        return found

    def end(self) -> int:
        """The offset behind the last record there is. Raises ServiceUnavailable."""
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), AWAY_MS / 1000)
        except KafkaException as error:
            raise ServiceUnavailable(f"Kafka: the end of topic {self._topic!r} is not known: {error}") from error
        return end

    def close(self) -> None:
        """Close the log; what was appended is on its way all the same."""
        self._consumer.close()
        self._producer.flush(1.0)
