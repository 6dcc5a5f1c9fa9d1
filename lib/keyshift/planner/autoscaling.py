"""When a job should have more slots, or fewer: a policy over what was measured. Pure: the time comes with each look.

How many slots a stage needs follows from its *true rate*: records per second in which a slot was at work, not per
second that passed. A slot that waits for records half of the time could take twice as many. Demands of later stages
follow from what the stages before pass on. Source: DS2 (Kalavri et al., "Three steps is all you need", OSDI 2018).
What is around that is ours: a band in which nothing happens, a cool-down, and a comparison of what a move brings with
what moves have cost here, in slot-seconds.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from keyshift.planner.scaling import Goals, Look, Scaling, StageScaling
from keyshift.planner.true_rate import MappedRate, TrueRate

UP, GOAL, DOWN = 0.85, 0.75, 0.6  # shares of time at work: more slots above UP, so many that it is GOAL, or DOWN
LOOKS_UP, LOOKS_DOWN = 2, 3  # looks in a row that have to agree: a backlog grows, idle slots only cost
ON_THE_WAY_S = 0.5  # of the offered rate: so much is always between source and results, and is no backlog
TAKES_S, MISSES_S = 4.0, 1.0  # guesses, of a migration of the whole state; see ``ScalingPolicy``
FORGET_S = 1800.0  # in which all but a third of what was learnt about migrations is forgotten: it may have been chance
COOL_DOWN_S, COOL_DOWN_TIMES = 4.0, 2.0  # after a migration: at least so long, and so often the time that it disturbs


@dataclass(slots=True)
class _ScaledStage(TrueRate):
    """What is remembered of the work of a stage, and how many slots the last looks wanted."""

    wanted: deque[int] = field(default_factory=lambda: deque(maxlen=max(LOOKS_UP, LOOKS_DOWN)))


@dataclass(slots=True)
class _Move:
    """A migration that was decided, until its cool-down is over."""

    share: float  # of the state that moves, about
    at_s: float
    telling: bool  # what is missed is missed because of it: there were enough slots before and there are behind it
    enough_per_s: float = math.inf  # events: as long as no more are offered, the slots that are left have time
    ended_s: float | None = None
    missed_s: float = 0.0
    by_scaler: bool = True  # somebody else's teaches nothing, but what it has brought is looked at as long


class ScalingPolicy:
    """Decides at each look. The first look of a job, and the first after a migration, only begin a measurement.

    ``mapped``: records of the first stage are not the events offered; a source makes others of them, more or fewer.
    """

    def __init__(self, goals: Goals, stages: int = 1, mapped: bool = False) -> None:
        self._goals = goals
        self._stages = [_ScaledStage() for _ in range(stages)]
        self._mapped = MappedRate() if mapped else None
        self._move: _Move | None = None
        self._migrated_at_s: float | None = None  # as the look before said
        self._seen = False
        self._at_s = 0.0
        # Learnt, of a migration of the whole state: seconds it takes, seconds over the objective because of it.
        self.takes_s, self.misses_s = TAKES_S, MISSES_S
        self._known = [False, False]

    def look(self, look: Look) -> Scaling:
        """Give the decision, which is to be carried out at once."""
        passed_s, self._at_s = look.at_s - self._at_s, look.at_s
        self._relax(passed_s)
        why = self._disturbed(look)
        if self._mapped and why:
            self._mapped.backlog = look.backlog
        elif self._mapped:
            self._mapped.measure(look, passed_s, look.stages[0].busy_s > UP * look.stages[0].slots * passed_s)
        if why:
            return self._stay(look, why)
        for stage, seen in zip(self._stages, look.stages, strict=True):
            stage.measure(seen)
        for stage, wanted in zip(self._stages, self._wanted(look), strict=True):
            stage.wanted.append(wanted)
        if (until_s := self._cool_until()) > look.at_s:
            return self._stay(look, f"cool-down for {until_s - look.at_s:.1f} s more")
        self._learn_misses(look)
        return self._decide(look)

    def withdraw(self) -> None:
        """Forget what was decided last: nothing of it was requested, so there is nothing to learn from it."""
        self._move = None
        for stage in self._stages:
            stage.before = None

    def _relax(self, seconds: float) -> None:
        for stage in self._stages:
            stage.relax(seconds)
        forgotten = -math.expm1(-max(0.0, seconds) / FORGET_S)
        self.takes_s += (TAKES_S - self.takes_s) * forgotten
        self.misses_s += (MISSES_S - self.misses_s) * forgotten

    # -- after a migration --------------------------------------------------------------------------------------------

    def _disturbed(self, look: Look) -> str:
        """Say why what was seen cannot be used; empty if it can."""
        somebody_moved, self._migrated_at_s = look.migrated_at_s != self._migrated_at_s, look.migrated_at_s
        move = self._move
        if (move is None or move.ended_s is not None) and (look.migrating or somebody_moved):  # also in a cool-down
            move = self._move = _Move(1.0, look.at_s, telling=False, by_scaler=False)
        if move is not None:
            move.missed_s += look.missed_s
            move.telling &= look.offered_per_s <= move.enough_per_s
        if look.migrating or (move is not None and move.ended_s is None):
            for stage in self._stages:
                stage.wanted.clear()
        if look.migrating:
            self._seen = False
            return "a migration is under way"
        if move is not None and move.ended_s is None:
            move.ended_s = look.at_s if look.migrated_at_s is None else max(move.at_s, look.migrated_at_s)
            if move.by_scaler:
                self.takes_s = self._mean(0, self.takes_s, (move.ended_s - move.at_s) / move.share)
            self._seen = False
            for stage in self._stages:
                stage.fade()
        if not self._seen:
            self._seen = True
            return "a measurement begins"
        return ""

    def _cool_until(self) -> float:
        move = self._move
        if move is None or move.ended_s is None:
            return -math.inf
        learnt = COOL_DOWN_TIMES * move.share * (self.takes_s + self.misses_s)
        return move.ended_s + max(COOL_DOWN_S, min(learnt, self._goals.horizon_s))

    def _learn_misses(self, look: Look) -> None:
        """Learn, when the cool-down is over, what was missed because of the migration, if that can be told."""
        move, self._move = self._move, None
        if move is None:
            return
        if move.telling:
            self.misses_s = self._mean(1, self.misses_s, move.missed_s / move.share)
        for stage, seen in zip(self._stages, look.stages, strict=True):
            stage.compare(seen.slots)

    def _mean(self, which: int, old: float, new: float) -> float:
        """Average two values of a measure: the newest counts half; the first replaces a guess."""
        known, self._known[which] = self._known[which], True
        return (old + new) / 2 if known else new

    # -- the decision -------------------------------------------------------------------------------------------------

    @property
    def _each(self) -> float:
        """Records of the first stage for each event offered."""
        return self._mapped.each if self._mapped else 1.0

    def _demands(self, look: Look) -> Iterator[float]:
        """Records per second that each stage should take."""
        late = _late(look.offered_per_s, look.backlog)
        demand = (look.offered_per_s + late / self._goals.work_off_s) * self._each
        for stage in self._stages:
            yield demand
            demand *= stage.passes_on

    def _wanted(self, look: Look) -> Iterator[int]:
        """So many slots each stage should have, by this look alone."""
        goals = self._goals
        for stage, seen, demand in zip(self._stages, look.stages, self._demands(look), strict=True):
            wanted = seen.slots
            if not demand:
                wanted = goals.slots_min
            elif stage.busy_s:
                need = demand / stage.true_per_s  # slots that would be at work all the time
                if need > UP * seen.slots:
                    wanted = max(seen.slots, math.ceil(need / GOAL))
                else:
                    wanted = min(seen.slots, math.ceil(need / DOWN))
            yield min(goals.slots_max, max(goals.slots_min, wanted))

    def _decide(self, look: Look) -> Scaling:
        targets = []
        for stage, seen in zip(self._stages, look.stages, strict=True):
            wanted, target = list(stage.wanted), seen.slots
            if len(wanted) >= LOOKS_UP and min(wanted[-LOOKS_UP:]) > seen.slots:
                target = wanted[-1]
            elif len(wanted) >= LOOKS_DOWN and max(wanted[-LOOKS_DOWN:]) < seen.slots:
                target = max(wanted[-LOOKS_DOWN:])
            targets.append(target)
        slots = [seen.slots for seen in look.stages]
        if targets == slots:
            return self._stay(look, self._why_not(look))
        share = max(1 - min(pair) / max(pair) for pair in zip(slots, targets, strict=True))
        takes_s = min(self._goals.horizon_s, self.takes_s * share)
        price = self._goals.miss_cost * max(sum(slots), sum(targets))  # slot-seconds, of a second over the objective
        stay = self._cost(look, slots, slots, price)
        move = self._cost(look, slots, targets, price, takes_s, share)
        costs = {"stay_cost": stay, "move_cost": move}
        costs |= {"migration_s": takes_s, "migration_missed_s": self.misses_s * share}
        if move >= stay:
            return self._stay(look, "a move would cost more than it brings", **costs)
        grows = any(target > now for now, target in zip(slots, targets, strict=True))
        enough_per_s = UP * self._capacity(targets, slots)
        self._move = _Move(share, look.at_s, not grows and not look.missed_s, enough_per_s)
        for stage, seen in zip(self._stages, look.stages, strict=True):
            stage.before = seen.slots, stage.true_per_s
            stage.wanted.clear()
        reason = "more is to be done than the slots can" if grows else "fewer slots can do what is to be done"
        return Scaling(look, reason, self._numbers(look, targets), **costs)

    def _why_not(self, look: Look) -> str:
        most = self._goals.slots_max
        for stage, seen, demand in zip(self._stages, look.stages, self._demands(look), strict=True):
            if stage.wanted[-1] != seen.slots:
                return "other looks have to agree"
            if stage.busy_s and seen.slots >= most and demand > UP * most * stage.true_per_s:
                return f"more is to be done than {most} slots can, and no more are allowed"
        return "so many are wanted"

    def _cost(
        self,
        look: Look,
        slots: Sequence[int],
        targets: Sequence[int],
        price: float,
        takes_s: float = 0.0,
        share: float = 0.0,
    ) -> float:
        """Slot-seconds until the horizon if a migration to ``targets`` takes ``takes_s``, and nothing else changes.

        A migration moves ``share`` of the state; during it slots are paid for that come or go.
        """
        before, after = self._capacity(slots, slots), self._capacity(targets, slots)
        missed, backlog = _missed_s(before, look.offered_per_s, look.backlog, takes_s)
        rest_s = self._goals.horizon_s - takes_s
        missed += share * self.misses_s + _missed_s(after, look.offered_per_s, backlog, rest_s)[0]
        both = sum(max(pair) for pair in zip(slots, targets, strict=True))
        return both * takes_s + sum(targets) * rest_s + price * missed

    def _capacity(self, slots: Sequence[int], now: Sequence[int]) -> float:
        """Events per second that all stages together can take."""
        most, each = math.inf, self._each  # records of the stage for each event offered
        for stage, number, before in zip(self._stages, slots, now, strict=True):
            if stage.busy_s and each:
                most = min(most, stage.capacity(number, before) / each)
            each *= stage.passes_on
        return most

    def _numbers(self, look: Look, targets: Sequence[int]) -> tuple[StageScaling, ...]:
        each = zip(self._stages, look.stages, self._wanted(look), targets, self._demands(look), strict=True)
        return tuple(
            StageScaling(
                slots=seen.slots,
                wanted=wanted,
                target=target,
                true_per_s=stage.true_per_s,
                demand_per_s=demand,
                utilisation=demand / stage.true_per_s / max(1, seen.slots),
                worth=stage.worth,
            )
            for stage, seen, wanted, target, demand in each
        )

    def _stay(self, look: Look, reason: str, **costs: float) -> Scaling:
        return Scaling(look, reason, self._numbers(look, [seen.slots for seen in look.stages]), **costs)


def _late(offered: float, backlog: float) -> float:
    """The part of the backlog that is more than what is always on the way."""
    return max(0.0, backlog - offered * ON_THE_WAY_S)


def _missed_s(capacity: float, offered: float, backlog: float, seconds: float) -> tuple[float, float]:
    """Seconds over the objective within ``seconds``, and the backlog behind them.

    A second is missed as long as there is a backlog, and the more often, the nearer the slots are to their capacity:
    never up to UP, always at 1.
    """
    left = max(0.0, backlog + (offered - capacity) * seconds) if math.isfinite(capacity) else 0.0
    if capacity <= offered:
        return seconds if offered else 0.0, left
    gone_s = min(seconds, _late(offered, backlog) / (capacity - offered))
    near = min(1.0, max(0.0, (offered / capacity - UP) / (1 - UP)))
    return gone_s + (seconds - gone_s) * near, left
