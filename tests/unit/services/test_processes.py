"""Processes end, whoever has begun them."""

import subprocess
import sys

import psutil
import pytest
from small_jobs import file_of

from keyshift.control import client
from keyshift.services import processes

# Never asks how its child has ended, as a batch whose notebook restarts a service, or a container's first process.
PARENT = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


@pytest.fixture
def begun_by_another():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        yield child
        child.kill()
        parent.stdin.close()


def test_what_another_process_has_begun_has_ended_before_that_one_asks(begun_by_another, monkeypatch):
    left = []
    monkeypatch.setattr(processes, "kill", left.extend)
    processes.stop([begun_by_another], deadline_s=60.0)
    assert left == [] and begun_by_another.status() == psutil.STATUS_ZOMBIE
    monkeypatch.setattr(client, "END_S", 0.0)
    client.await_end(file_of("one", begun_by_another.pid))


def test_our_own_are_no_zombies_behind_their_end_and_the_stubborn_are_killed():
    ours = psutil.Process(subprocess.Popen(["sleep", "600"]).pid)
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    deaf.stdout.readline()
    processes.stop([ours, psutil.Process(deaf.pid)], deadline_s=0.5)
    assert not ours.is_running() and deaf.poll() is not None
