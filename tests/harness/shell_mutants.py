"""The shell with one bug each, and what a run has to say about it; see ``one_run``."""

import contextlib
import threading
from dataclasses import replace
from unittest.mock import patch

from nodes import Session
from one_run import Outcome, run

from keyshift.driver.appointments import Appointments
from keyshift.driver.attempt import Unfinished
from keyshift.driver.leader import Coordinator
from keyshift.driver.snapshotter import Snapshotter
from keyshift.driver.stage import LedStage
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Mode
from keyshift.ordering import Ordering
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.slot import Open, SlotMachine
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.protocol_log import ProtocolLog
from keyshift.runtime.router import RouterCore
from keyshift.runtime.row import BARRIER
from keyshift.runtime.snapshots import Snapshots
from keyshift.runtime.succession import Succession
from keyshift.runtime.turn_router import TurnRouter
from keyshift.runtime.turn_sender import TurnSender
from keyshift.state.timers import Timers
from keyshift.wire import savepoint
from keyshift.wire.nodes import PLAN
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker import daemon
from keyshift.worker.flight import messages
from keyshift.worker.flight.client import StateClients
from keyshift.worker.order.following import Following
from keyshift.worker.output import NextStage
from keyshift.worker.router import RouterTask, Routing
from keyshift.worker.slot import host as slot_host
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.slot.intake import LedIntake, TurnIntake
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.slot.task import SlotTask
from keyshift.worker.state import outbox
from keyshift.worker.state.arrivals import Arrivals
from keyshift.worker.state.departures import Departures
from keyshift.worker.state.outbox import Outbox
from keyshift.worker.turn_output import NextTurns
from keyshift.worker.turn_router import TurnRouterTask
from mutation import Mutants

CALM = {
    "moves": 0.0, "batch_s": None, "expires_s": None, "fails": 0.0, "leader_dies": 0.0, "overlaps": 0.0,
    "restarts": False, "dies_at_s": None, "deadline_s": 3.0, "zookeeper_s": 0.005, "queue_bytes": 1 << 26,
    "store_s": 0.0, "store_fails": 0.0, "leaves": 0.0,
}  # fmt: skip
ROUGH = CALM | {"fails": 0.2, "flight_s": 0.02, "deadline_s": 4.0}
SHORT_BATCHES = CALM | {"moves": 1.0, "batch_s": 0.25}
LEFT = SHORT_BATCHES | {"leaves": 1.0}
HELD = CALM | {"batch_s": 0.7, "held_s": 3.0, "deadline_s": 1.5, "snapshot_s": 0.0, "slots": 3, "begin_slots": 3}
STUCK = ("late", "never", "MigrationFailed", "KeyshiftError", "QueryDied")
LOST = ("lost", "never")
REMOTE = Mode(transfer="remote", background=False)
ACCESS = Mode(transfer="access", background=True)
LENT = Mode(transfer="fetch", fetch_back=3)


mutant = Mutants()


def hunt(name: str, seeds: int) -> Outcome | None:
    """The first run of these seeds that sees the mutant."""
    return mutant.by_name[name].hunt(range(seeds), run)


# -- slots: from batch to batch ----------------------------------------------------------------------------------------


@mutant(SlotTask, "seal", STUCK, SHORT_BATCHES)
def leaves_a_unit_out_of_its_handover(original, task):
    serving = task.shared.core.machine.serving
    serving.discard(min(serving, default=None))
    original(task)


@mutant(SlotTask, "settled", (*LOST, *STUCK, "wrong"), SHORT_BATCHES)
def does_not_wait_for_state_at_the_end_of_a_batch(original, task):
    original(task)
    return True


@mutant(SlotTask, "settled", LOST, SHORT_BATCHES, frame_s=0.008)
def forgets_at_the_end_of_a_batch_what_was_drained(original, task):
    with task.shared.lock:
        task.shared.core.take_results()
    return original(task)


