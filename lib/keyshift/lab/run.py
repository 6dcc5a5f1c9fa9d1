"""Run experiments: services, load, job, migration, verdict, result. The one way, for notebooks and command line."""

import contextlib
import math
import queue
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from keyshift.analysis import metrics as analysis
from keyshift.endpoints import Endpoints
from keyshift.errors import KeyshiftError, ServiceUnavailable
from keyshift.executor.config import JobConfig
from keyshift.executor.coordinator import StepRecord
from keyshift.executor.job import Job, Savepoint
from keyshift.executor.pipeline import session
from keyshift.executor.savepoint import Place, SavepointStore
from keyshift.keys import Assignment
from keyshift.lab import floor, topics, verdict
from keyshift.lab.children import Child
from keyshift.lab.folders import require_room
from keyshift.lab.manifest import (
    TABLES,
    Manifest,
    Summary,
    Verdict,
    describe_machine,
    describe_versions,
    make_table,
    new_run_id,
)
from keyshift.lab.sampler import Sampler
from keyshift.lab.spec import RunSpec
from keyshift.lab.store import ResultStore
from keyshift.planner import Plan, make_plan, strategies

READY_S = 120.0  # until every router and slot has put a first row through
CATCH_UP_S = 60.0  # until the results of everything offered have come
ROOM_BYTES = 512 << 20  # of the state folder: results, savepoints and Spark's files of one run
LEAD_S = 0.5  # between the decision to start the load and its start
SECOND_US = 1_000_000
Say = Callable[[str], None]


class Lab:
    """A Spark session and the services around it, for one or more runs. A context manager.

    ``cores``: logical cores of the session, the largest that any of the runs needs.
    """

    def __init__(self, endpoints: Endpoints, jars: list[Path], home: Path, cores: int, master: str, say: Say) -> None:
        self._endpoints, self._jars, self._home, self._say = endpoints, jars, home, say
        self._cores, self._kind = cores, master
        self.store = ResultStore(endpoints)

    def __enter__(self) -> "Lab":
        self.store.list_runs(limit=1)  # wrong credentials and missing buckets show now, not after the run
        require_room(self._home, ROOM_BYTES, "name another folder with KEYSHIFT_HOME")
        self._work = Path(tempfile.mkdtemp(prefix="spark-", dir=self._home))
        master = f"local[{self._cores}]"
        if self._kind == "local-cluster":
            master = f"local-cluster[2,{math.ceil(self._cores / 2)},1024]"
        self._say(f"starting Spark, {master}")
        try:
            self._spark = session(master, self._jars, self._work, self._home / "spark.log")
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        self._copy_bytes_per_s = floor.bytes_per_s(self._home / "floor.json")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._spark.stop()
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def run(self, spec: RunSpec) -> Manifest:
        """One run, stored whatever its verdict. Raises KeyshiftError if it died; then a manifest says so."""
        run_id = new_run_id(spec.workload, spec.strategy)
        started = datetime.now(UTC)
        common: dict[str, Any] = {
            "run_id": run_id,
            "started_at": started,
            "workload": spec.workload,
            "strategy": spec.strategy,
            "parameters": spec.model_dump(),
            "versions": describe_versions(),
            "machine": describe_machine(),
            "seeds": {"events": spec.seed},
        }
        self._say(f"run {run_id}")
        try:
            with _Run(self._spark, self._endpoints, spec, run_id, self._work, self._say) as run:
                tables, judged, facts = run.execute()
            figures = analysis.summarise(
                tables["latency"].to_pandas(),
                tables["migration"].to_pandas(),
                tables["metrics"].to_pandas(),
                since_s=-spec.trigger_s,
                copy_bytes_per_s=self._copy_bytes_per_s,
                **facts,
            )
            summary = Summary(
                run_id=run_id,
                workload=spec.workload,
                strategy=spec.strategy,
                verdict="ok" if judged.ok else "bad",
                lost=judged.lost,
                duplicated=judged.duplicated,
                reordered=judged.reordered,
                wrong=judged.wrong,
                parameters=spec.model_dump(),
                **figures,
            )
            manifest = Manifest(
                **common, status=summary.verdict, finished_at=datetime.now(UTC), verdict=judged, summary=summary
            )
            return self.store.put_run(manifest, tables)
        except BaseException as error:
            words = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            died = Manifest(**common, status="died", error=words, finished_at=datetime.now(UTC))
            with contextlib.suppress(KeyshiftError):  # the store may be what died; the first error is the news
                self.store.put_run(died, {})
            raise


