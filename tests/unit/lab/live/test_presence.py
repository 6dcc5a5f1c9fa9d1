"""Who can be seen to drive a job."""

import os
import platform
import re
import threading

import pytest

from keyshift.endpoints import Endpoints
from keyshift.lab.live import presence
from keyshift.lab.live.presence import Presence
from keyshift.model.errors import RunsElsewhere
from keyshift.progress import silent
from keyshift.waiting import wait_until
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ALL, DRIVERS, of_job

ENDPOINTS, JOB = Endpoints("k:1", "z:1", "m:1", "a", "s"), "2026-one"
THIS = f"process {os.getpid()} of host {platform.node()}"


@pytest.fixture
def memory(monkeypatch):
    memory = Memory()
    monkeypatch.setattr(presence, "Coordination", lambda hosts, root, token: MemoryCoordination(memory, root))
    monkeypatch.setattr(presence, "LOOK_S", 0.01)
    return memory


def drives():
    found = Presence(ENDPOINTS, JOB, "secret")
    found.begin(first=True)
    return found


def test_where_nobody_drives_a_job_or_nothing_is_there_of_it_nobody_waits(memory):
    other, said = Presence(ENDPOINTS, JOB, "secret"), []
    other.await_none(said.append)
    other.end()
    mine = drives()
    mine.end()
    mine.end()
    other.await_none(said.append)
    assert said == [] and memory.sessions == []


def test_one_that_was_killed_is_waited_for_until_its_session_has_ended(memory):
    killed, said, over = MemoryCoordination(memory, of_job(JOB)), [], threading.Event()
    killed.begin()
    killed.register(DRIVERS["one"], THIS)

    def say(line):
        said.append(line)
        threading.Timer(0.05, lambda: over.set() or killed.lose()).start()

    Presence(ENDPOINTS, JOB, "secret").await_none(say)
    assert over.is_set()
    assert said == [f"waiting until ZooKeeper has given up {THIS}, 30 s at the most"]


def test_one_whose_session_was_given_up_is_there_again_until_it_ends(memory, monkeypatch):
    monkeypatch.setattr(presence, "AGAIN_S", 0.01)
    mine, nodes = drives(), MemoryCoordination(memory, of_job(JOB))
    nodes.withdraw(ALL)
    memory.sessions[0].lose()
    assert not nodes.children(DRIVERS), "there is nothing of the job, for now"
    nodes.begin()
    assert wait_until(lambda: nodes.read_below(DRIVERS), 60)
    mine.end()
    assert not nodes.children(DRIVERS) and memory.sessions == [nodes]


def test_one_that_lives_is_told_and_one_that_was_deposed_takes_nothing_away_when_it_ends(memory, monkeypatch):
    monkeypatch.setattr(presence, "WAIT_S", 0.05)
    deposed, mine = drives(), drives()
    deposed.end()
    words = re.escape(f"ZooKeeper hears {THIS} still: the job runs elsewhere")
    with pytest.raises(RunsElsewhere, match=words):
        Presence(ENDPOINTS, JOB, "secret").await_none(silent)
    mine.end()
    Presence(ENDPOINTS, JOB, "secret").await_none(silent)