@mutant(Arrivals, "take", "wrong", SHORT_BATCHES, workload="windowcount")
def takes_units_over_without_their_timers(original, arrivals, shipments):
    """From the batch or savepoint before."""
    return original(
        arrivals, [shipment if shipment.version else replace(shipment, timers=None) for shipment in shipments]
    )


@mutant(ProtocolLog, "remember", "log", SHORT_BATCHES)
def forgets_its_log_at_the_end_of_a_batch(original, log, events):
    pass


@mutant(SavepointStore, "write", "ProtocolViolation", CALM)
def writes_savepoints_without_a_unit(original, store, savepoint, slot, states, *more):
    return original(store, savepoint, slot, list(states)[1:], *more)


@mutant(SlotSnapshots, "_written", "ProtocolViolation", CALM, snapshot_s=0.05, keys=30)
def forgets_a_part_that_it_has_written(original, snapshots, effect, progress):
    """Of a unit that has others."""
    answer = original(snapshots, effect, progress)
    for locations in snapshots._locations.values():
        del locations[2:]
    return answer


@mutant(Snapshots, "forget", "ProtocolViolation", CALM, snapshot_s=0.05, keys=30, store_fails=0.2)
def goes_on_behind_a_part_that_could_not_be_written(original, snapshots, parts):
    pass


@mutant(SlotMachine, "stopping", ("wrong", "foreign"), CALM, workload="windowcount", restarts=True)
def lets_time_pass_behind_a_savepoint(original, machine):
    return False


@mutant(daemon, "await_takers", STUCK, LEFT)
def ends_when_spark_has_no_more_use_for_its_process(original, within_s):
    return False


@mutant(
    daemon, "await_takers", ("wrong", *STUCK), LEFT,
    mode=Mode(transfer="access", background=False), strategy="all_at_once", flight_s=0.1, keys=120,
)  # fmt: skip
def ends_with_keys_that_are_lent(original, within_s):
    for host in slot_host._hosts.values():
        host.lent.clear()
    return original(within_s)


@mutant(Arrivals, "pull", "never", LEFT, workload="keycount", slots=4, begin_slots=1)
def does_not_say_that_it_needs_nothing(original, arrivals, units, address):
    if units:
        original(arrivals, units, address)


@mutant(SlotTask, "_others_read", "QueryDied", HELD, kind="push", strategy="all_at_once")
def does_not_wait_for_slots_that_have_rows_when_it_has_none(original, task):
    return False


# -- slots: state that comes and goes ----------------------------------------------------------------------------------


@mutant(SlotEffects, "_shipment", ("ProtocolViolation", "foreign", "wrong"), CALM, kind="push")
def keeps_what_it_sends(original, effects, leave, routed):
    shipment = original(effects, leave, routed)
    effects._shared.core.states[leave.send.unit] = leave.state
    return shipment


@mutant(Arrivals, "take", LOST, CALM, kind="push", slow_s=(0.0, 0.04), routers=2)
def forgets_what_was_drained_between_two_rows(original, arrivals, shipments):
    taken = original(arrivals, shipments)
    with arrivals._shared.lock:
        arrivals._shared.core.take_results()
    return taken


@mutant(Arrivals, "_awaits", STUCK, ROUGH, kind="push")
def takes_what_comes_twice(original, arrivals, shipment):
    return True


@mutant(Departures, "tell", STUCK, CALM, mode=LENT, strategy="all_at_once", routers=3)
def does_not_say_that_a_lent_unit_stays(original, departures, slot, messages, mode):
    if some := [message for message in messages if not isinstance(message, Open)]:
        original(departures, slot, some, mode)


@mutant(SlotMachine, "is_lent", STUCK, ROUGH, mode=LENT, strategy="all_at_once", routers=3, slow_s=(0.0, 0.04, 0.04))
def hears_twice_that_a_lent_unit_stays(original, machine, unit, version):
    return True


# -- what leaves -------------------------------------------------------------------------------------------------------


