"""The parts of a plan and its invariants. Pure: no clock, no random, no IO.

A ``Strategy`` is one point of the space order x batch x replicate x gate x transfer x unit. ``make_plan`` turns it into
steps, alone keeps the invariants, names the broken one, and writes down why each unit moves when it does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from keyshift.keys import Assignment, Mode, Move, Step, UnitId

Unit = Literal["group", "bin", "key"]
LIVE_PUSH = Mode()
MODE_SETTINGS = tuple(field.name for field in fields(Mode))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a strategy may look at: where units are and should be, and what was measured.

    ``heat``: records per second of each unit, empty if nobody measured. ``seed``: for orders that draw.
    """

    current: Assignment
    target: Assignment
    heat: tuple[float, ...] = ()
    seed: int = 0

    def misplaced(self) -> tuple[Move, ...]:
        """The moves that lead from current to target, ascending by unit."""
        return self.current.moves_to(self.target)


@dataclass(frozen=True, slots=True)
class Decision:
    """Why something is in a plan, or is not: ``unit`` moves in ``step``, or (``step`` None) was put off or refused."""

    unit: UnitId
    step: int | None
    reason: str


Log = Callable[[Decision], None]
Propose = Callable[["Strategy", Snapshot, Log], Iterator[Step]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to move state. The presets of ``planner.strategies`` are such points; so is what a user changes."""

    summary: str
    source: str
    order: str = "id"
    batch: str = "all"
    size: int = 1  # batch global: units per step; per_source: units per source and step
    cap: int = 0  # units per step at the most, whatever the batch; 0 is no cap
    replicate: int = 0  # every n-th key group is copied before it moves; 0 is none
    replicas: Literal["warm_up", "periodic"] = "warm_up"  # copied when the migration begins, or all the time before
    holders: Literal["destination", "ring"] = "destination"  # who keeps the copy
    handover: Literal["delta", "whole"] = "delta"  # of a copied unit: the keys changed since, or all if one has changed
    unit: Unit = "group"
    bins: int = 1  # per key group
    mode: Mode = LIVE_PUSH
    phases: tuple[Mapping[str, Any], ...] = ()  # settings of the n-th reconfiguration of a job; the last ones stay
    propose: Propose | None = None  # instead of order and batch

    @property
    def restarts(self) -> bool:
        """Whether the query is stopped with a savepoint and started anew."""
        return self.mode.gate == "query"

    def phase(self, number: int) -> "Strategy":
        """The strategy of the ``number``-th reconfiguration of a job (from 0)."""
        if not self.phases:
            return self
        return replace(self, phases=()).having(self.phases[min(number, len(self.phases) - 1)])

    def having(self, settings: Mapping[str, Any]) -> "Strategy":
        """The same with other settings, those of the mode under their own names. Not checked: see ``change``."""
        mode = {name: value for name, value in settings.items() if name in MODE_SETTINGS}
        others = {name: value for name, value in settings.items() if name not in MODE_SETTINGS}
        return replace(self, mode=replace(self.mode, **mode), **others)


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps one after the other; each is begun when the one before is complete.

    ``copies``: units to replicate before the first step (unit, owner, holder of the copy). ``decisions``: in the order
    in which they were made.
    """

    steps: tuple[Step, ...]
    copies: tuple[Move, ...] = ()
    decisions: tuple[Decision, ...] = field(default=(), compare=False)

    @property
    def moves(self) -> int:
        """How many units move."""
        return sum(len(step.moves) for step in self.steps)
