"""Spark in its place: in one process, or with executors that are other processes or pods."""

import atexit
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from keyshift.driver.spark import session
from keyshift.folders import work_folder
from keyshift.model.errors import ServiceUnavailable
from keyshift.place.profile import CLUSTER, LOCAL, SparkProfile
from keyshift.progress import Say
from keyshift.waiting import wait_until

START_S = 60.0  # in which executors that are processes must come
_until_exit = ExitStack()  # what goes when this process ends
atexit.register(_until_exit.close)


@cache
def spark_files(home: Path) -> Path:
    """The folder of Spark's temporary files in the state folder ``home``, for as long as this process: a JVM keeps its
    first one for all later sessions, and would make a removed one anew. Raises ServiceUnavailable as ``work_folder``.
    """
    return _until_exit.enter_context(work_folder(home, "spark-files-"))


class PlacedSpark:
    """A session in ``spark``, which has ``cores`` (logical ones) on this machine, and in pods what the profile says.

    ``work`` takes Spark's temporary files, ``log`` what it has to say; ``more``: settings beside those of ``spark``.
    Raises ServiceUnavailable if Spark does not start, or may not have pods.
    """

    def __init__(
        self,
        spark: SparkProfile,
        cores: int,
        jars: Sequence[Path],
        work: Path,
        log: Path,
        say: Say,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._spark, self._log, self._say = spark, log, say
        given = [*jars], work, log, spark.options() | dict(more or {})
        if spark.on_kubernetes:
            from keyshift.place.pods import Pods  # half of what each command would need to begin

            self._pods = Pods(spark)
            self._pods.require_rights()
            say(f"starting Spark, {spark.executors} executors of {spark.image} at {spark.master}")
            self.session = session(spark.master, *given, spark.python)
            return
        self._processes = spark.executors_for(cores)
        master = f"{LOCAL}[{cores}]"
        if self._processes:
            master = f"{CLUSTER}[{self._processes},{math.ceil(cores / self._processes)},1024]"
        say(f"starting Spark, {master}")
        self.session = session(master, *given)

    def await_executors(self, require_wanted: Callable[[], None] = lambda: None) -> None:
        """Wait until all executors are there: a query that starts before finds too few slots for its stages, and dies.

        Raises ServiceUnavailable, on Kubernetes with what their pods say, and what ``require_wanted`` raises, if nobody
        waits any more for what comes.
        """

        def registered() -> int:
            require_wanted()
            return self._registered()

        if self._spark.on_kubernetes:
            self._pods.await_executors(self.application, registered, self._say)
        elif self._processes and not wait_until(lambda: registered() >= self._processes, START_S):
            said = f"{self._registered()} of {self._processes} executors came within {START_S:g} s"
            raise ServiceUnavailable(f"{said}; Spark's log is {self._log}")

    @property
    def application(self) -> str:
        """Its name among those of the cluster."""
        return str(self.session.sparkContext.applicationId)

    def _registered(self) -> int:
        try:  # the driver is one of them
            return int(self.session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1
        except Py4JError as error:
            said = f"Spark has ended while its executors started; its log is {self._log}"
            raise ServiceUnavailable(said) from error
