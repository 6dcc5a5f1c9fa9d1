"""A table: where the values of a slot's states are, as bytes, if they are not in Python."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

Changes = dict[int, bytes | None]  # None: the key is deleted
T = TypeVar("T")

_SLICE_KEYS = 256  # written or read at a time where all of a state is


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """``items`` in parts that are not too many for one exchange."""
    return (items[begin : begin + _SLICE_KEYS] for begin in range(0, len(items), _SLICE_KEYS))


class Table(ABC):
    """The values of each state at a *region* of its own, which is whatever the table likes.

    ``lock``: its store holds it while something goes to the table.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    @abstractmethod
    def exchange(
        self, written: list[tuple[Any, Changes]], wanted: list[tuple[Any, list[int]]]
    ) -> list[Sequence[bytes | None]]:
        """Write, then read, each by region; one round trip. Under the lock."""

    @abstractmethod
    def scan(self, region: Any) -> Iterator[tuple[int, bytes]]:
        """All that is there, each key once; from any thread. Raises Damaged or ServiceUnavailable unless it is all."""

    def scan_keys(self, region: Any) -> Iterable[int]:
        """All keys that are there."""
        return (key for key, _ in self.scan(region))

    def fill(self, region: Any, parts: Iterable[tuple[list[int], list[bytes]]]) -> None:
        """Fill a region where nothing is yet with many values; from any thread."""
        for keys, values in parts:
            for some in slices(list(zip(keys, values, strict=True))):
                with self.lock:  # so that what was written and how much it is are never seen apart
                    self.exchange([(region, dict(some))], [])

    @abstractmethod
    def region(self, unit: int) -> Any:
        """A new region; from any thread."""

    @abstractmethod
    def copied_region(self, region: Any) -> Any:
        """A new region in which all is as it is in this one now. Under the lock."""

    @abstractmethod
    def drop(self, regions: list[Any]) -> None:
        """Drop regions that nobody needs any more. Under the lock."""

    def check(self) -> None:  # noqa: B027 - a table in this process has what was written
        """Raise ServiceUnavailable unless all is there that was written, and stays there."""

    @abstractmethod
    def close(self) -> None:
        """Close the table: nobody uses it any more."""
