"""What is asked of a job with replicas: planned once, as one replica would do it, and all of them have that plan."""

from collections import Counter
from collections.abc import Mapping

from keyshift.experiment.scenario import Change
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.replicas.jobs import LedReplica, Replicas
from keyshift.lab.replicas.requests import MoveRequest, Requests
from keyshift.model.errors import BadInput
from keyshift.model.notes import Note
from keyshift.planner import Strategy


class ReplicatedPlans:
    """The plans of all ``replicas``. ``asked``: where a request waits until it may begin."""

    def __init__(self, replicas: Replicas, asked: Requests) -> None:
        self._replicas, self._asked = replicas, asked
        self._requests: dict[str, list[MoveRequest]] = {}  # of each stage, in their order
        self.before: Mapping[str, int] = {}  # how many of each stage were made in processes before
        self.notes: list[Note] = []

    def propose(self, stage: str, change: Change, point: Strategy | None = None) -> Proposal:
        """Plan a change as the replica would that has lived for longest."""
        return self._replicas.living[0].system.plans.propose(stage, change, point)

    def adopt(self, proposal: Proposal) -> int:
        """Have all replicas carry out this plan, behind all else of the stage."""
        requests = self._requests.setdefault(proposal.stage, [])
        requests.append(request := MoveRequest(proposal.change, proposal.stage, proposal))
        self._asked.add(request)
        return self.before.get(proposal.stage, 0) + len(requests) - 1

    @property
    def requested(self) -> dict[str, int]:
        """How many migrations of each stage were requested, in processes before, too."""
        return dict(Counter(self.before) + Counter({stage: len(each) for stage, each in self._requests.items()}))

    def ended(self, stage: str, number: int) -> bool | None:
        """Whether units arrived in all that were told of it and live since; if none does, in those that live."""
        request = self._requests[stage][number - self.before.get(stage, 0)]
        if self._asked.to_come(request):
            return None
        ended = [
            replica.system.plans.ended(stage, own)
            for replica, attempt, own in request.told_to
            if replica.lives and replica.job.config.attempt == attempt
        ]
        if None in ended:
            return None
        if ended or not request.told_to:
            return bool(ended) and all(ended)
        assert request.proposal is not None
        return first_of(self._replicas).job.stage(stage).assignment.owner == request.proposal.target.owner

    def owners_before(self, stage: str) -> None:
        """Give None: nothing of what a process before has left goes on."""

    def cancel(self) -> None:
        """Take back what no replica was told of. Raises BadInput if there is nothing but what they were told of: one of
        them may have begun what another one has not.
        """
        taken = self._asked.take_back()
        for request in taken:
            assert request.proposal is not None  # nobody else asks for anything while commands are carried out
            stage = first_of(self._replicas).job.stage(request.proposal.stage)
            self.notes.append(stage.note("a request for a migration was taken back before any replica had begun it"))
        if not taken and any(replica.system.plans.busy for replica in self._replicas.living):
            raise BadInput(
                "cancel: replicas do not take back what one of them may have begun; the migration under way goes on to "
                "its end, and no other one waits"
            )


def first_of(replicas: Replicas) -> LedReplica:
    """The replica that has lived for longest; one of those that have died, if none lives."""
    return [*replicas.living, *replicas.all][0]
