"""What is written down of steps and snapshots: the vocabulary in which a system under test tells of its state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from keyshift.model.keys import Assignment, Mode, Move, Step, UnitId, Version
from keyshift.model.packed import Packed

StepOutcome = Literal["under way", "complete", "rolled back", "late", "cancelled"]


class UnitLeft(NamedTuple):
    """A unit that a slot has sent: how much that was, and when it was aligned and all of it had gone."""

    unit: int
    bytes: int
    aligned_us: int
    sent_us: int


class UnitCame(NamedTuple):
    """A unit that a slot has got: when the last of it came, and when it was installed."""

    unit: int
    received_us: int
    installed_us: int


@dataclass(frozen=True, slots=True)
class UnitsLeft:
    """What a slot says when all units that leave it in a step have arrived elsewhere, at ``at_us`` (0: not said)."""

    units: Annotated[tuple[UnitLeft, ...], Packed(UnitLeft)]
    at_us: int = 0


@dataclass(frozen=True, slots=True)
class UnitsCame:
    """What a slot says when all units that come to it in a step are there, and nothing waits for them any more since
    ``drained_us``.
    """

    units: Annotated[tuple[UnitCame, ...], Packed(UnitCame)]
    drained_us: int
    at_us: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a slot has seen since the attempt began: ``seconds``, and ``busy_s`` of them at work.

    ``records``: of units, how many. ``latency``: from an event's due time to its result at the slot, how often by
    class (see ``histogram``). ``rss_peak_bytes``: of its largest process. ``fetched_…``, ``written_bytes``,
    ``copied_bytes`` (into copies at other slots): what went over the wire, apart from whole units. ``lent_bytes``: of
    units that travelled more than once in a step, all but the last time. ``host``, ``left_behind`` (units of which it
    has keys that are elsewhere, too) and ``queue_bytes``: as it is now.
    """

    seconds: float = 0.0
    busy_s: float = 0.0
    records: tuple[tuple[int, int], ...] = ()
    latency: tuple[tuple[int, int], ...] = ()
    queue_peak_bytes: int = 0
    rss_peak_bytes: int = 0
    fetched_bytes: int = 0
    fetched_keys: int = 0
    written_bytes: int = 0
    copied_bytes: int = 0
    lent_bytes: int = 0
    host: str = ""
    left_behind: tuple[int, ...] = ()
    queue_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PodUsed:
    """What the pod at ``host`` has used by ``at_us``, since it began: processors, memory as its limit counts it without
    what could be dropped at once, and bytes that went over its network.
    """

    host: str
    at_us: int
    cpu_s: float
    memory_bytes: int
    sent_bytes: int
    received_bytes: int


class Instance(NamedTuple):
    """What is sampled: what has this ``name``, of a ``replica`` or of none. Without a name it is all processes of a
    replica.
    """

    name: str = ""
    replica: int | None = None

    def __str__(self) -> str:
        """The text of the table ``metrics``."""
        if self.replica is None:
            return self.name
        return f"replica {self.replica}" + (f", {self.name}" if self.name else "")


class Sample(NamedTuple):
    """A sample that was taken at ``at_s``, seconds since the epoch."""

    at_s: float
    metric: str
    instance: Instance
    value: float


@dataclass(slots=True)
class StepRecord:
    """What happened in one step; times in microseconds since the epoch.

    ``released``, ``installed``: what each slot said that gave or got units.
    """

    version: Version
    step: Step
    published_us: int
    prepared_us: int | None = None
    switched_us: int | None = None
    completed_us: int | None = None
    outcome: StepOutcome = "under way"
    released: dict[int, UnitsLeft] = field(default_factory=dict)
    installed: dict[int, UnitsCame] = field(default_factory=dict)

    @property
    def restarts(self) -> bool:
        """Whether it is a restart, see ``restart_record``."""
        return self.step.mode.gate == "query"

    def complete_restart(self, came: Mapping[int, tuple[UnitCame, ...]]) -> None:
        """Complete a restart: every unit has come to a slot. ``came``: by slot."""
        drained_us = max(unit.installed_us for of_slot in came.values() for unit in of_slot)
        self.installed = {slot: UnitsCame(of_slot, drained_us) for slot, of_slot in came.items()}
        self.completed_us, self.outcome = drained_us, "complete"

    @property
    def told_by_all(self) -> bool:
        """Whether each slot has said what it gave and got."""
        moves = self.step.moves
        gave, got = {move.source for move in moves}, {move.destination for move in moves}
        return gave <= self.released.keys() and got <= self.installed.keys()


def restart_record(
    before: Assignment,
    after: Assignment,
    unit_bytes: Mapping[int, int],
    begun_us: int,
    aligned_us: int,
    stopped_us: int,
) -> StepRecord:
    """A restart as one step, in which every unit leaves its slot. It is under way until ``complete_restart``."""
    units = sorted(unit_bytes)
    moves = tuple(Move(UnitId(unit), before.owner[unit], after.owner[unit]) for unit in units)
    left = [UnitLeft(unit, unit_bytes[unit], aligned_us, stopped_us) for unit in units]
    released: dict[int, UnitsLeft] = {
        slot: UnitsLeft(tuple(each for each in left if before.owner[each.unit] == slot)) for slot in set(before.owner)
    }
    step, version = Step(moves, Mode(gate="query")), Version(before.version + 1)
    return StepRecord(version, step, begun_us, begun_us, begun_us, released=released)


def all_came(owners: Assignment, at_us: int) -> dict[int, tuple[UnitCame, ...]]:
    """Return what came to each slot, if all units did at once."""
    return {slot: tuple(UnitCame(unit, at_us, at_us) for unit in owners.units_of(slot)) for slot in set(owners.owner)}


class Second(NamedTuple):
    """What came out in a second of the epoch, and the latency of it in ms; None if there was nothing."""

    second: int
    results: int
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A complete snapshot of all stages: when it was requested and complete, in microseconds since the epoch, how
    much was written for it and makes the state, in bytes by stage, and its name in the store.
    """

    begun_us: int
    completed_us: int
    written: Mapping[str, int]
    state: Mapping[str, int]
    name: str
