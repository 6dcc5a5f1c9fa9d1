"""The course of one run: load, job, migration, recovery, verdict. What is stored of it is up to ``lab.run``."""

import math
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tqdm import tqdm

from keyshift.analysis.metrics import Load
from keyshift.endpoints import Endpoints
from keyshift.errors import QueryDied, ServiceUnavailable
from keyshift.executor.config import Certificate, JobConfig
from keyshift.executor.job import CHECK_S, Job, Savepoint
from keyshift.executor.leader import StepRecord, Wish
from keyshift.executor.savepoint import Location, SavepointStore
from keyshift.keys import Assignment, Move, Step
from keyshift.lab.sampler import Sampler
from keyshift.lab.spec import RunSpec
from keyshift.planner import Decision, Strategy, make_plan
from keyshift.results import verdict
from keyshift.results.manifest import Verdict
from keyshift.results.tables import NO_STAGE, PLACE, TABLES, make_table
from keyshift.runtime.protocol_log import Event
from keyshift.runtime.router import TICK_US
from keyshift.traffic import topics
from keyshift.traffic.process import JsonProcess
from keyshift.workloads.times import Times

READY_S = 120.0  # until every router and slot has put a first row through
SILENCE_S = 10.0  # without any result, after which what is missing does not come any more
LEAD_S = 0.5  # between the decision to start the load and its start
SECOND_US = 1_000_000
Say = Callable[[str], None]
T = TypeVar("T")


