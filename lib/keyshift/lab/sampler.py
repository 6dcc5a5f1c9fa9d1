"""CPU and memory of the job's processes, once a second."""

import contextlib
import os
import threading
import time
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
        self.rows: list[Sample] = []
        self._thread = threading.Thread(target=self._run, name="keyshift-sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

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
                self.rows.append((now, "rss_mib", kind, memory[kind]))
                self.rows.append((now, "cpu_cores", kind, cpu[kind] / (now - last)))
            last = now
