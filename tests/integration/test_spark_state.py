"""Spark's own state with all that it needs: its restart is exactly once here, and what it cannot do it says itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keyshift.endpoints import Endpoints
from keyshift.model.errors import ServiceUnavailable
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, local_spark, run_counting
from keyshift.peers.spark_job import QUERIES, SETTINGS, RealTimeSparkQuery, SparkQuery, spark_spec
from keyshift.progress import silent
from keyshift.results.store import ResultStore
from keyshift.traffic import lines
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from shared_lab import SharedLab

pytestmark = pytest.mark.nightly("a minute; the verdict on such runs, and what is refused, are tested without Spark")

SMALL = {
    "rate": 500, "keys": 500, "state_bytes": 256, "key_groups": 16, "skew": 0.5, "slots": 2, "to_slots": 3,
    "warmup_s": 1, "seconds": 10, "trigger_s": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, shared_lab: SharedLab) -> Iterator[SparkSession]:
    shared_lab.close()
    with local_spark(5, tmp_path_factory.mktemp("spark"), silent, SETTINGS) as session:
        yield session


@pytest.mark.parametrize(("name", "moved"), [("spark_state", 0), ("spark_restart", 16)])
def test_each_event_has_one_right_result(stack: Endpoints, spark: SparkSession, tmp_path: Path, name: str, moved: int):
    def query(spec: PeerSpec, work: Path, events: Topic, results: Topic) -> SparkQuery:
        return QUERIES[name](spec, spark, work, events, results)

    store = ResultStore(stack)
    manifest = run_counting(spark_spec(name, SMALL), PeerLab(stack, store, tmp_path, silent), OpenEngine(query))
    assert manifest.status == "ok" and manifest.summary is not None, manifest.verdict
    assert manifest.strategy == name and manifest.summary.events == 5500
    tables = store.get_tables(manifest.run_id)
    assert len(set(tables["migration"]["unit"])) == moved
    created = tables["latency"]["created_s"]
    assert created.min() < -2 and created.max() > 6, "there are results from before and behind the restart"


def test_spark_repartitions_no_state_in_real_time_mode(stack: Endpoints, spark: SparkSession, tmp_path: Path):
    """Once this fails, ``spark_state`` can be rescaled."""
    events, results = Topic.at(stack, "real-time-events", 2), Topic.at(stack, "real-time-results")
    for topic in (events, results):
        topic.create()
    query = RealTimeSparkQuery(spark_spec("spark_state", SMALL | {"batch_s": 5}), spark, tmp_path, events, results)
    try:
        query.begin(2, 1)
        lines.fill(events, 500)
        assert wait_until(lambda: results.length() >= 500, 120), results.length()
        committed = tmp_path / "checkpoint" / "commits"
        assert wait_until(lambda: len([*committed.glob("[0-9]*")]) > 1, 120), "no batch has ended"
        query.halt()
        with pytest.raises(ServiceUnavailable, match="Spark's state: ") as told:
            query.begin(3, 2)
        assert "UNSUPPORTED_STATEFUL_OPERATOR" in getattr(told.value.__cause__, "_stackTrace", ""), told.value
    finally:
        query.close()
        for topic in (events, results):
            topic.delete()
