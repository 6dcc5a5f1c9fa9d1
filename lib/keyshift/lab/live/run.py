"""A run that lasts until it is stopped: its script is what other threads ask of it."""

import time
from collections.abc import Callable, Mapping

from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import RunSpec
from keyshift.lab.display import Display
from keyshift.lab.execution import LEAD_S, LOOK_S, Execution, Script
from keyshift.lab.live.inbox import Inbox
from keyshift.lab.live.journal import Journal, JournalWriter
from keyshift.lab.plans.migrations import Migration, Migrations
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.system import KeyshiftJob
from keyshift.model.errors import MigrationFailed
from keyshift.model.notes import Doing, Phase
from keyshift.model.records import Measured
from keyshift.traffic.topics import Epochs
from keyshift.traffic.traffic import Before, Feed, Traffic


class LiveRun:
    """``execution`` is for the controlling thread; ``inbox`` and ``stop`` are for any other one."""

    def __init__(
        self, spec: RunSpec, system: KeyshiftJob, traffic: Traffic, display: Display, ready: Callable[[], None]
    ) -> None:
        self.execution = run = Execution(spec, system, traffic, display, ready, self._serve)
        run.open = self._open
        run.each_second.append(self._measure)
        run.each_look.append(self._look)
        self.spec, self.system, self.traffic, self.display = spec, system, traffic, display
        self.state = "starting"  # running, stopping
        self.stop_wanted = False  # remembered, whatever becomes of the query meanwhile
        self.inbox = Inbox(lambda: self.state, lambda: str(display.doing))
        self.migrations = Migrations(run, system)
        self.measured: Mapping[str, Mapping[int, Measured]] = {}  # of each stage and slot, as it said last
        self.resumed: Callable[[], Journal] | None = None  # reads that of the process before
        self.take_over = False  # even if that one seems to live
        self.begun: Callable[[str, str], None] = lambda run_id, token: None  # see ``LiveJob``
        self.keep: Callable[[Journal], None] | None = None  # writes the journal down
        self._journal = JournalWriter(self._write, system.succession.kept, system.note)
        self.on_ready: Callable[[], None] = lambda: None

    @property
    def offered(self) -> int:
        """Events so far."""
        feed = self.execution.feed
        return feed.sent + feed.before.events if feed else 0

    def stop(self) -> None:
        """The load ends at the next look, or when the job has recovered."""
        self.stop_wanted = True

    # -- of the controlling thread ------------------------------------------------------------------------------------

    def migrate(self, proposal: Proposal) -> Migration:
        """Request what was proposed."""
        migration = self.migrations.request(proposal)
        self._keep()  # whoever is told of it finds it again
        return migration

    def _serve(self, run: Execution) -> Script:
        """The script."""
        if self.spec.scenario.trigger == "auto":
            run.autoscale(time.time() + LEAD_S + self.spec.autoscaler.autoscale_s, self._asked)
        self.display.enter(Doing(Phase.STEADY))
        self.migrations.settle()
        self._keep()  # before anybody hears that it runs
        self.state = "running"
        self.on_ready()
        while not self.stop_wanted:
            yield time.time() + LOOK_S
            yield self.inbox.serve
        self.state = "stopping"
        self.inbox.refuse()

    def _asked(self, change: ScaleTo, stage: str) -> None:
        """By the autoscaler."""
        self.migrate(self.system.plans.propose(stage, change))

    def _measure(self) -> None:
        try:
            self.measured = self.system.measure()
        except MigrationFailed as error:  # a slot that hangs is not dead
            self.display.say(f"not measured: {error}")

    def _look(self) -> None:
        """Also while the last results come: old snapshots go then, too."""
        if self.state != "starting":
            self.migrations.settle()
            self._keep()

    def _keep(self) -> None:
        """The journal, if something has changed that must not be lost."""
        told, run = self.system.status(), self.execution
        outcomes = [migration.outcome for migration in self.migrations.status()]
        now = (told["attempt"], told["snapshots"], len(told["notes"]), outcomes, run.rate)
        self._journal.keep(now, self._made)

    def _made(self) -> Journal:
        run, migrations = self.execution, self.migrations
        return Journal(
            **vars(self.system.succession.journal()),
            began_at=run.began_at,
            trigger=run.trigger,
            rate=run.rate,
            migrations=migrations.status(),
            targets=migrations.targets,
        )

    def _write(self, journal: Journal) -> None:
        if self.keep is not None:
            self.keep(journal)

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _open(self) -> Feed:
        if self.resumed is None:
            new = self.system.succession.journal()
            self.begun(new.run_id, new.token)
            self.traffic.for_ever = self.keep is not None
            feed = self.execution.open_new()
        else:
            feed = self._reopen(self.resumed)
        self.system.require_driver()
        return feed

    def _resume(self, journal: Journal, epochs: Epochs) -> str:
        self.system.succession.resume(journal, epochs)
        return self.system.begun_from

    def _reopen(self, read_journal: Callable[[], Journal]) -> Feed:
        """In place of ``Execution.open_new``: topics and results are there, and the state is in snapshots.

        Behind the claim the process before writes no journal any more, and behind the first frame that a generator of
        the new epoch writes into a partition no event of another one counts. Only then both are read.
        """
        run = self.execution
        if not self.take_over:
            self.traffic.await_silence()
        epoch = self.system.succession.claim(read_journal())
        journal = read_journal()
        run.rate, run.trigger, run.began_at = journal.rate, journal.trigger, journal.began_at
        self.migrations.resume(journal.migrations, journal.targets)
        self.traffic.open(again=True)
        run.feed = feed = self.traffic.feed(run.rate, self.spec.run.frame_ms, epoch=epoch)
        feed.await_state("ready")
        offered = self.traffic.count_offered()
        feed.skip(offered.events)
        feed.before = Before(sum(offered.events), offered.due)
        begin = time.perf_counter()
        begun_from = run.surviving(
            lambda: self._resume(journal, offered.epochs), lambda: "snapshot, the newest that could be read,"
        )
        self.display.say("ready: every router and slot has put a first row through")
        self.system.note(
            f"the job's process was gone and another one went on with it; everything since its {begun_from} was done "
            f"again, which was under way after {time.perf_counter() - begin:.1f} s; no events were offered meanwhile; "
            "measures and requests of the process before are lost"
        )
        return feed
