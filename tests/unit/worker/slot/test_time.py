"""How time passes in a slot at a savepoint and from one batch to the next."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest
from small_job import CONFIG
from small_slots import SmallJob

from keyshift.model import frames
from keyshift.runtime.row import BARRIER, DATA, SAVEPOINT, TICK, Row
from keyshift.state.timers import EVENT, PROCESSING
from keyshift.wire.config import result_schema, slot_schema
from keyshift.wire.nodes import saved
from keyshift.workloads.windowcount.operator import ANSWER, IDLE, WINDOW

MS = 1000
JOB = {
    "workload": "windowcount",
    "stage": "windows",
    "parameters": CONFIG.parameters | {"window_ms": 20, "delay_ms": 10, "idle_ms": 60_000},
    "routers": 2,
    "slots": 1,
}
WORKLOAD = replace(CONFIG, **JOB).make_workload()
WAIT_S = 60.0


class Batches:
    """One slot, batch after batch, in one process. Times are in ms."""

    def __init__(self, monkeypatch):
        self.job = SmallJob(monkeypatch, **JOB)
        self.nodes, self.store, self.host = self.job.nodes, self.job.store(), self.job.process()
        self.offset, self.results, self.markers = 0, [], []
        self.task = None

    def begin(self):
        self.task = self.job.opened(0, self.host)
        self.rows(*(Row(BARRIER, router, 1, 0, 0) for router in (0, 1)))

    def rows(self, *rows):
        self.take(self.task.on_rows(rows))

    def take(self, values):
        for value in values:
            batch, meta = frames.decode(value, result_schema(WORKLOAD.stages[0]))
            self.markers += [(meta, len(self.results))] if "marker" in meta else []
            self.results += batch.to_pylist()

    def tick(self, router, watermark_ms):
        self.rows(Row(TICK, router, 1, 0, watermark_ms * MS))

    def events(self, router, watermark_ms, *keys, at_ms):
        columns = {"key": keys, "t": [at_ms * MS] * len(keys), "at": [at_ms * MS] * len(keys)}
        columns |= {"position": range(len(keys)), "unit": WORKLOAD.units[list(keys)]}
        schema = slot_schema(WORKLOAD.stages[0])
        batch = pa.RecordBatch.from_pydict({n: pa.array(columns[n], schema.field(n).type) for n in schema.names})
        self.offset += 1
        self.rows(Row(DATA, router, 1, self.offset, watermark_ms * MS, batch.serialize()))

    def stop_at(self, savepoint, router):
        self.rows(Row(SAVEPOINT, router, 1, 0, 0, savepoint.encode()))

    def end(self):
        deadline = time.monotonic() + WAIT_S
        while not self.task.settled():
            assert time.monotonic() < deadline
            self.take(self.task.wait())
        self.task.seal()
        self.task.close()
        self.task = None

    def written(self, savepoint):
        """The timers of all units in the first of what the slot wrote, and their watermarks, once it is sealed."""
        deadline = time.monotonic() + WAIT_S
        while not any(marker["marker"] == "sealed" for marker, _ in self.markers):
            assert time.monotonic() < deadline
            self.take(self.task.wait())
        places = self.nodes.read(saved(savepoint)["slot-0"]).places
        tables = [self.store.read(place)[1].to_pandas() for place in places]
        assert len(tables) == 4
        return tables

    def of_kind(self, kind):
        return [row for row in self.results if row["kind"] == kind]


@pytest.fixture
def slot(monkeypatch):
    batches = Batches(monkeypatch)
    yield batches
    batches.job.close()


def test_time_goes_on_in_the_next_batch_where_it_was(slot):
    slot.begin()
    for router in (0, 1):
        slot.tick(router, 1000)
    slot.events(0, 1010, 1, at_ms=1005)
    slot.end()
    slot.begin()
    slot.events(0, 1020, 2, at_ms=985)
    slot.end()
    first, second = slot.of_kind(ANSWER)
    assert (first["watermark"], second["watermark"]) == (1000 * MS, 1000 * MS)
    assert second["late"]


def test_what_is_due_at_a_savepoint_is_done_before_the_state_is_written_and_its_results_come_first(slot):
    slot.begin()
    slot.tick(1, 1000)
    slot.events(0, 1000, *range(8), at_ms=1005)  # of windows that close at 1030
    slot.tick(0, 1100)
    slot.stop_at("one", 0)
    slot.tick(1, 1029)
    assert not slot.of_kind(WINDOW)
    slot.tick(1, 1050)
    assert not slot.of_kind(WINDOW), "a router stands at the savepoint"
    slot.stop_at("one", 1)
    tables = slot.written("one")
    assert len(slot.of_kind(WINDOW)) == 8
    assert {row["watermark"] for row in slot.of_kind(WINDOW)} == {1050 * MS}
    assert not any((table["kind"] == EVENT).any() for table in tables)
    (come,) = {come for marker, come in slot.markers if marker["marker"] == "sealed"}
    assert come == len(slot.results) == 16


def test_nothing_happens_behind_a_savepoint_whose_barriers_come_again_in_the_next_batch(slot, monkeypatch):
    slot.begin()
    for router in (0, 1):
        slot.tick(router, 1000)
    slot.events(0, 1010, *range(8), at_ms=1005)
    for router in (0, 1):
        slot.stop_at("one", router)
    tables = slot.written("one")
    assert sum((table["kind"] == PROCESSING).sum() for table in tables) == 8
    slot.end()
    for module in ("slot.task", "state.arrivals"):
        monkeypatch.setattr(f"keyshift.worker.{module}.now_us", lambda: time.time_ns() // 1000 + 120_000 * MS)
    slot.begin()  # two minutes later
    for router in (0, 1):
        slot.stop_at("one", router)
        slot.tick(router, 2000)
    slot.end()
    assert not slot.of_kind(IDLE)
    assert not slot.of_kind(WINDOW)
