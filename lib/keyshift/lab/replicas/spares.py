"""Spark applications that were started ahead: a replica that comes back takes one, and need not wait for its Spark."""

import contextlib
from collections import deque
from collections.abc import Callable

from keyshift.lab.replicas.spark import Application


class Spares:
    """As many spare applications as ``number`` says. ``open_application``: makes the one of this part, which is not
    begun.

    ``take`` is for any thread.
    """

    def __init__(self, number: int, open_application: Callable[[str], Application]) -> None:
        self._number, self._open = number, open_application
        self._made = 0
        self._waiting: deque[Application] = deque()

    def fill(self) -> None:
        """Start as many as were taken, or all in the beginning, without waiting."""
        while len(self._waiting) < self._number:
            application = self._open(f"spare-{self._made}")
            self._made += 1
            try:
                application.begin()
            except BaseException:
                application.kill()
                raise
            self._waiting.append(application)  # only now: whoever takes it asks for its process

    def await_ready(self, require_wanted: Callable[[], None]) -> None:
        """Wait until each has started its Spark; see ``Application.await_ready``."""
        for application in self._waiting:
            application.await_ready(require_wanted)

    @property
    def pids(self) -> list[int]:
        """The processes of those that wait; for any thread."""
        return [pid for application in [*self._waiting] if (pid := application.pid) is not None]

    def take(self) -> Application | None:
        """Take the one that was started first and still runs, or None."""
        with contextlib.suppress(IndexError):
            while not (application := self._waiting.popleft()).isActive:
                application.kill()  # its process is gone, and its JVM may not be
            return application
        return None

    def end(self) -> None:
        """End all that nobody has taken. Safe to call twice."""
        while self._waiting:
            self._waiting.popleft().end()
