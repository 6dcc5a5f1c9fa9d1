"""Spark's own state: a query that counts keys (``peers.counting``) with ``groupBy().agg()``, from PySpark without any
code of ours in its way.

*In micro-batches* it is rescaled as Spark offers it: stop, repartition the state in the checkpoint, start with another
``spark.sql.shuffle.partitions``. *In real-time mode* it has a result for each event, and stays as it is: Spark 4.3
repartitions no state of an aggregation in that mode (``UNSUPPORTED_STATEFUL_OPERATOR``, which a test asks for).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from keyshift.clock import now_us
from keyshift.driver.spark import JVM_GONE, interval, telling_line, why_ended, why_failed
from keyshift.experiment.spec import RunSpec
from keyshift.model.errors import ServiceUnavailable, service_errors
from keyshift.model.keys import units_of
from keyshift.peers.counting import (
    CountedByResults,
    CountingQuery,
    Stopped,
    counting_spec,
    require_other_slots,
    wrong_counts,
)
from keyshift.peers.runs import OpenEngine, PeerLab, PeerSpec, local_spark, peer_spec
from keyshift.place.profile import load_profile
from keyshift.traffic.topics import Topic
from keyshift.waiting import wait_until
from keyshift.workloads.keycount import KeyCount, KeyCounts
from keyshift.workloads.times import Times

START_S = 60.0  # from a started query until it is at work
BATCH_S = 60.0  # until a batch ends
DONE_S = 60.0  # until the checkpoint has all events that were offered
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: dict[str, Any] = {  # of the session; the rest is as in sessions of ours
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": 2,  # the one that can be repartitioned
}
_answering = service_errors(JVM_GONE, lambda error: f"Spark: {why_failed(error)}")  # what is decorated asks the JVM


class CountedByState(CountedByResults):
    """``keycount`` of which the final state is read from Spark's checkpoint, too."""

    name: ClassVar[str] = "keycount"

    def wrong(
        self, events: pd.DataFrame, results: pd.DataFrame, final: Iterator[pd.DataFrame], times: Times | None = None
    ) -> Iterator[str]:
        """Mistakes in results and in the state of the checkpoint; see ``Workload.wrong``."""
        yield from super().wrong(events, results, iter(()))
        kept = pd.concat([*final], ignore_index=True)
        yield from (f"the text of key {key} is not whole in the final state" for key in kept["key"][~kept["whole"]])
        # Each key was filled in, so its state is there, whether or not it has events.
        times_kept = kept["key"].value_counts().reindex(range(self.keys), fill_value=0)
        for key, found in times_kept[times_kept != 1].items():
            yield f"key {key} is in the final state {found} times; expected once"
        strange = kept["key"][~kept["key"].isin(range(self.keys))]
        yield from (f"key {key} in the final state: keys are below {self.keys}" for key in strange)
        last = kept.drop_duplicates("key").set_index("key")["count"]
        yield from wrong_counts("count in the final state", KeyCounts(events["key"]), last)


