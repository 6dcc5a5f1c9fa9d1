"""Data rows as Arrow has them."""

import pyarrow as pa

from keyshift.runtime.arrow import by_time
from keyshift.runtime.row import DATA, Row

SCHEMA = pa.schema([("t", pa.int64()), ("position", pa.int32()), ("what", pa.string())])


def row(router, offset, *times):
    what = [f"{router}.{offset}.{position}" for position in range(len(times))]
    columns = [pa.array(times, pa.int64()), pa.array(range(len(times)), pa.int32()), pa.array(what)]
    payload = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize().to_pybytes()
    return Row(DATA, router, 4, offset, max(times), payload)


def what(rows):
    return [pa.ipc.read_record_batch(each.payload, SCHEMA)["what"].to_pylist() for each in rows]


def test_rows_are_cut_so_that_events_go_by_their_time_then_by_where_they_are_from():
    rows = [row(1, 0, 2, 4, 4), row(0, 7, 1, 4, 5), row(0, 8, 5)]
    merged = by_time(rows, SCHEMA)
    assert what(merged) == [["0.7.0"], ["1.0.0"], ["0.7.1"], ["1.0.1", "1.0.2"], ["0.7.2"], ["0.8.0"]]
    assert [each[:5] for each in merged] == [rows[n][:5] for n in (1, 0, 1, 0, 1, 2)], "all but the payload is theirs"


def test_a_row_whose_events_stay_together_is_left_as_it_is():
    first, second = row(1, 0, 1, 2), row(0, 0, 3, 4)
    for merged, given in zip(by_time([second, first], SCHEMA), [first, second], strict=True):
        assert merged.payload is given.payload
    assert by_time([first], SCHEMA) == [first] and by_time([], SCHEMA) == []


def test_equal_rows_are_cut_into_equal_bytes_in_whatever_order_they_are_given():
    rows = [row(1, 0, 2, 4, 6), row(0, 7, 1, 3, 5)]
    assert by_time(rows, SCHEMA) == by_time(rows[::-1], SCHEMA)
