"""The core of a slot in a job, over Arrow frames."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from keyshift.executor.config import JobConfig, result_schema, slot_schema
from keyshift.protocol import slot as protocol
from keyshift.runtime.arrow import ArrowOperator
from keyshift.runtime.computation import Computation
from keyshift.runtime.key_access import KeyAccess
from keyshift.runtime.slot import SlotCore
from keyshift.state import Store, UnitState

ArrowCore = SlotCore[pa.RecordBatch, pa.RecordBatch]


def make_core(
    config: JobConfig,
    slot: int,
    store: Store,
    states: dict[int, UnitState],
    fresh: Sequence[int],
    expected: Sequence[int],
    version: int,
) -> ArrowCore:
    """Of a slot with ``states``, units that begin ``fresh``, and ``expected`` ones, whose state is elsewhere."""
    stage = config.make_stage()
    operator = ArrowOperator(stage, slot_schema(stage), result_schema(stage))
    machine: protocol.SlotMachine[Any] = protocol.SlotMachine(
        slot, config.routers, {*states, *fresh}, expected, version
    )
    keys = KeyAccess(operator, states)
    computation = Computation(operator, machine, keys, store, states, config.key_groups * config.bins)
    for unit in fresh:
        computation.begin(unit)
    watermarks = [0] * config.routers
    return SlotCore(machine, operator, keys, computation, states, config.queue_bytes, watermarks)