class SparkQuery(CountingQuery):
    """A query in micro-batches, one behind the other without a pause."""

    name = "Spark"
    told = (
        "Spark's own state in micro-batches, one behind the other without a pause: beside count and text of a key it "
        "has where each of its events was, without which no event but a batch's last would have a result; bytes of a "
        "unit are an equal share of what Spark wrote to repartition the state, compressed as its files are; completion "
        "ends with the first batch behind that"
    )
    rescales = True  # it can go on with another number of slots
    reads = True
    counted: ClassVar[type[KeyCount]] = CountedByState
    in_batches = True

    def __init__(self, spec: RunSpec, spark: SparkSession, work: Path, events: Topic, results: Topic) -> None:
        assert isinstance(spec.workload, KeyCount)
        self._workload, self._spark, self._checkpoint = spec.workload, spark, work / "checkpoint"
        self._events, self._results = events, results
        self._query: StreamingQuery | None = None
        self._final, self._written = pd.DataFrame(), 0
        real_time = {"realTime": interval(spec.job.batch_s)}
        self._trigger = {"processingTime": "0 seconds"} if self.in_batches else real_time

    @_answering
    def begin(self, slots: int, version: int) -> None:
        """See ``CountingQuery``. Raises ServiceUnavailable if its state cannot be repartitioned, or it is late."""
        if version > 1:
            self._repartition(slots)
        self._spark.conf.set("spark.sql.shuffle.partitions", slots)
        self._query = query = self._started(version)

        def works() -> bool:
            self.require_alive()
            # A trigger is active before any task has its state. Only a complete batch shows that all of them had.
            return query.lastProgress is not None if version > 1 else bool(query.status["isTriggerActive"])

        if not wait_until(works, START_S, 0.02):
            raise ServiceUnavailable(f"Spark's query does not work {START_S:g} s after its start")

    def _repartition(self, slots: int) -> None:
        """Have the state in the checkpoint in so many parts, and keep how much Spark wrote for that: the state once,
        where the checkpoint has all versions of some time.
        """
        before, manager = self._state_files(), self._spark._streamingCheckpointManager
        with service_errors(PySparkException, lambda error: f"Spark's state: {telling_line(str(error))}"):
            manager.repartition(str(self._checkpoint), slots, False)  # batches that were not complete are made anew
        self._written = sum(file.stat().st_size for file in self._state_files() - before)

    def _state_files(self) -> set[Path]:
        return {each for each in (self._checkpoint / "state").rglob("*") if each.is_file()}

    def _started(self, version: int) -> StreamingQuery:
        kafka = {"kafka.bootstrap.servers": self._events.kafka} | self._events.sign_in.options()
        rows = self._spark.readStream.format("kafka").options(**kafka)
        rows = rows.option("subscribe", self._events.name).option("startingOffsets", "earliest")
        counts = _counted(rows.load(), self._workload.state_bytes, version, self.in_batches)
        sink = counts.writeStream.format("kafka").options(**kafka).option("topic", self._results.name)
        sink = sink.option("kafka.linger.ms", 0).option("kafka.client.id", self._results.name)
        sink = sink.option("checkpointLocation", str(self._checkpoint))
        return sink.outputMode("update").trigger(**self._trigger).start()  # type: ignore[call-overload, no-any-return]

    @_answering
    def halt(self, finally_: bool = False) -> Stopped:
        """Stop it, see ``CountingQuery``: right behind the end of a batch, as the next one has no results yet that
        would come once more; ``finally_``: when all events are in the checkpoint. How much state there is, only
        ``rescale`` knows.
        """
        if not finally_:
            self._await_batch()
        elif not wait_until(lambda: self._completed() >= self._events.length(), DONE_S, 0.2, self._completed):
            raise ServiceUnavailable(f"Spark's checkpoint has {self._completed()} events, and no more in {DONE_S:g} s")
        self.close()
        stopped_us = now_us()
        if finally_:
            self._final = _kept(self._spark, self._checkpoint, self._workload.state_bytes)
        return Stopped(stopped_us, self._written)

    def rescale(self, slots: int, version: int) -> Stopped:
        """See ``CountingQuery``."""
        return super().rescale(slots, version)._replace(state_bytes=self._written)

    def _await_batch(self) -> None:
        def last() -> int:
            self.require_alive()
            progress = self._query and self._query.lastProgress
            return progress.batchId if progress else -1

        before = last()
        if not wait_until(lambda: last() > before, BATCH_S, 0.002):
            raise ServiceUnavailable(f"Spark's batch does not end in {BATCH_S:g} s")

    def _completed(self) -> int:
        """Count the events in complete batches."""
        self.require_alive()
        assert self._query is not None
        for progress in reversed(self._query.recentProgress):
            if offsets := json.loads(progress.sources[0].endOffset or "{}").get(self._events.name):
                return sum(offsets.values())
        return 0

    @_answering
    def require_alive(self) -> None:
        """See ``CountingQuery``."""
        if self._query is not None and not self._query.isActive:
            raise ServiceUnavailable(f"Spark's query has ended: {why_ended(self._query) or 'stopped'}")

    def final_parts(self) -> Iterator[pd.DataFrame]:
        """All of the state in the checkpoint."""
        units = units_of(self._final["key"].to_numpy(), self._workload.key_groups, 1)
        yield self._final.assign(unit=units, slot=0)

    @_answering
    def close(self) -> None:
        """End it, if it runs."""
        if self._query is not None:
            self._query.stop()
            self._query = None


