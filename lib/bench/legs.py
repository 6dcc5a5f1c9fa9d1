"""Where the milliseconds of a frame and the CPU of the whole go, leg by leg and process by process."""

import os
import tempfile
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

from bench.load import Subject, UnmovedJob
from bench.measurements import Measurement
from keyshift import trace
from keyshift.analysis.machine import SAMPLED_S
from keyshift.endpoints import Endpoints
from keyshift.experiment.spec import RunSpec
from keyshift.lab.machine.sampler import AROUND, Sampler
from keyshift.lab.scripts.highest_rate import UNMEASURED_S
from keyshift.model.records import Sample
from keyshift.services.stack import Stack

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
DRIVER = "driver"  # this process, which also measures


def measure(spark: SparkSession, endpoints: Endpoints, spec: RunSpec, work: Path, seconds: float) -> list[Measurement]:
    """The default load for ``seconds``: medians and P99 of each leg in ms, CPU of each process in % of a core."""
    services, begun = Stack().pids, list[float]()
    with tempfile.TemporaryDirectory(dir=work) as folder:
        with Subject(UnmovedJob, spark, endpoints, spec, work, trace=folder) as subject:
            subject.burst(seconds)  # warm up
            with Sampler(lambda: {**services(), **subject.pids, os.getpid(): DRIVER}) as sampler:
                subject.burst(seconds, began=begun.append)
        passed = moments(folder)
    [begin_s] = begun
    settled_s = begin_s + UNMEASURED_S
    measured = passed[passed["frame_us"].between(settled_s * 1e6, (begin_s + seconds) * 1e6)]
    return [*_rows_of(measured), *_cpu_of(sampler.rows, settled_s, begin_s + seconds - UNMEASURED_S)]


def moments(folder: str) -> pd.DataFrame:
    """One row for each frame and slot that had events of it: when it passed each station, microseconds."""
    generator, router, slot, collector = (
        trace.read(folder, station) for station in ("generator", "router", "slot", "collector")
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


def _cpu_of(samples: list[Sample], begin_s: float, end_s: float) -> list[Measurement]:
    """CPU of processes by their names, and those of Spark by their kind: the mean of the samples that lie in between.

    ``samples``: see ``Sampler``; one is of the time before it.
    """
    named = [(at_s, metric, str(instance), value) for at_s, metric, instance, value in samples]
    table = pd.DataFrame(named, columns=["at_s", "metric", "name", "cores"])
    table = table[table["metric"].isin(["cpu_cores", AROUND]) & table["at_s"].between(begin_s + SAMPLED_S, end_s)]
    shares = {str(name): 100 * float(cores) for name, cores in table.groupby("name")["cores"].mean().items()}
    shares["all but the driver"] = sum(share for name, share in shares.items() if name != DRIVER)
    return [Measurement("d", f"CPU of {name}", "% of a core", [share], []) for name, share in shares.items()]
