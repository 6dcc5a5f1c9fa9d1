"""A workload's operator as a slot uses it, on events and results of whatever kind."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from keyshift.model.keys import UnitId, Version
from keyshift.state import UnitState

Events = TypeVar("Events")
Result = TypeVar("Result", covariant=True)
Where = tuple[int, Version, int, int]  # router, version, offset, and the watermark that the record met
WaitingRecord = tuple[Events, Where]  # events of one unit that wait, and where they came from
Origin = Sequence[int | npt.NDArray[np.int64]]  # router, version, offset: of all events, or one for each


class FrameOperator(Protocol[Events, Result]):
    """Looks into events, cuts them up, and computes results; decides nothing."""

    uses_time: bool  # see ``workloads.Operator``

    def initial(self, unit: UnitId, state: UnitState) -> None:
        """Fill the state that ``unit`` has before the first event."""

    def events(self, payload: Any) -> Events:
        """The events of a row, from its ``payload``."""

    def units(self, events: Events) -> npt.NDArray[np.integer[Any]]:
        """The unit of each event."""

    def keys(self, events: Events) -> npt.NDArray[np.integer[Any]]:
        """The key of each event."""

    def nbytes(self, events: Events) -> int:
        """Memory of these events."""

    def by_unit(self, events: Events) -> Iterator[tuple[UnitId, Events]]:
        """The events of each unit, in their order; units ascending."""

    def one_by_one(self, events: Events) -> Iterator[Events]:
        """Each event by itself."""

    def filter(self, events: Events, which: npt.NDArray[np.bool_]) -> Events:
        """Some of the events; the others are not kept in memory by them."""

    def together(self, parts: Sequence[Events]) -> Events:
        """Join events, one after the other."""

    def process(self, events: Events, origin: Origin, state_of: Callable[[UnitId], UnitState]) -> Result:
        """Results of ``events``. Their units have come to the time that the events meet."""

    def advance(self, states: Iterable[UnitState], version: Version) -> Result | None:
        """Results of the timers of units that have come to new times, and are owned under ``version``."""
