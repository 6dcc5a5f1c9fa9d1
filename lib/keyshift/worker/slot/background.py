"""What a slot does beside the rows, in threads of its own."""

import queue
import threading
from collections.abc import Callable

Chore = Callable[[], None]


class Background:
    """Chores, one after the other from ``start`` on, and other work beside them. The task's thread raises what goes
    wrong there, and the errors of any other thread of the slot that come to ``failed``.
    """

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._chores: queue.Queue[Chore | None] = queue.Queue()
        self._worker: threading.Thread | None = None  # does them, from ``start`` on
        self.error: BaseException | None = None  # the last one

    def put(self, chore: Chore) -> None:
        """Do this when all chores before are done."""
        self._chores.put(chore)

    def start(self, *works: Chore) -> None:
        """Begin with the chores, and with each of ``works`` in another thread."""
        name = f"keyshift-slot-{self._slot}"
        self._worker, *others = (
            threading.Thread(target=self._beside, args=(work,), name=name, daemon=True) for work in (self._work, *works)
        )
        for thread in (self._worker, *others):
            thread.start()

    def failed(self, error: BaseException) -> None:
        """Let the task fail because of this error."""
        self.error = error

    def check(self) -> None:
        """Raises the error, if there is one."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Take no chore any more."""
        self._chores.put(None)

    def await_end(self, within_s: float) -> None:
        """Wait, for so long at the most, until the chores are done."""
        if self._worker is not None:
            self._worker.join(within_s)

    def _beside(self, work: Chore) -> None:
        try:
            work()
        except BaseException as error:
            self.failed(error)

    def _work(self) -> None:
        while (chore := self._chores.get()) is not None:
            chore()
