"""Values as bytes, for stores outside of Python: compact, without a type of Python's own (nothing is ever unpickled).

The bytes of a value begin with a *head* of a fixed length: a bit for each field that is None, the fields of fixed
width, and the lengths of all others, whose bytes follow. So a column of many values is read with numpy at once.
Numbers, booleans, bytes, text and lists of numbers are packed field by field. A field of any other type, or a list with
a None in it, is an Arrow batch of one row, which takes tens of microseconds.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from keyshift.state.tracking import Value

# Letters of ``struct`` and ``array``; those of numpy are the same.
_FIXED = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
    pa.bool_(): "?",
}
_LENGTH = "I"
_ARROW = 1 << 31  # in a length: these bytes are an Arrow batch


class Packing:
    """The packing of values of one schema. ``key``, 64 bits signed, is no part of the bytes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = list(schema)
        self.schema = pa.schema([pa.field("key", pa.int64()), *schema])
        self._null_bytes = max(1, -(-len(self._fields) // 8))  # without fields, too: no value is without bytes
        self._letters = [_FIXED.get(field.type, "") for field in self._fields]
        self._head = struct.Struct(f"<{self._null_bytes}s" + "".join(letter or _LENGTH for letter in self._letters))
        self._dtype = np.dtype(
            [("nulls", np.uint8, (self._null_bytes,))]
            + [(str(i), "<" + (letter or _LENGTH)) for i, letter in enumerate(self._letters)]
        )
        self._to_bytes = [None if letter else _writer(f.type) for letter, f in zip(self._letters, schema, strict=True)]
        self._of_bytes = [None if letter else _reader(f.type) for letter, f in zip(self._letters, schema, strict=True)]

    def pack(self, value: Value) -> bytes:
        """The bytes of ``value``. Raises struct.error or TypeError if it does not have the types of the schema."""
        head: list[Any] = []
        parts: list[bytes] = [b""]
        nulls = 0
        for i, (item, to_bytes) in enumerate(zip(value, self._to_bytes, strict=True)):
            if item is None:
                nulls |= 1 << i
                head.append(0)
            elif to_bytes is None:
                head.append(item)
            else:
                data, mark = to_bytes(item)
                head.append(len(data) | mark)
                parts.append(data)
        parts[0] = self._head.pack(nulls.to_bytes(self._null_bytes, "little"), *head)
        return b"".join(parts)

    def unpack(self, data: bytes) -> Value:
        """The inverse of ``pack``."""
        nulls, *items = self._head.unpack_from(data)
        absent, end = int.from_bytes(nulls, "little"), self._head.size
        for i, of_bytes in enumerate(self._of_bytes):
            if of_bytes is not None:
                length = items[i]
                begin, end = end, end + (length & ~_ARROW)
                items[i] = of_bytes(data[begin:end], length & _ARROW)
        if absent:
            return tuple(None if absent >> i & 1 else item for i, item in enumerate(items))
        return tuple(items)

    def batch(self, keys: Sequence[int], values: Sequence[bytes]) -> pa.RecordBatch:
        """Many values with their keys, in columns of ``schema``."""
        size = self._head.size
        heads = np.frombuffer(b"".join([data[:size] for data in values]), self._dtype)
        bits = np.unpackbits(heads["nulls"], axis=1, bitorder="little")
        ends = np.full(len(values), size, np.int64)
        columns = [pa.array(np.array(keys, np.int64))]
        for i, (field, letter) in enumerate(zip(self._fields, self._letters, strict=True)):
            nulls, column = bits[:, i].astype(bool), heads[str(i)]
            if letter:
                columns.append(pa.array(column.astype(column.dtype.newbyteorder("=")), field.type, mask=nulls))
                continue
            lengths = (column & ~np.uint32(_ARROW)).astype(np.int64)
            begins, ends = ends, ends + lengths
            spans = zip(values, begins.tolist(), ends.tolist(), strict=True)
            parts = [data[begin:end] for data, begin, end in spans]
            columns.append(self._column(i, parts, (column & _ARROW).tolist(), nulls))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> tuple[list[int], list[bytes]]:
        """The inverse of ``batch``: keys, and the bytes of the values."""
        heads = np.zeros(batch.num_rows, self._dtype)
        parts: list[Sequence[bytes]] = []
        for i, (column, letter) in enumerate(zip(batch.columns[1:], self._letters, strict=True)):
            if column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
                heads["nulls"][:, i // 8] |= nulls << (i % 8)
            if letter:
                whole = column.fill_null(False if letter == "?" else 0) if column.null_count else column
                heads[str(i)] = whole.to_numpy(zero_copy_only=False)
                continue
            data, lengths = self._parts(i, column)
            heads[str(i)] = lengths
            parts.append(data)
        size, whole_heads = self._head.size, heads.tobytes()
        first = [whole_heads[begin : begin + size] for begin in range(0, len(whole_heads), size)]
        return batch["key"].to_pylist(), [b"".join(row) for row in zip(first, *parts, strict=True)]

    def _column(self, i: int, parts: list[bytes], marks: list[int], nulls: npt.NDArray[np.bool_]) -> pa.Array:
        kind, of_bytes = self._fields[i].type, self._of_bytes[i]
        if any(marks) or not _plain(kind):
            assert of_bytes is not None
            items = zip(parts, marks, nulls.tolist(), strict=True)
            return pa.array([None if null else of_bytes(data, mark) for data, mark, null in items], kind)
        if not types.is_list(kind):
            return pa.array(parts, kind, mask=nulls)
        numbers = pa.array(np.frombuffer(b"".join(parts), _FIXED[kind.value_type]), kind.value_type)
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int32) // (kind.value_type.bit_width // 8)
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), numbers, kind, mask=pa.array(nulls))

    def _parts(self, i: int, column: pa.Array) -> tuple[list[bytes], Any]:
        kind = column.type
        nested = types.is_list(kind) and (column.null_count or column.flatten().null_count)
        if not _plain(kind) or nested:
            to_bytes = self._to_bytes[i]
            assert to_bytes is not None
            found = [(b"", 0) if item is None else to_bytes(item) for item in column.to_pylist()]
            return [data for data, _ in found], [len(data) | mark for data, mark in found]
        if not types.is_list(kind):
            data = [item or b"" for item in column.cast(pa.binary()).to_pylist()]
            return data, list(map(len, data))
        width, numbers = kind.value_type.bit_width // 8, column.flatten().to_numpy().tobytes()
        ends = np.cumsum([0, *column.value_lengths().to_pylist()]) * width
        return [numbers[begin:end] for begin, end in pairwise(ends.tolist())], np.diff(ends)


