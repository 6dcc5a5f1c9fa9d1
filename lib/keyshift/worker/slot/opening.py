"""Makes a slot at the beginning of a batch: with what it has from whoever held it before, and all its parts."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from keyshift.model.keys import Assignment, SlotId, UnitId, Version
from keyshift.ordering import Position, Setting, orderings
from keyshift.runtime.arrow import by_time
from keyshift.runtime.row import Row
from keyshift.runtime.snapshots import Snapshots
from keyshift.runtime.turns import TurnCore
from keyshift.state import UnitState
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.config import JobConfig, slot_schema
from keyshift.wire.coordination import Coordination
from keyshift.wire.faults import FaultPoints
from keyshift.wire.savepoint import SavepointStore
from keyshift.worker.attempt import AttemptWatch
from keyshift.worker.flight.client import StateClients
from keyshift.worker.flight.messages import KeysDropped
from keyshift.worker.order.following import Following
from keyshift.worker.slot.answers import SlotAnswers
from keyshift.worker.slot.background import Background
from keyshift.worker.slot.cores import Shape, make_core
from keyshift.worker.slot.effects import SlotEffects
from keyshift.worker.slot.host import SlotHost, host_for
from keyshift.worker.slot.intake import Intake, LedIntake, TurnIntake
from keyshift.worker.slot.markers import Markers
from keyshift.worker.slot.measures import Measures
from keyshift.worker.slot.shared import Shared
from keyshift.worker.slot.snapshots import SlotSnapshots
from keyshift.worker.slot.task import SlotTask
from keyshift.worker.state.arrivals import Arrivals
from keyshift.worker.turn_output import make_output
from keyshift.worker.used import tells_used

BeginWith = Callable[[Sequence[Row]], None]


class _Found(NamedTuple):
    """What there is of a slot: ``states`` and rows that were ``left`` in this process, units that begin ``fresh``, and
    ``expected`` ones, whose state ``fetch`` gets from elsewhere; it gives what was left there.
    """

    version: Version
    states: dict[UnitId, UnitState]
    left: Sequence[Row] = ()
    fresh: Sequence[UnitId] = ()
    expected: Sequence[UnitId] = ()
    fetch: Callable[[Arrivals, BeginWith], None] | None = None


def make_slots(config: JobConfig, slots: Sequence[SlotId]) -> Iterator[SlotTask]:
    """Make these ``slots``, as a batch begins with them in this process."""
    host_for(config).begin(slots)
    for slot in slots:
        yield make_slot(config, slot)


def make_slot(config: JobConfig, slot: SlotId) -> SlotTask:
    """Take the slot over from whoever held it: this process, another one, a savepoint, or nobody."""
    host = host_for(config)
    coordination = Coordination(config.endpoints.zookeeper, config.root, config.token)
    coordination.catch_up()  # with whoever held the slot before
    clients = StateClients(config.token, config.deadline_s, host.state_schema, config.chunk_bytes, config.certificate)
    handover = coordination.read(nodes.HANDOVERS[slot])
    units, store = config.key_groups * config.bins, host.store(slot)
    if handover is None:
        found = _first(config, slot, coordination.require(nodes.ASSIGNMENT).assignment)
    else:
        found = _following(slot, host, handover)
    shape = Shape(config.routers, units, config.queue_bytes, config.number == 0, config.in_turns)
    core = make_core(slot, config.make_stage(), store, shape, found.states, found.fresh, found.expected, found.version)
    if handover is not None:  # time goes on where it was: routers do not say again what they said before
        core.watermarks, core.savepoint = list(handover.watermarks), handover.savepoint
        core.log.remember(handover.log)
    core.snapshots, locations = host.snapshots.setdefault(slot, (Snapshots(config.tracks), {}))

    told = {int(name) for name in coordination.children(nodes.FAULTS)} if config.faults else set()

    def tell(fault: int) -> bool:
        """Whether this slot is to be hit: of those that come to the phase at once, one is."""
        node, me = nodes.FAULTS[fault], nodes.of_slot(slot)
        coordination.acknowledge(node, me)
        if not config.faults[fault].local:
            return False
        return wait_until(lambda: coordination.read(node), config.deadline_s, 0.01) == me  # it is there, or on its way

    shared = Shared(
        config=config,
        slot=slot,
        core=core,
        store=store,
        host=host,
        coordination=coordination,
        clients=clients,
        faults=FaultPoints(config.faults, slot, config.attempt, tell, told, config.number == 0),
        background=Background(slot),
        markers=Markers(slot),
    )
    position = handover.position if handover else coordination.read(nodes.POSITIONS[slot])
    intake, following = _intake(shared, position)
    measures = Measures(units, handover.measures if handover else None)
    savepoints = partial(SavepointStore, config.endpoints, config.job)
    snapshots = SlotSnapshots(shared, savepoints, locations, intake.stood)
    output = make_output(config, slot, position)
    effects = SlotEffects(shared, snapshots, output.promise)
    arrivals = Arrivals(shared, effects.turn, effects.incoming)

    def begin(left: Sequence[Row]) -> None:
        with effects.turn():
            intake.begin(left)

    @contextlib.contextmanager
    def working() -> Iterator[None]:
        with effects.turn(), measures.working():
            yield

    works = [*following.works(intake, working)] if following and isinstance(intake, LedIntake) else []
    if tell_used := tells_used(coordination, nodes.of_slot(slot), shared.closed):
        works.append(tell_used)
    if found.fetch is not None:
        shared.background.put(partial(found.fetch, arrivals, begin))
    else:
        intake.begin(found.left)
    if not host.warm:
        host.warm = True
        shared.background.put(partial(_warm_up, shared))
    return SlotTask(
        shared=shared,
        intake=intake,
        measures=measures,
        snapshots=snapshots,
        effects=effects,
        arrivals=arrivals,
        answers=SlotAnswers(shared, effects, measures),
        output=output,
        watch=AttemptWatch(config, coordination),
        following=following,
        works=works,
    )


def _first(config: JobConfig, slot: SlotId, assignment: Assignment) -> _Found:
    """Find what there is of a slot in the first batch of an attempt."""
    owned, savepoint = assignment.units_of(slot), config.restore
    if savepoint is None:
        return _Found(assignment.version, {}, fresh=owned)

    def restore(arrivals: Arrivals, begin: BeginWith) -> None:
        begin(())
        arrivals.restore(owned, SavepointStore(config.endpoints, config.restore_of or config.job), savepoint)

    return _Found(assignment.version, {}, expected=owned, fetch=restore)


def _following(slot: SlotId, host: SlotHost, handover: nodes.Handover) -> _Found:
    """Find what there is of a slot behind another batch."""
    if handover.address == host.server.address:
        return _Found(handover.version, dict(host.left.pop(slot)), host.left_rows.pop(slot))

    def pull(arrivals: Arrivals, begin: BeginWith) -> None:
        begin(arrivals.left_rows(handover.address) if handover.position else ())
        arrivals.pull(handover.units, handover.address)

    return _Found(handover.version, {}, expected=handover.units, fetch=pull)


def _intake(shared: Shared, position: Position | None) -> tuple[Intake, Following | None]:
    """The intake, and what follows a leader. ``position``: in the order, after the batch before or at a savepoint."""
    config, core = shared.config, shared.core
    if not isinstance(core, TurnCore):
        return Intake(core, shared.markers), None
    protocol, later, session_us = orderings.get(config.ordering), config.number > 0, config.session_ms * 1000
    merge = partial(by_time, schema=slot_schema(config.make_stage(), not later))
    setting = Setting(config.routers, config.heartbeat_us, later, merge, session_us, apart=config.apart)
    position = (position or Position.begin(setting, core.machine.version)).read_from(config.order_begin(shared.slot))
    core.begin([place.version for place in position.places])
    given = core, shared.markers, protocol.open(setting, position), config.queue_bytes
    if not protocol.leads:
        return TurnIntake(*given), None
    following = Following(config, shared.slot, position.log.offset + 1)
    return LedIntake(*given, following), following


def _warm_up(shared: Shared) -> None:
    """Do everything once that is slow the first time: calls, here to ourselves, and memory that was never touched."""
    reserve = b"\1" * shared.config.reserve_bytes
    del reserve
    own = shared.host.server.address
    shared.clients.tell(own, KeysDropped())
    shared.clients.keys(own, [])
