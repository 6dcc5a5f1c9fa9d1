"""Machines and shells with one bug each, and the check of the simulation that finds it."""

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from shells import RouterShell, SlotShell, State

from keyshift.keys import Mode
from keyshift.protocol import CoordinatorMachine, RouterMachine, SlotMachine, router
from keyshift.protocol.coordinator import PublishAssignment, PublishSteps
from keyshift.protocol.remainder import Remainders
from keyshift.protocol.slot.phases import NOT_INSTALLED

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


class ForgetsToHoldForAKey(Remainders[Any]):
    def hold(self, unit: int, key: int, record: Any) -> None:
        self.want(unit, key)


class OvertakesRecordsOfTheSameKey(Remainders[Any]):
    """A record whose key is here does not look whether others wait."""

    def admit(self, unit: int, keys: Any) -> Any:
        return super().admit(unit, keys) & self.lacks(unit, keys)


class InstallsWhatIsOlder(Remainders[Any]):
    """The rest overwrites keys that were asked for, and changed since."""

    def lacks(self, unit: int, keys: Any) -> Any:
        return set(keys) if unit in self else set()


class DropsCopiesWhileTheRestComes(Remainders[Any]):
    def fetch_rest(self, unit: int) -> bool:
        first = super().fetch_rest(unit)
        if first:
            self._units[unit].fetching = False
        return first


class DropsCopiesBeforeTheyAreWritten(SlotShell):
    """The copy goes although a later value is on its way, and what is fetched next is the older one."""

    def write_acknowledged(self, stay: Any, key: int) -> None:
        self.writing[stay[0], key] = min(self.writing[stay[0], key], 1)
        super().write_acknowledged(stay, key)


# -- timers ------------------------------------------------------------------------------------------------------------


class FiresBeforeTheQueue(Slot):
    """Time passes for a unit in whose queue records wait that met an earlier one."""

    def idle(self, units: Any) -> Any:
        return [unit for unit in units if unit in self.serving]


class LetsTimePassWhileItLeaves(Slot):
    """Records behind one router's barrier, at the destination, become late by the other routers' progress here."""

    def stands(self, unit: int) -> bool:
        return False


class MeetsTheTimeOfTheDrain(SlotShell):
    """A queued record meets the watermark that there is when it is processed."""

    def drain(self) -> None:
        for queue in self.machine._queues.values():
            for at, (router_, (*record, _), size) in enumerate(queue):
                queue[at] = router_, (*record, min(self.watermarks)), size
        super().drain()


class OvertakesInAUnitThatMissesKeys(SlotShell):
    """Time passes with a record whose key is here, while an older one of the unit waits for its own."""

    def process(self, events: Any, router_: int, version: int, met: int) -> None:
        for event in events:
            unit = event[1] % self.sim.shape.units
            stalled = self.stalled.pop(unit, None)
            super().process([event], router_, version, met)
            if stalled:
                self.stalled[unit] = stalled + self.stalled.pop(unit, deque())


class FiresForKeysThatAreElsewhere(SlotShell):
    """A timer changes what it finds, and its key is not here yet."""

    def lacks(self, unit: int, watermark: int, key: int | None = None) -> bool:
        return super().lacks(unit, 0, key)


class LosesATimerOnTheWay(SlotShell):
    def parcel(self, unit: int, version: int) -> State:
        state = super().parcel(unit, version)
        return State(state.values, dict(list(state.timers.items())[1:]), state.watermark)


class KeepsTheTimersWithTheKeys(SlotShell):
    """Timers of a unit whose keys stay behind stay, too."""

    def parcel(self, unit: int, version: int) -> State:
        state = super().parcel(unit, version)
        remains = self.modes[version].transfer in ("access", "remote")
        return State({}, {}, state.watermark) if remains else state


class SendsTheTimersOfItsCopy(SlotShell):
    """What fired since the copy was made fires again."""

    def steps_published(self, value: Any) -> None:
        super().steps_published(value)
        self.copies = {unit: dict(state.timers) for unit, state in self.states.items()}

    def parcel(self, unit: int, version: int) -> State:
        state = super().parcel(unit, version)
        return State(state.values, self.copies.get(unit, {}) | state.timers, state.watermark)


class ForgetsHowFarTheUnitHasCome(SlotShell):
    def parcel(self, unit: int, version: int) -> State:
        state = super().parcel(unit, version)
        return State(state.values, state.timers)


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
        return self.full


class ResumesAfterNewRecords(RouterShell):
    def frame(self) -> None:
        kept, self.kept = self.kept, []
        super().frame()
        self.kept = kept + self.kept
        if self.machine.may_resume:
            super().resume()

    def resume(self) -> None:
        if self.sim.ending:
            super().resume()


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


class CarriesEffectsOutBeforeTheRecords(SlotShell):
    """The state of a unit goes before its last queued records are in it."""

    def drain(self) -> None:
        records, effects = self.machine.drain(self.sim.shape.drain)
        self.carry_out(effects)
        for record in records:
            self.process(*record)


