"""The jobs of a replicated one, each with the Spark application that it runs in: how they are made and how they end.

A replica that comes back is another incarnation of it: the next attempt of its job, in another application.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keyshift.driver.agreement import Agreement, Member, MemberSay
from keyshift.driver.job import Job, forget_attempts, newest_attempt
from keyshift.driver.job_faults import ServicesToHit
from keyshift.driver.snapshotter import CAPTURE_PREFIX, capture
from keyshift.experiment.spec import RunSpec
from keyshift.lab.live.failover import SystemJournal
from keyshift.lab.plans.stage_plans import PlansPast
from keyshift.lab.replicas.spares import Spares
from keyshift.lab.replicas.spark import Application
from keyshift.lab.service_faults import BesideRun
from keyshift.lab.system import KeyshiftJob
from keyshift.model.markers import StateWritten
from keyshift.model.notes import Doing
from keyshift.model.records import Instance
from keyshift.runtime.protocol_log import LogEvent
from keyshift.traffic.copies import Incarnation, Standing
from keyshift.traffic.topics import Epochs
from keyshift.traffic.traffic import Traffic
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import REPLICA, Fault
from keyshift.wire.savepoint import Savepoint


@dataclass(eq=False)
class LedReplica:
    """The ``number``-th replica, from 0. ``lives``: it runs, or has not begun; since then, in seconds since the epoch.
    ``began``: its incarnations. ``deaths``: since this process drives it, with those before it lived again.
    """

    number: int
    application: Application
    job: Job
    system: KeyshiftJob
    lives: bool = True
    since: float = 0.0
    began: list[Incarnation] = field(default_factory=lambda: [Incarnation()])
    deaths: int = 0

    def begins_from(self, begin: Savepoint | None) -> None:
        """Note where its next job is to begin, None: the beginning. Some slots may give results before others fail."""
        turns = begin.turns if begin else {}
        self.began.append(Incarnation(turns.get(self.job.stages[-1].name, {}), self.job.config.attempt))

    def comes_to_life(self) -> None:
        """Note that each of its slots has given something."""
        self.lives, self.since = True, time.time()


class Replicas:
    """The replicas of a job, with what ``driver.job.Job`` has for its end. For the controlling thread.

    ``configs``: of each. ``open_application``: makes the one of this part, which is the replica's number, and of this
    incarnation, which is not begun, and which gives way to others or not. ``log`` gets what their jobs read of theirs.
    ``differences``: between them, so far. ``before_stop``: called first when all end. ``order``: the topic of their
    order log, if they have one. ``services``: what can be hit of all of them; ``spares``: for those that die.
    """

    def __init__(
        self,
        spec: RunSpec,
        configs: Iterable[JobConfig],
        open_application: Callable[[str, int, bool], Application],
        work: Path,
        traffic: Traffic,
        say: Callable[[Doing], None],
        services: BesideRun,
        log: list[LogEvent],
    ) -> None:
        self._log, self.differences, self.traffic, self._open = log, traffic.differences, traffic, open_application
        self.order = traffic.order
        self._given, self.services, self.say = (work, spec.job.batch_s, traffic, say), services, say
        self.struck: list[tuple[float, Fault]] = []  # who was hit, and when, in seconds since the epoch
        # What fails is for all of them, and ``replicas.system`` looks after it.
        self._spec = replace(spec, scenario=spec.scenario.model_copy(update={"fault": ""}))
        self.spares = Spares(spec.job.spares, lambda part: open_application(part, 0, True))
        self._agreements = {stage.name: Agreement(self._members) for stage in spec.workload.stages}
        self.before_stop: list[Callable[[], None]] = []
        self._order_begins: tuple[int, ...] = ()  # offsets of the order log, from which on this process orders
        self._capturing, self._captured = threading.Lock(), 0  # one after the other, with numbers
        self.all: list[LedReplica] = []
        for config in configs:
            application = open_application(str(config.replica), 0, False)
            self.all.append(LedReplica(config.replica, application, *self._led(application, config)))

    def _led(self, application: Application, config: JobConfig) -> tuple[Job, KeyshiftJob]:
        struck = _MayStrike(application, self.services, self.struck)

        def start_query(config: JobConfig, *given: Any) -> Application:
            return application.start_query(self.services.seen_by(config), *given)

        job = Job(start_query, config, *self._given, struck)
        for stage in job.stages:
            if not config.apart:
                member = config.replica, config.attempt
                stage.agrees = MemberSay(self._agreements[stage.name], member, application.kill)
        return job, KeyshiftJob(self._spec, job)

    def _members(self) -> list[Member]:
        """The replicas that move together; from any thread. One that has died is not among them, and writes no more."""
        members = []
        for each in self.all:
            if each.lives and each.application.isActive:
                members.append((each.number, each.job.config.attempt))
            elif each.lives:
                each.application.kill()
        return members

    def leave(self, replica: LedReplica) -> None:
        """Leave the job of a ``replica`` that has died, whose last protocol events come into the log: what it has in
        ZooKeeper goes. For the thread of its way back.
        """
        replica.job.read_log()
        self._log += _taken_log(replica)
        replica.job.stop()

    def begin_next(self, replica: LedReplica) -> None:
        """Begin with the next incarnation of a ``replica`` that has died, without waiting: a spare application, or else
        one that is started now.
        """
        if spare := self.spares.take():
            replica.application = spare
            return
        replica.application = self._open(str(replica.number), replica.job.config.attempt + 1, True)
        replica.application.begin()

    def capture(self, replica: LedReplica, check: Callable[[], None]) -> tuple[Savepoint, dict[str, int]]:
        """Capture a replica as ``driver.snapshotter.capture`` does, when all results before that have come out: if
        nobody else lives any more, they do not come again. For any thread.
        """
        job, last = replica.job, replica.job.stages[-1]
        with self._capturing:
            self._captured += 1
            name = f"{CAPTURE_PREFIX}{job.config.attempt:03d}-{self._captured:06d}"  # they ascend
            saved, written = capture(job.config, job.stages, check, name)
        said = StateWritten(last.name, saved.name)
        self.traffic.await_slots(range(last.config.slots), said, check, replica.number)
        return saved, written

    def lead_next(self, replica: LedReplica, begin: Savepoint, of: str, other: LedReplica) -> None:
        """Have its job go on from what the job ``of`` a replica has written, under the assignment of the ``other`` one,
        and wait until each router and slot has put a row through.
        """
        before, past, notes = replica.job.config, other.system.failover, replica.job.notes
        # Under the same epoch: to claim the job anew would depose a process that has claimed it meanwhile.
        config = replace(before, restore=begin.name, restore_of=of, attempt=before.attempt + 1, faults=())
        replica.job, replica.system = self._led(replica.application, config)
        replica.job.notes += notes  # which are of the run
        replica.system.failover.follow(past.histories(), past.plans())
        replica.begins_from(begin)
        replica.job.start([stage.assignment for stage in other.job.stages], begin)
        replica.comes_to_life()
        forget_attempts(replica.job.config)

    def go_on(self, replica: LedReplica, journal: SystemJournal, epochs: Epochs) -> None:
        """Have its job, which was claimed from another process, go on from where all of them stood in the ``journal``,
        or from the beginning of the input. ``epochs``: of that.
        """
        past, begin, of = journal.past, journal.past.begun_from, journal.of_replicas
        assert of is not None
        before = replica.job.config
        # The journal knows attempts that ZooKeeper may have lost.
        newest = max(newest_attempt(before), *(each.attempt for each in of.began[replica.number]))
        config = replace(before, attempt=newest + 1, epochs=epochs, faults=(), order_begins=self._order_begins)
        if begin is not None:
            config = replace(config, restore=begin.name, restore_of=of.of)
        replica.job, replica.system = self._led(replica.application, config)
        requested = {stage.name: of.requested.get(stage.name, 0) for stage in replica.job.stages}
        plans = {name: replace(plans_of(journal, name), requested=n) for name, n in requested.items()}
        replica.began = list(of.began[replica.number])
        replica.begins_from(begin)
        if begin is None:
            replica.system.failover.take(plans)
            replica.system.start()
        else:
            replica.system.failover.follow(past.stages, plans)
            replica.job.start([past.stages[stage.name].assignments[-1] for stage in replica.job.stages], begin)
        replica.comes_to_life()
        forget_attempts(replica.job.config)

    @property
    def standings(self) -> Mapping[int, Standing]:
        """The standings of replicas that keep up."""
        return self.traffic.standings

    def lag_ms(self, replica: LedReplica) -> float | None:
        """Compute how far the newest results of a ``replica`` are behind those of the one that has come furthest, by
        the schedule of the events; None if nothing has come of it yet. For any thread.
        """
        epochs = self.traffic.behind.get(replica.number)
        return None if epochs is None else epochs * replica.job.config.heartbeat_us / 1000

    @property
    def living(self) -> list[LedReplica]:
        """The replicas that live, the one that has done so for longest first."""
        return sorted((replica for replica in self.all if replica.lives), key=lambda replica: replica.since)

    def jobs(self) -> list[Job]:
        """The jobs of the replicas that live; for any thread."""
        return [replica.job for replica in self.living]

    def parts(self) -> dict[int, Instance]:
        """The replicas by the processes of their applications, and spare ones, as far as these run; for any thread."""
        replicas = {
            pid: Instance(replica=each.number) for each in self.all if (pid := each.application.pid) is not None
        }
        return dict.fromkeys(self.spares.pids, Instance("spare")) | replicas

    def begin(self) -> None:
        """Start their applications, all at once; see ``Application.await_ready``."""
        if self.order:
            with _together(self.all[0].job.config) as participant:
                participant.begin()
            # A process before may have ordered what comes no more, as something had moved.
            self._order_begins = tuple(offset for _, offset in sorted(self.order.ends().items()))
        for replica in self.all:
            replica.application.begin()
        self.spares.fill()
        require_wanted = self.traffic.require_wanted
        for replica in self.all:
            replica.application.await_ready(require_wanted)
        self.spares.await_ready(require_wanted)

    def require_driver(self) -> None:
        """Raise Deposed if another process has claimed one of the jobs. For any thread."""
        for replica in self.all:
            replica.job.require_driver()

    def read_log(self) -> None:
        """Read the last protocol events of all that live into the log."""
        for replica in self.living:
            replica.job.log = []
            replica.job.read_log()
        self.keep_log()

    def keep_log(self) -> None:
        """Put into the log what the jobs of all that live have read, with the replica in front of the places."""
        for replica in self.living:
            self._log += _taken_log(replica)

    def stop(self) -> None:
        """Stop the queries and end the applications, all of them even if something fails. Safe to call twice."""
        with contextlib.ExitStack() as stack:  # ends with what is put in first
            _each(self.all, stack, lambda replica: replica.job.stop())
            stack.callback(self.spares.end)
            _each(self.all, stack, lambda replica: replica.application.end())
            for end in reversed(self.before_stop):
                stack.callback(end)

    def end(self) -> None:
        """End the jobs, after ``stop``."""
        with contextlib.ExitStack() as stack:
            _each(self.all, stack, lambda replica: replica.job.end())

    def clean(self) -> None:
        """Remove what they left in ZooKeeper, MinIO and on disk."""
        with contextlib.ExitStack() as stack:
            _each(self.all, stack, lambda replica: replica.job.clean())
            if self.order:
                participant = stack.enter_context(_together(self.all[0].job.config))
                stack.callback(participant.withdraw, nodes.ALL)


def _taken_log(replica: LedReplica) -> list[LogEvent]:
    """Take what the job of a ``replica`` has read of its log, with the replica in front of the places."""
    read, replica.job.log = replica.job.log, []
    return [event.within(f"replica-{replica.number}") for event in read]


def _each(replicas: Iterable[LedReplica], stack: contextlib.ExitStack, end: Callable[[LedReplica], None]) -> None:
    for replica in replicas:
        stack.callback(end, replica)


class _MayStrike:
    """What faults may hit: services that all replicas have, and the ``application`` of one; ``struck`` gets what hits
    that, and when.
    """

    executors = False  # ``replicas.system`` deletes them

    def __init__(self, application: Application, services: ServicesToHit, struck: list[tuple[float, Fault]]) -> None:
        self._application, self._services, self._struck = application, services, struck

    def require(self, fault: Fault) -> None:
        self._services.require(fault)

    def allows(self, fault: Fault) -> bool:
        return self._services.allows(fault)

    def hit(self, fault: Fault, host: str = "") -> None:
        if fault.who != REPLICA:
            return self._services.hit(fault)
        self._struck.append((time.time(), fault))
        if fault.action == "stop":
            self._application.pause(fault.seconds)
        else:
            self._application.strike()

    @property
    def away(self) -> bool:
        return self._services.away


def plans_of(journal: SystemJournal, stage: str) -> PlansPast:
    """The plans as they were when the state was written that the job goes on from."""
    return journal.plans.get(stage, PlansPast())


def _together(config: JobConfig) -> contextlib.closing[Coordination]:
    """Open a place in ZooKeeper, at the root of what all replicas have together."""
    return contextlib.closing(Coordination(config.endpoints.zookeeper, nodes.of_job(config.shared), config.token))
