"""What slots say to whoever drives the job, among their results: behind all that came out before."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from keyshift.model.ids import Version


@dataclass(frozen=True, slots=True)
class SlotStarted:
    """A first row has come to a slot of ``stage`` in a batch of this ``attempt``, which it begins at this ``version``.
    The number of an attempt that ZooKeeper has lost is given again, while Kafka has its markers; its version never is.
    """

    stage: str
    attempt: int
    version: Version
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class StateWritten:
    """The slot's part of a savepoint or snapshot is written; with a savepoint nothing comes out any more."""

    stage: str
    savepoint: str
    kind: Literal["sealed"] = "sealed"


@dataclass(frozen=True, slots=True)
class TurnTold:
    """A slot of ``stage``, which is not the last one, has this ``chain`` behind its ``number``-th turn, and is in
    ``epoch`` of its order there.
    """

    stage: str
    number: int
    epoch: int
    chain: int
    kind: Literal["turn"] = "turn"


Marker = SlotStarted | StateWritten | TurnTold


@dataclass(frozen=True, slots=True)
class SlotMarker:
    """A ``marker``, and the ``slot`` that says it. The collector knows its ``replica``, the slot does not."""

    slot: int
    marker: Annotated[Marker, Field(discriminator="kind")]
    replica: int = 0
    kind: Literal["marker"] = "marker"
