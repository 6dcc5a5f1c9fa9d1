"""The parts of a plan and its invariants. Pure: no clock, no random, no IO.

A ``Strategy`` is one point of the space order x batch x replicate x gate x transfer x unit. ``make_plan`` turns it into
steps, alone keeps the invariants, names the broken one, and writes down why each unit moves when it does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from keyshift.model.keys import Assignment, Mode, Move, Step, UnitId

Unit = Literal["group", "bin", "key"]
LIVE_PUSH = Mode()
MODE_SETTINGS = tuple(field.name for field in fields(Mode))


@dataclass(frozen=True, slots=True)
class View:
    """What a strategy may look at: where units are and should be, and what was measured.

    ``heat``: records per second of each unit, empty if nobody measured: in a job with replicas, which all have to make
    the same plan. ``seed``: for orders that draw.
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
Proposer = Callable[["Strategy", View, Log], Iterator[Step]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to move state. The ``presets`` are such points; so is what a user changes.

    The text of a coordinate is what a user reads of it.
    """

    summary: str
    source: str
    order: Annotated[str, "which unit first (id, reverse, random, hottest, access)"] = "id"
    batch: Annotated[str, "what makes a step (all, global, per_source, matched)"] = "all"
    size: Annotated[int, "units per step (global) or per source and step (per_source)"] = 1
    cap: Annotated[int, "units per step at the most, whatever the batch; 0 is no cap"] = 0
    replicate: Annotated[int, "copy every n-th key group before it moves; 0 is none"] = 0
    copies: Annotated[
        Literal["warm_up", "periodic"], "copies when the migration begins (warm_up) or all the time before (periodic)"
    ] = "warm_up"
    holders: Annotated[
        Literal["destination", "ring"], "copies of what moves, where it goes, or also of what stays, along a ring"
    ] = "destination"
    handover: Annotated[
        Literal["delta", "whole"], "a copied unit hands over the keys changed since, or all if one has changed"
    ] = "delta"
    unit: Annotated[Unit, "what moves (group, bin, key)"] = "group"
    bins: Annotated[int, "bins per key group, a power of two"] = 1
    mode: Mode = LIVE_PUSH
    by_migration: tuple[Mapping[str, Any], ...] = ()  # settings of the n-th one of a job; the last ones stay
    propose: Proposer | None = None  # instead of order and batch

    @property
    def restarts(self) -> bool:
        """Whether the query is stopped with a savepoint and started anew."""
        return self.mode.gate == "query"

    def of_migration(self, number: int) -> "Strategy":
        """The strategy of the ``number``-th migration of a job (from 0)."""
        if not self.by_migration:
            return self
        return replace(self, by_migration=()).having(self.by_migration[min(number, len(self.by_migration) - 1)])

    @property
    def of_every_migration(self) -> "list[Strategy]":
        """The different ones that ``of_migration`` gives, in their order."""
        return [self.of_migration(number) for number in range(max(1, len(self.by_migration)))]

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
