"""The query of a job, in one attempt after the other: its stages are led and snapshots are taken while it runs."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from keyshift.driver.attempt import Unfinished
from keyshift.driver.snapshotter import Snapshotter
from keyshift.driver.spark import RunningQuery, why_ended
from keyshift.driver.stage import LedStage
from keyshift.model.errors import QueryDied
from keyshift.model.markers import SlotStarted
from keyshift.traffic.traffic import Traffic
from keyshift.wire.config import JobConfig

# Starts one attempt of a job: its configuration, where its checkpoint goes, seconds of a batch, and where each router
# begins (None: at the beginning of the input).
StartQuery = Callable[[JobConfig, Path, float, dict[int, int] | None], RunningQuery]


class Query:
    """The query of ``stages``, started by ``begin``. For one controlling thread; ``check`` is for any. ``started`` is
    called before the first row is awaited. ``begin_snapshots``: those of an attempt.
    """

    def __init__(
        self,
        begin: StartQuery,
        work: Path,
        batch_s: float,
        stages: Sequence[LedStage],
        output: Traffic,
        started: Callable[[], None],
        begin_snapshots: Callable[[JobConfig], Snapshotter],
    ) -> None:
        self._begin, self._work, self._batch_s, self._stages = begin, work, batch_s, stages
        self._output, self._started, self._begin_snapshots = output, started, begin_snapshots
        self._query: RunningQuery | None = None
        self._snapshotter: Snapshotter | None = None
        self._ended: list[Snapshotter] = []  # of earlier attempts, that may still write

    def start(
        self,
        config: JobConfig,
        unfinished: Sequence[Unfinished],
        offsets: dict[int, int] | None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Start an attempt, and wait until every router and slot has put a first row through.

        ``unfinished``: the assignment of each stage, and what is left to do there. ``offsets``: where each router
        begins, None for the beginning of the input. ``settled`` is called when Spark has begun, and before the first
        row is awaited: it raises why nothing can come of it.
        """
        for stage, each, left in zip(self._stages, config.chain(), unfinished, strict=True):
            stage.publish(each, left)
        checkpoint = self._work / "checkpoints" / f"{config.job}-{config.attempt}"
        self._query = self._begin(config, checkpoint, self._batch_s, offsets)
        settled()
        self._started()
        for stage, left in zip(self._stages, unfinished, strict=True):
            ready = SlotStarted(stage.name, config.attempt, left.assignment.version)  # nobody leads before
            self._output.await_slots(range(stage.config.slots), ready, self.check, config.replica)
        for stage in self._stages:  # now: a step has a deadline
            stage.start()
        if config.snapshot_s:
            self._snapshotter = self._begin_snapshots(config)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._query is not None and self._query.isActive

    def check(self) -> None:
        """Raises QueryDied with the first telling line if the query has died, and whatever ended a coordinator or
        keeps snapshots from being taken.
        """
        if self._query is None:
            return
        if not self._query.isActive:
            raise QueryDied(f"the Spark query has ended: {why_ended(self._query) or 'stopped'}")
        for stage in self._stages:
            stage.check()
        if (snapshotter := self._snapshotter) is not None:
            snapshotter.check()

    def stop(self) -> None:
        """Stop where it is and leave ZooKeeper, all of it even if something fails. Safe to call twice."""
        with contextlib.ExitStack() as last:
            last.callback(self._leave)
            self._halt()

    def stop_for_the_next(self) -> list[Unfinished]:
        """Stop, for another attempt. Gives what is left of each stage; the version of its newest assignment is never
        used again.

        Until the coordinators have ended, a snapshot or a step may switch. One that dies may have decided on a version,
        and not have told whether it was published.
        """
        decided = [stage.assignment for stage in self._stages]
        self._halt()
        try:
            return [stage.unfinished(each) for stage, each in zip(self._stages, decided, strict=True)]
        finally:
            self._leave()

    def _halt(self) -> None:
        with contextlib.ExitStack() as last:
            if self._query is not None:
                last.callback(self._query.stop)
            for stage in reversed(self._stages):
                last.callback(stage.end)
            self.end_snapshots()

    def _leave(self) -> None:
        with contextlib.ExitStack() as last:
            last.callback(setattr, self, "_query", None)  # until then planners see that it has ended
            for stage in reversed(self._stages):
                last.callback(stage.leave)

    def end_snapshots(self) -> None:
        """Take no more snapshots: what is not complete by now never is."""
        if self._snapshotter is not None:
            self._snapshotter.end()
            # Those that have come to their end hold connections, and a job that lasts has many attempts.
            self._ended = [each for each in (*self._ended, self._snapshotter) if each.writes]
            self._snapshotter = None

    def await_writers(self, within_s: float) -> None:
        """Wait until no snapshot of an attempt that has ended is written any more, each for so long at the most."""
        for snapshotter in self._ended:
            snapshotter.join(within_s)
