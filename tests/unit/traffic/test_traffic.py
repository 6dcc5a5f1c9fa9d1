"""What is counted of what comes out of a system, and how slots are waited for; with processes: tests/integration."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from small_room import room_of

from keyshift.model.errors import InputLost, NotThere, QueryDied, ServiceUnavailable
from keyshift.model.frames import OfTurn
from keyshift.model.markers import SlotMarker, SlotStarted, StateWritten
from keyshift.model.records import Second
from keyshift.traffic import traffic as module
from keyshift.traffic.collector import ResultsFile, first_copies
from keyshift.traffic.copies import Difference
from keyshift.traffic.load import SourceLoad
from keyshift.traffic.messages import Arrived, Diverged, Latencies, Ready, SecondDone
from keyshift.traffic.process import JsonProcess
from keyshift.traffic.topics import Topic
from keyshift.traffic.traffic import Traffic
from keyshift.workloads.keycount import RESULT_FIELDS, KeyCount


class Collector:
    """Stands for the process: ``say`` is what it says; ``dead``: why it has died."""

    def __init__(self, name, config, reports, heard):
        self.say, self.dead, self.killed = heard, None, False

    def check(self):
        if self.dead:
            raise self.dead

    def kill(self):
        self.killed = True


@pytest.fixture
def topics(monkeypatch):
    """What was made of topics, with how long Kafka keeps what is in them, and what was deleted."""
    did = SimpleNamespace(made=[], deleted=[])
    monkeypatch.setattr(Topic, "create", lambda topic, ms: did.made.append((topic.name, ms)))
    monkeypatch.setattr(Topic, "delete", lambda topic: did.deleted.append(topic.name))
    return did


@pytest.fixture
def seconds():
    """What was passed on of each second."""
    return []


OF_REPLICAS = pytest.mark.parametrize("traffic", [[Topic("k:1", "others")]], indirect=True)


@pytest.fixture
def traffic(request, monkeypatch, topics, seconds):
    monkeypatch.setattr(module, "SAY_S", 0.3)
    events, results = [Topic("k:1", "events", 2)], Topic("k:1", "results", 3)
    others = getattr(request, "param", ())
    return Traffic(KeyCount(), events, results, Path("nowhere"), seconds.append, others=others)


@pytest.fixture
def collector(monkeypatch, traffic):
    made = []
    monkeypatch.setattr(module, "JsonProcess", lambda *told: made.append(Collector(*told)) or made[-1])
    traffic.open()
    return made[0]


def nothing():
    pass


def second(number, results):
    return SecondDone(Second(number, results, 1.0, 2.0), {1: results}, {1: Latencies(10.0 * number, (results, 0))})


def test_processes_end_without_the_topics_which_are_kept_a_day_or_for_ever(traffic, collector, topics):
    traffic.lasts_s = 3600.0
    traffic.open()
    traffic.for_ever = True
    traffic.open()
    assert [ms for _, ms in topics.made] == [86_400_000] * 2 + [90_000_000] * 2 + [-1] * 2
    traffic.kill()
    assert collector.killed and topics.deleted == []
    traffic.close()
    assert sorted(topics.deleted) == ["events", "results"]


def test_results_count_before_their_second_is_over_and_seconds_are_passed_on(traffic, collector, seconds):
    for report in (Ready(), Arrived({1: 8}), Arrived({1: 4, 2: 3}), second(1, 10)):
        collector.say(report)
    assert (traffic.received, traffic.early) == (15, 5)
    collector.say(second(2, 5))
    assert (traffic.received, traffic.early) == (15, 0)
    assert seconds == [Second(1, 10, 1.0, 2.0), Second(2, 5, 1.0, 2.0)]


@OF_REPLICAS
def test_of_replicas_results_count_with_their_second(traffic, collector):
    collector.say(second(1, 10))
    assert (traffic.received, traffic.early) == (10, 0)


def test_of_a_second_little_is_kept_and_latencies_are_added_up(traffic, collector):
    for number in range(1, 101):
        collector.say(second(number, 2))
    assert traffic.seconds[-1] == Second(100, 2, 1.0, 2.0)
    assert traffic.latencies == {1: Latencies(10.0 * 5050, (200, 0))}


def test_what_came_before_a_snapshot_counts_and_what_came_behind_it_comes_once_more(traffic, collector):
    collector.say(Arrived({1: 10, 2: 5}))
    traffic.revoke({2, 3})
    assert traffic.received == 10
    collector.say(Arrived({3: 3}))
    assert traffic.received == 10, "of the attempt that died"
    collector.say(Arrived({4: 4}))
    assert traffic.received == 14


def says(collector, slot, marker, replica=0):
    collector.say(SlotMarker(slot, marker, replica))


def test_what_slots_have_said_is_known_to_whoever_asks_later(traffic, collector):
    for slot, savepoint in ((0, "one"), (1, "one"), (1, "one"), (2, "two")):
        says(collector, slot, StateWritten("counter", savepoint))
    assert traffic.slots_that_said(StateWritten("counter", "one")) == {0, 1}
    assert (
        traffic.slots_that_said(StateWritten("other", "one"))
        == traffic.slots_that_said(SlotStarted("counter", 0, 1))
        == set()
    )


def test_what_slots_say_for_days_takes_no_more_room_and_the_newest_is_known(traffic, collector):
    for number in range(1000):
        if number == 20:
            room = room_of(traffic)
        for slot in (0, 1):
            says(collector, slot, StateWritten("counter", f"s{number}"))
    says(collector, 0, SlotStarted("counter", 3, 1))
    assert traffic.slots_that_said(StateWritten("counter", "s999")) == {0, 1}
    assert traffic.slots_that_said(StateWritten("counter", "s1")) == set()
    assert traffic.slots_that_said(SlotStarted("counter", 3, 1)) == {0}
    assert room_of(traffic) < room + 10_000, "bytes: each marker takes about a hundred"


def test_input_that_kafka_has_removed_or_lost_is_missed_before_other_events_come_in_its_place(traffic, monkeypatch):
    monkeypatch.setattr(Topic, "extents", lambda topic: {0: (0, 9), 1: (500, 600)})
    traffic.require_input({0: 3, 1: 500})
    with pytest.raises(NotThere, match=r"begins at offset 500 of partition 1 by now, and the job has to begin at 499"):
        traffic.require_input({0: 3, 1: 499})
    with pytest.raises(NotThere, match="has to begin at 0: Kafka has removed what is before"):
        traffic.require_input({})
    monkeypatch.setattr(Topic, "extents", lambda topic: {0: (0, 9500), 1: (0, 10)})
    traffic.require_input({0: 9500, 1: 10})
    with pytest.raises(InputLost, match=r"ends at offset 9500 of partition 0, and .* read up to 10000: Kafka has"):
        traffic.require_input({0: 10000, 1: 10})


def test_a_job_goes_on_where_all_of_its_events_and_results_are_still_there(traffic, collector, topics, monkeypatch):
    topics.made.clear()
    begins = {"events": {0: 0, 1: 0}, "results": {0: 0, 1: 0, 2: 0}}
    monkeypatch.setattr(Topic, "extents", lambda topic: {n: (begin, 9) for n, begin in begins[topic.name].items()})
    traffic.open(again=True)
    for topic in ("events", "results"):
        begins[topic][1] = 7
        with pytest.raises(NotThere, match=f"topic '{topic}' begins at offset 7 of partition 1 by now: Kafka has"):
            traffic.open(again=True)
        begins[topic][1] = 0
    assert topics.made == []


def test_a_run_whose_events_kafka_has_removed_is_not_judged_by_those_that_are_left(traffic, monkeypatch):
    monkeypatch.setattr(Topic, "extents", lambda topic: {0: (0, 9), 1: (7, 9)})
    for read in (traffic.offered, lambda: next(traffic.portions.events())):
        with pytest.raises(NotThere, match=r"topic 'events' begins at offset 7 of partition 1 by now: Kafka has"):
            read()


def test_what_slots_of_one_replica_say_is_not_said_by_those_of_another(traffic, collector):
    says(collector, 0, SlotStarted("counter", 0, 1), replica=1)
    assert traffic.slots_that_said(SlotStarted("counter", 0, 1)) == set()
    assert traffic.slots_that_said(SlotStarted("counter", 0, 1), replica=1) == {0}
    traffic.await_slots({0}, SlotStarted("counter", 0, 1), nothing, replica=1)


def test_it_is_known_that_replicas_differ(traffic, collector):
    found = Diverged("counter", Difference(1, (0, 1), turn=70, epoch=80, same=66))
    collector.say(found)
    assert traffic.differences == [found]
    assert str(found) == (
        "replicas 0 and 1 differ in slot 1 of stage counter at epoch 80 (turn 70; the same until turn 66)"
    )


def test_results_of_replicas_are_read_as_one_log_of_first_copies_or_as_that_of_one(topics, tmp_path):
    made = ResultsFile(RESULT_FIELDS, tmp_path / "r", first_copies())
    schema, turns = made.schema, ((1, 0), (0, 0), (0, 1), (1, 1), (0, 2))
    for number, (replica, turn) in enumerate(turns):
        row = dict.fromkeys(schema.names, 0) | {"position": turn}
        batch = pa.RecordBatch.from_pylist([row], schema=schema)
        made.add(batch, 0, 100 * replica + turn, 1000 * number, replica, OfTurn(turn, turn, 5))
    made.close()
    two = Traffic(KeyCount(), [Topic("k:1", "e")], Topic("k:1", "r0"), tmp_path / "r", others=[Topic("k:1", "r1")])
    found = two.results()
    rows = list(zip(found["replica"], found["position"], found["log_offset"], strict=True))
    assert rows == [(1, 0, 0), (0, 1, 1), (0, 2, 2)]
    assert two.results(1)["log_offset"].tolist() == [100, 101]


def test_results_of_a_job_are_read_some_at_a_time_too_and_files_beside_them_go_with_it(topics, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_ROWS", 2)
    given = KeyCount(), [Topic("k:1", "e")], Topic("k:1", "r"), tmp_path / "r.parquet"
    one = Traffic(*given)
    made = ResultsFile(RESULT_FIELDS, tmp_path / "r.parquet")
    rows = [dict.fromkeys(made.schema.names, 0) | {"position": number} for number in range(5)]
    made.add(pa.RecordBatch.from_pylist(rows, schema=made.schema), 0, 7, 1000)
    made.close()
    found = [*one.portions.results()]
    assert [len(each) for each in found] == [0, 2, 2, 1]
    assert pa.concat_tables(found).to_pandas().equals(one.results())
    (one.portions.folder / "events").mkdir(parents=True)
    one.kill()
    assert not [*tmp_path.iterdir()]
    one.kill()
    lines, several = Traffic(*given, as_lines=True), Traffic(*given, others=[Topic("k:1", "r1")])
    assert lines.portions is several.portions is None


def test_all_topics_are_waited_for_at_once_until_they_are_silent_those_of_replicas_too(monkeypatch, tmp_path):
    together = threading.Barrier(3)
    monkeypatch.setattr(Topic, "await_silence", lambda topic, frame_ms: together.wait(60))
    two = Traffic(KeyCount(), [Topic("k:1", "e")], Topic("k:1", "r0"), tmp_path / "r", others=[Topic("k:1", "r1")])
    two.await_silence(20.0)


def test_slots_that_say_nothing_or_something_else_are_named(traffic, collector):
    says(collector, 0, SlotStarted("counter", 0, 1))
    says(collector, 1, StateWritten("counter", "other"))
    says(collector, 2, StateWritten("counter", "one"))
    with pytest.raises(ServiceUnavailable, match=r"slots \[0, 1\] did not say 'sealed' within 0.3 s"):
        traffic.await_slots(range(3), StateWritten("counter", "one"), nothing)


def test_while_results_come_slots_may_take_longer(traffic, collector):
    calls = []

    def check():
        calls.append(1)
        collector.say(Arrived({1: 1}))
        if len(calls) == 4:
            says(collector, 0, StateWritten("counter", "one"))

    traffic.await_slots({0}, StateWritten("counter", "one"), check)
    assert len(calls) == 4


@OF_REPLICAS
def test_results_of_other_replicas_are_no_reason_to_wait_for_one_any_longer(traffic, collector):
    calls = []

    def check():
        calls.append(1)
        assert len(calls) < 200, "it would wait for ever"
        collector.say(second(len(calls), 1))

    with pytest.raises(ServiceUnavailable, match=r"slots \[0\] of replica 1 did not say 'ready' within 0.3 s"):
        traffic.await_slots({0}, SlotStarted("counter", 0, 1), check, replica=1)


def test_nobody_waits_for_generators_whose_job_is_not_wanted_any_more(traffic, monkeypatch):
    def given_up():
        raise QueryDied("given up")

    monkeypatch.setattr(JsonProcess, "__init__", lambda *_: None)
    feed = traffic.feed([SourceLoad(10.0)], 20.0)
    traffic.require_wanted = given_up
    for wait in (feed.await_ready, feed.await_skipped):
        with pytest.raises(QueryDied, match="given up"):
            wait()


def test_whoever_waits_for_slots_sees_that_the_system_or_a_process_has_died_or_nobody_wants_them(traffic, collector):
    def died():
        raise QueryDied("gone")

    with pytest.raises(QueryDied):
        traffic.await_slots({0}, SlotStarted("counter", 0, 1), died)
    collector.dead = ServiceUnavailable("the collector process died")
    with pytest.raises(ServiceUnavailable, match="collector"):
        traffic.await_slots({0}, SlotStarted("counter", 0, 1), nothing)
    collector.dead, traffic.require_wanted = None, died
    with pytest.raises(QueryDied):
        traffic.await_slots({0}, SlotStarted("counter", 0, 1), nothing)
