"""The processes of Flink without Flink: what they are told, and what is left of a start that fails."""

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from keyshift.model.errors import ServiceUnavailable
from keyshift.peers import flink
from keyshift.progress import silent
from keyshift.waiting import wait_until

PORTS = {"rpc": 1001, "rest": 1002, "gateway": 1003}


def test_every_address_is_one_of_loopback_and_every_port_is_given():
    told = flink.configuration(Path("/somewhere"), 4, PORTS)
    hosts = {name: value for name, value in told.items() if re.search(r"(address|host)$", name)}
    assert len(hosts) >= 7 and set(hosts.values()) == {"127.0.0.1"}
    ports = {name: str(value) for name, value in told.items() if name.endswith("port")}
    assert sorted(set(ports.values())) == ["1001", "1002", "1003"] and len(ports) == 5
    assert told["taskmanager.numberOfTaskSlots"] == 4 and told["web.submit.enable"] is False
    assert yaml.safe_load(yaml.safe_dump(told)) == told
    assert "jobmanager.scheduler" not in told and "execution.checkpointing.interval" not in told


def test_a_cluster_with_checkpoints_rescales_jobs_that_run_and_starts_none_that_failed():
    told = flink.configuration(Path("/somewhere"), 4, PORTS, 1.5)
    assert told["jobmanager.scheduler"] == "adaptive" and told["execution.checkpointing.interval"] == "1500 ms"
    assert told["restart-strategy.type"] == "none"
    assert flink.configuration(Path("/somewhere"), 4, PORTS).items() <= told.items()


def test_what_computes_gets_both_compilers_and_what_controls_it_one():
    one = {role for role, (options, _) in flink.ROLES.items() if "-XX:TieredStopAtLevel=1" in options}
    assert one == {"jobmanager", "gateway"}


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    """A Java that says a word and ends, for the job manager; for the others it stays."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\ncase "$*" in *Standalone*) echo no room left; exit 1;; *) exec sleep 600;; esac\n')
    java.chmod(0o755)
    monkeypatch.setattr(flink, "require_java", lambda: str(java))
    monkeypatch.setattr(flink, "jars", lambda conf, say: [tmp_path / "a.jar"])
    return java


def test_a_process_that_does_not_start_is_named_with_its_words_and_nothing_stays(tmp_path, no_java):
    home = tmp_path / "home"
    home.mkdir()
    said = r"(?s)Flink's jobmanager did not start.*no room left"
    with pytest.raises(ServiceUnavailable, match=said), flink.flink(home, 2, silent):
        raise AssertionError("it must not come to this")
    assert {entry.name for entry in home.iterdir()} == {"logs", "keyshift-work"}
    assert not [entry for entry in (home / "keyshift-work").iterdir() if entry.is_dir()]

    def sleeping():
        return [p for p in psutil.process_iter(["environ"]) if str(home) in str(p.info["environ"])]

    assert wait_until(lambda: not sleeping(), 60), sleeping()


def test_another_interrupt_waits_until_its_processes_have_ended(tmp_path, no_java, monkeypatch):
    stop, ended = flink.processes.stop, []

    def interrupted(some):
        os.kill(os.getpid(), signal.SIGINT)
        stop(some)
        ended.extend(some)

    monkeypatch.setattr(flink.processes, "stop", interrupted)
    monkeypatch.setattr(flink.FlinkClient, "ready", lambda client, slots: True)
    monkeypatch.setattr(flink.FlinkClient, "version", lambda client: "2")
    with pytest.raises(KeyboardInterrupt), flink.flink(tmp_path, 2, silent):
        raise KeyboardInterrupt
    assert ended and not any(process.is_running() for process in ended)
    assert not [entry for entry in (tmp_path / "keyshift-work").iterdir() if entry.is_dir()]


@pytest.mark.parametrize("which", [1, 2], ids=["it", "who ends it if we are killed"])
def test_a_process_does_not_outlive_an_interrupt_that_comes_as_it_begins(tmp_path, no_java, monkeypatch, which):
    begun, popen = [], subprocess.Popen

    def begin(*arguments, **options):
        begun.append(popen(*arguments, **options))
        if len(begun) == which:
            signal.raise_signal(signal.SIGINT)
        return begun[-1]

    no_java.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(subprocess, "Popen", begin)
    with pytest.raises(KeyboardInterrupt), flink.flink(tmp_path, 2, silent):
        raise AssertionError("it must not come to this")
    left = [each for each in begun if each.poll() is None]
    for each in left:
        each.kill()
    assert len(begun) == 2 and left == []


def test_without_its_jars_nothing_is_started(tmp_path, monkeypatch):
    def refuse(conf: str, say: object) -> list[Path]:
        assert conf == "flink"
        raise ServiceUnavailable("jars could not be downloaded")

    monkeypatch.setattr(flink, "jars", refuse)
    monkeypatch.setattr(flink, "require_java", lambda: "java")
    with pytest.raises(ServiceUnavailable, match="jars could not be downloaded"), flink.flink(tmp_path, 2, silent):
        raise AssertionError("it must not come to this")
    assert not list(tmp_path.iterdir())
