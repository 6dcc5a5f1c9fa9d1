"""What an autoscaler wants, sees and decides; see ``planner.autoscaling``. Times in seconds, of any clock."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goals:
    """What a user wants."""

    slots_min: int
    slots_max: int
    work_off_s: float = 10.0  # a backlog is to be gone after so long
    horizon_s: float = 120.0  # for so long the load is taken to stay as it is
    miss_cost: float = 20.0  # a second over the objective is as bad as to pay for the whole job for so many seconds


@dataclass(frozen=True, slots=True)
class StageLook:
    """One keyed stage since the look before: ``slots`` that own state now, what they did, and for how long."""

    slots: int
    records: float
    busy_s: float  # at work, the sum over the slots
    emitted: float | None = None  # records for the next stage; None: one for each


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen since the look before."""

    at_s: float
    offered_per_s: float
    backlog: float  # events offered and not answered, now
    missed_s: float  # seconds in which P99 was over the objective, or nothing came of what was due
    stages: tuple[StageLook, ...]  # in the order of the events' way
    migrating: bool = False  # now
    migrated_at_s: float | None = None  # when the last migration ended, if one did


@dataclass(frozen=True, slots=True)
class StageScaling:
    """What was decided of one stage: it has ``slots``, this look alone wants ``wanted``, and ``target`` is decided."""

    slots: int
    wanted: int
    target: int
    true_per_s: float  # records per second at work, of one slot; NaN: not known yet
    demand_per_s: float  # records per second that the stage should take, with its part of the backlog
    utilisation: float  # demand by what all slots can take; NaN: not known yet
    worth: float  # the part of the capacity that more slots promise, and that came when it was tried, 0 to 1


@dataclass(frozen=True, slots=True)
class Scaling:
    """What was decided at one look, with its numbers. NaN: not compared, or not known."""

    look: Look
    reason: str
    stages: tuple[StageScaling, ...]
    stay_cost: float = math.nan  # slot-seconds until the horizon, seconds over the objective included
    move_cost: float = math.nan
    migration_s: float = math.nan  # how long the migration is expected to take,
    migration_missed_s: float = math.nan  # and in how many seconds the objective is missed because of it

    @property
    def moves(self) -> bool:
        """Whether anything changes."""
        return any(stage.target != stage.slots for stage in self.stages)
