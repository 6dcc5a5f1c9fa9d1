"""The query: Kafka -> router -> streaming shuffle -> slot -> Kafka, in Spark's real-time mode."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from keyshift.errors import ServiceUnavailable
from keyshift.executor import tasks
from keyshift.executor.config import ROW_SCHEMA, JobConfig

# Measured on 2 cores (docs/performance.md): C2 competes with the job for half a minute, G1's threads for ever.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A worker keeps the memory it frees, and takes all of it from one heap: to get memory anew from the kernel costs more
# than to send the state that lands in it (docs/performance.md).
WORKER_ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}" for name in ("arena_max=1", f"trim_threshold={1 << 32}", f"mmap_threshold={1 << 30}")
    ),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
OPTIONS: dict[str, Any] = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # Python operators are not on Spark's list
    "spark.python.udf.pipelined.enabled": "true",  # else input and output of a Python task wait for each other
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1,  # a count with no time flush: one row per Arrow batch
    "spark.buffer.size": 512,  # bytes to Python are held until this fills
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": 1,
    "spark.sql.streaming.realTimeMode.minBatchDuration": 1000,
    "spark.python.daemon.module": "keyshift.executor.daemon",
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
    "spark.sql.shuffle.partitions": 1,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
}


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started inside write their standard error to ``log``: Spark's, and its Python workers'."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def session(
    master: str,
    jars: list[Path],
    work: Path,
    log: Path,
    extra: Mapping[str, Any] | None = None,
    python: str = sys.executable,
) -> SparkSession:
    """A Spark session for jobs; ``work`` takes Spark's temporary files, ``log`` what it has to say.

    ``master`` must have a core for every task of a query: routers and slots all run at once. ``extra``: more settings;
    ``python``: the interpreter of the executors. Raises ServiceUnavailable if Spark does not start.
    """
    os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.master(master).appName("keyshift")
    options = OPTIONS | {
        "spark.jars": ",".join(map(str, jars)),
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    for name, value in (options | dict(extra or {})).items():
        builder = builder.config(name, str(value))
    handler = signal.getsignal(signal.SIGINT)
    others = set(psutil.Process().children(recursive=True))
    try:
        with _stderr_to(log):
            spark = builder.getOrCreate()
            with contextlib.suppress(ValueError):  # not the main thread: then Spark has left the handler alone
                signal.signal(signal.SIGINT, handler)  # Spark's would kill its tasks before anything else is said
    except BaseException as error:
        # A JVM whose launch was interrupted never notices that nobody wants it any more.
        for process in set(psutil.Process().children(recursive=True)) - others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not isinstance(error, Exception):
            raise
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise ServiceUnavailable(f"Spark did not start ({master}): {words}; its log is {log}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(
    spark: SparkSession, config: JobConfig, checkpoint: Path, batch_s: float, offsets: dict[int, int] | None
) -> StreamingQuery:
    """Start one attempt of a job, from the given offset of each router's partition or from the beginning."""
    starting = "earliest"
    if offsets is not None:
        starting = json.dumps({config.events_topic: {str(router): offset for router, offset in offsets.items()}})
    kafka = config.endpoints.kafka
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", config.events_topic)
        .option("startingOffsets", starting)
        .load()
        .select("partition", "offset", "value")
        .mapInArrow(tasks.router(config), ROW_SCHEMA)
        .repartitionById(config.slots, F.col("slot"))  # a row goes to exactly the partition its column names
        .mapInArrow(tasks.slot(config), "value binary, partition int")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("topic", config.results_topic)
        .option("kafka.linger.ms", "0")
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .queryName(f"{config.job}-{config.attempt}")
        .trigger(realTime=f"{batch_s:g} seconds")  # type: ignore[call-overload]
        .start()
    )
