"""What this process may have of its machine: processors and memory.

A container sees all of the machine. What it may have is in the files of its control groups, of version 2 or version 1;
Python and psutil do not look there. Groups further up may allow less, which nobody sees from inside.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import psutil

GROUPS = Path("/sys/fs/cgroup")


class UsableMemory(NamedTuple):
    """Bytes: all that there is, and how much of it is free."""

    total: int
    free: int


class _GroupFiles(NamedTuple):
    """Where a version of control groups has what; ``dropped``: the line for files in memory that nobody needs there,
    ``active``: for those used of late, which go before memory is short, too.
    """

    limit: str
    current: str
    stat: str
    dropped: str
    active: str


_VERSION_2 = _GroupFiles("memory.max", "memory.current", "memory.stat", "inactive_file", "active_file")
_VERSION_1 = _GroupFiles(
    "memory/memory.limit_in_bytes",
    "memory/memory.usage_in_bytes",
    "memory/memory.stat",
    "total_inactive_file",
    "total_active_file",
)


def visible() -> int:
    """Processors that this process may run on, whatever it may have of their time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def processors(groups: Path = GROUPS) -> int:
    """Count the processors that this process may have: whole ones, of one and a half one, and at least one."""
    return max(1, int(allowed(groups)))


def allowed(groups: Path = GROUPS) -> float:
    """Processors whose time this process may have; of one it may be a part."""
    found = float(visible())
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
        quota, period = map(int, (groups / "cpu.max").read_text().split())
        found = min(found, quota / period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int((groups / f"cpu/cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        found = min(found, quota / period) if quota > 0 else found
    return found


def memory(groups: Path = GROUPS) -> UsableMemory:
    """Memory that this process may use, as it is now. All files in memory are free, as psutil has it of a machine."""
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for files in (_VERSION_2, _VERSION_1):
        with contextlib.suppress(OSError, ValueError, KeyError):
            limit = int((groups / files.limit).read_text())  # of version 1 a huge number, if there is none
            needed = in_use(groups, files) - numbers(groups / files.stat)[files.active]
            total, free = min(total, limit), min(free, max(0, limit - needed))
    return UsableMemory(total, free)


def in_use(groups: Path = GROUPS, files: _GroupFiles = _VERSION_2) -> int:
    """Bytes of memory that the group has, without files that can be dropped. Raises OSError or KeyError."""
    return int((groups / files.current).read_text()) - numbers(groups / files.stat)[files.dropped]


def numbers(file: Path) -> dict[str, int]:
    """Read a file with a name and a number in each line. Raises OSError."""
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
