"""Looks at a running system every few seconds, asks the policy (``planner.autoscaling``), and requests what it decides.

Between two looks: what the generator has offered, which results have come, and how long slots were at work. The
backlog is what was due and had not come at the same moment, in events.
"""

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import cast

from keyshift.analysis.metrics import known
from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import RunSpec
from keyshift.lab.live.status import DecisionTold, StageDecisionTold
from keyshift.lab.scalings import Scalings
from keyshift.lab.system import LOOK_WITHIN_S, SystemUnderTest
from keyshift.model.errors import BadInput, MigrationFailed, PlanRejected
from keyshift.model.records import Measured
from keyshift.planner.autoscaling import ScalingPolicy
from keyshift.planner.scaling import Goals, Look, Scaling, StageLook
from keyshift.progress import Say
from keyshift.traffic.feed import Feed, Progress
from keyshift.traffic.traffic import Traffic

StageWork = Mapping[int, tuple[int, float]]  # of each slot of a stage: records, and seconds at work


class Autoscaler:
    """The autoscaler of a run. The controlling thread calls ``go_on`` often. ``first``: moment of the first look, since
    the epoch. ``ask`` requests a change of a stage.

    What the system raises when it has died passes through: the next look begins a new measurement.
    """

    def __init__(
        self,
        spec: RunSpec,
        system: SystemUnderTest,
        traffic: Traffic,
        feed: Feed,
        first: float,
        say: Say,
        ask: Callable[[ScaleTo, str], object],
    ) -> None:
        part = spec.autoscaler
        goals = Goals(part.slots_min, spec.slots_most, part.work_off_s, part.horizon_s, part.miss_cost)
        self.stages = [stage.name for stage in spec.workload.stages]
        mapped = any(source.map is not None for source in spec.workload.sources)
        self._policy = ScalingPolicy(goals, len(self.stages), mapped)
        self._system, self._traffic, self._feed, self._say, self._ask = system, traffic, feed, say, ask
        self._slo_ms, self._every_s, self._next = part.slo_ms, part.autoscale_s, first
        self._moving = False  # a migration was not over when that was seen last, whoever has requested it
        self._migrated_at: float | None = None
        self._work: Mapping[str, StageWork] = {}  # of each stage, until the look before
        self._offered: Progress | None = None  # likewise
        self._heard = len(traffic.seconds)  # seconds that the collector has told of, likewise
        self.decisions = Scalings(len(self.stages))

    def go_on(self) -> None:
        """Look, if it is time to, and request what is decided. Raises what the system raises if it has died."""
        now = time.time()
        was_moving, self._moving = self._moving, self._system.busy
        if was_moving and not self._moving:
            self._migrated_at = now
        if now < self._next:
            return
        self._next = max(self._next, now - self._every_s) + self._every_s
        try:
            measured = self._system.measure(LOOK_WITHIN_S)
        except MigrationFailed as error:
            self._say(f"autoscaler: no look, {error}")
            return
        made = self._policy.look(self._seen(time.time(), measured))
        self._say(f"  autoscaler: {sentence(made, self.stages)}")
        self._moving |= made.moves
        requested = self._requested(made)
        if made.moves and not requested.moves:
            self._moving = False
            self._policy.withdraw()
        self.decisions.append(requested)

    def _requested(self, made: Scaling) -> Scaling:
        """Request a decision, and give what becomes of it: a refused stage stays as it is, and the reason says so."""
        stages, refused = list(made.stages), []
        for place, (name, stage) in enumerate(zip(self.stages, made.stages, strict=True)):
            if stage.target == stage.slots:
                continue
            try:
                self._ask(ScaleTo(stage.target), name)
            except (BadInput, MigrationFailed, PlanRejected) as error:
                refused.append(f"nothing was requested of {name}, {error}")
                self._say(f"autoscaler: {refused[-1]}")
                stages[place] = replace(stage, target=stage.slots)
        if not refused:
            return made
        left = replace(made, stages=tuple(stages))
        return replace(left, reason="; ".join([made.reason, *refused] if left.moves else refused))

    # -- a look -------------------------------------------------------------------------------------------------------

    def _seen(self, now: float, measured: Mapping[str, Mapping[int, Measured]]) -> Look:
        backlog, offered = self._backlog(), self._offered_per_s()
        return Look(
            at_s=now,
            offered_per_s=offered,
            backlog=backlog,
            missed_s=self._missed_s(backlog),
            stages=tuple(self._stages(measured)),
            migrating=self._moving or self._system.busy,
            migrated_at_s=self._migrated_at,
        )

    def _stages(self, measured: Mapping[str, Mapping[int, Measured]]) -> Iterator[StageLook]:
        """Give what the slots of each stage have done. What a stage passes on is what the next one got, from the start
        on: a backlog between them hides less of that, the longer they run.
        """
        owners, before = self._system.owners, self._work
        self._work = {name: _work(slots) for name, slots in measured.items()}
        totals = [sum(records for records, _ in work.values()) for work in self._work.values()]
        for name, total, passed_on in zip(measured, totals, [*totals[1:], None], strict=True):
            look = _done(self._work[name], before.get(name, {}), owners[name])
            ratio = None if passed_on is None or not total else passed_on / total
            yield replace(look, emitted=None if ratio is None else look.records * ratio)

    def _offered_per_s(self) -> float:
        before, reports = self._offered, list(self._feed.progress)
        if reports:
            before, self._offered = before or reports[max(0, len(reports) - 2)], reports[-1]
        if before is None or self._offered is None or self._offered.at <= before.at:  # nothing was reported since
            return self.decisions[-1].look.offered_per_s if self.decisions else 0.0
        return (self._offered.events - before.events) / (self._offered.at - before.at)

    def _backlog(self) -> float:
        """Events whose results are due and had not come at the end of the last second that both sides have told of.
        Results are counted from the beginning of the job, so what another process has offered counts, too.
        """
        progress, before = list(self._feed.progress), self._feed.before
        received = self._traffic.received - self._traffic.early
        if not progress or not (all_due := before.due + progress[-1].due):
            return 0.0
        for second in reversed(self._traffic.seconds):
            if (end := second.second + 1) <= progress[-1].at:
                break
            received -= second.results
        else:
            return 0.0
        due = float(progress[0].due)
        for one, other in itertools.pairwise(progress):
            if one.at <= end <= other.at:
                due = one.due + (other.due - one.due) * (end - one.at) / (other.at - one.at)
        return max(0.0, before.due + due - received) * (before.events + progress[-1].events) / all_due

    def _missed_s(self, backlog: float) -> float:
        """Seconds over the objective since the look before; those without any result, if some are due."""
        seconds = self._traffic.seconds[self._heard :]
        self._heard += len(seconds)
        return float(sum(backlog > 0 if s.p99_ms is None else s.p99_ms > self._slo_ms for s in seconds))


