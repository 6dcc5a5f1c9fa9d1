"""Values come out of their bytes as they went in, one by one and in columns."""

import datetime
from array import array

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyshift.model.frames import empty
from keyshift.state.packing import Packing, in_chunks

INT64 = st.integers(-(2**63), 2**63 - 1)
PAIRS = st.fixed_dictionaries({"a": st.integers(-5, 5), "b": st.text(max_size=3)})
FIELDS = {
    "count": (pa.int64(), INT64),
    "payload": (pa.binary(), st.binary(max_size=20)),
    "starts": (pa.list_(pa.int64()), st.lists(INT64 | st.none(), max_size=3) | st.lists(INT64, max_size=3)),
    "share": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(max_size=5)),
    "open": (pa.bool_(), st.booleans()),
    "small": (pa.uint8(), st.integers(0, 255)),
    "flags": (pa.list_(pa.bool_()), st.lists(st.booleans(), max_size=3)),
    "pairs": (pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])), st.lists(PAIRS, max_size=2)),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in FIELDS.items()])
VALUES = st.tuples(*(st.none() | values for _, values in FIELDS.values()))


@given(VALUES)
def test_a_value_comes_out_of_its_bytes_as_it_was(value):
    packing = Packing(SCHEMA)
    assert packing.unpack(packing.pack(value)) == value


@given(st.dictionaries(INT64, VALUES, max_size=8), st.integers(0, 3))
def test_columns_and_bytes_are_two_forms_of_the_same(content, skipped):
    packing = Packing(SCHEMA)
    keys, values = list(content), [packing.pack(value) for value in content.values()]
    batch = packing.batch(keys, values)
    assert batch.schema == packing.schema
    batch.validate(full=True)
    rows = [tuple(row[name] for name in SCHEMA.names) for row in batch.to_pylist()]
    assert rows == list(content.values())
    part = batch.slice(skipped)  # its columns begin in the middle of their buffers
    again_keys, again = packing.rows(part)
    assert again_keys == keys[skipped:]
    assert [packing.unpack(value) for value in again] == rows[skipped:]


PLAIN = Packing(pa.schema([("count", pa.int64()), ("payload", pa.binary())]))


def test_a_plain_value_has_only_its_own_bytes_and_a_head():
    assert len(PLAIN.pack((5, bytes(4096)))) == 1 + 8 + 4 + 4096


def test_values_without_fields_have_bytes_too():
    packing = Packing(pa.schema([]))
    values = [packing.pack(())] * 2
    assert packing.unpack(values[0]) == ()
    assert packing.rows(packing.batch([5, 7], values)) == ([5, 7], values)
    assert packing.rows(empty(packing.schema)) == ([], [])


def test_a_type_without_letters_is_kept_too_and_numbers_in_lists_may_be_any_sequence():
    when = datetime.datetime(2026, 1, 2, 3, 4, 5)
    packing = Packing(pa.schema([pa.field("at", pa.timestamp("us"))]))
    assert packing.unpack(packing.pack((when,))) == (when,)
    assert packing.batch([1], [packing.pack((when,))])["at"].to_pylist() == [when]
    packing = Packing(pa.schema([pa.field("starts", pa.list_(pa.int64()))]))
    assert packing.unpack(packing.pack((array("q", [1, 2]),))) == ([1, 2],)


@pytest.mark.parametrize("value", [("text", b""), (1, None, 3), (2**70, b"")], ids=["type", "fields", "size"])
def test_what_is_no_value_of_the_schema_is_refused(value):
    with pytest.raises(Exception, match=r"int|argument|required"):
        PLAIN.pack(value)


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 100))
def test_chunks_hold_every_row_once_and_are_no_larger_than_they_may_be(values, chunk_bytes):
    chunks = list(in_chunks(enumerate(values), chunk_bytes))
    assert [row for keys, some in chunks for row in zip(keys, some, strict=True)] == list(enumerate(values))
    for _, some in chunks:
        assert len(some) == 1 or sum(len(value) + 8 for value in some) <= chunk_bytes
