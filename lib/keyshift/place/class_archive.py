"""The archive of Spark's classes: what a JVM needs of them, as it has it in memory after they were read and checked.

``make`` does it before a run, if Java is another one than last time: a JVM that writes an archive at its end needs a
quarter of a minute for that, and a run should neither wait for it nor have it beside. The archive has classes of Spark
and its libraries, not those of the Kafka connector: Spark loads that itself. Only Java and jars as they were then can
use it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keyshift.driver.spark import JVM_OPTIONS, dataflow, forget_jvm, session
from keyshift.model.errors import KeyshiftError, ServiceUnavailable
from keyshift.services.jars import require_java
from keyshift.services.processes import tail
from keyshift.waiting import wait_until
from keyshift.wire import spark_rows
from keyshift.worker.tasks import RecordBatches

TASKS = 2  # of each of routers and slots
QUERY_S, WRITE_S = 120.0, 300.0  # in which the query has worked, and the archive is written


def make(folder: Path) -> None:
    """Run a query like that of a job, so that Spark's classes are in ``folder``, in place of those there before.

    Raises ServiceUnavailable if Spark does not start or work, or writes no archive.
    """
    require_java()
    before = {*folder.glob("keyshift-classes-*.jsa")}
    with tempfile.TemporaryDirectory(dir=folder, prefix="classes-") as scratch:
        work, made = Path(scratch), Path(scratch, "made")
        log = work / "spark.log"
        java = f'{JVM_OPTIONS} "-XX:ArchiveClassesAtExit={made}" -Xlog:disable -Xlog:all=error:stderr'
        spark = session(f"local[{2 * TASKS}]", [], work, log, {"spark.driver.extraJavaOptions": java})
        try:
            _rehearse(spark, work / "checkpoint")
        finally:
            spark.stop()
            status = _end_jvm()
        if status != 0 or not made.is_file():
            raise ServiceUnavailable(f"Java wrote no archive of classes (exit status {status}):\n{tail(log)}")
        made.chmod(0o644)  # who installs is not always who runs
        with made.open("rb") as file:
            os.fsync(file.fileno())
        archive = made.replace(folder / f"keyshift-classes-{made.stat().st_size}.jsa")  # see ``archived_classes``
    for other in before - {archive}:
        other.unlink(missing_ok=True)


def _routed(batches: RecordBatches) -> RecordBatches:
    for batch in batches:
        rows = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
        if given := [(offset % TASKS, value) for offset, value in rows if value is not None]:
            yield spark_rows.routed(given)


def _answered(batches: RecordBatches) -> RecordBatches:
    for batch in batches:
        yield pa.record_batch({"value": batch["value"]})


def _rehearse(spark: SparkSession, checkpoint: Path) -> None:
    """Run the dataflow of a job until it has worked, without any service."""
    rows = spark.readStream.format("rate").options(rowsPerSecond=100, numPartitions=TASKS).load()
    events = rows.selectExpr("0 as router", "value as offset", "cast(cast(value as string) as binary) as value")
    results = dataflow(events, _routed, [(_answered, TASKS)])
    query = results.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()

    def worked() -> bool:
        return not query.isActive or any(each["numInputRows"] for each in query.recentProgress)

    if not wait_until(worked, QUERY_S, 0.1) or not query.isActive:
        raise ServiceUnavailable(f"a query that should load the classes of one did not work: {query.exception()}")
    query.stop()


def _end_jvm() -> int:
    """End the JVM and give its exit status; it ends as soon as nobody speaks to it any more."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    forget_jvm()
    jvm: subprocess.Popen[bytes] = gateway.proc
    assert jvm.stdin is not None
    jvm.stdin.close()
    try:
        return jvm.wait(WRITE_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        return jvm.wait()


if __name__ == "__main__":
    try:
        make(Path(sys.prefix))
    except KeyshiftError as error:  # no reason not to go on: each start of Spark then takes twice as long
        sys.exit(f"no archive of Spark's classes: {error}")
