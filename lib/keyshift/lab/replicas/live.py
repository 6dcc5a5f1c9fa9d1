"""A job with replicas that can be asked how it is, and what to do, while it runs.

What is asked of it is planned once, as one replica would do it, and all of them have that plan.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from keyshift.experiment.replicas import ends_one
from keyshift.experiment.scenario import Change
from keyshift.experiment.spec import RunSpec
from keyshift.lab.live.failover import SystemJournal
from keyshift.lab.live.status import COMES_BACK, GONE, LIVES, ReplicaStatus, SystemStatus
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.replicas.failover import ReplicasFailover, point_of
from keyshift.lab.replicas.jobs import LedReplica, Replicas, plans_of
from keyshift.lab.replicas.requests import MoveRequest, Requests
from keyshift.lab.replicas.system import ReplicatedJob
from keyshift.model.errors import BadInput, QueryDied
from keyshift.model.notes import Activity, Note
from keyshift.model.records import Measured
from keyshift.planner import Strategy
from keyshift.traffic.topics import Epochs
from keyshift.wire.faults import Fault


class ReplicatedPlans:
    """The ``Plans`` of all ``replicas``. ``ask``: passes a request on when it may begin; ``asked``: where it waits."""

    def __init__(self, replicas: Replicas, asked: Requests, ask: Callable[[MoveRequest], None]) -> None:
        self._replicas, self._asked, self._ask = replicas, asked, ask
        self._requests: dict[str, list[MoveRequest]] = {}  # of each stage, in their order
        self.before: Mapping[str, int] = {}  # how many of each stage were made in processes before
        self.notes: list[Note] = []

    def propose(self, stage: str, change: Change, point: Strategy | None = None) -> Proposal:
        """As the one that has lived for longest would do it."""
        return self._replicas.living[0].system.plans.propose(stage, change, point)

    def adopt(self, proposal: Proposal) -> int:
        """All of them have this plan, behind all else of the stage."""
        requests = self._requests.setdefault(proposal.stage, [])
        requests.append(request := MoveRequest(proposal.change, proposal.stage, proposal))
        self._ask(request)
        return self.before.get(proposal.stage, 0) + len(requests) - 1

    @property
    def requested(self) -> dict[str, int]:
        """How many of each stage, in processes before, too."""
        return dict(Counter(self.before) + Counter({stage: len(each) for stage, each in self._requests.items()}))

    def ended(self, stage: str, number: int) -> bool | None:
        """In all that were told of it and live since; if none of them does, as the state is in those that live."""
        request = self._requests[stage][number - self.before.get(stage, 0)]
        if self._asked.to_come(request):
            return None
        ended = [
            replica.system.plans.ended(stage, own)
            for replica, attempt, own in request.told
            if replica.lives and replica.job.config.attempt == attempt
        ]
        if None in ended:
            return None
        if ended or not request.told:
            return bool(ended) and all(ended)
        assert request.proposal is not None
        return _first(self._replicas).job.stage(stage).assignment.owner == request.proposal.target.owner

    def found(self, stage: str) -> None:
        """Nothing of what a process before has left goes on."""

    def cancel(self) -> None:
        """What no replica was told of. Raises BadInput if there is nothing but what they were told of: one of them may
        have begun what another one has not.
        """
        taken = self._asked.take_back()
        for request in taken:
            assert request.proposal is not None  # nobody else asks for anything while commands are carried out
            stage = _first(self._replicas).job.stage(request.proposal.stage)
            self.notes.append(stage.note("a request for a migration was taken back before any replica had begun it"))
        if not taken and any(replica.system.plans.busy for replica in self._replicas.living):
            raise BadInput(
                "cancel: replicas do not take back what one of them may have begun; the migration under way goes on to "
                "its end, and no other one waits"
            )


class LiveReplicas(ReplicatedJob):
    """See ``LiveSystem``."""

    def __init__(self, spec: RunSpec, replicas: Replicas, say: Callable[[str], None]) -> None:
        super().__init__(spec, replicas, say)
        self.plans = ReplicatedPlans(replicas, self._requests, self._add)
        common = replicas.all[0].job.config
        self.identity = common.shared, common.token
        given = lambda: self.plans.requested, lambda: self.notes, self._go_on
        self.failover = ReplicasFailover(replicas, self._points, *given)
        self.begun_from = "beginning"  # ``snapshot``, if another process has begun from one

    def _go_on(self, journal: SystemJournal, epochs: Epochs) -> None:
        assert journal.of_replicas is not None
        self._notes[:] = map(str, journal.past.notes)
        self.plans.before = journal.of_replicas.requested
        self._say(f"starting {len(self._replicas.all)} replicas, each with a Spark of its own")
        self._replicas.begin()
        for replica in self._replicas.all:
            with self._surviving(replica):
                self._replicas.go_on(replica, journal, epochs)
        self._returns.count()
        point = point_of(journal)
        self.begun_from = "snapshot" if point else "beginning"
        for stage, requested in self.plans.before.items():
            if lost := requested - plans_of(journal, stage).requested:
                self.note(f"migrations of {stage} that the {self.begun_from} does not have are lost: {lost}")
        self._points.begin(point)

    @property
    def phases(self) -> Mapping[str, Activity]:
        """Of the replica that moves, or of the one that has lived for longest."""
        return self._moving.system.phases

    @property
    def notes(self) -> list[Note]:
        """Of the job, then of the replica that has lived for longest, then of what was taken back."""
        return [*map(Note, self._notes), *_first(self._replicas).system.notes, *self.plans.notes]

    def status(self) -> SystemStatus:
        """Stages are those of the replica that moves, or of the one that has lived for longest."""
        told = self._moving.system.status()
        own = [f"replica {each.number}: {note}" for each in self._replicas.all for note in each.system.notes]
        return {
            **told,
            "notes": [*self._notes, *map(str, self.plans.notes), *own],
            "replicas": {replica.number: self._how(replica) for replica in self._replicas.all},
            "snapshots": len(self._points.taken),
            "snapshot_bytes": sum(newest[-1].state.values()) if (newest := self._points.taken) else None,
        }

    def require_driver(self) -> None:
        """Raises Deposed if another process has claimed one of the jobs."""
        self._replicas.require_driver()

    def measure(self) -> Mapping[str, Mapping[int, Measured]]:
        """Of one of them; nothing if it has died, which is noticed later."""
        try:
            return super().measure()
        except QueryDied:
            return {}

    def hit(self, fault: Fault) -> None:
        """Raises BadInput if it cannot happen here, or nobody would be left: nothing could go on with the job."""
        self._replicas.require(fault)
        left = [replica for replica in self._replicas.living if replica.application.running]
        if ends_one(fault) and len(left) < 2:
            raise BadInput(
                f"fault = {fault}: {len(left)} of replicas = {len(self._replicas.all)} lives, and none would be left; "
                "wait until `keyshift job status` says that another one lives"
            )
        super().hit(fault)

    @property
    def _moving(self) -> LedReplica:
        moving = (replica for replica in self._replicas.living if replica.system.plans.busy)
        return next(moving, _first(self._replicas))

    def _how(self, replica: LedReplica) -> ReplicaStatus:
        lives = replica.lives and replica.application.running
        state = COMES_BACK if self._returns.on_its_way(replica) else LIVES if lives else GONE
        lag_ms = self._replicas.lag_ms(replica) if lives else None
        return {"state": state, "lag_ms": lag_ms, "deaths": replica.deaths}


def _first(replicas: Replicas) -> LedReplica:
    return [*replicas.living, *replicas.all][0]