@mutant(Outbox, "_send", STUCK, ROUGH, kind="push")
def does_not_send_again_what_was_not_acknowledged(original, box, items):
    with box._lock:
        box._underway.clear()
    original(box, items)


@mutant(Outbox, "acknowledged", STUCK, CALM, kind="push")
def sends_again_what_was_acknowledged(original, box, unit):
    shipment = original(box, unit)
    if shipment is not None:
        with box._lock:
            box._underway[unit] = shipment
    return shipment


@mutant(outbox, "again", (*STUCK, *LOST), ROUGH)
def tries_only_once(original, name, closed, act):
    with contextlib.suppress(ServiceUnavailable):
        act()


@mutant(StateClients, "push", STUCK, ROUGH, kind="push")
def does_not_hear_that_sending_failed(original, clients, *arguments):
    with contextlib.suppress(ServiceUnavailable):
        original(clients, *arguments)


@mutant(messages, "fragments", "wrong", CALM, kind="push", workload="windowcount")
def sends_units_without_their_timers(original, label, batches, schema, timers=None):
    return original(label, batches, schema)


# -- keys that are elsewhere -------------------------------------------------------------------------------------------


@mutant(SlotEffects, "_shipment", ("wrong", *STUCK), CALM, kind="access")
def lends_nothing(original, effects, leave, routed):
    """Keys that stay are nowhere."""
    shipment = original(effects, leave, routed)
    effects._shared.host.lent.pop((leave.send.unit, leave.send.version), None)
    return shipment


@mutant(SlotHost, "message", ("wrong", *STUCK), CALM, kind="access")
def drops_all_that_is_lent(original, host, message):
    """When one unit is asked for no more."""
    original(host, message)
    if isinstance(message, messages.KeysDropped):
        host.lent.clear()


@mutant(SlotHost, "keys", "wrong", ROUGH, mode=ACCESS, strategy="all_at_once", routers=3, frame_s=0.008)
def takes_keys_away_with_the_answer(original, host, stay, keys):
    """Which may not arrive."""
    found = original(host, stay, keys)
    host.forget(stay, [key for key, _ in found])
    return found


@mutant(SlotHost, "write", "wrong", CALM, mode=REMOTE, strategy="all_at_once")
def forgets_what_is_written_back(original, host, *_):
    pass


@mutant(KeyAccess, "_misses_timers", "wrong", CALM, mode=ACCESS, strategy="all_at_once", workload="windowcount")
def fires_timers_of_keys_that_are_elsewhere(original, access, *_):
    return False


# -- routers -----------------------------------------------------------------------------------------------------------


@mutant(ArrowSplit, "__call__", STUCK, CALM)
def routes_by_the_assignment_before(original, split, events, assignment):
    """For one frame behind its barrier."""
    before, split._before = getattr(split, "_before", assignment), assignment
    return original(split, events, before)


@mutant(RouterCore, "resume", LOST, CALM, mode=Mode(gate="router"), strategy="all_at_once")
def forgets_what_it_kept_back(original, core):
    original(core)
    return []


@mutant(RouterTask, "resume", LOST, CALM, mode=Mode(gate="router"), strategy="fluid", batch_s=0.25)
def forgets_at_the_end_of_a_batch_what_it_kept_back(original, task):
    return []


@mutant(RouterTask, "__init__", LOST, CALM, restarts=True)
def says_that_a_savepoint_is_one_frame_later(original, task, config):
    original(task, config)
    acknowledge = task.coordination.acknowledge
    task.coordination.acknowledge = lambda node, value: acknowledge(node, replace(value, offset=value.offset + 1))


# -- slots that are routers of the next stage --------------------------------------------------------------------------


@mutant(Succession, "keep", "reordered", CALM, workload="chain", strategy="fluid", keys=30, slow_s=(0.3, 0.0))
def lets_results_of_a_new_slot_overtake_those_of_the_old_one(original, succession, row):
    return False


