"""How a topic is made, and what is read back from one of events, whose records come in several pieces."""

import math
import socket
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from keyshift.endpoints import Endpoints
from keyshift.model import frames
from keyshift.model.errors import RunsElsewhere, ServiceUnavailable
from keyshift.traffic import topics
from keyshift.traffic.topics import Topic
from keyshift.workloads.windowcount import WindowCount
from waits import Clock

WORKLOAD = WindowCount()
[SOURCE], [STAGE] = WORKLOAD.sources, WORKLOAD.stages
TOPIC = Topic("", "t", 2)
ROWS = [[2, 0, 1], [0, 3]]  # events of each frame, of two routers


@pytest.fixture
def offered(monkeypatch):
    """The events of each router that are in the topic, of which each fetch gives two records at the most."""
    pieces, events = [], []
    for router, rows in enumerate(ROWS):
        partition, made, batches = SOURCE.partition(router), [], []
        for offset, number in enumerate(rows):
            batches.append(partition.take(np.arange(number, dtype=np.int64) * 1000 + offset * 20_000))
            value = frames.encode(batches[-1], frames.Facts(offset * 7))
            made.append(SimpleNamespace(offset=offset, value=value, timestamp=5 + offset))
        pieces += [(router, made[begin : begin + 2]) for begin in range(0, len(made), 2)]
        events.append(pa.Table.from_batches(batches, SOURCE.schema))
    monkeypatch.setattr(Topic, "records", lambda self, since=None: iter(pieces))
    return events


def test_events_come_with_their_places_and_are_counted_as_their_results_and_frames_with_how_many_they_have(offered):
    events, seen = TOPIC.read(SOURCE)
    places = events[["router", "offset", "position"]].to_numpy().tolist()
    assert places == [[0, 0, 0], [0, 0, 1], [0, 2, 0], [1, 1, 0], [1, 1, 1], [1, 1, 2]]
    assert events["key"].tolist() == [key for table in offered for key in table["key"].to_pylist()]
    places = {"router": [0, 0, 0, 1, 1], "offset": [0, 1, 2, 0, 1], "watermark": [0, 7, 14, 0, 7]}
    assert seen.to_dict("list") == places | {"events": [2, 0, 1, 0, 3], "epoch": [1] * 5}
    assert TOPIC.count(SOURCE, WORKLOAD.stages) == ([3, 3], 6, (((0, 1),), ((0, 1),)))
    assert TOPIC.result_times(0.0) == [5000, 7000, 6000]


def test_events_and_frames_come_as_they_are_fetched_behind_none_at_all(offered):
    tables, seen = zip(*TOPIC.portions(SOURCE, before={4: 2, 5: 2}, first=4), strict=True)
    assert [len(each) for each in tables] == [0, 2, 0, 3] and [len(each) for each in seen] == [0, 2, 1, 2]
    events, frames = TOPIC.read(SOURCE, before={4: 2, 5: 2}, first=4)
    assert pa.concat_tables(tables).to_pandas().equals(events) and {*events["router"]} == {4, 5}
    assert [*chain(*(each["events"] for each in seen))] == frames["events"].tolist()


def test_what_is_behind_an_offset_is_left_out_but_for_its_frame(offered):
    events, seen = TOPIC.read(SOURCE, before={0: 2, 1: 1}, stage=STAGE)
    assert events[["router", "offset", "position"]].to_numpy().tolist() == [[0, 0, 0], [0, 0, 1]]
    assert seen["events"].tolist() == [2, 0, 1, 0, 3]
    assert list(events)[3:] == STAGE.events.names


