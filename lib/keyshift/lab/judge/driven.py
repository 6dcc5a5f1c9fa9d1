"""Drives the cores of all routers and slots of a stage: what one says to another has arrived before anything else."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.model.frames import empty
from keyshift.model.keys import Assignment, Step
from keyshift.protocol.router import RouterMachine
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.router import RouterCore
from keyshift.runtime.slot import Cut, Leave, Moved
from keyshift.state import Store
from keyshift.wire.config import slot_schema
from keyshift.worker.slot.cores import ArrowCore, Shape, make_core
from keyshift.workloads import KeyedStage, Workload

_PIECE_BYTES = 1 << 20  # of state
_QUEUE_BYTES = 1 << 30


def _in_time() -> bool:
    """Say that nothing is urgent: all that has waited is worked off at once."""
    return True


class DrivenStage:
    """The ``number``-th stage. ``store``: of its slots; ``routers``: how many; ``following``: the next stage."""

    def __init__(
        self,
        workload: Workload,
        stage: KeyedStage,
        store: Store,
        first: Assignment,
        routers: int,
        slots: int,
        following: "DrivenStage | None",
        number: int,
    ) -> None:
        placed = number > 0
        split = ArrowSplit(slot_schema(stage, not placed), slots, workload.key_groups, workload.bins, placed)
        self._assignment, self._store, self._stage = first, store, stage
        self._following, self._frames = following, 0
        self._routers = [RouterCore(RouterMachine(first), slots, _QUEUE_BYTES, split) for _ in range(routers)]
        self.nothing = stage.nothing if placed else empty(stage.events)
        shape = Shape(routers, workload.key_groups * workload.bins, _QUEUE_BYTES, not placed)
        self.slots = [
            make_core(slot, stage, store, shape, {}, first.units_of(slot), [], first.version) for slot in range(slots)
        ]
        self.results = DrivenResults()

    def migrate(self, assignment: Assignment) -> None:
        """Tell everybody of one step that leads to ``assignment``; it begins with the next frame."""
        if assignment == self._assignment:
            return
        step = Step(tuple(self._assignment.moves_to(assignment)))
        for core in self.slots:
            core.published(assignment.version, [(assignment.version, step)])
        for router in self._routers:
            router.machine.announce(assignment)
        self._assignment = assignment

    def frame(self, router: int, offset: int, events: pa.RecordBatch, watermark: int, now_us: int) -> None:
        """Put a frame through a router, until nothing more follows from it."""
        rows, _ = self._routers[router].frame(router, offset, events, watermark, now_us)
        for slot, row in rows:
            self.slots[slot].on_rows([row], now_us, _in_time)
            while any(self._carry_out(core, now_us) for core in self.slots):
                pass
        for slot, core in enumerate(self.slots):
            self._give(slot, core, now_us)

    def _give(self, slot: int, core: ArrowCore, now_us: int) -> None:
        """Give the results of a slot to the next stage, or to those who read them."""
        for result in core.take_results():
            if isinstance(result, Moved):
                continue  # what its old slot has sent has arrived
            if isinstance(result, Cut):
                if self._following:
                    self._following.stop(slot, result.name, now_us)
            elif self._following:
                self._following.from_slot(slot, result, now_us)
            else:
                self.results.add(result, slot, now_us)
        if self._following:
            self._following.from_slot(slot, None, now_us)

    def from_slot(self, slot: int, results: pa.RecordBatch | None, now_us: int) -> None:
        """Take results of a slot of the stage before; None lets what is due here go out."""
        self._frames += 1
        events = self.nothing if results is None else self._stage.from_results(results)
        self.frame(slot, self._frames, events, 0, now_us)

    def stop(self, router: int, savepoint: str, now_us: int) -> None:
        """Bring a router to a savepoint."""
        self._routers[router].machine.request_savepoint(savepoint)
        self.frame(router, self._frames, self.nothing, 0, now_us)

    def _carry_out(self, core: ArrowCore, now_us: int) -> bool:
        """Do what follows for other slots, and for records that have waited. False if nothing did."""
        effects = core.take_effects()
        for effect in effects:
            if isinstance(effect, Leave):  # a step of plain pushes has no other effect that somebody else must hear of
                send = effect.send
                if reference := effect.state.hand_over():
                    state = self._store.adopt(send.unit, reference)
                else:
                    state = self._store.unit(send.unit)
                    state.install(effect.state.export(_PIECE_BYTES))
                state.timers.install(effect.state.timers.export())
                self.slots[send.destination].arrived(send.unit, send.version, send.hop, send.routers, state, None)
                core.acknowledged(send.unit)
        core.drain(now_us, _in_time)
        return bool(effects)

    def end(self, now_us: int) -> None:
        """Bring all routers to a savepoint, behind which no event follows."""
        for number in range(len(self._routers)):
            self.stop(number, "end", now_us)


class DrivenResults:
    """What all slots gave, one log per slot."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._places: list[tuple[int, int, int]] = []  # of each: slot, offset in its log, when it arrived
        self._log_ends: Counter[int] = Counter()

    def add(self, result: pa.RecordBatch, slot: int, arrived_us: int) -> None:
        """Add results of a ``slot``."""
        self._parts.append(result)
        self._places.append((slot, self._log_ends[slot], arrived_us))
        self._log_ends[slot] += 1

    def table(self, schema: pa.Schema) -> pd.DataFrame:
        """All results, in the columns of ``schema`` and of where they are."""
        parts = [part.select(schema.names) for part in self._parts]
        results = pa.Table.from_batches(parts, schema).to_pandas()
        rows = [part.num_rows for part in parts]
        places = np.array(self._places, np.int64).reshape(-1, 3)  # also if there are none
        slot, log_offset, arrived_us = np.repeat(places, rows, axis=0).T
        return results.assign(slot=slot.astype(np.int32), log_offset=log_offset, arrived_us=arrived_us)
