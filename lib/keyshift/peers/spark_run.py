"""The runs of jobs with Spark's own state that are compared with ours: same load, same Kafka, same measures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from keyshift.endpoints import Endpoints
from keyshift.lab.environment import open_services
from keyshift.peers.counting import counting_spec, require_other_slots
from keyshift.peers.runs import PeerSpec, counting_run, local_spark, peer_spec, repeated, run_peer
from keyshift.peers.spark_job import SETTINGS, RealTimeSparkQuery, SparkQuery
from keyshift.place.profile import load_profile
from keyshift.progress import Say, progress
from keyshift.results.manifest import Manifest
from keyshift.results.store import ResultStore
from keyshift.services.stack import Stack
from keyshift.studies.study import Study
from keyshift.traffic.topics import Topic

QUERIES: dict[str, type[SparkQuery]] = {"spark_state": RealTimeSparkQuery, "spark_restart": SparkQuery}
"""By the name of the point, which is the strategy in what is stored."""


def spark_spec(name: str, common: Mapping[str, Any]) -> PeerSpec:
    """The spec of a run of one of ``QUERIES``. Raises BadInput for what that job does not do."""
    spec = counting_spec(common, "Spark", rescales=QUERIES[name].rescales)
    if QUERIES[name].rescales:
        require_other_slots(spec, name)
    return peer_spec(spec, name, QUERIES[name].counted(**spec.workload.model_dump()))


def measure_spark(name: str, common: Mapping[str, Any], profile: str = "") -> Study:
    """The runs of one point, ``name``, one of ``QUERIES``; all repetitions in one Spark session.

    ``common``: as for ``measure``. Raises BadInput before anything is started.
    """
    spec, place = spark_spec(name, common), load_profile(profile)
    home = Stack().home
    with (
        progress(None) as say,
        open_services(profile, say) as endpoints,
        local_spark(spec.cores, home, say, place.spark.options() | SETTINGS) as spark,
    ):
        store = ResultStore(endpoints)
        return repeated({name: spec}, store, lambda each: run_spark(each, spark, endpoints, store, home, say))


def run_spark(
    spec: PeerSpec, spark: SparkSession, endpoints: Endpoints, store: ResultStore, home: Path, say: Say
) -> Manifest:
    """One run, stored whatever its verdict, or if it died."""

    def query(work: Path, events: Topic, results: Topic) -> SparkQuery:
        return QUERIES[spec.peer](spec, spark, work, events, results)

    return run_peer(spec, store, home, say, lambda run_id: counting_run(spec, endpoints, run_id, home, say, query))
