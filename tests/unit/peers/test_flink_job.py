"""A Flink job as a system under test, with a client that only notes what it is asked; the verdict on made-up runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from keyshift.experiment.scenario import ScaleTo
from keyshift.lab.judge.final_state import judged
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.model.records import Instance, Sample, Second
from keyshift.peers import counting, flink_job
from keyshift.peers.counting import CountedByResults, CountingJob, restarted
from keyshift.peers.flink_client import Rescaled
from keyshift.peers.flink_job import (
    MOST_STATE,
    QUERIES,
    RESCALE,
    RESTART,
    AdaptiveFlinkQuery,
    FlinkQuery,
    flink_spec,
    query,
    tables,
    with_jvm,
)
from keyshift.results.from_records import metrics_table, migration_table
from keyshift.traffic.topics import Topic

SMALL = {"keys": 20, "state_bytes": 64, "key_groups": 8, "slots": 2, "to_slots": 4, "skew": 0.0}


# What is run


def test_the_tables_name_topics_and_broker_and_the_query_its_payload_and_which_start_it_is_of():
    source, sink = tables("127.0.0.1:9092", "in-1", "out-1")
    assert "'topic' = 'in-1'" in source and "'scan.startup.mode' = 'earliest-offset'" in source
    assert "'topic' = 'out-1'" in sink and "'properties.linger.ms' = '0'" in sink
    assert all("'properties.bootstrap.servers' = '127.0.0.1:9092'" in each for each in (source, sink))
    text = query(4096, 3)
    assert text.count("4096") == 2 and "CAST(3 AS BIGINT)" in text
    assert "PARTITION BY `key`" in text and "UNBOUNDED PRECEDING" in text


def test_a_run_has_the_parameters_of_a_restart_under_a_name_of_its_own():
    spec = flink_spec(RESTART, SMALL | {"seed": 3})
    assert spec.parameters()["strategy"] == RESTART and spec.point().restarts
    assert isinstance(spec.workload, CountedByResults)
    again = spec.repeated(1)
    assert isinstance(again.workload, CountedByResults) and again.workload.seed == 4
    assert again.parameters() == spec.parameters() | {"seed": 4}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"workload": "micro"}, "workload = 'micro'"),
        ({"backend": "rocksdb"}, "backend = 'rocksdb'"),
        ({"trigger": "shuffle", "affected": 4}, "trigger = 'shuffle'"),
        ({"then": "2"}, "then"),
        ({"fault": "kill:slot@12"}, "fault = 'kill:slot@12'"),
        ({"snapshot_s": 2}, "snapshot_s = 2"),
        ({"snapshot_s": 2, "verify": "snapshots"}, "verify = 'snapshots'"),
        ({"work_us": 100}, "work_us = 100"),
        ({"rate": "auto"}, "rate = auto: .* give a number"),
        ({"frame_ms": "auto"}, "frame_ms = auto: .* give a number"),
        ({"keys": MOST_STATE // 1024 + 1, "state_bytes": 1024}, "of state_bytes = 1024 are 128 MiB"),
    ],
)
def test_what_flinks_job_does_not_do_is_refused(given, named):
    with pytest.raises(BadInput, match=named):
        flink_spec(RESTART, SMALL | given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"snapshot_s": 0}, "snapshot_s = 0: flink_rescale goes on from a checkpoint; give 0.01 to 60 .* as 2"),
        ({"snapshot_s": 0.0004}, "snapshot_s = 0.0004: "),
        ({"snapshot_s": 120}, "snapshot_s = 120: "),
        ({"to_slots": 2}, "to_slots = 2: flink_rescale needs another number than it has before"),
    ],
)
def test_a_rescale_that_cannot_be_is_refused(given, named):
    with pytest.raises(BadInput, match=named):
        flink_spec(RESCALE, SMALL | given)


# What it does


class Client:
    def __init__(self):
        self.asked, self.dead, self.savepoints = [], False, 0

    def open_session(self):
        self.asked.append("session")

    def execute(self, statement, **settings):
        self.asked.append((statement.split()[0], settings))
        return f"job-{len(self.asked)}" if statement.startswith("INSERT") else ""

    def require_alive(self, job):
        if self.dead:
            raise ServiceUnavailable("Flink's job is FAILED: out of memory")

    def await_running(self, job, within_s):
        self.asked.append(("runs", job))

    def stop(self, job):
        self.asked.append(("stop", job))
        self.savepoints += 1
        return "file:/savepoints/1", 1000.0

    def rescale(self, job, slots, within_s):
        self.asked.append(("rescale", job, slots))
        return Rescaled(1000.5, 1000.0, 7, 8 * 300)

    def size(self, savepoint):
        return 8 * 500

    def cancel(self, job):
        self.asked.append(("cancel", job))

    def remove_savepoints(self):
        self.savepoints = 0


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def started(monkeypatch, client):
    filled = []
    monkeypatch.setattr(counting, "LOOK_S", 0.0)
    monkeypatch.setattr(flink_job, "STILL_S", 0.0)
    monkeypatch.setattr(counting.lines, "fill", lambda *told: filled.append(told))
    monkeypatch.setattr(Topic, "length", lambda topic: 20 if filled else 0)
    events, results = Topic("k", "in", 2), Topic("k", "out")

    def start(name):
        spec = flink_spec(name, SMALL | {"slots": 1, "stage_slots": "counter:2"})
        made = CountingJob(spec, QUERIES[name](spec.workload, client, events, results), events, results)
        filled.clear()
        made.start()
        assert filled == [(events, 20)]
        return made

    return start


@pytest.fixture
def job(started):
    return started(RESTART)


def test_a_job_that_takes_no_more_keys_has_not_started(started, monkeypatch):
    monkeypatch.setattr(counting, "FILL_S", 0.05)
    monkeypatch.setattr(Topic, "length", lambda topic: 7)
    with pytest.raises(ServiceUnavailable, match=r"Flink's job has taken 7 of 20 keys, and no more in 0\.05 s"):
        started(RESTART)


def settings_of(client):
    return [each[1] for each in client.asked if each[0] == "INSERT"]


def test_it_starts_with_its_slots_and_restarts_from_a_savepoint_with_others(job, client):
    [first] = settings_of(client)
    assert first["parallelism.default"] == "2" and first["pipeline.max-parallelism"] == "8"
    assert "execution.state-recovery.path" not in first
    assert job.owners == {"counter": {0, 1}} and not job.busy
    job.check()
    assert len(settings_of(client)) == 1
    job.request(ScaleTo(4))
    assert job.busy
    job.check()
    _, second = settings_of(client)
    assert second["parallelism.default"] == "4" and second["execution.state-recovery.path"] == "file:/savepoints/1"
    assert job.owners == {"counter": {0, 1, 2, 3}} and not job.busy
    stopped, started = (n for n, each in enumerate(client.asked) if each[0] in ("stop", "runs") and n > 4)
    assert stopped < started


def test_a_running_job_is_rescaled_without_a_stop(started, client):
    job = started(RESCALE)
    job.request(ScaleTo(4))
    job.check()
    assert [each for each in client.asked if each[0] in ("rescale", "stop")] == [("rescale", "job-4", 4)]
    assert len(settings_of(client)) == 1 and job.owners == {"counter": {0, 1, 2, 3}} and not job.busy
    job.stop()
    final = job.final_state()
    [stage] = final.stages
    [record] = stage.records
    assert set(migration_table([[record]], 0)["bytes"].to_pylist()) == {300}, "an equal share of the checkpoint"
    assert final.repeats == [record.published_us] and final.notes == [
        "Flink went on with 4 tasks from checkpoint 7, which began 0.50 s before the tasks had ended",
        AdaptiveFlinkQuery.told,
    ]


def test_a_request_may_be_taken_back(job, client):
    job.request(ScaleTo(4))
    job.cancel()
    job.check()
    assert len(settings_of(client)) == 1


def test_a_job_that_dies_ends_the_run(job, client):
    client.dead = True
    with pytest.raises(ServiceUnavailable, match="out of memory"):
        job.check()
    with pytest.raises(ServiceUnavailable, match="not started anew"):
        job.recover()


def test_it_is_stopped_behind_the_last_result_however_many_came_twice(started, client, monkeypatch):
    """More than there are events: some of the first came once more, and those of the last are still to come."""
    job, results, at_stop = started(RESCALE), iter([*range(15, 30), *[30] * 10]), []
    monkeypatch.setattr(Topic, "length", lambda topic: 20 if topic.name == "in" else next(results))
    stop = client.stop
    monkeypatch.setattr(client, "stop", lambda job: at_stop.append(next(results)) or stop(job))
    job.stop()
    assert at_stop == [30]


def test_a_job_that_was_not_stopped_is_cancelled_in_the_end(job, client):
    job.close()
    assert client.asked[-1][0] == "cancel"
    job.stop()
    asked = len(client.asked)
    job.close()
    assert len(client.asked) == asked


def test_when_a_run_begins_nothing_is_left_of_the_savepoints_of_the_one_before(started, client):
    for _ in range(2):
        assert client.savepoints == 0
        job = started(RESTART)
        job.request(ScaleTo(4))
        job.check()
        job.stop()
        assert client.savepoints == 2
        job.close()


# What comes of it


def test_a_restart_is_a_step_of_all_units():
    before, after = Assignment.contiguous(8, 2), Assignment.contiguous(8, 4, 2)
    record = restarted(before, after, 500, 1_000_000, 3_000_000, 7_000_000)
    table = migration_table([[record]], 1_000_000).to_pandas()
    assert table["unit"].tolist() == list(range(8)) and set(table["bytes"]) == {500}
    assert table["destination"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(table["switched_s"]) == {0} and set(table["aligned_s"]) == {2} and set(table["installed_s"]) == {6}


def made_up_run():
    """Events of two routers for the keys 0 to 4, and the results that they must have."""
    places = {"router": np.repeat([0, 1], 10).astype("i4"), "offset": np.tile(np.arange(10), 2)}
    places |= {"position": np.zeros(20, "i4")}
    events = pd.DataFrame(places | {"key": np.tile([0, 1, 2, 3, 4], 4), "t": np.arange(20) + 1000})
    results = events.assign(version=np.where(events.index < 12, 1, 2), count=events.groupby("key").cumcount() + 1)
    results = results.assign(stamp=results["count"] - 1, slot=0, log_offset=results.index, arrived_us=results.index)
    frames = events[["router", "offset"]].assign(watermark=0, events=1)
    return events, frames, results


@pytest.fixture
def ended(started):
    def end(name):
        job = started(name)
        job.request(ScaleTo(4))
        job.check()
        job.stop()
        final, workload = job.final_state(), flink_spec(name, SMALL).workload
        final = replace(final, repeats=[0 for _ in final.repeats])  # results of the made up run begin to arrive then

        def of(change):
            events, frames, results = made_up_run()
            return judged(workload, len(events), events, frames, change(results), final)

        return of

    return end


@pytest.fixture
def verdict(ended):
    return ended(RESTART)


def given_before(rows, **values):
    """Results ``rows`` came before the others, too, with other values."""
    return lambda results: pd.concat([results.loc[rows].assign(arrived_us=-1, **values), results], ignore_index=True)


def test_of_a_job_that_went_on_from_a_checkpoint_the_last_result_of_each_event_counts(ended):
    verdict = ended(RESCALE)
    assert verdict(lambda results: results).ok
    assert verdict(given_before([3, 4], count=9)).ok  # in another order than behind the checkpoint
    assert verdict(given_before([3, 3])).duplicated == 1
    late = verdict(lambda results: pd.concat([results, results.loc[[8]].assign(arrived_us=99, count=9)]))
    assert not late.ok and late.duplicated == 0 and late.wrong > 0
    assert ended(RESTART)(given_before([3, 4])).duplicated == 2


@pytest.mark.parametrize(("name", "stopped_s"), [(RESTART, 1000.0), (RESCALE, 1000.5)])
def test_a_note_says_of_how_many_keys_results_know_the_state_behind_a_restart(started, name, stopped_s):
    job = started(name)
    before, after = ([(stopped_s + late) * 1e6 for late in some] for some in ((-0.4, -0.3, -0.2), (0, 0.1, 0.2)))
    events = pd.DataFrame({"key": [3, 4, 5, 3, 6, 3], "t": np.array([*before, *after], "i8")})
    assert job.final_state().told_of(events) == [], "it has not restarted"
    job.request(ScaleTo(4))
    job.check()
    job.stop()
    [note] = job.final_state().told_of(events)
    assert note.startswith("of 20 keys 2 had an event behind the restart; ")


def with_value(row, column, value):
    def change(results):
        results.loc[row, column] = value
        return results

    return change


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda results: results.drop(index=8), "lost"),
        (lambda results: pd.concat([results, results.loc[[8]].assign(arrived_us=99)]), "duplicated"),
        (with_value(8, "count", 1), "wrong"),  # as if the state had been lost, and begun anew
        (with_value(8, "stamp", -1), "wrong"),  # as if its payload had
        (with_value(8, "key", 4), "wrong"),
        (with_value(8, "version", 9), "foreign"),
    ],
    ids=["lost", "twice", "state lost", "payload lost", "other key", "unknown start"],
)
def test_a_mistake_makes_the_verdict_bad(verdict, change, counted):
    assert verdict(lambda results: results).ok
    found = verdict(change)
    assert not found.ok and getattr(found, counted) > 0


def test_the_last_count_of_each_key_is_that_of_the_oracle():
    events, _, results = made_up_run()
    wrong = list(flink_spec(RESTART, SMALL).workload.wrong(events, results[results["key"] != 4], iter(())))
    assert wrong == ["final count of key 4: 0; expected 4"]


def test_the_state_is_told_in_bytes_of_the_savepoint_and_what_is_not_judged_is_noted(job):
    job.request(ScaleTo(4))
    job.check()
    job.note("a line")
    job.stop()
    final = job.final_state()
    [stage] = final.stages
    assert stage.unit_bytes == dict.fromkeys(range(8), 500) and len(stage.records) == 1
    assert final.notes == ["a line", FlinkQuery.told]


def test_the_jvms_of_flink_are_not_called_sparks():
    table = metrics_table([Sample(1.0, "rss_mib", Instance("spark_jvm"), 3.0)], [], 0.0, [Second(2, 5)], 0)
    renamed = with_jvm(table)
    assert renamed["instance"].to_pylist() == ["flink_jvm", "collector"] and renamed.schema == table.schema
