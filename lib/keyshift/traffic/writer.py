"""Writes what is offered into Kafka, with the client in C: a frame costs a fifth of what it costs in Python."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.traffic.topics import ANSWER_MS, Topic

AWAY_MS = 60_000  # so long Kafka may be away: a restart takes a quarter of a minute on a busy machine
ON_THE_WAY_BYTES = 8 << 20  # to Kafka
_ROOM_S = 0.1  # between two looks whether there is room


def producer_of(topic: Topic) -> Producer:
    """A producer for ``topic``. It is idempotent: a repeated send can neither double nor overtake a record.

    It connects by itself, and again when Kafka was away.
    """
    settings = {
        "bootstrap.servers": topic.kafka,
        "enable.idempotence": True,
        "linger.ms": 0,
        "queue.buffering.max.messages": 0,  # bytes are bounded, see ``Writer``
        "socket.nagle.disable": True,
        "message.max.bytes": frames.MAX_FRAME_BYTES,
        "request.timeout.ms": ANSWER_MS // 2,
        "message.timeout.ms": AWAY_MS,
        "reconnect.backoff.max.ms": 200,  # a broker that was away is back in the midst of a measurement
        "allow.auto.create.topics": False,
        **topic.sign_in.c_client(),
    }
    return Producer(settings, logger=logging.getLogger("kafka"))


class Writer:
    """A writer of records of ``topic``, in their order by partition; what is on its way to Kafka is bounded. For one
    thread, which hears in the calls below what was written, as far as Kafka says where: ``written(partition, offset)``.

    All methods raise ServiceUnavailable once Kafka has not taken a record.
    """

    def __init__(self, topic: Topic, producer: Producer, written: Callable[[int, int], None]) -> None:
        self._topic, self._producer, self._written = topic, producer, written
        self._on_the_way = 0  # bytes
        self._failure = ""

    def write(self, partition: int, value: bytes) -> None:
        """Send a record when there is room for it."""
        while self._on_the_way >= ON_THE_WAY_BYTES and not self._failure:
            self._producer.poll(_ROOM_S)
        self._on_the_way += len(value)
        delivered = partial(self._delivered, len(value))
        with service_errors(KafkaException, self._words):
            self._producer.produce(self._topic.name, value, partition=partition, on_delivery=delivered)
            self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until Kafka has acknowledged everything."""
        left = self._producer.flush(AWAY_MS / 1000)
        if left and not self._failure:
            self._failure = f"{left} records were not acknowledged within {AWAY_MS / 1000:g} s"
        self._check()

    def _delivered(self, size: int, error: Any, message: Any) -> None:
        self._on_the_way -= size
        if error is not None:
            self._failure = error.str()
        elif (offset := message.offset()) is not None:  # not where a new leader had the record from the one before
            self._written(message.partition(), offset)

    def _check(self) -> None:
        if self._failure:
            raise ServiceUnavailable(self._words(self._failure))

    def _words(self, why: object) -> str:
        return f"Kafka at {self._topic.kafka} did not take a record of topic {self._topic.name!r}: {why}"
