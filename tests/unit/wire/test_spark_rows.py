import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from keyshift.driver.spark import ALONE, PUSHED, PUSHED_AFTER_ALONE, ROWS_PER_BATCH
from keyshift.model.keys import NO_VERSION
from keyshift.runtime.row import BARRIER, DATA, Row
from keyshift.wire import spark_rows


def seen_by_python(rows: list[bool]) -> int:
    """How many rows have reached Python: full batches, and each only when one more row is there."""
    return (len(rows) - 1) // ROWS_PER_BATCH * ROWS_PER_BATCH if rows else 0


def test_a_row_says_to_the_slot_what_the_router_said():
    rows = [Row(DATA, 1, 7, 2**40, 2**50, b"events"), Row(BARRIER, 0, 8, 3, 0, chain=2**64 - 1)]
    batch = spark_rows.routed([(3, spark_rows.packed(rows[0])), (5, spark_rows.packed(rows[1]))])
    assert batch["task"].to_pylist() == [3, 5]
    found = [row._replace(payload=bytes(row.payload)) for row in spark_rows.received(batch.select(["value"]))]
    assert found == rows


def test_rows_to_the_slots_of_a_process_go_together_and_each_slot_gets_its_own():
    sent = [(slot, Row(DATA, 1, 7, offset, 9, b"x" * slot)) for offset in range(2) for slot in (2, 0, 3, 4)]
    batch = spark_rows.routed([(slot, spark_rows.packed(row)) for slot, row in sent], slots_per_process=2)
    assert batch["task"].to_pylist() == [1, 0, 2]
    for task, slots in enumerate(([0, 1], [2, 3], [4])):
        mine = batch.select(["value"]).filter(pc.equal(batch["task"], task))
        found = spark_rows.received_by(slots, mine, 2)
        assert [*found] == slots
        for slot, rows in found.items():
            expected = [row for to, row in sent if to == slot]
            assert [row._replace(payload=bytes(row.payload)) for row in rows] == expected


def test_primers_of_the_slots_of_a_process_stand_alone():
    primer = Row(spark_rows.PRIMER, 0, NO_VERSION, 0, 0)
    rows = [(0, primer), (1, primer), (0, Row(DATA, 0, 1, 0, 0, b"x"))]
    values = spark_rows.routed([(slot, spark_rows.packed(row)) for slot, row in rows], 2)["value"].to_pylist()
    assert [value[: spark_rows.KIND_BYTES] == spark_rows.PRIMER_KIND for value in values] == [True, False]


def test_rows_without_a_value_say_nothing():
    batch = spark_rows.answered([b"x", None, b"y"])
    assert [value.as_py() for value in batch.column(0)] == [b"x", None, b"y"]
    empty = spark_rows.answered([None, None])
    assert list(spark_rows.received(empty)) == []


@given(st.integers(1, 50))
def test_every_frame_reaches_the_router_though_nothing_follows_it(frames):
    rows: list[bool] = []
    for _ in range(frames):
        rows += PUSHED
        seen = rows[: seen_by_python(rows)]
        assert seen.count(True) == rows.count(True)


@given(st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=30))
def test_every_row_reaches_its_slot_though_nothing_follows_it(bursts):
    rows = list(ALONE)
    for count in bursts:
        rows += PUSHED_AFTER_ALONE * count
        seen = rows[: seen_by_python(rows)]
        assert seen.count(True) == rows.count(True)
