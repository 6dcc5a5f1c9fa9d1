"""How fast the slots of a stage are while they are at work; see ``planner.autoscaling``."""

import math
from dataclasses import dataclass

from keyshift.planner.scaling import Look, StageLook

MEMORY_S = 1.0  # at work, of each slot: older measurements weigh no more than that
TELLING = 1.5  # ratio of slots before and after, from which on the change of capacity is more than noise
RELAX_S = 120.0  # in which the belief that more slots bring nothing is forgotten, all but a third of it
MAPPED_S = 20.0  # likewise, what sources made of their events: their mix changes


@dataclass(slots=True)
class TrueRate:
    """What is remembered of the work of a stage."""

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
        """Take in what the slots did since the look before."""
        if look.records <= 0 or look.busy_s <= 0:  # work without a record says nothing about records
            return
        keep = min(1.0, MEMORY_S * look.slots / self.busy_s) if self.busy_s else 0.0
        self.records = self.records * keep + look.records
        self.busy_s = self.busy_s * keep + look.busy_s
        if look.emitted is not None:
            self.passes_on = look.emitted / look.records

    def fade(self) -> None:
        """Let what was measured hardly count as soon as more is: how fast slots are from here on is yet to be seen."""
        self.records *= 1e-3
        self.busy_s *= 1e-3

    def relax(self, seconds: float) -> None:
        """Forget slowly what more slots have brought: it may not be so for ever."""
        self.worth += (1.0 - self.worth) * -math.expm1(-max(0.0, seconds) / RELAX_S)

    def capacity(self, slots: int, now: int) -> float:
        """Records per second of so many slots, as far as the last migrations tell. ``now``: slots there are."""
        more = slots - now
        return self.true_per_s * (now + (more * self.worth if more > 0 else more))

    def compare(self, slots: int) -> None:
        """Learn, after a migration, how much of the capacity has come that was expected of it."""
        (had, rate), self.before = self.before or (slots, math.nan), None
        if max(slots, had) >= TELLING * min(slots, had) and self.busy_s and rate > 0:
            came = (slots * self.true_per_s - had * rate) / (slots * rate - had * rate)
            self.worth = (self.worth + min(1.0, max(0.0, came))) / 2


@dataclass(slots=True)
class MappedRate:
    """What the sources' ``map`` makes of an event: a few records of the first stage, or, of most, none."""

    records: float = 0.0
    events: float = 0.0
    backlog: float = 0.0  # at the look before

    @property
    def each(self) -> float:
        """Records of the first stage for each event offered; 1 as long as that is not known."""
        return self.records / self.events if self.events else 1.0

    def measure(self, look: Look, seconds: float, full: bool) -> None:
        """Take in the ``seconds`` since the look before. ``full``: the first stage was at work nearly all of them.

        The events of these records are those offered, less those that wait since. With several stages nobody knows at
        which of them these wait, and without a backlog not how many do if the stage is full: then what was known
        counts, as far as that can be.
        """
        records, offered = look.stages[0].records, look.offered_per_s * seconds
        taken = max(0.0, offered - look.backlog + self.backlog)
        least, most = (taken, taken) if len(look.stages) == 1 else (min(offered, taken), max(offered, taken))
        if full and not look.backlog:
            least = 0.0
        self.backlog = look.backlog
        events = min(most, max(least, records / self.each))
        if records > 0 and events > 0:
            keep = math.exp(-seconds / MAPPED_S)
            self.records, self.events = self.records * keep + records, self.events * keep + events
