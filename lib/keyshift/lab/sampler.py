"""CPU and memory of the job's processes, once a second."""

import contextlib
import os
import threading
import time
from array import array
from collections import defaultdict

import psutil

INTERVAL_S = 1.0
Sample = tuple[float, str, str, float]  # seconds since the epoch, metric, instance, value


class Sampler:
    """Watches the processes below this one: Spark's JVMs and Python workers. A context manager.

    Memory is resident memory: pages that forked workers share are counted in each of them.
    """

    def __init__(self, ignore: set[int]) -> None:
        self._ignore = ignore
        self._stop = threading.Event()
        self._cpu_s: dict[int, float] = {}
        # Times and values, by metric and instance: eight bytes each, as a job may last for days.
        self._series: dict[tuple[str, str], tuple[array[float], array[float]]] = {}
        self._thread = threading.Thread(target=self._run, name="keyshift-sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rows(self) -> list[Sample]:
        """All samples, in the order of their times."""
        rows = [
            (at, metric, kind, value)
            for (metric, kind), (times, values) in self._series.items()
            for at, value in zip(times, values, strict=True)
        ]
        return sorted(rows)

    def _run(self) -> None:
        last = time.time()
        while not self._stop.wait(INTERVAL_S):
            now = time.time()
            memory: dict[str, float] = defaultdict(float)
            cpu: dict[str, float] = defaultdict(float)
            for process in psutil.Process(os.getpid()).children(recursive=True):
                if process.pid in self._ignore:
                    continue
                with contextlib.suppress(psutil.Error):
                    kind = "spark_jvm" if process.name() == "java" else "python_workers"
                    memory[kind] += process.memory_info().rss / 2**20
                    times = process.cpu_times()
                    spent = times.user + times.system
                    cpu[kind] += max(0.0, spent - self._cpu_s.get(process.pid, spent))
                    self._cpu_s[process.pid] = spent
            for kind in memory:
                for metric, value in ("rss_mib", memory[kind]), ("cpu_cores", cpu[kind] / (now - last)):
                    moments, values = self._series.setdefault((metric, kind), (array("d"), array("d")))
                    moments.append(now)
                    values.append(value)
            last = now
