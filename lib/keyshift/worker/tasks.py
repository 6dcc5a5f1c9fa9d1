"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from keyshift.clock import now_us
from keyshift.runtime.row import DATA
from keyshift.trace import Trace
from keyshift.wire import spark_rows
from keyshift.wire.config import JobConfig
from keyshift.worker.slot.opening import make_slots
from keyshift.worker.slot.task import SlotTask
from keyshift.worker.turn_router import make_router

STALL_S = 0.005

RecordBatches = Iterator[pa.RecordBatch]
Task = Callable[[RecordBatches], RecordBatches]  # what runs in one task of a stage, for ``mapInArrow``


def router(config: JobConfig, batch_s: float) -> Task:
    """The router's task, in batches of ``batch_s``: router, offset, value in; ``spark_rows.ROUTED`` out.

    Here and in a slot, rows without a value have only pushed others.
    """

    def run(batches: RecordBatches) -> RecordBatches:
        task = make_router(config)
        # Then little comes any more. A router that waited for room would keep the batch from ending, and wait for ever
        # if another one has ended its own without switching: slots take the end of all for its barrier.
        over = time.monotonic() + batch_s
        columns = ["router", "offset", "frame_us", "came_us", "went_us"]
        trace = Trace(config.trace, "router", columns) if config.trace else None
        try:
            for batch in batches:
                for router, offset, value in zip(*batch.columns, strict=True):
                    if not value.is_valid:
                        continue
                    came_us = now_us()
                    rows = task.frame(router.as_py(), offset.as_py(), value.as_buffer())
                    if trace:
                        trace.add(router.as_py(), offset.as_py(), task.watermark, came_us, now_us())
                    yield from task.in_batch(rows)
                    while task.full and time.monotonic() < over:
                        task.watch.require()
                        time.sleep(STALL_S)
            yield from task.in_batch(task.resume())
            task.hand_over()
        except Exception:  # not if Spark only needs the task no more
            task.report()
            raise
        finally:
            task.close()

    return run


def slot(config: JobConfig, batch_s: float) -> Task:
    """The task of a slot, or of the slots of one process, in batches of ``batch_s``: values of rows in, as routers made
    them. Out go rows ``spark_rows.ANSWERED``, or ``ANSWERED_OF`` if there are several slots, or, if a stage is behind
    this one, ``ROUTED``.
    """

    def run(batches: RecordBatches) -> RecordBatches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # there is one in every task
        numbers = config.slots_of(context.partitionId())
        over = time.monotonic() + batch_s  # as for a router, which a slot is of the next stage
        columns = ["slot", "router", "offset", "came_us", "went_us"]
        trace = Trace(config.trace, "slot", columns) if config.trace else None
        slots: list[SlotTask] = []
        placed = not config.onward  # what goes out says of which slot it is

        def given(act: Callable[[SlotTask], list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
            """Return what ``act`` gives of each slot, in one batch: Spark's JVM is woken once."""
            if config.slots_per_process == 1:
                return act(slots[0])
            found = [spark_rows.of_slot(task.slot, each) if placed else each for task in slots for each in act(task)]
            return [pa.concat_batches(found)] if found else []

        with contextlib.ExitStack() as last:
            for task in make_slots(config, numbers):
                last.callback(task.close)
                slots.append(task)
            try:
                for task in slots:
                    task.start()
                for batch in batches:
                    came_us = now_us()
                    rows = spark_rows.received_by(numbers, batch, config.slots_per_process)
                    out = given(lambda task: task.on_rows(rows[task.slot]))  # noqa: B023
                    if trace:
                        for number, each in rows.items():
                            for row in each:
                                if row.kind == DATA:
                                    trace.add(number, row.router, row.offset, came_us, now_us())
                    yield from out
                    while any(task.stalled(time.monotonic() < over) for task in slots):
                        yield from given(SlotTask.wait)
                while sum(not task.settled() for task in slots):  # each hears that its input has ended
                    yield from given(SlotTask.wait)
                yield from given(lambda task: task.output.rest())
                for task in slots:
                    task.seal()
            except Exception:
                for task in slots:
                    task.report()
                raise

    return run
