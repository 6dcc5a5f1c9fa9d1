"""The slot: serves its units, hands leaving ones over once they are final, queues records of arriving ones.

Life of a unit at its source: serving -> (aligned, its queue empty) -> sending -> (acknowledged) gone.
Life of a unit at its destination: expected, records queue -> (state arrived) serving, queue drains -> serving.

The machine never sees state or the content of records: ``Record`` is whatever the shell wants back.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from keyshift.errors import ProtocolViolation
from keyshift.keys import Step

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Prepared:
    """To the coordinator: this slot has a queue open for every unit that arrives with ``version``."""

    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """The state of ``unit`` is final here: give it to ``destination``."""

    unit: int
    destination: int
    version: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The destination has ``unit``: drop the state here."""

    unit: int


@dataclass(frozen=True, slots=True)
class Installed:
    """To the coordinator: all ``units`` that arrived with ``version`` are installed and their queues drained."""

    version: int
    units: frozenset[int]


@dataclass(frozen=True, slots=True)
class Released:
    """To the coordinator: all ``units`` that left with ``version`` were acknowledged and are forgotten."""

    version: int
    units: frozenset[int]


@dataclass(frozen=True, slots=True)
class Freeze:
    """All routers stand at the savepoint and all state is here: write it down."""

    savepoint: str


Effect = Prepared | Send | Forget | Installed | Released | Freeze


@dataclass(slots=True)
class _ActiveStep:
    version: int
    leaving: dict[int, int]  # unit -> destination, not yet sent
    arriving: frozenset[int]
    aligned: bool = False
    sending: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)


