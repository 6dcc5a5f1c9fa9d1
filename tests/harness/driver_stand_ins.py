"""Puts the world of ``driver_world`` where the library meets services, processes and the disk; and makes it hurry."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import memory_kafka
import pyarrow.flight as flight
import pyspark
from driver_services import DrivenSession, Minio
from driver_world import Driver, Helper, World, place_driver
from engine import HERE
from flaky_flight import Failures
from places import here, interrupts_wait, threads_inherit

from keyshift import objects
from keyshift.control import background, files, forgetting, process
from keyshift.driver import attempt, job, questions
from keyshift.endpoints import Endpoints
from keyshift.lab import backlog, recording, run_loop
from keyshift.lab import run as lab_run
from keyshift.lab.live import inbox, presence
from keyshift.lab.live import journal as live_journal
from keyshift.lab.live import run as live_run
from keyshift.lab.machine import bare_copy
from keyshift.lab.run import Lab
from keyshift.model.errors import ServiceUnavailable
from keyshift.results.manifest import describe_machine, describe_versions
from keyshift.traffic import collector, feed, generator, topics, traffic, writer
from keyshift.traffic.process import JsonProcess
from keyshift.wire import protocol_logs
from keyshift.worker import router as routing
from keyshift.worker.slot import opening

ENDPOINTS = Endpoints("kafka:1", "zookeeper:1", "minio:1", access_key="a", secret_key="s")
PLACE = SimpleNamespace(
    control=SimpleNamespace(port=0, listen="127.0.0.1"), require_cores=lambda cores: None, services="none"
)
MACHINE, VERSIONS = describe_machine(), describe_versions()
CORES = 64

# What takes long beside services and would be most of a run, in seconds.
HURRY: list[tuple[Any, str, float]] = [
    (run_loop, "LOOK_S", 0.02),
    (backlog, "LOOK_S", 0.02),
    (live_run, "LOOK_S", 0.02),
    (run_loop, "LEAD_S", 0.02),
    (live_run, "LEAD_S", 0.02),
    (backlog, "SILENCE_S", 30.0),
    (run_loop, "LONGEST_PAUSE_S", 0.05),
    (presence, "LOOK_S", 0.01),
    (presence, "WAIT_S", 4.0),
    (live_journal, "KEEP_AGAIN_S", 0.1),
    (live_journal, "LONGEST_REST_S", 0.0),
    (questions, "CHECK_S", 0.02),
    (job, "SAY_S", 0.1),
    (protocol_logs, "ANSWER_S", 0.2),
    (background, "LOOK_S", 0.01),
    (traffic, "LOOK_S", 0.01),
    (traffic, "SAY_S", 8.0),
    (feed, "READY_S", 8.0),
    (feed, "ANSWER_S", 8.0),
    (topics, "SILENCE_S", 0.1),
    (topics, "ANSWER_MS", 600),
    (collector, "SECOND_US", 50_000),  # it says so often what has come
]


class Asked:
    """Stands in for ``client.Client``: asks the job itself."""

    world: World

    def __init__(self, file: files.JobFile) -> None:
        self._driver = self.world.drivers[file.pid]

    def status(self) -> dict[str, Any]:
        """As the process says it; it does not answer before it listens."""
        if self._driver.job is None or self._driver.place.paused or self._driver.status is not None:
            raise ServiceUnavailable("it does not answer")
        return self._driver.job.status()


@contextlib.contextmanager
def installed(world: World, failures: Failures, answer_s: float) -> Iterator[None]:
    """Inside, there is nothing else. A live job answers within ``answer_s``."""
    Helper.bodies = {
        "keyshift.traffic.generator": (generator.GeneratorConfig, generator.generate),
        "keyshift.traffic.collector": (collector.CollectorConfig, collector.collect),
    }
    with contextlib.ExitStack() as patches:
        put = patches.enter_context
        put(threads_inherit())
        put(patch.dict(os.environ, {"KEYSHIFT_HOME": str(world.folder)}))
        for module in (job, attempt, opening, routing, forgetting, presence):
            session = lambda _hosts, root, _secret="", epoch=None: DrivenSession(world, root, epoch)  # noqa: E731
            put(patch.object(module, "Coordination", session))
        for where, name, instead in [
            *HURRY,
            *_services(world, failures),
            *_processes(world),
            *_disk(world),
            (recording, "describe_machine", lambda: MACHINE),
            (recording, "describe_versions", lambda: VERSIONS),
            (bare_copy, "bytes_per_s", lambda path: 1e9),
            # Nobody's memory is of interest here.
            (run_loop, "Sampler", lambda *_: contextlib.nullcontext(SimpleNamespace(rows=[], notes=[]))),
            (lab_run, "interrupts_wait", interrupts_wait),
            (protocol_logs, "to_lines", lambda events: ""),
        ]:
            put(patch.object(where, name, instead, create=name == "open"))
        for name in ("__init__", "tell", "check", "stop", "kill", "next", "_run"):
            put(patch.object(JsonProcess, name, getattr(Helper, name), create=True))
        put(patch.object(JsonProcess, "bodies", Helper.bodies, create=True))
        put(patch.object(Asked, "world", world, create=True))
        put(patch.object(inbox, "ANSWER_S", answer_s))
        yield


def _services(world: World, failures: Failures) -> list[tuple[Any, str, Any]]:
    def client(kind: type) -> Any:
        return lambda *_, **__: kind(world.kafka)

    def started(engine: Any, *rest: Any) -> Any:
        return engine.start_query(*rest)

    quick = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds / 20))
    return [
        (topics, "KafkaAdminClient", client(memory_kafka.Admin)),
        (topics, "KafkaConsumer", client(memory_kafka.Consumer)),
        (topics, "time", quick),
        (collector, "KafkaConsumer", client(memory_kafka.Consumer)),
        (writer, "Producer", client(memory_kafka.Producer)),
        (collector, "say", lambda report: HERE.say(report)),
        (generator, "say", lambda report: HERE.say(report)),
        (objects, "Minio", lambda *_, **__: Minio(world)),
        (flight, "FlightClient", failures),
        (lab_run, "start_query", started),
        (pyspark.TaskContext, "get", classmethod(lambda cls: HERE.context)),
        (opening, "host_for", lambda config: HERE.process.host_for(config)),
        (lab_run, "spark_files", lambda home: home),
        (lab_run, "PlacedSpark", lambda *_: SimpleNamespace(session=_driver().engine, await_executors=lambda *_: None)),
    ]


def _processes(world: World) -> list[tuple[Any, str, Any]]:
    @contextlib.contextmanager
    def listening(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(fileno=lambda: 0)

    @contextlib.contextmanager
    def lab(spec: Any, profile: Any, say: Any, warned: bool) -> Iterator[Lab]:
        assert warned, "by who has started it"
        with Lab(ENDPOINTS, [], world.folder, CORES, say) as lab:
            yield lab

    def app(job: Any, token: str) -> None:
        _driver().job = job

    return [
        (background, "require_possible_here", lambda specs, profile: PLACE),
        (background, "listen", listening),
        (background, "url_of", lambda listener: "http://here:1"),
        (background, "identity", lambda pid: {"pid": pid, "created": 0.0, "born": "", "host": ""}),
        (background, "_launched", lambda listener, log: world.launch(log)),
        (background, "Client", Asked),
        (files.processes, "living", world.living_process),
        (process, "open", lambda *_, **__: _driver().stdin),
        (process, "os", SimpleNamespace(kill=lambda *_: _driver().terminate(), getpid=os.getpid)),
        (process, "socket", SimpleNamespace(socket=lambda fileno: None)),
        (process, "make_app", app),
        (process, "Server", lambda app, listener: SimpleNamespace(stop=lambda: None)),
        (process, "open_job_lab", lab),
        (forgetting, "open_services", lambda *_, **__: contextlib.nullcontext(ENDPOINTS)),
        (process, "tell", lambda line: None),
    ]


def _disk(world: World) -> list[tuple[Any, str, Any]]:
    """What is written there is there when it has its name, and only a process that lives does it."""

    def full() -> Exception:
        return OSError(errno.ENOSPC, "injected: no space left on device")

    def replaced(source: Any, target: Any, **more: Any) -> None:
        closing = str(source).endswith(".journal")
        with _at_disk(target, "unlink" if closing else "replace", full):
            if closing:
                world.deletes("the journal")
            replace(source, target, **more)
            if here() is not None and str(target).endswith(".journal") and (journal := world.journal()):
                world.watcher.kept(_driver(), journal)

    def unlinked(path: Any, **more: Any) -> None:
        with _at_disk(path, "unlink", full):
            if here() is not None and str(path).endswith(".journal") and Path(path).exists():
                world.deletes("the journal")
            unlink(path, **more)

    replace, unlink = os.replace, os.unlink
    return [(os, "replace", replaced), (os, "unlink", unlinked)]


def _at_disk(path: Any, call: str, broken: Any) -> contextlib.AbstractContextManager[None]:
    """Faults are for the files of jobs."""
    place = here()
    if place is None:
        return contextlib.nullcontext()
    if Path(path).suffix in (".journal", ".json", ".leftovers"):
        return place.calling(f"disk {call}", broken)
    place.check()
    return contextlib.nullcontext()


def _driver() -> Driver:
    place = here()
    assert place is not None
    return place_driver(place)
