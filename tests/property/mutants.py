"""Machines and shells with one bug each, and the check of the simulation that finds it."""

import contextlib
from dataclasses import replace
from unittest.mock import patch

from counting import State, Timers, WatchedComputation
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
from mutation import Mutants

mutant = Mutants()

CALM = {"rolls_back": 0.0, "late": 0.0, "overlaps": 0.0, "leader_dies": 0.0, "dies": 0.0, "batch_ms": None}
LENDING = {"modes": [Mode(transfer="fetch", fetch_back=3)]}
ROUND = {"shape": CALM | {"repeats": 0.5, "script": ("shuffle", "back", "back", "back", "back")}}
SKEWED = {"routers": 3, "idle": (False,) * 3, "channel_ms": (0.0, 5.0, 40.0), "room": 100, "state_ms": 10.0}
MUCH_LENDING = LENDING | {"shape": ROUND["shape"] | SKEWED}
REMOTE = {"modes": [Mode(transfer="remote")]}
DIES = {"shape": {"snapshot_ms": 20.0, "dies": 1.0, "late": 0.0, "rolls_back": 0.0, "queue_bytes": 1000}}
GATED = {"modes": [Mode(gate="router")]}
PAUSED = GATED | {"shape": CALM | {"script": ("random", "savepoint") * 3}}
OFTEN = {"shape": {"snapshot_ms": 20.0}}


@contextlib.contextmanager
def without_queue(slot, unit, really):
    """Meanwhile ``slot`` does not see that records wait for ``unit``."""
    queue = slot._queues.pop(unit, None) if really else None
    yield
    if queue is not None:
        slot._queues[unit] = queue


# -- slots: alignment, transfer, queues --------------------------------------------------------------------------------


@mutant(SlotMachine, "admit", "reordered", seed=25)
def serves_before_the_queue_is_empty(original, slot, router, version, units):
    """New records overtake those in the queue as soon as the state is here."""
    return {unit for unit in original(slot, router, version, units) if unit not in slot.serving}


@mutant(SlotMachine, "_hand_over", "stuck", seed=65)
def sends_before_the_queue_is_empty(original, slot, step, unit):
    """A unit that leaves again at once leaves the records in its queue behind."""
    with without_queue(slot, unit, slot._phases[unit] == "leaving"):
        return original(slot, step, unit)


@mutant(SlotMachine, "_advance", "stuck")
def forgets_what_could_not_leave_yet(original, slot, touched=()):
    """Does not look again at a unit in whose queue records waited when the last router switched."""
    return original(slot, [unit for unit in touched if not slot._step or unit not in slot._step.leaving])


@mutant(SlotMachine, "drain", "reordered")
def drains_newest_first(original, slot, most):
    for unit in slot._queues.keys() & slot.serving:
        slot._queues[unit].reverse()
    return original(slot, most)


@mutant(SlotMachine, "hold", "lost")
def forgets_to_hold(original, slot, *_):
    return []


@mutant(SlotMachine, "barrier", "violation")
def ignores_the_version_of_barriers(original, slot, router, version):
    """Any barrier counts for the step that is active."""
    return original(slot, router, slot._step.version if slot._step else version)


@mutant(SlotMachine, "prepare", "stuck")
def prepares_after_the_end(original, slot, *step):
    slot._ending.over = False
    return original(slot, *step)


@mutant(SlotMachine, "prepare", "violation")
def prepares_ahead_at_once(original, slot, version, step, before=0):
    """Does not wait for the step before, as if that were cancelled."""
    return original(slot, version, step)


@mutant(SlotMachine, "prepare", "stuck")
def forgets_the_step_ahead(original, slot, *step):
    effects = original(slot, *step)
    slot._ahead = None
    return effects


@mutant(SlotMachine, "cancel", "violation")
def cancels_the_step_before_too(original, slot, version, before=0):
    return original(slot, version)


