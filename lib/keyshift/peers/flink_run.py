"""The runs of a Flink job that are compared with ours: same load, same Kafka, same machine, same measures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.driver.spark import idle_jvm
from keyshift.folders import MIB
from keyshift.model.errors import BadInput
from keyshift.peers.counting import CountedByResults, counting_spec, require_other_slots
from keyshift.peers.flink import TASK_HEAP_MIB, flink
from keyshift.peers.flink_job import RESCALE_S, AdaptiveFlinkQuery, FlinkQuery
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, peer_spec, run_peer
from keyshift.traffic.topics import Topic

RESTART, RESCALE = "flink_restart", "flink_rescale"
QUERIES = {RESTART: FlinkQuery, RESCALE: AdaptiveFlinkQuery}
"""By the name of the point, which is the strategy in what is stored."""
LEAST_S = 0.01  # between checkpoints: Flink takes no less
CHECKPOINT_S = 2.0  # between checkpoints of a job that is rescaled while it runs: several before the request
MOST_STATE = TASK_HEAP_MIB * MIB // 4  # of the heap: a restart reads all of it, and rows are objects


def flink_spec(name: str, common: Mapping[str, Any]) -> PeerSpec:
    """The spec of a run of one of ``QUERIES``. Raises BadInput for what that job does not do."""
    if checkpoints := name == RESCALE:
        common = {"snapshot_s": CHECKPOINT_S, **common}
    spec = counting_spec(common, "Flink", checkpoints)
    if checkpoints and not LEAST_S <= spec.job.snapshot_s <= RESCALE_S / 2:
        raise BadInput(
            f"snapshot_s = {spec.job.snapshot_s:g}: {name} goes on from a checkpoint; give {LEAST_S:g} to "
            f"{RESCALE_S / 2:g} seconds between two, as {CHECKPOINT_S:g}"
        )
    if checkpoints:
        require_other_slots(spec, name)
    workload = CountedByResults(**spec.workload.model_dump())
    if (state := workload.keys * workload.state_bytes) > MOST_STATE:
        raise BadInput(
            f"keys = {workload.keys} of state_bytes = {workload.state_bytes} are {state // MIB} MiB of state; Flink's "
            f"task manager is started with room for {MOST_STATE // MIB} MiB here"
        )
    return peer_spec(spec, name, workload)


@contextmanager
def opened(spec: PeerSpec, lab: PeerLab, profile: str) -> Iterator[OpenEngine]:
    """A cluster that stays for all repetitions. Raises ServiceUnavailable if Flink's jars cannot be had."""

    def query(each: PeerSpec, work: Path, events: Topic, results: Topic) -> FlinkQuery:
        assert isinstance(each.workload, CountedByResults)
        return QUERIES[each.peer](each.workload, client, events, results)

    with flink(lab.home, max(spec.tasks.values()), lab.say, spec.job.snapshot_s) as client:
        told = partial(with_jvm, name="flink_jvm")
        yield OpenEngine(query, partial(run_peer, versions={"flink": client.version()}, told=told, beside=idle_jvm))


def with_jvm(metrics: pa.Table, name: str) -> pa.Table:
    """The table with another name for the JVMs: the sampler takes any for Spark's."""
    names = pc.replace_substring_regex(metrics["instance"].cast(pa.string()), "^spark_jvm$", name)
    place = metrics.schema.get_field_index("instance")
    return metrics.set_column(place, metrics.schema.field(place), names.cast(metrics.schema.field(place).type))