class Course:
    """One run from its topics to its verdict; leaves nothing behind."""

    def __init__(
        self,
        spark: SparkSession,
        endpoints: Endpoints,
        spec: RunSpec,
        run_id: str,
        work: Path,
        say: Say,
        await_executors: Callable[[], None],
        certificate: Certificate | None = None,
    ) -> None:
        self._spec, self._endpoints, self._say, self._work = spec, endpoints, say, work
        self._await_executors = await_executors
        self._workload = spec.workload
        [self._source], [self._stage] = spec.workload.sources, spec.workload.stages
        self._point = spec.point()
        self._decisions: list[tuple[int, Decision]] = []  # with the number of the migration
        self._to_move: set[int] | None = None  # units that were to move; None: nobody has planned yet
        self._savepoints: list[str] = []  # names of all that were committed
        self._copying: str | None = None
        self._copies: tuple[Move, ...] = ()
        self._replicate_s: float | None = None
        self._planned_s = 0.0
        self._notes: list[str] = []
        self._config = JobConfig(
            job=run_id,
            attempt=0,
            endpoints=endpoints,
            workload=spec.workload.name,
            parameters=spec.workload.model_dump(),
            stage=self._stage.name,
            routers=spec.job.routers,
            slots=spec.job.slots if self._restarts else spec.tasks,
            key_groups=spec.workload.key_groups,
            bins=spec.workload.bins,
            queue_bytes=spec.job.queue_bytes,
            backend=spec.backend.name,
            backend_settings=spec.backend.settings,
            token=secrets.token_urlsafe(24),
            certificate=certificate,
            chunk_bytes=spec.job.chunk_bytes,
            deadline_s=spec.job.deadline_s,
        )
        self._job = Job(spark, self._config, work, spec.job.batch_s)
        self._output = work / f"{run_id}.parquet"
        self._markers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._seconds: list[dict[str, Any]] = []
        self._received = 0
        self._count_from = 0  # the first second whose results count as received
        self._received_by_savepoint = 0
        self._deaths = 0
        self._offered: int | None = None
        self._due: int | None = None  # results that what was offered must have
        self._load_took_s = 0.0
        self._idle_since = math.inf  # seconds since the epoch at which the load was over: only a backlog is left
        self._overloaded = False
        self._phase = "warming up"
        self._children: list[JsonProcess] = []
        self._trigger_us = 0

    @property
    def _restarts(self) -> bool:
        return self._point.restarts

    def __enter__(self) -> "Course":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        steps = [
            *([self._job.read_log] if error is not None and issubclass(error, Exception) else []),
            self._job.stop,
            *(child.kill for child in self._children),
            self._job.clean,
            lambda: topics.delete_topic(self._endpoints.kafka, self._config.events_topic, self._endpoints.sign_in),
            lambda: topics.delete_topic(self._endpoints.kafka, self._config.results_topic, self._endpoints.sign_in),
            lambda: self._output.unlink(missing_ok=True),
        ]
        for step in steps:
            try:
                step()
            except Exception as error:  # the rest must go as well, and the run's own error is the news
                self._say(f"cleaning up: {type(error).__name__}: {error}")

    @property
    def log(self) -> list[Event]:
        """The last protocol events of the job: complete when the run has ended, whatever its end."""
        return self._job.log

    # -- the course of a run ------------------------------------------------------------------------------------------

    def execute(self) -> tuple[dict[str, pa.Table], Verdict, dict[str, Any], list[str]]:
        """Tables, verdict, what the summary needs beside the tables, and what a reader should know."""
        spec, kafka, sign_in = self._spec, self._endpoints.kafka, self._endpoints.sign_in
        topics.create_topic(kafka, self._config.events_topic, spec.job.routers, sign_in=sign_in)
        topics.create_topic(kafka, self._config.results_topic, spec.tasks, sign_in=sign_in)
        self._generator, self._collector = self._start_children()
        self._job.start(spec.start())
        self._wait_ready(self._config.slots, "ready: every router and slot has put a first row through")
        with Sampler(ignore={child.pid for child in self._children}) as sampler:
            start = time.time() + LEAD_S
            load_s = spec.run.load_s
            self._idle_since = start + load_s
            self._generator.tell({"start_at_us": int(start * SECOND_US), "seconds": load_s})
            with tqdm(total=round(load_s), unit="s", desc=spec.strategy.name, leave=False, disable=None) as bar:
                self._bar = bar
                self._surviving(lambda: self._pass_until(start + spec.run.warmup_s))
                self._phase = "steady"
                self._copy_ahead()
                trigger, end = start + spec.run.warmup_s + spec.scenario.trigger_s, start + load_s
                restarted: dict[str, Any] | None = None
                if self._restarts:
                    restarted = self._restart_at(trigger)
                else:
                    self._migrate_at(trigger, end)
                self._surviving(lambda: self._pass_until(end))
            measures, copied, final, left_behind = self._surviving(self._finish)
        self._notes += _hosts(measures)
        self._collector.stop()
        self._generator.stop()
        self._job.stop()
        self._say("comparing every result and the final state with the oracle")
        events, frames = topics.read_topic(
            kafka,
            self._config.events_topic,
            self._source.schema,
            spec.job.routers,
            before=final.offsets if self._overloaded else None,
            sign_in=sign_in,
            stage=self._stage,
        )
        results = pq.read_table(self._output).to_pandas()
        found = self._judge(events, frames, results, final, left_behind)
        job = self._job
        self._notes += job.troubles
        migration = restarted or _migration_columns(job.records, self._trigger_us)
        if self._to_move is None:
            self._wants(spec.start(), self._target(0, spec.start()))
        for line in _unmoved(self._to_move or set(), migration):
            self._say(line)
            self._notes.append(line)
        places = (migration[name] for name in ("unit", "source", "destination"))
        moved = {unit for unit, source, destination in zip(*places, strict=True) if source != destination}
        tables = {
            "latency": self._latency(results),
            "metrics": self._metrics(sampler, measures),
            "migration": make_table("migration", migration),
            "decisions": self._decision_table(),
        }
        facts = {
            "planned_s": self._planned_s,
            "replicate_s": self._replicate_s,
            "bytes_minimum": sum(final.unit_bytes[unit] for unit in moved),
            "bytes_by_key": sum(m["fetched_bytes"] + m["written_bytes"] for m in measures.values()),
            "bytes_copied": copied,
            "load": self._load(start, load_s, events, frames, final),
        }
        return tables, _as_manifest(found), facts, self._notes

    def _judge(
        self,
        events: pd.DataFrame,
        frames: pd.DataFrame,
        results: pd.DataFrame,
        final: Savepoint,
        left_behind: set[tuple[int, int]],
    ) -> verdict.Judgement:
        job, store = self._job, SavepointStore(self._endpoints, self._config.job)
        timers: list[pd.DataFrame] = []
        times = Times(
            frames,
            timers,
            job.assignments,
            ends=final.offsets,
            begins=job.begins,
            lending={record.version for record in job.records if record.step.mode.fetch_back},
            lag_us=TICK_US,
        )
        assert self._offered is not None  # the generator has ended
        return verdict.judge(
            self._workload,
            events,
            results,
            _final_state(store, final, timers),
            job.assignments,
            job.revoked,
            times,
            [_inventory(name, store.manifest(name)) for name in self._savepoints],
            left_behind,
            unread=self._offered - int(frames["events"].sum()),
        )

    def _finish(self) -> tuple[dict[int, dict[str, Any]], int | None, Savepoint, set[tuple[int, int]]]:
        """What slots measured, bytes of copies, the savepoint at which everything offered has been answered, and what
        was left behind.

        If the job is overloaded, everything before the savepoint's offsets has been answered, and nothing else.
        """
        self._phase = "catching up"
        self._await_results()
        measures, copied = self._job.measure(), self._copied()
        final = self._savepoint()
        left_behind = self._left_behind()
        self._job.read_log()
        return measures, copied, final, left_behind

    def _left_behind(self) -> set[tuple[int, int]]:
        """Units, and slots that have keys of them which are elsewhere, too. They are told soon that they may go."""
        deadline = time.monotonic() + SILENCE_S
        while True:
            left = {(unit, slot) for slot, m in self._job.measure().items() for unit in m["left_behind"]}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(CHECK_S)

    def _savepoint(self) -> Savepoint:
        """A savepoint, when every slot's last result has come out at the other end. It may have a backlog before it."""
        savepoint = self._job.savepoint(self._set_phase, lambda: self._received)
        self._savepoints.append(savepoint.name)
        self._await_sealed(savepoint)
        return savepoint

    def _load(self, start: float, load_s: float, judged: pd.DataFrame, frames: pd.DataFrame, final: Savepoint) -> Load:
        """``start``: of the load, in seconds since the epoch; ``judged``: the events that the verdict is about."""
        assert self._offered is not None  # the generator has ended
        begin_s = start - self._trigger_us / SECOND_US
        waited_for = frames
        if self._overloaded:
            waited_for = frames[frames["offset"] < frames["router"].map(final.offsets)]
        return Load(
            begin_s=begin_s,
            end_s=begin_s + load_s,
            took_s=self._load_took_s,
            events=self._offered,
            unprocessed=self._offered - int(waited_for["events"].sum()),
            due=int(verdict.due(self._stage, judged).sum()),
        )

    def _start_children(self) -> tuple[JsonProcess, JsonProcess]:
        spec, config = self._spec, self._config
        common = {"workload": config.workload, "parameters": config.parameters}
        common |= {"kafka": self._endpoints.kafka, "sign_in": asdict(self._endpoints.sign_in)}
        load: dict[str, Any] = {"rate": spec.run.rate, "rate_steps": spec.run.steps(), "frame_ms": spec.run.frame_ms}
        load |= {"routers": config.routers, "topic": config.events_topic}
        sink = {"topic": config.results_topic, "partitions": spec.tasks, "output": str(self._output)}
        self._children.append(JsonProcess("keyshift.traffic.generator", common | load, self._heard_generator))
        self._children.append(JsonProcess("keyshift.traffic.collector", common | sink, self._heard_collector))
        return self._children[0], self._children[1]

    def _copy_ahead(self) -> None:
        """Copies that are kept all the time: the planner is told the target in advance, if the copies go there."""
        point = self._point.phase(0)
        if point.replicas == "periodic":
            plan = make_plan(point, self._job.assignment, self._target(0), self._heat(), self._workload.seed)
            self._copy(plan.copies, point)

    def _copy(self, copies: tuple[Move, ...], point: Strategy) -> None:
        job = self._spec.job
        if copies:
            self._copies = copies
            self._copying = self._job.copy(copies, job.copy_every_s, job.copy_lag_keys, point.handover == "whole")

    def _migrate_at(self, trigger: float, end: float) -> None:
        """Let the job run to its end and migrate at the trigger, and again. Times in seconds since the epoch."""
        scenario = self._spec.scenario
        monotonic = time.monotonic() - time.time()
        wishes = []
        for number in range(len(scenario.reconfigurations)):
            cancels = number and scenario.on_overlap == "cancel"
            request = None if cancels else partial(self._plan, number)
            at_s = monotonic + trigger + number * scenario.gap_s
            wishes.append(Wish(at_s, request, replace=scenario.on_overlap == "replace"))
        self._trigger_us = round(trigger * SECOND_US)
        self._surviving(lambda: self._job.serve(wishes, monotonic + end, self._set_phase, self._check_backlog))

    def _plan(self, number: int, current: Assignment) -> tuple[Step, ...]:
        """The steps of the ``number``-th migration, from where the units are by now; copies first, if it wants some."""
        begin = time.perf_counter()
        point = self._point.phase(number)
        heat = self._heat() if point.order == "hottest" or self._spec.scenario.trigger == "balance" else ()
        target = self._target(number, current, heat)
        self._wants(current, target)
        plan = make_plan(point, current, target, heat, self._workload.seed)
        self._decisions += [(number, decision) for decision in plan.decisions]
        if number == 0:
            self._planned_s = time.perf_counter() - begin
        if plan.copies and point.replicas == "warm_up":
            self._set_phase("copying")
            copying = time.perf_counter()
            self._copy(plan.copies, point)
            self._job.await_copies(self._copying or "", {move.source for move in plan.copies})
            self._replicate_s = (self._replicate_s or 0.0) + time.perf_counter() - copying
        elif number and plan.copies:
            self._copy(plan.copies, point)
        return plan.steps

    def _wants(self, current: Assignment, target: Assignment) -> None:
        self._to_move = (self._to_move or set()) | {move.unit for move in current.moves_to(target)}

    def _target(self, number: int, current: Assignment | None = None, heat: Sequence[float] = ()) -> Assignment:
        return self._spec.target(
            current or self._job.assignment, number, heat or [1.0] * len(self._job.assignment.owner)
        )

    def _heat(self) -> list[float]:
        """Records per second of each unit since the attempt began."""
        heat = [0.0] * len(self._job.assignment.owner)
        for measures in self._job.measure().values():
            for unit, count in measures["records"]:
                heat[unit] += count / measures["seconds"]
        return heat

    def _copied(self) -> int | None:
        """Bytes of copies sent until they were close; None if nothing was copied."""
        if self._copying is None:
            return None
        answers = self._job.await_copies(self._copying, {move.source for move in self._copies})
        if self._replicate_s is None:
            self._replicate_s = max((a["at_us"] - a["began_us"]) / SECOND_US for a in answers.values())
        return sum(answer["bytes"] for answer in answers.values())

    def _decision_table(self) -> pa.Table:
        rows = [(number, d.unit, -1 if d.step is None else d.step, d.reason) for number, d in self._decisions]
        migration, unit, step, reason = zip(*rows, strict=True) if rows else ([], [], [], [])
        return make_table("decisions", {"migration": migration, "unit": unit, "step": step, "reason": reason})

    def _restart_at(self, trigger: float) -> dict[str, Any]:
        """Wait for the trigger (seconds since the epoch), plan and restart; the migration table's columns."""
        self._surviving(lambda: self._pass_until(trigger))
        self._trigger_us = time.time_ns() // 1000
        begin = time.perf_counter()
        current, target = self._job.assignment, self._target(0)
        self._wants(current, target)
        plan = make_plan(self._point, current, target)
        self._decisions += [(0, decision) for decision in plan.decisions]
        self._planned_s = time.perf_counter() - begin
        return self._restart(current, target)

    def _restart(self, current: Assignment, target: Assignment) -> dict[str, Any]:
        """Savepoint, stop, start anew. Every unit is written and read again, whether it moves or not."""
        savepoint = self._savepoint()
        self._received_by_savepoint = self._received
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
        return columns

    # -- the death of the query ---------------------------------------------------------------------------------------

    def _surviving(self, step: Callable[[], T]) -> T:
        """``step``, and once more after each death of the query, as long as the run may survive it."""
        death: QueryDied | None = None
        while True:
            try:
                if death is not None:
                    self._recover(death)
                return step()
            except QueryDied as error:
                self._deaths += 1
                if self._deaths > self._spec.run.recoveries:
                    raise
                death = error

    def _recover(self, death: QueryDied) -> None:
        moment = "in the warm-up"
        if self._trigger_us:
            since_s = time.time() - self._trigger_us / SECOND_US
            moment = f"{abs(since_s):.1f} s {'after' if since_s > 0 else 'before'} the trigger"
        self._say(f"{death}; starting anew")
        self._set_phase("recovering")
        begin = time.perf_counter()
        self._await_executors()
        self._copying = None  # copies died too, and are not made again
        self._count_from, self._received = math.ceil(time.time()), self._received_by_savepoint
        self._job.recover()
        self._wait_ready(self._job.config.slots, "")
        self._job.troubles.append(
            f"the query died {moment} ({death}); everything since its "
            f"{'savepoint' if self._job.config.restore else 'beginning'} was done again, which was under way after "
            f"{time.perf_counter() - begin:.1f} s; steps that had not switched by then were left out; latency counts "
            "the first result of an event"
        )
        self._set_phase("recovered")
        self._idle_since, self._overloaded = max(self._idle_since, time.time()), False

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._job.check()
        for child in self._children:
            child.check()

    def _check_backlog(self) -> None:
        """While a migration is under way, which may take long if every step has to get through a backlog."""
        self._check()
        if not self._overloaded and self._out_of_time():
            self._job.cancel()

    @property
    def _behind(self) -> bool:
        """Whether results are still to come of events that were offered, or are to be."""
        return self._due is None or self._received < self._due

    def _out_of_time(self) -> bool:
        """Whether there is still a backlog after the time allowed. If so, the job counts as overloaded from then on."""
        if self._behind and time.time() > self._idle_since + self._spec.run.catch_up_s:
            self._overloaded = True
            self._say(
                f"overloaded: the backlog was not worked off within catch_up_s = {self._spec.run.catch_up_s:g} s; "
                "the run ends with what has been processed"
            )
        return self._overloaded

    def _wait_ready(self, slots: int, line: str) -> None:
        ready: set[int] = set()
        for marker in self._heard_markers(READY_S, "ready", lambda: sorted(set(range(slots)) - ready)):
            ready.add(marker["slot"])
            if len(ready) == slots:
                break
        if line:
            self._say(line)

    def _await_sealed(self, savepoint: Savepoint) -> None:
        slots = set(range(self._job.config.slots))
        sealed: set[int] = set()
        for marker in self._heard_markers(READY_S, "sealed", lambda: sorted(slots - sealed), lambda: self._received):
            if marker["savepoint"] == savepoint.name:
                sealed.add(marker["slot"])
            if sealed == slots:
                return

    def _heard_markers(
        self, within_s: float, kind: str, missing: Callable[[], Any], progress: Callable[[], object] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """The time allowed begins anew while what ``progress`` gives changes."""
        deadline, attempt = time.monotonic() + within_s, self._job.config.attempt
        seen = progress()
        while time.monotonic() < deadline:
            if (now := progress()) != seen:
                seen, deadline = now, time.monotonic() + within_s
            try:
                marker = self._markers.get(timeout=0.2)
            except queue.Empty:
                self._check()
                continue
            if marker["marker"] == kind and marker.get("attempt", attempt) == attempt:
                yield marker
        raise ServiceUnavailable(f"slots {missing()} did not say {kind!r} within {within_s:g} s")

    def _pass_until(self, moment: float) -> None:
        while (left := moment - time.time()) > 0:
            self._check()
            time.sleep(min(left, 0.2))

    def _await_results(self) -> None:
        """Until all results that are due have come, or none comes any more (then some are lost), or time is up."""
        quiet_since, last = time.monotonic(), -1
        while self._behind:
            self._check()
            if self._received != last:
                last, quiet_since = self._received, time.monotonic()
            if time.monotonic() - quiet_since > SILENCE_S:
                self._say(f"only {self._received} of {self._due} results came")
                return
            if self._overloaded or self._out_of_time():
                return
            time.sleep(0.1)

    # -- what the children say ----------------------------------------------------------------------------------------

    def _set_phase(self, phase: str) -> None:
        self._phase = phase

    def _heard_generator(self, report: dict[str, Any]) -> None:
        if report.get("state") == "done":
            self._offered, self._due, self._load_took_s = report["events"], report["due"], report["took_s"]

    def _heard_collector(self, report: dict[str, Any]) -> None:
        if "marker" in report:
            self._markers.put(report)
        elif "second" in report:
            self._seconds.append(report)
            if report["second"] >= self._count_from:
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
        results = results[results["position"] >= 0]  # of events: nobody waits for a timer's result
        if self._job.revoked:
            results = results.sort_values("arrived_us").drop_duplicates(["router", "offset", "position"])
        created = (results["t"].to_numpy() - self._trigger_us) / SECOND_US
        latency = (results["arrived_us"].to_numpy() - results["t"].to_numpy()) / 1000
        return make_table(
            "latency",
            {"created_s": created, "latency_ms": latency.astype("f4"), "slot": results["slot"].to_numpy().astype("i2")},
        )

    def _metrics(self, sampler: Sampler, measures: dict[int, dict[str, Any]]) -> pa.Table:
        rows = [(*row, NO_STAGE) for row in sampler.rows]
        names_of = ("queue_peak_bytes", "rss_peak_bytes", "fetched_bytes", "fetched_keys", "written_bytes")
        for slot, measured in measures.items():
            rows += [(time.time(), name, f"slot-{slot}", float(measured[name]), 0) for name in names_of]
        rows += [(r["second"], "throughput_per_s", "collector", float(r["results"]), NO_STAGE) for r in self._seconds]
        moments, names, instances, values, stages = zip(*rows, strict=True) if rows else ([], [], [], [], [])
        relative = np.asarray(moments, "f8") - self._trigger_us / SECOND_US
        columns = {"t_s": relative, "metric": names, "instance": instances, "value": values, "stage": stages}
        return make_table("metrics", {name: list(column) for name, column in columns.items()})


def _final_state(store: SavepointStore, savepoint: Savepoint, timers: list[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The values of a savepoint, unit by unit; their timers go into ``timers``."""
    for slot, rows in store.manifest(savepoint.name)["places"].items():
        for row in rows:
            values, timed = store.read(Location(*row))
            timers.append(timed.to_pandas().assign(unit=row[0], slot=int(slot)))
            for batch in values:
                yield batch.to_pandas().assign(unit=row[0], slot=int(slot))


def _inventory(name: str, manifest: dict[str, Any]) -> verdict.Inventory:
    units = [(row[0], int(slot)) for slot, rows in manifest["places"].items() for row in rows]
    return verdict.Inventory(f"savepoint {name}", Assignment.from_json(manifest["assignment"]), units)


def _unmoved(to_move: set[int], migration: dict[str, Any]) -> list[str]:
    """A line if units were to move and none is known to have arrived."""
    columns = (migration[name] for name in ("source", "destination", "installed_s"))
    if not to_move or any(s != d and not math.isnan(installed) for s, d, installed in zip(*columns, strict=True)):
        return []
    return [f"nothing moved: {len(to_move)} units were to move, and none is known to have arrived"]


def _hosts(measures: dict[int, dict[str, Any]]) -> list[str]:
    """A line on which slots were where in the end, if not all on one host."""
    slots_of: dict[str, list[str]] = {}
    for slot, measured in sorted(measures.items()):
        slots_of.setdefault(measured["host"], []).append(str(slot))
    places = "; ".join(f"slots {', '.join(slots)} on {host}" for host, slots in slots_of.items())
    return [places] if len(slots_of) > 1 else []


def _migration_columns(records: list[StepRecord], trigger_us: int) -> dict[str, Any]:
    """Columns of the migration table from what coordinator and slots wrote down."""

    def since(us: float | None) -> float:
        return math.nan if us is None else (us - trigger_us) / SECOND_US

    columns: dict[str, list[Any]] = {name: [] for name in TABLES["migration"].names if name not in PLACE}
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


def _as_manifest(found: verdict.Judgement) -> Verdict:
    return Verdict(
        lost=found.lost,
        duplicated=found.duplicated,
        reordered=found.reordered,
        wrong=found.wrong,
        ownership_violations=found.foreign,
        others={"unexpected": found.unexpected, "unread": found.unread},
        examples=list(found.examples),
    )
