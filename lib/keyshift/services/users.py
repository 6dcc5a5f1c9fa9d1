"""Who uses the embedded stack: so that services which a command has started stop with the last one that uses them.

A folder with a pid file for each command that uses them, and the file ``up`` if they were started to stay. Read and
written under the lock of the stack.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from keyshift.folders import REMEDY
from keyshift.model.errors import service_errors
from keyshift.services import processes


class Users:
    """Who uses the stack whose state folder is ``home``."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "users"
        self._stay = self._folder / "up"

    def add(self) -> Path:
        """Count this process among them until ``remove`` is called with what this returns, or the process dies. Raises
        ServiceUnavailable if that cannot be written, as on a full disk; so does ``keep``.
        """
        pid = os.getpid()
        entry = self._folder / f"{pid}-{secrets.token_hex(4)}"
        with service_errors(OSError, self._unwritten):
            processes.write_pid_file(entry, pid)
        return entry

    def remove(self, entry: Path) -> None:
        """End one use of the services; safe to call twice."""
        entry.unlink(missing_ok=True)

    def keep(self) -> None:
        """Let the services stay when nobody uses them."""
        with service_errors(OSError, self._unwritten):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stay.touch()

    def _unwritten(self, error: OSError) -> str:
        return f"cannot write to {self._folder}: {error.strerror or error}; free some of its disk, or {REMEDY}"

    def release(self) -> None:
        """Let the services stop with the last who uses them; safe to call twice."""
        self._stay.unlink(missing_ok=True)

    def entries(self) -> Iterator[Path]:
        """The pid files, also of processes that have died."""
        return self._folder.glob("*-*")

    def wanted(self) -> bool:
        """Whether anybody uses the services, or they are to stay. Those who died without leaving are forgotten."""
        for entry in self.entries():
            if processes.find(entry) is None:
                entry.unlink(missing_ok=True)
        return any(self.entries()) or self._stay.exists()

    def others(self, parents: bool = False) -> list[int]:
        """The live processes that use them, but for this one and, without ``parents``, those that have started it, as a
        batch its kernels.
        """
        alive = {process for entry in self.entries() if (process := processes.find(entry))}
        me = psutil.Process()
        return sorted(process.pid for process in alive - {me, *([] if parents else processes.all_above(me))})

    def forget(self) -> None:
        """Forget all of them, and that the services are to stay."""
        shutil.rmtree(self._folder, ignore_errors=True)
