"""A live job whose system and traffic are stand-ins: everything but Spark, Kafka and what is behind them."""

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import Mock

import small_store

from keyshift.driver.completed import CompletedSnapshots
from keyshift.driver.job import Past
from keyshift.driver.stage_history import StageHistory
from keyshift.lab import backlog, run_loop
from keyshift.lab.live import run as live_run
from keyshift.lab.live.job import LiveJob
from keyshift.lab.live.journal import Keeper
from keyshift.lab.replicas import resume_points, returning
from keyshift.lab.replicas.jobs import LedReplica
from keyshift.lab.replicas.jobs import Replicas as RealReplicas
from keyshift.lab.replicas.system import LiveReplicas
from keyshift.lab.reporter import Reporter
from keyshift.lab.system import KeyshiftJob
from keyshift.model.errors import BadInput, Deposed, QueryDied
from keyshift.model.keys import Assignment, Assignments, Versions
from keyshift.model.notes import Activity, Doing, Note, NoteKind
from keyshift.model.records import Measured, Second
from keyshift.traffic.feed import Before, Progress
from keyshift.traffic.messages import Latencies
from keyshift.traffic.topics import OfferedSoFar
from keyshift.waiting import wait_until
from keyshift.wire.savepoint import Savepoint


class Stage:
    """Moves everything at once, as soon as ``go`` of its job is set."""

    late = False

    def __init__(self, job, name, spec):
        self.job, self.name, self.config = job, name, SimpleNamespace(slots=spec.tasks[name])
        self.assignments, self.requests, self.log, self.measured = [spec.start(name)], [], None, 0
        self.ask = self
        self.doing, self.several = Doing(Activity.STEADY), len(spec.workload.stages) > 1

    @property
    def assignment(self):
        return self.assignments[-1]

    @property
    def history(self):
        return StageHistory(Assignments(self.assignments), [1], [])

    @property
    def busy(self):
        return bool(self.requests)

    def check(self):
        if self.requests and self.job.go.is_set():
            target = self.assignment
            for step in self.requests.pop(0)(target):
                target = target.after(step)
            self.assignments.append(target)

    def request(self, make_steps, replace, behind):
        self.requests.append(make_steps)

    def note(self, text, kind=NoteKind.MIGRATION):
        return Note(text, self.name if self.several else "", kind)

    def cancel(self):
        if self.requests:
            words = f"{len(self.requests)} requests for a migration were taken back before they had begun"
            self.job.notes.append(self.note(words))
        self.requests.clear()

    def measure(self, *_):
        self.measured += 1
        return {
            slot: Measured(seconds=2.0, records=((slot, 10), (slot + 8, 5)), queue_bytes=7, host="h")
            for slot in range(self.config.slots)
        }


@dataclass(frozen=True)
class Config:
    """As much of a job's as is asked for."""

    of_stages: list
    job: str = "run"
    attempt: int = 0
    restore: str | None = None
    token: str = "secret"
    epochs: tuple = ()
    shared: str = "run"
    heartbeat_us: int = 20_000
    endpoints: object = None
    keep_snapshots: bool = False

    def chain(self):
        return self.of_stages

    def with_slots(self, slots):
        assert slots == {each.stage: each.slots for each in self.of_stages}
        return self


class Job:
    """Of the stages of the workload."""

    def __init__(self, spec):
        self.stages = [Stage(self, stage.name, spec) for stage in spec.workload.stages]
        self.notes, self.snapshots, self.dies, self.calls = [], CompletedSnapshots(), [], []
        self.deposed = False
        slots = {stage.name: stage.config.slots for stage in self.stages}
        chain = [SimpleNamespace(stage=name, slots=number) for name, number in slots.items()]
        self.config = Config(chain)
        self.in_journal = []
        self.snapshots.journaled = self.in_journal.append
        self.faults = SimpleNamespace(busy=False, done=[], struck=[], hit=self.hit)
        self.go = threading.Event()
        self.go.set()

    def stage(self, name):
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def notes_so_far(self):
        return self.notes

    def note(self, text, kind=NoteKind.TOLD):
        self.notes.append(Note(text, kind=kind))

    def start(self, assignments):
        assert len(assignments) == len(self.stages)
        self.calls.append("start")

    def check(self):
        if self.dies:
            raise QueryDied(self.dies.pop())
        for stage in self.stages:
            stage.check()

    def restart(self, name, target, slots):
        stage = self.stage(name)
        stage.config.slots = max(slots, len(set(target.owner)))
        stage.assignments.append(Assignment(stage.assignment.version + 1, target.owner))

    def claim(self):
        self.calls.append("claim")
        return 2

    def require_driver(self):
        if self.deposed:
            raise Deposed("another one drives")

    def resume(self, past):
        self.calls.append("resume")

    def recover(self):
        self.calls.append("recover")
        for stage in self.stages:
            stage.requests.clear()

    def past(self):
        stages = {stage.name: StageHistory(Assignments([stage.assignment]), [1], []) for stage in self.stages}
        return Past(stages, [], [], list(self.notes), Versions(), None, 0)

    def hit(self, fault):
        if fault.who not in ("slot", "coordinator"):
            raise BadInput(f"fault = {fault}: not here")
        if fault.who == "slot":
            self.dies.append("killed")


