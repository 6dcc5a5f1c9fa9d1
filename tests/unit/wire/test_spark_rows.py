from hypothesis import given
from hypothesis import strategies as st

from keyshift.driver.spark import ALONE, PUSHED, PUSHED_AFTER_ALONE, ROWS_PER_BATCH
from keyshift.runtime.row import BARRIER, DATA, Row
from keyshift.wire import spark_rows


def seen_by_python(rows: list[bool]) -> int:
    """How many rows have reached Python: full batches, and each only when one more row is there."""
    return (len(rows) - 1) // ROWS_PER_BATCH * ROWS_PER_BATCH if rows else 0


def test_a_row_says_to_the_slot_what_the_router_said():
    rows = [Row(DATA, 1, 7, 2**40, 2**50, b"events"), Row(BARRIER, 0, 8, 3, 0, chain=2**64 - 1)]
    batch = spark_rows.routed([(3, spark_rows.packed(rows[0])), (5, spark_rows.packed(rows[1]))])
    assert batch["slot"].to_pylist() == [3, 5]
    found = [row._replace(payload=bytes(row.payload)) for row in spark_rows.received(batch.select(["value"]))]
    assert found == rows


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
