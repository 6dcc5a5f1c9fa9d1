"""The shell with one bug each, and what a run has to say about it (any of the checks; see ``one_run``).

Each mutant gets what it stands in for, and gives what is there instead.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from nodes import Session
from one_run import Outcome, run

from keyshift.driver.attempt import Unfinished
from keyshift.driver.leader import Coordinator
from keyshift.driver.snapshotter import Snapshotter
from keyshift.driver.stage import LedStage
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.keys import Mode
from keyshift.protocol import coordinator as protocol
from keyshift.protocol.slot import Open, SlotMachine
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.protocol_log import ProtocolLog
from keyshift.runtime.router import RouterCore
from keyshift.runtime.snapshots import Snapshots
from keyshift.runtime.succession import Succession
from keyshift.state.timers import Timers
from keyshift.wire import savepoint
from keyshift.wire.nodes import PLAN
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.flight import messages
from keyshift.worker.flight.client import StateClients
from keyshift.worker.output import NextStage
from keyshift.worker.router import Routing
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.host import SlotHost
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.slot.task import SlotTask
from keyshift.worker.state import outbox
from keyshift.worker.state.arrivals import Arrivals
from keyshift.worker.state.departures import Departures
from keyshift.worker.state.outbox import Outbox
from keyshift.worker.tasks import RouterTask

Original = Callable[..., Any]

CALM = {
    "moves": 0.0, "batch_s": None, "expires_s": None, "fails": 0.0, "leader_dies": 0.0, "overlaps": 0.0,
    "restarts": False, "dies_at_s": None, "deadline_s": 3.0, "zookeeper_s": 0.005, "queue_bytes": 1 << 26,
    "store_s": 0.0, "store_fails": 0.0,
}  # fmt: skip
ROUGH = CALM | {"fails": 0.2, "flight_s": 0.02, "deadline_s": 4.0}
SHORT_BATCHES = CALM | {"moves": 1.0, "batch_s": 0.25}
STUCK = ("late", "never", "MigrationFailed", "KeyshiftError", "QueryDied")
LOST = ("lost", "never")
SNAPSHOT = ("snapshot",)
REMOTE = Mode(transfer="remote", background=False)
ACCESS = Mode(transfer="access", background=True)
LENT = Mode(transfer="fetch", fetch_back=3)


@dataclass(frozen=True)
class Mutant:
    owner: Any
    name: str
    make: Callable[[Original], Any]
    checks: tuple[str, ...]
    pinned: dict[str, Any]
    without: tuple[tuple[Any, str], ...] = ()  # what else does nothing: it would keep the bug from doing harm

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """The bug is in the shell meanwhile."""
        with contextlib.ExitStack() as patches:
            patches.enter_context(patch.object(self.owner, self.name, self.make(getattr(self.owner, self.name))))
            for owner, name in self.without:
                patches.enter_context(patch.object(owner, name, lambda *_: None))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(
    owner: Any,
    name: str,
    checks: tuple[str, ...],
    pinned: dict[str, Any],
    mutants: dict[str, Mutant] = MUTANTS,
    without: tuple[tuple[Any, str], ...] = (),
    **more: Any,
) -> Callable[[Callable[[Original], Any]], Callable[[Original], Any]]:
    def register(make: Callable[[Original], Any]) -> Callable[[Original], Any]:
        mutants[make.__name__] = Mutant(owner, name, make, checks, pinned | more, without)
        return make

    return register


def hunt(name: str, seeds: int) -> Outcome | None:
    """The first run of these seeds that sees the mutant."""
    return hunted(MUTANTS[name], seeds, run)


def hunted(mutant: Mutant, seeds: int, run: Callable[..., Outcome]) -> Outcome | None:
    """The first run of these seeds that sees ``mutant``."""
    with mutant.there():
        for seed in range(seeds):
            outcome = run(seed, **mutant.pinned)
            if outcome.problems.keys() & set(mutant.checks):
                return outcome
    return None


# -- slots: from batch to batch ----------------------------------------------------------------------------------------


@mutant(SlotTask, "seal", STUCK, SHORT_BATCHES)
def leaves_a_unit_out_of_its_handover(original: Original) -> Any:
    def seal(self: Any) -> None:
        serving = self.shared.core.machine.serving
        serving.discard(min(serving, default=None))
        original(self)

    return seal


@mutant(SlotTask, "settled", (*LOST, *STUCK, "wrong"), SHORT_BATCHES)
def does_not_wait_for_state_at_the_end_of_a_batch(original: Original) -> Any:
    def settled(self: Any) -> bool:
        original(self)
        return True

    return settled


@mutant(SlotTask, "settled", LOST, SHORT_BATCHES, frame_s=0.008)
def forgets_at_the_end_of_a_batch_what_was_drained(original: Original) -> Any:
    def settled(self: Any) -> bool:
        with self.shared.lock:
            self.shared.core.take_results()
        return bool(original(self))

    return settled


@mutant(Arrivals, "take", ("wrong",), SHORT_BATCHES, workload="windowcount")
def takes_units_over_without_their_timers(original: Original) -> Any:
    """From the batch or savepoint before."""

    def take(self: Any, shipments: list[Any]) -> list[bool]:
        return original(self, [p if p.version else replace(p, timers=None) for p in shipments])  # type: ignore[no-any-return]

    return take


@mutant(ProtocolLog, "remember", ("log",), SHORT_BATCHES)
def forgets_its_log_at_the_end_of_a_batch(original: Original) -> Any:
    return lambda self, events: None


@mutant(SavepointStore, "write", ("ProtocolViolation",), CALM)
def writes_savepoints_without_a_unit(original: Original) -> Any:
    def write(self: Any, savepoint: str, slot: int, states: Any, *more: Any) -> Any:
        return original(self, savepoint, slot, list(states)[1:], *more)

    return write


@mutant(SlotSnapshots, "_written", ("ProtocolViolation",), CALM, snapshot_s=0.05, keys=30)
def forgets_a_part_that_it_has_written(original: Original) -> Any:
    """Of a unit that has others."""

    def _written(self: Any, effect: Any, progress: Any) -> Any:
        answer = original(self, effect, progress)
        for places in self._places.values():
            del places[2:]
        return answer

    return _written


@mutant(Snapshots, "forget", ("ProtocolViolation",), CALM, snapshot_s=0.05, keys=30, store_fails=0.2)
def goes_on_behind_a_part_that_could_not_be_written(original: Original) -> Any:
    return lambda self, parts: None


@mutant(SlotMachine, "stopping", ("wrong", "foreign"), CALM, workload="windowcount", restarts=True)
def lets_time_pass_behind_a_savepoint(original: Original) -> Any:
    return property(lambda self: False)


# -- slots: state that comes and goes ----------------------------------------------------------------------------------


@mutant(SlotEffects, "_shipment", ("ProtocolViolation", "foreign", "wrong"), CALM, kind="push")
def keeps_what_it_sends(original: Original) -> Any:
    def _shipment(self: Any, leave: Any) -> Any:
        shipment = original(self, leave)
        self._shared.core.states[leave.send.unit] = leave.state
        return shipment

    return _shipment


@mutant(Arrivals, "take", LOST, CALM, kind="push", slow_s=(0.0, 0.04), routers=2)
def forgets_what_was_drained_between_two_rows(original: Original) -> Any:
    def take(self: Any, shipments: list[Any]) -> Any:
        taken = original(self, shipments)
        with self._shared.lock:
            self._shared.core.take_results()
        return taken

    return take


@mutant(Arrivals, "_awaits", STUCK, ROUGH, kind="push")
def takes_what_comes_twice(original: Original) -> Any:
    return lambda self, shipment: True


@mutant(Departures, "tell", STUCK, CALM, mode=LENT, strategy="all_at_once", routers=3)
def does_not_say_that_a_lent_unit_stays(original: Original) -> Any:
    def tell(self: Any, slot: int, messages: list[Any], mode: Mode) -> None:
        if some := [message for message in messages if not isinstance(message, Open)]:
            original(self, slot, some, mode)

    return tell


@mutant(SlotMachine, "is_lent", STUCK, ROUGH, mode=LENT, strategy="all_at_once", routers=3, slow_s=(0.0, 0.04, 0.04))
def hears_twice_that_a_lent_unit_stays(original: Original) -> Any:
    return lambda self, unit, version: True


# -- what leaves -------------------------------------------------------------------------------------------------------


@mutant(Outbox, "_send", STUCK, ROUGH, kind="push")
def does_not_send_again_what_was_not_acknowledged(original: Original) -> Any:
    def _send(self: Any, items: Any) -> None:
        with self._lock:
            self._underway.clear()
        original(self, items)

    return _send


@mutant(Outbox, "acknowledged", STUCK, CALM, kind="push")
def sends_again_what_was_acknowledged(original: Original) -> Any:
    def acknowledged(self: Any, unit: int) -> Any:
        shipment = original(self, unit)
        if shipment is not None:
            with self._lock:
                self._underway[unit] = shipment
        return shipment

    return acknowledged


@mutant(outbox, "again", (*STUCK, *LOST), ROUGH)
def tries_only_once(original: Original) -> Any:
    def again(name: str, closed: Any, act: Callable[[], None]) -> None:
        with contextlib.suppress(ServiceUnavailable):
            act()

    return again


@mutant(StateClients, "push", STUCK, ROUGH, kind="push")
def does_not_hear_that_sending_failed(original: Original) -> Any:
    def push(self: Any, *arguments: Any) -> None:
        with contextlib.suppress(ServiceUnavailable):
            original(self, *arguments)

    return push


@mutant(messages, "fragments", ("wrong",), CALM, kind="push", workload="windowcount")
def sends_units_without_their_timers(original: Original) -> Any:
    def fragments(about: Any, batches: Any, schema: Any, timers: Any = None) -> Any:
        return original(about, batches, schema)

    return fragments


# -- keys that are elsewhere -------------------------------------------------------------------------------------------


@mutant(SlotEffects, "_shipment", ("wrong", *STUCK), CALM, kind="access")
def lends_nothing(original: Original) -> Any:
    """Keys that stay are nowhere."""

    def _shipment(self: Any, leave: Any) -> Any:
        shipment = original(self, leave)
        self._shared.host.lent.pop((leave.send.unit, leave.send.version), None)
        return shipment

    return _shipment


@mutant(SlotHost, "message", ("wrong", *STUCK), CALM, kind="access")
def drops_all_that_is_lent(original: Original) -> Any:
    """When one unit is asked for no more."""

    def message(self: Any, message: Any) -> None:
        original(self, message)
        if isinstance(message, messages.KeysDropped):
            self.lent.clear()

    return message


@mutant(SlotHost, "keys", ("wrong",), ROUGH, mode=ACCESS, strategy="all_at_once", routers=3, frame_s=0.008)
def takes_keys_away_with_the_answer(original: Original) -> Any:
    """Which may not arrive."""

    def keys(self: Any, stay: Any, keys: list[int]) -> Any:
        found = original(self, stay, keys)
        self.forget(stay, [key for key, _ in found])
        return found

    return keys


@mutant(SlotHost, "write", ("wrong",), CALM, mode=REMOTE, strategy="all_at_once")
def forgets_what_is_written_back(original: Original) -> Any:
    return lambda self, *_: None


@mutant(KeyAccess, "_misses_timers", ("wrong",), CALM, mode=ACCESS, strategy="all_at_once", workload="windowcount")
def fires_timers_of_keys_that_are_elsewhere(original: Original) -> Any:
    return lambda self, unit, watermark, now_us: False


# -- routers -----------------------------------------------------------------------------------------------------------


@mutant(ArrowSplit, "__call__", STUCK, CALM)
def routes_by_the_assignment_before(original: Original) -> Any:
    """For one frame behind its barrier."""

    def split(self: Any, events: Any, assignment: Any) -> Any:
        before, self._before = getattr(self, "_before", assignment), assignment
        return original(self, events, before)

    return split


@mutant(RouterCore, "resume", LOST, CALM, mode=Mode(gate="router"), strategy="all_at_once")
def forgets_what_it_kept_back(original: Original) -> Any:
    def resume(self: Any) -> list[Any]:
        original(self)
        return []

    return resume


@mutant(RouterTask, "resume", LOST, CALM, mode=Mode(gate="router"), strategy="fluid", batch_s=0.25)
def forgets_at_the_end_of_a_batch_what_it_kept_back(original: Original) -> Any:
    return lambda self: []


@mutant(RouterTask, "__init__", LOST, CALM, restarts=True)
def says_that_a_savepoint_is_one_frame_later(original: Original) -> Any:
    def init(self: Any, config: Any) -> None:
        original(self, config)
        acknowledge = self.coordination.acknowledge
        self.coordination.acknowledge = lambda node, value: acknowledge(node, replace(value, offset=value.offset + 1))

    return init


# -- slots that are routers of the next stage --------------------------------------------------------------------------


@mutant(Succession, "keep", ("reordered",), CALM, workload="chain", strategy="fluid", keys=30, slow_s=(0.3, 0.0))
def lets_results_of_a_new_slot_overtake_those_of_the_old_one(original: Original) -> Any:
    return lambda self, row: False


@mutant(
    NextStage, "_announced", ("lost", "wrong"), CALM, workload="chain", snapshot_s=0.1, dies_at_s=1.5, slow_s=(0.3, 0.0)
)
def begins_a_snapshot_wherever_the_results_of_the_slot_are_cut(original: Original) -> Any:
    def announced(self: Any, raw: Any) -> None:
        original(self, raw)
        Routing._announced(self, raw)

    return announced


# -- snapshots ---------------------------------------------------------------------------------------------------------


@mutant(
    SlotSnapshots, "captured", SNAPSHOT, CALM,
    without=((savepoint, "_require_chains"), (Snapshotter, "_await_writers")),
    workload="keycount", strategy="fluid", mode=None, keys=1000, slots=2, begin_slots=2,
    snapshot_s=0.05, store_s=4.0, deadline_s=1.0, seconds=6.0,
)  # fmt: skip
def writes_snapshots_beside_each_other(original: Original) -> Any:
    """What follows one that is given up is a change of it, and may be there first."""

    def captured(self: Any, effect: Any) -> None:
        self._writing = threading.Lock()
        threading.Thread(target=self._write, args=(effect,), daemon=True).start()

    return captured


@mutant(Snapshots, "take", SNAPSHOT, CALM, snapshot_s=0.1)
def leaves_a_change_out_of_a_snapshot(original: Original) -> Any:
    return lambda self, states: [replace(part, changed=part.changed[1:]) for part in original(self, states)]


@mutant(Snapshots, "take", SNAPSHOT, CALM, snapshot_s=0.1, workload="windowcount")
def takes_snapshots_without_timers(original: Original) -> Any:
    return lambda self, states: [replace(part, timers=Timers()) for part in original(self, states)]


# -- coordinator -------------------------------------------------------------------------------------------------------


@mutant(Session, "publish", ("target",), CALM, strategy="fluid", mode=None, leader_dies=0.1)
def does_not_write_its_plan_down(original: Original) -> Any:
    return lambda self, node, value: original(self, node, replace(value, steps=()) if node == PLAN else value)


@mutant(Coordinator, "inherit", ("target",), CALM, strategy="all_at_once", mode=None, leader_dies=0.15)
def forgets_a_plan_of_which_its_predecessor_published_nothing(original: Original) -> Any:
    def inherit(self: Any, before: Any) -> None:
        original(self, before)
        self._beginning = None

    return inherit


@mutant(LedStage, "unfinished", ("target",), CALM, strategy="fluid", mode=None, snapshot_s=0.1, dies_at_s=1.1)
def leaves_out_what_had_not_switched_when_the_query_died(original: Original) -> Any:
    return lambda self, decided: Unfinished(original(self, decided).assignment)


@mutant(Coordinator, "_take_over", STUCK, CALM, strategy="fluid", mode=None, leader_dies=0.1)
def does_not_listen_after_it_took_over(original: Original) -> Any:
    def _take_over(self: Any) -> Any:
        with patch.object(self, "_listen_to", lambda version: None):
            return original(self)

    return _take_over


@mutant(Coordinator, "_carry_out_one", STUCK, CALM, mode=Mode(gate="router"), strategy="all_at_once")
def never_lets_routers_go_on(original: Original) -> Any:
    def _carry_out_one(self: Any, effect: Any) -> None:
        only_resumes = isinstance(effect, protocol.PublishAssignment) and effect.assignment == self.log.history[-1]
        if not only_resumes:
            original(self, effect)

    return _carry_out_one
