"""The operator of a stage alone: all units in one place, with state in memory, and no router or slot around them."""

import numpy as np
import pyarrow as pa

from keyshift.model.keys import units_of
from keyshift.state import UnitState
from keyshift.state.memory import MemoryState
from keyshift.workloads.contract import KeyedStage, Workload


class StageAlone:
    """``operator`` and the ``states`` of all units of ``stage``, as they begin."""

    def __init__(self, workload: Workload, stage: KeyedStage) -> None:
        self.stage, self.operator = stage, stage.operator()
        self._workload, units = workload, workload.key_groups * workload.bins
        self.states: list[UnitState] = [MemoryState(self.operator.state_schema) for _ in range(units)]
        for unit, state in enumerate(self.states):
            self.operator.initial(unit, state)

    def process(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The results of ``events``, which have columns ``unit`` and ``position``."""
        return self.operator.process(events, self.states.__getitem__)

    def placed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """``events`` as a slot gets them: with their units, and the positions of a frame if they have none."""
        units = units_of(events["key"].to_numpy(), self._workload.key_groups, self._workload.bins)
        if "position" not in events.schema.names:
            events = events.append_column("position", pa.array(np.arange(events.num_rows, dtype=np.int32)))
        return events.append_column("unit", pa.array(units))
