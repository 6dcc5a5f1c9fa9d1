"""A job in the background whose services are a folder, which outlives its process: that process, what it writes down,
the commands and HTTP are the real ones.

What is there of the job is a file each: ``made``. A fault is a file as well, which the job's process finds whenever it
uses something: so it hits at a moment of the test's choice.
"""

import contextlib
import errno
import gc
import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import small_live
from small_live import manifest_of, without_waiting

from keyshift.control import background, client, files, forgetting, process
from keyshift.control.files import Jobs
from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import live_spec
from keyshift.lab import environment
from keyshift.lab import run as lab_run
from keyshift.lab.replicas.system import LiveReplicas
from keyshift.lab.run import Lab
from keyshift.lab.system import KeyshiftJob
from keyshift.model.errors import Deposed, JobOver, MigrationFailed, QueryDied, RunsElsewhere, ServiceUnavailable
from keyshift.place.profile import SparkProfile

REPLICATED = {"replicas": 2, "ordering": "live_robin", "returns": False}  # beside VALUES
VALUES = {"workload": "keycount", "key_groups": 16, "slots": 2, "strategy": "fluid", "recoveries": 1}
PARTS = ["topics", "nodes", "snapshots", "stores"]
WAIT_S = 60.0


class World:
    """In ``folder``."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def make(self, part):
        (self.folder / part).touch()

    def delete(self, part, *_):
        if self.faulty(f"no {part}"):
            raise ServiceUnavailable(f"the service of {part} is away")
        (self.folder / part).unlink(missing_ok=True)

    @property
    def made(self):
        """What there is of the job in the services."""
        return [part for part in PARTS if (self.folder / part).exists()]

    @property
    def epoch(self):
        """How often the job was claimed."""
        return len(list(self.folder.glob("claim-*")))

    def claimed(self):
        (self.folder / f"claim-{self.epoch + 1}").touch()
        return self.epoch

    @property
    def verdict(self):
        """Whether it is stored."""
        return (self.folder / "verdict").exists()

    def await_silence(self, *_):
        if self.faulty("elsewhere"):
            raise RunsElsewhere("somebody still writes into topic 'run-events': the job runs elsewhere")

    @property
    def drivers(self):
        """The processes that can be seen to drive the job."""
        return [int(path.name.removeprefix("driver-")) for path in self.folder.glob("driver-*")]

    def await_none(self, say):
        if self.faulty("no nodes"):
            raise ServiceUnavailable("ZooKeeper at z:1 did not answer within 10 s: is it running?")
        if self.faulty("present"):
            raise RunsElsewhere("ZooKeeper hears process 7 of host there still: the job runs elsewhere")

    def require_whole(self):
        if self.made != PARTS:
            raise ServiceUnavailable(f"there is only {self.made}: it cannot be resumed")

    def set(self, fault):
        (self.folder / fault).touch()

    def unset(self, fault):
        (self.folder / fault).unlink()

    def faulty(self, fault):
        return (self.folder / fault).exists()

    def stand_still(self, fault):
        """Until the fault is over, or the process is. Says so in the log."""
        if self.faulty(fault):
            sys.stderr.write(f"{fault}\n")
            (self.folder / f"{fault}: reached").touch()
        while self.faulty(fault):
            time.sleep(0.01)

    def reached(self, fault):
        return (self.folder / f"{fault}: reached").exists()


class Job(small_live.Job):
    """What a lab makes; with nodes, snapshots and state in stores."""

    def __init__(self, world, spec, config):
        super().__init__(spec)
        self.config = replace(self.config, job=config.job)
        self.world, self.log, self.epoch = world, [], 0

    def claim(self):
        if self.world.faulty("over"):
            raise JobOver("job one is over and cannot be resumed; what it left is not deleted yet")
        self.epoch = self.world.claimed()
        return self.epoch

    def require_driver(self):
        if self.epoch not in (0, self.world.epoch):
            raise Deposed("job one runs in another process now; this one ends and leaves everything to it")

    def start(self, assignments):
        super().start(assignments)
        self.claim()
        for part in PARTS[1:]:
            self.world.make(part)
        self.world.stand_still("starting")
        if self.world.faulty("no slots"):
            raise ServiceUnavailable("slots [1] did not say 'ready' within 120 s")

    def resume(self, past):
        self.use()
        self.world.require_whole()
        self.world.stand_still("resuming")
        super().resume(past)

    def recover(self):
        self.world.require_whole()
        super().recover()

    def restart(self, name, target, slots):
        if self.world.faulty("late"):
            self.world.unset("late")
            raise MigrationFailed("savepoint 0-abc of counter: slot-1 did not answer within 30 s")
        super().restart(name, target, slots)

    def check(self):
        super().check()
        self.use()

    def use(self):
        self.require_driver()
        if self.world.faulty("no ZooKeeper"):
            raise ServiceUnavailable("ZooKeeper at z:1 was away for 30 s")
        if self.world.faulty("query dies"):
            raise QueryDied("the Spark query has ended: a worker is gone")
        if self.world.faulty("a bug"):
            raise RuntimeError("nobody has thought of this")

    def stop(self):
        pass

    def end(self):
        if self.world.faulty("no nodes"):
            raise ServiceUnavailable("ZooKeeper is away")
        self.world.set("over")
        self.world.stand_still("ending")

    def read_log(self):
        pass

    def clean(self):
        for part in PARTS[1:3]:
            self.world.delete(part)


class Replicas(small_live.Replicas):
    """What a lab makes of a job that has some. All of them are in the same files."""

    def __init__(self, world, spec, configs):
        super().__init__(spec, {"shared": configs[0].shared}, lambda spec: Job(world, spec, configs[0]))
        for other in self.all[1:]:
            other.job.claim = lambda: 0
            other.job.require_driver = self.all[0].job.require_driver

    def go_on(self, replica, journal, epochs):
        replica.job.use()
        replica.job.world.require_whole()
        replica.job.world.stand_still("resuming")
        super().go_on(replica, journal, epochs)

    def stop(self):
        for end in self.before_stop:
            end()

    def end(self):
        self.all[0].job.end()

    def clean(self):
        self.all[0].job.clean()

    def read_log(self):
        pass

    def parts(self):
        return {}


class Traffic(small_live.Traffic):
    """With topics."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def open(self, again=False, superseded=()):
        if not again:
            self.world.make("topics")
            if not self.for_ever:
                self.world.make("for a day")

    def await_silence(self, frame_ms):
        self.world.await_silence()

    def check(self):
        if self.world.faulty("no Kafka"):
            raise ServiceUnavailable("the generator process died: no answer of Kafka for 60 s")

    def kill(self):
        pass

    def close(self):
        self.world.delete("topics")


