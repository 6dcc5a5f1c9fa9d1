"""Faults of services: only of our own, which nobody else uses; a run waits for their end."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock, call

import psutil
import pytest

from keyshift.experiment.spec import make_spec
from keyshift.folders import locked
from keyshift.lab import service_faults
from keyshift.lab.service_faults import ServiceFaults, require_possible
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.place.profile import SparkProfile
from keyshift.services import processes
from keyshift.services.stack import Stack
from keyshift.services.users import Users
from keyshift.waiting import wait_until
from keyshift.wire.faults import parse


class Services:
    """Keeps what is done to them; a restart lasts until it is let go. ``first``: what a node's name ends with."""

    def __init__(self, failure=None, first=""):
        self.calls, self.go, self.failure, self.others = [], threading.Event(), failure, []
        self.used_by_others, self.pid = (lambda: self.others), (lambda name: 12345)
        self.node = lambda name: SimpleNamespace(name=f"{name}{first}")
        self.locked = lambda shared: contextlib.nullcontext()

    def restart(self, name, away_s, at_once):
        self.calls.append((name, away_s))
        assert self.go.wait(60)
        if self.failure:
            raise self.failure


@contextlib.contextmanager
def using(home, say="print(os.getpid(), flush=True)"):
    """Another command that uses the services of ``home``; gives what it says."""
    use = "from keyshift.services.stack import Stack, Users; home = pathlib.Path(sys.argv[1]); Users(home).add()"
    command = [sys.executable, "-c", f"import os, pathlib, sys; {use}; {say}; sys.stdin.read()", str(home)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield process.stdout.readline().strip()


def test_only_embedded_services_that_nobody_else_uses_may_be_hit(tmp_path):
    spec, stack = make_spec({"fault": "kill:slot@1,restart:kafka@4"}), Stack(tmp_path)
    with pytest.raises(BadInput, match=r"restart:kafka@4: kafka may only be hit if .*services: embedded"):
        require_possible(spec.scenario.faults(), None, SparkProfile())
    require_possible(parse("kill:slot@1"), None, SparkProfile())
    require_possible(spec.scenario.faults(), stack, SparkProfile())
    Users(tmp_path).add()
    require_possible(spec.scenario.faults(), stack, SparkProfile())
    with using(tmp_path) as other, pytest.raises(BadInput, match=rf"other commands use it \(processes {other}\)"):
        require_possible(spec.scenario.faults(), stack, SparkProfile())
    require_possible(spec.scenario.faults(), stack, SparkProfile())


LOCAL, CLUSTER, PODS = SparkProfile(), SparkProfile(master="local-cluster"), SparkProfile(master="k8s://https://api")
DELETED = "its StatefulSet makes another one at once; use restart"


@pytest.mark.parametrize(
    ("faults", "nodes", "spark", "refusal"),
    [
        ("kill:executor@4,kill:daemon@6", 1, CLUSTER, ""),
        ("kill:executor@4", 1, LOCAL, "Spark at local has no executor .*local-cluster`, if there are no replicas"),
        ("cut:kafka@4:2s,cut:kafka@8:2s,restart:zookeeper@4", 1, LOCAL, ""),
        ("cut:kafka@4:2s,restart:kafka@8", 1, LOCAL, "restart:kafka@8: not possible with cut:kafka .*; use one"),
        ("kill:kafka@4,kill:zookeeper@4", 3, LOCAL, ""),
        ("kill:kafka@4", 1, LOCAL, "kill:kafka@4: kafka has one node, .*use restart:kafka, or .*nodes: 3$"),
        ("kill:kafka@4,kill:kafka@8", 3, LOCAL, r"kill:kafka@\d: only one of three nodes of kafka may be killed"),
        ("kill:replica@4,kill:executor@4,kill:daemon@5,restart:kafka@6", 1, PODS, ""),
        ("kill:kafka@4", 1, PODS, f"fault = kill:kafka@4: a pod of kafka is deleted, and {DELETED}:kafka$"),
        ("stop:minio@4:3s", 1, PODS, f"fault = stop:minio@4:3s: .*{DELETED}:minio$"),
        ("restart:zookeeper@4:3s", 1, PODS, f"fault = restart:zookeeper@4:3s: .*{DELETED}:zookeeper$"),
        ("stop:replica@4:3s", 1, PODS, "executors in pods cannot be stopped from here; use kill:replica$"),
    ],
)
def test_what_cannot_happen_there_is_refused_and_nothing_else(tmp_path, faults, nodes, spark, refusal):
    with pytest.raises(BadInput, match=refusal) if refusal else contextlib.nullcontext():
        require_possible(parse(faults), Stack(tmp_path, nodes=nodes), spark)


def test_a_service_that_others_have_begun_to_use_since_the_run_began_is_not_hit():
    services, notes, [fault] = Services(), [], parse("restart:kafka@4:2s")
    made = ServiceFaults(services, SparkProfile(), notes.append)
    services.others = [7]
    assert not made.allows(fault)
    services.others = []
    assert made.allows(fault)
    [note] = notes
    assert note.startswith("`restart:kafka@4:2s` was refused: ") and "other commands use it (processes 7)" in note


def test_services_may_be_hit_by_what_a_batch_has_started_though_the_batch_uses_them(tmp_path):
    Users(tmp_path).add()
    with using(tmp_path, "print(Stack(home).used_by_others(), flush=True)") as said:
        assert said == "[]"


@pytest.mark.parametrize(
    ("failure", "noted"),
    [(None, []), (ServiceUnavailable("it did not start"), ["restart of minio: it did not start"])],
    ids=["it comes back", "it does not come back"],
)
def test_a_restart_is_made_beside_the_run_which_waits_for_its_end(failure, noted):
    services, failed = Services(failure), []
    made = ServiceFaults(services, SparkProfile(), failed.append)
    assert not made.away
    made.hit(*parse("restart:minio@snapshot:3s"))
    assert made.away
    services.go.set()
    made.close()
    assert not made.away
    assert (services.calls, failed) == ([("minio", 3.0)], noted)


def lasts_s(made, fault):
    """How long it is until a fault is over that nobody cuts short."""
    began = time.monotonic()
    made.hit(fault)
    assert wait_until(lambda: not made.away, 60, 0.01)
    return time.monotonic() - began


def test_a_replica_goes_through_relays_only_if_it_is_to_be_cut_off(monkeypatch):
    services, relays, (restart, cut) = Services(), Mock(), parse("restart:minio@2,cut:kafka@4:0.05s")
    monkeypatch.setattr(service_faults, "Relays", relays)
    others = ServiceFaults(services, SparkProfile(), print, [restart])
    assert others.seen_by("config") == "config" and not relays.called
    others.close()
    made = ServiceFaults(services, SparkProfile(), print, [restart, cut])
    assert made.seen_by("config") is made.seen_by("config") is relays.return_value.seen_by.return_value
    assert lasts_s(made, cut) >= 0.05
    made.close()
    relays.assert_called_once_with(services, {"kafka"})
    assert relays.return_value.mock_calls == [*[call.seen_by("config")] * 2, call.cut(cut), call.end()]


def test_a_service_is_stopped_for_its_time(monkeypatch):
    stopped = []
    waker = SimpleNamespace(wait=lambda: stopped.append("was woken up"))
    monkeypatch.setattr(service_faults.faults, "stop", lambda *what: stopped.append(what) or waker)
    made = ServiceFaults(Services(), SparkProfile(), lambda line: None)
    assert lasts_s(made, *parse("stop:zookeeper@4:0.05s")) >= 0.05
    assert stopped == [(12345, 0.05), "was woken up"]


def test_who_ends_a_run_does_not_wait_for_a_service_that_is_stopped_for_an_hour(tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "600"]) as service:
        process, stack = psutil.Process(service.pid), Stack(tmp_path)
        monkeypatch.setattr(stack, "pid", lambda name: service.pid)
        before = set(psutil.Process().children())
        made = ServiceFaults(stack, SparkProfile(), print)
        for fault in parse("stop:kafka@4:3600s,stop:zookeeper@4:3600s"):
            made.hit(fault)
        assert wait_until(lambda: len(set(psutil.Process().children()) - before) == 2, 60, 0.01), "both stand at once"
        assert wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 60, 0.01)
        with pytest.raises(ServiceUnavailable), locked(tmp_path / "lock", "another command", print, 0.0):
            pytest.fail("it finds a service that does not answer, and starts it anew")
        made.close()
        assert process.status() != psutil.STATUS_STOPPED and not made.away
        assert set(psutil.Process().children()) <= before, "nobody is left who would wake it up"
        service.kill()