class Application:
    """Of a replica. A query that has ended is noticed when its job is looked at."""

    def __init__(self, job):
        self.job, self.isActive, self.pid = job, True, None

    def kill(self):
        self.isActive = False
        self.job.dies.append("the process of the replica is gone")

    def pause(self, seconds):
        self.paused_s = seconds

    strike = end = give_way_no_more = kill


class Replicas:
    """Those of a job, each of them a stand-in. ``behind``: epochs of each."""

    def __init__(self, spec, config=None, make_job=Job):
        self.spec, self.make_job, self.all = spec, make_job, []
        self.differences, self.struck, self.standings, self.order, self.behind = [], [], {}, None, {0: 0, 1: 0}
        self.before_stop, self.spares = [], SimpleNamespace(fill=lambda: None)
        self.services = SimpleNamespace(require=self.require_possible)
        self.activities, logs = [], [SimpleNamespace(ends=lambda: {0: 9})] * spec.job.replicas
        self.traffic = SimpleNamespace(result_logs=logs, require_input=lambda offsets: None)
        self.went_on, self.writing, self.is_writing = [], threading.Event(), False
        self.writing.set()
        for number in range(spec.job.replicas):
            job = make_job(spec)
            job.config = replace(job.config, job=f"run-r{number}", **(config or {}))
            self.all.append(LedReplica(number, Application(job), job, KeyshiftJob(spec, job)))
        for replica in self.all:
            replica.system.stop_at = lambda at_us: 7
            replica.system.stop = lambda: None

    living = RealReplicas.living

    def lag_ms(self, replica):
        return None if replica.number not in self.behind else 20.0 * self.behind[replica.number]

    def begin(self):
        pass

    def say(self, doing):
        self.activities.append(doing.activity)

    def keep_log(self):
        """Nobody has read any."""

    def require_possible(self, fault):
        """As on one machine."""
        if fault.who == "executor":
            raise BadInput(f"fault = {fault}: no executor")

    def require_driver(self):
        for replica in self.all:
            replica.job.require_driver()

    def begin_writing(self, check):
        self.is_writing = True
        while not self.writing.wait(0.01):
            check()
        self.is_writing = False

    def capture(self, replica, check):
        """As soon as ``writing`` is set."""
        self.begin_writing(check)
        names = [stage.name for stage in replica.job.stages]
        sizes, turns = (dict.fromkeys(names, each) for each in ({0: 100, 1: 60}, {0: 3}))
        saved = Savepoint(f"capture-{replica.job.config.attempt}", {0: 5}, sizes, turns)
        return saved, dict.fromkeys(names, 9)

    def go_on(self, replica, journal, epochs):
        self.went_on.append((replica.number, journal, epochs))
        for stage in replica.job.stages:
            if known := journal.past.stages.get(stage.name):
                stage.assignments = [known.assignments[-1]]
        replica.begins_from(None)
        replica.comes_to_life()

    def comes_back(self, replica):
        """As the next attempt of its job, from what the one has written that lives."""
        other, job = self.living[0], self.make_job(self.spec)
        job.config = replace(replica.job.config, attempt=replica.job.config.attempt + 1)
        for mine, theirs in zip(job.stages, other.job.stages, strict=True):
            mine.assignments = [theirs.assignment]
        replica.application, replica.job, replica.system = Application(job), job, KeyshiftJob(self.spec, job)
        replica.system.stop_at, replica.system.stop = (lambda at_us: 7), (lambda: None)
        replica.begins_from(None)
        replica.comes_to_life()


class Way:
    """Back, of a replica: it goes on when a test says so. ``begun``: all there are."""

    begun = []  # noqa: RUF012 - a test empties it

    def __init__(self, replica, replicas, newest, died):
        self.replica, self.replicas, self.newest, self.over, self.report = replica, replicas, newest, False, ""
        self.begins_from, self.from_older, self.full_at = None, False, None
        Way.begun.append(self)

    def full(self):
        if not self.replica.lives:
            self.replicas.comes_back(self.replica)
        self.report, self.full_at = f"replica {self.replica.number} was full again", time.time()
        self.over = True

    def fails(self):
        self.report = f"replica {self.replica.number} did not come back: no memory"
        self.over = True

    def end(self):
        self.report = "nobody waits for it any more"
        self.over = True


