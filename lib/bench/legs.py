"""Where the milliseconds of a frame and the CPU of the whole go, leg by leg and process by process."""

import contextlib
import tempfile
import threading
import time
from pathlib import Path

import pandas as pd
import psutil
from pyspark.sql import SparkSession

from bench.load import Subject, UnmovedJob
from bench.measurements import Measurement
from keyshift import trace
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec
from keyshift.lab.scripts.highest_rate import UNMEASURED_S

# From the moment at which a leg begins to that at which it ends: columns of ``moments``, in microseconds.
LEGS = {
    "due -> sent": ("frame_us", "sent_us"),
    "sent -> router": ("sent_us", "came_us_router"),
    "router": ("came_us_router", "went_us_router"),
    "router -> slot": ("went_us_router", "came_us_slot"),
    "slot": ("came_us_slot", "went_us_slot"),
    "slot -> Kafka": ("went_us_slot", "arrived_us"),  # as Kafka says, in whole milliseconds
    "due -> in the log": ("frame_us", "arrived_us"),
}
# What a process has in its command line. The order counts: Spark's own line has that of its workers in it.
PROCESSES = {
    "generator": "traffic.generator",
    "collector": "traffic.collector",
    "Kafka": "kafka.Kafka",
    "ZooKeeper": "QuorumPeerMain",
    "Spark (JVM)": "SparkSubmit",
    "Python workers": "keyshift.worker.daemon",
}


def measure(spark: SparkSession, endpoints: Endpoints, spec: RunSpec, work: Path, seconds: float) -> list[Measurement]:
    """The default load for ``seconds``: medians and P99 of each leg in ms, CPU of each process in % of a core."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        with Subject(UnmovedJob, spark, endpoints, spec, work, trace=folder) as subject:
            subject.burst(spec.run.rate, spec.run.frame_ms, seconds)  # warm up
            cpu = _CpuMeter(seconds)
            subject.burst(spec.run.rate, spec.run.frame_ms, seconds, began=cpu.start)
        passed = moments(folder)
    measured = passed[passed["frame_us"].between((cpu.begin_s + UNMEASURED_S) * 1e6, (cpu.begin_s + seconds) * 1e6)]
    return [*_rows_of(measured), *cpu.rows()]


def moments(folder: str) -> pd.DataFrame:
    """One row for each frame and slot that had events of it: when it passed each place, microseconds."""
    generator, router, slot, collector = (
        trace.read(folder, place) for place in ("generator", "router", "slot", "collector")
    )
    ends = collector.merge(slot, on=["slot", "router", "offset"])
    return ends.merge(router, on=["router", "offset"], suffixes=("_slot", "_router")).merge(
        generator, on=["router", "frame_us"]
    )


def _rows_of(measured: pd.DataFrame) -> list[Measurement]:
    rows = []
    for leg, (begin, end) in LEGS.items():
        took_ms = (measured[end] - measured[begin]) / 1000
        for name, quantile in (("P50", 0.5), ("P99", 0.99)):
            rows.append(Measurement("d", f"{leg}, {name}", "ms", [float(took_ms.quantile(quantile))], []))
    return rows


class _CpuMeter:
    """CPU of the processes of ``PROCESSES`` from the time that a burst has settled until shortly before its end.

    ``begin_s``: when its load begins, once that is known.
    """

    def __init__(self, seconds: float) -> None:
        self._shares: dict[str, float] = dict.fromkeys(PROCESSES, 0.0)
        self.begin_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(seconds - 2 * UNMEASURED_S,), daemon=True)

    def start(self, begin_s: float) -> None:
        """The load begins at ``begin_s``."""
        self.begin_s = begin_s
        self._thread.start()

    def _run(self, seconds: float) -> None:
        time.sleep(max(0.0, self.begin_s + UNMEASURED_S - time.time()))
        before, since = _cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, passed = _cpu_s(), time.monotonic() - since
        for pid, (name, spent) in after.items():
            if pid in before:
                self._shares[name] += 100 * (spent - before[pid][1]) / passed

    def rows(self) -> list[Measurement]:
        self._thread.join()
        shares = self._shares | {"all of them": sum(self._shares.values())}
        return [Measurement("d", f"CPU of {name}", "% of a core", [share], []) for name, share in shares.items()]


def _cpu_s() -> dict[int, tuple[str, float]]:
    """Seconds of CPU so far of each process, and what it is."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            name = next((name for name, part in PROCESSES.items() if part in line), None)
            if name is not None:
                times = process.cpu_times()
                found[process.pid] = name, times.user + times.system
    return found
