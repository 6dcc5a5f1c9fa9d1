"""A job as a fluid queue: what comes in waits until slots have the time for it. Deterministic, as its load is.

Stages stand behind each other, each with a queue; a slot works off ``rate`` records per second of work. A migration
takes ``takes_s`` of the state that moves, and slots do nothing for the part of their state that is on its way.
"""

from collections.abc import Callable

from keyshift.planner.autoscaling import ScalingPolicy
from keyshift.planner.scaling import Goals, Look, Scaling, StageLook

TICK_S = 0.1
OBJECTIVE_S = 0.5  # of waiting time: more is a missed second


class Stage:
    def __init__(self, rate: float, slots: int, passes_on: float = 1.0, cores: float = float("inf")):
        self.rate, self.slots, self.passes_on, self.cores = rate, slots, passes_on, cores
        self.queue = self.records = self.busy_s = 0.0

    @property
    def capacity(self) -> float:
        """Records per second; slots share ``cores``."""
        return self.rate * min(self.slots, self.cores)

    def pass_time(self, came: float, paused: float) -> float:
        """Take ``came`` records for a tick, in which ``paused`` of the slots' state is away; gives what goes on."""
        self.queue += came
        done = min(self.queue, self.capacity * TICK_S * (1 - paused))
        self.queue -= done
        self.records += done
        self.busy_s += done / self.rate * max(1.0, self.slots / self.cores)
        return done * self.passes_on


class Job:
    """``offered(at_s)``: events per second; ``noise(n)``: a factor for the n-th measured number.

    ``felt``: whether records wait for their state while it moves, so that these seconds are missed. ``mapped``: records
    of the first stage that a source makes of an event; None: the event is one.
    """

    def __init__(
        self,
        goals: Goals,
        offered: Callable[[float], float],
        stages: list[Stage],
        every_s: float = 2.0,
        takes_s: float = 2.0,
        noise: Callable[[int], float] = lambda n: 1.0,
        felt: bool = False,
        mapped: float | None = None,
    ):
        self.policy = ScalingPolicy(goals, len(stages), mapped is not None)
        self.mapped = 1.0 if mapped is None else mapped
        self.offered, self.stages, self.every_s, self.takes_s, self.noise = offered, stages, every_s, takes_s, noise
        self.at_s, self.numbers, self.felt = 0.0, 0, felt
        self.moving: tuple[float, float, list[int]] | None = None  # until, share, slots behind it
        self.migrated_at_s: float | None = None
        self.decisions: list[Scaling] = []
        self.migrations: list[tuple[float, float]] = []  # decided, ended
        self.missed_s = self.slot_s = 0.0

    @property
    def slots(self) -> list[int]:
        return [stage.slots for stage in self.stages]

    @property
    def moves(self) -> list[Scaling]:
        return [decision for decision in self.decisions if decision.moves]

    def run(self, seconds: float) -> "Job":
        ticks = round(self.every_s / TICK_S)
        for _ in range(round(seconds / self.every_s)):
            offered = missed = 0.0
            for _ in range(ticks):
                each = self.offered(self.at_s) * TICK_S
                offered += each
                missed += self._tick(each)
            self.missed_s += missed
            self._look(offered, missed)
        return self

    def scale_by_hand(self, slots: list[int]) -> None:
        """Somebody else asks for them."""
        assert self.moving is None
        self.moving = (self.at_s + self.takes_s, 1.0, slots)
        self.migrations.append((self.at_s, float("inf")))

    def _tick(self, came: float) -> float:
        paused = 0.0
        self.slot_s += TICK_S * sum(self.slots if self.moving is None else map(max, self.slots, self.moving[2]))
        if self.moving is not None:
            until_s, paused, slots = self.moving
            if self.at_s >= until_s - TICK_S / 2:
                for stage, number in zip(self.stages, slots, strict=True):
                    stage.slots = number
                self.moving, self.migrated_at_s, paused = None, self.at_s, 0.0
                self.migrations[-1] = (self.migrations[-1][0], self.at_s)
        late, came = False, came * self.mapped
        for stage in self.stages:
            late |= stage.queue > stage.capacity * OBJECTIVE_S or (self.felt and paused > 0)
            came = stage.pass_time(came, paused)
        self.at_s += TICK_S
        return TICK_S if late else 0.0

    def _measured(self, value: float) -> float:
        self.numbers += 1
        return value * self.noise(self.numbers)

    def _look(self, offered: float, missed: float) -> None:
        seen, each = [], self.mapped
        backlog = 0.0
        for stage in self.stages:
            busy_s = self._measured(stage.busy_s)
            seen.append(StageLook(stage.slots, stage.records, busy_s, stage.records * stage.passes_on))
            backlog += stage.queue / each
            each *= stage.passes_on
            stage.records = stage.busy_s = 0.0
        rate = self._measured(offered / self.every_s)
        look = Look(self.at_s, rate, backlog, missed, tuple(seen), self.moving is not None, self.migrated_at_s)
        decided = self.policy.look(look)
        self.decisions.append(decided)
        if decided.moves:
            assert self.moving is None, "decided during a migration"
            slots = [stage.target for stage in decided.stages]
            share = max(1 - min(pair) / max(pair) for pair in zip(self.slots, slots, strict=True))
            self.moving = (self.at_s + self.takes_s * share, share, slots)
            self.migrations.append((self.at_s, float("inf")))