def test_a_service_that_is_away_for_an_hour_is_back_at_once_if_that_is_cut_short_and_so_is_one_later(
    tmp_path, monkeypatch
):
    stack, did = Stack(tmp_path), []
    monkeypatch.setattr(processes, "stop", lambda _: did.append("ended"))
    monkeypatch.setattr(stack.node("kafka"), "start", lambda *_: did.append("started"))
    made = ServiceFaults(stack, SparkProfile(), print)
    [away] = parse("restart:kafka@4:3600s")
    made.hit(away)
    assert wait_until(lambda: did, 60, 0.01)
    assert did == ["ended"] and made.away
    made.cut_short()
    assert wait_until(lambda: not made.away, 60, 0.01)
    assert did == ["ended", "started"]
    made.hit(away)
    made.close()
    assert did == ["ended", "started"] * 2 and not made.away


def test_of_three_nodes_one_is_hit_and_a_note_says_which(monkeypatch):
    services, notes, killed = Services(first="-1"), [], []
    services.go.set()
    monkeypatch.setattr(service_faults.os, "kill", lambda *what: killed.append(what))
    made = ServiceFaults(services, SparkProfile(), notes.append)
    for fault in parse("kill:kafka@4,restart:zookeeper@5:2s"):
        made.hit(fault)
        made.close()
    assert killed == [(12345, signal.SIGKILL)]
    assert services.calls == [("zookeeper-1", 2.0)]
    assert notes == ["kill of kafka hits kafka-1", "restart of zookeeper hits zookeeper-1"]


def test_no_second_node_of_a_service_is_killed_now(tmp_path, monkeypatch):
    stack, [kill] = Stack(tmp_path, nodes=3), parse("kill:kafka@4")
    for alive, killed in ((3, True), (2, False)):
        monkeypatch.setattr(stack, "alive", lambda alive=alive: [SimpleNamespace(kind="kafka")] * alive)
        made = ServiceFaults(stack, SparkProfile(), print)
        with contextlib.nullcontext() if killed else pytest.raises(BadInput, match="2 of 3 nodes of kafka live, and "):
            made.require(kill)
