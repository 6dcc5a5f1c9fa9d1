"""Processes of ours that speak in messages, a line each: started, told what to do, listened to, never left behind."""

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from keyshift.model.errors import ServiceUnavailable
from keyshift.model.messages import decode, encode
from keyshift.traffic.messages import Stop
from keyshift.waiting import wait_until

STOP_S = 20.0
SHOWN = 200  # characters of a line that nobody could use

_reports: TextIO | None = None  # of this process, once it keeps them apart


class JsonProcess:
    """``python -m module``, which is told ``config`` first, if there is one. What it says is of the kind ``reports``,
    and ``heard`` gets it; without that, see ``report``.

    ``more_env``: what it has in its environment beside ours.
    """

    def __init__(
        self,
        module: str,
        config: object,
        reports: Any,
        heard: Callable[[Any], None] | None = None,
        more_env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = module.rsplit(".", 1)[-1]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe nobody reads could block the process
        # Its own session: Ctrl-C reaches only us, and we then stop what we have started in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            start_new_session=True,
            env=os.environ | (more_env or {}),
        )
        self.pid = self._process.pid
        self._reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._failure: tuple[str, Exception] | None = None  # a line that nobody could use, and why
        told = reports, heard or self._reports.put
        self._reader = threading.Thread(target=self._read, args=told, name=f"keyshift-{self.name}", daemon=True)
        self._reader.start()
        if config is not None:
            self.tell(config)

    def _read(self, reports: Any, heard: Callable[[Any], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                heard(decode(reports, line))
            except Exception as error:  # the controlling thread's now; what comes behind it is read all the same
                self._failure = self._failure or (line.strip(), error)

    def tell(self, command: object) -> None:
        """Send one message. Raises ServiceUnavailable if the process has died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(command).decode() + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._process.wait(STOP_S)
            self.check()

    def report(self, within_s: float) -> Any:
        """Its next report. Raises ServiceUnavailable if it dies, or says nothing ``within_s`` seconds."""

        def said() -> Any:
            self.check()
            with contextlib.suppress(queue.Empty):
                return self._reports.get(timeout=0.2)
            return None

        if (found := wait_until(said, within_s, 0.0)) is None:
            raise ServiceUnavailable(f"the {self.name} process said nothing for {within_s:g} s")
        return found

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raises ServiceUnavailable with the process' last words if it has ended with an error, or if it has said what
        nobody could use.
        """
        if self._failure is not None:
            line, error = self._failure
            raise ServiceUnavailable(f"the {self.name} process said {line[:SHOWN]!r}: {error}") from error
        status = self._process.poll()
        if status:
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines()
            raise ServiceUnavailable(f"the {self.name} process died: {words[-1] if words else f'exit status {status}'}")

    def stop(self) -> None:
        """Ask it to stop and wait. Raises ServiceUnavailable if it fails or does not stop in time."""
        self.tell(Stop())
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceUnavailable(f"the {self.name} process did not stop within {STOP_S:g} s") from None
        self._reader.join(STOP_S)
        self.check()
        self.kill()

    def kill(self) -> None:
        """End it now, if it still runs. Safe to call twice."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent commands to a process that is gone
                    stream.close()


def keep_reports_apart() -> None:
    """Keep standard output, in such a process, for what ``say`` says from now on. What others write there, a workload
    or a JVM, goes where errors go.
    """
    global _reports
    _reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def say(report: object) -> None:
    """Send one message from such a process to who has started it."""
    stream = _reports or sys.stdout
    stream.write(encode(report).decode() + "\n")
    stream.flush()
