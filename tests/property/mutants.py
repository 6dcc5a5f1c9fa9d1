"""Machines and shells with one bug each, and the check of the simulation that finds it."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from counting import State, Timers
from counting import WatchedComputation as Computation
from shells import RouterShell, SlotShell

from keyshift.model.keys import Mode
from keyshift.protocol import CoordinatorMachine, RouterMachine, SlotMachine, router
from keyshift.protocol.absent_keys import AbsentKeys
from keyshift.protocol.coordinator import PublishAssignment, PublishSteps
from keyshift.protocol.slot.phases import NOT_INSTALLED
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.router import RouterCore
from keyshift.runtime.row import DATA
from keyshift.runtime.slot import SlotCore

Slot = SlotMachine[Any]


@contextlib.contextmanager
def without_queue(slot: Slot, unit: int, really: bool) -> Iterator[None]:
    """Meanwhile ``slot`` does not see that records wait for ``unit``."""
    queue = slot._queues.pop(unit, None) if really else None
    yield
    if queue is not None:
        slot._queues[unit] = queue


# -- slots: alignment, transfer, queues --------------------------------------------------------------------------------


class ServesBeforeTheQueueIsEmpty(Slot):
    """New records overtake those in the queue as soon as the state is here."""

    def admit(self, router: int, version: int, units: Any) -> Any:
        return {unit for unit in super().admit(router, version, units) if unit not in self.serving}


class SendsBeforeTheQueueIsEmpty(Slot):
    """A unit that leaves again at once leaves the records in its queue behind."""

    def _hand_over(self, step: Any, unit: int) -> Any:
        with without_queue(self, unit, self._phases[unit] == "leaving"):
            return super()._hand_over(step, unit)


class ForgetsWhatCouldNotLeaveYet(Slot):
    """Does not look again at a unit in whose queue records waited when the last router switched."""

    def _advance(self, touched: Any = ()) -> Any:
        return super()._advance([unit for unit in touched if not self._step or unit not in self._step.leaving])


class DrainsNewestFirst(Slot):
    def drain(self, most: int) -> Any:
        for unit in self._queues.keys() & self.serving:
            self._queues[unit].reverse()
        return super().drain(most)


class ForgetsToHold(Slot):
    def hold(self, unit: int, router: int, record: Any, size: int = 0) -> Any:
        return []


class IgnoresTheVersionOfBarriers(Slot):
    """Any barrier counts for the step that is active."""

    def barrier(self, router: int, version: int) -> Any:
        return super().barrier(router, self._step.version if self._step else version)


class PreparesAfterTheEnd(Slot):
    def prepare(self, version: int, step: Any, before: int = 0) -> Any:
        self._ending.over = False
        return super().prepare(version, step, before)


class PreparesAheadAtOnce(Slot):
    """Does not wait for the step before, as if that were cancelled."""

    def prepare(self, version: int, step: Any, before: int = 0) -> Any:
        return super().prepare(version, step)


class ForgetsTheStepAhead(Slot):
    def prepare(self, version: int, step: Any, before: int = 0) -> Any:
        effects = super().prepare(version, step, before)
        self._ahead = None
        return effects


class CancelsTheStepBeforeToo(Slot):
    def cancel(self, version: int, before: int = 0) -> Any:
        return super().cancel(version)


class KeepsTheStepAheadThatWasTakenBack(Slot):
    def cancel(self, version: int, before: int = 0) -> Any:
        ahead = self._ahead
        effects = super().cancel(version, before)
        self._ahead = ahead
        return effects


class ForgetsTheStepAtTheEndOfTheBatch(Slot):
    """Does not know that the next batch routes by the new version, if a router switched."""

    def end_of_input(self) -> Any:
        self._heard = dict.fromkeys(self._heard, 0)
        return super().end_of_input()


class FreezesWhenTheFirstRouterStops(Slot):
    def savepoint_barrier(self, router: int, savepoint: str) -> Any:
        for each in self._heard:
            effects = super().savepoint_barrier(each, savepoint)
        return effects


class FreezesWithoutWaitingForState(Slot):
    @property
    def settled(self) -> bool:
        return self._step is None and not self._queues if self._ending.over else True


class NeverStops(Slot):
    """Takes rows however many records wait."""

    may_stall = False


class StopsForItsOwnOnly(Slot):
    """Takes rows however many records wait for others to acknowledge, or to give back what is lent."""

    @property
    def may_stall(self) -> bool:
        return super().may_stall and bool(self.expected or self.partial)


class StopsWhileABarrierIsMissing(Slot):
    """Another slot may be waiting for the barrier behind the rows that are not taken."""

    may_stall = True


class ReportsBeforeTheQueueIsEmpty(Slot):
    """The next step begins while records wait."""

    def _installed(self, step: Any) -> bool:
        return not self._phases.any(NOT_INSTALLED)


class ReportsWhatIsLent(Slot):
    """The next step begins while a unit may still be called back."""

    def _installed(self, step: Any) -> bool:
        return not self._phases.any(NOT_INSTALLED - {"borrowed"}) and step.arriving.isdisjoint(self._queues)


class FiresBehindTheGate(Slot):
    def idle(self, units: Any) -> Any:
        here = [unit for unit in units if unit in self.serving and unit not in self._queues]
        return [unit for unit in here if not self.stands(unit)]


class ServesWhileItBlocks(Slot):
    @property
    def _blocked(self) -> bool:
        return False


# -- slots: lending ----------------------------------------------------------------------------------------------------


class LendsToEveryRouter(Slot):
    """The destination also serves routers whose older records are on their way to the source."""

    def _send(self, step: Any, unit: int, how: Any, routers: Any = None) -> Any:
        return super()._send(step, unit, how, frozenset(self._heard) if routers else routers)


class ReturnsWithoutItsQueue(Slot):
    """What waited at the destination is forgotten when the unit goes back."""

    def _give_back(self, step: Any, unit: int) -> Any:
        self._queues.pop(unit, None)
        return super()._give_back(step, unit)


class OpensBeforeTheLateQueueIsDrained(Slot):
    """The source gives a unit up for good while late records wait for it to come back."""

    def _hand_over(self, step: Any, unit: int) -> Any:
        with without_queue(self, unit, self._phases[unit] == "lent"):
            return super()._hand_over(step, unit)


class TakesWhatComesTwice(Slot):
    """Old state of a unit that was handed on and back since counts as what is awaited."""

    def awaits(self, unit: int, version: int, hop: int) -> bool:
        return super().awaits(unit, version, self._step.hops[unit] + 1 if self._step else hop)


class TakesStateOfAnEarlierStep(Slot):
    """Which took the unit the same way, and comes late."""

    def awaits(self, unit: int, version: int, hop: int) -> bool:
        return super().awaits(unit, self._step.version if self._step and version else version, hop)


class AnswersRequestsOfEarlierSteps(Slot):
    def requested(self, unit: int, version: int, router: int, hop: Any = None) -> Any:
        return super().requested(unit, self._step.version if self._step else version, router, hop)


class AnswersRequestsThatComeTwice(Slot):
    def requested(self, unit: int, version: int, router: int, hop: Any = None) -> Any:
        return super().requested(unit, version, router)


# -- slots: keys that are elsewhere ------------------------------------------------------------------------------------


class HandsPartialUnitsOn(Slot):
    """A unit leaves before all its keys are here."""

    def arrived(self, unit: int, routers: Any = None, partial: bool = False) -> Any:
        return super().arrived(unit, routers)

    def completed(self, unit: int) -> Any:
        return self._advance()


class ForgetsToHoldForAKey(AbsentKeys[Any]):
    def hold(self, unit: int, key: int, record: Any) -> None:
        self.want(unit, key)


class OvertakesRecordsOfTheSameKey(AbsentKeys[Any]):
    """A record whose key is here does not look whether others wait."""

    def admit(self, unit: int, keys: Any) -> Any:
        return super().admit(unit, keys) & self.lacks(unit, keys)


class InstallsWhatIsOlder(AbsentKeys[Any]):
    """The rest overwrites keys that were asked for, and changed since."""

    def lacks(self, unit: int, keys: Any) -> Any:
        return set(keys) if unit in self else set()


class DropsCopiesWhileTheRestComes(AbsentKeys[Any]):
    def fetch_rest(self, unit: int) -> bool:
        first = super().fetch_rest(unit)
        if first:
            self._units[unit].fetching = False
        return first


class DropsCopiesBeforeTheyAreWritten(KeyAccess[Any]):
    """The copy goes although a later value is to be written, and what is fetched next is the older one."""

    def written(self, stay: Any, changes: Any) -> None:
        now = self._unwritten.get(stay, {})
        super().written(stay, {key: now[key] for key in changes if key in now})


# -- timers ------------------------------------------------------------------------------------------------------------


class FiresBeforeTheQueue(Slot):
    """Time passes for a unit in whose queue records wait that met an earlier one."""

    def idle(self, units: Any) -> Any:
        return [unit for unit in units if unit in self.serving]


class LetsTimePassWhileItLeaves(Slot):
    """Records behind one router's barrier, at the destination, become late by the other routers' progress here."""

    def stands(self, unit: int) -> bool:
        return False


class MeetsTheTimeOfTheDrain(SlotCore[Any, Any]):
    """A queued record meets the watermark that there is when it is processed."""

    def drain(self, now_us: int, in_time: Any) -> None:
        plain, met = self.machine.drain, min(self.watermarks)

        def drain(most: int) -> Any:
            records, effects = plain(most)
            return [(events, (*where, met)) for events, (*where, _) in records], effects

        with patch.object(self.machine, "drain", drain):
            super().drain(now_us, in_time)


class OvertakesInAUnitThatMissesKeys(KeyAccess[Any]):
    """Time passes with a record whose key is here, while an older one of the unit waits for its own."""

    def may_advance(self, unit: int, watermark: int, now_us: int) -> bool:
        return not self._misses_timers(unit, watermark, now_us)


class FiresForKeysThatAreElsewhere(KeyAccess[Any]):
    """A timer changes what it finds, and its key is not here yet."""

    def _misses_timers(self, unit: int, watermark: int, now_us: int) -> bool:
        return False


class LetsTimePassForAllRecords(Computation):
    """Also for those of a unit that stands."""

    def _advance(self, watermarks: dict[int, int], now_us: int) -> Any:
        met = max(watermarks.values(), default=0)
        return super()._advance(dict.fromkeys(watermarks, met), now_us)


class ProcessesRecordsOfOneUnitInOneRound(Computation):
    """Although they met different watermarks."""

    def _rounds(self, records: Any) -> Any:
        return [records] if records else []


class TellsTheTimeOfOneRouter(SlotCore[Any, Any]):
    """A slot's timers fire before all routers have come so far."""

    def on_rows(self, rows: Any, now_us: int, in_time: Any) -> None:
        super().on_rows(rows, now_us, in_time)
        if len(self._told) == len(self.watermarks) and not self.machine.stopping:
            self.results += self.computation.timers_due(max(self.watermarks), now_us, at_once=True)


