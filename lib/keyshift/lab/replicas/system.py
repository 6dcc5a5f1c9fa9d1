"""A job with replicas as the system under test: one dies, the others go on, and it comes back. It can be asked how it
is, and what to do, while it runs.

State moves in all of them alike: each makes the same plan, and switches behind the same epochs, see
``driver.agreement``; or one moves after the other, see ``replicas.requests``. A request waits while a replica is on its
way back.
"""

import dataclasses
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from keyshift.clock import now_us
from keyshift.driver.agreement import Member
from keyshift.driver.job_faults import first_slot_host
from keyshift.experiment.replicas import ends_one, moves_apart
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import RunSpec
from keyshift.lab.judge.final_state import FinalState
from keyshift.lab.live.failover import SystemJournal
from keyshift.lab.live.status import COMES_BACK, GONE, LIVES, ReplicaStatus, SystemStatus
from keyshift.lab.replicas.failover import ReplicasFailover, point_of
from keyshift.lab.replicas.jobs import LedReplica, Replicas, plans_of
from keyshift.lab.replicas.leaders import leaders, leading
from keyshift.lab.replicas.plans import ReplicatedPlans, first_of
from keyshift.lab.replicas.requests import MoveRequest, OneByOne, Requests, Together
from keyshift.lab.replicas.resume_points import ResumePoints
from keyshift.lab.replicas.returning import Returns
from keyshift.model.errors import BadInput, KeyshiftError, QueryDied
from keyshift.model.notes import Activity, Note, NoteKind
from keyshift.model.records import Measured
from keyshift.planner import Strategy
from keyshift.progress import Say
from keyshift.traffic.topics import Epochs
from keyshift.wire.faults import EXECUTOR, FOLLOWER, REPLICA, Fault

TOGETHER_US = 1_000_000  # in which all routers of all replicas answer an appointment
DIES_WITHIN_S = 10.0  # of a fault that ends its query; later, nobody was there to be hit, as between two batches


