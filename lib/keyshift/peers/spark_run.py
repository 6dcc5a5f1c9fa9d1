"""The runs of jobs with Spark's own state that are compared with ours: same load, same Kafka, same measures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keyshift.peers.counting import counting_spec, require_other_slots
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, local_spark, peer_spec
from keyshift.peers.spark_job import SETTINGS, RealTimeSparkQuery, SparkQuery
from keyshift.place.profile import load_profile
from keyshift.traffic.topics import Topic

QUERIES: dict[str, type[SparkQuery]] = {"spark_state": RealTimeSparkQuery, "spark_restart": SparkQuery}
"""By the name of the point, which is the strategy in what is stored."""


def spark_spec(name: str, common: Mapping[str, Any]) -> PeerSpec:
    """The spec of a run of one of ``QUERIES``. Raises BadInput for what that job does not do."""
    spec = counting_spec(common, "Spark", rescales=QUERIES[name].rescales)
    if QUERIES[name].rescales:
        require_other_slots(spec, name)
    return peer_spec(spec, name, QUERIES[name].counted(**spec.workload.model_dump()))


@contextmanager
def opened(spec: PeerSpec, lab: PeerLab, profile: str) -> Iterator[OpenEngine]:
    """A Spark session for all repetitions."""

    def query(each: PeerSpec, work: Path, events: Topic, results: Topic) -> SparkQuery:
        return QUERIES[each.peer](each, spark, work, events, results)

    options = load_profile(profile).spark.options() | SETTINGS
    with local_spark(spec.cores, lab.home, lab.say, options) as spark:
        yield OpenEngine(query)
