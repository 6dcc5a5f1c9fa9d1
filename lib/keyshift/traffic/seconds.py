"""What is kept of every second of a job: eight bytes for each number, as a job may last for days."""

import math
from array import array
from collections.abc import Sequence
from typing import overload

from keyshift.model.records import Second

_NUMBERS = len(Second._fields)


class Seconds(Sequence[Second]):
    """The seconds, in the order in which they were told."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def append(self, second: Second) -> None:
        """Add one more."""
        self._numbers.extend(math.nan if number is None else number for number in second)

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    @overload
    def __getitem__(self, index: int) -> Second: ...

    @overload
    def __getitem__(self, index: slice) -> list[Second]: ...

    def __getitem__(self, index: int | slice) -> Second | list[Second]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        begin = range(len(self))[index] * _NUMBERS
        second, results, *latencies_ms = self._numbers[begin : begin + _NUMBERS]
        return Second(int(second), int(results), *(None if math.isnan(ms) else ms for ms in latencies_ms))
