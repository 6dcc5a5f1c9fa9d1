"""What a slot knows, and the questions that its caller may ask at any time; nothing changes here."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic

from keyshift.model.errors import ProtocolViolation
from keyshift.model.keys import NO_VERSION, Mode, SlotId, Step, UnitId, Version
from keyshift.protocol.slot.effects import Freeze
from keyshift.protocol.slot.phases import AT_THE_OTHER, NOT_MOVED, ON_LOAN, STANDING, Phase, Phases
from keyshift.protocol.slot.queues import Queues, Record


@dataclass(slots=True)
class ActiveStep:
    """A step, from when it is prepared here until this slot's part of it has ended."""

    version: Version
    mode: Mode
    other: dict[UnitId, SlotId]  # the destination of each unit that leaves, the source of each that arrives
    leaving: frozenset[UnitId]
    arriving: frozenset[UnitId]
    aligned: bool = False  # every router has switched: what leaves is final
    hops: Counter[UnitId] = field(default_factory=Counter)  # how often each unit has changed hands so far
    asked: dict[UnitId, int] = field(default_factory=dict)  # unit that the other slot asks for -> router of its record
    wanted: set[UnitId] = field(default_factory=set)  # units for which this slot has asked the other
    borrowed: dict[UnitId, AbstractSet[int]] = field(default_factory=dict)  # unit -> routers whose records it may meet
    released: bool = False  # all that leaves has left, and that was reported
    installed: bool = False  # all that arrives is here, and that was reported


@dataclass(slots=True)
class InputEnd:
    """How the input from ``routers`` ends: router by router at a savepoint, or all at once with the batch."""

    routers: int
    over: bool = False  # with the batch, which is an implicit barrier from every router
    savepoint: str | None = None
    stopped: set[int] = field(default_factory=set)  # routers that stand at the savepoint
    frozen: bool = False

    @property
    def at_savepoint(self) -> bool:
        """Whether every router stands there."""
        return len(self.stopped) == self.routers

    def freeze(self) -> list[Freeze]:
        """Have all state written down, as it is here, if every router stands at a savepoint; once."""
        if self.savepoint is None or not self.at_savepoint or self.frozen:
            return []
        self.frozen = True
        return [Freeze(self.savepoint)]


@dataclass(slots=True)
class PendingSnapshot:
    """A snapshot that was published, until this slot's state was looked at, or it does not happen.

    At it the input does not end: what a router sends behind it is kept back until all state was looked at.
    """

    name: str
    version: Version  # under which all behind it is routed
    standing: set[int] = field(default_factory=set)  # routers whose records belong to the time behind it
    prepared: bool = False  # all state was here, and that was reported


