"""What a run's frames and its final state say about time, so that no oracle has to believe what results claim.

A slot's watermark is the least of those of its routers, and a router's is that of its last frame. So the watermark that
an event may have met is bounded from above by the frames before its own, and from below by what earlier frames of its
router have met in the same slot.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from keyshift.model.keys import Assignment
from keyshift.state.timers import CLOCK, EVENT, PROCESSING, TIMER_SCHEMA, WATERMARK
from keyshift.workloads.tables import lines

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NEVER = np.iinfo(np.int64).max
_HOME = ["unit", "slot"]


@dataclass(frozen=True)
class Times:
    """What a run says of time. ``frames``: router, offset and watermark (0 says nothing) of every frame of input.
    ``timers``: parts of the final state, columns unit, slot and those of ``TIMER_SCHEMA``; looked at only when the
    final state has been read. ``assignments``: every version that was in force. ``ends``: the offsets behind which the
    final savepoint has nothing of each router; without it all frames count. ``begins``: the first assignment version of
    every attempt. ``lending``: versions of steps that may lend units. ``lag_us``: by how much a slot's watermark may be
    behind that of a router's last frame, since it does not get a row of every frame. ``heartbeat_us``: if slots work in
    turns, what they know of time are multiples of this. ``stopped``: the job stands at the end: all timers have fired
    which were due; otherwise, at a snapshot, those of each unit by the times that it has come to itself.
    """

    frames: pd.DataFrame
    timers: Sequence[pd.DataFrame]
    assignments: Sequence[Assignment]
    ends: Mapping[int, int] = field(default_factory=dict)
    begins: Collection[int] = ()
    lending: Collection[int] = ()
    lag_us: int = 0
    heartbeat_us: int = 0
    stopped: bool = True

    # -- from the frames ----------------------------------------------------------------------------------------------

    @cached_property
    def least(self) -> int:
        """The least of the routers' watermarks at the final savepoint: no unit can have come further."""
        return min((int(self._before(r, self.ends.get(r, _NEVER))) for r in self._reached), default=0)

    def strange(self, watermarks: pd.Series) -> Mask:
        """Find which of ``watermarks`` no slot can have had: no frame had them, or they are beyond ``least``."""
        given = watermarks.to_numpy()
        return ~np.isin(given, self._known) | (given > self.least)

    def highest(self, router: npt.NDArray[Any], offset: Numbers) -> Numbers:
        """For each event the highest watermark that it may have met: its router's before its own frame."""
        highest = np.zeros(len(router), np.int64)
        for each in self._reached:
            mine = router == each
            highest[mine] = self._before(each, offset[mine])
        return highest

    def lowest(self, answers: pd.DataFrame) -> Numbers:
        """For each event the lowest watermark that it may have met, 0 if that is not known.

        ``answers``: columns unit, slot, router, offset, version, and ``watermark``, that of the unit then (0: unknown).
        All rows of a frame meet the same in a slot, and a slot's watermark only grows: no row falls below what another
        one has met that is of the same router, and not of a later frame. Two exceptions. A unit may bring a watermark
        along that its new slot has yet to reach: one that was reached before the move proves nothing. And time stands
        for a unit that is about to leave or is lent: only what comes behind its last move of an attempt is looked at.
        """
        unit, slot, router, offset, version, watermark = (
            answers[name].to_numpy() for name in ("unit", "slot", "router", "offset", "version", "watermark")
        )
        attempt = np.searchsorted(sorted(self.begins), version, side="right")
        settled = self._settled[attempt, unit]
        brought = self._brought(_first_offsets(router, offset, version))[attempt, unit]
        proof = np.where((version >= settled) & (watermark > brought), watermark, 0)

        order = np.lexsort((offset, router, slot, attempt))
        channel = _numbered(attempt[order], slot[order], router[order])
        met = pd.Series(proof[order]).groupby(channel).cummax()
        lowest = np.empty(len(answers), np.int64)
        lowest[order] = met.groupby(_numbered(channel, offset[order])).transform("last")
        lent = (version == settled) & np.isin(version, list(self.lending))
        lowest[(version < settled) | lent] = 0
        return lowest

    @cached_property
    def _reached(self) -> dict[int, tuple[Numbers, Numbers]]:
        """For each router its offsets, ascending, and how far it had come before the first frame, the second, ..."""
        reached, ordered = {}, self.frames.sort_values("offset")
        for router in np.unique(ordered["router"]).tolist():
            mine = ordered[ordered["router"] == router]
            watermarks = np.maximum.accumulate(mine["watermark"].to_numpy())
            if self.heartbeat_us:
                watermarks = watermarks // self.heartbeat_us * self.heartbeat_us
            reached[router] = mine["offset"].to_numpy(), np.concatenate([[0], watermarks])
        return reached

    @cached_property
    def _known(self) -> Numbers:
        return np.unique(np.concatenate([[0], *(watermarks for _, watermarks in self._reached.values())]))

    def _before(self, router: int, offset: Any) -> Any:
        """Return how far ``router`` had come before its frame at each ``offset``."""
        offsets, reached = self._reached[router]
        return reached[np.searchsorted(offsets, offset)]

    @cached_property
    def _settled(self) -> Numbers:
        """From which version on a unit stays where it is until the end of the attempt: shape (attempts + 1, units)."""
        settled = np.zeros((len(self.begins) + 1, max(len(a.owner) for a in self.assignments)), np.int64)
        before: dict[int, Assignment] = {}
        for assignment in sorted(self.assignments, key=lambda a: a.version):
            attempt = int(np.searchsorted(sorted(self.begins), assignment.version, side="right"))
            last = before.get(attempt)
            moved = np.full(len(assignment.owner), True) if last is None else last.slot_of != assignment.slot_of
            settled[attempt, moved] = assignment.version
            before[attempt] = assignment
        return settled

    def _brought(self, firsts: dict[int, tuple[Numbers, Numbers]]) -> Numbers:
        """Return what a unit may have brought along when it settled, at most: a watermark from before all routers'
        switches.

        ``firsts``: see ``_first_offsets``.
        """
        versions, where = np.unique(self._settled, return_inverse=True)
        brought = np.full(len(versions), _NEVER)
        for router in self._reached:
            known, offsets = firsts.get(router, (np.empty(0, np.int64), np.empty(0, np.int64)))
            switched = np.append(offsets, _NEVER)[np.searchsorted(known, versions)]
            brought = np.minimum(brought, self._before(router, switched))
        return brought[where].reshape(self._settled.shape)

    # -- from the final state -----------------------------------------------------------------------------------------

    def timers_of(self, kind: int) -> pd.DataFrame:
        """Return what is left of a kind: columns unit, slot, time and key."""
        return self._table[self._table["kind"] == kind].drop(columns="kind")

    def homes(self) -> set[tuple[int, int]]:
        """Unit and slot of everything in the final state."""
        return set(zip(self._table["unit"].tolist(), self._table["slot"].tolist(), strict=True))

    @cached_property
    def clocks(self) -> Numbers:
        """By unit the processing time up to which its timers must have fired: the furthest that any unit of its slot
        has come, or itself if the job was not ``stopped``. 0 for a unit that is nowhere.
        """
        clocks = np.zeros(self._settled.shape[1], np.int64)
        here = self.timers_of(CLOCK)
        here = here.assign(time=here.groupby(self._together)["time"].transform("max"))
        here = here[(here["unit"] >= 0) & (here["unit"] < len(clocks))]
        np.maximum.at(clocks, here["unit"].to_numpy(), here["time"].to_numpy())
        return clocks

    def wrong(self) -> Iterator[str]:
        """One line for each unit of the final state that came too far, and for each timer that should have fired."""
        if not (self._table["time"].any() or (self._table["kind"] >= EVENT).any()):
            return  # nobody has used time: so many frames need no look
        reached = self.timers_of(WATERMARK)
        unit = "final state of unit {unit}, slot {slot}: "
        text = unit + f"watermark {{time}}, which no frame has, or is beyond {self.least}, the least of the routers'"
        yield from lines(reached, self.strange(reached["time"]), text)
        watermarks = reached.groupby(_HOME)["time"].max()
        if self.stopped:
            watermarks = watermarks.clip(lower=self.least - self.lag_us)
        clocks = self.timers_of(CLOCK).groupby(self._together)["time"].max()
        for kind, on, until in ((EVENT, _HOME, watermarks), (PROCESSING, self._together, clocks)):
            timers = self.timers_of(kind).merge(until.rename("until").reset_index(), on=on, how="left")
            text = unit + "timer of key {key} set to {time} has not fired by {until:.0f}"
            yield from lines(timers, timers["time"] <= timers["until"], text)

    @property
    def _together(self) -> list[str]:
        """What has come to the same processing time."""
        return ["slot"] if self.stopped else _HOME

    @cached_property
    def _table(self) -> pd.DataFrame:
        columns = [*_HOME, *TIMER_SCHEMA.names]
        return pd.concat([part[columns] for part in self.timers] or [pd.DataFrame(columns=columns, dtype=np.int64)])


def _first_offsets(router: npt.NDArray[Any], offset: Numbers, version: Numbers) -> dict[int, tuple[Numbers, Numbers]]:
    """For each router the versions of its events, ascending, and its first offset under each of them or a later one."""
    seen = pd.Series(offset).groupby([router, version]).min()
    firsts = {}
    for each in np.unique(router).tolist():
        mine = seen.loc[each]
        firsts[each] = mine.index.to_numpy(), np.minimum.accumulate(mine.to_numpy()[::-1])[::-1]
    return firsts


def _numbered(*columns: npt.NDArray[Any]) -> Numbers:
    """0, 1, ... for the runs of rows that are alike in all ``columns``."""
    changes = np.logical_or.reduce([np.diff(column) != 0 for column in columns])
    return np.concatenate([[0], np.cumsum(changes)])[: len(columns[0])]
