"""The query: Kafka -> router -> streaming shuffle -> slot -> Kafka, in Spark's real-time mode."""

import contextlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from keyshift.model import frames
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.services.jars import pyspark_jars
from keyshift.services.processes import all_below, apart, kill
from keyshift.wire import spark_rows
from keyshift.wire.config import InputTopic, JobConfig
from keyshift.worker import tasks

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
# What an environment that is set up for another Spark has for it: settings, classes, arguments and folders.
OF_ANOTHER: tuple[str, ...] = (
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"),
    "SPARK_LOCAL_DIRS",  # wins over spark.local.dir
)
LOOPBACK = "127.0.0.1"
SOCKET_PATH_BYTES = 103  # the shortest limit of the systems this runs on (macOS), less the zero at the end
SOCKET_NAME_BYTES = 48  # of the files that Spark makes in the folder: a UUID, a little more, and the slash before it


def sockets(folder: str) -> dict[str, Any]:
    """Settings for what connects the JVM with Python workers: Unix domain sockets in ``folder``, or TCP if it is empty.

    TCP waits for acknowledgements that are delayed for up to 40 ms (docs/performance.md).
    """
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": folder} if folder else {f"{name}.enabled": "false"}


def require_sockets(folder: str) -> None:
    """Refuse a ``folder`` where Unix domain sockets cannot be made: BadInput; empty means that there will be none."""
    remedy = "name another folder with spark.sockets in the profile, or none (empty) for TCP, which is slower"
    if len(os.fsencode(folder)) + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES:
        longest = SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
        raise BadInput(f"sockets = {folder!r}: longer than {longest} bytes, so no socket can be made there; {remedy}")
    if folder and not (Path(folder).is_absolute() and os.access(folder, os.W_OK | os.X_OK)):
        raise BadInput(f"sockets = {folder!r}: must be the absolute path of a folder that can be written to; {remedy}")


# Spark gives Python batches of ROWS_PER_BATCH rows, and a full one only when one more row is there. So rows without
# values (false) come behind each row. Two of them push it out whether one or two rows were held before it. One is
# enough, and spares every other batch, if an odd number is always held: after one row that stands alone.
ROWS_PER_BATCH = 2
PUSHED, PUSHED_AFTER_ALONE, ALONE = (True, False, False), (True, False), (True,)
# By spark.authenticate, what closures carry (the job's secret, the store's keys) is for this Spark's processes only; in
# pods it is encrypted, too. The streaming shuffle, which carries rows, knows neither (docs/security.md).
ENCRYPTED = {
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
}
JVM_GONE = Py4JError, OSError  # what PySpark raises where nobody answers it
RECONNECT_MS = 200  # at the most, between two tries to reach a broker that is away; by itself Kafka's client has 1000
LINGER_MS = 2  # results of several slots go to Kafka, and from there to readers, in one request
OPTIONS: dict[str, Any] = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # Python operators are not on Spark's list
    "spark.python.udf.pipelined.enabled": "true",  # else input and output of a Python task wait for each other
    "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_PER_BATCH,  # a count with no time flush
    "spark.buffer.size": 512,  # bytes to Python are held until this fills
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": 1,
    # Between routers and slots, so that a backlog waits in Kafka: barriers have to get through what is in there.
    "spark.shuffle.streaming.writerMaxMemory": 2 << 20,
    "spark.shuffle.streaming.readerMaxMemory": 2 << 20,
    "spark.sql.streaming.realTimeMode.minBatchDuration": 1000,
    "spark.python.daemon.module": "keyshift.worker.daemon",
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
    "spark.sql.shuffle.partitions": 1,
    "spark.authenticate": "true",
    **sockets("/tmp"),
    # A producer asks every second about topics it has written to and that are gone, and can stand for 100 ms meanwhile.
    "spark.kafka.producer.cache.timeout": "1m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def archived_classes(folder: Path = Path(sys.prefix)) -> str:
    """Options of a JVM that takes classes from the archive in ``folder`` (place/class_archive.py); empty if none is
    whole.

    One of another Java or of other jars is not used: the JVM says so on standard error, as it then does with all its
    warnings, and reads the jars.
    """
    for archive in folder.glob("keyshift-classes-*.jsa"):
        if archive.stem.endswith(f"-{archive.stat().st_size}"):  # else it was cut off, and would end the JVM
            return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:disable -Xlog:all=warning:stderr'
    return ""


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


