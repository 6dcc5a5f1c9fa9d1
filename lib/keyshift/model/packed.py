"""Many numbers in a message, in a few bytes: what is said of each of a million units, at each step.

Few are a list in JSON, which people can read. Very many are text: their columns as differences from row to row, which
are often the same, in zlib and base64. Either is read, whatever their number is.
"""

import base64
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MANY = 1 << 12  # rows from which on they are packed
_FAST = 1  # level of zlib


def pack(rows: Iterable[Any], columns: int) -> str:
    """Pack ``rows`` of so many ``columns`` of 64-bit integers into a text; with one column a row is an integer."""
    numbers = rows if columns == 1 else chain.from_iterable(rows)
    table = np.fromiter(numbers, np.int64).reshape(-1, columns).T
    return base64.b64encode(zlib.compress(np.diff(table, prepend=0).tobytes(), _FAST)).decode()


def unpack(text: str, columns: int) -> list[list[int]]:
    """Give the columns of a ``text`` from ``pack``. Raises ValueError if it is something else."""
    try:
        data = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"packed numbers cannot be read: {error}") from None
    table = np.frombuffer(data, np.int64).reshape(columns, -1)
    return np.cumsum(table, axis=1).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Packed:
    """The packing of a field whose type is a tuple of integers (``row`` is None), or of named tuples ``row`` that have
    only such fields: ``Annotated[tuple[Move, ...], Packed(Move)]``.
    """

    row: type[NamedTuple] | None = None

    @property
    def _columns(self) -> int:
        return 1 if self.row is None else len(self.row._fields)

    def _write(self, rows: tuple[Any, ...], as_list: Callable[[Any], Any]) -> Any:
        return pack(rows, self._columns) if len(rows) >= MANY else as_list(rows)

    def _read(self, given: Any, as_list: Callable[[Any], Any]) -> Any:
        if not isinstance(given, str):
            return as_list(given)
        columns = unpack(given, self._columns)
        return tuple(columns[0]) if self.row is None else tuple(map(self.row._make, zip(*columns, strict=True)))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Tell pydantic how to read and write the field."""
        schema = handler(source)
        written = core_schema.wrap_serializer_function_ser_schema(self._write, schema=schema, when_used="json")
        return core_schema.no_info_wrap_validator_function(self._read, schema, serialization=written)