class LiveReplicas:
    """A job with replicas, as a ``LiveSystem``.

    What is asked of a job is asked of the replica that has lived for longest, as all of them do the same.
    """

    def __init__(self, spec: RunSpec, replicas: Replicas, say: Say) -> None:
        self._spec, self._replicas, self._say = spec, replicas, say
        self._notes: list[Note] = []
        self._told = 0  # differences
        self._hit: dict[Member, float] = {}  # whose query ends a moment later: when, by the monotonic clock
        self.measured_of: int | None = None  # see ``LiveSystem``
        self.begun_from = "beginning"  # ``snapshot``, if another process has begun from one

        def tell(line: str, kind: NoteKind = NoteKind.TOLD) -> None:
            self.note(line, kind)
            say(line)

        self._apart = moves_apart(spec.job, spec.scenario)
        kind = OneByOne if self._apart else Together
        self._requests: Requests = kind(replicas, tell, lambda: self._returns.under_way)
        given = tell, self._notes, self._requests.alike, spec.job.returns
        self._returns: Returns = Returns(replicas, lambda: self._points.newest, *given)
        still, needed = self._requests.still, lambda: self._returns.needed
        self._points: ResumePoints = ResumePoints(replicas, spec.job.snapshot_s, still, needed, tell)
        replicas.before_stop += [self._returns.close, self._points.end]
        self.plans = ReplicatedPlans(replicas, self._requests)
        common = replicas.all[0].job.config
        self.identity = common.shared, common.token
        told = lambda: self.plans.requested, lambda: self.notes
        self.failover = ReplicasFailover(replicas, self._points, *told, self._go_on)

    def start(self) -> None:
        """Start the Spark of each at the same time, then their queries one after the other."""
        self._say(f"starting {len(self._replicas.all)} replicas, each with a Spark of its own")
        self._replicas.begin()
        for replica in self._replicas.all:
            with self._returns.surviving(replica):
                replica.system.start()
        self._returns.count()
        self._points.begin()

    def _go_on(self, journal: SystemJournal, epochs: Epochs) -> None:
        assert journal.of_replicas is not None
        self._notes[:] = journal.past.notes
        self.plans.before = journal.of_replicas.requested
        self._say(f"starting {len(self._replicas.all)} replicas, each with a Spark of its own")
        self._replicas.begin()
        for replica in self._replicas.all:
            with self._returns.surviving(replica):
                self._replicas.go_on(replica, journal, epochs)
        self._returns.count()
        point = point_of(journal)
        self.begun_from = "snapshot" if point else "beginning"
        for stage, requested in self.plans.before.items():
            if lost := requested - plans_of(journal, stage).requested:
                self.note(f"migrations of {stage} that the {self.begun_from} does not have are lost: {lost}")
        self._points.begin(point)

    def check(self) -> None:
        """Notice who has died or is back, and tell of differences. Raises KeyshiftError if nobody is left."""
        for difference in self._replicas.differences[self._told :]:
            self._told += 1
            self._say(str(difference))
        self._returns.look()
        self._points.check()
        for replica in self._replicas.living:
            with self._returns.surviving(replica):
                replica.system.check()
        self._requests.pass_on()
        self._returns.begin_all()

    def recover(self) -> str:
        """Never starts the job anew: no death but the last one is an error."""
        raise KeyshiftError("a job with replicas is not started anew")

    def announce(self, change: Change, point: Strategy | None = None) -> None:
        """Announce a change to each of them."""
        for replica in self._replicas.living:
            with self._returns.surviving(replica):
                replica.system.announce(change, point)

    def request(self, change: Change, replace: bool = False, stage: str | None = None) -> None:
        """Ask all of them for a migration. Raises BadInput for ``replace``: some might have begun by then, and others
        not.
        """
        if replace:
            raise BadInput("replicas do not take back what has not begun, as one of them may have begun it")
        self._requests.add(MoveRequest(change, stage))

    def cancel(self) -> None:
        """Take back what has not begun, and let no replica come back any more."""
        self._requests.clear()
        self._returns.close()

    def measure(self, within_s: float = math.inf) -> Mapping[str, Mapping[int, Measured]]:
        """Return what the slots of one, ``measured_of``, measure; nothing if it has died, which is noticed later."""
        first = first_of(self._replicas)
        self.measured_of = first.number
        try:
            return first.system.measure(within_s)
        except QueryDied:
            return {}

    @property
    def owners(self) -> Mapping[str, Collection[int]]:
        """The slots that own state in each of them."""
        return first_of(self._replicas).system.owners

    @property
    def returning(self) -> bool:
        """Whether a replica is to come back or is not full yet, or has died and nobody has noticed."""
        living = self._replicas.living
        return len(_answering(living, self._hit)) < len(living) or self._returns.to_come

    @property
    def migrating(self) -> bool:
        """Whether something is to move or moves."""
        return self._requests.waits or any(replica.system.plans.busy for replica in self._replicas.living)

    @property
    def busy(self) -> bool:
        """Whether it migrates, a replica is on its way back, or a service is away."""
        return self.migrating or self.returning or any(replica.system.busy for replica in self._replicas.living)

    def hit(self, fault: Fault) -> None:
        """Let a fault happen. A replica that is killed, or stopped, is the one that has lived for longest or, where
        slots have leaders, that leads most of them; a follower is one that leads none, of several the one that came
        last. An executor is that of the first slot of the one that has lived for longest.

        Raises BadInput if it cannot happen here, nobody follows, or nobody would be left: nothing could go on with the
        job.
        """
        self._replicas.services.require(fault)
        left = _answering(self._replicas.living, self._hit)
        if ends_one(fault) and len(left) < 2:
            raise BadInput(
                f"fault = {fault}: {len(left)} of replicas = {len(self._replicas.all)} lives, and none would be left; "
                "wait until `keyshift job status` says that another one lives"
            )
        first = left[0] if left else first_of(self._replicas)  # another one may have died just now
        if self._replicas.order and left and fault.who in (REPLICA, FOLLOWER):
            first = _by_lead(fault, left, self._spec.tasks)
        at = time.time()
        if fault.who == EXECUTOR:
            first.application.delete_executor(first_slot_host(first.job.stages[0]))
        elif fault.who not in (REPLICA, FOLLOWER):
            first.system.hit(fault)
        elif fault.action == "stop":
            first.application.pause(fault.seconds)
        else:
            first.application.kill()
        if ends_one(fault) and fault.who not in (REPLICA, FOLLOWER):  # these have no process any more
            self._hit[_member(first)] = time.monotonic()
        self._replicas.struck.append((at, fault))

    def note(self, line: str, kind: NoteKind = NoteKind.TOLD) -> None:
        """Add a line behind the notes until now."""
        self._notes.append(Note(line, kind=kind))

    def stop(self) -> None:
        """Stop each of them, all behind the same epoch, so that they have had the same turns."""
        self.cancel()
        self._points.end()
        at_us, epochs = now_us() + TOGETHER_US, dict[int, int]()
        for replica in self._replicas.living:
            with self._returns.surviving(replica):
                epochs[replica.number] = replica.system.stop_at(at_us)
        if len({*epochs.values()}) > 1:
            self.note(f"replicas stopped behind different epochs, {epochs}: their last turns are not the same ones")
        for replica in self._replicas.living:
            with self._returns.surviving(replica):
                replica.system.stop()
        self._replicas.keep_log()

    def final_state(self) -> FinalState:
        """The final state of the replica that has come furthest, and of these of the one that moved last, with those of
        all that live: each has had an end of its own.
        """
        states = {replica.number: replica.system.final_state() for replica in self._replicas.living}
        number, furthest = max(states.items(), key=lambda each: _came_to(each[1]))
        for fault in self._spec.scenario.faults():
            if fault not in [each for _, each in self._replicas.struck]:
                self.note(f"fault = {self._spec.scenario.fault}: {fault} did not happen")
        if self._apart and furthest.stages:
            self.note(f"steps, moves and completion are those of replica {number}, which moved last")
        if self._replicas.order:
            self.note(leaders(self._replicas.order, self._spec.tasks))
        return dataclasses.replace(
            furthest,
            replicas=states,
            replica=number,
            judged=number if self._apart else None,
            began={replica.number: replica.began for replica in self._replicas.all},
            strength=self._returns.strength,
            snapshots=self._points.taken,
            notes=[*map(str, [*self._notes, *self.plans.notes]), *_own_notes(self._replicas.all)],
            struck=[(at, fault.what) for at, fault in self._replicas.struck],
        )

    @property
    def activities(self) -> Mapping[str, Activity]:
        """Those of the replica that moves, or of the one that has lived for longest."""
        return _moving(self._replicas).system.activities

    @property
    def notes(self) -> list[Note]:
        """Notes of the job, then of the replica that has lived for longest, then of what was taken back."""
        return [*self._notes, *first_of(self._replicas).system.notes, *self.plans.notes]

    def status(self) -> SystemStatus:
        """The status. Stages are those of the replica that moves, or of the one that has lived for longest."""
        replicas = self._replicas.all
        return {
            **_moving(self._replicas).system.status(),
            "notes": [*map(str, [*self._notes, *self.plans.notes]), *_own_notes(replicas)],
            "replicas": {each.number: _how(each, self._replicas, self._returns) for each in replicas},
            "snapshots": len(self._points.taken),
            "snapshot_bytes": sum(newest[-1].state.values()) if (newest := self._points.taken) else None,
        }