@mutant(SlotMachine, "cancel", "stuck", seed=131)
def keeps_the_step_ahead_that_was_taken_back(original, slot, *versions):
    ahead = slot._ahead
    effects = original(slot, *versions)
    slot._ahead = ahead
    return effects


@mutant(SlotMachine, "end_of_input", "stuck", seed=22)
def forgets_the_step_at_the_end_of_the_batch(original, slot):
    """Does not know that the next batch routes by the new version, if a router switched."""
    slot._heard = dict.fromkeys(slot._heard, 0)
    return original(slot)


@mutant(SlotMachine, "savepoint_barrier", "lost")
def freezes_when_the_first_router_stops(original, slot, router, savepoint):
    return [original(slot, each, savepoint) for each in slot._heard][-1]


@mutant(SlotMachine, "settled", "savepoint")
def freezes_without_waiting_for_state(original, slot):
    return slot._step is None and not slot._queues if slot._ending.over else True


@mutant(SlotMachine, "may_stall", "unbounded")
def never_stops(original, slot):
    """Takes rows however many records wait."""
    return False


@mutant(SlotMachine, "may_stall", "unbounded", seed=81)
def stops_for_its_own_only(original, slot):
    """Takes rows however many records wait for others to acknowledge, or to give back what is lent."""
    return original(slot) and bool(slot.expected or slot.partial)


@mutant(SlotMachine, "may_stall", "stuck")
def stops_while_a_barrier_is_missing(original, slot):
    """Another slot may be waiting for the barrier behind the rows that are not taken."""
    return True


@mutant(SlotMachine, "_installed", "too early")
def reports_before_the_queue_is_empty(original, slot, step):
    """The next step begins while records wait."""
    return not slot._phases.any(NOT_INSTALLED)


@mutant(SlotMachine, "_installed", "too early", LENDING, seed=98)
def reports_what_is_lent(original, slot, step):
    """The next step begins while a unit may still be called back."""
    return not slot._phases.any(NOT_INSTALLED - {"borrowed"}) and step.arriving.isdisjoint(slot._queues)


@mutant(SlotMachine, "idle", "gate", seed=35)
def fires_behind_the_gate(original, slot, units):
    here = [unit for unit in units if unit in slot.serving and unit not in slot._queues]
    return [unit for unit in here if not slot.stands(unit)]


@mutant(SlotMachine, "_blocked", "gate")
def serves_while_it_blocks(original, slot):
    return False


# -- slots: lending ----------------------------------------------------------------------------------------------------


@mutant(SlotMachine, "_send", "reordered", LENDING, seed=111)
def lends_to_every_router(original, slot, step, unit, how, routers=None):
    """The destination also serves routers whose older records are on their way to the source."""
    return original(slot, step, unit, how, frozenset(slot._heard) if routers else routers)


@mutant(SlotMachine, "_give_back", "lost", LENDING, seed=38)
def returns_without_its_queue(original, slot, step, unit):
    """What waited at the destination is forgotten when the unit goes back."""
    slot._queues.pop(unit, None)
    return original(slot, step, unit)


@mutant(SlotMachine, "_hand_over", "stuck", LENDING, seed=33)
def opens_before_the_late_queue_is_drained(original, slot, step, unit):
    """The source gives a unit up for good while late records wait for it to come back."""
    with without_queue(slot, unit, slot._phases[unit] == "lent"):
        return original(slot, step, unit)


@mutant(SlotMachine, "awaits", "owners", LENDING, seed=81)
def takes_what_comes_twice(original, slot, unit, version, hop):
    """Old state of a unit that was handed on and back since counts as what is awaited."""
    return original(slot, unit, version, slot._step.hops[unit] + 1 if slot._step else hop)


@mutant(SlotMachine, "awaits", "owners", ROUND)
def takes_state_of_an_earlier_step(original, slot, unit, version, hop):
    """Which took the unit the same way, and comes late."""
    return original(slot, unit, slot._step.version if slot._step and version else version, hop)


