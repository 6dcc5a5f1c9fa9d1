"""What a slot does beside the rows, in threads of its own."""

import queue
import threading
from collections.abc import Callable

from keyshift.worker.slot.shared import Trouble

Job = Callable[[], None]


class Background:
    """Jobs, one after the other from ``start`` on, and other work beside them. What goes wrong there is ``trouble``."""

    def __init__(self, slot: int, trouble: Trouble) -> None:
        self._slot, self._trouble = slot, trouble
        self._jobs: queue.Queue[Job | None] = queue.Queue()

    def put(self, job: Job) -> None:
        """Do this when all jobs before are done."""
        self._jobs.put(job)

    def start(self, *works: Job) -> None:
        """Begin with the jobs, and with each of ``works`` in another thread."""
        for work in (self._work, *works):
            threading.Thread(target=self._beside, args=(work,), name=f"keyshift-slot-{self._slot}", daemon=True).start()

    def close(self) -> None:
        """No job comes any more."""
        self._jobs.put(None)

    def _beside(self, work: Job) -> None:
        try:
            work()
        except BaseException as error:
            self._trouble.tell(error)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