class LosesATimerOnTheWay(SlotShell):
    def shipment(self, leave: Any) -> State:
        state = super().shipment(leave)
        return State(state.values, Timers(list(state.timers.items())[1:], state.timers.watermark))


class KeepsTheTimersWithTheKeys(SlotShell):
    """Timers of a unit whose keys stay behind stay, too."""

    def shipment(self, leave: Any) -> State:
        state = super().shipment(leave)
        return State((), Timers((), state.timers.watermark)) if leave.keys_stay else state


class SendsTheTimersOfItsCopy(SlotShell):
    """What fired since the copy was made fires again."""

    def steps_published(self, value: Any) -> None:
        super().steps_published(value)
        self.copies = {unit: dict(state.timers) for unit, state in self.states.items()}

    def shipment(self, leave: Any) -> State:
        state = super().shipment(leave)
        copy = self.copies.get(leave.send.unit, {})
        return State(state.values, Timers(copy | state.timers, state.timers.watermark))


class ForgetsHowFarTheUnitHasCome(SlotShell):
    def shipment(self, leave: Any) -> State:
        state = super().shipment(leave)
        return State(state.values, Timers(state.timers))


# -- routers -----------------------------------------------------------------------------------------------------------


class AdoptsOneFrameAfterItsBarrier(RouterMachine):
    def boundary(self) -> Any:
        late, self._late = getattr(self, "_late", self.assignment), self._next or self.assignment
        effects = super().boundary()
        self.assignment = late
        return effects


