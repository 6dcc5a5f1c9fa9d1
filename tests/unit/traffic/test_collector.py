from itertools import accumulate
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import TopicPartition

from keyshift.model import frames
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.records import Second
from keyshift.traffic import collector
from keyshift.traffic.collector import CollectorConfig, ResultsFile, first_copies, first_results
from keyshift.traffic.messages import BUCKETS_MS, Arrived, Collected, SecondDone, Stop
from keyshift.traffic.topics import Topic
from keyshift.workloads import workloads
from keyshift.workloads.keycount import RESULT_FIELDS


def told(number: int, chain: int = 7, piece: int = 0) -> frames.OfTurn:
    """Of a turn that closes an epoch of the same number."""
    return frames.OfTurn(number, number, chain, piece)


def batch(*rows: tuple[int, int], key: int = 0) -> pa.RecordBatch:
    """Results with these (t, position)."""
    schema = pa.schema([*frames.RESULT_FIELDS, *RESULT_FIELDS])
    plain = dict.fromkeys(schema.names, 0)
    plain["key"] = key
    return pa.RecordBatch.from_pylist([plain | {"t": t, "position": position} for t, position in rows], schema=schema)


@pytest.mark.parametrize("workload", [name for name, _ in workloads.items()])
def test_no_workload_has_a_result_of_a_name_that_the_collector_gives(workload, tmp_path):
    *_, last = workloads.get(workload)().stages
    results = ResultsFile(last.result_fields, tmp_path / "results.parquet")
    results.close()
    names = pq.read_table(tmp_path / "results.parquet").schema.names
    assert len(names) == len({*names})


