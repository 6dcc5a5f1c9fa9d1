"""What runs inside Spark's tasks: the router and the entry of the slot. Both are functions for ``mapInArrow``."""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from keyshift.clock import now_us
from keyshift.runtime.row import DATA
from keyshift.trace import Trace
from keyshift.wire import spark_rows
from keyshift.wire.config import JobConfig
from keyshift.worker.slot.opening import make_slot
from keyshift.worker.turn_router import make_router

STALL_S = 0.005

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]  # what runs in one task of a stage, for ``mapInArrow``


def router(config: JobConfig, batch_s: float) -> Task:
    """The router's task, in batches of ``batch_s``: router, offset, value in; ``spark_rows.ROUTED`` out.

    Here and in a slot, rows without a value have only pushed others.
    """

    def run(batches: Batches) -> Batches:
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
                    if rows:
                        yield spark_rows.routed(rows)
                    while task.full and time.monotonic() < over:
                        time.sleep(STALL_S)
            if rest := task.resume():
                yield spark_rows.routed(rest)
            task.hand_over()
        except Exception:  # not if Spark only needs the task no more
            task.report()
            raise
        finally:
            task.close()

    return run


def slot(config: JobConfig, batch_s: float) -> Task:
    """The slot's task, in batches of ``batch_s``: values of rows in, as routers made them. Out go rows
    ``spark_rows.ANSWERED`` or, if a stage is behind this one, ``spark_rows.ROUTED``.
    """

    def run(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # there is one in every task
        number = context.partitionId()
        task = make_slot(config, number)
        over = time.monotonic() + batch_s  # as for a router, which a slot is of the next stage
        columns = ["slot", "router", "offset", "came_us", "went_us"]
        trace = Trace(config.trace, "slot", columns) if config.trace else None
        try:
            task.start()
            for batch in batches:
                came_us = now_us()
                rows = list(spark_rows.received(batch))
                given = task.on_rows(rows)
                if trace:
                    for row in rows:
                        if row.kind == DATA:
                            trace.add(number, row.router, row.offset, came_us, now_us())
                yield from given
                while task.stalled(time.monotonic() < over):
                    yield from task.wait()
            while not task.settled():
                yield from task.wait()
            yield from task.output.rest()
            task.seal()
        except Exception:
            task.report()
            raise
        finally:
            task.close()

    return run
