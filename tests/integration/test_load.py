"""Generator, Kafka and collector, with this test in the place of the job."""

import os
import signal
import threading
import time
import uuid
from dataclasses import asdict, replace
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, KafkaProducer

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Assignment, units_of
from keyshift.model.markers import SlotMarker, SlotStarted, TurnTold
from keyshift.results.verdict import Ownership, judge
from keyshift.state.memory import MemoryState
from keyshift.traffic.copies import Difference
from keyshift.traffic.messages import (
    Begin,
    Collected,
    Diverged,
    EndLoad,
    LoadDone,
    Ready,
    Report,
    SecondDone,
    SkipEvents,
    SoFar,
    Stop,
)
from keyshift.traffic.process import JsonProcess
from keyshift.traffic.topics import Topic
from keyshift.workloads.keycount import KeyCount

PARAMETERS = {"key_groups": 8, "keys": 50, "skew": 0.5, "state_bytes": 64, "seed": 4}
WORKLOAD = KeyCount(**PARAMETERS)
RESULTS = pa.schema([*frames.RESULT_FIELDS, *WORKLOAD.stages[0].result_fields])
ROUTERS, SLOTS, RATE, SECONDS = 2, 3, 2000, 2
DEADLINE_S = 60
T = TypeVar("T")


class Process(JsonProcess):
    """A child of the test, with all that it said."""

    def __init__(self, module: str, config: dict) -> None:
        self.said: list = []
        self._changed = threading.Condition()
        super().__init__(f"keyshift.traffic.{module}", config, Report, self._heard)

    def _heard(self, report) -> None:
        with self._changed:
            self.said.append(report)
            self._changed.notify_all()

    def hear(self, condition):
        """The first report for which ``condition`` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(map(condition, self.said)), DEADLINE_S), self.said
            return next(report for report in self.said if condition(report))

    def has_said(self, kind: type[T]) -> T:
        return self.hear(lambda report: isinstance(report, kind))

    def has_offered(self, least: int) -> SoFar:
        return self.hear(lambda report: isinstance(report, SoFar) and report.events >= least)

    def hang_up(self) -> tuple[int, str]:
        """Close its standard input; exit status and standard error."""
        self._process.stdin.close()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        status = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self._errors.seek(0)
        return status, self._errors.read()


@pytest.fixture
def start():
    processes: list[Process] = []

    def start_one(module: str, config: dict) -> Process:
        processes.append(Process(module, config))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()


@pytest.fixture
def topic(stack):
    """Makes topics of this test alone, and deletes them."""
    made: list[Topic] = []

    def make(partitions: int) -> Topic:
        made.append(Topic(stack.kafka, f"load-{uuid.uuid4().hex[:8]}", partitions))
        made[-1].create()
        return made[-1]

    yield make
    for each in made:
        each.delete()


def common(topic: Topic) -> dict:
    return {"topic": asdict(topic), "workload": "keycount", "parameters": PARAMETERS}


def generator_config(topic: Topic) -> dict:
    partitions = list(range(topic.partitions))
    return common(topic) | {"source": "events", "partitions": partitions, "rate": RATE, "frame_ms": 20}


def generate(start, topic: Topic) -> tuple[int, Process]:
    """A whole load; gives the time it was told to begin, and the generator, which still ticks."""
    generator = start("generator", generator_config(topic))
    generator.has_said(Ready)
    start_us = time.time_ns() // 1000 + 1_000_000
    generator.tell(Begin(start_us, SECONDS))
    done = generator.has_said(LoadDone)
    assert done.events == RATE * SECONDS
    assert done.took_s >= SECONDS * (1 - 1 / RATE)
    return start_us, generator


def began_us(events: pd.DataFrame, seen: pd.DataFrame, told_us: int) -> int:
    """When the load began: at the time that was told or, if a busy machine has let that pass, behind the last tick."""
    began = events["t"].min()
    assert began == max(told_us, seen["watermark"][seen["watermark"] < began].max() + 1)
    return began


def all_frames(topic: Topic, partition: int) -> list[tuple[pa.RecordBatch, frames.Facts]]:
    where = topic.parts[partition]
    consumer = KafkaConsumer(bootstrap_servers=topic.kafka, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([where])
    end, values, deadline = consumer.end_offsets([where])[where], [], time.monotonic() + DEADLINE_S
    while consumer.position(where) < end:
        assert time.monotonic() < deadline
        for records in consumer.poll(timeout_ms=500).values():
            values += [record.value for record in records]
    consumer.close()
    return [frames.decode(value, WORKLOAD.sources[0].schema) for value in values]


def test_the_generator_offers_every_event_once_at_its_scheduled_time_between_ticks(stack, start, topic):
    events_topic = topic(ROUTERS)
    start_us, generator = generate(start, events_topic)
    sent = generator.has_offered(RATE * SECONDS)
    assert sent.events == RATE * SECONDS
    events, seen = events_topic.read(WORKLOAD.sources[0])
    assert seen["events"].sum() == RATE * SECONDS
    start_us = began_us(events, seen, start_us)
    for router, mine in events.groupby("router"):
        count = RATE * SECONDS // ROUTERS
        times = start_us + (np.arange(count) * ROUTERS + router) * 1_000_000 // RATE
        assert mine["t"].tolist() == times.tolist()
        alone = WORKLOAD.sources[0].partition(router).take(times)
        assert mine["key"].tolist() == alone.column("key").to_pylist()

        seen_us = 0
        both = all_frames(events_topic, router)
        for batch, facts in both:
            times = batch.column("t").to_numpy()
            assert ((times > seen_us) & (times <= facts.watermark)).all()
            seen_us = facts.watermark
        rows = [batch.num_rows for batch, _ in both]
        of_router = seen[seen["router"] == router].iloc[: len(both)]
        assert of_router["offset"].tolist() == list(range(len(of_router)))
        assert of_router["events"].tolist() == rows[: len(of_router)]
        assert of_router["watermark"].tolist() == [facts.watermark for _, facts in both[: len(of_router)]]
        assert rows[0] == 0, "there must be ticks before the load"
        assert rows[-1] == 0, "there must be ticks after the load"
    assert generator.hang_up() == (0, "")


def test_a_generator_stopped_before_the_end_says_how_much_it_sent(stack, start, topic):
    events_topic = topic(ROUTERS)
    generator = start("generator", generator_config(events_topic))
    generator.has_said(Ready)
    generator.tell(Begin(time.time_ns() // 1000, 3600))
    generator.has_offered(1)
    generator.tell(Stop())
    events = generator.has_said(LoadDone).events
    assert generator.wait() == (0, "")
    assert len(events_topic.read(WORKLOAD.sources[0])[0]) == events > 0


def test_a_generator_of_an_earlier_driver_that_wakes_ends_and_every_event_counts_once(stack, start, topic):
    """It stood while the one of the next driver began, and has much to make good."""
    events_topic = topic(ROUTERS)
    config = generator_config(events_topic)
    old = start("generator", config)
    old.has_said(Ready)
    old.tell(Begin(time.time_ns() // 1000, None))
    old.has_offered(RATE // 2 + 1)
    os.kill(old.pid, signal.SIGSTOP)

    def frames_of(epoch: int) -> int:
        written = [facts for router in range(ROUTERS) for _, facts in all_frames(events_topic, router)]
        return sum(facts.epoch == epoch for facts in written)

    new = start("generator", config | {"epoch": 2})
    new.has_said(Ready)
    [source] = WORKLOAD.sources
    before = events_topic.count(source, WORKLOAD.stages)
    of_old = frames_of(1)
    assert [[epoch for _, epoch in each] for each in before.epochs] == [[1, 2]] * ROUTERS
    skip = before.events
    assert sum(skip) > 0
    new.tell(SkipEvents(tuple(skip)))
    new.tell(Begin(time.time_ns() // 1000, None))
    new.has_offered(1)

    os.kill(old.pid, signal.SIGCONT)
    status, said = old.wait()
    assert status == 1 and said == (
        f"Deposed: another process offers events to topic {events_topic.name!r} now (epoch 2, ours was 1)\n"
    )
    so_far = new.said[-1].events
    new.has_offered(so_far + 1)
    new.tell(EndLoad())
    offered = sum(skip) + new.has_said(LoadDone).events
    assert new.hang_up() == (0, "")
    assert frames_of(1) > of_old, "it has written something when it woke"
    events, seen = events_topic.read(source)
    assert len(events) == seen["events"].sum() == offered
    for router, mine in events.groupby("router"):
        times = mine["t"].to_numpy()
        alone = WORKLOAD.sources[0].partition(router).take(times)
        assert mine["key"].tolist() == alone.column("key").to_pylist()


def process(events: pd.DataFrame, assignment: Assignment) -> tuple[list[tuple[int, bytes]], list[pd.DataFrame]]:
    """The job: result frames with their slot, in order, and the final state."""
    operator = WORKLOAD.stages[0].operator()
    states = [MemoryState(operator.state_schema) for _ in assignment.owner]
    for unit, state in enumerate(states):
        operator.initial(unit, state)
    out = []
    for (router, offset), frame in events.groupby(["router", "offset"]):
        unit = units_of(frame["key"].to_numpy(), len(states))
        frame = frame.assign(unit=unit, slot=assignment.slot_of[unit])
        for slot, part in frame.groupby("slot"):
            batch = pa.RecordBatch.from_pandas(part[["key", "t", "position", "unit"]], preserve_index=False)
            answer = operator.process(batch, states.__getitem__).to_pandas()
            answer = answer.assign(router=router, offset=offset, version=assignment.version)
            out.append((slot, frames.encode(pa.RecordBatch.from_pandas(answer, RESULTS, preserve_index=False))))
    final = [
        part.to_pandas().assign(unit=unit, slot=assignment.owner[unit])
        for unit, state in enumerate(states)
        for part in state.export(1 << 20)
    ]
    return out, final


def started(slot: int) -> SlotMarker:
    return SlotMarker(slot, SlotStarted("counter", 1, 1))


def test_what_is_generated_processed_and_collected_is_judged_ok(stack, start, topic, tmp_path):
    offered, answered = topic(ROUTERS), topic(SLOTS)
    output = tmp_path / "results.parquet"
    collector = start("collector", common(answered) | {"output": str(output)})
    collector.has_said(Ready)
    _, generator = generate(start, offered)
    assert generator.hang_up() == (0, "")

    events, _ = offered.read(WORKLOAD.sources[0])
    assignment = Assignment.contiguous(8, SLOTS)
    out, final = process(events, assignment)
    producer = KafkaProducer(bootstrap_servers=stack.kafka)
    for slot in range(SLOTS):
        marker = frames.encode(frames.empty(RESULTS), frames.Facts(said=started(slot)))
        producer.send(answered.name, marker, partition=slot)
    producer.flush()
    for slot in range(SLOTS):
        collector.hear(lambda report, slot=slot: report == started(slot))
    for slot, value in out:
        producer.send(answered.name, value, partition=slot)
    producer.close()
    collector.tell(Stop())
    assert collector.has_said(Collected) == Collected(len(events))
    assert collector.wait() == (0, "")

    results = pq.read_table(output).to_pandas()
    found = judge(WORKLOAD, events, results, final, [Ownership([assignment])])
    assert found.ok, found.examples
    assert len(results) == RATE * SECONDS
    assert (results["arrived_us"] > results["t"]).all()
    assert results.groupby("slot")["log_offset"].apply(lambda offsets: offsets.is_monotonic_increasing).all()
    seconds = [report.second for report in collector.said if isinstance(report, SecondDone)]
    assert [s.second for s in seconds] == list(range(seconds[0].second, seconds[-1].second + 1))
    assert any(s.results and s.p50_ms <= s.p99_ms for s in seconds)
    assert all((s.results == 0) == (s.p50_ms is None) for s in seconds)


def test_a_collector_whose_parent_goes_away_still_writes_its_file_and_ends(stack, start, topic, tmp_path):
    output = tmp_path / "results.parquet"
    config = common(topic(SLOTS)) | {"output": str(output)}
    collector = start("collector", config)
    collector.has_said(Ready)
    assert collector.hang_up() == (0, "")
    table = pq.read_table(output)
    assert table.num_rows == 0
    where = ["slot", "log_offset", "arrived_us", "replica", "slot_turn", "attempt", "first"]
    assert table.schema.names == [*RESULTS.names, *where]


def test_of_replicas_first_copies_count_differences_are_said_and_markers_are_known(stack, start, topic, tmp_path):
    topics, output = [topic(SLOTS), topic(SLOTS)], tmp_path / "results.parquet"
    config = common(topics[0]) | {"others": [asdict(topics[1])], "output": str(output)}
    collector = start("collector", config)
    collector.has_said(Ready)
    producer = KafkaProducer(bootstrap_servers=stack.kafka)
    row = dict.fromkeys(RESULTS.names, 0) | {"state": b""}
    for replica, answered in enumerate(topics):
        marker = frames.encode(frames.empty(RESULTS), frames.Facts(said=started(1)))
        producer.send(answered.name, marker, partition=1)
        for number in (10, 20):
            told = SlotMarker(1, TurnTold("map", number, 70, number + replica * (number > 10)))
            producer.send(answered.name, frames.encode(frames.empty(RESULTS), frames.Facts(said=told)), partition=0)
        for number in range(1, 6):
            chain = 99 if replica and number > 3 else number
            batch = pa.RecordBatch.from_pylist([row | {"position": number}], schema=RESULTS)
            facts = frames.Facts(turn=frames.OfTurn(number, 70 + number, chain))
            producer.send(answered.name, frames.encode(batch, facts), partition=1)
        producer.flush()
    producer.close()
    for replica in range(2):
        collector.hear(lambda report, replica=replica: report == replace(started(1), replica=replica))
    collector.tell(Stop())
    assert collector.has_said(Collected) == Collected(10, compared=4)
    assert collector.wait() == (0, "")
    differences = {report.stage: report for report in collector.said if isinstance(report, Diverged)}
    counter, of_map = Difference(1, (0, 1), turn=4, epoch=74, same=3), Difference(1, (0, 1), turn=20, epoch=70, same=10)
    assert differences == {"counter": Diverged("counter", counter), "map": Diverged("map", of_map)}
    results = pq.read_table(output).to_pandas()
    assert results[results["first"]]["position"].tolist() == [1, 2, 3, 4, 5]
    assert sum(report.second.results for report in collector.said if isinstance(report, SecondDone)) == 5


@pytest.mark.parametrize(
    ("process_name", "change", "words"),
    [
        ("generator", {"workload": "keycont"}, "did you mean 'keycount'"),
        ("collector", {"parameters": PARAMETERS | {"keys": 0}}, "keys"),
        ("collector", {"typo": 1}, "typo"),
        ("generator", {"topic": {"name": "no-such-topic"}}, "no-such-topic"),
        ("collector", {"topic": {"partitions": 3}}, "has 2 partitions, expected 3"),
    ],
    ids=["unknown workload", "impossible parameter", "unknown field", "no topic", "another number of partitions"],
)
def test_what_cannot_work_ends_the_process_with_one_line(stack, start, topic, tmp_path, process_name, change, words):
    events_topic = topic(ROUTERS)
    collector = common(events_topic) | {"output": str(tmp_path / "r.parquet")}
    configs = {"generator": generator_config(events_topic), "collector": collector}
    config = configs[process_name]
    config |= change | {"topic": config["topic"] | change.get("topic", {})}
    status, error = start(process_name, config).wait()
    assert status == 1
    assert words in error
    assert len(error.strip().splitlines()) == 1, error


def test_a_topic_may_be_deleted_twice_but_not_made_twice(stack, topic):
    made = topic(1)
    with pytest.raises(ServiceUnavailable, match=made.name):
        made.create()
    made.delete()
    made.delete()
