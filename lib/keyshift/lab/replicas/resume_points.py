"""What a replica that comes back goes on from, and another process if the one that controls the job is gone.

Every few seconds, and when something has moved, one of the replicas writes its state down, as it is then. The job does
not wait for that: its turns are the same ones. Meanwhile nothing begins to move, and while something moves nothing is
written down: so all replicas have this one assignment behind this turn of a slot. Nor is anything written while a
replica is on its way back: that has enough to do.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from keyshift.clock import SECOND_US, now_us
from keyshift.driver.snapshotter import CAPTURE_PREFIX, clear_acknowledgements
from keyshift.lab.live.failover import Written
from keyshift.lab.replicas.jobs import LedReplica, Replicas
from keyshift.model.errors import MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.model.records import SnapshotRecord
from keyshift.wire.savepoint import SavepointStore

LOOK_S = 0.1  # between two looks at whether something moves
# How fast a replica writes, and replays, where others work (docs/performance.md).
WRITES_BYTES_S, REPLAYS = 50e6, 3


class _NoMore(Exception):
    """Nothing is to be written down any more."""


@dataclass(frozen=True)
class ResumePoint(Written):
    """A state to go on from. ``at``: when it was written, in seconds since the epoch; 0 if another process wrote it."""

    at: float = 0.0

    def saves(self, replica: LedReplica) -> bool:
        """Whether it takes less time to begin here than from what ``replica``, in which nothing moves, would write now.
        The one that has written this would write what has changed since, any other one everything. If something has
        switched since, nobody can begin here.
        """
        stages, size = replica.job.stages, sum(sum(units.values()) for units in self.savepoint.unit_bytes.values())
        if self.of == replica.job.config.job or (time.time() - self.at) / REPLAYS > size / WRITES_BYTES_S:
            return False
        return all(self.histories[stage.name].assignments[-1].version == stage.assignment.version for stage in stages)


class ResumePoints:
    """The resume points of ``replicas``, one every ``every_s`` seconds from ``begin`` to ``end``; 0: none. ``still``
    gives whether nothing moves, nor begins to until it is left. ``needed`` gives what others need, which stays.
    ``tell`` hears that the state could not be written down, or what is older not be removed.

    ``written``, the last two in their order, and ``taken``, what is to be known of each, are for any thread.
    """

    def __init__(
        self,
        replicas: Replicas,
        every_s: float,
        still: Callable[[], AbstractContextManager[bool]],
        needed: Callable[[], set[tuple[str, str]]],
        tell: Callable[[str], None],
    ) -> None:
        self._replicas, self._every_s, self._tell = replicas, every_s, tell
        self._still, self._needed = still, needed
        self.written: tuple[ResumePoint, ...] = ()
        self.taken: list[SnapshotRecord] = []
        self.in_journals: tuple[ResumePoint, ...] = ()  # that a journal on disk may have
        self._over = threading.Event()
        self._failing = set[str]()  # what was told, and goes on
        self._failure: BaseException | None = None  # what ended the thread
        self._thread = threading.Thread(target=self._run, name="keyshift-resume-points", daemon=True)

    @property
    def newest(self) -> ResumePoint | None:
        """What was written last."""
        return self.written[-1] if self.written else None

    def for_journal(self) -> tuple[ResumePoint, ...]:
        """The last two, for a journal that is written now: they stay until ``in_journals`` has those of a later one."""
        while True:
            told = self.written
            self.in_journals = (*self.in_journals, *(each for each in told if each not in self.in_journals))
            if self.written is told:  # otherwise the first may be gone by now
                return told

    def begin(self, newest: ResumePoint | None = None) -> None:
        """Write down what comes from now on. ``newest``: of the process before."""
        self.written = self.in_journals = () if newest is None else (newest,)
        if self._every_s:
            self._thread.start()

    def check(self) -> None:
        """Raise what has ended the thread before ``end``."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Write nothing more down. Safe to call twice."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        every_s = self._every_s
        while not self._over.is_set():
            try:
                if self._done(self._take, f"the state could not be written down; it is tried every {every_s:g} s"):
                    self._done(self._remove_old, "the state is written down, and what is older stays where it is")
                    self._clear()
            except _NoMore:
                return
            except BaseException as error:  # the controlling thread's now
                self._failure = error
                return

    def _done(self, do: Callable[[], None], otherwise: str) -> bool:
        """Try to do it, and give whether that worked. A failure is told, and not again before it works."""
        try:
            do()
        except (MigrationFailed, QueryDied, ServiceUnavailable) as error:
            if otherwise not in self._failing and not self._over.is_set():
                self._tell(f"{otherwise}: {error}")
            self._failing.add(otherwise)
            return False
        self._failing.discard(otherwise)
        return True

    def _take(self) -> None:
        with self._when_due() as source:
            job, failover, begun_us = source.job, source.system.failover, now_us()

            def check() -> None:
                self._check()
                job.check()

            savepoint, written = self._replicas.capture(source, check)
            past = failover.histories(), failover.plans()
            captured = ResumePoint(job.config.job, savepoint, *past, begun_us / SECOND_US)
        state = {stage: sum(sizes.values()) for stage, sizes in savepoint.unit_bytes.items()}
        self.taken.append(SnapshotRecord(begun_us, now_us(), written, state, savepoint.name))
        self.written = *self.written[-1:], captured

    @contextmanager
    def _when_due(self) -> Iterator[LedReplica]:
        """Inside, nothing moves, and all replicas are full. Gives the one that has lived for longest."""
        due, moved = time.monotonic() + self._every_s, False
        while True:
            self._over.wait(min(LOOK_S, self._every_s))
            self._check()
            with self._still() as still:
                if still and (moved or time.monotonic() >= due) and (living := self._replicas.living):
                    yield living[0]
                    return
            moved = moved or not still

    def _check(self) -> None:
        if self._over.is_set():
            raise _NoMore

    def _remove_old(self) -> None:
        """Remove what nobody needs of these jobs, also of processes before. Captures have parts of earlier ones."""
        mine = {(each.of, each.savepoint.name) for each in (*self.written, *self.in_journals)}
        needed, endpoints = mine | self._needed(), self._replicas.all[0].job.config.endpoints
        for writer in {job for job, _ in needed}:
            names = sorted(name for job, name in needed if job == writer)
            SavepointStore(endpoints, writer).keep_only(names, CAPTURE_PREFIX)

    def _clear(self) -> None:
        """Remove what slots of replicas have acknowledged of steps: another process has it from the journal."""
        for replica in self._replicas.living:
            with suppress(ServiceUnavailable):  # it has just died, or it goes the next time
                for stage in replica.job.stages:
                    if (log := stage.log) is not None:
                        clear_acknowledgements(stage, log, log.told_by_all)
