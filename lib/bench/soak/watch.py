"""Memory, threads and open files of every process of a job, and of the services that it uses."""

import contextlib
import csv
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from keyshift.folders import MIB
from keyshift.model.errors import ServiceUnavailable
from keyshift.services.stack import Stack
from keyshift.wire.faults import SERVICES

# Of the processes below the driver: the role, and what a command line has of it.
SIGNS = {"generator": "keyshift.traffic.generator", "collector": "keyshift.traffic.collector"}
DAEMON = "keyshift.worker.daemon"  # forks the workers, whose command line is the same
ROLES = ("driver", "jvm", "daemon", "worker", *SIGNS, *SERVICES)


class Sample(NamedTuple):
    """Of one process: ``t_s`` since the watch began; ``age_s`` since the process began."""

    t_s: float
    role: str
    pid: int
    age_s: float
    rss_mib: float
    threads: int
    fds: int


class Watch:
    """Samples every ``every_s``, into ``rows`` and a file, from the first ``follow`` on. A context manager.

    A process that was seen once is watched until it is gone, whoever its parent is by then.
    """

    def __init__(self, stack: Stack, file: Path, every_s: float) -> None:
        self._stack, self._file, self._every_s = stack, file, every_s
        self._driver: int | None = None
        self.rows: list[Sample] = []
        self._known: dict[psutil.Process, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def follow(self, driver: int) -> None:
        """From now on this is the job's process."""
        self._driver = driver
        if self._thread is None:
            self._began = time.time()
            self._thread = threading.Thread(target=self._run, name="keyshift-watch", daemon=True)
            self._thread.start()

    def now_s(self) -> float:
        """Seconds since it began, as samples have them."""
        return time.time() - self._began

    def of_job(self) -> Mapping[psutil.Process, str]:
        """The processes that live, but for services."""
        return {process: role for process, role in self.alive().items() if role not in SERVICES}

    def alive(self) -> Mapping[psutil.Process, str]:
        """The processes that were seen and live, with their roles."""
        return {process: role for process, role in list(self._known.items()) if _lives(process)}

    def _run(self) -> None:
        with open(self._file, "w", newline="") as file:
            csv.writer(file).writerow(Sample._fields)
            while not self._stop.wait(self._every_s):
                self._look(file)

    def _look(self, file: IO[str]) -> None:
        for process, role in self._found():
            self._known.setdefault(process, role)
        now, some = time.time(), list[Sample]()
        for process, role in self.alive().items():
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    age_s, rss = now - process.create_time(), process.memory_info().rss / MIB
                    counts = process.num_threads(), process.num_fds()
                row = Sample(round(now - self._began, 2), role, process.pid, round(age_s, 2), round(rss, 3), *counts)
                some.append(row)
        csv.writer(file).writerows(some)
        file.flush()
        self.rows += some
        for process in set(self._known) - set(self.alive()):
            del self._known[process]

    def _found(self) -> Iterator[tuple[psutil.Process, str]]:
        for name in SERVICES:
            with contextlib.suppress(ServiceUnavailable, psutil.Error):
                yield psutil.Process(self._stack.pid(name)), name
        if self._driver is None:
            return
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(self._driver)
            yield driver, "driver"
            below = driver.children(recursive=True)
            for process in below:
                with contextlib.suppress(psutil.Error):
                    if role := role_of(process.name(), process.cmdline(), process.parent()):
                        yield process, role


def role_of(name: str, command: list[str], parent: psutil.Process | None) -> str | None:
    """Of a process below the driver; None if it is a helper that lives shortly."""
    for role, sign in SIGNS.items():
        if sign in command:
            return role
    if DAEMON in command:
        above = parent.cmdline() if parent else []
        return "worker" if DAEMON in above else "daemon"
    return "jvm" if name == "java" else None


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
