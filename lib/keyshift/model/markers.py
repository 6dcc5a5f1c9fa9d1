"""What slots say to whoever drives the job, among their results: behind all that came out before."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class SlotStarted:
    """A first row has come to a slot of ``stage`` in a batch of this ``attempt``."""

    stage: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StateWritten:
    """The slot's part of a savepoint or snapshot is written; with a savepoint nothing comes out any more."""

    stage: str
    savepoint: str


Marker = SlotStarted | StateWritten
_KINDS: dict[str, type[Marker]] = {"ready": SlotStarted, "sealed": StateWritten}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class SlotMarker(NamedTuple):
    """``slot`` says ``marker``."""

    slot: int
    marker: Marker

    def to_json(self) -> dict[str, Any]:
        """The metadata of the frame in which it goes."""
        return {"marker": name_of(self.marker), "slot": self.slot} | asdict(self.marker)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "SlotMarker":
        """The inverse of ``to_json``."""
        fields = {name: value for name, value in raw.items() if name not in ("marker", "slot")}
        return cls(raw["slot"], _KINDS[raw["marker"]](**fields))


def name_of(marker: Marker) -> str:
    """The kind of a marker."""
    return _NAMES[type(marker)]
