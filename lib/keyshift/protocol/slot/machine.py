"""What happens to a slot. What follows from it is in ``consequences``."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from keyshift.model.keys import NO_VERSION, Step, UnitId, Version
from keyshift.protocol.slot.consequences import Consequences
from keyshift.protocol.slot.effects import Hurry, Skip, SlotEffect
from keyshift.protocol.slot.phases import AT_THE_OTHER, AWAY, ON_LOAN, Event, Phase
from keyshift.protocol.slot.queues import Record
from keyshift.protocol.slot.situation import ActiveStep, PendingSnapshot


class SlotMachine(Consequences[Record]):
    """One slot of a stage with ``routers`` input channels.

    It begins with the state of the units ``serving``. That of ``expected`` is in the process that held the slot before,
    or in a savepoint: they are treated like arriving ones.
    """

    # -- steps --------------------------------------------------------------------------------------------------------

    def published(self, version: Version, steps: Sequence[tuple[Version, Step]]) -> list[SlotEffect]:
        """Take all ``steps`` that are under way, by version, oldest first; others up to ``version`` are not (any more).

        One is prepared only when the one before it has ended here.
        """
        pending = self._snapshot
        effects = self.skip() if pending and pending.version <= version and pending.version not in dict(steps) else []
        before = NO_VERSION
        for of, step in steps:
            effects += self._prepare_snapshot(of, step.snapshot) if step.snapshot else self.prepare(of, step, before)
            before = of
        return effects if before == version else effects + self.cancel(version, before)

    def _prepare_snapshot(self, version: Version, name: str) -> list[SlotEffect]:
        """Prepare a snapshot: all state is to be here soon, and kept as it is at the barriers of ``version``.

        A step before it was cancelled, if this slot did not hear of that. Nothing happens if a router has switched to
        it in a batch before: where it did, this slot cannot know.
        """
        if self._ending.over or version <= max(self.version, self._last_snapshot):
            return []
        if step := self._step:
            if self._switched(step):
                raise self._violation(f"snapshot {version} prepared while step {step.version} is active")
            self._drop(step)
        self._snapshot, self._last_snapshot = PendingSnapshot(name, version), version
        if version <= max(self._heard.values()):
            return self.skip()
        return self._advance()

    def cancel(self, version: Version, before: int = 0) -> list[SlotEffect]:
        """Cancel the step of ``version``, which will not switch, nor did an earlier one whose end this slot did not
        hear of; but that of version ``before`` did.
        """
        step = self._step
        if step is None or step.version > version:
            return []
        if step.version == before:
            self._ahead = None
            return []
        if self._switched(step):
            raise self._violation(f"step {step.version} cancelled after a router switched")
        self._drop(step)
        return self._advance()

    def barrier(self, router: int, version: Version) -> list[SlotEffect]:
        """``router`` routes under ``version`` from here on.

        A version beyond that of the step means that the step was cancelled, and another one made without this slot.
        """
        self._check_router(router)
        step, skipped = self._step, list[SlotEffect]()
        if step and version > step.version:
            if self._switched(step):
                raise self._violation(f"router {router} is at version {version} while step {step.version} is active")
            self._drop(step)
        self._heard[router] = max(self._heard[router], version)
        if self._snapshot and version >= self._snapshot.version:  # it switched without standing there
            skipped = self.skip()
        return skipped + self._advance(step.asked if step else ())

    # -- state that comes and goes ------------------------------------------------------------------------------------

    def requested(self, unit: UnitId, version: Version, router: int, hop: int) -> list[SlotEffect]:
        """Another slot asks for ``unit``, because a record of ``router`` waits there. Outdated calls change nothing.

        ``hop`` is that of the ``Request``: one that is repeated takes no unit back that was lent again meanwhile.
        """
        step = self._step
        if step is None or step.version != version:
            return []
        if self._phases[unit] in (Phase.LENDING, Phase.BACK, Phase.SENDING):
            return [Hurry(unit)]
        if hop < step.hops[unit]:
            return []
        if unit in step.leaving or unit in step.arriving:
            step.asked[unit] = router
        return self._advance([unit])

    def arrived(self, unit: UnitId, routers: frozenset[int] | None = None, partial: bool = False) -> list[SlotEffect]:
        """The state of ``unit`` is here: for good, or lent for the records of ``routers``; with all its keys or not.

        Raises ProtocolViolation if it was not expected (or came twice).
        """
        step, changes_hands = self._step, self._phases[unit] in AT_THE_OTHER
        event = Event.ARRIVE if routers is None else Event.ARRIVE_LENT
        self._move(unit, event, f"state of unit {unit} arrived, which is not expected")
        if step and changes_hands:
            step.hops[unit] += 1
            if routers is not None and unit in step.arriving:
                step.borrowed[unit] = routers
        if partial:
            self._partial[unit] = False
        self._queues.close(unit)
        return self._advance([unit])

    def opened(self, unit: UnitId) -> list[SlotEffect]:
        """``unit``, which was lent to this slot, is ours for good. Raises ProtocolViolation if it is not here."""
        self._move(unit, Event.OPEN, f"unit {unit} opened, which is not lent to us")
        if self._step:
            del self._step.borrowed[unit]
        return self._advance()

    def acknowledged(self, unit: UnitId) -> list[SlotEffect]:
        """The other side has installed ``unit`` (or knows that it is open)."""
        self._move(unit, Event.ACKNOWLEDGE, f"unit {unit} acknowledged, which was not sent")
        return self._advance([unit])

    def completed(self, unit: UnitId) -> list[SlotEffect]:
        """Every key of the partial ``unit`` is here. Raises ProtocolViolation if it is not partial."""
        if unit not in self._partial:
            raise self._violation(f"unit {unit} completed, which was not partial")
        del self._partial[unit]
        return self._advance([unit])

    # -- records ------------------------------------------------------------------------------------------------------

    def admit(self, router: int, version: Version, units: AbstractSet[UnitId]) -> AbstractSet[UnitId]:
        """Find which of a frame's ``units`` have to wait: their records go to ``hold``; all others are processed now.

        Raises ProtocolViolation for a record that must not be here: of a unit this slot does not own, or routed under
        another version than its router's last barrier said or its unit's move allows.
        """
        if self._heard.get(router) != version:
            heard = self._heard.get(router)
            raise self._violation(f"router {router} sent records under version {version}, its last barrier was {heard}")
        if self._step is None and not self._queues and units <= self.serving:
            return frozenset()
        return self._waiting(router, version, units)

    def _waiting(self, router: int, version: Version, units: AbstractSet[UnitId]) -> AbstractSet[UnitId]:
        """Find which of a frame's ``units`` have to wait, when something waits or moves."""
        step, what = self._step, f"router {router} sent a record of unit {{}} under version {version}"
        missing = units - self.serving
        if strange := [u for u in missing if u not in self._queues and self._phases[u] not in AWAY]:
            raise self._violation(f"{what.format(strange[0])}, not ours")
        held = missing | (units & self._queues.keys())
        if step is None:
            return held
        switched = version >= step.version
        if wrong := units & (step.leaving if switched else step.arriving):
            raise self._violation(f"{what.format(min(wrong))}, which belongs to the other slot of its move")
        if switched and self._blocked:
            return units
        return held | {unit for unit in units & step.borrowed.keys() if router not in step.borrowed[unit]}

    def hold(self, unit: UnitId, router: int, record: Record, size: int = 0) -> list[SlotEffect]:
        """Queue a record, of ``size`` bytes, of a unit that ``admit`` said must wait."""
        if unit not in self._queues and not self._blocked and self._phases[unit] not in AWAY | ON_LOAN:
            raise self._violation(f"a record of unit {unit} is held, which has no queue")
        self._queues.put(unit, router, record, size)
        return self._ask(unit, router) if self._step and self._step.mode.transfer == "fetch" else []

    def urge(self) -> list[SlotEffect]:
        """Ask for all units that records wait for, whatever the transfer: the queues have become long."""
        return [effect for unit in self._waited_for() for effect in self._ask(unit, -1)]

    def drain(self, most: int) -> tuple[list[Record], list[UnitId]]:
        """Give up to ``most`` queued records whose unit is here by now, oldest first per unit and router; and the units
        of which none is left. The caller processes the records, and calls ``drained`` with the units then.
        """
        step, queues = self._step, self._queues
        ready = queues.filled.keys() & self.serving
        if step and self._blocked:
            ready &= step.leaving  # what came before the barriers has to be in the state that leaves
        records: list[Record] = []
        emptied: list[UnitId] = []
        for unit in [unit for unit in queues.filled if unit in ready]:
            records += queues.take(unit, most - len(records), step.borrowed.get(unit) if step else None)
            if unit not in queues:
                emptied.append(unit)
            if len(records) == most:
                break
        return records, emptied

    def drained(self, emptied: list[UnitId]) -> list[SlotEffect]:
        """The records that ``drain`` gave are processed, and none of the units ``emptied`` waits any more.

        Not before: what follows may be that a unit goes on its way, or the capture of a snapshot, whose state has to
        agree with the version that the results of those records, and of the timers before them, were under.
        """
        return self._advance(emptied) if emptied else []

    # -- savepoint and end of input -----------------------------------------------------------------------------------

    def snapshot_barrier(self, router: int, version: Version) -> list[SlotEffect]:
        """``router`` stands at a snapshot, and routes under ``version`` from here on.

        The caller has to keep back what it sends behind it, until ``Capture`` or ``Skip``. One that does not happen is
        a barrier like any other.
        """
        self._check_router(router)
        if self._snapshot is None or self._snapshot.version != version or self._step:
            return self.barrier(router, version)
        self._heard[router] = max(self._heard[router], version)
        self._snapshot.standing.add(router)
        return self._advance()

    def skip(self) -> list[SlotEffect]:
        """Skip the snapshot that was published, if there is one: it does not happen here."""
        if (pending := self._snapshot) is None:
            return []
        self._snapshot = None
        return [Skip(pending.name, pending.version)]

    def forget_snapshot(self) -> None:
        """Forget a snapshot at which only some routers stand as the batch ends: the slot's next holder says so."""
        if self._snapshot and self._snapshot.standing:
            self._snapshot = None

    def savepoint_barrier(self, router: int, savepoint: str) -> list[SlotEffect]:
        """``router`` stands at ``savepoint``: what it sends later is not ours to process."""
        self._check_router(router)
        if self._ending.savepoint not in (None, savepoint):
            others = self._ending.savepoint
            raise self._violation(f"router {router} stands at savepoint {savepoint}, others at {others}")
        self._ending.savepoint = savepoint
        self._ending.stopped.add(router)
        return self._advance()

    def end_of_input(self) -> list[SlotEffect]:
        """End the batch: an implicit barrier from every router.

        If one router switched, the new version was published, and every router begins the next batch with it: what
        this slot processed is final. If none did, the step is forgotten here and prepared again by the next holder. So
        is a snapshot: what was kept back for it comes first (see ``forget_snapshot``).
        """
        self._ending.over = True
        step = self._step
        if step and not self._switched(step):
            return self.cancel(step.version)
        return self._advance()


