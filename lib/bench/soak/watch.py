"""Memory, threads and open files of every process of a job, and of the services that it uses.

A heap that fills up is no leak, so of a JVM counts what is left after a collection, and what it has beside its heap; of
MinIO, a Go program, what was left in its heap after its last collection, of which its log has a line.
"""

import contextlib
import csv
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from keyshift.folders import MIB
from keyshift.model.errors import ServiceUnavailable
from keyshift.services.processes import runs, tail
from keyshift.services.stack import Stack
from keyshift.wire.faults import SERVICES

# Of the processes below the driver: the role, and what a command line has of it.
SIGNS = {"generator": "keyshift.traffic.generator", "collector": "keyshift.traffic.collector"}
DAEMON = "keyshift.worker.daemon"  # forks the workers, whose command line is the same
ROLES = ("driver", "jvm", "daemon", "worker", *SIGNS, *SERVICES)

COLLECT_EVERY_S = 60.0
JCMD_S = 15.0  # a process that a fault has stopped does not answer
# Pages of a heap are resident from when they belong to it, so that what is resident beside the heap can be told.
TOUCHED = {"JAVA_TOOL_OPTIONS": "-XX:+AlwaysPreTouch"}
TRACED = {"GODEBUG": "gctrace=1"}  # a line in the log for each collection


class Sample(NamedTuple):
    """A sample of one process: ``t_s`` since the watch began; ``age_s`` since the process began; ``held_mib``: its
    resident memory without what is free in the heap of a JVM, or what is left in the heap of a Go program; None where
    that was not measured.
    """

    t_s: float
    role: str
    pid: int
    age_s: float
    held_mib: float | None
    threads: int
    fds: int


class ProcessWatch:
    """Takes samples every ``every_s``, into ``rows`` and a file, from the first ``follow`` on. A context manager.

    A process that was seen once is watched until it is gone, whoever its parent is by then. Raises ServiceUnavailable
    without the ``jcmd`` of a JDK.
    """

    def __init__(self, stack: Stack, file: Path, every_s: float) -> None:
        self._jcmd = shutil.which("jcmd") or ""
        if not self._jcmd:
            raise ServiceUnavailable("a soak needs `jcmd`, which a JDK has and a JRE has not; it is not in PATH")
        self._collected: dict[int, float] = {}
        self._stack, self._file, self._every_s = stack, file, every_s
        self._driver: int | None = None
        self.rows: list[Sample] = []
        self._known: dict[psutil.Process, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "ProcessWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def follow(self, driver: int) -> None:
        """Watch this process from now on as the job's."""
        self._driver = driver
        if self._thread is None:
            self._began = time.time()
            self._thread = threading.Thread(target=self._run, name="keyshift-watch", daemon=True)
            self._thread.start()

    def now_s(self) -> float:
        """Seconds since it began, as samples have them."""
        return time.time() - self._began

    def of_job(self) -> dict[psutil.Process, str]:
        """The processes that live, but for services."""
        return {process: role for process, role in self.alive().items() if role not in SERVICES}

    def alive(self) -> dict[psutil.Process, str]:
        """The processes that were seen and live, with their roles."""
        return {process: role for process, role in self._known.items() if runs(process)}

    def _run(self) -> None:
        with open(self._file, "w", newline="") as file:
            csv.writer(file).writerow(Sample._fields)
            while not self._stop.wait(self._every_s):
                self._look(file)

    def _look(self, file: IO[str]) -> None:
        self._known = dict(self._found()) | self.alive()  # another one: who asks what lives may be at the old one
        now, some = time.time(), list[Sample]()
        for process, role in self._known.items():
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    age_s, held = now - process.create_time(), self._held_mib(process, role)
                    counts = process.num_threads(), process.num_fds()
                row = Sample(round(now - self._began, 2), role, process.pid, round(age_s, 2), held, *counts)
                some.append(row)
        csv.writer(file).writerows(some)
        file.flush()
        self.rows += some

    def _held_mib(self, process: psutil.Process, role: str) -> float | None:
        if role == "minio":
            return left_mib(tail(self._stack.home / "logs" / "minio.log", 1000))
        free = 0.0
        if process.name() == "java":
            if time.monotonic() < self._collected.get(process.pid, 0.0) + COLLECT_EVERY_S:
                return None
            self._collected[process.pid] = time.monotonic()
            try:
                self._ask(process, "GC.run")
                free = free_mib(self._ask(process, "GC.heap_info"))
            except (OSError, subprocess.SubprocessError):
                return None
        return round(process.memory_info().rss / MIB - free, 3)

    def _ask(self, process: psutil.Process, command: str) -> str:
        asked = [self._jcmd, str(process.pid), command]
        plain = {name: value for name, value in os.environ.items() if name not in TOUCHED}
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=JCMD_S, env=plain).stdout

    def _found(self) -> Iterator[tuple[psutil.Process, str]]:
        for name in SERVICES:
            with contextlib.suppress(ServiceUnavailable, psutil.Error):
                yield psutil.Process(self._stack.pid(name)), name
        if self._driver is None:
            return
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(self._driver)
            yield driver, "driver"
            for process in driver.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if role := role_of(process.name(), process.cmdline(), process.parent()):
                        yield process, role


def role_of(name: str, command: list[str], parent: psutil.Process | None) -> str | None:
    """The role of a process below the driver; None if it is a helper that lives shortly."""
    for role, sign in SIGNS.items():
        if sign in command:
            return role
    if DAEMON in command:
        above = parent.cmdline() if parent else []
        return "worker" if DAEMON in above else "daemon"
    return "jvm" if name == "java" else None


def free_mib(heap_info: str) -> float:
    """What belongs to a heap and is not used, from what ``jcmd PID GC.heap_info`` says of the serial collector."""
    rooms = re.findall(r"generation +total (\d+)K, used (\d+)K", heap_info)
    return sum(int(total) - int(used) for total, used in rooms) / 1024


def left_mib(log: str) -> float | None:
    """What was left in the heap of a Go program after its last collection, as it says with ``TRACED``."""
    collections = re.findall(r"^gc \d+ @.* \d+->\d+->(\d+) MB", log, re.MULTILINE)
    return float(collections[-1]) if collections else None