@mutant(SlotMachine, "requested", "stuck", MUCH_LENDING, seed=132)
def answers_requests_of_earlier_steps(original, slot, unit, version, *more):
    return original(slot, unit, slot._step.version if slot._step else version, *more)


@mutant(SlotMachine, "requested", "stuck", MUCH_LENDING)
def answers_requests_that_come_twice(original, slot, unit, version, router, hop):
    return original(slot, unit, version, router, hop=1000)


# -- slots: keys that are elsewhere ------------------------------------------------------------------------------------


@mutant(SlotMachine, "arrived", "lost")
def hands_partial_units_on(original, slot, unit, routers=None, partial=False):
    """A unit leaves before all its keys are here."""
    slot.completed = lambda unit: slot._advance()
    return original(slot, unit, routers)


@mutant(AbsentKeys, "hold", "lost")
def forgets_to_hold_for_a_key(original, absent, unit, key, record):
    absent.want(unit, key)


@mutant(AbsentKeys, "admit", "reordered", seed=120)
def overtakes_records_of_the_same_key(original, absent, unit, keys):
    """A record whose key is here does not look whether others wait."""
    return original(absent, unit, keys) & absent.lacks(unit, keys)


@mutant(AbsentKeys, "lacks", "wrong", REMOTE)
def installs_what_is_older(original, absent, unit, keys):
    """The rest overwrites keys that were asked for, and changed since."""
    return set(keys) if unit in absent else set()


@mutant(AbsentKeys, "fetch_rest", "wrong", REMOTE, seed=38)
def drops_copies_while_the_rest_comes(original, absent, unit):
    first = original(absent, unit)
    if first:
        absent._units[unit].fetching = False
    return first


@mutant(KeyAccess, "written", "wrong")
def drops_copies_before_they_are_written(original, access, stay, changes):
    """The copy goes although a later value is to be written, and what is fetched next is the older one."""
    now = access._unwritten.get(stay, {})
    original(access, stay, {key: now[key] for key in changes if key in now})


@mutant(KeyAccess, "drain", "leftover")
def leaves_keys_at_their_home(original, access, *arguments):
    """When all of them are here."""
    drained = original(access, *arguments)
    access.errands = [errand for errand in access.errands if errand.what != "drop"]
    return drained


# -- timers ------------------------------------------------------------------------------------------------------------


@mutant(SlotMachine, "idle", "late", seed=21)
def fires_before_the_queue(original, slot, units):
    """Time passes for a unit in whose queue records wait that met an earlier one."""
    return [unit for unit in units if unit in slot.serving]


@mutant(SlotMachine, "stands", "late", seed=21)
def lets_time_pass_while_it_leaves(original, slot, unit):
    """Records behind one router's barrier, at the destination, become late by the other routers' progress here."""
    return False


@mutant(SlotCore, "drain", "late")
def meets_the_time_of_the_drain(original, core, now_us, in_time):
    """A queued record meets the watermark that there is when it is processed."""
    plain, met = core.machine.drain, min(core.watermarks)

    def drain(most):
        records, emptied = plain(most)
        return [(events, (*where, met)) for events, (*where, _) in records], emptied

    with patch.object(core.machine, "drain", drain):
        original(core, now_us, in_time)


@mutant(KeyAccess, "may_advance", "late")
def overtakes_in_a_unit_that_misses_keys(original, access, unit, watermark, now_us):
    """Time passes with a record whose key is here, while an older one of the unit waits for its own."""
    return not access._misses_timers(unit, watermark, now_us)


@mutant(KeyAccess, "_misses_timers", "wrong", seed=21)
def fires_for_keys_that_are_elsewhere(original, access, *_):
    """A timer changes what it finds, and its key is not here yet."""
    return False


@mutant(WatchedComputation, "_advance", "late", seed=21)
def lets_time_pass_for_all_records(original, computation, watermarks, now_us):
    """Also for those of a unit that stands."""
    return original(computation, dict.fromkeys(watermarks, max(watermarks.values(), default=0)), now_us)