@contextlib.contextmanager
def _of_ours_alone(master: str) -> Iterator[None]:
    """A JVM that is launched inside is that of the installed pyspark, whatever Spark the environment is set up for."""
    ours, others = {"SPARK_HOME": str(pyspark_jars().parent)}, OF_ANOTHER
    if master.startswith("local"):
        # Else it asks what address the machine's name has: none, and it dies, or one at which a network reaches it.
        ours["SPARK_LOCAL_IP"], others = LOOPBACK, (*OF_ANOTHER, "SPARK_LOCAL_HOSTNAME")
    before = {name: os.environ.pop(name) for name in (*ours, *others) if name in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Keep what is made inside, also by processes that are started inside, for this user alone.

    Spark asks for no secret on its Unix domain sockets, and unpickles what comes: who may open one has us run code.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _wanted(record: logging.LogRecord) -> bool:
    """Whether to log ``record``: not py4j's traceback of an interrupted call, as the interrupt reaches the caller."""
    return record.getMessage() != "KeyboardInterrupt while sending command."


def require_no_spark() -> None:
    """Refuse a process in which a Spark runs: BadInput. PySpark would give out that one again, with the settings that
    it has, and who is done first would stop it for both. One whose JVM has gone does not run, and is forgotten.
    """
    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is not None and jvm.poll() is not None:
        forget_jvm()
    if SparkContext._active_spark_context is not None:
        raise BadInput("a Spark runs in this process already (a job, a lab or a session of your own): stop it first")


def forget_jvm() -> None:
    """Let the next session launch a JVM: PySpark would go on asking the one that it has, which has ended."""
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def stop_spark(spark: SparkSession | SparkContext) -> None:
    """Stop Spark, also one whose JVM has died: what a run says of that is the news."""
    with contextlib.suppress(*JVM_GONE):
        spark.stop()


def why_failed(error: Exception) -> str:
    """Say in one line what ``error`` says: Java's says first what was called. The JVM is asked, and may be gone."""
    try:
        lines = str(error).splitlines()
    except JVM_GONE:
        lines = []
    causes = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return [*causes, *lines, type(error).__name__][0]


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
    ``python``: the interpreter of the executors. Raises BadInput as ``require_no_spark`` does, ServiceUnavailable if
    Spark does not start.
    """
    require_no_spark()
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # else what the JVM's threads have beside the heap grows for hours
    java = f"{JVM_OPTIONS} {archived_classes()}"
    options = OPTIONS | {
        "spark.master": master,
        "spark.app.name": "keyshift",
        "spark.jars": ",".join(map(str, jars)),
        "spark.local.dir": str(work),
        # A JVM that is killed leaves libraries and folders behind.
        "spark.driver.extraJavaOptions": f'{java} "-Djava.io.tmpdir={work}"',
        "spark.executor.extraJavaOptions": java if master.startswith("local") else JVM_OPTIONS,
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }
    options = {name: str(value) for name, value in (options | dict(extra or {})).items()}
    secret = {}  # Spark makes it, but not for executors that its own cluster starts
    if master.startswith("local-cluster"):
        secret = {"spark.authenticate.secret": secrets.token_urlsafe(32)}
    others, kept = set(all_below()), SparkContext._gateway
    logging.getLogger().addFilter(_wanted)
    try:
        with _private(), _stderr_to(log):
            # The JVM first, without the secret: everybody on this machine can read what a process was started with.
            with _of_ours_alone(master):
                SparkContext._ensure_initialized(conf=SparkConf().setAll(list(options.items())))
            # In the main thread Spark would take SIGINT for itself, and kill its tasks before anything else is said.
            with ThreadPoolExecutor(1) as starting:
                starting.submit(SparkContext.getOrCreate, SparkConf().setAll(list((options | secret).items()))).result()
            spark = SparkSession.builder.getOrCreate()
    except BaseException as error:
        words = why_failed(error) if isinstance(error, Exception) else ""
        # A JVM whose launch was interrupted never notices that nobody wants it any more.
        kill(set(all_below()) - others - apart())
        if not kept:
            forget_jvm()
        elif begun := SparkContext._active_spark_context:  # in the JVM of an earlier session, which stays
            stop_spark(begun)
        if not isinstance(error, Exception):
            raise
        raise ServiceUnavailable(f"Spark did not start ({master}): {words}; its log is {log}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def idle_jvm() -> dict[int, str]:
    """The JVM of this process's Spark sessions, if there is one, for runs that use none: PySpark keeps it behind the
    last session, too.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    return {process.pid: "idle Spark"} if process and process.poll() is None else {}


def _pushed(rows: DataFrame, mine: Column) -> DataFrame:
    """Each of ``rows`` where ``mine``, an array, is true, and a row without values where it is false."""
    columns = [F.when(F.col("_mine"), F.col(name)).alias(name) for name in rows.columns]
    return rows.select("*", F.explode(mine).alias("_mine")).select(columns)


def _array(mine: tuple[bool, ...]) -> Column:
    return F.array(*map(F.lit, mine))


Slots = tuple[tasks.Task, int]  # what runs in the tasks of a stage, and how many there are


def _frames(rows: DataFrame, inputs: Sequence[InputTopic]) -> DataFrame:
    """Kafka's rows as routers get them: router, offset, value. Each task of the query reads one partition."""
    router = F.col("partition")
    for each in inputs[1:]:
        router = F.when(F.col("topic") == each.topic, F.col("partition") + each.first).otherwise(router)
    return rows.select(router.alias("router"), "offset", "value")


def dataflow(events: DataFrame, router: tasks.Task, stages: Sequence[Slots], several: bool = False) -> DataFrame:
    """Frames through routers and the slots of all stages: results in ``value``, for the ``partition`` of their slot.

    ``events``: router, offset, value. ``several``: slots share a task, which says itself of which one a result is.
    """
    pushed = _pushed(events, _array(PUSHED))
    rows = pushed.mapInArrow(router, spark_rows.ROUTED)
    alone = F.substring("value", 1, spark_rows.KIND_BYTES).eqNullSafe(F.lit(spark_rows.PRIMER_KIND))
    answered = spark_rows.ANSWERED_OF if several else spark_rows.ANSWERED
    for stage in stages:
        slot, number = stage
        values = rows.repartitionById(number, F.col("task")).select("value")  # to the partition it names
        pushed = _pushed(values, F.when(alone, _array(ALONE)).otherwise(_array(PUSHED_AFTER_ALONE)))
        rows = pushed.mapInArrow(slot, answered if stage is stages[-1] else spark_rows.ROUTED)
    return rows if several else rows.withColumn("partition", F.spark_partition_id())


def interval(seconds: float) -> str:
    """A length of time, as Spark reads it: whole digits, to the millisecond."""
    return f"{round(seconds * 1000)} milliseconds"


def start_query(
    spark: SparkSession,
    config: JobConfig,
    checkpoint: Path,
    batch_s: float,
    offsets: dict[int, int] | None = None,
    router: tasks.Task | None = None,
    slot: tasks.Task | None = None,
) -> StreamingQuery:
    """Start one attempt of a job, from the given offset of each router's partition or from the beginning.

    ``router`` and ``slot``: other tasks than those of ``worker.tasks``, for comparison.
    """
    inputs, starting = config.inputs, "earliest"
    if offsets is not None:
        begins = {each.topic: {str(n): offsets[each.first + n] for n in range(each.partitions)} for each in inputs}
        starting = json.dumps(begins)
    kafka = {"kafka.bootstrap.servers": config.endpoints.kafka, "kafka.reconnect.backoff.max.ms": str(RECONNECT_MS)}
    kafka |= config.endpoints.sign_in.options()
    chain = config.chain()
    rows = (
        spark.readStream.format("kafka")
        .options(**kafka)
        .option("subscribe", ",".join(each.topic for each in inputs))
        .option("startingOffsets", starting)
        .load()
    )
    return (
        dataflow(
            _frames(rows, inputs),
            router or tasks.router(config, batch_s),
            [(slot or tasks.slot(each, batch_s), each.processes) for each in chain],
            chain[-1].slots_per_process > 1,
        )
        .writeStream.format("kafka")
        .options(**kafka)
        .option("topic", config.results_topic)
        .option("kafka.client.id", config.job)  # a producer of its own; Spark's would be that of earlier jobs, too
        .option("kafka.linger.ms", LINGER_MS)
        .option("kafka.max.request.size", frames.MAX_FRAME_BYTES)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .queryName(f"{config.job}-{config.attempt}")
        .trigger(realTime=interval(batch_s))  # type: ignore[call-overload]
        .start()
    )


class RunningQuery(Protocol):
    """A query of Spark, in this process or another one."""

    @property
    def isActive(self) -> bool:
        """Whether it is under way."""

    def exception(self) -> object | None:
        """Say why it has ended; None if it was stopped."""

    def stop(self) -> None:
        """Stop it where it is."""


def why_ended(query: RunningQuery) -> str:
    """The line that says what happened, empty if ``query`` was stopped."""
    error = query.exception()
    return telling_line(str(error)) if error else ""


def telling_line(text: str) -> str:
    """The line of a Spark error that says what happened: the last Python exception in it, else of the first line the
    cause, without what Spark advises.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if line.startswith("keyshift.model.errors.") or "Error:" in line]
    cause = lines[0].rpartition("most recent failure: ")[2].partition(" Consider setting ")[0]
    return (python[-1] if python else cause)[:400]
