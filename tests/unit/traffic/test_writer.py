"""What the writer of events hears of Kafka."""

import pytest
from small_kafka import Broker

from keyshift.endpoints import OPEN
from keyshift.model.errors import ServiceUnavailable
from keyshift.traffic.topics import Topic
from keyshift.traffic.writer import Writer


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def written(broker):
    """What was, by a writer to ``broker``; and the writer."""
    told = []
    return told, Writer(Topic("kafka:9092", "events", 2, OPEN), broker, lambda *where: told.append(where))


def test_a_record_that_a_new_leader_has_already_has_no_offset_and_is_no_failure(broker, written):
    """The client's callback must raise nothing: what comes of that is a SystemError, without a word of the reason."""
    told, writer = written
    writer.write(1, b"a")
    broker.tells_offsets = False
    writer.write(1, b"b")
    broker.tells_offsets = True
    writer.write(1, b"c")
    writer.flush()
    assert told == [(1, 0), (1, 2)]


def test_a_record_that_kafka_does_not_take_is_told_with_the_reason(broker, written):
    class Refusal:
        def str(self):
            return "message timed out"

    broker.failure = Refusal()
    with pytest.raises(ServiceUnavailable, match="did not take a record of topic 'events': message timed out"):
        written[1].write(0, b"a")
