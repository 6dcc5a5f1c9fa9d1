"""Spark's own job in micro-batches, without Spark: what its restart waits for, what it wrote, and what it cannot do."""

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from keyshift.model.errors import ServiceUnavailable
from keyshift.peers import spark_job
from keyshift.peers.counting import Stopped
from keyshift.peers.spark_job import SparkQuery, spark_spec
from keyshift.traffic.topics import Topic

SMALL = {"keys": 20, "state_bytes": 64, "key_groups": 8, "slots": 2, "to_slots": 4, "skew": 0.0}


class Streaming:
    """A query whose trigger is active at once. ``progress``: what each look at it finds; the last stays."""

    isActive, status = True, {"isTriggerActive": True}

    def __init__(self, progress):
        self.progress = [*progress]

    @property
    def lastProgress(self):
        return self.progress.pop(0) if len(self.progress) > 1 else self.progress[0]

    def stop(self):
        """It has ended."""


def batch(number):
    return SimpleNamespace(batchId=number)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A job of Spark, and its queries to come."""
    queries, manager = [], SimpleNamespace(repartition=lambda *told: None)
    conf = SimpleNamespace(set=lambda *told: None)
    spark = SimpleNamespace(conf=conf, _streamingCheckpointManager=manager)
    job = SparkQuery(spark_spec("spark_restart", SMALL), spark, tmp_path, Topic("k", "in", 2), Topic("k", "out"))
    monkeypatch.setattr(job, "_started", lambda version: queries.pop(0))
    return job, queries, manager


def test_the_first_beginning_waits_for_no_batch_as_there_are_no_events_yet(made):
    job, queries, _ = made
    queries.append(Streaming([None]))
    job.begin(2, 1)


def test_a_restart_is_over_when_a_batch_of_its_own_is_complete_and_not_at_a_trigger(made, monkeypatch):
    job, queries, _ = made
    after = Streaming([None, None, batch(7)])
    queries.append(after)
    job.begin(4, 2)
    assert len(after.progress) == 1, "it had looked until there was one"
    monkeypatch.setattr(spark_job, "START_S", 0.1)
    queries.append(Streaming([None]))
    with pytest.raises(ServiceUnavailable, match=r"Spark's query does not work 0\.1 s after its start"):
        job.begin(4, 3)


def test_a_stop_waits_for_a_batch_and_the_end_for_all_events_and_neither_for_ever(made, monkeypatch):
    job, queries, _ = made
    query = Streaming([batch(1)])
    query.recentProgress = [SimpleNamespace(sources=[SimpleNamespace(endOffset='{"in": {"0": 2, "1": 1}}')])]
    queries.append(query)
    job.begin(2, 1)
    monkeypatch.setattr(spark_job, "BATCH_S", 0.05)
    monkeypatch.setattr(spark_job, "DONE_S", 0.05)
    monkeypatch.setattr(Topic, "length", lambda topic: 4)
    with pytest.raises(ServiceUnavailable, match=r"Spark's batch does not end in 0\.05 s"):
        job.halt()
    with pytest.raises(ServiceUnavailable, match=r"Spark's checkpoint has 3 events, and no more in 0\.05 s"):
        job.halt(finally_=True)


def test_bytes_are_those_that_the_repartition_wrote_and_no_older_versions(made, tmp_path):
    job, queries, manager = made
    parts = tmp_path / "checkpoint" / "state" / "0"
    parts.mkdir(parents=True)
    for version in range(30):
        (parts / f"{version}.changelog").write_bytes(bytes(1000))

    def repartition(checkpoint, slots, _exactly_once):
        assert (checkpoint, slots) == (str(tmp_path / "checkpoint"), 4)
        for name in ("30.zip", "30.sst"):
            (parts / name).write_bytes(bytes(70))

    manager.repartition = repartition
    queries += [Streaming([batch(1), batch(2)]), Streaming([batch(3)])]
    job.begin(2, 1)
    stopped = job.rescale(4, 2)
    assert isinstance(stopped, Stopped) and stopped.state_bytes == 140


class Gone:
    """What asks a JVM that has died."""

    def __getattr__(self, name):
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_jvm_that_dies_ends_its_run_in_plain_words_whatever_it_was_asked(made, monkeypatch):
    job, queries, _ = made
    queries.append(Gone())
    with pytest.raises(ServiceUnavailable, match=r"^Spark: Answer from Java side is empty$"):
        job.begin(2, 1)
    for asks in (job.require_alive, job.halt, lambda: job.halt(finally_=True), job.close):
        with pytest.raises(ServiceUnavailable, match=r"^Spark: Answer from Java side is empty$"):
            asks()

    def refuse(*told):
        raise ConnectionRefusedError(111, "Connection refused")

    queries.append(Streaming([batch(1)]))
    job.begin(2, 1)
    monkeypatch.setattr(job, "_completed", lambda: 20)
    monkeypatch.setattr(Topic, "length", lambda topic: 20)
    monkeypatch.setattr(spark_job, "_kept", refuse)
    with pytest.raises(ServiceUnavailable, match=r"Spark: .*Connection refused"):
        job.halt(finally_=True)
    monkeypatch.setattr(job, "_started", refuse)
    with pytest.raises(ServiceUnavailable, match=r"Spark: .*Connection refused"):
        job.begin(2, 1)


def test_what_spark_cannot_repartition_is_said_in_one_line(made):
    job, _, manager = made

    def refuse(*told):
        raise PySparkException("[STATE_REPARTITION_INVALID_CHECKPOINT] The checkpoint is odd.\n\tat a.B.c(D.java:1)")

    manager.repartition = refuse
    why = r"^Spark's state: \[STATE_REPARTITION_INVALID_CHECKPOINT\] The checkpoint is odd\.$"
    with pytest.raises(ServiceUnavailable, match=why):
        job.begin(4, 2)
