"""The runs of jobs with Spark's own state that are compared with ours: same load, same Kafka, same measures."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from keyshift.peers.counting import counting_spec, require_other_slots
from keyshift.peers.runs import PeerLab, PeerSpec, counting_run, local_spark, peer_lab, peer_spec, repeated, run_peer
from keyshift.peers.spark_job import SETTINGS, RealTimeSparkQuery, SparkQuery
from keyshift.place.profile import load_profile
from keyshift.results.manifest import Manifest
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
    spec, options = spark_spec(name, common), load_profile(profile).spark.options() | SETTINGS
    with peer_lab(profile) as lab, local_spark(spec.cores, lab.home, lab.say, options) as spark:
        return repeated({name: spec}, lab.store, lambda each: run_spark(each, spark, lab))


def run_spark(spec: PeerSpec, spark: SparkSession, lab: PeerLab) -> Manifest:
    """Make one run, stored whatever its verdict, or if it died."""

    def query(work: Path, events: Topic, results: Topic) -> SparkQuery:
        return QUERIES[spec.peer](spec, spark, work, events, results)

    return run_peer(spec, lab, partial(counting_run, spec, lab, query))