def _work(slots: Mapping[int, Measured]) -> StageWork:
    return {slot: (sum(count for _, count in said.records), said.busy_s) for slot, said in slots.items()}


def _done(work: StageWork, before: StageWork, owners: Collection[int]) -> StageLook:
    """Compute what the slots of a stage have done; nothing, if they do not go on from before, as a new system does."""
    goes_on = all(slot in work and work[slot][0] >= records for slot, (records, _) in before.items())
    if not before or not goes_on:
        return StageLook(len(owners), 0.0, 0.0)
    done = [(work[slot], before.get(slot, (0, 0.0))) for slot in owners if slot in work]
    records, busy_s = (sum(now[of] - then[of] for now, then in done) for of in (0, 1))
    return StageLook(len(owners), float(records), float(busy_s))


def sentence(made: Scaling, names: Sequence[str]) -> str:
    """A decision with its numbers, in one line for the log. ``names``: of the stages."""
    look, said = made.look, list[str]()
    for name, stage in zip(names, made.stages, strict=True):
        whose = f"{name} " if len(names) > 1 else ""
        change = f" → {stage.target}" if stage.target != stage.slots else ""
        said.append(f"{whose}{stage.slots}{change} slots")
    said += [f"{look.offered_per_s:.0f}/s offered", f"backlog {look.backlog:.0f}"]
    said += [
        f"a slot takes {stage.true_per_s:.0f}/s, {stage.utilisation:.0%} needed, {stage.wanted} wanted"
        for stage in made.stages
        if not math.isnan(stage.utilisation)
    ]
    if look.missed_s:
        said.append(f"{look.missed_s:.0f} s over the objective")
    if not math.isnan(made.stay_cost):
        said.append(f"slot-seconds to stay {made.stay_cost:.0f}, to move {made.move_cost:.0f}")
    return f"{', '.join(said)}: {made.reason}"


def decision_told(made: Scaling, names: Sequence[str]) -> DecisionTold:
    """A decision for JSON: what is not known, or was not compared, is None."""
    look = made.look
    return {
        "at_s": look.at_s,
        "offered_per_s": look.offered_per_s,
        "backlog": look.backlog,
        "missed_s": look.missed_s,
        "migrating": look.migrating,
        "stay_cost": known(made.stay_cost),
        "move_cost": known(made.move_cost),
        "moves": made.moves,
        "reason": made.reason,
        "words": sentence(made, names),
        "stages": {
            name: cast(StageDecisionTold, {field: known(value) for field, value in asdict(stage).items()})
            for name, stage in zip(names, made.stages, strict=True)
        },
    }
