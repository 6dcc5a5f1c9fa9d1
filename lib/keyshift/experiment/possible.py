"""Whether a job could do what a command asks of it, as far as its parameters say: asked of a script before anything is
started, and of a job when the command comes.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keyshift.experiment.commands import At, Command, Requested, Target
from keyshift.experiment.replicas import check_alike, check_fault_now, check_under_order
from keyshift.experiment.scenario import Change, Map, ScaleTo, target_of
from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment
from keyshift.planner import Strategy, change, strategies
from keyshift.registry import unknown
from keyshift.wire.faults import Fault

if TYPE_CHECKING:
    from keyshift.experiment.spec import RunSpec


def slots_at_first(spec: "RunSpec") -> dict[str, int]:
    """The slots of each stage that are provisioned when its job begins: all that are needed at any time, unless its
    strategy provisions others by a restart.
    """
    return spec.slots_of if spec.point().restarts else spec.tasks


def rehearse(script: Iterable[At[Command]], job: "Rehearsal") -> None:
    """Raise BadInput if ``job`` could not do what the commands of ``script`` ask of it."""
    for at_s, asked in script:
        try:
            asked.carry_out(job)
        except BadInput as error:
            raise BadInput(f"script: {asked} at {at_s:g} s: {error}") from None


class Rehearsal:
    """What commands may do with a job of ``spec``. Each raises BadInput, and changes nothing, if it is not possible.
    ``most``: slots of each stage that a restart may lead to.

    Here nothing happens but what is raised; ``lab.controls.JobControls`` does it, in the thread that controls the job.
    """

    def __init__(self, spec: "RunSpec", most: Mapping[str, int]) -> None:
        self.spec, self._most = spec, most
        self._provisioned = {**slots_at_first(spec)}  # the most that there may be now
        self._so_far = {**self._provisioned}  # and until now

    @property
    def rate(self) -> float:
        """Events per second that are offered of the first source."""
        return self.spec.run.rate

    def move(
        self, stage: str | None, target: Target, strategy: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Requested:
        """Request a migration; gives it with its steps.

        ``target``: a number of slots, or key groups and the slots they go to. ``strategy``, changed by ``settings``:
        instead of the job's own. Raises BadInput for another stage, slots that are not there, or a strategy that is
        not possible.
        """
        name, groups = self._stage(stage), self.spec.workload.key_groups
        restarts = (self._point(strategy, settings or {}) if strategy else self.spec.point()).restarts
        wanted = self._change(name, target, self._provisioned[name], restarts)
        begin = Assignment.contiguous(groups, self.spec.slots_of[name])
        target_of(wanted, begin, [1.0] * groups, begin)
        if restarts:
            fewer = self.spec.point().restarts and isinstance(target, int)  # all others go: see ``JobPlans``
            least = 0 if fewer else self._provisioned[name]
            self._provisioned[name] = max(least, _slots(target))
            self._so_far[name] = max(self._so_far[name], self._provisioned[name])
        return {}  # type: ignore[typeddict-item]

    def cancel(self) -> None:
        """Take back the steps and migrations that have not begun: always possible."""
        self._provisioned = {**self._so_far}  # a restart to fewer slots may be among them

    def change_rate(self, rate: float, source: str | None = None) -> None:
        """Offer so many events per second from now on, of ``source`` or else the first one. Raises BadInput for another
        source, or one that has steps: a change would take those that are to come.
        """
        known = [each.name for each in self.spec.workload.sources]
        if source is not None and source not in known:
            raise unknown("source", source, known)
        if self.spec.loads[known.index(source or known[0])].steps:
            raise BadInput(
                f"rate_steps = {self.spec.run.rate_steps}: say what {source or known[0]} offers either there or by "
                "commands; leave one out"
            )

    def hit(self, fault: Fault) -> None:
        """Let something of the job fail now. Raises BadInput for a fault that is not possible with so many replicas."""
        check_fault_now(self.spec.job, fault)

    def _change(self, stage: str, target: Target, provisioned: int, restarts: bool) -> Change:
        most = self._most[stage] if restarts else provisioned
        wanted = _slots(target)
        if wanted < 1:
            raise BadInput(f"slots = {target}: must be a number of slots from 1 to {most}, or slots by key group")
        if wanted > most:
            more = f" --set key_groups={wanted}" if wanted > self.spec.workload.key_groups else ""
            remedy = f"start a job with --set slots_max={wanted}{more} to have more"
            if not restarts and wanted <= self._most[stage] and self._may_restart():
                remedy += ", or plan with strategy stop_restart"
            raise BadInput(f"slots = {wanted}: {most} are provisioned in this job; {remedy}")
        return ScaleTo(target) if isinstance(target, int) else Map(target, most)

    def _point(self, name: str, settings: Mapping[str, Any]) -> Strategy:
        """Give the strategy. Raises BadInput if it is unknown, or not possible with the job's order, replicas, bins."""
        point, bins = change(strategies.get(name), settings), self.spec.workload.bins
        check_alike(self.spec.job, point)
        check_under_order(self.spec.job, name, point)
        if point.bins != bins:
            raise BadInput(
                f"strategy = {name}: cuts a key group into bins = {point.bins}, and this job has bins = {bins} for "
                "its life; set bins to that, or start a job with this strategy"
            )
        return point

    def _may_restart(self) -> bool:
        try:
            self._point("stop_restart", {})
        except BadInput:
            return False
        return True

    def _stage(self, name: str | None) -> str:
        known = [stage.name for stage in self.spec.workload.stages]
        if name is None and len(known) > 1:
            raise BadInput(f"stage is missing: this job has {', '.join(known)}")
        if name is not None and name not in known:
            raise unknown("stage", name, known)
        return name or known[0]


def _slots(target: Target) -> int:
    """Count the slots that there have to be for ``target``."""
    return target if isinstance(target, int) else 1 + max(target.values(), default=-1)
