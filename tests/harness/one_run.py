"""One run of the real router, slot, job, coordinator, Flight server and verdict in one process: ``run(seed)``.

There is no Spark, Kafka, ZooKeeper or MinIO: see ``engine`` and ``nodes``. The seed decides the shape of the run and
what every part of it draws; how the threads interleave it does not, so that a seed may have to be run a few times until
it fails again.
"""

import contextlib
import random
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import judging
import numpy as np
import pandas as pd
import pyarrow.flight as flight
import pyspark
from driver_shape import Chain
from engine import HERE, Bucket, Engine, Topic
from flaky_flight import Failures
from leading import Fate, MortalAttempt
from nodes import Ensemble, Session
from shape import Shape, draw

from keyshift import objects
from keyshift.driver import attempt, job
from keyshift.driver import stage as led_stage
from keyshift.driver.job import Job
from keyshift.driver.snapshotter import SNAPSHOT_PREFIX
from keyshift.driver.stage import LedStage
from keyshift.endpoints import Endpoints
from keyshift.model import frames
from keyshift.model.errors import KeyshiftError, QueryDied
from keyshift.model.keys import Assignment, SlotId, Step
from keyshift.model.markers import Marker
from keyshift.model.notes import NoteKind
from keyshift.planner import in_units, make_plan
from keyshift.planner.targets import scale
from keyshift.runtime.protocol_log import EVENTS, LogEvent, to_lines
from keyshift.runtime.turns import TurnCore
from keyshift.wire import protocol_logs
from keyshift.wire.config import JobConfig
from keyshift.wire.nodes import ALL_ACKS, of_job
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker import daemon
from keyshift.worker import router as routing
from keyshift.worker.slot import host as slot_host
from keyshift.worker.slot import opening
from keyshift.worker.slot.task import SlotTask
from keyshift.workloads import results_due, workloads
from order_services import OrderServices

T = TypeVar("T")
LOAD_S = 6.0  # of load, at the most: a job that is slower than it would have a backlog for minutes
MIGRATIONS = 3
WITHIN_S = 5.0  # beyond the deadline of a phase, for whatever has to come in the end
LOOK_S = 0.05  # between two looks at whether the job lives
COPY_EVERY_S, COPY_LAG_KEYS = 0.05, 1000
MANY = 20  # processes from which Spark has gone: whether most of them end can be seen
LAST_EVENTS = 200  # of the protocol, that are shown of a bad run
TICK_S = 0.02  # a thread sleeps again and again, to see how late it wakes


