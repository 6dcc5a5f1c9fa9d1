"""What is simulated: a load on units of state, hosts with links, and what measured runs say that things cost."""

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import isfinite, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from keyshift.model.errors import BadInput
from keyshift.model.keys import Assignment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEVELS = (np.arange(200) + 0.5) / 200  # of the quantiles of latency


def _cost(meaning: str, unit: str) -> dict[str, str]:
    """Say what a cost is, and the unit in which it reads well."""
    return {"meaning": meaning, "unit": unit}


@dataclass(frozen=True, slots=True)
class Costs:
    """What ``fitting.fit`` finds, in seconds. *Core seconds* are of both sides together, half of them on each.

    Raises BadInput for a value that is not finite or is negative; NaN is allowed for the two of a restart: not known.
    """

    request_s: float = field(metadata=_cost("from the request to the first published step", "ms"))
    notify_s: float = field(metadata=_cost("from what the coordinator publishes to whoever acts by it", "ms"))
    answer_s: float = field(metadata=_cost("from a slot's end of a step to a coordinator that knows it", "ms"))
    ack_s: float = field(metadata=_cost("for each answer, of the coordinator: it hears one after the other", "ms"))
    handover_s: float = field(metadata=_cost("hand-over of a step, from aligned to installed, whatever moves", "ms"))
    stream_s: float = field(metadata=_cost("for each stream from slot to slot, of both sides' cores", "ms"))
    unit_s: float = field(metadata=_cost("for each unit, of both sides' cores", "ms"))
    byte_s: float = field(metadata=_cost("for each byte, of both sides' cores", "ns"))
    restart_s: float = field(metadata=_cost("stop and start of the query, whatever its state", "s"))
    stored_byte_s: float = field(metadata=_cost("for each byte written to the store and read, of all cores", "ns"))
    event_s: float = field(metadata=_cost("for each event, of its slot", "µs"))
    row_s: float = field(metadata=_cost("for each row, of its slot", "µs"))
    before_ms: tuple[float, ...]  # latency without a migration less the wait for a frame: quantiles at LEVELS

    def __post_init__(self) -> None:
        for cost in fields(self)[:-1]:
            value = getattr(self, cost.name)
            unknown = isnan(value) and cost.name in ("restart_s", "stored_byte_s")
            if not unknown and not (isfinite(value) and value >= 0):
                raise BadInput(f"{cost.name} = {value}: must be a finite number of seconds, at least 0")
        if not self.byte_s:
            raise BadInput("byte_s = 0: state would take no time on its way; measure runs that move more of it")
        if len(self.before_ms) != len(LEVELS) or not all(map(isfinite, self.before_ms)):
            raise BadInput(f"before_ms: must be {len(LEVELS)} finite numbers, quantiles of latency in milliseconds")

    def latency_ms(self, frame_s: float) -> Floats:
        """The latency without a migration, with frames so far apart: quantiles at ``LEVELS``, shape (200,)."""
        return np.maximum(np.array(self.before_ms) + 1000 * frame_s * LEVELS, 0.0)

    def to_json(self) -> dict[str, Any]:
        """The costs for a file; NaN is null."""
        return {name: None if value != value else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, raw: Any) -> "Costs":
        """The inverse of ``to_json``. Raises BadInput for anything else."""
        names = [cost.name for cost in fields(cls)]
        if not isinstance(raw, dict) or sorted(raw) != sorted(names):
            raise BadInput(f"costs: must be an object with {', '.join(names)}")
        try:
            values = {name: float("nan") if raw[name] is None else float(raw[name]) for name in names[:-1]}
            return cls(**values, before_ms=tuple(map(float, raw["before_ms"])))
        except (TypeError, ValueError) as error:
            raise BadInput(f"costs: {error}") from None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts that are alike. ``link_bytes_per_s``: of a host, each way; infinite if hosts cost no time."""

    host_slots: int
    cores: int
    link_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("host_slots", "cores", "link_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} = {getattr(self, name)}: must be more than 0")

    def floor_s(self, current: Assignment, target: Assignment, unit_bytes: Floats) -> float:
        """Seconds of a bare copy of what must move, over the busiest link; 0 if nothing has to leave its host."""
        here, there = (assignment.slot_of // self.host_slots for assignment in (current, target))
        leaves = here != there
        busiest = [np.bincount(hosts[leaves], unit_bytes[leaves]).max(initial=0.0) for hosts in (here, there)]
        return float(max(busiest)) / self.link_bytes_per_s


@dataclass(frozen=True)
class Load:
    """What is offered and kept: of each unit its events/s, bytes and keys, each of shape (units,)."""

    rates: Floats
    unit_bytes: Floats
    unit_keys: Floats
    routers: int
    frame_s: float
    copy_every_s: float = 1.0  # between two rounds of copying

    @cached_property
    def rows_per_s(self) -> float:
        """Rows per second into each slot."""
        return self.routers / self.frame_s

    def boundaries(self, since_s: float) -> Floats:
        """The next frame of each router from ``since_s`` on, ascending, shape (routers,): routers take turns."""
        turn = self.frame_s / self.routers
        first = np.ceil(since_s / turn - 1e-9)  # that of now is not missed by a rounding error
        return np.maximum((first + np.arange(self.routers)) * turn, since_s)

    def of_slots(self, assignment: Assignment, slots: int) -> Floats:
        """Events/s of each slot, shape (slots,)."""
        return np.bincount(assignment.slot_of, self.rates, minlength=slots).astype(np.float64)

    def check(self, assignment: Assignment, slots: int, costs: Costs) -> None:
        """Raise BadInput if a slot has more to do than it can."""
        busy = self.of_slots(assignment, slots) * costs.event_s + self.rows_per_s * costs.row_s
        if busy.max() >= 1:
            raise BadInput(
                f"rate = {self.rates.sum():g}: slot {busy.argmax()} would be busy for {busy.max():.3g} s of each "
                f"second, {self.rows_per_s * costs.row_s:.2g} s of them with {self.rows_per_s:.0f} rows; lower rate, "
                "skew or routers, raise slots or frame_ms"
            )
