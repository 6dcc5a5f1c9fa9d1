"""How fast the slots of a stage are while they are at work; see ``planner.autoscaling``."""

import math
from dataclasses import dataclass

from keyshift.planner.scaling import StageLook

MEMORY_S = 1.0  # at work, of each slot: older measurements weigh no more than that
TELLING = 1.5  # ratio of slots before and after, from which on the change of capacity is more than noise
RELAX_S = 120.0  # in which the belief that more slots bring nothing is forgotten, all but a third of it


@dataclass(slots=True)
class TrueRate:
    """Of a stage: what is remembered of its work."""

    records: float = 0.0
    busy_s: float = 0.0
    passes_on: float = 1.0  # records emitted for each processed
    worth: float = 1.0  # the share of the capacity that more slots promised, and that came
    before: tuple[int, float] | None = None  # slots and true rate when the last migration was decided

    @property
    def true_per_s(self) -> float:
        """Records per second at work, of one slot; NaN if none was seen."""
        return self.records / self.busy_s if self.busy_s else math.nan

    def measure(self, look: StageLook) -> None:
        """What the slots did since the look before."""
        if look.records <= 0 or look.busy_s <= 0:  # work without a record says nothing about records
            return
        keep = min(1.0, MEMORY_S * look.slots / self.busy_s) if self.busy_s else 0.0
        self.records = self.records * keep + look.records
        self.busy_s = self.busy_s * keep + look.busy_s
        if look.emitted is not None:
            self.passes_on = look.emitted / look.records

    def fade(self) -> None:
        """How fast slots are from here on is yet to be seen: what was measured counts until then, and hardly later."""
        self.records *= 1e-3
        self.busy_s *= 1e-3

    def relax(self, seconds: float) -> None:
        """What more slots have brought may not be so for ever."""
        self.worth += (1.0 - self.worth) * -math.expm1(-max(0.0, seconds) / RELAX_S)

    def capacity(self, slots: int, now: int) -> float:
        """Records per second of so many slots, as far as the last migrations tell. ``now``: slots there are."""
        more = slots - now
        return self.true_per_s * (now + (more * self.worth if more > 0 else more))

    def compare(self, slots: int) -> None:
        """After a migration: has the capacity come that was expected of it?"""
        (had, rate), self.before = self.before or (slots, math.nan), None
        if max(slots, had) >= TELLING * min(slots, had) and self.busy_s and rate > 0:
            came = (slots * self.true_per_s - had * rate) / (slots * rate - had * rate)
            self.worth = (self.worth + min(1.0, max(0.0, came))) / 2