class AdoptsWithoutBarrier(RouterMachine):
    def boundary(self) -> Any:
        first, self._began = not hasattr(self, "_began"), True
        return [effect for effect in super().boundary() if first or not isinstance(effect, router.Barrier)]


class PausesForOneFrame(RouterMachine):
    @property
    def may_resume(self) -> bool:
        self._next_paused = frozenset()
        return True


class StopsForASavepointWhilePaused(RouterMachine):
    """What is kept back was read before the savepoint, and comes behind its barrier."""

    def boundary(self) -> Any:
        paused, wanted = self._next_paused, self._savepoint
        effects = super().boundary()
        if paused and wanted and self._savepoint:
            self.stopped_for, self._savepoint = wanted, None
            effects.append(router.SavepointBarrier(wanted))
        return effects


class WaitsForRoomWhenItsBatchIsOver(RouterShell):
    """A router that has ended may not have switched: its barrier comes with the end of all."""

    @property
    def waits(self) -> bool:
        return self.core.full


class ResumesAfterNewRecords(RouterCore[Any]):
    def frame(self, *arguments: Any) -> Any:
        self._late: Any = []
        rows, reached = super().frame(*arguments)
        late, self._late = self._late, None
        return rows + late, reached

    def resume(self) -> Any:
        kept = super().resume()
        if getattr(self, "_late", None) is None:
            return kept
        self._late = kept
        return []


