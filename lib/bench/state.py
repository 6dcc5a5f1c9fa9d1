"""``make bench-state``: what the stores of state cost, side by side.

The core of one slot gets frames of ``keycount``, as a task of Spark would give them, without Spark: nothing but the
store differs between the columns. The large migration moves a state of some GiB in RocksDB from one store to another,
unit by unit in the parts in which Flight would carry them, and looks at the memory of the process that has both.
Whole runs (``state_runs``) show what a chain of stages, snapshots and a death cost.
"""

import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import pyarrow as pa
import typer

from bench.measurements import Measurement, table
from bench.state_runs import whole_runs
from keyshift.clock import SECOND_US
from keyshift.experiment.parts import JobPart
from keyshift.model.keys import Assignment
from keyshift.program import run_program
from keyshift.progress import tell
from keyshift.runtime.arrow import ArrowSplit
from keyshift.runtime.row import BARRIER, DATA, Row
from keyshift.state import Store, UnitState, backends
from keyshift.wire.config import slot_schema
from keyshift.worker.slot.cores import Shape, make_core
from keyshift.workloads import Workload
from keyshift.workloads.keycount import KeyCount

VALUE_BYTES, KEYS, GROUPS, ROUTER_ROWS = 4096, 10_000, 128, (20, 50, 200)
# Time per event, times that of memory. There is no aim for hybrid.
AT_MOST: dict[str, float | None] = {"rocksdb": 1 / 0.5, "remote": 1 / 0.2, "hybrid": None}
LARGE_MIB, LARGE_GROUPS, LARGE_RSS_MIB = 4096, 1024, 1536
CHUNK_BYTES = JobPart().chunk_bytes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Slot:
    """One slot that owns everything, and frames for it."""

    def __init__(self, store: Store, workload: Workload, events: int) -> None:
        [source], [stage] = workload.sources, workload.stages
        self._assignment = Assignment.contiguous(workload.key_groups, 1)
        version, units = self._assignment.version, workload.key_groups
        self._core = make_core(0, stage, store, Shape(1, units, 1 << 30), {}, self._assignment.units_of(0), [], version)
        self._core.on_rows([Row(BARRIER, 0, version, 0, 0)], 0, lambda: True)
        self._split = ArrowSplit(slot_schema(stage), 1, units, 1)
        self._partition, self._events, self._frames = source.partition(0), events, 0

    def seconds(self, frames: int) -> float:
        """Seconds for the next ``frames``."""
        rows = []
        for number in range(self._frames, self._frames + frames):
            events = self._partition.take(np.arange(self._events, dtype=np.int64) + number * 1000)
            payload = self._split(events, self._assignment)[0]
            rows.append(Row(DATA, 0, self._assignment.version, number, number * 1000, payload))
        self._frames += frames
        begin = time.perf_counter()
        for row in rows:
            self._core.on_rows([row], row.offset * 20_000, lambda: True)
            self._core.take_results()
        return time.perf_counter() - begin


def throughput(repetitions: int, frames_of: int) -> list[Measurement]:
    """Microseconds per event of each store beside memory, in turn; after as many events that warm both."""
    found = []
    workload = KeyCount(keys=KEYS, state_bytes=VALUE_BYTES, key_groups=GROUPS, skew=0.8, seed=1)
    schema = workload.stages[0].operator().state_schema
    for events in ROUTER_ROWS:
        frames = frames_of // events
        with ExitStack() as stack:
            slots = {}
            for name in ("memory", *AT_MOST):
                kind = backends.get(name)
                settings = stack.enter_context(kind.served(kind.settings(), "bench", Path(tempfile.gettempdir())))
                store = stack.enter_context(closing(kind.open("bench/0/counter/0", schema, settings)))
                slots[name] = Slot(store, workload, events)
                slots[name].seconds(frames)
            times: dict[str, list[float]] = {name: [] for name in slots}
            for _ in range(repetitions):
                for name, slot in slots.items():
                    times[name].append(slot.seconds(frames) / (frames * events) * SECOND_US)
        for name, aim in AT_MOST.items():
            measure = f"{name} against memory, {events} events per row, {VALUE_BYTES} B"
            found.append(Measurement("state", measure, "us/event", times[name], times["memory"], aim))
    return found


def large_migration(mib: int) -> Measurement:
    """MiB of this process at the most while ``mib`` of state move between two stores in RocksDB, against the aim.

    Raises AssertionError if not all of it arrives.
    """
    kind = backends.get("rocksdb")
    keys = mib * (1 << 20) // VALUE_BYTES
    workload = KeyCount(keys=keys, state_bytes=VALUE_BYTES, key_groups=LARGE_GROUPS, seed=1)
    operator = workload.stages[0].operator()
    peak, over = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        me = psutil.Process()
        while not over.wait(0.05):
            peak = max(peak, me.memory_info().rss / (1 << 20))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with (
            kind.served(kind.settings(), "bench", Path(tempfile.gettempdir())) as settings,
            closing(kind.open("bench/0/counter/0", operator.state_schema, settings)) as source,
            closing(kind.open("bench/0/counter/1", operator.state_schema, settings)) as destination,
        ):
            states: list[UnitState] = [source.unit(unit) for unit in range(LARGE_GROUPS)]
            for unit, state in enumerate(states):
                operator.initial(unit, state)
            tell(f"{keys} keys are in RocksDB")
            begin, arrived = time.perf_counter(), []
            for unit in range(LARGE_GROUPS):
                arrived.append(destination.unit(unit))
                arrived[-1].install(_over_the_wire(states[unit]))
                states[unit] = source.unit(unit)  # the one that left is not needed any more
                source.load(())
            tell(f"they moved in {time.perf_counter() - begin:.1f} s")
            assert sum(map(len, arrived)) == keys, "not all keys have arrived"
    finally:
        over.set()
        watcher.join()
    return Measurement("state", f"memory while {mib} MiB in rocksdb move", "MiB", [peak], [float(LARGE_RSS_MIB)], 1.0)


def _over_the_wire(state: UnitState) -> list[pa.RecordBatch]:
    """The parts of a state, as another process would have them."""
    parts = ((batch.schema, batch.serialize()) for batch in state.export(CHUNK_BYTES))
    return [pa.ipc.read_record_batch(data, schema) for schema, data in parts]


@app.command()
def bench_state(
    quick: Annotated[bool, typer.Option("--quick", help="One repetition, shorter.")] = False,
    large: Annotated[
        int, typer.Option("--large", min=0, help=f"MiB of the large migration, e.g. {LARGE_MIB}; 0: none.")
    ] = 0,
    runs: Annotated[int, typer.Option("--runs", min=0, help="Repetitions of the whole runs; 0: none.")] = 1,
) -> None:
    """What the stores of state cost: time per event against memory; a chain, snapshots and a death in whole runs."""
    rows = throughput(*((1, 10_000) if quick else (5, 40_000)))
    rows += whole_runs(runs) if runs else []
    if large:
        rows.append(large_migration(large))
    typer.echo(table(rows))


if __name__ == "__main__":
    run_program(app, "bench.state")
