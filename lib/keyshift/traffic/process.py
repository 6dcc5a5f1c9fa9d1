"""The parent's side of a child process: started, spoken to in JSON lines, never left behind."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from keyshift.errors import ServiceUnavailable

STOP_S = 20.0


class Child:
    """A process of ours, ``python -m module``, that is told ``config`` first; ``heard`` gets each of its reports."""

    def __init__(self, module: str, config: dict[str, Any], heard: Callable[[dict[str, Any]], None]) -> None:
        self.name = module.rsplit(".", 1)[-1]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe nobody reads could block the child
        # Its own session: Ctrl-C reaches only the parent, which then stops its children in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, args=(heard,), name=f"keyshift-{self.name}", daemon=True)
        self._reader.start()
        self.tell(config)

    def _read(self, heard: Callable[[dict[str, Any]], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard(json.loads(line))

    def tell(self, command: dict[str, Any]) -> None:
        """Send one command. Raises ServiceUnavailable if the process has died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._process.wait(STOP_S)
            self.check()

    def check(self) -> None:
        """Raises ServiceUnavailable with the process' last words if it has ended with an error."""
        status = self._process.poll()
        if status:
            self._errors.seek(0)
            words = self._errors.read().strip().splitlines()
            raise ServiceUnavailable(f"the {self.name} process died: {words[-1] if words else f'exit status {status}'}")

    def stop(self) -> None:
        """Ask it to stop and wait. Raises ServiceUnavailable if it fails or does not stop in time."""
        self.tell({"stop": True})
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