class RealTimeSparkQuery(SparkQuery):
    """A query in real-time mode: it answers each event, and is never rescaled."""

    told = (
        "Spark's own state in real-time mode: nothing moves, as Spark 4.3 repartitions no state of an aggregation in "
        "this mode (UNSUPPORTED_STATEFUL_OPERATOR); the verdict is about results and the last count of each key, as a "
        "batch that is stopped leaves no state"
    )
    rescales = reads = False
    counted = CountedByResults
    in_batches = False

    def halt(self, finally_: bool = False) -> Stopped:
        """Stop it where it is: everything was answered before."""
        self.close()
        return Stopped(now_us(), 0)

    def final_parts(self) -> Iterator[pd.DataFrame]:
        """Give nothing: its state is not read."""
        return iter(())


# -- its runs beside ours ------------------------------------------------------------------------------------------

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


# -- the query ---------------------------------------------------------------------------------------------------------

_NEW = "0" * 16  # how the text of a key begins whose first event came before the load


def _text(begin: Column, key: Column, state_bytes: int) -> Column:
    return F.rpad(begin, state_bytes, key.cast("string"))


def _collected(t: Column, place: Column) -> Column:
    """All places of a key's events of the load, batch by batch, in the order of each router; no None is collected."""
    return F.array_sort(F.collect_list(F.when(t > 0, F.struct("batch", place.alias("place")))))


def _counted(rows: DataFrame, state_bytes: int, version: int, in_batches: bool) -> DataFrame:
    """Results as lines of JSON in ``value``, one per event. What is kept of a key: its count, its text, and where its
    last event was; in batches, of which each updates a key once, where all were, and in which batch.
    """
    event = F.from_json(F.col("value").cast("string"), "key BIGINT, t BIGINT").alias("event")
    now = F.current_timestamp()  # the same in all of a batch
    events = rows.select(event, "partition", "offset", *([now.alias("batch")] if in_batches else []))
    key, t = F.col("event.key"), F.col("event.t")
    place = F.struct(F.col("partition").alias("router"), "offset", F.lit(0).alias("position"), t.alias("t"))
    counts = events.groupBy(key.alias("key")).agg(
        F.sum(F.when(t > 0, 1).otherwise(0)).alias("count"),
        F.min_by(_text(F.lpad(t.cast("string"), len(_NEW), "0"), key, state_bytes), t).alias("text"),
        (_collected(t, place) if in_batches else F.last(place)).alias("at"),
    )
    if in_batches:
        filled = F.struct(*(F.lit(-1).alias(name) for name in ("router", "offset", "position")), F.lit(0).alias("t"))
        # The length of the list is the count; both are told of, so that both are kept. Sorted, as an aggregation of
        # more than a few keys takes them in any order.
        count = F.col("count") - F.size("all") + F.coalesce(F.col("before") + 1, F.lit(0))
        counts = (
            counts.withColumnRenamed("at", "all")
            .select("*", F.posexplode_outer("all").alias("before", "at"))
            .where(F.col("at").isNull() | (F.col("at.batch") == now))
            .select("key", "text", count.alias("count"), F.coalesce(F.col("at.place"), filled).alias("at"))
        )
    whole = F.col("text") == _text(F.lit(_NEW), F.col("key"), state_bytes)
    answers = F.col("at.t") > 0
    columns = [
        F.col("key"),
        F.col("at.t").alias("t"),
        *(F.when(answers, F.col(f"at.{name}")).otherwise(-1).alias(name) for name in ("router", "offset", "position")),
        F.lit(version).alias("version"),
        F.col("count"),
        F.when(whole, F.col("count") - 1).otherwise(-1).alias("stamp"),
    ]
    return counts.select(F.to_json(F.struct(*columns)).alias("value"))


def _kept(spark: SparkSession, checkpoint: Path, state_bytes: int) -> pd.DataFrame:
    """The ``count`` of each key in a checkpoint, and whether its text is ``whole``."""
    state = spark.read.format("statestore").load(str(checkpoint))
    count, text, *_ = (F.col("value")[name] for name in state.schema["value"].dataType.names)  # type: ignore[attr-defined]
    [name] = state.schema["key"].dataType.names  # type: ignore[attr-defined]
    key = F.col("key")[name]
    columns = [key.alias("key"), count.alias("count"), (text == _text(F.lit(_NEW), key, state_bytes)).alias("whole")]
    return state.select(*columns).toPandas()