@mutant(WatchedComputation, "_rounds", "late")
def processes_records_of_one_unit_in_one_round(original, computation, records):
    """Although they met different watermarks."""
    return [records] if records else []


@mutant(WatchedComputation, "_advance", "timer overdue")
def fires_nothing(original, computation, watermarks, now_us):
    """Time passes, and that is all."""
    for unit, watermark in watermarks.items():
        computation._state_of(unit).timers.reach(watermark, now_us)
    return []


@mutant(SlotMachine, "version_of", "stray")
def fires_under_the_version_of_the_step_before(original, slot, unit):
    """Under which another slot owned the unit."""
    return slot.version


@mutant(SlotCore, "on_rows", "early")
def tells_the_time_of_one_router(original, core, rows, now_us, in_time):
    """A slot's timers fire before all routers have come so far."""
    original(core, rows, now_us, in_time)
    if len(core._told) == len(core.watermarks) and not core.machine.stopping:
        core.results += core.computation.timers_due(max(core.watermarks), now_us, at_once=True)


@mutant(SlotShell, "shipment", "timer lost")
def loses_a_timer_on_the_way(original, shell, leave):
    state = original(shell, leave)
    return State(state.values, Timers(list(state.timers.items())[1:], state.timers.watermark))


@mutant(SlotShell, "shipment", "timer lost")
def keeps_the_timers_with_the_keys(original, shell, leave):
    """Timers of a unit whose keys stay behind stay, too."""
    state = original(shell, leave)
    return State((), Timers((), state.timers.watermark)) if leave.keys_stay else state


@mutant(SlotShell, "steps_published", "timer doubled")
def sends_the_timers_of_its_copy(original, shell, value):
    """What fired since the copy was made fires again."""
    original(shell, value)
    copies = {unit: dict(state.timers) for unit, state in shell.states.items()}

    def shipment(leave):
        state = SlotShell.shipment(shell, leave)
        return State(state.values, Timers(copies.get(leave.send.unit, {}) | state.timers, state.timers.watermark))

    shell.shipment = shipment


@mutant(SlotShell, "shipment", "time")
def forgets_how_far_the_unit_has_come(original, shell, leave):
    state = original(shell, leave)
    return State(state.values, Timers(state.timers))


# -- routers -----------------------------------------------------------------------------------------------------------


@mutant(RouterMachine, "boundary", "violation")
def adopts_one_frame_after_its_barrier(original, machine):
    late, machine._late = getattr(machine, "_late", machine.assignment), machine._next or machine.assignment
    effects = original(machine)
    machine.assignment = late
    return effects


@mutant(RouterMachine, "boundary", "violation")
def adopts_without_barrier(original, machine):
    first, machine._began = not hasattr(machine, "_began"), True
    return [effect for effect in original(machine) if first or not isinstance(effect, router.Barrier)]


@mutant(RouterMachine, "may_resume", "gate")
def pauses_for_one_frame(original, machine):
    machine._next_paused = frozenset()
    return True


@mutant(RouterMachine, "boundary", "lost", PAUSED)
def stops_for_a_savepoint_while_paused(original, machine):
    """What is kept back was read before the savepoint, and comes behind its barrier."""
    paused, wanted = machine._next_paused, machine._savepoint
    effects = original(machine)
    if paused and wanted and machine._savepoint:
        machine.stopped_for, machine._savepoint = wanted, None
        effects.append(router.SavepointBarrier(wanted))
    return effects


@mutant(RouterShell, "waits", "stuck", GATED, seed=52)
def waits_for_room_when_its_batch_is_over(original, shell):
    """A router that has ended may not have switched: its barrier comes with the end of all."""
    return shell.core.full


@mutant(RouterCore, "frame", "reordered")
def resumes_after_new_records(original, core, *arguments):
    late, resume = [], core.resume

    def resume_later():
        late.extend(resume())
        return []

    with patch.object(core, "resume", resume_later):
        rows, reached = original(core, *arguments)
    return rows + late, reached


