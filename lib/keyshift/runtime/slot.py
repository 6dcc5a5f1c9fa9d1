"""The slot: which records are processed now and which wait, what becomes of the protocol's effects, when it is full.

After each call its shell carries out ``take_effects()``, stamps what is new in ``log``, and gives out
``take_results()`` when it can.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from keyshift.model.keys import NO_VERSION, Mode, RouterId, Step, UnitId, Version
from keyshift.model.messages import decode
from keyshift.protocol import slot as protocol
from keyshift.runtime.computation import Computation, Result
from keyshift.runtime.key_access import RECORD_BYTES, Errand, Home, KeyAccess
from keyshift.runtime.operator import Events, FrameOperator, WaitingRecord, Where
from keyshift.runtime.protocol_log import ProtocolLog
from keyshift.runtime.row import BARRIER, DATA, MOVED, SAVEPOINT, SNAPSHOT, Row
from keyshift.runtime.snapshots import WHOLE, SnapshotPart, Snapshots
from keyshift.runtime.succession import Succession, UnitsMoved
from keyshift.state import UnitState

# A slice of queued work: records of a unit, or events that waited for a key.
DRAIN_RECORDS, DRAIN_EVENTS = 16, 256
KEYS_STAY = ("access", "remote")  # transfers with which a unit leaves without its keys


@dataclass(frozen=True, slots=True)
class Leave:
    """``state`` has left the slot, to be sent as ``send`` says. ``keys_stay``: only its timers travel."""

    send: protocol.Send
    state: UnitState
    keys_stay: bool


@dataclass(frozen=True, slots=True)
class Captured:
    """The state of ``units`` at the ``snapshot`` is ``parts``, behind those of the snapshots before.

    ``version``: of the step that it is; none if it is a capture, see ``row.CAPTURE``.
    """

    snapshot: str
    version: Version
    units: list[UnitId]
    parts: list[SnapshotPart]


@dataclass(frozen=True, slots=True)
class Cut:
    """Among results: those before it belong to the time before the savepoint or ``snapshot`` of this name."""

    name: str
    snapshot: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """Among results: those of ``unit`` end here (``left``), or begin. Of the ``hop``-th change of hands in the step of
    ``version``. ``routed``: the slot that it comes from has sent none on under a later assignment of the next stage.
    """

    unit: UnitId
    version: Version
    hop: int
    left: bool
    routed: Version = NO_VERSION


Divider = Cut | Moved
CoreEffect = Leave | Captured | Errand | protocol.SlotEffect  # but Send, Complete and Capture, which it follows itself


class SlotCore(Generic[Events, Result]):
    """One slot during one batch. ``states``: of its units, the dictionary that ``keys`` and ``computation`` have, too.

    ``watermarks``: by router, and ``savepoint``: the last at which this slot has stood, both of the batch before.
    ``now_us``: microseconds since the epoch.
    """

    def __init__(
        self,
        machine: protocol.SlotMachine[WaitingRecord[Events]],
        operator: FrameOperator[Events, Result],
        keys: KeyAccess[Events],
        computation: Computation[Events, Result],
        states: dict[UnitId, UnitState],
        queue_bytes: int,
        watermarks: Sequence[int],
        savepoint: str = "",
        slices: tuple[int, int] = (DRAIN_RECORDS, DRAIN_EVENTS),
    ) -> None:
        self.machine, self.keys, self.computation, self.states = machine, keys, computation, states
        self.watermarks = list(watermarks)
        self.savepoint = savepoint
        self.modes: dict[Version, Mode] = {}  # of the steps that were published
        self.queue_peak_bytes = 0
        self.results: list[Result | Divider] = []  # that were not given out yet
        self._effects: list[CoreEffect] = []
        self.operator, self._queue_bytes, self._slices = operator, queue_bytes, slices
        self._told: set[int] = set()  # routers that have said in this batch how far time has come
        self._undrained_bytes = 0  # in the queues after the last slice
        self.snapshots = Snapshots()
        self._behind: list[Row] = []  # a snapshot that has not come to all routers
        self._behind_bytes = 0
        self._succession = Succession()
        self._now_us = 0  # as it was told last
        self.log = ProtocolLog(f"slot-{machine.slot}")
        self.log.note("begin", version=machine.version)

    # -- what comes out -----------------------------------------------------------------------------------------------

    def take_results(self) -> list[Result | Divider]:
        """Give the results since the last call, in their order."""
        results, self.results = self.results, []
        return results

    def take_effects(self) -> list[CoreEffect]:
        """Give what is to be done since the last call, in its order."""
        effects, self._effects = self._effects, []
        if self.keys.errands:
            effects += self.keys.errands
            self.keys.errands = []
        return effects

    @property
    def queued_bytes(self) -> int:
        """Memory of the records that wait, for their units or for keys."""
        return self.machine.queued_bytes + self.keys.waiting_bytes

    @property
    def waits(self) -> bool:
        """Whether anything waits: then ``drain`` is to be called now and then, whether rows come or not."""
        return bool(self.queued_bytes or self.keys)

    @property
    def full(self) -> bool:
        """Whether more is queued here than should be: no further row is to be taken, they wait where they come from.

        Keys come whatever this slot reads; for whole units the machine knows.
        """
        most = self._queue_bytes
        return self.keys.waiting_bytes >= most or (self.queued_bytes > most and self.machine.may_stall)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way or waits to go out: the state can stay here and somebody else may continue."""
        return self.machine.settled and not self.results

    # -- rows and time ------------------------------------------------------------------------------------------------

    def on_rows(self, rows: Iterable[Row], now_us: int, in_time: Callable[[], bool]) -> None:
        """Work on rows of routers that have come; what has waited goes first (see ``drain``)."""
        self.drain(now_us, in_time)
        for row in rows:
            self._take(row)
        if self._behind and self._behind_bytes + self.queued_bytes > self._queue_bytes:
            self._follow(self.machine.skip())
        self._pass_time(now_us)
        self.queue_peak_bytes = max(self.queue_peak_bytes, self.queued_bytes)
        if self.queued_bytes > self._queue_bytes:
            self._follow(self.machine.urge())
        self.keys.ask()

    @property
    def _met(self) -> int:
        """The watermark that a record meets which comes now."""
        return min(self.watermarks)

    def _pass_time(self, now_us: int) -> None:
        """Let time pass, but none behind a savepoint's barrier, also if it came in the batch before: then it comes
        again, before its router tells how far time has come.
        """
        if not self.machine.stopping and len(self._told) == len(self.watermarks):
            self.results += self.computation.timers_due(self._met, now_us)

    def _take(self, row: Row) -> None:
        kind, router, version, offset, watermark, payload, _ = row
        machine = self.machine
        if self._succession.keep(row):
            return
        if machine.standing(router):
            self._behind.append(row)
            self._behind_bytes += len(payload) + RECORD_BYTES
        elif kind == MOVED:
            self._moved(router, payload)
        elif kind == BARRIER:
            self.log.note("barrier", version=version, other=f"router-{router}")
            self._follow(machine.barrier(router, version))
        elif kind == SNAPSHOT:
            self.log.note("at snapshot", version=version, other=f"router-{router}")
            self._follow(machine.snapshot_barrier(router, version))
        elif kind == SAVEPOINT:
            self.log.note("at savepoint", version=version, other=f"router-{router}")
            self._follow(machine.savepoint_barrier(router, bytes(payload).decode()))
        elif not machine.stopped(router):
            if kind == DATA:
                self._admit(self.operator.events(payload), (router, version, offset, self._met))
            self.watermarks[router] = max(self.watermarks[router], watermark)  # for what comes behind
            if watermark:
                self._told.add(router)

    def _moved(self, router: int, payload: Any) -> None:
        said: UnitsMoved = decode(UnitsMoved, bytes(payload))
        for row in self._succession.told(router, said.begun, said.ended):
            self._take(row)

    def _go_on(self) -> None:
        """Go on with what was kept back behind a snapshot, in its order."""
        behind, self._behind, self._behind_bytes = self._behind, [], 0
        for row in behind:
            self._take(row)

    def drain(self, now_us: int, in_time: Callable[[], bool]) -> None:
        """Work on slices of what has waited: until ``in_time()`` says that it was long enough, and twice as much is
        done as came since the last call, so that the queues become shorter whatever comes.
        """
        self._now_us = now_us
        if not self.waits:
            self._undrained_bytes = 0
            return
        came = max(0, self.queued_bytes - self._undrained_bytes)
        goal = self.queued_bytes - 2 * came
        most_records, most_events = self._slices
        while True:
            # Each row of a record may have to wait for its key: not more of them than there is room for.
            room = self.keys.waiting_bytes < self._queue_bytes
            records, emptied = self.machine.drain(most_records if room else 0)
            self.results += self.computation.process_all(records, now_us)
            self._follow(self.machine.drained(emptied))
            waiting, whole = self.keys.drain(most_events, now_us)
            self.results += self.computation.process_all(waiting, now_us, keys_here=True)
            for unit in whole:
                self.log.note("whole", [unit])
                self._follow(self.machine.completed(unit))
            done = self.queued_bytes <= goal and not in_time()
            if done or not (records or waiting):
                break
        self._undrained_bytes = self.queued_bytes
        self.keys.ask()

    def end_of_input(self) -> None:
        """End the input: no row will come any more in this batch."""
        self.log.note("end of input")
        for row in self._succession.end():
            self._take(row)
        self.machine.forget_snapshot()
        self._go_on()
        self._follow(self.machine.end_of_input())

    def _admit(self, events: Events, where: Where) -> None:
        router, version, _, _ = where
        units = self.operator.units(events)
        held = self.machine.admit(router, version, set(units.tolist()))
        if held:
            waits = np.isin(units, list(held))
            effects: list[protocol.SlotEffect] = []
            for unit, part in self.operator.by_unit(self.operator.filter(events, waits)):
                size = self.operator.nbytes(part) + RECORD_BYTES
                effects += self.machine.hold(unit, router, (part, where), size)
            self._follow(effects)
            if waits.all():
                return
            events = self.operator.filter(events, ~waits)
        self.results += self.computation.process(events, where, self._now_us)

    # -- steps and state ----------------------------------------------------------------------------------------------

    def published(self, version: Version, steps: Sequence[tuple[Version, Step]]) -> list[Step]:
        """See ``SlotMachine.published``. Gives the steps that were not known."""
        self.log.note("published", version=version)
        new = [step for of, step in steps if of not in self.modes]
        self.modes |= {of: step.mode for of, step in steps}
        self._follow(self.machine.published(version, steps))
        return new

    def arrived(
        self,
        unit: UnitId,
        version: Version,
        hop: int,
        routers: frozenset[RouterId] | None,
        state: UnitState,
        home: object,
        routed: Version = NO_VERSION,
    ) -> None:
        """Take the state of ``unit``, which the machine awaits; see ``SlotMachine.arrived``. ``home``: where its keys
        are, None if it has them. ``routed``: see ``Moved``.
        """
        self.log.note("arrived", [unit], version, hop)
        effects = self.machine.arrived(unit, routers, home is not None)
        self.states[unit] = state
        if home is not None:
            self.keys.open(Home(home, self.modes[version], (unit, version)))
        self.computation.came(unit)
        if version in self.modes:  # otherwise from this slot in the batch before, or a savepoint
            self.results.append(Moved(unit, version, hop, False, routed))
        self._follow(effects)

    def acknowledged(self, unit: UnitId) -> None:
        """See ``SlotMachine.acknowledged``."""
        self.log.acknowledged(unit)
        self._follow(self.machine.acknowledged(unit))

    def requested(self, unit: UnitId, version: Version, router: RouterId, hop: int) -> None:
        """See ``SlotMachine.requested``."""
        self.log.note("requested", [unit], version, hop)
        self._follow(self.machine.requested(unit, version, router, hop))

    def opened(self, unit: UnitId, version: Version) -> None:
        """See ``SlotMachine.opened``; what was said before changes nothing."""
        self.log.note("opened", [unit], version)
        if self.machine.is_lent(unit, version):
            self._follow(self.machine.opened(unit))

    def _follow(self, effects: Iterable[protocol.SlotEffect]) -> None:
        """Do what can be done here; the rest is for the shell."""
        for effect in effects:
            self.log.effect(effect)
            match effect:
                case protocol.Send():
                    self._effects.append(self._leave(effect))
                case protocol.Complete(unit):
                    self.keys.fetch_rest(unit)
                case protocol.Freeze(savepoint):
                    if savepoint != self.savepoint:  # once, also if the barriers come again in the next batch
                        self.results += self.computation.timers_due(self._met, self._now_us, at_once=True)
                    self.savepoint = savepoint
                    self.computation.checkpoint()
                    self.results.append(Cut(savepoint, False))
                    self._effects.append(effect)
                case protocol.Capture(snapshot, version):
                    self._effects.append(self._captured(snapshot, version))
                    self.results.append(Cut(snapshot, True))
                    self._go_on()
                case protocol.Skip(snapshot):
                    self._effects.append(effect)
                    self.results.append(Cut(snapshot, True))
                    self._go_on()
                case _:
                    self._effects.append(effect)

    def _captured(self, snapshot: str, version: Version) -> Captured:
        self.computation.checkpoint()
        parts = self.snapshots.take(self.states, whole=snapshot.endswith(WHOLE))
        return Captured(snapshot, version, sorted(self.states), parts)

    def _leave(self, send: protocol.Send) -> Leave:
        self.computation.left(send.unit)
        self.results.append(Moved(send.unit, send.version, send.hop, True))
        state = self.states.pop(send.unit)
        keys_stay = self.modes[send.version].transfer in KEYS_STAY and not state.shared  # all slots reach those
        return Leave(send, state, keys_stay)
