"""The slot: serves its units, hands leaving ones over once they are final, queues records of arriving ones.

Life of a unit at its source: serving -> (aligned, its queue empty) -> sending -> (acknowledged) gone.
Life of a unit at its destination: expected, records queue -> (state arrived) serving, queue drains -> serving.

With ``fetch_back`` a unit may be lent to its destination before all routers switched: it serves the routers that had
switched there, and comes back for a late record of the others, until the source says that it is there for good.
With transfer ``access`` or ``remote`` a unit arrives without its keys: it is *partial* until the rest is fetched, and
cannot be handed on before that; which keys are here is known to ``protocol.remainder``.

The machine never sees state or the content of records: ``Record`` is whatever the shell wants back.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from keyshift.errors import ProtocolViolation
from keyshift.keys import Mode, Step

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Prepared:
    """To the coordinator: this slot has a queue open for every unit that arrives with ``version``."""

    version: int


@dataclass(frozen=True, slots=True)
class Send:
    """Give the state of ``unit`` to ``destination``: for good, or lent for the records of ``routers`` only."""

    unit: int
    destination: int
    version: int
    routers: frozenset[int] | None = None
    hop: int = 1  # how often the unit has changed hands in this step, this time included


@dataclass(frozen=True, slots=True)
class Open:
    """To ``destination``: ``unit``, which was lent, is yours for good. Is acknowledged like state."""

    unit: int
    destination: int
    version: int


@dataclass(frozen=True, slots=True)
class Request:
    """To ``slot``: a record of ``router`` waits here for ``unit``, whose state is yours to give (or to give back).

    ``hop``: how often the unit had changed hands, as far as this slot knows. What comes late, or twice, tells by it.
    """

    unit: int
    slot: int
    version: int
    router: int
    hop: int = 0


@dataclass(frozen=True, slots=True)
class Hurry:
    """``unit`` is among those to be sent, and somebody waits for it: send it next."""

    unit: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The other side has ``unit``: drop the state here (or keep it for access, if that is how it moved)."""

    unit: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Fetch all keys of the partial ``unit`` that are still elsewhere."""

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


Effect = Prepared | Send | Open | Request | Hurry | Forget | Complete | Installed | Released | Freeze


@dataclass(slots=True)
class _ActiveStep:
    version: int
    mode: Mode
    leaving: dict[int, int]  # unit -> destination, not yet handed over for good
    arriving: dict[int, int]  # unit -> source
    aligned: bool = False
    asked: dict[int, int] = field(default_factory=dict)  # leaving unit -> router whose record waits at its destination
    away: set[int] = field(default_factory=set)  # leaving units that are lent
    hops: Counter[int] = field(default_factory=Counter)  # how often each unit changed hands so far
    lent: set[int] = field(default_factory=set)  # sent, but not for good, and not acknowledged
    sending: set[int] = field(default_factory=set)  # sent for good, not acknowledged
    sent: set[int] = field(default_factory=set)
    wanted: set[int] = field(default_factory=set)  # units this slot has asked for
    recalled: set[int] = field(default_factory=set)  # arriving units that were lent to us and are wanted back
    final: set[int] = field(default_factory=set)  # arriving units that are ours for good
    reported: set[str] = field(default_factory=set)
    touched: dict[int, None] = field(default_factory=dict)  # units that may be ready to go now, in the order to look


class SlotMachine(Generic[Record]):
    """One slot of a stage with ``routers`` input channels.

    ``serving``: units whose state is here. ``expected``: units this slot owns whose state is elsewhere (in the process
    that held the slot before, or in a savepoint): they are treated like arriving ones. ``version``: the last assignment
    version whose step is complete here. ``partial``: served units of which keys are elsewhere.
    """

    def __init__(
        self, slot: int, routers: int, serving: Iterable[int] = (), expected: Iterable[int] = (), version: int = 0
    ) -> None:
        self.slot = slot
        self.version = version
        self.serving: set[int] = set(serving)
        self.expected: set[int] = set(expected)
        self.partial: set[int] = set()
        self.queued_bytes = 0
        self._queues: dict[int, deque[tuple[int, Record, int]]] = {unit: deque() for unit in self.expected}
        self._open: dict[int, frozenset[int]] = {}  # lent units that are here: routers whose records they may meet
        self._completing: set[int] = set()
        self._heard = dict.fromkeys(range(routers), 0)
        self._step: _ActiveStep | None = None
        self._ahead: tuple[int, Step] | None = None  # to be prepared when the active step has ended here
        self._savepoint: str | None = None
        self._stopped: set[int] = set()
        self._frozen = False
        self._ended = False

    # -- migration ----------------------------------------------------------------------------------------------------

    def published(self, version: int, steps: Sequence[tuple[int, Step]]) -> list[Effect]:
        """All ``steps`` that are under way, by version, oldest first; others up to ``version`` are not (any more).

        One is prepared only when the one before it has ended here.
        """
        effects: list[Effect] = []
        before = 0
        for of, step in steps:
            effects += self.prepare(of, step, before)
            before = of
        return effects if before == version else effects + self.cancel(version, before)

    def prepare(self, version: int, step: Step, before: int = 0) -> list[Effect]:
        """A step was published that will switch with ``version``. Repeated or outdated calls change nothing.

        The step of version ``before`` has switched and has to end first. Any other earlier one was cancelled, if this
        slot did not hear of that. After the end of input nothing is prepared: no barrier can come any more, so the next
        holder of the slot does it.
        """
        active = self._step
        known = max(self.version, active.version if active else 0)
        if self._ended or version <= known or version < max(self._heard.values()):
            return []
        waits = active is not None and active.version == before
        if active and not waits and self._switched(active):
            raise self._violation(f"step {version} prepared while step {active.version} is active")
        leaving: dict[int, int] = {m.unit: m.destination for m in step.moves if m.source == self.slot}
        arriving: dict[int, int] = {m.unit: m.source for m in step.moves if m.destination == self.slot}
        ours = self.serving | self.expected
        if active:
            ours = (ours | active.arriving.keys()) - active.leaving.keys() if waits else ours - active.arriving.keys()
        if strangers := leaving.keys() - ours:
            raise self._violation(f"step {version} takes units {sorted(strangers)[:5]} that are not here")
        if here := arriving.keys() & ours:
            raise self._violation(f"step {version} brings units {sorted(here)[:5]} that are here already")
        if waits:
            self._ahead = version, step
            return []
        if active:
            self._drop(active)
        if not leaving and not arriving:
            return self._advance()
        self._step = _ActiveStep(version, step.mode, leaving, arriving)
        self.expected |= arriving.keys()
        self._queues.update({unit: deque() for unit in arriving})
        return [Prepared(version), *self._advance()]

    def cancel(self, version: int, before: int = 0) -> list[Effect]:
        """The step of ``version`` will not switch, nor did an earlier one whose end this slot did not hear of; but that
        of version ``before`` did.
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

    def barrier(self, router: int, version: int) -> list[Effect]:
        """``router`` routes under ``version`` from here on.

        A version beyond that of the step means that the step was cancelled, and another one made without this slot.
        """
        self._check_router(router)
        step = self._step
        if step and version > step.version:
            if self._switched(step):
                raise self._violation(f"router {router} is at version {version} while step {step.version} is active")
            self._drop(step)
        self._heard[router] = max(self._heard[router], version)
        return self._advance(step.asked if step else ())

    def requested(self, unit: int, version: int, router: int, hop: int | None = None) -> list[Effect]:
        """Another slot asks for ``unit``, because a record of ``router`` waits there. Outdated calls change nothing.

        Without the ``hop`` of the request, one that is repeated may take a unit back that was lent again meanwhile.
        """
        step = self._step
        if step is None or step.version != version:
            return []
        if unit in step.sending or (unit in step.leaving and unit in step.lent):
            return [Hurry(unit)]
        if hop is not None and hop < step.hops[unit]:
            return []
        if unit in step.arriving:  # the source, which lent it to us; what we gave back before may be unacknowledged
            step.recalled.add(unit)
        elif unit in step.leaving:
            step.asked[unit] = router
        return self._advance([unit])

    def arrived(self, unit: int, routers: frozenset[int] | None = None, partial: bool = False) -> list[Effect]:
        """The state of ``unit`` is here: for good, or lent for the records of ``routers``; with all its keys or not.

        Raises ProtocolViolation if it was not expected (or came twice).
        """
        step = self._step
        if step and unit in step.away and routers is not None:  # what we lent comes back
            step.away.remove(unit)
            step.wanted.discard(unit)
            step.hops[unit] += 1
            self.serving.add(unit)
            return self._advance([unit])
        if unit not in self.expected:
            raise self._violation(f"state of unit {unit} arrived, which is not expected")
        self.expected.remove(unit)
        self.serving.add(unit)
        if partial:
            self.partial.add(unit)
        if routers is not None:
            self._open[unit] = routers
        elif step and unit in step.arriving:
            step.final.add(unit)
        if step and unit in step.arriving:
            step.hops[unit] += 1
        if not self._queues[unit]:
            del self._queues[unit]
        return self._advance([unit])

    def awaits(self, unit: int, version: int, hop: int) -> bool:
        """Whether this handing over of ``unit`` has not come yet (``version`` 0: from a batch or savepoint before)."""
        step = self._step
        if step and (unit in step.away or (unit in step.arriving and unit in self.expected)):
            return version == step.version and hop == step.hops[unit] + 1
        return unit in self.expected and version == 0

    def opened(self, unit: int) -> list[Effect]:
        """``unit``, which was lent to this slot, is ours for good. Raises ProtocolViolation if it is not here."""
        if unit not in self._open or self._step is None:
            raise self._violation(f"unit {unit} opened, which is not lent to us")
        del self._open[unit]
        self._step.final.add(unit)
        return self._advance()

    def acknowledged(self, unit: int) -> list[Effect]:
        """The other side has installed ``unit`` (or knows that it is open)."""
        step = self._step
        if step and unit in step.lent:
            step.lent.remove(unit)
        elif step and unit in step.sending:
            step.sending.remove(unit)
        else:
            raise self._violation(f"unit {unit} acknowledged, which was not sent")
        return [Forget(unit), *self._advance([unit])]

    def completed(self, unit: int) -> list[Effect]:
        """Every key of the partial ``unit`` is here. Raises ProtocolViolation if it is not partial."""
        if unit not in self.partial:
            raise self._violation(f"unit {unit} completed, which was not partial")
        self.partial.remove(unit)
        self._completing.discard(unit)
        return self._advance([unit])

    def is_lent(self, unit: int, version: int) -> bool:
        """Whether ``unit`` was lent to this slot in the step of ``version`` and is here."""
        return unit in self._open and self._step is not None and self._step.version == version

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
        if step is None and not self._queues and units <= self.serving:
            return frozenset()
        held = set()
        blocked = self._blocked and step is not None and version >= step.version
        for unit in units:
            if step and unit in step.arriving and version < step.version:
                raise self._violation(f"router {router} sent a record of unit {unit} under version {version}")
            if step and unit in step.leaving and version >= step.version:
                raise self._violation(f"router {router} sent a record of unit {unit} after its barrier")
            if unit in self._queues or (step and unit in step.away):
                held.add(unit)
            elif unit not in self.serving:
                raise self._violation(f"router {router} sent a record of unit {unit} under version {version}, not ours")
            elif blocked or (unit in self._open and router not in self._open[unit]):
                held.add(unit)
        return held

    def hold(self, unit: int, router: int, record: Record, size: int = 0) -> list[Effect]:
        """Queue a record, of ``size`` bytes, of a unit that ``admit`` said must wait."""
        step = self._step
        if unit not in self._queues:
            if not (self._blocked or unit in self._open or (step and unit in step.away)):
                raise self._violation(f"a record of unit {unit} is held, which has no queue")
            self._queues[unit] = deque()
        self._queues[unit].append((router, record, size))
        self.queued_bytes += size
        return self._ask(unit, router) if step and step.mode.transfer == "fetch" else []

    def urge(self) -> list[Effect]:
        """Ask for all units that records wait for, whatever the transfer: the queues have become long."""
        return [effect for unit in self.wanted if self._queues[unit] for effect in self._ask(unit, -1)]

    def drain(self, most: int) -> tuple[list[Record], list[Effect]]:
        """Up to ``most`` queued records whose unit is here by now, oldest first per unit and router.

        The caller processes the records *before* it carries out the effects: a unit may be on its way again.
        """
        if not self._queues:
            return [], []
        records: list[Record] = []
        ready = self._queues.keys() & self.serving
        if self._blocked and self._step:
            ready &= self._step.leaving.keys()  # what came before the barriers has to be in the state that leaves
        emptied = []
        for unit in [unit for unit in self._queues if unit in ready]:
            queue, routers = self._queues[unit], self._open.get(unit)
            skipped: list[tuple[int, Record, int]] = []
            while queue and len(records) < most:
                waiting = queue.popleft()
                if routers is None or waiting[0] in routers:
                    records.append(waiting[1])
                    self.queued_bytes -= waiting[2]
                else:
                    skipped.append(waiting)
            queue.extendleft(reversed(skipped))
            if not queue:
                del self._queues[unit]
                emptied.append(unit)
            if len(records) == most:
                break
        return records, self._advance(emptied)

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
        if step and not self._switched(step):
            return self.cancel(step.version)
        return self._advance()

    @property
    def stopping(self) -> bool:
        """Whether a router stands at a savepoint: from then on only its records count, no time passes."""
        return bool(self._stopped)

    def idle(self, units: Iterable[int]) -> list[int]:
        """Which of ``units`` are here with no record waiting and no older one to come: their timers may fire."""
        if self._blocked:
            return []
        here = (unit for unit in units if unit in self.serving and unit not in self._queues)
        return [unit for unit in here if not self.stands(unit)]

    def stands(self, unit: int) -> bool:
        """Whether no event time may pass for ``unit``: records from before what this slot has seen may still meet it.

        They come behind one router's barrier at its destination, and before another's at its source. To be asked for
        each record, also for those of ``drain``, whose unit may be on its way already.
        """
        step = self._step
        if step is None:
            return False
        if unit in self._open or unit in step.lent or unit in step.sending:
            return True
        return unit in step.leaving and self._switched(step)

    def version_of(self, unit: int) -> int:
        """A version under which this slot owns ``unit``, which is here."""
        return self._step.version if self._step and unit in self._step.arriving else self.version

    @property
    def settled(self) -> bool:
        """No step is active, nothing is elsewhere and nothing is queued: the slot can change its process."""
        return self._step is None and not self.expected and not self._queues and not self.partial

    @property
    def wanted(self) -> list[int]:
        """Expected units, those with queued records first."""
        return sorted(self.expected, key=lambda unit: -len(self._queues[unit]))

    @property
    def may_stall(self) -> bool:
        """Whether the task may stop reading: state is elsewhere, and no barrier is missing that another slot could be
        waiting for.
        """
        return bool(self.expected or self.partial) and (self._step is None or self._ready(self._step))

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _blocked(self) -> bool:
        """Gate ``slots``: from its first barrier until its own moves are made an affected slot takes nothing new."""
        step = self._step
        if step is None or step.mode.gate != "slots":
            return False
        return bool(step.leaving or step.sending or not step.arriving.keys().isdisjoint(self.expected))

    def _switched(self, step: _ActiveStep) -> bool:
        """Whether any router did, as far as this slot can know: a barrier came, or state, which leaves behind one."""
        return step.version in self._heard.values() or bool(step.hops)

    def _drop(self, step: _ActiveStep) -> None:
        """Forget a step that did not switch: nothing came for it yet."""
        self.expected -= step.arriving.keys()
        for unit in step.arriving:
            del self._queues[unit]
        self._step = self._ahead = None

    def _ready(self, step: _ActiveStep) -> bool:
        """Whether the state of leaving units is final: every router's last old frame has been processed."""
        return self._ended or all(version >= step.version for version in self._heard.values())

    def _ask(self, unit: int, router: int) -> list[Effect]:
        """Once per stay elsewhere: the source for an arriving unit, the destination for one that is lent."""
        step = self._step
        if (
            step is None
            or unit in step.wanted
            or not (unit in step.arriving and unit in self.expected) ^ (unit in step.away)
        ):
            return []
        step.wanted.add(unit)
        other = step.arriving[unit] if unit in step.arriving else step.leaving[unit]
        return [Request(unit, other, step.version, router, step.hops[unit])]

    def _send(self, step: _ActiveStep, unit: int, slot: int, routers: frozenset[int] | None = None) -> Effect:
        self.serving.remove(unit)
        (step.sending if routers is None else step.lent).add(unit)
        step.hops[unit] += 1
        return Send(unit, slot, step.version, routers, step.hops[unit])

    def _leave(self, step: _ActiveStep) -> list[Effect]:
        """What can be handed over now, what somebody waits for first."""
        effects: list[Effect] = []
        free = [u for u in step.touched if u in step.leaving and u not in self._queues and u not in self.expected]
        free = [u for u in free if u not in step.lent]
        if step.aligned:
            for unit in sorted(free, key=lambda u: u not in step.asked):
                if unit in self.partial:
                    effects += self._fetch_rest(unit)
                    continue
                if unit in step.away:
                    step.away.remove(unit)
                    step.sending.add(unit)
                    effects.append(Open(unit, step.leaving[unit], step.version))
                else:
                    effects.append(self._send(step, unit, step.leaving[unit]))
                step.leaving.pop(unit)
                step.sent.add(unit)
        elif step.mode.fetch_back:
            heard = frozenset(router for router, version in self._heard.items() if version >= step.version)
            here = [u for u in free if u in self.serving and u not in self.partial]
            for unit in [u for u in here if step.asked.get(u, -1) in heard]:
                if step.hops[unit] < 2 * step.mode.fetch_back:
                    del step.asked[unit]
                    step.away.add(unit)
                    effects.append(self._send(step, unit, step.leaving[unit], heard))
        return effects

    def _return(self, step: _ActiveStep) -> list[Effect]:
        """What was lent to us and is wanted back."""
        effects: list[Effect] = []
        for unit in [u for u in step.touched if u in step.recalled and u in self._open and u not in step.lent]:
            del self._open[unit]
            step.recalled.remove(unit)
            step.wanted.discard(unit)
            effects.append(self._send(step, unit, step.arriving[unit], frozenset()))
            self.expected.add(unit)
            self._queues.setdefault(unit, deque())
            if self._queues[unit]:
                effects += self._ask(unit, self._queues[unit][0][0])
        return effects

    def _fetch_rest(self, unit: int) -> list[Effect]:
        if unit in self._completing:
            return []
        self._completing.add(unit)
        return [Complete(unit)]

    def _advance(self, touched: Iterable[int] = ()) -> list[Effect]:
        """What follows from an event. Of the step's units only those ``touched`` by it may be ready to go now."""
        effects: list[Effect] = []
        if step := self._step:
            step.touched.update(dict.fromkeys(touched))
            if not step.aligned and self._ready(step):
                step.aligned = True
                step.touched = dict.fromkeys(step.leaving) | step.touched
            effects += self._leave(step)
            effects += self._return(step)
            step.touched.clear()
            # A pure destination does not wait for its own last barrier: with the state here, every router has switched.
            if not step.leaving and not step.sending and not step.lent and "released" not in step.reported:
                step.reported.add("released")
                if step.sent:
                    effects.append(Released(step.version, frozenset(step.sent)))
            arriving = step.arriving.keys()
            here = len(step.final) == len(arriving) and arriving.isdisjoint(self._queues.keys()) and not step.lent
            if here and "installed" not in step.reported:
                step.reported.add("installed")
                if arriving:
                    effects.append(Installed(step.version, frozenset(arriving)))
            if step.reported == {"released", "installed"}:
                self.version, self._step = step.version, None
                if self._ahead:
                    ahead, self._ahead = self._ahead, None
                    effects += self.prepare(*ahead)
        everyone = len(self._stopped) == len(self._heard)
        if self.partial and (everyone or self._ended):
            effects += [rest for unit in sorted(self.partial) for rest in self._fetch_rest(unit)]
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
