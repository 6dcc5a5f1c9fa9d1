"""What is kept of every second of a job: eight bytes for each number, as a job may last for days."""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, overload

FIELDS = ("second", "results", "p50_ms", "p99_ms")  # whole numbers first
WHOLE = 2


class Seconds(Sequence[dict[str, Any]]):
    """In the order in which they were told. Reads like a list of dictionaries of ``FIELDS``; None is not known."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def append(self, report: Mapping[str, Any]) -> None:
        """As the collector says it."""
        self._numbers.extend(math.nan if report[name] is None else report[name] for name in FIELDS)

    def __len__(self) -> int:
        return len(self._numbers) // len(FIELDS)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        begin = range(len(self))[index] * len(FIELDS)
        numbers = self._numbers[begin : begin + len(FIELDS)]
        known = (int(number) if place < WHOLE else number for place, number in enumerate(numbers))
        return dict(zip(FIELDS, (None if math.isnan(number) else number for number in known), strict=True))