@dataclass
class Outcome:
    """``problems``: check -> what it saw. ``seen``: how often what the tests want to have covered happened."""

    seed: int
    shape: Shape | Chain | None  # None: of a run that hangs
    pinned: dict[str, Any]
    problems: dict[str, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    log: list[LogEvent] = field(default_factory=list)
    late_s: float = 0.0  # how much later than it should a thread woke, at the most: what a full machine takes from all

    def problem(self, check: str, what: Any) -> None:
        """The first one of each check is told."""
        self.problems.setdefault(check, str(what))

    def beside(self, act: Callable[[], None]) -> None:
        """Do it in a thread of its own; nobody else would say that it has failed."""

        def run() -> None:
            try:
                act()
            except Exception:
                self.problem("harness", traceback.format_exc(limit=-3))

        threading.Thread(target=run, name=f"harness-{act.__name__}", daemon=True).start()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Inside, it is measured how late threads wake."""
        over = threading.Event()

        def tick() -> None:
            while not over.is_set():
                due = time.monotonic() + TICK_S
                over.wait(TICK_S)
                self.late_s = max(self.late_s, time.monotonic() - due)

        threading.Thread(target=tick, name="harness-ticks", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def __str__(self) -> str:
        pinned = "".join(f", {name}={value!r}" for name, value in self.pinned.items())
        problems = "\n".join(f"  {check}: {what}" for check, what in self.problems.items())
        log = f"the last events:\n{to_lines(self.log[-LAST_EVENTS:])}"
        seen = f"seen: {dict(self.seen)}\na thread that slept woke up to {self.late_s:.2f} s late"
        return f"replay: run({self.seed}{pinned})\n{self.shape}\n{seen}\nproblems:\n{problems}\n{log}"


def run(seed: int, **pinned: Any) -> Outcome:
    """One run; ``pinned``: see ``shape.draw``."""
    shape = draw(seed, **pinned)
    outcome = Outcome(seed, shape, pinned)
    failures = Failures(seed, shape.fails, shape.flight_s)
    ensemble, bucket = Ensemble(seed, shape.zookeeper_s), Bucket(seed, shape.store_s, shape.store_fails)
    fate = Fate(ensemble, shape.leader_dies)
    order = OrderServices(seed)
    with (
        outcome.measured(),
        installed(ensemble, bucket, failures, fate),
        order.installed(),
        _counted(TurnCore, "deliver", outcome.seen, "turns"),
        _counted(SlotTask, "_others_read", outcome.seen, "late behind their rows"),
    ):
        Run(outcome, ensemble, bucket).go()
        for client in failures.clients:
            client.close()
    outcome.seen["leaders died"] += fate.deaths
    outcome.seen.update({f"flight: {what}": times for what, times in failures.counted.items()})
    outcome.seen.update({f"order: {what}": times for what, times in order.seen.items()})
    return outcome


@contextlib.contextmanager
def _counted(owner: Any, method: str, seen: Counter[str], what: str) -> Iterator[None]:
    """Inside, each call counts."""
    original = getattr(owner, method)

    def count(*arguments: Any) -> Any:
        seen[what] += 1
        return original(*arguments)

    with patch.object(owner, method, count):
        yield


@contextlib.contextmanager
def installed(ensemble: Ensemble, bucket: Bucket, failures: Failures, fate: Fate) -> Iterator[None]:
    """Everything that is not there is stood in for."""
    with contextlib.ExitStack() as patches:
        tasks = ((module, TaskSession) for module in (opening, routing, slot_host))
        for module, kind in ((job, Session), (attempt, Session), *tasks):
            session = lambda _hosts, root, _secret="", epoch=None, kind=kind: kind(ensemble, root, epoch)  # noqa: E731
            patches.enter_context(patch.object(module, "Coordination", session))
        for where, name, instead in (
            (flight, "FlightClient", failures),
            (led_stage, "StageAttempt", partial(MortalAttempt, fate)),
            (pyspark.TaskContext, "get", classmethod(lambda cls: HERE.context)),
            (objects, "Minio", lambda *_, **__: bucket),
            (opening, "host_for", lambda config: HERE.process.host_for(config)),
            (protocol_logs, "to_lines", lambda events: ""),  # the outcome has them
            (daemon, "worker", lambda sock, authenticated: 1),  # ends with Spark's goodbye
            (slot_host, "_hosts", SimpleNamespace(values=lambda: HERE.process.values())),
            (slot_host, "LOOK_S", LOOK_S),
        ):
            patches.enter_context(patch.object(where, name, instead))
        yield


class TaskSession(Session):
    """That of a router or a slot."""


@dataclass(frozen=True)
class Request:
    """What is asked of the job, and when (monotonic seconds)."""

    at_s: float
    make: Callable[[], None]
    cancels: bool = False


class Run:
    """Load, job, migrations, savepoints, verdict: as ``lab.run_loop`` has it. Is the ``Output`` of its job itself."""

    def __init__(self, outcome: Outcome, ensemble: Ensemble, bucket: Bucket) -> None:
        self.outcome, self.shape, self.seed, self.seen = outcome, outcome.shape, outcome.seed, outcome.seen
        self._problem = outcome.problem
        self._ensemble, self._bucket = ensemble, bucket
        shape = self.shape
        self._rng = random.Random(f"run {self.seed}")
        workload = workloads.get(shape.workload)(**shape.parameters)
        sources, (first, *behind) = workload.sources, [stage.name for stage in workload.stages]
        config = JobConfig(
            job=f"job-{self.seed}",
            attempt=0,
            endpoints=Endpoints("kafka:1", "zookeeper:1", "minio:1", access_key="a", secret_key="s"),
            workload=shape.workload,
            parameters=shape.parameters,
            stage=first,
            routers=shape.routers * len(sources),
            sources=tuple((source.name, shape.routers) for source in sources),
            slots=shape.slots,
            onward=tuple((name, shape.slots_behind or shape.slots) for name in behind),
            hop_us=round(shape.frame_s * 750_000),
            key_groups=shape.parameters["key_groups"],
            bins=shape.point.bins,
            backend="memory",
            slots_per_process=shape.slots_per_process,
            token="token",
            chunk_bytes=shape.chunk_bytes,
            reserve_bytes=0,
            queue_bytes=shape.queue_bytes,
            deadline_s=shape.deadline_s,
            snapshot_s=shape.snapshot_s,
            ordering=shape.ordering,
            heartbeat_us=round(shape.heartbeat_s * 1e6),
            session_ms=500,
        )
        self._workload = config.make_workload()
        self.topic = Topic(config.routers)
        given = shape.batch_s, shape.moves, shape.slow_s, shape.leaves, shape.held_s
        self.engine = Engine(self.seed, self.topic, self._workload, *given)
        self.job = Job(self.engine.start_query, config, Path("/nowhere"), shape.batch_s, self)
        self.over, self.loading = threading.Event(), threading.Lock()
        self.load_s = LOAD_S
        self.loaded, self._offered, self.due = False, 0, 0  # whether the load has ended; events, and results due
        # Of the last plan for each stage, as long as nothing may keep it from being reached.
        self._targets: dict[str, Assignment] = {}
        self._first: Assignment | None = None  # the target that is told in advance, if copies are kept all the time
        self._left_behind: dict[str, set[tuple[int, int]]] = {}

    def go(self) -> None:
        """Everything; problems are in the outcome."""
        self.outcome.beside(self.load)
        self.outcome.beside(self._weather)
        try:
            self._execute()
            self.job.stop()
            self._judge()
        except BaseException as error:
            self._problem(type(error).__name__, "".join(traceback.format_exception(error)[-3:]))
            self.job.read_log()
        finally:
            self.over.set()
            with contextlib.suppress(AssertionError):
                self.job.stop()
            self.engine.end()
        self.outcome.log = self.job.log
        self.seen.update({"batches": self.engine.batches, "moved process": self.engine.moved})
        self.seen["processes left"] += len(self.engine.left)
        restored = (self.job.config.restore or "").startswith(SNAPSHOT_PREFIX)
        self.seen.update({"snapshots": len(self.job.snapshots.newest), "began from a snapshot": restored})
        self.seen["queries died"] += len(self.job.revoked) > 0

    # -- from the first event to the last result -----------------------------------------------------------------------

    def _execute(self) -> None:
        shape = self.shape
        groups, slots = shape.parameters["key_groups"], [stage.config.slots for stage in self.job.stages]
        begin = [Assignment.contiguous(groups, min(shape.begin_slots, each)) for each in slots]
        self.job.start([in_units(shape.point, each) for each in begin])
        if shape.dies_at_s is not None:
            threading.Timer(shape.dies_at_s, self.outcome.beside, (self._kill_query,)).start()
        if (ahead := shape.point.of_migration(0)).copies == "periodic":
            stage = self.job.stages[0]
            self._first = self._draw_target(stage, stage.assignment)
            copies = make_plan(ahead, stage.assignment, self._first).copies
            self._surviving(lambda: self._copy(stage, copies, ahead))
        now = time.monotonic()
        end, gap = now + shape.seconds, shape.seconds / (MIGRATIONS + 1)
        requests = deque(self._request(now + (n + 0.5) * gap, n) for n in range(MIGRATIONS))
        if shape.restarts:
            self._play(deque([requests.popleft()]), now + 1.5 * gap)
            self._surviving(self._restart)
        self._play(requests, end)
        with self.loading:
            self.loaded = True
        self._surviving(self._finish)

    def _finish(self) -> None:
        self.await_answered(fatal=False)
        most = 2 * len(self.job.stages)  # one that is late or a snapshot, and the one ahead
        if self.shape.held_s:  # or the savepoint is late, for which that one may have rows
            self.await_that("the batch of a slow process is over", lambda: self.engine.batches > 2)
        self.await_that("steps that are over are watched no more", lambda: self._watched() <= most, fatal=False)
        if len(left := [*self.engine.left]) > MANY and not self.shape.fails:  # some do not hear that all was taken
            self.await_that("processes end", lambda: sum(each.stays for each in left) <= len(left) // 2, fatal=False)
        self.job.savepoint()
        self.await_that("nothing is left behind", lambda: not any(self._look_behind().values()), fatal=False)
        self.job.read_log()

    def _watched(self) -> int:
        """How many folders of acknowledgements somebody listens to."""
        begin = f"{of_job(self.job.config.job)}/"
        with self._ensemble.lock:
            paths = [watch.path for each in self._ensemble.sessions for watch in each.watches if not watch.over]
        return sum(path.startswith(begin) and f"/{ALL_ACKS.path}/" in path for path in paths)

    def _look_behind(self) -> dict[str, set[tuple[int, int]]]:
        """By stage: units, and slots that have keys of them which are elsewhere, too."""
        for stage in self.job.stages:
            answers = stage.ask.measure().items()
            left = {(unit, slot) for slot, answer in answers for unit in answer.left_behind}
            self._left_behind[stage.name] = left
        return self._left_behind

    def _restart(self) -> None:
        stage = self._rng.choice(self.job.stages)
        self.job.restart(stage.name, scale(stage.assignment, self._rng.randint(1, self.shape.slots)))
        self._targets.clear()
        self.seen["restarts"] += 1

    def _request(self, at_s: float, number: int) -> Request:
        drawn = self._rng.random()
        stage = self.job.stages[0 if self._first else self._rng.randrange(len(self.job.stages))]
        if number and drawn < self.shape.overlaps / 2:
            return Request(at_s, stage.cancel, cancels=True)

        def plan(current: Assignment) -> tuple[Step, ...]:
            return self._plan(stage, number, current)

        return Request(at_s, lambda: stage.request(plan, replace=drawn < self.shape.overlaps))

    def _plan(self, stage: LedStage, number: int, current: Assignment) -> tuple[Step, ...]:
        """The steps of a migration, and copies before them if the strategy wants some."""
        point = self.shape.point.of_migration(number)
        if self._rng.random() < 0.3 and not self.shape.held_s:
            self.seen["measured"] += len(stage.ask.measure())
        heat = [self._rng.random() for _ in current.owner]
        target, known = self._first or self._draw_target(stage, current), self._first is not None
        self._targets[stage.name], self._first = target, None
        plan = make_plan(point, current, target, heat, self.seed)
        if plan.copies and not known:
            self._copy(stage, plan.copies, point)
            time.sleep(0.2 * self._rng.random())
        if self.shape.mode is None:
            return plan.steps
        return tuple(replace(step, mode=self.shape.mode) for step in plan.steps)

    def _copy(self, stage: LedStage, copies: Any, point: Any) -> None:
        if copies:
            stage.ask.copy(copies, COPY_EVERY_S, COPY_LAG_KEYS, point.handover == "whole")
            if self._rng.random() < 0.5 and not self.shape.held_s:
                answers = stage.ask.await_copies() or {}
                self.seen["copied"] += sum(answer.units for answer in answers.values())

    def _draw_target(self, stage: LedStage, current: Assignment) -> Assignment:
        slots, bins, rng = stage.config.slots, self.shape.point.bins, self._rng
        groups = len(current.owner) // bins
        one, some = rng.randrange(slots), rng.randint(1, slots)
        owners = {
            "random": [rng.randrange(slots) for _ in range(groups)],
            "one": [one] * groups,
            "scaled": [group * some // groups for group in range(groups)],
        }[rng.choice(("random", "one", "scaled"))]
        return Assignment(current.version, tuple(SlotId(owner) for owner in owners for _ in range(bins)))

    def _play(self, requests: "deque[Request]", until_s: float) -> None:
        """Make the requests, and let the job go on ``until_s``, or as much longer as migrations take."""
        cancelling = any(request.cancels for request in requests)

        def play() -> None:
            while requests:
                self._pass_until(requests[0].at_s)
                requests.popleft().make()
            self._pass_until(until_s)
            while any(stage.busy for stage in self.job.stages):
                self._pass_until(time.monotonic() + LOOK_S)

        self._surviving(play)
        if cancelling:
            self._targets.clear()

    def _surviving(self, step: Callable[[], T]) -> T:
        """``step``, and once more behind the death of the query that the shape has."""
        try:
            return step()
        except QueryDied as death:
            if "injected" not in str(death):
                raise
            self.job.recover()  # and what was requested goes on
            return step()

    # -- what happens to it --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Frames for all routers, and events in them until the load has ended, or more of it would only take longer."""
        rng, shape = random.Random(f"load {self.seed}"), self.shape
        most = time.monotonic() + self.load_s
        partitions = [(source, source.partition(n)) for source in self._workload.sources for n in range(shape.routers)]
        while not self.over.wait(shape.frame_s * (0.5 + rng.random())):
            for router, (source, partition) in enumerate(partitions):
                with self.loading:
                    now = time.time_ns() // 1000
                    events = 0 if self.loaded or time.monotonic() > most else rng.choice((0, 1, 3, 6))
                    times = now - np.arange(events, dtype=np.int64)[::-1]
                    batch = partition.take(times) if events else frames.empty(source.schema)
                    self.topic.partitions[router].append(frames.encode(batch, frames.Facts(now)))
                    self._offered += events
                    self.due += results_due(source, self._workload.stages, batch)

    def _weather(self) -> None:
        self._ensemble.weather(self.seed, self.shape.expires_s, self.over, self.seen)

    def _kill_query(self) -> None:
        if self.loaded:
            return
        with self._ensemble.lock:
            of_tasks = [each for each in self._ensemble.sessions if isinstance(each, TaskSession)]
        if self.shape.dies_by == "worker" or not of_tasks:
            self.engine.query.die(RuntimeError("injected: a worker was killed"))
        else:
            self._rng.choice(of_tasks).lose("injected: was lost")

    # -- waiting -------------------------------------------------------------------------------------------------------

    def await_that(
        self, what: str, there: Callable[[], bool], progress: Callable[[], Any] = lambda: None, fatal: bool = True
    ) -> None:
        """The deadline begins anew while what ``progress`` gives changes."""
        within_s = self.shape.deadline_s + self.shape.held_s + WITHIN_S
        seen, deadline = None, time.monotonic() + within_s
        while not there():
            self.job.check()
            if (now := progress()) != seen:
                seen, deadline = now, time.monotonic() + within_s
            if time.monotonic() > deadline:
                self._problem("never", what)
                if fatal:
                    raise KeyshiftError(f"{what}: not within {within_s:g} s")
                return
            time.sleep(0.02)

    def await_answered(self, fatal: bool = True) -> None:
        """Until every event has its result."""
        self.await_that("every event has its result", lambda: not self._unanswered(), self._unanswered, fatal)

    def _pass_until(self, at_s: float) -> None:
        while (left := at_s - time.monotonic()) > 0:
            self.job.check()
            time.sleep(min(left, LOOK_S))

    @property
    def received(self) -> int:
        """So many frames of results."""
        return len(self.engine.results)

    def await_slots(self, slots: Collection[int], said: Marker, check: Callable[[], None], replica: int = 0) -> None:
        """Until each of ``slots`` has said it."""
        self.await_that(f"slots say {said.kind!r}", lambda: set(slots) <= self.slots_that_said(said))

    def slots_that_said(self, what: Marker) -> set[int]:
        """The slots that have said it."""
        return {said.slot for said in list(self.engine.markers) if said.marker == what}

    def revoke(self, versions: Collection[int]) -> None:
        """What counts is asked of the job here."""

    def require_input(self, offsets: Mapping[int, int]) -> None:
        """All of it is there."""

    # -- what came of it -----------------------------------------------------------------------------------------------

    def _results(self) -> pd.DataFrame:
        return pd.concat(list(self.engine.results), ignore_index=True)

    def _unanswered(self) -> int:
        """Events without a result that is due and counts."""
        of_versions = list(self.engine.answered.items())
        answered = [events for version, events in of_versions if version not in self.job.revoked]
        return self.due - len(set().union(*answered))

    def _judge(self) -> None:
        job, topic, results = self.job, self.topic.read(self._workload), self._results()
        final = judging.final_state(job, self._left_behind)
        for check, what in judging.problems(self._workload, topic, self._offered, results, final):
            self._problem(check, what)
        store = SavepointStore(job.config.endpoints, job.config.job, self._bucket.with_all())
        snapshots = judging.snapshots(self._workload, topic, results, final, store)
        self.seen["snapshots judged"] += len(snapshots)
        for name, found in snapshots.items():
            if not found.ok:
                self._problem("snapshot", f"{name}: {'; '.join(found.examples)}")
        planned = not any(note.kind is NoteKind.MIGRATION for note in job.notes)  # otherwise one may be taken back
        for name, target in self._targets.items():
            last = job.stage(name).history.assignments[-1]
            if planned and target.owner != last.owner:
                self._problem("target", f"{target.owner} was wanted in {name}, {last.owner} came of it")
        if len(job.stages) == 1:
            self._judge_log(job.stages[0])
        for record in [record for stage in job.stages for record in stage.history.records]:
            self.seen[f"steps {record.outcome}"] += 1
            if record.outcome in ("late", "rolled back") and not self.shape.held_s:  # which is longer than a deadline
                self._problem("late", f"{record.outcome}: {record.step}; {job.notes}")
        self.seen["events"] += self._offered

    def _judge_log(self, stage: LedStage) -> None:
        """Whether the log of the last attempt, if it is whole, has all that arrived, and its cause before it."""
        job, events = self.job, Counter(event.place for event in self.job.log)
        if {f"slot-{slot}" for slot in range(job.config.slots)} - events.keys() or max(events.values()) >= EVENTS:
            return
        self.seen["logs judged"] += 1
        sent, installed = set(), set()
        for event in job.log:
            match event.event:
                case "send" | "lend" | "return":
                    sent.add(event[3:6])
                case "installed":
                    installed.add((event.version, event.place))
                case "arrived" if event.version > stage.history.begins[-1] and event[3:6] not in sent:
                    self._problem("log", f"{event} came from nowhere")
        for record in stage.history.records:
            if record.outcome == "complete" and record.version > stage.history.begins[-1]:
                ends = {(record.version, f"slot-{move.destination}") for move in record.step.moves}
                if missing := ends - installed:
                    self._problem("log", f"it does not know that {sorted(missing)} was installed")
