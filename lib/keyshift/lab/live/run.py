"""A run that lasts until it is stopped: its script is what other threads ask of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import cast

from keyshift.experiment.commands import Migration
from keyshift.experiment.scenario import ScaleTo
from keyshift.lab.live.inbox import Inbox
from keyshift.lab.live.journal import Journal, JournalWriter, Keeper
from keyshift.lab.live.presence import Presence
from keyshift.lab.live.status import JobLife, JobState, OfSlot
from keyshift.lab.plans.migrations import Migrations
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.run_loop import LEAD_S, LOOK_S, RunLoop, Script
from keyshift.lab.system import LOOK_WITHIN_S, LiveSystem
from keyshift.model.errors import MigrationFailed, RunsElsewhere, service_errors
from keyshift.model.notes import Activity, Doing
from keyshift.model.records import Measured
from keyshift.traffic.feed import Before, Feed
from keyshift.traffic.topics import Epochs

# Of a job that nothing outlives, at the most: nobody could find its topics if its process is killed, so Kafka has to
# remove them some day.
LASTS_S = 7 * 24 * 3600.0


class LiveRun:
    """The run of a live job, which leads its ``life`` until that stops. ``loop`` is for the controlling thread,
    ``inbox`` for any other one. ``on_ready`` is called when events go in.
    """

    def __init__(self, loop: RunLoop, keeper: Keeper, life: JobLife, on_ready: Callable[[], None]) -> None:
        self.loop, self.system = loop, cast(LiveSystem, loop.system)
        self._keeper, self._life, self._on_ready = keeper, life, on_ready
        loop.open, loop.lasts_s = self._open, LASTS_S
        loop.each_second.append(self._measure)
        loop.each_look.append(self._look)
        self.inbox = Inbox(lambda: life.state, lambda: str(loop.reporter.doing))
        self.migrations = Migrations(loop)
        self.measured: Mapping[str, Mapping[int, OfSlot]] = {}  # of each stage and slot, as it said last
        self._failover = self.system.failover
        self._journal = JournalWriter(keeper, self._failover.journal_written, self.system.note)
        self._presence: Presence | None = None  # of a job that others could go on with, or forget

    @property
    def offered(self) -> int:
        """Events offered so far."""
        feed = self.loop.feed
        return feed.sent + feed.before.events if feed else 0

    def close(self) -> None:
        """Answer nobody any more, and be seen no more as the driver of the job: all of it has ended."""
        self.inbox.refuse()
        if self._presence:
            self._presence.end()

    # -- of the controlling thread ------------------------------------------------------------------------------------

    def migrate(self, proposal: Proposal) -> Migration:
        """Request what was proposed."""
        migration = self.migrations.request(proposal)
        self._keep()  # whoever is told of it finds it again
        return migration

    def script(self) -> Script:
        """Do what others ask, until the job is to stop."""
        loop, spec = self.loop, self.loop.spec
        if spec.scenario.trigger == "auto":
            loop.autoscale(time.time() + LEAD_S + spec.autoscaler.autoscale_s, self._asked)
        loop.reporter.enter(Doing(Activity.STEADY))
        self.migrations.settle()
        self._keep()  # before anybody hears that it runs
        self._keeper.begun()
        self._life.enter(JobState.RUNNING)
        self._on_ready()
        while not self._life.stop_wanted:
            yield self._pause
            yield self.inbox.serve
        self._life.enter(JobState.STOPPING)
        self.inbox.refuse()
        loop.cut_faults_short()  # else whoever stops the job would wait for what is away

    def _pause(self) -> None:
        """Look, then sleep for a fixed time: if the clock is set back, a moment to wait for would come too late."""
        self.loop.look()
        time.sleep(LOOK_S)

    def _asked(self, change: ScaleTo, stage: str) -> None:
        """Request what the autoscaler asks for."""
        self.migrate(self.system.plans.propose(stage, change))

    def _measure(self) -> None:
        try:
            measured = self.system.measure(LOOK_WITHIN_S)
        except MigrationFailed as error:  # a slot that hangs is not dead
            self.loop.reporter.say(f"not measured: {error}")
            return
        replica = self.system.measured_of
        self.measured = {
            stage: {slot: _figures(said, replica) for slot, said in of.items()} for stage, of in measured.items()
        }

    def _look(self) -> None:
        """Settle migrations and keep the journal; also while the last results come, as old snapshots go then, too."""
        if self._life.state is not JobState.STARTING:
            self.migrations.settle()
            self._keep()

    def _keep(self) -> None:
        """Write the journal, if something has changed that must not be lost."""
        begun, snapshots = self._failover.progress
        now = begun, self.migrations.progress, len(self.system.notes), self.loop.rates.copy(), self._rate_changed
        self._journal.keep(now, snapshots, self._made)

    def _made(self) -> Journal:
        loop, migrations = self.loop, self.migrations
        return Journal(
            **vars(self._failover.journal()),
            began_at=loop.began_at,
            trigger=loop.trigger,
            rates=loop.rates.copy(),
            migrations=migrations.status(),
            targets=migrations.targets,
            rate_changed=self._rate_changed,
        )

    @property
    def _rate_changed(self) -> bool:
        """Whether any rate was changed, in a process before, too; it may be what it was at the beginning again."""
        return self.loop.feed is not None and self.loop.feed.rate_changed

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _open(self) -> Feed:
        if self._keeper.resumed is None:
            run_id, token = self.system.identity
            self._keeper.expect(run_id, token)
            if self._keeper.outlives:
                self._presence = self._failover.presence(token)
                self._presence.begin(first=True)
            self.loop.traffic.for_ever = self._keeper.outlives
            feed = self.loop.open_new()
        else:
            feed = self._reopen(self._keeper.resumed)
        self._failover.require_driver()
        return feed

    def _await_nobody(self, presence: Presence) -> None:
        try:
            self.loop.traffic.await_silence(self.loop.spec.run.frame_ms)
            presence.await_none(self.loop.reporter.say)
        except RunsElsewhere as error:
            remedy = "`keyshift resume NAME --take-over` goes on with it all the same, and the other process ends"
            if self.loop.spec.job.replicas > 1:
                remedy = "end that process first"
            raise RunsElsewhere(f"{error}; {remedy}") from error

    def _resume(self, journal: Journal, epochs: Epochs) -> str:
        self._failover.resume(journal, epochs)
        return self.system.begun_from

    def _reopen(self, read_journal: Callable[[], Journal]) -> Feed:
        """Go on in place of ``RunLoop.open_new``: topics and results are there, and the state is in snapshots.

        Behind the claim the process before writes no journal any more, and behind the first frame that a generator of
        the new epoch writes into a partition no event of another one counts. Only then both are read. If Kafka has lost
        events, the journal leaves out what has read them before others come in their place.
        """
        loop, traffic, journal = self.loop, self.loop.traffic, read_journal()
        self._presence = presence = self._failover.presence(journal.token)
        if not self._keeper.take_over:
            self._await_nobody(presence)
        epoch = self._failover.claim(journal)
        self._keeper.claimed()
        presence.begin()
        journal = self._failover.readable(on_disk := read_journal())
        loop.rates = loop.rates | journal.rates
        loop.trigger, loop.began_at = journal.trigger, journal.began_at
        self.migrations.resume(journal.migrations, journal.targets)
        traffic.require_input(journal.offsets)  # before a generator puts other frames in place of lost ones
        if journal is not on_disk:  # whoever goes on next could not see any more that these are others
            self._failover.require_driver()
            with service_errors(OSError, lambda error: f"the journal cannot be written ({error})"):
                self._keeper.keep(journal)
        traffic.open(again=True, superseded=self._failover.supersede(journal))
        loads = [load._replace(rate=rate) for load, rate in zip(loop.spec.loads, loop.rates.values(), strict=True)]
        loop.feed = feed = traffic.feed(loads, loop.spec.run.frame_ms, epoch)
        feed.await_ready()
        offered = traffic.count_offered()
        rate_changed = journal.rate_changed or loads != loop.spec.loads
        feed.before = Before(sum(offered.events), offered.due, rate_changed=rate_changed)
        loop.reporter.say(f"the generator goes past {feed.before.events:,} events that were offered before")
        feed.skip(offered.events)
        feed.await_skipped()  # no tick comes before, and all that was due since the beginning would come at once
        begin = time.perf_counter()
        begun_from = loop.surviving(
            lambda: self._resume(journal, offered.epochs), lambda: "snapshot, the newest that could be read,"
        )
        loop.reporter.say("ready: every router and slot has put a first row through")
        self.system.note(
            f"the job's process was gone and another one went on with it; everything since its {begun_from} was done "
            f"again, which was under way after {time.perf_counter() - begin:.1f} s; no events were offered meanwhile; "
            "measures and requests of the process before are lost"
        )
        return feed


def _figures(measured: Measured, replica: int | None) -> OfSlot:
    """Give what a slot measured, without the units; with replicas, of which one."""
    given = ((field.name, getattr(measured, field.name)) for field in fields(measured))  # no copies: it has all units
    figures: OfSlot = {name: value for name, value in given if isinstance(value, int | float)}
    whose: OfSlot = {} if replica is None else {"replica": replica}
    return figures | {"records": sum(count for _, count in measured.records)} | whose