@mutant(NextStage, "_announced", "snapshot", CALM, workload="chain", snapshot_s=0.1, slow_s=(0.3, 0.0))
def begins_a_snapshot_wherever_the_results_of_the_slot_are_cut(original, stage, raw):
    original(stage, raw)
    Routing._announced(stage, raw)


# -- slots that work in turns ------------------------------------------------------------------------------------------


@mutant(TurnIntake, "left", (*LOST, *STUCK), SHORT_BATCHES, ordering="live_robin", routers=3, slow_s=(0.04, 0.0, 0.0))
def leaves_the_rows_of_an_open_turn_out_of_its_handover(original, intake):
    position, _ = original(intake)
    return position, ()


@mutant(TurnIntake, "left", ("wrong", *STUCK), SHORT_BATCHES, ordering="live_robin")
def hands_over_no_place_in_the_order(original, intake):
    _, left = original(intake)
    return None, left


@mutant(TurnIntake, "left", ("wrong", *STUCK), SHORT_BATCHES, ordering="live_robin", workload="chain")
def hands_over_no_place_in_the_order_of_a_later_stage(original, intake):
    position, left = original(intake)
    return None if intake._order.setting.later else position, left


@mutant(TurnSender, "_ended", STUCK, SHORT_BATCHES, ordering="live_robin", workload="chain")
def says_nothing_of_a_turn_without_results(original, sender, end):
    return original(sender, end) if any(each.num_rows for each in sender._of_turn) else []


@mutant(
    NextTurns, "hand_over", STUCK, SHORT_BATCHES,
    ordering="live_robin", workload="chain", strategy="fluid", zookeeper_s=0.15, slots=4, begin_slots=4,
)  # fmt: skip
def does_not_leave_how_far_the_turns_of_a_slot_have_come(original, output):
    with patch.object(output.coordination, "publish"):
        original(output)


@mutant(TurnSender, "_may_go", STUCK, CALM, ordering="live_robin", workload="chain", zookeeper_s=0.2)
def says_a_turn_of_which_it_does_not_know_whether_a_switch_comes_before(original, sender, each):
    return True


@mutant(TurnIntake, "over", STUCK, SHORT_BATCHES, ordering="live_robin", kind="push", flight_s=0.1, strategy="fluid")
def ends_its_batch_with_a_turn_that_waits_for_state(original, intake):
    original(intake)
    return True


@mutant(LedIntake, "over", (*LOST, *STUCK), SHORT_BATCHES, ordering="kazoo", slow_s=(0.04, 0.0, 0.0))
def works_on_what_is_ordered_when_its_batch_is_over(original, intake):
    over, intake._over = original(intake), False
    return over


@mutant(Ordering, "owes_barriers", STUCK, SHORT_BATCHES, ordering="kazoo", kind="push", strategy="fluid", slots=4)
def ends_its_batch_in_front_of_barriers_that_others_have_passed(original, order):
    return False


@mutant(Following, "close", STUCK, SHORT_BATCHES, ordering="kazoo")
def leads_on_when_its_batch_is_over(original, following):
    following._over.set()


@mutant(TurnRouterTask, "hand_over", STUCK, SHORT_BATCHES, ordering="live_robin")
def does_not_leave_how_far_it_has_come(original, task):
    with patch.object(task.coordination, "publish"):
        original(task)


@mutant(TurnRouterTask, "routed", STUCK, CALM | {"dies_at_s": 0.3, "dies_by": "session"}, ordering="live_robin")
def goes_on_without_a_session(original, task, *frame):
    with patch.object(task.coordination, "check"):
        return original(task, *frame)


@mutant(Appointments, "_confirmed", STUCK, CALM, ordering="live_robin", zookeeper_s=0.2)
def takes_it_that_all_routers_will_hear_in_time(original, appointments, what, epoch, wanted):
    return True


