"""A workload run in this process, one frame after the other: all that a job does, without a service or an engine.

What a new workload is tried with before it meets a cluster, and what the tests of the verdict start from:

    >>> from keyshift.model.keys import Assignment
    >>> from keyshift.lab.judge.sequential import run_sequentially
    >>> from keyshift.results.verdict import judge
    >>> from keyshift.workloads import workloads
    >>> w = workloads.get("keycount")(key_groups=8, keys=50, skew=0.5, state_bytes=32, seed=1)
    >>> run = run_sequentially(w, [Assignment.contiguous(8, 2)])
    >>> judge(w, run.events, run.results, run.final, run.ownership, times=run.times).ok
    True
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from keyshift.model.frames import RESULT_FIELDS, empty
from keyshift.model.keys import Assignment, Step
from keyshift.protocol.router import RouterMachine
from keyshift.results.verdict import Ownership
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.router import RouterCore
from keyshift.runtime.slot import Cut, Leave, Moved
from keyshift.state import Store, backends
from keyshift.traffic.topics import positions
from keyshift.wire.config import slot_schema
from keyshift.worker.slot.cores import ArrowCore, Shape, make_core
from keyshift.workloads import ORIGIN, KeyedStage, Workload
from keyshift.workloads.times import Times

_FRAME_US = 10_000
_BYTES = 1 << 20  # of a piece of state
_QUEUE_BYTES = 1 << 30


def _in_time() -> bool:
    """Nothing is urgent: all that has waited is worked off at once."""
    return True


@dataclass(frozen=True)
class SequentialRun:
    """What a run leaves behind, in the form ``judge`` takes."""

    events: pd.DataFrame
    results: pd.DataFrame
    final: list[pd.DataFrame]
    assignments: list[Assignment]
    frames: pd.DataFrame
    timers: list[pd.DataFrame]  # of the first stage
    ownership: list[Ownership]  # of each stage

    @property
    def times(self) -> Times:
        """What frames and timers say."""
        return Times(self.frames, self.timers, self.assignments)


def run_sequentially(
    workload: Workload,
    assignments: list[Assignment],
    routers: int = 2,
    frames: int = 10,
    events_per_frame: int = 20,
    backend: str = "memory",
) -> SequentialRun:
    """Put ``frames`` frames per router through slots, under each assignment in turn for an equal share of them.

    Routers and slots are those of a job, ``RouterCore`` and ``SlotCore``, with one frame under way at a time; state and
    timers are handed over by export and install, or by reference. At the end all routers stand at a savepoint: timers
    that are not due by then stay. Raises BadInput for an unknown backend.
    """
    kind = backends.get(backend)
    with ExitStack() as stack:
        settings = stack.enter_context(kind.served(kind.settings(), "sequential", Path(tempfile.gettempdir())))
        stores = [
            stack.enter_context(closing(kind.open(f"sequential/{each.name}", each.operator().state_schema, settings)))
            for each in workload.stages
        ]
        return _run_in(stores, workload, assignments, routers, frames, events_per_frame)


def _run_in(
    stores: Sequence[Store],
    workload: Workload,
    assignments: list[Assignment],
    routers: int,
    frames: int,
    events_per_frame: int,
) -> SequentialRun:
    [source], (stage, *_) = workload.sources, workload.stages
    chain = _chain(workload, workload.stages, stores, assignments, routers)
    partitions = [source.partition(router) for router in range(routers)]
    events: list[pd.DataFrame] = []
    ends: list[tuple[int, int, int]] = []  # of frames: router, offset, watermark
    now_us = 0
    for offset in range(frames):
        for each in chain:
            each.migrate(assignments[offset * len(assignments) // frames])
        times = offset * _FRAME_US + np.arange(events_per_frame, dtype=np.int64) * _FRAME_US // events_per_frame
        now_us, watermark = int(times[-1]) + 1, int(times[-1])
        for router, partition in enumerate(partitions):
            batch = stage.mapped(partition.take(times))
            position = positions(np.array([batch.num_rows]))
            events.append(batch.to_pandas().assign(router=np.int32(router), offset=offset, position=position))
            chain[0].frame(router, offset, batch, watermark, now_us)
            ends.append((router, offset, watermark))
    chain[0].end(now_us)
    for store in stores:
        store.checkpoint()
    units = [
        (number, unit, slot, state)
        for number, each in enumerate(chain)
        for slot, core in enumerate(each.slots)
        for unit, state in sorted(core.states.items())
    ]
    *_, last = workload.stages
    return SequentialRun(
        pd.concat(events, ignore_index=True),
        chain[-1].results.table([*RESULT_FIELDS, *last.result_fields]),
        [
            part.to_pandas().assign(stage=number, unit=unit, slot=slot)
            for number, unit, slot, state in units
            for part in state.export(_BYTES)
        ],
        assignments,
        pd.DataFrame(ends, columns=["router", "offset", "watermark"]),
        [
            state.timers.export().to_pandas().assign(unit=unit, slot=slot)
            for number, unit, slot, state in units
            if number == 0
        ],
        [Ownership(assignments)] * len(chain),
    )


def _chain(
    workload: Workload,
    stages: Sequence[KeyedStage],
    stores: Sequence[Store],
    assignments: list[Assignment],
    routers: int,
) -> list["_DrivenStage"]:
    """The stages, each of which knows the next one."""
    chain: list[_DrivenStage] = []
    slots = 1 + max(max(each.owner) for each in assignments)
    for number in reversed(range(len(stages))):
        senders = slots if number else routers
        following = chain[0] if chain else None
        chain.insert(
            0, _DrivenStage(workload, stages[number], stores[number], assignments[0], senders, slots, following, number)
        )
    return chain


class _DrivenStage:
    """Drives the cores of all routers and slots of a stage: what one of them says to another has arrived before
    anything else.
    """

    def __init__(
        self,
        workload: Workload,
        stage: KeyedStage,
        store: Store,
        first: Assignment,
        routers: int,
        slots: int,
        following: "_DrivenStage | None",
        number: int,
    ) -> None:
        placed = number > 0
        split = ArrowSplit(slot_schema(stage, not placed), slots, workload.key_groups, workload.bins, placed)
        self._assignment, self._store, self._stage = first, store, stage
        self._following, self._frames = following, 0
        self._routers = [RouterCore(RouterMachine(first), slots, _QUEUE_BYTES, split) for _ in range(routers)]
        self.nothing = empty(pa.schema([*stage.events, *(ORIGIN if placed else ())]))
        shape = Shape(routers, workload.key_groups * workload.bins, _QUEUE_BYTES, not placed)
        self.slots = [
            make_core(slot, stage, store, shape, {}, first.units_of(slot), [], first.version) for slot in range(slots)
        ]
        self.results = _Results()

    def migrate(self, assignment: Assignment) -> None:
        """Everybody hears of one step that leads to ``assignment``; it begins with the next frame."""
        if assignment == self._assignment:
            return
        step = Step(tuple(self._assignment.moves_to(assignment)))
        for core in self.slots:
            core.published(assignment.version, [(assignment.version, step)])
        for router in self._routers:
            router.machine.announce(assignment)
        self._assignment = assignment

    def frame(self, router: int, offset: int, events: pa.RecordBatch, watermark: int, now_us: int) -> None:
        """A frame, until nothing more follows from it."""
        rows, _ = self._routers[router].frame(router, offset, events, watermark)
        for slot, row in rows:
            self.slots[slot].on_rows([row], now_us, _in_time)
            while any(self._carry_out(core, now_us) for core in self.slots):
                pass
        for slot, core in enumerate(self.slots):
            self._give(slot, core, now_us)

    def _give(self, slot: int, core: ArrowCore, now_us: int) -> None:
        """The results of a slot: to the next stage, or to those who read them."""
        for result in core.take_results():
            if isinstance(result, Moved):
                continue  # what its old slot has sent has arrived
            if isinstance(result, Cut):
                if self._following:
                    self._following.stop(slot, result.name, now_us)
            elif self._following:
                self._following.from_slot(slot, result, 0, now_us)
            else:
                self.results.add(result, slot, now_us)
        if self._following:
            self._following.from_slot(slot, None, core.watermark, now_us)

    def from_slot(self, slot: int, results: pa.RecordBatch | None, watermark: int, now_us: int) -> None:
        """Results of a slot of the stage before, or only how far time has come there."""
        self._frames += 1
        events = self.nothing if results is None else self._stage.from_results(results)
        self.frame(slot, self._frames, events, watermark, now_us)

    def stop(self, router: int, savepoint: str, now_us: int) -> None:
        """A router comes to a savepoint."""
        self._routers[router].machine.request_savepoint(savepoint)
        self.frame(router, self._frames, self.nothing, 0, now_us)

    def _carry_out(self, core: ArrowCore, now_us: int) -> bool:
        """What follows for other slots, and for records that have waited. False if nothing did."""
        effects = core.take_effects()
        for effect in effects:
            if isinstance(effect, Leave):  # a step of plain pushes has no other effect that somebody else must hear of
                send = effect.send
                if reference := effect.state.hand_over():
                    state = self._store.adopt(send.unit, reference)
                else:
                    state = self._store.unit(send.unit)
                    state.install(effect.state.export(_BYTES))
                state.timers.install(effect.state.timers.export())
                self.slots[send.destination].arrived(send.unit, send.version, send.hop, send.routers, state, None)
                core.acknowledged(send.unit)
        core.drain(now_us, _in_time)
        return bool(effects)

    def end(self, now_us: int) -> None:
        """All routers come to a savepoint, and no event follows."""
        for number in range(len(self._routers)):
            self.stop(number, "end", now_us)


class _Results:
    """What all slots gave, one log per slot."""

    def __init__(self) -> None:
        self._parts: list[pd.DataFrame] = []
        self._log_ends: Counter[int] = Counter()

    def add(self, result: pa.RecordBatch, slot: int, arrived_us: int) -> None:
        where = {"slot": np.int32(slot), "log_offset": self._log_ends[slot], "arrived_us": arrived_us}
        self._parts.append(result.to_pandas().assign(**where))
        self._log_ends[slot] += 1

    def table(self, fields: Iterable[pa.Field]) -> pd.DataFrame:
        columns = [*(field.name for field in fields), "slot", "log_offset", "arrived_us"]
        return pd.concat(self._parts, ignore_index=True)[columns]
