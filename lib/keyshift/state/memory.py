"""State in the memory of the Python worker."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa


class MemoryState:
    """One dictionary per unit; see ``UnitState`` for the meaning of the methods."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = pa.schema([pa.field("key", pa.int64()), *schema])
        self._values: dict[int, tuple[Any, ...]] = {}
        self.get = self._values.get  # the hottest call of all: no extra frame
        self.put = self._values.__setitem__

    def delete(self, key: int) -> None:  # noqa: D102
        self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)

    def export(self, chunk_bytes: int) -> Iterator[pa.RecordBatch]:  # noqa: D102
        items = iter(self._values.items())
        rows = 1  # the first batch is one key: its size tells how many keys make a chunk
        while chunk := list(islice(items, rows)):
            keys, values = zip(*chunk, strict=True)
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*values, strict=True), list(self._schema)[1:], strict=True)
            ]
            batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), *columns], schema=self._schema)
            yield batch
            rows = max(1, chunk_bytes * len(chunk) // max(1, batch.nbytes))

    def install(self, batches: Iterable[pa.RecordBatch]) -> None:  # noqa: D102
        for batch in batches:
            keys, *columns = (column.to_pylist() for column in batch.columns)
            self._values.update(zip(keys, zip(*columns, strict=True), strict=True))
