"""Processes of ours: tools that run to their end, and services that outlive us, found again by their pid file."""

import contextlib
import fcntl
import json
import os
import platform
import signal
import subprocess
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import TypedDict

from keyshift.folders import Cancelled, write_whole
from keyshift.model.messages import decode
from keyshift.waiting import wait_until

TELL_S = 15.0  # between two lines of progress
# Children that still run while this process does. Kept to collect them when they die, or they would stay as zombies.
_children: dict[int, subprocess.Popen[bytes]] = {}
_apart: list[psutil.Process] = []
# Becomes the command that follows when it is told to, and ends if whoever has begun it fails, or is killed, before.
_TOLD: list[str | Path] = ["/bin/sh", "-c", 'read -r line && exec "$@" < /dev/null', "sh"]


class Identity(TypedDict):
    """What has to be known to find a process again: ``pid``, ``created`` and ``born`` as ``living`` takes them, and its
    ``host``; empty: this one. A pid file is one as JSON.
    """

    pid: int
    created: float
    born: str
    host: str


def run_to_end(
    command: Sequence[str | Path],
    output: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cancel: threading.Event | None = None,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Run a tool, all it prints going to ``output``; returns its exit code.

    ``progress`` is called with the seconds passed, every ``TELL_S``. If ``cancel`` is set (Cancelled is raised) or
    this thread is interrupted, the tool and all its children are ended first.
    """
    with open(output, "wb") as sink:
        # In a session of its own, Ctrl-C at the terminal reaches it only through us, and all of it at once.
        tool = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, cwd=cwd, start_new_session=True
        )
        started, told = time.monotonic(), 0.0
        try:
            while True:
                try:
                    return tool.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    pass
                if cancel is not None and cancel.is_set():
                    raise Cancelled
                passed = time.monotonic() - started
                if progress is not None and passed - told >= TELL_S:
                    told = passed
                    progress(passed)
        finally:
            if tool.poll() is None:
                _end_group(tool)


def _end_group(tool: subprocess.Popen[bytes]) -> None:
    os.killpg(tool.pid, signal.SIGTERM)
    try:
        tool.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(tool.pid, signal.SIGKILL)
        tool.wait()


def detached(command: Sequence[str | Path], log: Path, **how: Any) -> subprocess.Popen[bytes]:
    """Start a process that outlives us, in a session of its own; its output goes to ``log``, that of the last start to
    ``log``.1: the process before may live, and have more to say. ``how``: as of ``Popen``. Its log and all that it
    writes is for this user alone, also in a folder that others may enter.
    """
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    with open(log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as sink:
        return subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True, umask=0o077, **how)


def launch(command: Sequence[str | Path], env: Mapping[str, str], cwd: Path, log: Path, pid_file: Path) -> None:
    """Start a service, see ``detached``, as soon as ``find`` finds it: nobody would ever find it again otherwise. It
    inherits the lock of a file beside ``pid_file``, which is free when it has ended, see ``elsewhere``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    forget(pid_file)  # a file of its own: what the service before has left running may have the lock of the old one
    with open(_held(pid_file), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = detached([*_TOLD, *command], log, stdin=subprocess.PIPE, env=env, cwd=cwd, pass_fds=[lock.fileno()])
    _children[child.pid] = child
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # it has died, and its log says why
        write_pid_file(pid_file, child.pid)
        child.stdin.write(b"\n")


def write_pid_file(pid_file: Path, pid: int) -> None:
    """Write which process ``find`` is to find."""
    write_whole(pid_file, json.dumps(identity(pid)))


def forget(pid_file: Path) -> None:
    """Remove it, and the lock of what ``launch`` has started; safe to call twice."""
    pid_file.unlink(missing_ok=True)
    _held(pid_file).unlink(missing_ok=True)


def find(pid_file: Path) -> psutil.Process | None:
    """The live process a pid file speaks of; see ``living``."""
    saved = _saved(pid_file)
    try:
        return living(saved["pid"], saved["created"], saved["born"]) if saved else None
    except ValueError:  # no process has such a number
        return None


def elsewhere(pid_file: Path) -> str:
    """The process and the host a pid file speaks of, if that is another host, see ``on_other_host``, or another
    container with this one's name, where processes have other numbers; else empty.
    """
    if (saved := _saved(pid_file)) is None:
        return ""
    lives, there = find(pid_file) is not None, f"process {saved['pid']} of host {saved['host']}"
    if on_other_host(saved["host"], lives):
        return there
    return f"{there}, in another container," if not lives and _is_held(pid_file) else ""


def _held(pid_file: Path) -> Path:
    return pid_file.with_suffix(".held")


def _is_held(pid_file: Path) -> bool:
    """Whether what ``launch`` has started lives, wherever that is."""
    try:
        with open(_held(pid_file), "r+") as lock:  # on a network's disk a lock like this one takes write access
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was started without a lock
        pass
    return False


def on_other_host(host: str, lives: bool) -> bool:
    """Whether a process of ``host`` is where nobody here can look; empty: of this one. ``lives``: it was found here.

    A host may have got another name: a process that is found here is none of another host.
    """
    return host not in ("", platform.node()) and not lives


def _saved(pid_file: Path) -> Identity | None:
    """Read a pid file; None if there is none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError):
        found: Identity = decode(Identity, pid_file.read_bytes())
        return found
    return None


def identity(pid: int) -> Identity:
    """The identity of a process that runs here. Raises psutil.NoSuchProcess."""
    return {"pid": pid, "created": psutil.Process(pid).create_time(), "born": _born(pid), "host": platform.node()}


def _born(pid: int) -> str:
    """The id of the machine's boot, and the ticks from then until the process began, which stay what they are when the
    clock is set; empty where the system does not tell (no Linux), or if the process is gone.
    """
    try:
        boot, stat = Path("/proc/sys/kernel/random/boot_id").read_text(), Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return f"{boot.strip()} {stat.rpartition(b')')[2].split()[19].decode()}"  # before it: a name that may have blanks


def living(pid: int, created: float, born: str = "") -> psutil.Process | None:
    """The process of this number that was ``created`` (seconds since the epoch) and ``born`` then, see ``identity``;
    None if it ended, also if its number belongs to another process by now.
    """
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        _children.pop(pid, None)  # another thread may have seen it, too
    try:
        process = psutil.Process(pid)
        # Times of creation derive from the boot time on Linux, which moves when the clock is set.
        now = born and _born(pid)
        ours = born == now if now else abs(process.create_time() - created) < 2.0
        return process if ours and runs(process) else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # of another user, where /proc hides what others run
        return None


def all_below(process: psutil.Process | None = None) -> list[psutil.Process]:
    """Processes that run below a process, or below this one. Raises psutil.NoSuchProcess."""
    process = process or psutil.Process()
    try:
        return process.children(recursive=True)
    except psutil.AccessDenied:  # where /proc hides what others run (hidepid=1), psutil gives up at the first of them
        children = defaultdict[int | None, list[psutil.Process]](list)
        for each in psutil.process_iter(["ppid"]):
            children[each.info["ppid"]].append(each)
        found = children[process.pid]
        for each in found:  # it grows meanwhile
            found += children[each.pid]
        return found


def keep_apart(pid: int) -> None:
    """Keep a process apart that was begun here, with what runs below it: it is none of our own work; see ``apart``."""
    _apart.append(psutil.Process(pid))


def apart() -> set[psutil.Process]:
    """Find what is to be kept apart, of ``all_below`` this process."""
    found = set[psutil.Process]()
    for process in filter(psutil.Process.is_running, _apart):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {process, *all_below(process)}
    return found


def all_above(process: psutil.Process) -> Iterator[psutil.Process]:
    """Processes that have begun a process, and so on, as far as /proc does not hide it."""
    with contextlib.suppress(psutil.AccessDenied):
        while parent := process.parent():
            yield parent
            process = parent


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended. A zombie of which threads are left has its ports still: the first one ended before."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def listens(process: psutil.Process, port: int) -> bool:
    """Whether the process accepts connections on the port; false if it has died, or is dying: Linux shows root alone
    what it still has.
    """
    try:
        sockets = process.net_connections("tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)


def stop(processes: Sequence[psutil.Process], deadline_s: float = 20.0) -> None:
    """End processes politely (SIGTERM), and after ``deadline_s`` by force; returns when none runs any more."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    stubborn = await_end(processes, deadline_s)
    kill(stubborn)
    await_end(stubborn, 5.0)


def await_end(processes: Sequence[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait until they have ended; gives those that have not.

    One that the system still knows, because whoever began it does not ask, has ended, too: another process of ours may
    not, and a container's first one never does.
    """
    wait_until(lambda: not any(map(runs, processes)), within_s, every_s=0.02)
    _, left = psutil.wait_procs(processes, timeout=0)  # asks for our own
    return [process for process in left if runs(process)]


def kill(processes: Iterable[psutil.Process]) -> None:
    """End processes by force, those that have not ended by themselves; does not wait."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, stack frames left out: they would push the causes out of sight."""
    try:
        with open(log, errors="replace") as file:
            told = (line.rstrip() for line in file if line.strip() and not line.startswith(("\tat ", "\t... ")))
            kept = deque(told, maxlen=lines)
    except OSError:
        return "(no log)"
    return "\n".join(kept) or "(the log is empty)"
