"""A store of results whose buckets are one dictionary, and runs to put into it."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
from small_bucket import ENDPOINTS

from keyshift.model.records import SnapshotRecord
from keyshift.results.files import Files
from keyshift.results.from_records import scaling_table, snapshots_table
from keyshift.results.manifest import Machine, Manifest, Stage, Summary, Verdict
from keyshift.results.store import ResultStore
from keyshift.results.tables import PLACE, TABLES
from memory_bucket import MemoryBucket

OTHER_MACHINE = Machine(cpus=64, memory_mib=100, system="Linux", cpu="some")  # than that of ``run``
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOMENTS = ("prepared_s", "switched_s", "aligned_s", "sent_s", "received_s", "installed_s", "drained_s")
YES_OR_NO = ("overloaded", "rate_changed", "one_job", "incomplete")  # of a summary: never unknown
PHASES = {"plan": 0.01, "prepare": 0.2, "align": 0.1, "transfer": 0.5, "install": 0.1, "catch_up": 0.1}


def row(strategy, **values):
    """The summary of a correct run, as tables and sentences of several take it, with what they need of it."""
    same = {"run_id": f"run-{strategy}", "workload": "keycount", "strategy": strategy, "verdict": "ok"}
    counts = dict.fromkeys(("lost", "duplicated", "reordered", "wrong"), 0)
    return same | counts | {"parameters": {"seed": 1}, "p99_ms": 20.0} | values


def files(prefix):
    return Files(ENDPOINTS, prefix, MemoryBucket())


def result_store(client=None, prefix="runs"):
    return ResultStore(ENDPOINTS, prefix, client or MemoryBucket())


def run(number=0, strategy="fluid", status="ok", parameters=None, notes=(), **figures):
    started = BEGIN + timedelta(minutes=number)
    run_id = f"{started:%Y%m%dT%H%M%S}-keycount-{strategy}-{number:06x}"
    same = {"run_id": run_id, "workload": "keycount", "strategy": strategy}
    same["parameters"] = {"rate": 2000.0, "seed": number} | (parameters or {})
    counts = {"lost": 0 if status == "ok" else 1, "duplicated": 0, "reordered": 0, "wrong": 0}
    measured = dict.fromkeys(set(Summary.model_fields) - {*same, *counts, "verdict", *YES_OR_NO})
    measured |= {"p99_ms": 30.0, "spike_ms": 60.0 + number, "completion_s": 1.5, "floor_s": 0.5, "silence_ms": 40.0}
    measured |= {"bytes_moved": 1000, "bytes_minimum": 1000, "phases": PHASES} | figures
    ended = status != "died"
    return Manifest(
        **same,
        status=status,
        error=None if ended else "Kafka at 10.1.2.3:9092 went away",
        started_at=started,
        finished_at=started + timedelta(seconds=40),
        versions={"python": "3.11", "pyspark": "4.3.0"},
        machine=Machine(cpus=2, memory_mib=100, system="Linux", cpu="some"),
        seeds={"events": number},
        stages=[Stage(name="keycount", due="event")],
        verdict=Verdict(**counts, ownership_violations=0) if ended else None,
        summary=Summary(**same, verdict=status, **counts, **measured) if ended else None,
        notes=list(notes),
    )


def make_table(name, columns):
    """The table ``name`` from a list or an array per column; ``stage`` and ``replica`` are 0 if they are left out."""
    columns = dict.fromkeys(PLACE, np.zeros(len(next(iter(columns.values()))), "i2")) | columns
    return pa.table({column: columns[column] for column in TABLES[name].names}, schema=TABLES[name])


def tables(seconds=20, per_s=50):
    created = np.arange(-seconds * per_s // 2, seconds * per_s // 2) / per_s
    slow = np.where((created >= 0) & (created < 2), 60.0, 20.0).astype("f4")
    times = np.arange(-seconds // 2, seconds // 2) + 0.5
    units = {name: [0, 0] for name in ("step", "source")} | {"unit": [3, 4], "destination": [1, 1], "bytes": [7, 9]}
    samples = [(m, i, v) for m, v in (("rss_mib", 500.0), ("cpu_cores", 0.5)) for i in ("spark_jvm", "python_workers")]
    metrics = {
        "t_s": np.tile(times, len(samples)),
        "metric": np.repeat([m for m, _, _ in samples], len(times)),
        "instance": np.repeat([i for _, i, _ in samples], len(times)),
        "value": np.repeat([v for _, _, v in samples], len(times)),
    }
    return {
        "latency": make_table(
            "latency", {"created_s": created, "latency_ms": slow, "slot": np.zeros(len(created), "i2")}
        ),
        "metrics": make_table("metrics", {name: column.tolist() for name, column in metrics.items()}),
        "migration": make_table(
            "migration", units | {name: [0.1 + 0.2 * number] * 2 for number, name in enumerate(MOMENTS)}
        ),
        "decisions": make_table("decisions", {"migration": [0], "unit": [3], "step": [0], "reason": ["first"]}),
        "scaling": scaling_table([], 0.0),
        "snapshots": snapshots_table([SnapshotRecord(1, 2, {"map": 3}, {"map": 4}, "one")], ["map"], 0, {"one": True}),
    }


def two_steps(size):
    """The table of a migration from which costs follow: of more bytes, the more of which the longer it takes."""
    one = tables()["migration"].to_pandas().iloc[[0]].assign(bytes=size << 20)
    one.loc[:, ["sent_s", "received_s", "installed_s", "drained_s"]] += 0.1 * size
    other = one.assign(step=1, unit=4)
    other.loc[:, list(MOMENTS)] += 1.5 + 0.1 * size
    return pd.concat([one, other], ignore_index=True)
