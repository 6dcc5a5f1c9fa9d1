"""The Spark application of a replica, as its starter sees it."""

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from keyshift.lab.replicas.application import (
    ApplicationConfig,
    ApplicationReport,
    GiveWayNoMore,
    QueryEnded,
    QueryStarted,
    RunQuery,
    StopQuery,
)
from keyshift.model.errors import QueryDied, ServiceUnavailable
from keyshift.place.profile import REPLICA_LABEL, SparkProfile
from keyshift.services.processes import all_below, kill, runs
from keyshift.traffic.messages import Ready
from keyshift.traffic.process import JsonProcess
from keyshift.waiting import wait_until
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import stop

if TYPE_CHECKING:
    from keyshift.place.pods import ExecutorPods

MODULE = "keyshift.lab.replicas.application"
START_S = 600.0  # in which Spark must have started, and a query must be under way
STOP_S = 20.0  # in which a query must have stopped: after that its process is ended
LOOK_S = 0.05


class Application:
    """The application runs from ``begin``, which ``await_ready`` waits for, to ``end``. Once it is started its query is
    a ``RunningQuery``. ``isActive``, ``strike`` and ``kill`` are for any thread. ``executors``: those that are pods.
    """

    def __init__(self, config: ApplicationConfig, executors: "ExecutorPods | None" = None) -> None:
        self._config, self._executors = config, executors
        self._ready, self._started = False, False
        self._require_wanted: Callable[[], None] = lambda: None
        self._ended: QueryEnded | None = None
        self._begun: JsonProcess | None = None
        self._spark: list[psutil.Process] = []  # its JVM, which goes on for seconds if the process dies
        self._killing = threading.Lock()
        self._killed = False

    def begin(self) -> None:
        """Start it, without waiting."""
        self._begun = JsonProcess(MODULE, self._config, ApplicationReport, self._heard)

    @property
    def _process(self) -> JsonProcess:
        assert self._begun is not None
        return self._begun

    def _heard(self, report: Ready | QueryStarted | QueryEnded) -> None:
        match report:
            case Ready():
                self._spark = self._below()
                self._ready = True
            case QueryStarted():
                self._started = True
            case QueryEnded():
                self._ended = report

    def await_ready(self, require_wanted: Callable[[], None] = lambda: None) -> None:
        """Wait until Spark has started. Raises ServiceUnavailable if it does not, and what ``require_wanted`` raises,
        if nobody waits any more for what comes; so does ``start_query`` then.
        """
        self._require_wanted = require_wanted
        self._await(lambda: self._ready, "Spark of a replica did not start")

    def start_query(
        self, config: JobConfig, checkpoint: Path, batch_s: float, offsets: dict[int, int] | None
    ) -> "Application":
        """As ``driver.spark.start_query``; a replica has one query. Raises QueryDied if it does not begin."""
        try:
            self._process.tell(RunQuery(config, checkpoint, batch_s, offsets))
            self._await(lambda: self._started, "the query of a replica did not begin")
        except ServiceUnavailable as error:
            raise QueryDied(str(error)) from error
        return self

    def _await(self, there: Callable[[], bool], what: str) -> None:
        def found() -> bool:
            self._require_wanted()
            self._process.check()
            return there()

        if not wait_until(found, START_S, LOOK_S):
            raise ServiceUnavailable(f"{what} within {START_S:g} s; its log is {self._config.log}")

    @property
    def pid(self) -> int | None:
        """The id of its process; None if that has not begun, or has ended."""
        return self._begun.pid if self._begun is not None and self._begun.running else None

    # -- what a query is asked ----------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """Whether its query is under way."""
        return self._ended is None and self._process.running

    def exception(self) -> str | None:
        """Say why its query is not under way any more; None if it was stopped."""
        return (self._ended.why or None) if self._ended else "the process of the replica is gone"

    def stop(self) -> None:
        """Stop the query where it is; one that does not stop is ended with its process."""
        if not self.isActive:
            return
        with contextlib.suppress(ServiceUnavailable):  # it has died meanwhile
            self._process.tell(StopQuery())
            if not wait_until(lambda: not self.isActive, STOP_S, LOOK_S):
                self.kill()

    def give_way_no_more(self) -> None:
        """Make it as important as others: it has given way to them until now."""
        with contextlib.suppress(ServiceUnavailable, ValueError):  # it dies
            self._process.tell(GiveWayNoMore())

    def pause(self, seconds: float) -> None:
        """Let nothing of it run for so long, if it has begun; from any thread."""
        if (mine := self.pid) is not None:
            for pid in (mine, *(process.pid for process in self._below())):
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    stop(pid, seconds)

    def delete_executor(self, host: str) -> None:
        """Delete the pod at ``host``: the query of its tasks dies. Raises ServiceUnavailable if that fails."""
        assert self._executors is not None
        self._executors.delete_one(host)

    # -- its end ------------------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Kill its process, from any thread: whoever waits for it is told."""
        if (pid := self.pid) is not None:
            kill([psutil.Process(pid)])

    def kill(self) -> None:
        """End it, its JVM, its executors and its workers now: nothing of it writes any more. Safe to call twice."""
        with self._killing:
            if self._killed or self._begun is None:
                return
            below = self._below()
            self._process.kill()
            kill(below)
            if self._executors is not None:
                with contextlib.suppress(ServiceUnavailable):  # without their driver they end by themselves
                    self._executors.delete()
            self._killed = wait_until(lambda: not any(map(runs, below)), STOP_S, LOOK_S / 10)

    def end(self) -> None:
        """End it in order, if it has begun; nothing of it is left. Safe to call twice. While Spark starts it does not
        listen, and is killed.
        """
        if self._ready and self._process.running:
            self._spark = self._below()
            with contextlib.suppress(ServiceUnavailable):  # it dies, or does not stop
                self._process.stop()
        self.kill()

    def _below(self) -> list[psutil.Process]:
        """List what runs below it, also if it has died itself."""
        found = {*self._spark}
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._process.running:
                found |= {*all_below(psutil.Process(self._process.pid))}
        for process in self._spark:
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {*all_below(process)}
        return [*found]


def application_of(
    spark_profile: SparkProfile,
    cores: int,
    jars: Sequence[Path],
    work: Path,
    home: Path,
    part: str,
    incarnation: int = 0,
    gives_way: bool = False,
) -> Application:
    """The application of a replica, which is not begun, with ``cores`` (logical ones) for the tasks of its query, or
    with as many executors in pods as ``spark_profile`` says. Pods have the replica, which is ``part``, for a label.

    Temporary files are below ``work``, its log is in ``home``. ``gives_way``: to others, until it is told not to.
    """
    name = f"{part}-{incarnation}" if incarnation else part
    mine = work / f"spark-{name}"
    mine.mkdir(exist_ok=True)
    log = home / f"spark-{name}.log"
    given: dict[str, Any] = {"jars": tuple(jars), "work": mine, "log": log, "gives_way": gives_way}
    if not spark_profile.on_kubernetes:
        return Application(ApplicationConfig(spark_profile=spark_profile, cores=cores, more={}, **given))
    from keyshift.place.pods import ExecutorPods  # half of what each command would need to begin

    application = f"spark-{secrets.token_hex(16)}"
    more = {"spark.app.id": application, f"spark.kubernetes.executor.label.{REPLICA_LABEL}": part}
    config = ApplicationConfig(spark_profile=spark_profile, cores=cores, more=more, **given)
    return Application(config, ExecutorPods(spark_profile, application))