class LetsTimePassInPausedSlots(RouterCore[Any]):
    """What is kept back meets a watermark that comes behind it."""

    def frame(self, *arguments: Any) -> Any:
        rows, reached = super().frame(*arguments)
        return [
            (slot, row if row.kind == DATA else row._replace(watermark=self.watermark)) for slot, row in rows
        ], reached


# -- coordinator -------------------------------------------------------------------------------------------------------


class PublishesBeforeAllArePrepared(CoordinatorMachine):
    def acknowledged(self, phase: Any, version: int, slot: int, now_ms: float) -> Any:
        if phase == "prepared" and self._current and self._current.after.version == version:
            self._current.waiting["prepared"] = {slot}
        return super().acknowledged(phase, version, slot, now_ms)


class SwitchesToTheStepAheadAsSoonAsItIsPrepared(CoordinatorMachine):
    def acknowledged(self, phase: Any, version: int, slot: int, now_ms: float) -> Any:
        effects = super().acknowledged(phase, version, slot, now_ms)
        if self._ahead and not self._ahead.waiting["prepared"]:
            self._current, self._ahead = self._ahead, None
            effects += self._go_on(self._current, now_ms)
        return effects


class ForgetsTheStepAheadWhenItTakesOver(CoordinatorMachine):
    def recover(self, version: int, steps: Any, rest: Any, done: Any, now_ms: float) -> Any:
        return super().recover(version, list(steps)[:1], rest, done, now_ms)


class UsesTheVersionOfTheStepAheadAgain(CoordinatorMachine):
    """If that was taken back."""

    def _drop_rest(self) -> Any:
        effects = super()._drop_rest()
        self._version -= bool(effects)
        return effects


class GoesOnBeforeTheStateIsInstalled(CoordinatorMachine):
    def acknowledged(self, phase: Any, version: int, slot: int, now_ms: float) -> Any:
        if self._current and self._current.phase == "switching":
            self._current.waiting["installed"] = set()
        return super().acknowledged(phase, version, slot, now_ms)


class DoesTheFirstStepsOnly(CoordinatorMachine):
    """And says that the migration is done."""

    def start(self, steps: Any, now_ms: float) -> Any:
        return super().start(list(steps)[:2], now_ms)


# -- snapshots ---------------------------------------------------------------------------------------------------------


class CapturesAtTheFirstBarrier(Slot):
    def snapshot_barrier(self, router: int, version: int) -> Any:
        if self._snapshot and self._snapshot.version == version and not self._step:
            self._snapshot.standing |= set(self._heard)
        return super().snapshot_barrier(router, version)


class CapturesWithoutWaitingForState(Slot):
    def _advance(self, touched: Any = ()) -> Any:
        effects = super()._advance(touched)
        return effects + super()._capture()


class KeepsNothingBackBehindASnapshot(Slot):
    def standing(self, router: int) -> bool:
        return False