def test_results_of_timers_are_kept_but_not_timed(tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    results.add(batch((1000, 0), (500, -1), (2000, 1)), slot=1, log_offset=7, arrived_us=5000)
    results.add(batch((400, -1)), slot=0, log_offset=3, arrived_us=6000)
    latencies_ms, versions, slots, _ = results.roll()
    assert latencies_ms.tolist() == [4.0, 3.0] and versions.tolist() == [0, 0] and slots.tolist() == [1, 1]
    assert [column.tolist() for column in results.roll()] == [[], [], [], []]
    results.close()
    table = pq.read_table(tmp_path / "results.parquet").to_pandas()
    assert (table["position"].tolist(), table["slot"].tolist()) == ([0, -1, 1, -1], [1, 1, 1, 0])
    assert results.count == 4


def test_where_a_unit_is_in_another_slot_of_each_replica_its_first_results_count_all_the_same(tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet", first_results(2, 8, 2))
    results.add(batch((0, 1), key=3), slot=0, log_offset=0, arrived_us=3000, replica=0, turn=told(1))
    results.add(batch((0, 1), (0, 2), key=3), slot=1, log_offset=0, arrived_us=4000, replica=1, turn=told(1))
    results.add(batch((0, 2), key=3), slot=0, log_offset=1, arrived_us=5000, replica=0, turn=told(1, piece=1))
    results.add(batch((0, 1), key=4), slot=0, log_offset=2, arrived_us=6000, replica=0, turn=told(2))
    latencies_ms, _, slots, _ = results.roll()
    assert list(zip(slots.tolist(), latencies_ms.tolist(), strict=True)) == [(0, 3.0), (1, 4.0), (0, 6.0)]
    results.close()
    table = pq.read_table(tmp_path / "results.parquet").to_pandas()
    rows = list(zip(table["replica"], table["position"], table["first"], strict=True))
    assert rows == [(0, 1, True), (1, 1, False), (1, 2, True), (0, 2, False), (0, 1, True)]


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(collector, "say", lines.append)
    return lines


def test_what_arrived_in_a_second_is_told_by_slot_with_how_long_it_took(said, tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    results.add(batch((0, 0), (1000, 1)), slot=2, log_offset=0, arrived_us=5000)
    results.add(batch((0, 0)), slot=0, log_offset=0, arrived_us=60_000_000)
    collector.report(17, *results.roll())
    (report,) = said
    assert report.second[:2] == (17, 3) and report.by_version == {0: 3}
    none = (0,) * len(BUCKETS_MS)
    assert report.by_slot == {0: (60_000.0, (*none, 1)), 2: (9.0, (2, *none))}, "5 ms are within 5 ms"
    said.clear()
    collector.report(18, *results.roll())
    assert said == [SecondDone(Second(18, 0))]


def test_what_had_arrived_before_the_collector_began_is_in_no_second_and_counts(said, tmp_path):
    """After a resume all results of the job are read once more."""
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    results.add(batch((0, 0), (0, 1)), slot=0, log_offset=0, arrived_us=8_000_000)
    results.add(batch((9_998_000, 2)), slot=0, log_offset=1, arrived_us=10_000_000)
    collector.report(11, *results.roll(), begun_us=10_000_000)
    (report,) = said
    assert report.second == Second(11, 1, 2.0, 2.0), "also what was read late"
    assert report.by_version == {0: 3} and report.by_slot[0].sum_ms == 16_002.0


def test_what_was_read_early_is_told_with_its_own_second(tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    for offset, arrived_us in enumerate((999_999, 1_000_000, 500_000)):
        results.add(batch((0, offset)), slot=offset, log_offset=offset, arrived_us=arrived_us)
    assert [results.roll(end_us)[2].tolist() for end_us in (1_000_000, 2_000_000)] == [[0, 2], [1]]
    results.close()
    assert pq.read_table(tmp_path / "results.parquet")["arrived_us"].to_pylist() == [999_999, 500_000, 1_000_000]


def test_what_was_written_is_not_kept_and_all_of_it_is_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "PART_ROWS", 3)
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    for number in range(10):
        results.add(batch((1000, number), (2000, number)), slot=1, log_offset=number, arrived_us=5000)
        results.roll()
    results.add(batch((3000, 10)), slot=0, log_offset=3, arrived_us=6000)
    results.close()
    file = pq.ParquetFile(tmp_path / "results.parquet")
    assert file.num_row_groups == 6
    table = file.read().to_pandas()
    assert table["position"].tolist() == [each // 2 for each in range(20)] + [10]
    assert table["log_offset"].tolist()[-3:] == [9, 9, 3] and results.count == 21


def test_seconds_with_few_results_are_written_before_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "PART_TABLES", 10)
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    for second in range(500):
        if second % 4 == 0:
            results.add(batch((second, second)), slot=0, log_offset=second, arrived_us=second)
        results.roll()
    results.close()
    file = pq.ParquetFile(tmp_path / "results.parquet")
    assert file.read()["position"].to_pylist() == list(range(0, 500, 4))
    assert file.num_row_groups == 13, "quiet seconds between them count for nothing"


def test_of_the_results_of_replicas_the_copy_counts_that_kafka_has_had_first(tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet", first_copies())
    results.add(batch((0, 2)), slot=0, log_offset=0, arrived_us=9000, replica=0, turn=told(2))
    results.add(batch((0, 2)), slot=0, log_offset=5, arrived_us=5000, replica=1, turn=told(2))
    results.add(batch((0, 1)), slot=1, log_offset=0, arrived_us=6000, replica=0, turn=told(1))
    latencies_ms, _, slots, _ = results.roll()
    assert sorted(zip(slots.tolist(), latencies_ms.tolist(), strict=True)) == [(0, 5.0), (1, 6.0)]
    results.add(batch((0, 1)), slot=1, log_offset=0, arrived_us=4000, replica=1, turn=told(1))
    assert [column.tolist() for column in results.roll()] == [[], [], [], []], "it came when that second was told"
    results.close()
    table = pq.read_table(tmp_path / "results.parquet").to_pandas()
    rows = list(zip(table["slot"], table["replica"], table["slot_turn"], table["first"], strict=True))
    assert rows == [(0, 1, 2, True), (1, 0, 1, True), (0, 0, 2, False), (1, 1, 1, False)]
    assert results.count == 4


@pytest.mark.parametrize("counts", [first_copies(), first_results(1, 8, 2)], ids=["together", "apart"])
def test_first_copies_are_found_in_the_order_of_each_log_though_kafkas_clock_steps_back(counts, tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet", counts)
    for replica in (0, 1):
        for number, arrived_us in enumerate((500_000, 1_200_000, 700_000)):
            given = batch((0, number)), 0, number, arrived_us, replica, told(number)
            results.add(*given)
    assert [len(results.roll(end_us)[0]) for end_us in (1_000_000, 2_000_000)] == [1, 2]
    results.close()
    table = pq.read_table(tmp_path / "results.parquet").to_pandas()
    assert table[table["first"]]["slot_turn"].tolist() == [0, 1, 2]
    assert table["arrived_us"].tolist() == [500_000] * 2 + [1_200_000] * 4


def test_one_job_may_do_the_same_turns_again(tmp_path):
    results = ResultsFile(RESULT_FIELDS, tmp_path / "results.parquet")
    for offset in range(2):  # from a snapshot
        results.add(batch((0, 0)), slot=0, log_offset=offset, arrived_us=5000, turn=told(3))
    assert len(results.roll()[0]) == 2
    results.close()
    assert pq.read_table(tmp_path / "results.parquet")["first"].to_pylist() == [True, True]


class Reader:
    """Stands for Kafka's consumer of logs that were written long ago. Each time it gives so many records of one of
    them, and two seconds pass. It knows how long a log is when it has given some of it.
    """

    def __init__(self, logs, polls, said):
        self.logs, self.polls, self.said = logs, polls, said
        self.now_us, self.given = 100_000_000, dict.fromkeys(logs, 0)
        self.seen = []  # at each poll, how much was said before

    def assign(self, parts):
        assert parts == list(self.logs)

    def seek_to_beginning(self, *parts):
        assert parts == tuple(self.logs)

    def end_offsets(self, parts, timeout_ms):
        return {part: len(self.logs[part]) for part in parts}

    def position(self, part):
        return self.given[part]

    def highwater(self, part):
        return None if self.logs[part] and not self.given[part] else len(self.logs[part])

    def poll(self, timeout_ms):
        self.seen.append(len(self.said))
        self.now_us += 2_000_000
        part, count = self.polls.pop(0)
        first, self.given[part] = self.given[part], self.given[part] + count
        return {part: self.logs[part][first : first + count]} if count else {}


def record(offset, value, at_ms):
    return SimpleNamespace(partition=0, offset=offset, value=value, timestamp=at_ms)


@pytest.fixture
def collect(said, monkeypatch, tmp_path):
    """Runs a collector of the logs of some replicas, and gives what it has read with; ``stops``: when it is told to."""
    monkeypatch.setattr(Topic, "require_partitions", lambda topic: None)

    def run(topics, logs, polls, stops):
        reader, (topic, *others) = Reader(logs, polls, said), topics
        monkeypatch.setattr(collector, "KafkaConsumer", lambda **_: reader)
        monkeypatch.setattr(collector, "now_us", lambda: reader.now_us)
        monkeypatch.setattr(collector, "time", SimpleNamespace(monotonic=lambda: reader.now_us / 1e6))
        given = {"workload": "keycount", "parameters": {}, "output": tmp_path / "r.parquet"}
        commands = SimpleNamespace(next=lambda timeout_s: Stop() if stops(reader) else None)
        collector.collect(CollectorConfig(topic=topic, others=others, **given), commands)
        return reader

    return run


def test_a_collector_that_is_told_to_stop_reads_all_that_is_there_and_waits_for_nothing_more(said, collect):
    part, some = TopicPartition("r", 0), record(0, frames.encode(batch((0, 0), (0, -1), (0, 1))), 1000)
    reader = collect([Topic("k:1", "r")], {part: [some]}, [(part, 0), (part, 0), (part, 1)], lambda reader: True)
    assert said[-1] == Collected(3) and not reader.polls
    assert [each for each in said if isinstance(each, Arrived)] == [Arrived({0: 2})], "without those of timers"


def test_a_collector_that_cannot_read_what_is_there_says_so_and_does_not_pass_for_one_that_has(said, collect):
    part, some = TopicPartition("r", 0), record(0, frames.encode(batch((0, 0))), 1000)
    with pytest.raises(ServiceUnavailable, match="Kafka at k:1: not all results could be read within 10 s"):
        collect([Topic("k:1", "r")], {part: [some]}, [(part, 0)] * 10, lambda reader: True)
    assert not any(isinstance(each, Collected) for each in said)


def test_what_one_replica_has_not_given_counts_however_unevenly_logs_are_read_after_a_resume(said, collect, tmp_path):
    """Replica 0 has died behind turn 2, and begun anew behind turn 4. Nothing has come of slot 1."""

    def log(late_ms, *turns):
        values = [frames.encode(batch((0, 0)), frames.Facts(turn=told(turn))) for turn in turns]
        return [
            record(n, value, 1000 * turn + late_ms) for n, (turn, value) in enumerate(zip(turns, values, strict=True))
        ]

    topics = [Topic("k:1", name, partitions=2) for name in ("zero", "one")]
    logs = {part: [] for topic in topics for part in topic.parts}
    zero, one = TopicPartition("zero", 0), TopicPartition("one", 0)
    logs |= {zero: log(0, 1, 2, 5, 6), one: log(100, 1, 2, 3, 4, 5, 6)}
    reader = collect(topics, logs, [(zero, 4), (one, 3), (one, 3)], lambda reader: not reader.polls)
    table = pq.read_table(tmp_path / "r.parquet").to_pandas()
    assert len(table) == 10 and sorted(table[table["first"]]["slot_turn"]) == [1, 2, 3, 4, 5, 6]
    counted = [*accumulate(each.by_version.get(0, 0) if isinstance(each, SecondDone) else 0 for each in said)]
    assert [counted[before - 1] for before in reader.seen] == [0, 0, 2], "as far as both have been read"
    assert counted[-1] == 6
