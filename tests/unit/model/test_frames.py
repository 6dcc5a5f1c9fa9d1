import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyshift.model import frames
from keyshift.model.errors import ProtocolViolation
from keyshift.model.frames import Facts
from keyshift.model.markers import SlotMarker, SlotStarted, StateWritten

SCHEMA = pa.schema(frames.EVENT_FIELDS)
INT64 = st.integers(-(2**63), 2**63 - 1)
MARKERS = st.builds(SlotStarted, st.text(), INT64, INT64) | st.builds(StateWritten, st.text(), st.text())
FACTS = st.builds(Facts, INT64, INT64, st.none() | st.builds(SlotMarker, INT64, MARKERS))


def batch(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1)], schema=SCHEMA)


@given(st.lists(st.tuples(INT64, INT64)), FACTS)
def test_a_frame_gives_back_its_rows_and_its_facts(rows, said):
    decoded, facts = frames.decode(frames.encode(batch(rows), said), SCHEMA)
    assert decoded.column("key").to_pylist() == [key for key, _ in rows]
    assert decoded.column("t").to_pylist() == [t for _, t in rows]
    assert facts == said


WIDE = pa.schema([pa.field("key", pa.int64()), pa.field("payload", pa.binary())])


def wide(sizes: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(sizes))), pa.array([bytes(s) for s in sizes])], schema=WIDE)


@given(st.lists(st.integers(0, 40) | st.integers(0, 400_000), max_size=20).map(lambda sizes: sizes * 5))
@example([103_165] * 5)
@example([])
@example([10, frames.MOST_BYTES + 1, 10])  # a row that is too large by itself
def test_a_batch_is_cut_into_frames_of_bounded_size_that_are_all_of_it(sizes):
    whole = wide(sizes)
    pieces = list(frames.cut(whole))
    assert pa.Table.from_batches(pieces).to_pylist() == whole.to_pylist()
    encoded = [frames.encode(piece, Facts(2**60)) for piece in pieces]
    assert all(len(e) <= frames.MOST_BYTES or p.num_rows == 1 for e, p in zip(encoded, pieces, strict=True))
    assert all(piece.num_rows for piece in pieces) or not sizes
    room = frames.MOST_BYTES - (8 << 10)  # so much is kept free for columns and facts
    assert len(pieces) == 1 or len(frames.encode(whole)) > room, "what fits is not cut"


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([pa.field("key", pa.int64())]),
        pa.schema([pa.field("t", pa.int64()), pa.field("key", pa.int64())]),
        pa.schema([pa.field("key", pa.int64()), pa.field("t", pa.int32())]),
    ],
    ids=["missing column", "other order", "other type"],
)
def test_other_columns_than_expected_are_refused(other):
    with pytest.raises(ProtocolViolation, match=r"columns .*, expected \['key', 't'\]"):
        frames.decode(frames.encode(frames.empty(other)), SCHEMA)


def test_facts_that_are_none_are_refused():
    value = frames.encode(batch([(1, 2)]), Facts(77)).replace(b'"watermark":77', b'"watermark":{}')
    with pytest.raises(ProtocolViolation, match="what a frame says of itself cannot be read"):
        frames.decode(value, SCHEMA)


@given(st.integers(0, 10_000))
def test_a_frame_cut_short_is_refused_or_whole(cut):
    whole = frames.encode(batch([(1, 2), (3, 4)]), Facts(1))
    part = whole[: cut % len(whole)]
    try:
        decoded, _ = frames.decode(part, SCHEMA)
    except ProtocolViolation:
        return
    assert decoded.column("key").to_pylist() == [1, 3]  # only the end-of-stream mark was cut off


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_refused(value):
    with pytest.raises(ProtocolViolation, match="frame"):
        frames.decode(value, SCHEMA)


def test_keys_of_integers_are_the_integers_and_there_are_none_of_no_values():
    values = pa.array([3, -1, 2**40])
    assert frames.keys_of(values) == values
    assert frames.keys_of(pa.array([7, 3], pa.uint8())) == pa.array([7, 3])
    assert frames.keys_of(pa.array([], pa.string())) == pa.array([], pa.int64())


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (pa.array(["state", "moves", "state"]), 2435781236248007203),
        (pa.array([b"state", b"moves", b"state"]), 2435781236248007203),
        (pa.array([b"state", b"moves", b"state"], pa.binary(5)), 2435781236248007203),
        (pa.array([b"state", b"moves", b"state"], pa.binary_view()), 2435781236248007203),
        (pa.array(["state", "moves", "state"], pa.string_view()), 2435781236248007203),
        (pa.array([b"\xffA", b"\xffB", b"\xffA"], pa.binary(2)), None),
        (pa.array([0.5, 1.5, 0.5]), None),
        (pa.array([True, False, True]), None),
    ],
    ids=["text", "bytes", "bytes of one size", "view of bytes", "view of text", "no text", "numbers", "yes and no"],
)
def test_keys_of_anything_else_are_the_same_for_the_same_value_on_every_machine(values, first):
    one, other, again = frames.keys_of(values).to_pylist()
    assert one == again != other
    assert first in (one, None)