class InstallsTheStateOfAnotherUnit(SlotShell):
    def state_arrived(self, unit: int, state: State, routers: Any = None, partial: bool = False) -> None:
        moved = {key + 1: numbers for key, numbers in state.values.items()}
        super().state_arrived(unit, State(moved, state.timers, state.watermark), routers, partial)


class WorksOnlyWhenRowsCome(SlotShell):
    def go_on(self, batch: int) -> None:
        pass


class TakesRowsWhileRecordsWaitForKeys(SlotShell):
    @property
    def full(self) -> bool:
        return self.machine.queued_bytes > self.sim.shape.queue_bytes and self.machine.may_stall


class DropsTheKeysThatStayed(SlotShell):
    """Nobody can fetch them any more."""

    def parcel(self, unit: int, version: int) -> State:
        state = super().parcel(unit, version)
        if self.modes[version] == Mode(transfer="access", background=True):
            self.left[unit, version] = {}
        return state


LENDING = {"modes": [Mode(transfer="fetch", fetch_back=3)]}
CALM = {"rolls_back": 0.0, "late": 0.0, "overlaps": 0.0, "leader_dies": 0.0, "dies": 0.0, "batch_ms": None}
ROUND = {"shape": CALM | {"repeats": 0.5, "script": ("shuffle", "back", "back", "back", "back")}}
SKEWED = {"routers": 3, "idle": (False,) * 3, "channel_ms": (0.0, 5.0, 40.0), "room": 100, "state_ms": 10.0}
MUCH_LENDING = LENDING | {"shape": ROUND["shape"] | SKEWED}
REMOTE = {"modes": [Mode(transfer="remote")]}

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
        ("remainders", ForgetsToHoldForAKey, "lost", {}),
        ("remainders", OvertakesRecordsOfTheSameKey, "reordered", {}),
        ("remainders", InstallsWhatIsOlder, "wrong", REMOTE),
        ("remainders", DropsCopiesWhileTheRestComes, "wrong", REMOTE),
        ("slot_shell", DropsCopiesBeforeTheyAreWritten, "wrong", {}),
        ("slot_shell", MeetsTheTimeOfTheDrain, "late", {}),
        ("slot_shell", OvertakesInAUnitThatMissesKeys, "late", {}),
        ("slot_shell", FiresForKeysThatAreElsewhere, "wrong", {}),
        ("slot_shell", LosesATimerOnTheWay, "timer lost", {}),
        ("slot_shell", KeepsTheTimersWithTheKeys, "timer lost", {}),
        ("slot_shell", SendsTheTimersOfItsCopy, "timer doubled", {}),
        ("slot_shell", ForgetsHowFarTheUnitHasCome, "time", {}),
        ("slot_shell", AcknowledgesTwice, "violation", {}),
        ("slot_shell", CarriesEffectsOutBeforeTheRecords, "ownerless", {}),
        ("slot_shell", InstallsTheStateOfAnotherUnit, "wrong", {}),
        ("slot_shell", DropsTheKeysThatStayed, "wrong", {}),
        ("slot_shell", WorksOnlyWhenRowsCome, "stuck", {}),
        ("slot_shell", TakesRowsWhileRecordsWaitForKeys, "unbounded", {}),
        ("router_machine", AdoptsOneFrameAfterItsBarrier, "violation", {}),
        ("router_machine", AdoptsWithoutBarrier, "violation", {}),
        ("router_machine", PausesForOneFrame, "gate", {}),
        ("router_machine", StopsForASavepointWhilePaused, "lost", {}),
        ("router_shell", WaitsForRoomWhenItsBatchIsOver, "stuck", {"modes": [Mode(gate="router")]}),
        ("router_shell", ResumesAfterNewRecords, "reordered", {}),
        ("coordinator_machine", PublishesBeforeAllArePrepared, "violation", {}),
        ("coordinator_machine", SwitchesToTheStepAheadAsSoonAsItIsPrepared, "violation", {}),
        ("coordinator_machine", ForgetsTheStepAheadWhenItTakesOver, "violation", {}),
        ("coordinator_machine", UsesTheVersionOfTheStepAheadAgain, "stuck", {}),
        ("coordinator_machine", GoesOnBeforeTheStateIsInstalled, "violation", {}),
        ("coordinator_machine", DoesTheFirstStepsOnly, "target", {}),
        ("coordinator_machine", UsesVersionsAgain, "stuck", {}),
        ("coordinator_machine", ForgetsWhatWasAcknowledged, "stuck", {}),
        ("coordinator_machine", DoesNotWaitForTheLateStep, "violation", {}),
        ("coordinator_machine", CancelsWhatHasSwitched, "violation", {}),
        ("coordinator_machine", NeverResumes, "stuck", {}),
    ]
}