class KeepsTheVersionBehindASnapshot(Slot):
    """Timers that fire behind it come out as if they had fired before."""

    def _capture(self) -> Any:
        version = self.version
        effects = super()._capture()
        self.version = version
        return effects


class WaitsForASnapshotThatDoesNotHappen(Slot):
    def skip(self) -> Any:
        return []


class LosesWhatWasKeptBack(SlotCore[Any, Any]):
    def _go_on(self) -> None:
        self._behind, self._behind_bytes = [], 0


class WritesTheTimersOfTheWhole(SlotShell):
    def write(self, units: Any, parts: Any) -> None:
        before = {unit: part.timers for unit, part in self.parts_written.items()}
        super().write(units, [replace(part, timers=before.get(part.unit, part.timers)) for part in parts])


class WritesTheStateAsItIsLater(SlotShell):
    def write(self, units: Any, parts: Any) -> None:
        super().write(units, [replace(part, whole=self.states[part.unit]) for part in parts])
        self.parts_written = {unit: self.states[unit] for unit in units}


class TellsTheOffsetOfTheFrameBehind(RouterShell):
    def stand(self, savepoint: str) -> None:
        self.sim.acknowledge_savepoint(savepoint, self.sim.shape.ack_ms, f"router-{self.number}", self.offset + 1)


class LooksAheadBesideASnapshot(CoordinatorMachine):
    def _look_ahead(self, now_ms: float) -> Any:
        wanted, self._wanted, current = self._wanted, "", self._current
        if current and current.step.snapshot:
            self._current = None
        effects = super()._look_ahead(now_ms)
        self._wanted, self._current = wanted, current
        return effects


class UsesVersionsAgain(CoordinatorMachine):
    def start(self, steps: Any, now_ms: float) -> Any:
        self._version = self.assignment.version
        return super().start(steps, now_ms)


class ForgetsWhatWasAcknowledged(CoordinatorMachine):
    def recover(self, version: int, steps: Any, rest: Any, done: Any, now_ms: float) -> Any:
        return super().recover(version, steps, rest, (), now_ms)


class DoesNotWaitForTheLateStep(CoordinatorMachine):
    def start(self, steps: Any, now_ms: float) -> Any:
        if not self.busy:
            self._current = None
        return super().start(steps, now_ms)


class CancelsWhatHasSwitched(CoordinatorMachine):
    def cancel(self, now_ms: float) -> Any:
        if self._current and self._current.phase == "switching":
            return [PublishSteps(self._version), *super().cancel(now_ms)]
        return super().cancel(now_ms)


class NeverResumes(CoordinatorMachine):
    def _complete(self, current: Any, now_ms: float) -> Any:
        effects = super()._complete(current, now_ms)
        return [effect for effect in effects if not isinstance(effect, PublishAssignment)]


# -- shells ------------------------------------------------------------------------------------------------------------


class AcknowledgesTwice(SlotShell):
    def acknowledge(self, unit: int, source: SlotShell) -> None:
        super().acknowledge(unit, source)
        super().acknowledge(unit, source)


class CarriesEffectsOutBeforeTheRecords(SlotCore[Any, Any]):
    """The state of a unit goes before its last queued records are in it."""

    def drain(self, now_us: int, in_time: Any) -> None:
        plain = self.machine.drain

        def drain(most: int) -> Any:
            records, effects = plain(most)
            self._follow(effects)
            return records, []

        with patch.object(self.machine, "drain", drain):
            super().drain(now_us, in_time)


class InstallsTheStateOfAnotherUnit(SlotShell):
    def state_arrived(self, unit: int, state: State, *more: Any) -> None:
        moved = {key + 1: numbers for key, numbers in state.values.items()}
        super().state_arrived(unit, State(moved, state.timers), *more)


class WorksOnlyWhenRowsCome(SlotShell):
    def go_on(self, batch: int) -> None:
        pass


class TakesRowsWhileRecordsWaitForKeys(SlotCore[Any, Any]):
    @property
    def full(self) -> bool:
        return self.machine.queued_bytes > self._queue_bytes and self.machine.may_stall


