"""The processes of Spark, for tests that kill its Python workers."""

import contextlib
from collections.abc import Iterator

import psutil

DAEMONS = {"keyshift.worker.daemon", "faulty_daemon"}


def below(pid: int | None = None) -> Iterator[tuple[psutil.Process, list[str]]]:
    """The processes below one (None: this one) with their commands. One that has ended has none, even if nobody has
    asked how it ended: a zombie.
    """
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield process, process.cmdline()


def workers_of(pid: int | None = None) -> list[psutil.Process]:
    """Those below a process (None: this one): each runs a router or a slot, or is idle since an earlier query ended."""
    daemons = []
    for process, command in below(pid):
        with contextlib.suppress(psutil.Error):
            if not DAEMONS.isdisjoint(command):
                daemons.append((process, process.ppid()))
    forking = {parent for _, parent in daemons}
    return [process for process, _ in daemons if process.pid not in forking]


def commands() -> list[list[str]]:
    """Of the processes below this one."""
    return [command for _, command in below()]