class _Run:
    """One run from its topics to its verdict; leaves nothing behind."""

    def __init__(self, spark: Any, endpoints: Endpoints, spec: RunSpec, run_id: str, work: Path, say: Say) -> None:
        self._spec, self._endpoints, self._say, self._work = spec, endpoints, say, work
        self._workload = spec.make_workload()
        self._config = JobConfig(
            job=run_id,
            attempt=0,
            endpoints=endpoints,
            workload=spec.workload,
            parameters=spec.workload_parameters(),
            routers=spec.routers,
            slots=spec.slots if self._restarts else spec.tasks,
            key_groups=spec.key_groups,
            backend=spec.backend,
            token=secrets.token_urlsafe(24),
            chunk_bytes=spec.chunk_bytes,
            deadline_s=spec.deadline_s,
            fault=spec.fault,
        )
        self._job = Job(spark, self._config, work, spec.batch_s)
        self._output = work / f"{run_id}.parquet"
        self._markers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._seconds: list[dict[str, Any]] = []
        self._received = 0
        self._offered: int | None = None
        self._phase = "warming up"
        self._children: list[Child] = []
        self._trigger_us = 0

    @property
    def _restarts(self) -> bool:
        return strategies.get(self._spec.strategy).restarts

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, *_: object) -> None:
        steps = [
            self._job.stop,
            *(child.kill for child in self._children),
            self._job.clean,
            lambda: topics.delete_topic(self._endpoints.kafka, self._config.events_topic),
            lambda: topics.delete_topic(self._endpoints.kafka, self._config.results_topic),
            lambda: self._output.unlink(missing_ok=True),
        ]
        for step in steps:
            try:
                step()
            except Exception as error:  # the rest must go as well, and the run's own error is the news
                self._say(f"cleaning up: {type(error).__name__}: {error}")

    # -- the course of a run ------------------------------------------------------------------------------------------

    def execute(self) -> tuple[dict[str, pa.Table], Verdict, dict[str, Any]]:
        """Tables, verdict, and what the summary needs beside the tables."""
        spec = self._spec
        topics.create_topic(self._endpoints.kafka, self._config.events_topic, spec.routers)
        topics.create_topic(self._endpoints.kafka, self._config.results_topic, spec.tasks)
        self._generator, self._collector = self._start_children()
        self._job.start(spec.start())
        self._wait_ready(self._config.slots, "ready: every router and slot has put a first row through")
        with Sampler(ignore={child.pid for child in self._children}) as sampler:
            start = time.time() + LEAD_S
            load_s = spec.warmup_s + spec.seconds
            self._generator.tell({"start_at_us": int(start * SECOND_US), "seconds": load_s})
            with tqdm(total=round(load_s), unit="s", desc=spec.strategy, leave=False, disable=None) as bar:
                self._bar = bar
                self._pass_until(start + spec.warmup_s)
                self._phase = "steady"
                self._pass_until(start + spec.warmup_s + spec.trigger_s)
                self._trigger_us = time.time_ns() // 1000
                migration, planned_s, minimum = self._migrate()
                self._pass_until(start + load_s)
            self._phase = "catching up"
            self._await_results()
            final = self._job.savepoint(self._set_phase)
            self._await_sealed(final)
        self._collector.stop()
        self._generator.stop()
        self._job.stop()
        self._say("comparing every result and the final state with the oracle")
        events = topics.read_topic_events(
            self._endpoints.kafka, self._config.events_topic, self._workload.event_schema, spec.routers
        )
        results = pq.read_table(self._output).to_pandas()
        found = verdict.judge(self._workload, events, results, self._final_state(final), self._job.assignments)
        tables = {
            "latency": self._latency(results),
            "metrics": self._metrics(sampler),
            "migration": make_table("migration", migration),
        }
        facts = {"planned_s": planned_s, "bytes_minimum": minimum}
        return tables, _as_manifest(found), facts

    def _start_children(self) -> tuple[Child, Child]:
        spec, config = self._spec, self._config
        common = {"kafka": self._endpoints.kafka, "workload": spec.workload, "parameters": config.parameters}
        load = {"rate": spec.rate, "routers": spec.routers, "frame_ms": spec.frame_ms, "topic": config.events_topic}
        sink = {"topic": config.results_topic, "partitions": spec.tasks, "output": str(self._output)}
        self._children.append(Child("keyshift.lab.generator", common | load, self._heard_generator))
        self._children.append(Child("keyshift.lab.collector", common | sink, self._heard_collector))
        return self._children[0], self._children[1]

    def _migrate(self) -> tuple[dict[str, Any], float, int]:
        """Plan and move. Gives the migration table's columns, seconds spent planning, and bytes that had to move."""
        spec = self._spec
        begin = time.perf_counter()
        current = self._job.assignment
        target = spec.target()
        plan = make_plan(strategies.get(spec.strategy), current, target)
        planned_s = time.perf_counter() - begin
        if not self._restarts:
            records = self._job.migrate(plan.steps, self._set_phase, self._check)
            columns = _migration_columns(records, self._trigger_us)
            return columns, planned_s, sum(columns["bytes"])
        columns, minimum = self._restart(plan, current, target)
        return columns, planned_s, minimum

    def _restart(self, plan: Plan, current: Assignment, target: Assignment) -> tuple[dict[str, Any], int]:
        """Savepoint, stop, start anew. Every unit is written and read again, whether it moves or not."""
        savepoint = self._job.savepoint(self._set_phase)
        self._await_sealed(savepoint)
        aligned_us = time.time_ns() // 1000
        self._set_phase("stopping")
        self._job.stop()
        stopped_us = time.time_ns() // 1000
        self._set_phase("starting anew")
        slots = len(set(target.owner))
        self._job.restart(savepoint, Assignment(current.version + 1, target.owner), slots)
        self._wait_ready(slots, "")
        self._set_phase("restoring")
        restored = self._job.await_restored()
        self._set_phase("restored")
        rows = [(unit, *times) for answer in restored for unit, *times in answer["units"]]
        received = {unit: received_us for unit, received_us, _ in rows}
        installed = {unit: installed_us for unit, _, installed_us in rows}
        units = sorted(savepoint.unit_bytes)

        def since(us: float) -> float:
            return (us - self._trigger_us) / SECOND_US

        columns = {
            "step": [0] * len(units),
            "unit": units,
            "source": [current.owner[unit] for unit in units],
            "destination": [target.owner[unit] for unit in units],
            "bytes": [savepoint.unit_bytes[unit] for unit in units],
            "prepared_s": [0.0] * len(units),
            "switched_s": [0.0] * len(units),
            "aligned_s": [since(aligned_us)] * len(units),
            "sent_s": [since(stopped_us)] * len(units),
            "received_s": [since(received[unit]) for unit in units],
            "installed_s": [since(installed[unit]) for unit in units],
            "drained_s": [since(max(installed.values()))] * len(units),
        }
        moving = [move.unit for step in plan.steps for move in step.moves]
        return columns, sum(savepoint.unit_bytes[unit] for unit in moving)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._job.check()
        for child in self._children:
            child.check()

    def _wait_ready(self, slots: int, line: str) -> None:
        ready: set[int] = set()
        for marker in self._heard_markers(READY_S, "ready", lambda: sorted(set(range(slots)) - ready)):
            ready.add(marker["slot"])
            if len(ready) == slots:
                break
        if line:
            self._say(line)

    def _await_sealed(self, savepoint: Savepoint) -> None:
        """Until every slot's last result has come out at the other end."""
        slots = set(range(self._job.config.slots))
        sealed: set[int] = set()
        for marker in self._heard_markers(READY_S, "sealed", lambda: sorted(slots - sealed)):
            if marker["savepoint"] == savepoint.name:
                sealed.add(marker["slot"])
            if sealed == slots:
                return

    def _heard_markers(self, within_s: float, kind: str, missing: Callable[[], Any]) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                marker = self._markers.get(timeout=0.2)
            except queue.Empty:
                self._check()
                continue
            if marker["marker"] == kind:
                yield marker
        raise ServiceUnavailable(f"slots {missing()} did not say {kind!r} within {within_s:g} s")

    def _pass_until(self, moment: float) -> None:
        while (left := moment - time.time()) > 0:
            self._check()
            time.sleep(min(left, 0.2))

    def _await_results(self) -> None:
        """Until as many results as events have come, or none comes any more (then some are lost)."""
        deadline, quiet_since, last = time.monotonic() + CATCH_UP_S, time.monotonic(), -1
        while self._offered is None or self._received < self._offered:
            self._check()
            if self._received != last:
                last, quiet_since = self._received, time.monotonic()
            if time.monotonic() > deadline or time.monotonic() - quiet_since > CATCH_UP_S / 6:
                self._say(f"only {self._received} of {self._offered} results came")
                return
            time.sleep(0.1)

    # -- what the children say ----------------------------------------------------------------------------------------

    def _set_phase(self, phase: str) -> None:
        self._phase = phase

    def _heard_generator(self, report: dict[str, Any]) -> None:
        if report.get("state") == "done":
            self._offered = report["events"]

    def _heard_collector(self, report: dict[str, Any]) -> None:
        if "marker" in report:
            self._markers.put(report)
        elif "second" in report:
            self._seconds.append(report)
            self._received += report["results"]
            bar = getattr(self, "_bar", None)
            if bar is not None and not bar.disable:
                bar.update(min(1, bar.total - bar.n))
            if bar is not None:
                values = [f"{report['results']:6d} results/s"]
                values += [f"{q} {report[f'{q}_ms']:7.1f} ms" for q in ("p50", "p99") if report[f"{q}_ms"] is not None]
                self._say(f"  {'  '.join(values)}  {self._phase}")

    # -- tables -------------------------------------------------------------------------------------------------------

    def _latency(self, results: pd.DataFrame) -> pa.Table:
        created = (results["t"].to_numpy() - self._trigger_us) / SECOND_US
        latency = (results["arrived_us"].to_numpy() - results["t"].to_numpy()) / 1000
        return make_table(
            "latency",
            {"created_s": created, "latency_ms": latency.astype("f4"), "slot": results["slot"].to_numpy().astype("i2")},
        )

    def _metrics(self, sampler: Sampler) -> pa.Table:
        rows = [*sampler.rows]
        rows += [(r["second"], "throughput_per_s", "collector", float(r["results"])) for r in self._seconds]
        moments, names, instances, values = zip(*rows, strict=True) if rows else ([], [], [], [])
        relative = np.asarray(moments, "f8") - self._trigger_us / SECOND_US
        return make_table(
            "metrics", {"t_s": relative, "metric": list(names), "instance": list(instances), "value": list(values)}
        )

    def _final_state(self, savepoint: Savepoint) -> Iterator[pd.DataFrame]:
        store = SavepointStore(self._endpoints, self._config.job)
        for slot, rows in store.manifest(savepoint.name)["places"].items():
            for row in rows:
                for batch in store.read(Place(*row)):
                    part = batch.to_pandas()
                    part.insert(0, "unit", row[0])
                    part.insert(1, "slot", int(slot))
                    yield part