class DropsTheKeysThatStayed(SlotShell):
    """Nobody can fetch them any more."""

    def shipment(self, leave: Any) -> State:
        state = super().shipment(leave)
        if self.core.modes[leave.send.version] == Mode(transfer="access", background=True):
            self.left[leave.send.unit, leave.send.version] = State()
        return state


LENDING = {"modes": [Mode(transfer="fetch", fetch_back=3)]}
CALM = {"rolls_back": 0.0, "late": 0.0, "overlaps": 0.0, "leader_dies": 0.0, "dies": 0.0, "batch_ms": None}
ROUND = {"shape": CALM | {"repeats": 0.5, "script": ("shuffle", "back", "back", "back", "back")}}
SKEWED = {"routers": 3, "idle": (False,) * 3, "channel_ms": (0.0, 5.0, 40.0), "room": 100, "state_ms": 10.0}
MUCH_LENDING = LENDING | {"shape": ROUND["shape"] | SKEWED}
REMOTE = {"modes": [Mode(transfer="remote")]}
DIES = {"shape": {"snapshot_ms": 20.0, "dies": 1.0, "late": 0.0, "rolls_back": 0.0, "queue_bytes": 1000}}
PAUSED = {"modes": [Mode(gate="router")], "shape": CALM | {"script": ("random", "savepoint") * 3}}
OFTEN = {"shape": {"snapshot_ms": 20.0}}

