"""Events and results as lines of JSON, one per record."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_kafka import Broker

from keyshift.model import frames
from keyshift.model.errors import ProtocolViolation, ServiceUnavailable
from keyshift.model.frames import NO_FACTS, Facts
from keyshift.model.frames import encode as frame
from keyshift.traffic import lines
from keyshift.traffic.collector import decoded
from keyshift.traffic.generator import Generator, GeneratorConfig
from keyshift.traffic.messages import Begin
from keyshift.traffic.topics import Topic
from keyshift.workloads.keycount import EVENTS, RESULT_FIELDS

RESULTS = pa.schema([*frames.RESULT_FIELDS, *RESULT_FIELDS])
INT64 = st.integers(-(2**63), 2**63 - 1)


def events(*rows):
    return pa.RecordBatch.from_pylist([dict(zip(("key", "t"), row, strict=True)) for row in rows], schema=EVENTS)


@given(st.lists(st.tuples(INT64, INT64), min_size=1, max_size=30))
def test_what_is_encoded_is_decoded(rows):
    batch = events(*rows)
    values = list(lines.encode(batch))
    assert [json.loads(value) for value in values] == batch.to_pylist()
    assert lines.decode(values, EVENTS) == batch


def result(**columns):
    return json.dumps(dict.fromkeys(RESULTS.names, 1) | columns).encode()


@pytest.mark.parametrize(
    "value",
    [b"{", result(count="many"), result(count=None), result(more=1), json.dumps({"key": 1}).encode(), b"[1]"],
    ids=["cut off", "text", "null", "another column", "columns missing", "no object"],
)
def test_what_is_no_result_is_refused(value):
    with pytest.raises(ProtocolViolation, match="a record"):
        lines.decode([result(), value], RESULTS)


def record(offset, value, at_ms=1):
    return SimpleNamespace(offset=offset, value=value, timestamp=at_ms)


def test_results_of_several_lines_have_the_time_at_which_each_was_there():
    """However many are read at once: a poll has those of a tenth of a second."""
    records = [record(6 + key, result(key=key), at_ms) for key, at_ms in [(1, 5), (2, 5), (3, 6), (4, 90)]]
    found = list(decoded(records, RESULTS, as_lines=True))
    told = [(last.offset, last.timestamp, batch["key"].to_pylist()) for last, batch, _ in found]
    assert told == [(8, 5, [1, 2]), (9, 6, [3]), (10, 90, [4])]
    assert {facts for *_, facts in found} == {NO_FACTS}


def test_a_line_without_an_event_is_no_result():
    """It was there to fill in the state of its key."""
    records = [record(6, result(position=-1), 5), record(7, result(key=3), 5), record(8, result(position=-1), 6)]
    found = list(decoded(records, RESULTS, as_lines=True))
    assert [(last.offset, batch["key"].to_pylist()) for last, batch, _ in found] == [(7, [3]), (8, [])]


def test_frames_come_one_by_one_with_what_they_say():
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(RESULTS.names, 1)], schema=RESULTS)
    records = [record(7, frame(batch)), record(8, frame(batch, Facts(epoch=2)))]
    found = list(decoded(records, RESULTS, as_lines=False))
    told = [(each.offset, rows.num_rows, facts) for each, rows, facts in found]
    assert told == [(7, 1, NO_FACTS), (8, 1, Facts(epoch=2))]


def test_a_generator_of_lines_sends_each_event_when_its_frame_is_due_and_no_ticks():
    broker = Broker()
    of = {"topic": Topic("", "t", 2), "workload": "keycount", "source": "events", "partitions": [0, 1]}
    generator = Generator(GeneratorConfig(**of, parameters={"keys": 50}, rate=100, frame_ms=20, lines=True), broker)
    generator.send(0, 900_000)
    assert broker.values == []
    generator.obey(Begin(1_000_000, 1), 900_000)
    generator.send(0, 1_100_000)
    generator.send(1, 1_100_000)
    assert [partition for partition, _ in broker.values] == [0] * 6 + [1] * 5
    due = [json.loads(value)["t"] for _, value in broker.values]
    assert due == [*range(1_000_000, 1_100_001, 20_000), *range(1_010_000, 1_100_000, 20_000)]
    assert generator.events == 11


def test_every_key_is_filled_in_once_in_turn_over_the_partitions(monkeypatch):
    broker = Broker()
    monkeypatch.setattr(lines, "producer_of", lambda topic: broker)
    lines.fill(Topic("", "t", 2), 5)
    assert [partition for partition, _ in broker.values] == [0, 1, 0, 1, 0]
    assert lines.decode([value for _, value in broker.values], EVENTS).to_pydict() == {"key": [*range(5)], "t": [0] * 5}


def test_what_cannot_be_filled_in_is_told(monkeypatch):
    monkeypatch.setattr(lines, "producer_of", lambda topic: Broker(at_once=False))
    with pytest.raises(ServiceUnavailable, match="2 records were not acknowledged"):
        lines.fill(Topic("", "t", 2), 2)


def test_what_fills_the_state_is_no_event_of_the_load(monkeypatch):
    some = [record(offset, value) for offset, value in enumerate(lines.encode(events((5, 0), (5, 10), (6, 20))))]
    monkeypatch.setattr(Topic, "records", lambda self: iter([(1, some[:2]), (1, some[2:])]))
    offered, frames = lines.read(Topic("", "t", 2), EVENTS)
    assert offered.to_dict("list") == {
        "router": [1, 1], "offset": [1, 2], "position": [0, 0], "key": [5, 6], "t": [10, 20]
    }  # fmt: skip
    assert frames.to_dict("list") == {"router": [1, 1], "offset": [1, 2], "watermark": [0, 0], "events": [1, 1]}
    assert offered["router"].dtype == np.int32


def test_a_topic_without_events_is_empty(monkeypatch):
    monkeypatch.setattr(Topic, "records", lambda self: iter([]))
    offered, frames = lines.read(Topic("", "t", 2), EVENTS)
    assert offered.empty and frames.empty and list(offered) == ["router", "offset", "position", "key", "t"]