class Traffic:
    """Its feed keeps what it is told."""

    def __init__(self):
        self.told, self.pids, self.received, self.early = [], set(), 30, 0
        self.seconds = [Second(7, 3, 4.0, 6.0)]
        self.latencies = {0: Latencies(9.0, (2, 1) + (0,) * 11)}
        progress = [Progress(0.0, 0, 0), Progress(1.0, 300, 300)]
        self.feed_ = SimpleNamespace(sent=31, due=30, offered=None, before=Before(), progress=progress)
        self.feed_.rate_changed = False
        for name in ("begin", "change_rate", "end_load", "await_ready", "skip", "await_skipped"):
            setattr(self.feed_, name, lambda *given, name=name: self.told.append((name, *given)))

    def open(self, again=False, superseded=()):
        self.superseded = superseded

    def await_silence(self, frame_ms):
        self.told.append(("await_silence",))

    def require_input(self, offsets):
        assert not any(name == "feed" for name, *_ in self.told), "it would fill what is missing"
        self.required = offsets

    def count_offered(self):
        assert ("await_ready",) in self.told, "there may be more"
        return OfferedSoFar([20, 10], 25, (((5, 1),), ((7, 1), (8, 2))))

    def check(self):
        pass

    stop = check

    def feed(self, loads, frame_ms, epoch=1):
        self.told.append(("feed", *(load.rate for load in loads), epoch))
        return self.feed_

    def await_results(self, over, quiet_s):
        assert over()


def manifest_of(run, spec):
    """That of a run which has just ended, with a good verdict."""
    made = small_store.run(strategy=spec.strategy.name)
    known = {"run_id": run, "workload": spec.workload.name}
    return made.model_copy(update=known | {"summary": made.summary.model_copy(update=known)})


def without_waiting(monkeypatch):
    """Live runs look often, and nothing is sampled or judged."""
    for module in (run_loop, live_run):
        monkeypatch.setattr(module, "LEAD_S", 0.0)
        monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(backlog, "LOOK_S", 0.01)
    monkeypatch.setattr(run_loop, "Sampler", lambda *ignore: contextlib.nullcontext(SimpleNamespace(rows=[], notes=[])))
    monkeypatch.setattr(run_loop, "EndedJob", lambda *_: Mock())


@contextlib.contextmanager
def live_job(monkeypatch, spec, resume=None, **kept):
    """One that runs, with a ``Keeper`` that has what is ``kept``; ``job.inner``, its last stage ``job.counter`` and
    ``job.traffic`` are stand-ins, and ``job.loop`` is real. ``resume`` is what the inner job does instead of going on.
    It is given up at the end. With replicas ``job.replicas`` are stand-ins, and ``job.ways`` those back.
    """
    without_waiting(monkeypatch)
    several = spec.job.replicas > 1
    replicas, traffic, said, presence = Replicas(spec) if several else None, Traffic(), [], Mock()
    inner = replicas.all[0].job if several else Job(spec)
    inner.traffic = inner.output = traffic
    monkeypatch.setattr(returning, "Return", Way)
    monkeypatch.setattr(resume_points, "SavepointStore", Mock())
    monkeypatch.setattr(resume_points, "LOOK_S", 0.01)
    Way.begun.clear()

    keeper = Keeper()
    keeper.__dict__ |= {"outlives": "keep" in kept, **kept}

    def record(spec, run_id, make_script, end):
        if spec.job.replicas == 1:
            inner.config = replace(inner.config, job=run_id)
            system = KeyshiftJob(spec, inner)
            system.stop = lambda: None
        else:
            system = LiveReplicas(spec, replicas, said.append)
        system.final_state = lambda: None
        system.failover.presence = lambda token: presence
        job.loop = run_loop.RunLoop(spec, system, traffic, Reporter(said.append), lambda: None, make_script)
        job.loop.execute()
        return manifest_of(run_id, spec)

    if resume:
        monkeypatch.setattr(Job, "resume", lambda inner, past: resume(inner))
    job = LiveJob(record, spec, keeper=keeper)
    job.inner, job.counter, job.traffic, job.said = inner, inner.stages[-1], traffic, said
    job.replicas, job.ways, job.presence = replicas, Way.begun, presence
    threading.Thread(target=job.keep, daemon=True).start()
    try:
        job.await_ready()
        yield job
    finally:
        for each in [inner, *(replica.job for replica in (replicas.all if several else ()))]:
            each.go.set()
        job.give_up()
        if several:
            for end in replicas.before_stop:
                end()


def outcomes(job):
    """Of all its migrations."""
    return [each["outcome"] for each in job.status()["migrations"]]


def settled(job):
    """The slots of each stage, when nothing moves any more."""
    assert wait_until(lambda: not job.status()["migrating"], 60)
    return {name: told["slots"] for name, told in job.status()["stages"].items()}
