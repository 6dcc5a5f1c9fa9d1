"""The Python workers of Spark, for tests that kill them."""

import contextlib

import psutil

DAEMONS = {"keyshift.worker.daemon", "faulty_daemon"}


def workers_of(pid: int | None = None) -> list[psutil.Process]:
    """Those below a process (None: this one): each runs a router or a slot, or is idle since an earlier query ended."""
    daemons = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended, and nobody may have asked how: a zombie
            if not DAEMONS.isdisjoint(process.cmdline()):
                daemons.append((process, process.ppid()))
    forking = {parent for _, parent in daemons}
    return [process for process, _ in daemons if process.pid not in forking]


def commands() -> list[list[str]]:
    """Of the processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # or it has ended and nobody asked how: a zombie
            found.append(process.cmdline())
    return found
