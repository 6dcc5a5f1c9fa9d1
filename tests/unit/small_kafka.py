"""A stand-in for Kafka's producer."""

from typing import NamedTuple

from keyshift.model.frames import decode
from keyshift.workloads.keycount import EVENTS


class _Message(NamedTuple):
    of: int
    at: int | None

    def partition(self):
        return self.of

    def offset(self):
        return self.at


class Broker:
    """Stands for Kafka's producer: takes what is sent, and acknowledges it at once or when told to."""

    def __init__(self, at_once=True):
        self.at_once, self.values, self.waiting, self.ends = at_once, [], [], [0, 0]
        self.failure = None
        self.tells_offsets = True  # of a send that it has had before a broker does not

    def produce(self, topic, value, partition, on_delivery):
        self.values.append((partition, value))
        at = self.ends[partition] if self.tells_offsets else None
        self.waiting.append((on_delivery, _Message(partition, at)))
        self.ends[partition] += 1

    def poll(self, timeout):
        if self.at_once:
            waiting, self.waiting = self.waiting, []
            for delivered, message in waiting:
                delivered(self.failure, message)

    def flush(self, timeout):
        self.poll(timeout)
        return len(self.waiting)

    def frames(self, router):
        return [decode(value, EVENTS) for partition, value in self.values if partition == router and value]