class Presence:
    """Of who is killed nothing is known any more."""

    def __init__(self, world):
        self.world, self.await_none = world, world.await_none

    def begin(self, first=False):
        self.world.set(f"driver-{os.getpid()}")

    def end(self):
        (self.world.folder / f"driver-{os.getpid()}").unlink(missing_ok=True)


class Recording:
    """Of the verdict, if the store is there."""

    def __init__(self, world, spec, run_id):
        self.world, self.spec, self.run_id = world, spec, run_id

    def ended(self, outcome, log):
        if self.world.faulty("no store"):
            raise ServiceUnavailable("MinIO at m:1 cannot be reached")
        self.world.make("verdict")
        self.world.stand_still("stored")
        return manifest_of(self.run_id, self.spec)

    def died(self, error, log):
        self.world.make("died")


class Process:
    """As ``subprocess.Popen``: a job's process, forked, as imports take seconds."""

    def __init__(self, listener, log):
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        log.touch()
        told, mine = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_process(told, listener, log)
        os.close(told)
        self.stdin = os.fdopen(mine, "wb")
        self._process = psutil.Process(self.pid)

    def poll(self):
        with contextlib.suppress(psutil.TimeoutExpired):
            return self._process.wait(0)
        return None

    def wait(self):
        return self._process.wait(WAIT_S)

    def terminate(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.terminate()


def _become_process(told, listener, log):
    status = 70
    gc.freeze()  # an object of another test may end what has no threads and no sockets in here: gRPC aborts then
    try:
        os.dup2(told, 0)
        for other in set(range(3, 256)) - {listener}:  # locks, too
            with contextlib.suppress(OSError):
                os.close(other)
        sys.stdout = sys.stderr = open(log, "w", buffering=1)  # noqa: SIM115 - as long as the process
        process.main()
    except SystemExit as leaving:
        status = leaving.code
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(status)


@contextlib.contextmanager
def world_of(monkeypatch, folder):
    """Jobs that are started in here live in the world that this gives. Their processes are ended with it."""
    monkeypatch.setenv("KEYSHIFT_HOME", str(folder))
    world, spec, plain = World(folder / "world"), live_spec(VALUES), files.write_whole
    without_waiting(monkeypatch)

    def open_lab(*_, **__):
        lab = Lab(Endpoints("k:1", "z:1", "m:1", "a", "s"), [], folder, 16, lambda line: None, SparkProfile())
        lab.work, lab._closing = folder / "work", contextlib.ExitStack()
        lab._spark = SimpleNamespace(session=None, await_executors=lambda *_: None)
        lab._copy_bytes_per_s = 1.0
        lab.store = SimpleNamespace(holds=lambda run: world.verdict)
        return contextlib.nullcontext(lab)

    def system_of(spec, job):
        system = KeyshiftJob(spec, job)
        system.stop = system.final_state = lambda: None
        system.failover.presence = lambda token: Presence(world)
        return system

    class ReplicasHere(Replicas):
        def __init__(self, spec, configs, *_):
            super().__init__(world, spec, configs)

    def replicated(spec, replicas, say):
        system = LiveReplicas(spec, replicas, say)
        system.final_state = lambda: None
        system.failover.presence = lambda token: Presence(world)
        return system

    def write_whole(path, text):
        if world.faulty("disk full"):
            raise OSError(errno.ENOSPC, "No space left on device")
        if path.suffix == ".journal":
            world.stand_still("writing")
        plain(path, text)
        if path.suffix == ".journal":
            world.stand_still("kept")

    def services(profile, say, **_):
        return contextlib.nullcontext(Endpoints("k:1", "z:1", "m:1", "a", "s"))

    monkeypatch.setattr(files, "write_whole", write_whole)
    monkeypatch.setattr(process, "open_job_lab", open_lab)
    monkeypatch.setattr(lab_run, "job_traffic", lambda *_: Traffic(world))
    monkeypatch.setattr(lab_run, "Recording", lambda store, say, spec, run_id, *_: Recording(world, spec, run_id))
    monkeypatch.setattr(lab_run, "Job", lambda spark, config, *_: Job(world, spec, config))
    monkeypatch.setattr(lab_run, "KeyshiftJob", system_of)
    monkeypatch.setattr(lab_run, "Replicas", ReplicasHere)
    monkeypatch.setattr(lab_run, "LiveReplicas", replicated)
    monkeypatch.setattr(lab_run, "clean_stores", lambda *_: world.delete("stores"))
    monkeypatch.setattr(background, "detached", lambda _, log, pass_fds, **more: Process(*pass_fds, log))
    monkeypatch.setattr(environment, "require_java", lambda: None)
    for module in (background, client):
        monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(forgetting, "open_services", services)
    topic = Mock(await_silence=world.await_silence, delete=lambda: world.delete("topics"))
    monkeypatch.setattr(forgetting, "Topic", Mock(at=lambda *_: topic))
    monkeypatch.setattr(forgetting, "Presence", lambda *_: Presence(world))
    monkeypatch.setattr(forgetting, "Coordination", lambda *_: Mock(withdraw=lambda path: world.delete("nodes")))
    monkeypatch.setattr(forgetting, "SavepointStore", lambda *_: Mock(delete_all=lambda: world.delete("snapshots")))
    monkeypatch.setattr(forgetting, "clean_stores", lambda *_: world.delete("stores"))
    try:
        yield world
    finally:
        for job in Jobs().running():
            os.kill(job.pid, signal.SIGKILL)
            psutil.Process(job.pid).wait(WAIT_S)