class Situation(Generic[Record]):
    """What a slot knows. ``serving``: units whose state is here. ``expected``: units that this slot owns, or will,
    whose state is to come. ``version``: the last assignment version whose step is complete here.
    """

    def __init__(
        self,
        slot: int,
        routers: int,
        serving: Iterable[UnitId] = (),
        expected: Iterable[UnitId] = (),
        version: Version = NO_VERSION,
    ) -> None:
        self.slot = slot
        self.version = version
        self._phases = Phases(serving, expected)
        self.serving, self.expected = self._phases.serving, self._phases.expected
        self._partial: dict[UnitId, bool] = {}  # whether the rest of their keys was asked for
        self._queues: Queues[Record] = Queues(self.expected)
        self._heard = dict.fromkeys(range(routers), 0)
        self._step: ActiveStep | None = None
        self._ahead: tuple[Version, Step] | None = None  # to be prepared when the active step has ended here
        self._ending = InputEnd(routers)
        self._snapshot: PendingSnapshot | None = None
        self._last_snapshot = 0  # version of the last one, whatever became of it

    def phase_of(self, unit: UnitId) -> Phase:
        """Return where ``unit`` is, and what becomes of its records here."""
        return self._phases[unit]

    def version_of(self, unit: UnitId) -> Version:
        """A version under which this slot owns ``unit``, which is here."""
        return self._step.version if self._step and unit in self._step.arriving else self.version

    @property
    def partial(self) -> AbstractSet[int]:
        """Served units of which keys are elsewhere."""
        return self._partial.keys()

    def is_lent(self, unit: UnitId, version: Version) -> bool:
        """Whether ``unit`` was lent to this slot by the step of ``version``, and is here."""
        return self._step is not None and self._step.version == version and self._phases[unit] in ON_LOAN

    def awaits(self, unit: UnitId, version: Version, hop: int) -> bool:
        """Whether this handing over of ``unit`` has not come yet (``version`` 0: from a batch or savepoint before)."""
        step = self._step
        if step and self._phases[unit] in AT_THE_OTHER:
            return version == step.version and hop == step.hops[unit] + 1
        return unit in self.expected and version == 0

    @property
    def wanted(self) -> list[UnitId]:
        """Expected units, those with queued records first."""
        first = self._waited_for()
        return first + list(self.expected.difference(first))

    @property
    def queued_bytes(self) -> int:
        """The sizes of all records that wait."""
        return self._queues.bytes

    def idle(self, units: Iterable[UnitId]) -> list[UnitId]:
        """Find which of ``units`` are here with no record waiting and no older one to come: their timers may fire."""
        if self._blocked:
            return []
        here = (unit for unit in units if unit in self.serving and unit not in self._queues)
        return [unit for unit in here if not self.stands(unit)]

    def stands(self, unit: UnitId) -> bool:
        """Whether no event time may pass for ``unit``: records from before what this slot has seen may still meet it.

        They come behind one router's barrier at its destination, and before another's at its source. To be asked for
        each record, also for those of ``drain``.
        """
        step = self._step
        return step is not None and self._phases[unit] in STANDING and self._switched(step)

    @property
    def may_stall(self) -> bool:
        """Whether the task may stop reading: what records wait for comes without another row, and no barrier is missing
        that another slot could be waiting for.

        With all barriers of a step here, the other slots have theirs, or will read them before they stop: each of its
        moves ends. What comes from the batch before or from a savepoint comes whatever is read.
        """
        step = self._step
        if self._snapshot and 0 < len(self._snapshot.standing) < len(self._heard):
            return False  # the barriers of the others are behind what is not read
        if step is None:
            return bool(self.expected or self._partial)
        return self._ready(step) or any(unit not in step.arriving for unit in self._waited_for())

    @property
    def stopping(self) -> bool:
        """Whether a router stands at a savepoint: from then on only its records count, no time passes."""
        return bool(self._ending.stopped)

    def stopped(self, router: int) -> bool:
        """True once records of ``router`` belong to the time after a savepoint that stops it, and are to be dropped."""
        return router in self._ending.stopped

    def standing(self, router: int) -> bool:
        """True while rows of ``router`` belong to the time behind a snapshot, and are to be kept back."""
        return self._snapshot is not None and router in self._snapshot.standing

    @property
    def settled(self) -> bool:
        """Whether no step is active, nothing is elsewhere and nothing is queued: the slot can change its process."""
        return self._step is None and not self.expected and not self._queues and not self._partial

    # -- inside -------------------------------------------------------------------------------------------------------

    def _waited_for(self) -> list[UnitId]:
        """Expected units of which records wait, those of most records first."""
        units = self._queues.filled.keys() & self.expected
        return sorted(units, key=lambda unit: -len(self._queues[unit]))

    @property
    def _blocked(self) -> bool:
        """Whether gate ``slots`` is shut: from its first barrier until its own moves are made, nothing new is taken."""
        step = self._step
        if step is None or step.mode.gate != "slots":
            return False
        return self._phases.any(NOT_MOVED) and self._switched(step)

    def _switched(self, step: ActiveStep) -> bool:
        """Whether any router did, as far as this slot can know: a barrier came, or state, which leaves behind one."""
        return step.version in self._heard.values() or bool(step.hops)

    def _ready(self, step: ActiveStep) -> bool:
        """Whether the state of leaving units is final: every router's last old frame has been processed."""
        return self._ending.over or all(version >= step.version for version in self._heard.values())

    def _check_router(self, router: int) -> None:
        if router not in self._heard:
            raise self._violation(f"router {router} is unknown, there are {len(self._heard)}")

    def _violation(self, what: str) -> ProtocolViolation:
        step = f"step {self._step.version}" if self._step else "no step"
        return ProtocolViolation(f"slot {self.slot} ({step}, version {self.version}): {what}")