def test_what_is_of_an_older_epoch_than_a_frame_before_it_does_not_count(monkeypatch):
    """A generator whose driver was deposed has written on behind the first frame of the next one."""
    partition, made = SOURCE.partition(0), []
    for offset, epoch in enumerate((1, 2, 1, 2)):
        batch = partition.take(np.arange(1 + offset, dtype=np.int64))
        value = frames.encode(batch, frames.Facts(epoch=epoch))
        made.append(SimpleNamespace(offset=offset, value=value, timestamp=offset))
    monkeypatch.setattr(Topic, "records", lambda self: iter([(0, made)]))
    topic = Topic("", "t")
    events, seen = topic.read(SOURCE)
    assert seen[["offset", "epoch"]].to_numpy().tolist() == [[0, 1], [1, 2], [3, 2]]
    assert sorted(set(events["offset"])) == [0, 1, 3]
    assert topic.count(SOURCE, WORKLOAD.stages) == ([1 + 2 + 4], 1 + 2 + 4, (((0, 1), (1, 2)),))


def test_a_topic_without_a_record_has_neither_events_nor_frames(monkeypatch):
    monkeypatch.setattr(Topic, "records", lambda self: iter([]))
    events, seen = TOPIC.read(SOURCE, stage=STAGE)
    assert events.empty and seen.empty
    assert list(events) == ["router", "offset", "position", *STAGE.events.names]
    assert events["router"].dtype == np.int32
    assert TOPIC.count(SOURCE, WORKLOAD.stages) == ([0, 0], 0, ((), ()))


def test_a_broker_that_is_not_there_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(topics, "ANSWER_MS", 1000)
    with socket.socket() as silent:  # bound and not listening: nobody answers, and nobody else gets the port
        silent.bind(("127.0.0.1", 0))
        kafka = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match=f"^Kafka at {kafka}: looking at topic 'any' ") as told:
            Topic(kafka, "any").require_partitions()
    assert "\n" not in str(told.value)


def test_a_topic_is_silent_when_several_frames_have_not_come_however_long_they_are(monkeypatch):
    clock, every_s = Clock(), [math.inf]

    class Consumer:
        def __init__(self, **settings):
            pass

        def end_offsets(self, parts):
            return dict.fromkeys(parts, clock.now // every_s[0])

        def close(self):
            pass

    monkeypatch.setattr(topics, "time", clock)
    monkeypatch.setattr(topics, "KafkaConsumer", Consumer)
    TOPIC.await_silence(10_000.0)
    every_s[0] = 10.0
    with pytest.raises(RunsElsewhere, match="somebody still writes into topic 't'"):
        TOPIC.await_silence(10_000.0)


@pytest.fixture
def made(monkeypatch):
    """What a broker at k:1 and l:1 was asked to make, by the names of topics."""
    made = {}

    class Admin:
        def __init__(self, **settings):
            assert settings["bootstrap_servers"] == "k:1,l:1"

        def create_topics(self, wanted, **waits):
            made.update(wanted)

        def close(self):
            pass

    monkeypatch.setattr(topics, "KafkaAdminClient", Admin)
    return made


@pytest.mark.parametrize(("copies", "least"), [(1, None), (2, None), (3, "2"), (5, "2")])
def test_a_topic_has_the_copies_that_its_endpoints_say_and_two_of_three_have_to_live(made, copies, least):
    Topic.at(Endpoints("k:1,l:1", "z:1", "m:1", "a", "s", replication=copies), "order", 2).create()
    assert (made["order"]["num_partitions"], made["order"]["replication_factor"]) == (2, copies)
    assert made["order"]["configs"].get("min.insync.replicas") == least


def test_a_topic_is_kept_for_its_time_or_for_ever_however_large_it_becomes(made):
    """Brokers have a limit of bytes for each partition, which counts beside that of time: of a run, too, it would take
    events before the verdict.
    """
    for name, kept_ms in (("live", topics.FOR_EVER_MS), ("run", topics.RETENTION_MS)):
        Topic("k:1,l:1", name).create(kept_ms)
    kept = {name: (each["configs"]["retention.ms"], each["configs"]["retention.bytes"]) for name, each in made.items()}
    assert kept == {"live": ("-1", "-1"), "run": ("86400000", "-1")}
