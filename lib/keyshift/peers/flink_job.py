"""A Flink job that counts keys (``peers.counting``): to scale, it stops with a savepoint and starts from it, or its
cluster rescales it while it runs.

The whole job is SQL. An OVER window without a bound keeps a row per key, and gives a result for each event.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyshift.clock import SECOND_US
from keyshift.driver.spark import idle_jvm
from keyshift.folders import MIB
from keyshift.model.errors import BadInput
from keyshift.peers.counting import CountedByResults, CountingQuery, Stopped, counting_spec, require_other_slots
from keyshift.peers.flink import TASK_HEAP_MIB, flink
from keyshift.peers.flink_client import FlinkClient
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, peer_spec, run_peer
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from keyshift.workloads.keycount import KeyCount

RUN_S = 60.0  # from a submitted job until all its tasks run
SILENCE_S = 30.0  # without any result: then no more come
STILL_S = 1.0  # between two looks at the results behind the load
RESCALE_S = 120.0  # until the next checkpoint, and from there until all tasks run

# The interval of checkpoints is one of the cluster, see ``flink.configuration``; without one the savepoint is the only.
SETTINGS = {
    "pipeline.object-reuse": "true",
    "execution.buffer-timeout.interval": "1 ms",  # a result does not wait for others, which it would for 100 ms
    "table.exec.mini-batch.enabled": "false",
}


def tables(kafka: str, events: str, results: str) -> tuple[str, str]:
    """The statements that name the topics of a run as tables."""
    common = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{kafka}', 'format' = 'json'"
    return (
        "CREATE TABLE events (`key` BIGINT, t BIGINT, router INT METADATA FROM 'partition' VIRTUAL, "
        "`offset` BIGINT METADATA VIRTUAL, came AS PROCTIME()) "
        f"WITH ({common}, 'topic' = '{events}', 'scan.startup.mode' = 'earliest-offset')",
        "CREATE TABLE results (`key` BIGINT, t BIGINT, router INT, `offset` BIGINT, `position` INT, version BIGINT, "
        f"`count` BIGINT, stamp BIGINT) WITH ({common}, 'topic' = '{results}', 'properties.linger.ms' = '0', "
        "'sink.delivery-guarantee' = 'at-least-once')",
    )


def query(state_bytes: int, version: int) -> str:
    """The statement of the job. ``version``: a number that every result has, one more for each start."""
    payload = f"RPAD(LPAD(CAST(t AS STRING), 16, '0'), {state_bytes}, CAST(`key` AS STRING))"
    whole = f"RPAD('{'0' * 16}', {state_bytes}, CAST(`key` AS STRING))"
    origin = ", ".join(f"IF(t > 0, {value}, -1)" for value in ("router", "`offset`", "0"))
    return (
        f"INSERT INTO results SELECT `key`, t, {origin}, CAST({version} AS BIGINT), counted, "
        f"IF(payload = {whole}, counted - 1, -1) FROM ("
        "SELECT `key`, t, router, `offset`, CAST(SUM(IF(t > 0, 1, 0)) OVER w AS BIGINT) AS counted, "
        f"FIRST_VALUE({payload}) OVER w AS payload FROM events "
        "WINDOW w AS (PARTITION BY `key` ORDER BY came ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"
    )


class FlinkQuery(CountingQuery):
    """A query of Flink. Its state is a savepoint, all of which is written and read, by Flink alone."""

    name = "Flink"
    told = (
        "a job of Flink: bytes of a unit are an equal share of the savepoint, all of which is written and read; the "
        "verdict is about results and the last count of each key, not about owners nor Flink's own final state"
    )

    def __init__(self, workload: KeyCount, client: FlinkClient, events: Topic, results: Topic) -> None:
        self._workload, self._client, self._events, self._results = workload, client, events, results
        self._job, self._savepoint = "", ""

    def open(self) -> None:
        """Name the topics."""
        self._client.open_session()
        for statement in tables(self._events.kafka, self._events.name, self._results.name):
            self._client.execute(statement)

    def begin(self, slots: int, version: int) -> None:
        """See ``CountingQuery``."""
        settings = {"parallelism.default": str(slots), "pipeline.max-parallelism": str(self._workload.key_groups)}
        more: Mapping[str, str] = {"execution.state-recovery.path": self._savepoint} if version > 1 else {}
        statement = query(self._workload.state_bytes, version)
        self._job = self._client.execute(statement, **SETTINGS, **settings, **more)
        self._client.await_running(self._job, RUN_S)

    def halt(self, finally_: bool = False) -> Stopped:
        """See ``CountingQuery``."""
        if finally_:
            self._await_silence()
        self._savepoint, stopped = self._client.stop(self._job)
        self._job = ""
        return Stopped(round(stopped * SECOND_US), self._client.size(self._savepoint))

    def _await_silence(self) -> None:
        """Wait until no more results come, of which each event has one at the least: some may have come twice, so their
        number does not say whether all were answered. An event that gets none is for the verdict to tell.
        """
        before, offered = -1, self._events.length()

        def silent() -> bool:
            nonlocal before
            self.require_alive()
            before, last = self._results.length(), before
            return before == last and before >= offered

        wait_until(silent, SILENCE_S, STILL_S, self._results.length)

    def require_alive(self) -> None:
        """See ``CountingQuery``."""
        self._client.require_alive(self._job)

    def close(self) -> None:
        """End it, if it runs. Of its savepoints nothing is left, as the cluster has room for those of one run."""
        if self._job:
            self._client.cancel(self._job)
        self._client.remove_savepoints()


class AdaptiveFlinkQuery(FlinkQuery):
    """A query of a cluster with the adaptive scheduler and checkpoints: the job is told to have other tasks while it
    runs. It waits for its next checkpoint, ends its tasks and goes on from there. So what came behind the checkpoint is
    computed once more, under the same ``version``, which is a word of the statement.
    """

    told = (
        "a job of Flink: bytes of a unit are an equal share of the checkpoint that it went on from; completion counts "
        "from the request, so the wait for that checkpoint is in it; the verdict is about results and the last count "
        "of each key, not about owners nor Flink's own final state"
    )
    repeats = True

    def rescale(self, slots: int, version: int) -> Stopped:
        """See ``CountingQuery``."""
        found = self._client.rescale(self._job, slots, RESCALE_S)
        note = (
            f"Flink went on with {slots} tasks from checkpoint {found.checkpoint}, which began "
            f"{found.ended - found.begun:.2f} s before the tasks had ended"
        )
        return Stopped(round(found.ended * SECOND_US), found.state_bytes, note)


# -- its runs beside ours ------------------------------------------------------------------------------------------

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
        versions = {"flink": client.version()}
        yield OpenEngine(query, partial(run_peer, versions=versions, told=with_jvm, beside=idle_jvm))


def with_jvm(metrics: pa.Table) -> pa.Table:
    """The table with the JVMs as Flink's: the sampler takes any for Spark's."""
    names = pc.replace_substring_regex(metrics["instance"].cast(pa.string()), "^spark_jvm$", "flink_jvm")
    place = metrics.schema.get_field_index("instance")
    return metrics.set_column(place, metrics.schema.field(place), names.cast(metrics.schema.field(place).type))
