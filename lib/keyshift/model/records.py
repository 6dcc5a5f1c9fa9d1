"""What is written down of steps and snapshots: the vocabulary in which a system under test tells of its state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keyshift.model.keys import Step


@dataclass(slots=True)
class StepRecord:
    """What happened in one step; times in microseconds since the epoch.

    ``acknowledgements``: of each phase and slot what it measured: ``released`` has ``units``, rows of unit, bytes, and
    when it was aligned and sent; ``installed`` has ``units``, rows of unit, and when it was received and installed, and
    ``drained_us``.
    """

    version: int
    step: Step
    published_us: int
    prepared_us: int | None = None
    switched_us: int | None = None
    completed_us: int | None = None
    outcome: str = "under way"  # or complete, rolled back, late, cancelled
    acknowledgements: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A complete snapshot of all stages: when it was requested and complete, in microseconds since the epoch, how
    much was written for it and makes the state, in bytes by stage, and its name in the store.
    """

    begun_us: int
    completed_us: int
    written: Mapping[str, int]
    state: Mapping[str, int]
    name: str
