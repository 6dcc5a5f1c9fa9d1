"""What the states of all backends have in common: values in a dictionary, timers, and a note of what changes."""

from functools import cache
from typing import Any, Generic, TypeVar

from keyshift.state.timers import Timers

Value = tuple[Any, ...]
T = TypeVar("T")


class ValueDict(dict[int, T]):
    """The values of a state that are in Python, by key. ``changed``: keys, once somebody tracks them."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[int] = set()


class Noting(ValueDict[T]):
    """A note of every key that is set, for whatever values there are: see ``noting``."""

    def __setitem__(self, key: int, value: T) -> None:
        super().__setitem__(key, value)
        self.changed.add(key)


@cache
def noting(kind: type[Any]) -> Any:
    """The class of values that are like those of ``kind``, with a note of every key that is set."""
    return kind if issubclass(kind, Noting) else type(f"Noting{kind.__name__}", (Noting, kind), {})


def _without_notes(kind: type[Any]) -> type[Any]:
    """The inverse of ``noting``."""
    return kind.__bases__[-1] if issubclass(kind, Noting) else kind


V = TypeVar("V", bound=ValueDict[Any])


class TrackedState(Generic[V]):
    """The part of ``UnitState`` that is the same for all states. A change is noted once, however many track changes."""

    shared = False

    def __init__(self, values: V) -> None:
        self.values = values
        self.timers = Timers()
        self._untold: dict[str, set[int]] = {}  # what was changed before, by who has not asked for it yet

    def track(self, who: str) -> None:  # noqa: D102
        self._tell()
        self._untold[who] = set()
        # In place: whoever holds the values writes to these from now on.
        self.values.__class__ = noting(type(self.values))

    def untrack(self, who: str) -> None:  # noqa: D102
        self._untold.pop(who, None)
        if not self._untold:
            self.values.__class__ = _without_notes(type(self.values))
            self.values.changed.clear()

    def changed_keys(self, who: str) -> set[int]:  # noqa: D102
        self._tell()
        found, self._untold[who] = self._untold[who], set()
        return found

    def hand_over(self) -> str | None:  # noqa: D102
        return None

    def _tell(self) -> None:
        for untold in self._untold.values():
            untold |= self.values.changed
        self.values.changed.clear()