def _plain(kind: pa.DataType) -> bool:
    """Whether the bytes of a field are those that Arrow has in its column."""
    numbers = types.is_list(kind) and kind.value_type in _FIXED and not types.is_boolean(kind.value_type)
    return types.is_binary(kind) or types.is_string(kind) or numbers


PackedField = tuple[bytes, int]  # of a field, and a mark for its length


def _writer(kind: pa.DataType) -> Callable[[Any], PackedField]:
    if types.is_binary(kind):
        return lambda item: (item, 0)
    if types.is_string(kind):
        return lambda item: (item.encode(), 0)

    def in_arrow(item: Any) -> PackedField:
        batch = pa.RecordBatch.from_arrays([pa.array([item], kind)], names=[""])
        return batch.serialize().to_pybytes(), _ARROW

    if not _plain(kind):
        return in_arrow
    letter = _FIXED[kind.value_type]

    def numbers(item: Any) -> PackedField:
        try:
            return array(letter, item).tobytes(), 0
        except TypeError:  # there is a None in it
            return in_arrow(item)

    return numbers


def _reader(kind: pa.DataType) -> Callable[[bytes, int], Any]:
    schema = pa.schema([pa.field("", kind)])

    def of_bytes(data: bytes, in_arrow: int) -> Any:
        if in_arrow:
            return pa.ipc.read_record_batch(pa.py_buffer(data), schema)[0][0].as_py()
        if types.is_string(kind):
            return data.decode()
        return array(letter, data).tolist() if letter else data

    letter = _FIXED[kind.value_type] if types.is_list(kind) and _plain(kind) else ""
    return of_bytes if letter or not types.is_binary(kind) else lambda data, _: data


def in_chunks(rows: Iterable[tuple[int, bytes]], chunk_bytes: int) -> Iterable[tuple[list[int], list[bytes]]]:
    """Keys and values in parts of about ``chunk_bytes`` or less; one that is larger by itself is a part."""
    keys: list[int] = []
    values: list[bytes] = []
    size = 0
    for key, value in rows:
        row = len(value) + 8
        if keys and size + row > chunk_bytes:
            yield keys, values
            keys, values, size = [], [], 0
        keys.append(key)
        values.append(value)
        size += row
    if keys:
        yield keys, values
