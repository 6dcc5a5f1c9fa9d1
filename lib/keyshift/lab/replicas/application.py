"""A Spark application in a process of its own, in which the query of one replica runs; ``replicas.spark`` starts it.

It is told an ``ApplicationConfig`` first, starts Spark, and says that it is ``Ready``. Then it is told ``RunQuery``
once. It says ``QueryStarted``, and ``QueryEnded`` when the query has ended, by itself or because of ``StopQuery``. One
that gives way to others does so until it is told ``GiveWayNoMore``.
``Stop``, or the end of its standard input, ends the process, and with it the JVM and all workers.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from keyshift.driver.spark import start_query, why_ended
from keyshift.place.profile import SparkProfile
from keyshift.place.session import PlacedSpark
from keyshift.services.processes import all_below
from keyshift.traffic.entry import CommandLines, run
from keyshift.traffic.messages import Ready, Stop
from keyshift.traffic.process import say
from keyshift.wire.config import JobConfig

LOOK_S = 0.1  # between two looks at the query
NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")


class ApplicationConfig(BaseModel):
    """The settings of the session; see ``place.session.PlacedSpark``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spark_profile: SparkProfile
    cores: int
    jars: tuple[Path, ...]
    work: Path
    log: Path
    more: dict[str, str]
    gives_way: bool = False


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Start a query; see ``driver.spark.start_query``."""

    config: JobConfig
    checkpoint: Path
    batch_s: float
    offsets: dict[int, int] | None
    kind: Literal["run query"] = "run query"


@dataclass(frozen=True, slots=True)
class StopQuery:
    """Stop the query where it is."""

    kind: Literal["stop query"] = "stop query"


@dataclass(frozen=True, slots=True)
class GiveWayNoMore:
    """Be as important as others from now on."""

    kind: Literal["give way no more"] = "give way no more"


ApplicationCommand = Annotated[RunQuery | StopQuery | GiveWayNoMore | Stop, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class QueryStarted:
    """The query is under way."""

    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """The query is not under way any more. ``why``: the line that says what happened, empty if it was stopped."""

    why: str
    kind: Literal["ended"] = "ended"


ApplicationReport = Annotated[Ready | QueryStarted | QueryEnded, Field(discriminator="kind")]


def serve(config: ApplicationConfig, commands: CommandLines) -> None:
    """Run until it is told to stop. Raises ServiceUnavailable if Spark does not start, with its executors."""
    if config.gives_way:
        _be_nice(NICE)
    given = config.spark_profile, config.cores, config.jars, config.work, config.log
    placed = PlacedSpark(*given, lambda line: None, config.more)
    placed.await_executors()
    spark = placed.session
    if config.gives_way:
        _warm(spark)
    say(Ready())
    query: StreamingQuery | None = None
    while not isinstance(command := commands.next(LOOK_S if query else 3600.0), Stop):
        match command:
            case RunQuery():
                query = start_query(spark, command.config, command.checkpoint, command.batch_s, command.offsets)
                say(QueryStarted())
            case StopQuery() if query:
                query.stop()
            case GiveWayNoMore():
                _be_nice(0)
        if query and not query.isActive:
            say(QueryEnded(why_ended(query)))
            query = None
    if query:
        query.stop()


def _warm(spark: SparkSession) -> None:
    """Run a first query, which takes seconds more: classes are loaded, and the daemon of Python workers starts. A
    replica that comes back has that behind it before the state is written that its query begins from.
    """
    values = spark.range(4).selectExpr("cast(cast(id as string) as binary) as value")
    rows = values.mapInArrow(lambda batches: batches, "value binary").repartition(2)
    rows.selectExpr("value", "explode(array(true, false))").collect()


def _be_nice(nice: int) -> None:
    """Give this process this niceness, with all that it starts, and has started; one that may not be less nice stays as
    it is.

    Linux weighs sessions first, of which each application is one, and then the processes of a session.
    """
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(nice))
    own = psutil.Process()
    for process in [own, *all_below(own)]:
        with contextlib.suppress(psutil.Error, OSError):
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, nice)


if __name__ == "__main__":
    run(ApplicationConfig, serve, ApplicationCommand)
