"""Processes end, whoever has begun them."""

import errno
import os
import platform
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from small_jobs import file_of

from keyshift.control import client
from keyshift.services import processes
from keyshift.waiting import wait_until

# Never asks how its child has ended, as a batch whose notebook restarts a service, or a container's first process.
PARENT = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


# Its first thread ends, and another one goes on until there is no more input.
HEADLESS = """
import ctypes, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
ctypes.CDLL(None).syscall(NUMBER, 0)
"""
EXIT = {"x86_64": 60, "aarch64": 93}  # the number of the system call with which a thread ends
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


@pytest.mark.skipif(platform.system() != "Linux", reason="no /proc")
def test_processes_are_found_where_those_of_others_may_be_counted_and_no_more(begun_by_another, monkeypatch):
    """As in /proc with hidepid=1. Here whoever has begun this process is another user's."""
    opened = psutil._common.open_binary

    def hiding(name):
        if name.startswith(f"/proc/{os.getppid()}/"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return opened(name)

    for module in (psutil._common, psutil._pslinux):
        monkeypatch.setattr(module, "open_binary", hiding)
    found = processes.all_below()
    assert begun_by_another in found and psutil.Process() not in found
    assert list(processes.all_above(begun_by_another)) == [begun_by_another.parent(), psutil.Process()]
    assert processes.living(os.getppid(), 0.0) is None


def test_our_own_are_no_zombies_behind_their_end_and_the_stubborn_are_killed():
    ours = psutil.Process(subprocess.Popen(["sleep", "600"]).pid)
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    deaf.stdout.readline()
    processes.stop([ours, psutil.Process(deaf.pid)], deadline_s=0.5)
    assert not ours.is_running() and deaf.poll() is not None


@pytest.mark.skipif(platform.machine() not in EXIT or platform.system() != "Linux", reason="another number of exit")
def test_a_process_runs_until_its_last_thread_has_ended():
    command = [sys.executable, "-c", HEADLESS.replace("NUMBER", str(EXIT[platform.machine()]))]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as headless:
        process = psutil.Process(headless.pid)
        assert wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, 60)
        assert processes.runs(process) and processes.await_end([process], 0.0) == [process]
        headless.stdin.close()
        assert processes.await_end([process], 60.0) == [] and not process.is_running()


def test_of_a_process_that_is_dying_nobody_but_root_sees_where_it_listens(monkeypatch):
    monkeypatch.setattr(psutil.Process, "net_connections", Mock(side_effect=psutil.AccessDenied(1)))
    assert not processes.listens(psutil.Process(), 80)


def test_two_threads_may_see_at_once_that_one_of_ours_has_ended(monkeypatch):
    ours, gone = {}, subprocess.Popen(["true"])
    gone.wait()
    ours[gone.pid] = SimpleNamespace(poll=lambda: ours.clear() or 0)
    monkeypatch.setattr(processes, "_children", ours)
    assert processes.living(gone.pid, 0.0) is None


def test_what_a_detached_process_writes_is_for_its_user_alone_whoever_may_enter_the_folder(tmp_path):
    tmp_path.chmod(0o755)
    command = ["sh", "-c", "mkdir data && echo state > data/topic"]
    before = os.umask(0o022)
    try:
        child = processes.detached(command, tmp_path / "service.log", cwd=tmp_path)
        assert child.wait(60) == 0 and os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"service.log": 0o600, "data": 0o700, "topic": 0o600}