@mutant(RouterShell, "stand", "duplicated")
def tells_the_offset_of_the_frame_before(original, shell, savepoint):
    """It is read again, although it was processed before the savepoint."""
    shell.offset, offset = max(0, shell.offset - 1), shell.offset
    original(shell, savepoint)
    shell.offset = offset


@mutant(RouterCore, "frame", "late", GATED)
def lets_time_pass_in_paused_slots(original, core, *arguments):
    """What is kept back meets a watermark that comes behind it."""
    rows, reached = original(core, *arguments)
    return [(slot, row if row.kind == DATA else row._replace(watermark=core.watermark)) for slot, row in rows], reached


# -- coordinator -------------------------------------------------------------------------------------------------------


@mutant(CoordinatorMachine, "acknowledged", "violation", seed=16)
def publishes_before_all_are_prepared(original, machine, phase, version, slot, now_ms):
    if phase == "prepared" and machine._current and machine._current.after.version == version:
        machine._current.waiting["prepared"] = {slot}
    return original(machine, phase, version, slot, now_ms)


@mutant(CoordinatorMachine, "acknowledged", "violation", seed=236)
def switches_to_the_step_ahead_as_soon_as_it_is_prepared(original, machine, phase, version, slot, now_ms):
    effects = original(machine, phase, version, slot, now_ms)
    if machine._ahead and not machine._ahead.waiting["prepared"]:
        machine._current, machine._ahead = machine._ahead, None
        effects += machine._go_on(machine._current, now_ms)
    return effects


@mutant(CoordinatorMachine, "recover", "violation", seed=290)
def forgets_the_step_ahead_when_it_takes_over(original, machine, version, steps, *more):
    return original(machine, version, list(steps)[:1], *more)


@mutant(CoordinatorMachine, "_drop_rest", "stuck", seed=47)
def uses_the_version_of_the_step_ahead_again(original, machine):
    """If that was taken back."""
    effects = original(machine)
    machine._version -= bool(effects)
    return effects


@mutant(CoordinatorMachine, "acknowledged", "violation")
def goes_on_before_the_state_is_installed(original, machine, *heard):
    if machine._current and machine._current.progress == "switching":
        machine._current.waiting["installed"] = set()
    return original(machine, *heard)


@mutant(CoordinatorMachine, "start", "target")
def does_the_first_steps_only(original, machine, steps, now_ms):
    """And says that the migration is done."""
    return original(machine, list(steps)[:2], now_ms)


@mutant(CoordinatorMachine, "start", "stuck")
def uses_versions_again(original, machine, steps, now_ms):
    machine._version = machine.assignment.version
    return original(machine, steps, now_ms)


@mutant(CoordinatorMachine, "start", "violation")
def does_not_wait_for_the_late_step(original, machine, steps, now_ms):
    if not machine.busy:
        machine._current = None
    return original(machine, steps, now_ms)


@mutant(CoordinatorMachine, "cancel", "violation")
def cancels_what_has_switched(original, machine, now_ms):
    if machine._current and machine._current.progress == "switching":
        return [PublishSteps(machine._version), *original(machine, now_ms)]
    return original(machine, now_ms)


@mutant(CoordinatorMachine, "_complete", "stuck")
def never_resumes(original, machine, current, now_ms):
    return [effect for effect in original(machine, current, now_ms) if not isinstance(effect, PublishAssignment)]


# -- snapshots ---------------------------------------------------------------------------------------------------------


@mutant(SlotMachine, "snapshot_barrier", "snapshot", DIES, seed=21)
def captures_at_the_first_barrier(original, slot, router, version):
    if slot._snapshot and slot._snapshot.version == version and not slot._step:
        slot._snapshot.standing |= set(slot._heard)
    return original(slot, router, version)


