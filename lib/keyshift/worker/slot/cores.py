"""The core of a slot in a job, over Arrow frames."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from keyshift.model.keys import UnitId, Version
from keyshift.protocol import slot as protocol
from keyshift.runtime.arrow import ArrowOperator
from keyshift.runtime.computation import Computation
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.slot import SlotCore
from keyshift.runtime.turns import TurnCore
from keyshift.state import Store, UnitState
from keyshift.wire.config import result_schema, slot_schema
from keyshift.workloads import KeyedStage

ArrowCore = SlotCore[pa.RecordBatch, pa.RecordBatch]


class Shape(NamedTuple):
    """What a slot has to know of its job. ``queue_bytes``: records that wait in the slot, at the most. ``first``: no
    stage is before its own. ``in_turns``: it stands behind an order protocol.
    """

    routers: int
    units: int
    queue_bytes: int
    first: bool = True
    in_turns: bool = False


def make_core(
    slot: int,
    stage: KeyedStage,
    store: Store,
    shape: Shape,
    states: dict[UnitId, UnitState],
    fresh: Sequence[UnitId],
    expected: Sequence[UnitId],
    version: Version,
) -> ArrowCore:
    """Make a slot's core, of ``states``, units that begin ``fresh``, and ``expected`` ones with state elsewhere."""
    operator = ArrowOperator(stage, slot_schema(stage, shape.first), result_schema(stage), placed=not shape.first)
    kind: type[protocol.SlotMachine[Any]] = protocol.TurnMachine if shape.in_turns else protocol.SlotMachine
    machine: protocol.SlotMachine[Any] = kind(slot, shape.routers, {*states, *fresh}, expected, version)
    keys = KeyAccess(operator, states)
    computation = Computation(operator, machine, keys, store, states, shape.units)
    for unit in fresh:
        computation.begin(unit)
    given = machine, operator, keys, computation, states, shape.queue_bytes, [0] * shape.routers
    return TurnCore(*given) if shape.in_turns else SlotCore(*given)