class SlotMachine(Generic[Record]):
    """One slot of a stage with ``routers`` input channels.

    ``serving``: units whose state is here. ``expected``: units this slot owns whose state is elsewhere (in the process
    that held the slot before, or in a savepoint): they are treated like arriving ones. ``version``: the last assignment
    version whose step is complete here.
    """

    def __init__(
        self, slot: int, routers: int, serving: Iterable[int] = (), expected: Iterable[int] = (), version: int = 0
    ) -> None:
        self.slot = slot
        self.version = version
        self.serving: set[int] = set(serving)
        self.expected: set[int] = set(expected)
        self._queues: dict[int, deque[Record]] = {unit: deque() for unit in self.expected}
        self._heard = dict.fromkeys(range(routers), 0)
        self._step: _ActiveStep | None = None
        self._savepoint: str | None = None
        self._stopped: set[int] = set()
        self._frozen = False
        self._ended = False

    # -- migration ----------------------------------------------------------------------------------------------------

    def prepare(self, version: int, step: Step) -> list[Effect]:
        """A step was published that will switch with ``version``. Repeated or outdated calls change nothing.

        A later step means that the one before was cancelled, if this slot did not hear of that. After the end of input
        nothing is prepared: no barrier can come any more, so the next holder of the slot does it.
        """
        before = self._step
        if self._ended or version <= max(self.version, before.version if before else 0):
            return []
        if before and self._switched(before):
            raise self._violation(f"step {version} prepared while step {before.version} is active")
        leaving: dict[int, int] = {m.unit: m.destination for m in step.moves if m.source == self.slot}
        arriving: frozenset[int] = frozenset(m.unit for m in step.moves if m.destination == self.slot)
        ours = (self.serving | self.expected) - (before.arriving if before else frozenset())
        if strangers := leaving.keys() - ours:
            raise self._violation(f"step {version} takes units {sorted(strangers)[:5]} that are not here")
        if here := arriving & ours:
            raise self._violation(f"step {version} brings units {sorted(here)[:5]} that are here already")
        if before:
            self._drop(before)
        if not leaving and not arriving:
            return self._advance()
        self._step = _ActiveStep(version, leaving, arriving)
        self.expected |= arriving
        self._queues.update({unit: deque() for unit in arriving})
        return [Prepared(version), *self._advance()]

    def cancel(self, version: int) -> list[Effect]:
        """The step of ``version`` will not switch, nor did an earlier one whose end this slot did not hear of."""
        step = self._step
        if step is None or step.version > version:
            return []
        if self._switched(step):
            raise self._violation(f"step {step.version} cancelled after a router switched")
        self._drop(step)
        return self._advance()

    def barrier(self, router: int, version: int) -> list[Effect]:
        """``router`` routes under ``version`` from here on."""
        self._check_router(router)
        self._heard[router] = max(self._heard[router], version)
        return self._advance()

    def arrived(self, unit: int) -> list[Effect]:
        """The whole state of ``unit`` is here. Raises ProtocolViolation if it was not expected (or came twice)."""
        if unit not in self.expected:
            raise self._violation(f"state of unit {unit} arrived, which is not expected")
        self.expected.remove(unit)
        self.serving.add(unit)
        if not self._queues[unit]:
            del self._queues[unit]
        return self._advance()

    def acknowledged(self, unit: int) -> list[Effect]:
        """The destination has installed ``unit``."""
        if self._step is None or unit not in self._step.sending:
            raise self._violation(f"unit {unit} acknowledged, which was not sent")
        self._step.sending.remove(unit)
        return [Forget(unit), *self._advance()]

    # -- records ------------------------------------------------------------------------------------------------------

    def admit(self, router: int, version: int, units: AbstractSet[int]) -> AbstractSet[int]:
        """Which of a frame's ``units`` have to wait: their records go to ``hold``; all others are processed now.

        Raises ProtocolViolation for a record that must not be here: of a unit this slot does not own, or routed under
        another version than its router's last barrier said or its unit's move allows.
        """
        if self._heard.get(router) != version:
            heard = self._heard.get(router)
            raise self._violation(f"router {router} sent records under version {version}, its last barrier was {heard}")
        step = self._step
        if not self._queues and units <= self.serving and (step is None or not step.leaving.keys() & units):
            return frozenset()
        held = set()
        for unit in units:
            if step and unit in step.arriving and version < step.version:
                raise self._violation(f"router {router} sent a record of unit {unit} under version {version}")
            if step and unit in step.leaving and self._heard[router] >= step.version:
                raise self._violation(f"router {router} sent a record of unit {unit} after its barrier")
            if unit in self._queues:
                held.add(unit)
            elif unit not in self.serving:
                raise self._violation(f"router {router} sent a record of unit {unit} under version {version}, not ours")
        return held

    def hold(self, unit: int, record: Record) -> None:
        """Queue a record of a unit that ``admit`` said must wait."""
        if unit not in self._queues:
            raise self._violation(f"a record of unit {unit} is held, which has no queue")
        self._queues[unit].append(record)

    def drain(self, most: int) -> tuple[list[Record], list[Effect]]:
        """Up to ``most`` queued records whose unit is here by now, oldest first per unit.

        The caller processes the records *before* it carries out the effects: a unit may be on its way again.
        """
        if not self._queues:
            return [], []
        records: list[Record] = []
        for unit in [unit for unit in self._queues if unit in self.serving]:
            queue = self._queues[unit]
            while queue and len(records) < most:
                records.append(queue.popleft())
            if queue:
                break
            del self._queues[unit]
        return records, self._advance()

    # -- savepoint and end of input -----------------------------------------------------------------------------------

    def savepoint_barrier(self, router: int, savepoint: str) -> list[Effect]:
        """``router`` stands at ``savepoint``; what it sends later is not ours to process."""
        self._check_router(router)
        if self._savepoint not in (None, savepoint):
            raise self._violation(f"router {router} stands at savepoint {savepoint}, others at {self._savepoint}")
        self._savepoint = savepoint
        self._stopped.add(router)
        return self._advance()

    def stopped(self, router: int) -> bool:
        """True once records of ``router`` belong to the time after the savepoint and are to be dropped."""
        return router in self._stopped

    def end_of_input(self) -> list[Effect]:
        """The batch is over: an implicit barrier from every router.

        If one router switched, the new version was published, and every router begins the next batch with it: what
        this slot processed is final. If none did, the step is forgotten here and prepared again by the next holder.
        """
        self._ended = True
        step = self._step
        if step is None:
            return []
        if not self._switched(step):
            return self.cancel(step.version)
        step.aligned = True
        return self._advance()

    @property
    def settled(self) -> bool:
        """No step is active, nothing is expected and nothing is queued: the slot can change its process."""
        return self._step is None and not self.expected and not self._queues

    @property
    def wanted(self) -> list[int]:
        """Expected units, those with queued records first."""
        return sorted(self.expected, key=lambda unit: -len(self._queues[unit]))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _switched(self, step: _ActiveStep) -> bool:
        """Whether any router did, as far as this slot can know: a barrier came, or state that was final elsewhere."""
        return any(version >= step.version for version in self._heard.values()) or not step.arriving <= self.expected

    def _drop(self, step: _ActiveStep) -> None:
        """Forget a step that did not switch: nothing came for it yet."""
        self.expected -= step.arriving
        for unit in step.arriving:
            del self._queues[unit]
        self._step = None

    def _ready(self, step: _ActiveStep) -> bool:
        """Whether the state of leaving units is final: every router's last old frame has been processed."""
        return step.aligned or all(version >= step.version for version in self._heard.values())

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        if step := self._step:
            step.aligned = self._ready(step)
            if step.aligned:
                for unit in [u for u in step.leaving if u in self.serving and u not in self._queues]:
                    effects.append(Send(unit, step.leaving.pop(unit), step.version))
                    self.serving.remove(unit)
                    step.sending.add(unit)
                    step.sent.add(unit)
            # A pure destination does not wait for its own last barrier: with the state here, every router has switched.
            if not step.leaving and not step.sending and "released" not in step.reported:
                step.reported.add("released")
                if step.sent:
                    effects.append(Released(step.version, frozenset(step.sent)))
            if "installed" not in step.reported and not step.arriving & (self.expected | self._queues.keys()):
                step.reported.add("installed")
                if step.arriving:
                    effects.append(Installed(step.version, step.arriving))
            if step.reported == {"released", "installed"}:
                self.version, self._step = step.version, None
        everyone = len(self._stopped) == len(self._heard)
        if self._savepoint and everyone and not self._frozen and self.settled:
            self._frozen = True
            effects.append(Freeze(self._savepoint))
        return effects

    def _check_router(self, router: int) -> None:
        if router not in self._heard:
            raise self._violation(f"router {router} is unknown, there are {len(self._heard)}")

    def _violation(self, what: str) -> ProtocolViolation:
        step = f"step {self._step.version}" if self._step else "no step"
        return ProtocolViolation(f"slot {self.slot} ({step}, version {self.version}): {what}")