MUTANTS: dict[str, tuple[dict[str, Any], str]] = {
    f"{machine}: {mutant.__name__}": ({machine: mutant} | more, check)
    for machine, mutant, check, more in [
        ("slot_machine", ServesBeforeTheQueueIsEmpty, "reordered", {}),
        ("slot_machine", SendsBeforeTheQueueIsEmpty, "stuck", {}),
        ("slot_machine", ForgetsWhatCouldNotLeaveYet, "stuck", {}),
        ("slot_machine", DrainsNewestFirst, "reordered", {}),
        ("slot_machine", ForgetsToHold, "lost", {}),
        ("slot_machine", IgnoresTheVersionOfBarriers, "violation", {}),
        ("slot_machine", PreparesAfterTheEnd, "stuck", {}),
        ("slot_machine", PreparesAheadAtOnce, "violation", {}),
        ("slot_machine", ForgetsTheStepAhead, "stuck", {}),
        ("slot_machine", CancelsTheStepBeforeToo, "violation", {}),
        ("slot_machine", KeepsTheStepAheadThatWasTakenBack, "stuck", {}),
        ("slot_machine", ForgetsTheStepAtTheEndOfTheBatch, "stuck", {}),
        ("slot_machine", FreezesWhenTheFirstRouterStops, "lost", {}),
        ("slot_machine", FreezesWithoutWaitingForState, "savepoint", {}),
        ("slot_machine", NeverStops, "unbounded", {}),
        ("slot_machine", StopsForItsOwnOnly, "unbounded", {}),
        ("slot_machine", StopsWhileABarrierIsMissing, "stuck", {}),
        ("slot_machine", ReportsBeforeTheQueueIsEmpty, "too early", {}),
        ("slot_machine", ReportsWhatIsLent, "too early", LENDING),
        ("slot_machine", FiresBehindTheGate, "gate", {}),
        ("slot_machine", ServesWhileItBlocks, "gate", {}),
        ("slot_machine", LendsToEveryRouter, "reordered", LENDING),
        ("slot_machine", ReturnsWithoutItsQueue, "lost", LENDING),
        ("slot_machine", OpensBeforeTheLateQueueIsDrained, "stuck", LENDING),
        ("slot_machine", TakesWhatComesTwice, "owners", LENDING),
        ("slot_machine", TakesStateOfAnEarlierStep, "owners", ROUND),
        ("slot_machine", AnswersRequestsOfEarlierSteps, "stuck", MUCH_LENDING),
        ("slot_machine", AnswersRequestsThatComeTwice, "stuck", MUCH_LENDING),
        ("slot_machine", HandsPartialUnitsOn, "lost", {}),
        ("slot_machine", FiresBeforeTheQueue, "late", {}),
        ("slot_machine", LetsTimePassWhileItLeaves, "late", {}),
        ("absent_keys", ForgetsToHoldForAKey, "lost", {}),
        ("absent_keys", OvertakesRecordsOfTheSameKey, "reordered", {}),
        ("absent_keys", InstallsWhatIsOlder, "wrong", REMOTE),
        ("absent_keys", DropsCopiesWhileTheRestComes, "wrong", REMOTE),
        ("key_access", DropsCopiesBeforeTheyAreWritten, "wrong", {}),
        ("slot_core", MeetsTheTimeOfTheDrain, "late", {}),
        ("key_access", OvertakesInAUnitThatMissesKeys, "late", {}),
        ("key_access", FiresForKeysThatAreElsewhere, "wrong", {}),
        ("computation", LetsTimePassForAllRecords, "late", {}),
        ("computation", ProcessesRecordsOfOneUnitInOneRound, "late", {}),
        ("slot_core", TellsTheTimeOfOneRouter, "early", {}),
        ("slot_shell", LosesATimerOnTheWay, "timer lost", {}),
        ("slot_shell", KeepsTheTimersWithTheKeys, "timer lost", {}),
        ("slot_shell", SendsTheTimersOfItsCopy, "timer doubled", {}),
        ("slot_shell", ForgetsHowFarTheUnitHasCome, "time", {}),
        ("slot_shell", AcknowledgesTwice, "violation", {}),
        ("slot_core", CarriesEffectsOutBeforeTheRecords, "ownerless", {}),
        ("slot_shell", InstallsTheStateOfAnotherUnit, "wrong", {}),
        ("slot_shell", DropsTheKeysThatStayed, "wrong", {}),
        ("slot_shell", WorksOnlyWhenRowsCome, "stuck", {}),
        ("slot_core", TakesRowsWhileRecordsWaitForKeys, "unbounded", {}),
        ("router_machine", AdoptsOneFrameAfterItsBarrier, "violation", {}),
        ("router_machine", AdoptsWithoutBarrier, "violation", {}),
        ("router_machine", PausesForOneFrame, "gate", {}),
        ("router_machine", StopsForASavepointWhilePaused, "lost", PAUSED),
        ("router_shell", WaitsForRoomWhenItsBatchIsOver, "stuck", {"modes": [Mode(gate="router")]}),
        ("router_core", ResumesAfterNewRecords, "reordered", {}),
        ("router_core", LetsTimePassInPausedSlots, "late", {"modes": [Mode(gate="router")]}),
        ("coordinator_machine", PublishesBeforeAllArePrepared, "violation", {}),
        ("coordinator_machine", SwitchesToTheStepAheadAsSoonAsItIsPrepared, "violation", {}),
        ("coordinator_machine", ForgetsTheStepAheadWhenItTakesOver, "violation", {}),
        ("coordinator_machine", UsesTheVersionOfTheStepAheadAgain, "stuck", {}),
        ("coordinator_machine", GoesOnBeforeTheStateIsInstalled, "violation", {}),
        ("coordinator_machine", DoesTheFirstStepsOnly, "target", {}),
        ("slot_machine", CapturesAtTheFirstBarrier, "snapshot", DIES),
        ("slot_machine", CapturesWithoutWaitingForState, "snapshot", OFTEN),
        ("slot_machine", KeepsNothingBackBehindASnapshot, "wrong", DIES),
        ("slot_machine", KeepsTheVersionBehindASnapshot, "timer doubled", DIES),
        ("slot_machine", WaitsForASnapshotThatDoesNotHappen, "stuck", OFTEN),
        ("slot_core", LosesWhatWasKeptBack, "lost", OFTEN),
        ("slot_shell", WritesTheTimersOfTheWhole, "timer lost", DIES),
        ("slot_shell", WritesTheStateAsItIsLater, "wrong", DIES),
        ("router_shell", TellsTheOffsetOfTheFrameBehind, "snapshot", DIES),
        ("coordinator_machine", LooksAheadBesideASnapshot, "stuck", OFTEN),
        ("coordinator_machine", UsesVersionsAgain, "stuck", {}),
        ("coordinator_machine", ForgetsWhatWasAcknowledged, "stuck", {}),
        ("coordinator_machine", DoesNotWaitForTheLateStep, "violation", {}),
        ("coordinator_machine", CancelsWhatHasSwitched, "violation", {}),
        ("coordinator_machine", NeverResumes, "stuck", {}),
    ]
}