@mutant(TurnRouter, "may_take", STUCK, CALM, ordering="live_robin", zookeeper_s=0.2)
def passes_an_epoch_of_which_it_does_not_know_whether_it_holds(original, router, watermark):
    return True


@mutant(TurnRouter, "frame", STUCK, CALM, ordering="live_robin")
def says_barriers_with_the_next_frame(original, router, number, offset, *frame):
    """As a router does whose slots do not work in turns."""
    rows, reached = original(router, number, offset, *frame)
    kept, router.kept = getattr(router, "kept", []), [each for each in rows if each[1].kind == BARRIER]
    rows = [each for each in rows if each[1].kind != BARRIER]
    return [*((slot, row._replace(offset=offset)) for slot, row in kept), *rows], reached


# -- snapshots ---------------------------------------------------------------------------------------------------------


@mutant(
    SlotSnapshots, "captured", "snapshot", CALM,
    without=((savepoint, "_require_chains"), (Snapshotter, "_await_writers")),
    workload="keycount", strategy="fluid", mode=None, keys=1000, slots=2, begin_slots=2,
    snapshot_s=0.05, store_s=4.0, deadline_s=1.0, seconds=6.0,
)  # fmt: skip
def writes_snapshots_beside_each_other(original, snapshots, effect):
    """What follows one that is given up is a change of it, and may be there first."""
    snapshots._writing = threading.Lock()
    threading.Thread(target=snapshots._write, args=(effect,), daemon=True).start()


@mutant(Snapshots, "take", "snapshot", CALM, snapshot_s=0.1)
def leaves_a_change_out_of_a_snapshot(original, snapshots, states):
    return [replace(part, changed=part.changed[1:]) for part in original(snapshots, states)]


@mutant(Snapshots, "take", "snapshot", CALM, snapshot_s=0.1, workload="windowcount")
def takes_snapshots_without_timers(original, snapshots, states):
    return [replace(part, timers=Timers()) for part in original(snapshots, states)]


# -- coordinator -------------------------------------------------------------------------------------------------------


@mutant(
    Session, "publish", "target", CALM, strategy="fluid", mode=None, leader_dies=0.1, snapshot_s=0.1, store_fails=1.0
)
def does_not_write_its_plan_down(original, session, node, value):
    """No snapshot can be written meanwhile: notes of that are no reason not to look where units are in the end."""
    original(session, node, replace(value, steps=()) if node == PLAN else value)


@mutant(Coordinator, "inherit", "target", CALM, strategy="all_at_once", mode=None, leader_dies=0.15)
def forgets_a_plan_of_which_its_predecessor_published_nothing(original, leader, before):
    original(leader, before)
    leader._beginning = None


@mutant(LedStage, "unfinished", "target", CALM, strategy="fluid", mode=None, snapshot_s=0.1, dies_at_s=1.1)
def leaves_out_what_had_not_switched_when_the_query_died(original, stage, decided):
    return Unfinished(original(stage, decided).assignment)


@mutant(Coordinator, "_take_over", STUCK, CALM, strategy="fluid", mode=None, leader_dies=0.1)
def does_not_listen_after_it_took_over(original, leader):
    def deaf(steps):
        leader._under_way.update(dict.fromkeys(dict(steps), lambda: None))

    with patch.object(leader, "_listen", deaf):
        return original(leader)


@mutant(Coordinator, "_ended", STUCK, CALM, strategy="fluid", mode=None)
def listens_to_steps_that_are_over(original, leader, version, outcome):
    if version in leader._under_way:
        leader._under_way[version] = lambda: None
    original(leader, version, outcome)


@mutant(Coordinator, "_carry_out_one", STUCK, CALM, mode=Mode(gate="router"), strategy="all_at_once")
def never_lets_routers_go_on(original, leader, effect):
    only_resumes = isinstance(effect, protocol.PublishAssignment) and effect.assignment == leader.log.history[-1]
    if not only_resumes:
        original(leader, effect)
