"""What a slot computes: records that have waited give the results that they would have given one by one."""

import pyarrow as pa
import pytest
from small_job import CONFIG

from keyshift.executor.config import slot_schema
from keyshift.executor.operation import Operation
from keyshift.protocol.slot import SlotMachine

WORKLOAD = CONFIG.make_workload()
UNITS = range(4)


class Partial(list):
    """Units without keys, by number: of their keys 1 is missing, and what was held back is remembered."""

    def __init__(self, *units):
        super().__init__(units)
        self.held, self.touched = [], set()

    def hold_back(self, events, where, watermark, now):
        missing = pa.array([key == 1 for key in events["key"].to_pylist()])
        self.held.append((events.filter(missing).num_rows, where))
        return events.filter(pa.array([not each for each in missing.to_pylist()]))

    def used(self, units):
        self.touched.update(units)


@pytest.fixture
def make():
    def operation(*partial):
        made = Operation(CONFIG, {}, Partial(*partial), SlotMachine(0, 1, UNITS, [], 1))
        for unit in UNITS:
            made.begin(unit)
        return made

    return operation


def record(*keys, router=0, version=1, offset=0):
    columns = {"key": keys, "t": [7] * len(keys), "position": range(len(keys)), "unit": WORKLOAD.units[list(keys)]}
    schema = slot_schema(WORKLOAD)
    return pa.RecordBatch.from_pydict({n: pa.array(columns[n], schema.field(n).type) for n in schema.names}), (
        router,
        version,
        offset,
        0,
    )


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


RECORDS = [record(1, 2, 1, offset=4), record(1, router=1, offset=9), record(5, 1, version=2, offset=5)]


@pytest.mark.parametrize("now", [None, 1], ids=["queued", "waited for their keys"])
def test_records_that_waited_are_processed_at_once_with_the_results_of_one_by_one(make, now):
    together, apart = make(), make()
    results = together.process_all(RECORDS, now)
    assert len(results) == 1
    assert rows(results) == [row for each in RECORDS for row in rows(apart.process(*each))]
    assert [row["count"] for row in rows(results) if row["key"] == 1] == [1, 2, 3, 4]
    assert together.heat.tolist() == apart.heat.tolist() and together.heat.sum() == 6


def test_what_was_done_for_partial_units_is_told(make):
    operation = make(0)
    operation.process_all(RECORDS, now=1)
    assert operation._partial.touched == {int(WORKLOAD.units[key]) for key in (1, 2, 5)}
    assert not operation._partial.held, "their keys are known to be here"


def test_queued_records_of_units_without_their_keys_are_looked_through_one_by_one(make):
    operation = make(0)
    results = operation.process_all(RECORDS)
    assert [row["key"] for row in rows(results)] == [2, 5]
    assert operation._partial.held == [(2, (0, 1, 4, 0)), (1, (1, 1, 9, 0)), (1, (0, 2, 5, 0))]


def test_nothing_that_waited_gives_nothing(make):
    assert make().process_all([]) == []
