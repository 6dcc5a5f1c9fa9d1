"""A run that lasts until it is stopped: what is done with it comes from other threads while it goes on."""

import contextlib
import math
import queue
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from keyshift.experiment.commands import UNDER_WAY
from keyshift.experiment.scenario import Scale
from keyshift.experiment.spec import RunSpec
from keyshift.lab.course import LEAD_S, LOOK_S, Course
from keyshift.lab.display import Display
from keyshift.lab.ending import Unwanted
from keyshift.lab.judge.outcome import Outcome
from keyshift.lab.sampler import Sampler
from keyshift.lab.stage_plans import Proposal
from keyshift.lab.system import LiveSystem
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.model.records import Measured
from keyshift.traffic.traffic import Before, Feed, Traffic

WINDOW_S = 600.0  # in which the query may die ``recoveries`` times
LONGEST_PAUSE_S = 30.0
ANSWER_S = 110.0  # for an answer: a job that recovers or restarts answers when it has
KEEP_AGAIN_S = 5.0  # before a journal that could not be written is tried once more
GONE = "incomplete: the job's process was gone, and the next one had only the steps of it that were planned"
T = TypeVar("T")


class NotRunning(BadInput):
    """The job does not run yet, or any more: nothing can be done with it."""


@dataclass
class Migration:
    """One that was requested. Times in seconds since the epoch; ``outcome``: empty until it is over."""

    number: int  # of its stage
    proposal: Proposal
    requested_at: float
    ended_at: float | None = None
    outcome: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a status has it."""
        return {
            "number": self.number,
            "requested_at": self.requested_at,
            "took_s": None if self.ended_at is None else round(self.ended_at - self.requested_at, 3),
            "outcome": self.outcome or UNDER_WAY,
            **self.proposal.as_json(),
        }


class LiveRun(Course):
    """``execute`` makes the thread that calls it the controlling one; ``ask`` and ``stop`` are for any other thread.

    A migration phase that passes its deadline (MigrationFailed) where a savepoint was wanted leaves the query at a
    barrier: it is given up, and the job goes on from the newest snapshot as after its death.
    """

    deadly = (QueryDied, MigrationFailed)
    stop_wanted = False  # remembered, whatever becomes of the query meanwhile

    def __init__(
        self, spec: RunSpec, system: LiveSystem, traffic: Traffic, display: Display, ready: Callable[[], None]
    ) -> None:
        super().__init__(spec, system, traffic, display, ready)
        self.spec, self.system, self.traffic, self.display = spec, system, traffic, display
        self._inbox: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self.each_second.append(self._measure)
        self.state = "starting"  # running, stopping
        self.began_at = math.nan  # seconds since the epoch
        self.rate = spec.run.rate
        self.measured: Mapping[str, Mapping[int, Measured]] = {}  # of each stage and slot, as it said last
        self.migrations: list[Migration] = []
        self._before: list[dict[str, Any]] = []  # those that were requested of a process that is gone
        self._targets: dict[str, list[int]] = {}  # where units should come, by stage and number of one under way there
        self.unwanted = False
        self.resumed: Callable[[], dict[str, Any]] | None = None  # reads the journal of the process before
        self.take_over = False  # even if that one seems to live
        self.begun: Callable[[dict[str, Any]], None] = lambda known: None  # hears the secret before anything is made
        self.keep: Callable[[dict[str, Any]], None] | None = None  # writes the journal down
        self._kept: tuple[Any, ...] = ()  # of what the journal was that was kept last
        self._not_kept_since: float | None = None  # seconds of the monotonic clock
        self._keep_at = 0.0  # likewise: not before that
        self.on_ready: Callable[[], None] = lambda: None

    @property
    def deaths(self) -> int:
        """How often the query has died."""
        return len(self._deaths)

    @property
    def offered(self) -> int:
        """Events so far."""
        return self._feed.sent + self._feed.before.events if self._feed else 0

    def execute(self) -> Outcome:
        """Until ``stop``, and then from the last events to the verdict. Raises KeyshiftError if the job dies."""
        if self.resumed is None:
            self.begun({"token": self.system.journal()["token"]})
            self.traffic.for_ever = self.keep is not None
            feed = self._open()
        else:
            feed = self._reopen(self.resumed)
        with Sampler(ignore=self._traffic.pids) as sampler:
            now = time.time() + LEAD_S
            start = self.began_at = now if math.isnan(self.began_at) else self.began_at
            self.system.require_driver()
            feed.before = feed.before._replace(took_s=now - start)
            feed.begin(now, None)
            if self._spec.scenario.trigger == "auto":
                self._autoscale(now + self._spec.autoscaler.autoscale_s, self._asked)
            self._display.enter("steady")
            self._settle()
            self._keep()  # before anybody hears that it runs
            self.state = "running"
            self.on_ready()
            self._surviving(self._serve)
            end = self._idle_since = time.time()
            self._trigger = self._trigger or end
            feed.end_load()
            self._surviving(self._await_migrations)
            self._surviving(self._finish)
        self._settle()
        return self._outcome(start, start + self._spec.run.warmup_s, end, sampler.rows)

    # -- from other threads -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The load ends at the next look, or when the job has recovered."""
        self.stop_wanted = True

    def ask(self, act: Callable[[], T], within_s: float = ANSWER_S) -> T:
        """What ``act`` gives or raises, called by the controlling thread at its next look.

        Raises ServiceUnavailable if there is no answer ``within_s`` seconds; what has not begun by then never does.
        """
        answer: Future[T] = Future()
        self._inbox.put((answer, act))
        if self.state != "running":
            self.refuse()
        wait([answer], within_s)
        if answer.cancel():
            phase = self.display.phase
            raise ServiceUnavailable(f"the job did not come to it within {within_s:g} s, nothing was changed: {phase}")
        if not answer.done():
            raise ServiceUnavailable(f"the job is still at it after {within_s:g} s: its status will tell")
        return answer.result()

    def refuse(self) -> None:
        """Nobody looks any more: whoever still asks is told so."""

        def refused() -> None:
            raise NotRunning(f"the job is not running: it is {self.state}")

        while waiting := self._next():
            self._answer(waiting[0], refused)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """One at a time: the others are still there if this one finds the query dead."""
        with contextlib.suppress(queue.Empty):
            return self._inbox.get_nowait()
        return None

    # -- of the controlling thread ------------------------------------------------------------------------------------

    def migrate(self, proposal: Proposal) -> Migration:
        """Request what was proposed."""
        migration = Migration(self.system.adopt(proposal), proposal, time.time())
        self._trigger = self._trigger or migration.requested_at
        self.migrations.append(migration)
        self._keep()  # whoever is told of it finds it again
        return migration

    def _asked(self, change: Scale, stage: str) -> None:
        """By the autoscaler."""
        self.migrate(self.system.propose(stage, change))

    def change_rate(self, rate: float) -> None:
        """Another rate from now on, events per second."""
        assert self._feed is not None
        self._feed.change_rate(rate)
        self.rate = rate

    def _reopen(self, read_journal: Callable[[], dict[str, Any]]) -> Feed:
        """In place of ``_open``: topics and results are there, and the state is in snapshots.

        Behind the claim the process before writes no journal any more, and behind the first frame that a generator of
        the new epoch writes into a partition no event of another one counts. Only then both are read.
        """
        if not self.take_over:
            self._traffic.await_silence()
        epoch = self.system.claim(read_journal())
        journal = read_journal()
        self.rate, self._trigger, self.began_at = journal["rate"], journal["trigger"], journal["began_at"]
        self._traffic.open(again=True)
        self._feed = self._traffic.feed(self.rate, self._spec.run.frame_ms, epoch=epoch)
        self._feed.await_state("ready")
        offered = self._traffic.count_offered()
        self._feed.skip(offered.events)
        self._feed.before = Before(sum(offered.events), offered.due)
        self._before, self._targets = journal["migrations"], journal.get("targets", {})  # an older journal has none
        begin = time.perf_counter()
        resume = partial(self.system.resume, journal, offered.epochs)
        begun_from = self._surviving(resume, lambda: "snapshot, the newest that could be read,")
        self._display.say("ready: every router and slot has put a first row through")
        self.system.note(
            f"the job's process was gone and another one went on with it; everything since its {begun_from} was done "
            f"again, which was under way after {time.perf_counter() - begin:.1f} s; no events were offered meanwhile; "
            "measures and requests of the process before are lost"
        )
        return self._feed

    def told_migrations(self) -> list[dict[str, Any]]:
        """All that were requested, in that order, as a status has them."""
        return [*self._before, *(migration.as_json() for migration in list(self.migrations))]

    def _keep(self) -> None:
        """The journal, if something has changed that must not be lost. A disk that is full is no reason to end."""
        if time.monotonic() < self._keep_at:
            return
        told = self.system.status()
        migrations = self.told_migrations()
        outcomes = [migration["outcome"] for migration in migrations]
        now = (told["attempt"], told["snapshots"], len(told["troubles"]), outcomes, self.rate)
        if now == self._kept:
            return
        proposals = [(each.proposal, each.number) for each in self.migrations if not each.outcome]
        targets = {_key(proposal.stage, number): list(proposal.target.owner) for proposal, number in proposals}
        mine = {"began_at": self.began_at, "trigger": self._trigger, "rate": self.rate, "migrations": migrations}
        mine["targets"] = self._targets | targets
        journal = self.system.journal() | mine
        try:
            if self.keep is not None:
                self.keep(journal)
        except OSError as error:
            self._keep_at = time.monotonic() + KEEP_AGAIN_S
            if self._not_kept_since is None:
                self._not_kept_since = time.monotonic()
                self.system.note(f"the journal cannot be written ({error}); it is tried every {KEEP_AGAIN_S:g} s")
            return
        self._kept = now
        self.system.kept()
        if self._not_kept_since is not None:
            took_s, self._not_kept_since = time.monotonic() - self._not_kept_since, None
            self.system.note(f"the journal could not be written for {took_s:.0f} s, and is written again")

    def _serve(self) -> None:
        while True:
            self._look()
            for _ in range(self._inbox.qsize()):
                if waiting := self._next():
                    self._answer(*waiting)
            self._settle()
            if self.stop_wanted:
                break
            time.sleep(LOOK_S)
        self.state = "stopping"
        self.refuse()

    def _answer(self, answer: Future[Any], act: Callable[[], Any]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(act())
        except BaseException as error:
            told = isinstance(error, Exception)
            answer.set_exception(error if told else NotRunning("the job was interrupted"))
            if isinstance(error, QueryDied) or not told:
                raise

    def _settle(self) -> None:
        """See which migrations are over."""
        before = [migration for migration in self._before if migration["outcome"] == UNDER_WAY]
        stages = self.system.status()["stages"] if before else {}
        for left in before:
            now = stages[left["stage"]]
            if not now["migrating"]:
                reached = self._targets.pop(_key(left["stage"], left["number"]), None) == now["owners"]
                left["outcome"] = "complete" if reached else GONE
                left["took_s"] = round(time.time() - left["requested_at"], 3)
        for migration in self.migrations:
            stage, number = migration.proposal.stage, migration.number
            if not migration.outcome and (reached := self.system.ended(stage, number)) is not None:
                why = self._why(stage)
                migration.outcome = "complete" if reached else f"incomplete: {why}"
                migration.ended_at = time.time()

    def _why(self, stage: str) -> str:
        """The last line about ``stage``, or about the whole job."""
        others = tuple(f"{each.name}: " for each in self._spec.workload.stages if each.name != stage)
        troubles = [line for line in self.system.status()["troubles"] if not line.startswith(others)]
        return troubles[-1] if troubles else "it was taken back"

    def _measure(self) -> None:
        try:
            self.measured = self.system.measure()
        except MigrationFailed as error:  # a slot that hangs is not dead
            self._display.say(f"not measured: {error}")

    def _check(self) -> None:
        if self.unwanted:
            raise Unwanted("the job was given up before it was stopped: it has no verdict")
        super()._check()
        if self.state != "starting":
            self._keep()  # also while the last results come: old snapshots go then, too

    def _allow_another(self, death: KeyshiftError) -> None:
        most = self._spec.run.recoveries
        pause_s = pause_before(self._deaths, most)
        if pause_s is None:
            raise QueryDied(f"{death}; it died {most + 1} times within {WINDOW_S:g} s (recoveries = {most})") from death
        if pause_s:
            self._display.enter("recovering")
            self._display.say(f"{death}; the next attempt begins in {pause_s:g} s")
            time.sleep(pause_s)

    def _moment(self) -> str:
        return f"{max(0.0, time.time() - self.began_at):.1f} s after the load began"


def _key(stage: str, number: int) -> str:
    return f"{stage} {number}"


def pause_before(deaths: list[float], most: int) -> float | None:
    """Seconds until the next attempt, or None if there is none: ``most`` deaths are allowed within ``WINDOW_S``.

    ``deaths``: when each was, the last one now. The first has no pause, and each pause is twice the one before.
    """
    recent = sum(death > deaths[-1] - WINDOW_S for death in deaths)
    if recent > most:
        return None
    return 0.0 if recent == 1 else min(LONGEST_PAUSE_S, 2.0 ** (recent - 2))
