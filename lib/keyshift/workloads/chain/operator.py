"""What the slots of a stage without state compute."""

from collections.abc import Callable, Iterable

import pyarrow as pa

from keyshift.state import UnitState


class MapOperator:
    """Passes events on; see ``Operator``. Its units have no keys, so a migration moves nothing but ownership."""

    uses_time = False
    state_schema = pa.schema([])

    def initial(self, unit: int, state: UnitState) -> None:
        """There is no state."""

    def process(self, events: pa.RecordBatch, state_of: Callable[[int], UnitState]) -> pa.RecordBatch:
        """One result per event."""
        return events.select(["key", "t", "position"])

    def advance(self, states: Iterable[UnitState]) -> None:
        """Nothing waits for a time here."""
