"""Whether the attempt of a task goes on, for whoever waits in it.

When a query ends, Spark closes the sockets of its Python workers, and tells them nothing. A task that neither reads nor
writes would wait for ever for what others have had, and its process would stay with all of its state.
"""

import time
from collections.abc import Sequence

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination, attempts

LOOK_S = 1.0  # between two looks


class AttemptWatch:
    """Looks in ZooKeeper, with the ``coordination`` of a task that waits, whether its attempt is over."""

    def __init__(self, config: JobConfig, coordination: Coordination) -> None:
        self._job, self._attempt, self._coordination = config.job, config.attempt, coordination
        self.put_off()

    def put_off(self) -> None:
        """Look ``LOOK_S`` from now at the earliest: a task that has just read or written was told by Spark's socket."""
        self._next = time.monotonic() + LOOK_S

    def require(self) -> None:
        """Raise ServiceUnavailable if the attempt is over. It looks once in ``LOOK_S`` at the most."""
        if time.monotonic() >= self._next:
            self.put_off()
            if over(self._attempt, attempts(self._coordination, self._job)):
                raise ServiceUnavailable(f"attempt {self._attempt} of job {self._job} is over")


def over(attempt: int, there: Sequence[int]) -> bool:
    """Whether nothing is left of this attempt of a job, or a later one has begun. ``there``: attempts of the job."""
    return attempt not in there or attempt < max(there)
