"""A stand-in for Kafka's producer."""

from types import SimpleNamespace

from kafka.future import Future

from keyshift.model.frames import decode
from keyshift.workloads.keycount import EVENTS


class Broker:
    """Stands for Kafka's producer: takes what is sent, and acknowledges it at once or when told to."""

    def __init__(self, at_once=True):
        self.at_once, self.values, self.waiting, self.ends = at_once, [], [], [0, 0]

    def send(self, topic, value, partition):
        self.values.append((partition, value))
        self.waiting.append((Future(), SimpleNamespace(offset=self.ends[partition])))
        self.ends[partition] += 1
        answer, _ = self.waiting[-1]
        if self.at_once:
            self.answer(Future.success)
        return answer

    def answer(self, how, value=None):
        waiting, self.waiting = self.waiting, []
        for future, written in waiting:
            how(future, value or written)

    def frames(self, router):
        return [decode(value, EVENTS) for partition, value in self.values if partition == router and value]