def _answering(living: Iterable[LedReplica], hit: Mapping[Member, float]) -> list[LedReplica]:
    """The replicas that have not died, and are not about to."""
    before = time.monotonic() - DIES_WITHIN_S
    return [each for each in living if each.application.isActive and hit.get(_member(each), -math.inf) <= before]


def _by_lead(fault: Fault, living: Sequence[LedReplica], slots: Mapping[str, int]) -> LedReplica:
    """Whom of the ``living`` it hits, of which the one that has lived for longest is the first; see ``hit``."""
    job = living[0].job
    led = leading(job.stages[0].participant, job.config.shared, slots, {each.number for each in living})
    if fault.who == REPLICA:
        return max(living, key=lambda each: led[each.number])  # of several the first
    if not (followers := [each for each in living if not led[each.number]]):
        raise BadInput(
            f"fault = {fault}: each of the {len(living)} replicas that live leads a slot, so nobody follows; use "
            f"kill:{REPLICA}, which hits the one that leads most"
        )
    return followers[-1]


def _member(replica: LedReplica) -> Member:
    """The replica as it is now: when it comes back, it is another one."""
    return replica.number, replica.job.config.attempt


def _moving(replicas: Replicas) -> LedReplica:
    moving = (replica for replica in replicas.living if replica.system.plans.busy)
    return next(moving, first_of(replicas))


def _own_notes(replicas: Iterable[LedReplica]) -> list[str]:
    """The notes of each of them, also of one that has died, with its number."""
    return [f"replica {each.number}: {note}" for each in replicas for note in each.system.notes]


def _how(replica: LedReplica, replicas: Replicas, returns: Returns) -> ReplicaStatus:
    lives = replica.lives and replica.application.isActive
    state = COMES_BACK if returns.on_its_way(replica) else LIVES if lives else GONE
    return {"state": state, "lag_ms": replicas.lag_ms(replica) if lives else None, "deaths": replica.deaths}


def _came_to(state: FinalState) -> tuple[int, int]:
    moved = (record.published_us for stage in state.stages for record in stage.records)
    return sum(state.offsets.values()), max(moved, default=0)