@mutant(SlotMachine, "_advance", "snapshot", OFTEN, seed=14)
def captures_without_waiting_for_state(original, slot, touched=()):
    return original(slot, touched) + slot._capture()


@mutant(SlotMachine, "standing", "wrong", DIES)
def keeps_nothing_back_behind_a_snapshot(original, slot, router):
    return False


@mutant(SlotMachine, "_capture", "timer doubled", DIES)
def keeps_the_version_behind_a_snapshot(original, slot):
    """Timers that fire behind it come out as if they had fired before."""
    version = slot.version
    effects = original(slot)
    slot.version = version
    return effects


@mutant(SlotMachine, "skip", "stuck", OFTEN)
def waits_for_a_snapshot_that_does_not_happen(original, slot):
    return []


@mutant(SlotCore, "_go_on", "lost", OFTEN)
def loses_what_was_kept_back(original, core):
    core._behind, core._behind_bytes = [], 0


@mutant(SlotShell, "write", "timer lost", DIES)
def writes_the_timers_of_the_whole(original, shell, units, parts):
    before = {unit: part.timers for unit, part in shell.parts_written.items()}
    original(shell, units, [replace(part, timers=before.get(part.unit, part.timers)) for part in parts])


@mutant(SlotShell, "write", "wrong", DIES)
def writes_the_state_as_it_is_later(original, shell, units, parts):
    original(shell, units, [replace(part, whole=shell.states[part.unit]) for part in parts])
    shell.parts_written = {unit: shell.states[unit] for unit in units}


@mutant(RouterShell, "stand", "snapshot", DIES)
def tells_the_offset_of_the_frame_behind(original, shell, savepoint):
    shell.sim.acknowledge_savepoint(savepoint, shell.sim.shape.ack_ms, f"router-{shell.number}", shell.offset + 1)


@mutant(CoordinatorMachine, "_look_ahead", "stuck", OFTEN, seed=31)
def looks_ahead_beside_a_snapshot(original, machine, now_ms):
    wanted, machine._wanted, current = machine._wanted, "", machine._current
    if current and current.step.snapshot:
        machine._current = None
    effects = original(machine, now_ms)
    machine._wanted, machine._current = wanted, current
    return effects


# -- shells ------------------------------------------------------------------------------------------------------------


@mutant(SlotShell, "acknowledge", "violation")
def acknowledges_twice(original, shell, unit, source):
    original(shell, unit, source)
    original(shell, unit, source)


@mutant(SlotCore, "drain", "ownerless", seed=21)
def carries_effects_out_before_the_records(original, core, now_us, in_time):
    """The state of a unit goes before its last queued records are in it."""
    plain = core.machine.drain

    def drain(most):
        records, emptied = plain(most)
        core._follow(core.machine.drained(emptied))
        return records, []

    with patch.object(core.machine, "drain", drain):
        original(core, now_us, in_time)


@mutant(SlotShell, "state_arrived", "wrong")
def installs_the_state_of_another_unit(original, shell, unit, state, *more):
    moved = {key + 1: numbers for key, numbers in state.values.items()}
    original(shell, unit, State(moved, state.timers), *more)


@mutant(SlotShell, "shipment", "state")
def loses_a_key_on_the_way(original, shell, leave):
    state = original(shell, leave)
    return State(list(state.values.items())[1:], state.timers)


@mutant(SlotShell, "go_on", "stuck", seed=386)
def works_only_when_rows_come(original, shell, batch):
    pass


@mutant(SlotCore, "full", "unbounded")
def takes_rows_while_records_wait_for_keys(original, core):
    return core.machine.queued_bytes > core._queue_bytes and core.machine.may_stall


@mutant(SlotShell, "shipment", "wrong")
def drops_the_keys_that_stayed(original, shell, leave):
    """Nobody can fetch them any more."""
    state = original(shell, leave)
    if shell.core.modes[leave.send.version] == Mode(transfer="access", background=True):
        shell.left[leave.send.unit, leave.send.version] = State()
    return state
