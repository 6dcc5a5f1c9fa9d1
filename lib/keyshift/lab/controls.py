"""What commands may do with a job, in the thread that controls it."""

from collections.abc import Callable, Mapping
from typing import Any

from keyshift.experiment.commands import Migration, Requested, Target
from keyshift.experiment.replicas import check_alike, check_fault_now
from keyshift.experiment.scenario import Change, Map, ScaleTo
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.system import LiveSystem
from keyshift.model.errors import BadInput
from keyshift.planner import Strategy, change, strategies
from keyshift.registry import unknown
from keyshift.wire.faults import Fault


class JobControls:
    """Of ``system``, in ``run``; see ``commands.Controls``. ``migrate`` requests what was proposed. ``most``: slots of
    each stage that a restart may lead to.
    """

    def __init__(
        self, run: RunLoop, system: LiveSystem, migrate: Callable[[Proposal], Migration], most: Mapping[str, int]
    ) -> None:
        self._run, self._system, self._migrate, self._most = run, system, migrate, most

    @property
    def rate(self) -> float:
        """Events per second that are offered of the first source."""
        return self._run.rate

    def move(
        self, stage: str | None, target: Target, strategy: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Requested:
        """Nothing changes between the check, the plan and the request."""
        name, point = self._stage(stage), self._point(strategy, settings or {}) if strategy else None
        provisioned = self._system.status()["stages"][name]["provisioned"]
        wanted = self._change(target, provisioned, self._most[name], (point or self._run.spec.point()).restarts)
        proposal = self._system.plans.propose(name, wanted, point)
        migration = self._migrate(proposal)
        return {**migration, "steps": proposal.steps_as_json()}

    def cancel(self) -> None:
        """See ``Plans.cancel``."""
        self._system.plans.cancel()

    def change_rate(self, rate: float, source: str | None = None) -> None:
        """See ``RunLoop.change_rate``."""
        known = list(self._run.rates)
        if source is not None and source not in known:
            raise unknown("source", source, known)
        self._run.change_rate(rate, source)

    def hit(self, fault: Fault) -> None:
        """See ``SystemUnderTest.hit``."""
        check_fault_now(self._run.spec.job, fault)
        self._system.hit(fault)

    def _change(self, target: Target, provisioned: int, after_restart: int, restarts: bool) -> Change:
        most = after_restart if restarts else provisioned
        wanted = target if isinstance(target, int) else 1 + max(target.values(), default=-1)
        if wanted < 1:
            raise BadInput(f"slots = {target}: must be a number of slots from 1 to {most}, or slots by key group")
        if wanted > most:
            remedy = f"start a job with --set slots_max={wanted} to have more"
            if not restarts and wanted <= after_restart:
                remedy += ", or plan with strategy stop_restart"
            raise BadInput(f"slots = {wanted}: {most} are provisioned in this job; {remedy}")
        return ScaleTo(target) if isinstance(target, int) else Map(target, most)

    def _point(self, name: str, settings: Mapping[str, Any]) -> Strategy:
        """Raises BadInput if there is no such strategy, it is not possible with the job's order or its replicas, or the
        job's state is cut otherwise.
        """
        point, bins = change(strategies.get(name), settings), self._run.spec.workload.bins
        check_alike(self._run.spec.job, point)
        self._run.spec.require_possible(name, point)
        if point.bins != bins:
            raise BadInput(
                f"strategy = {name}: cuts a key group into bins = {point.bins}, and this job has bins = {bins} for "
                "its life; set bins to that, or start a job with this strategy"
            )
        return point

    def _stage(self, name: str | None) -> str:
        known = [stage.name for stage in self._run.spec.workload.stages]
        if name is None and len(known) > 1:
            raise BadInput(f"stage is missing: this job has {', '.join(known)}")
        if name is not None and name not in known:
            raise unknown("stage", name, known)
        return name or known[0]