def _migration_columns(records: list[StepRecord], trigger_us: int) -> dict[str, Any]:
    """Columns of the migration table from what coordinator and slots wrote down."""

    def since(us: float | None) -> float:
        return math.nan if us is None else (us - trigger_us) / SECOND_US

    columns: dict[str, list[Any]] = {name: [] for name in TABLES["migration"].names}
    for number, record in enumerate(records):
        for move in record.step.moves:
            released = record.acknowledgements.get(("released", move.source), {"units": []})
            installed = record.acknowledgements.get(("installed", move.destination), {"units": [], "drained_us": None})
            out = next((row for row in released["units"] if row[0] == move.unit), [move.unit, 0, None, None])
            into = next((row for row in installed["units"] if row[0] == move.unit), [move.unit, None, None])
            row = [
                number, move.unit, move.source, move.destination, out[1],
                since(record.prepared_us), since(record.switched_us), since(out[2]), since(out[3]),
                since(into[1]), since(into[2]), since(installed["drained_us"]),
            ]  # fmt: skip
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
    return columns


def _as_manifest(found: verdict.Verdict) -> Verdict:
    return Verdict(
        lost=found.lost,
        duplicated=found.duplicated,
        reordered=found.reordered,
        wrong=found.wrong,
        ownership_violations=found.foreign,
        others={"unexpected": found.unexpected},
        examples=list(found.examples),
    )


def run_all(lab: Lab, specs: list[RunSpec]) -> Iterator[Manifest]:
    """Every spec, each as often as its ``repetitions`` say, the strategies in turn so that drift hits all alike."""
    most = max(spec.repetitions for spec in specs)
    for repetition in range(most):
        for spec in specs:
            if repetition < spec.repetitions:
                yield lab.run(spec.model_copy(update={"seed": spec.seed + repetition}))
