"""What commands may do with a job, in the thread that controls it."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from keyshift.experiment.commands import Migration, Requested, Target
from keyshift.experiment.possible import Rehearsal
from keyshift.lab.plans.stage_plans import Proposal
from keyshift.lab.run_loop import RunLoop
from keyshift.lab.system import LiveSystem
from keyshift.wire.faults import Fault


class JobControls(Rehearsal):
    """The controls of the job in ``run``. ``migrate`` requests what was proposed. ``most``: see ``Rehearsal``."""

    def __init__(self, run: RunLoop, migrate: Callable[[Proposal], Migration], most: Mapping[str, int]) -> None:
        super().__init__(run.spec, most)
        self._run, self._system, self._migrate = run, cast(LiveSystem, run.system), migrate

    @property
    def rate(self) -> float:
        """Events per second that are offered of the first source."""
        return self._run.rate

    def move(
        self, stage: str | None, target: Target, strategy: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Requested:
        """Plan a migration and request it. Nothing changes between the check, the plan and the request."""
        name, point = self._stage(stage), self._point(strategy, settings or {}) if strategy else None
        provisioned = self._system.status()["stages"][name]["provisioned"]
        wanted = self._change(name, target, provisioned, (point or self.spec.point()).restarts)
        proposal = self._system.plans.propose(name, wanted, point)
        return {**self._migrate(proposal), "steps": proposal.steps_as_json()}

    def cancel(self) -> None:
        """Take back the steps and migrations that have not begun, of all stages."""
        self._system.plans.cancel()

    def change_rate(self, rate: float, source: str | None = None) -> None:
        """Offer so many events per second from now on, of ``source`` or else the first one."""
        super().change_rate(rate, source)
        self._run.change_rate(rate, source)

    def hit(self, fault: Fault) -> None:
        """Make a process of the system, or a service, fail now. Raises BadInput if it cannot happen here."""
        super().hit(fault)
        self._system.hit(fault)