class TurnMachine(SlotMachine[Record]):
    """The slot of a replicated job, which has the barriers of all routers at once, between two turns.

    State comes early in one replica and late in another one. So that state has come must count for nothing as long as
    the barriers of its step were not delivered here, even if other slots have theirs.
    """

    @property
    def all_here(self) -> bool:
        """Whether no record can come whose unit is elsewhere: the next turn may be worked on."""
        return self.expected <= self._of_later

    @property
    def _of_later(self) -> AbstractSet[UnitId]:
        """Units that are this slot's only behind barriers that were not delivered."""
        step = self._step
        return step.arriving if step and step.version not in self._heard.values() else frozenset()

    def version_of(self, unit: UnitId) -> Version:
        """The version of the barriers that were delivered last: what is here then belongs here. When a step ends in a
        slot is up to how quickly state travels.
        """
        return Version(max(self._heard.values()))

    def idle(self, units: Iterable[UnitId]) -> list[UnitId]:
        """See ``Situation.idle``. No time passes for what came early: it left a slot that may be behind this one."""
        later = self._of_later
        return super().idle(unit for unit in units if unit not in later)

    def stands(self, unit: UnitId) -> bool:
        """Say no: a unit leaves with the barriers of all routers, and no record is worked on between them.

        A slot without turns takes state that has come for a sign that routers have switched, and stops the time of what
        leaves.
        """
        return False

    def _installed(self, step: ActiveStep) -> bool:
        """Whether all is installed: not before the barriers, as an ended step says nothing of what came early."""
        return self._ready(step) and super()._installed(step)
