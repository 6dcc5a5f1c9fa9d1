"""All decisions of an autoscaler, in little room: a job that lasts looks every few seconds, for weeks."""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from keyshift.planner.scaling import Look, Scaling, StageLook, StageScaling

_OF_LOOK, _OF_STAGE = 11, 10  # numbers of a decision, and of each stage in it


class Scalings(Sequence[Scaling]):
    """Decisions in the order in which they were made. One thread appends, any thread reads.

    Numbers are in rows of an array, and each reason is kept once; whoever reads gets decisions made of them anew.
    ``stages``: how many the job has.
    """

    def __init__(self, stages: int) -> None:
        self._width = _OF_LOOK + _OF_STAGE * stages
        self._rows = array("d")
        self._reasons: list[str] = []
        self._indices: dict[str, int] = {}  # of the reasons
        self.moves = 0  # decisions by which something changes

    def append(self, made: Scaling) -> None:
        """Keep one more."""
        reason = self._indices.setdefault(made.reason, len(self._reasons))
        if reason == len(self._reasons):
            self._reasons.append(made.reason)
        self.moves += made.moves
        self._rows.extend(array("d", _numbers(made, reason)))  # at once: another thread sees all of it or nothing

    def __len__(self) -> int:
        return len(self._rows) // self._width

    @overload
    def __getitem__(self, index: int) -> Scaling: ...

    @overload
    def __getitem__(self, index: slice) -> list[Scaling]: ...

    def __getitem__(self, index: int | slice) -> Scaling | list[Scaling]:
        chosen = range(len(self))[index]
        return self._made(chosen) if isinstance(chosen, int) else [*map(self._made, chosen)]

    def _made(self, index: int) -> Scaling:
        row = self._rows[index * self._width : (index + 1) * self._width].tolist()
        at_s, offered_per_s, backlog, missed_s, migrating, migrated_at_s, reason, *costs = row[:_OF_LOOK]
        stages, seen = [], []
        for begin in range(_OF_LOOK, self._width, _OF_STAGE):
            slots, wanted, target, *rates, records, busy_s, emitted = row[begin : begin + _OF_STAGE]
            stages.append(StageScaling(int(slots), int(wanted), int(target), *rates))
            seen.append(StageLook(int(slots), records, busy_s, _or_none(emitted)))
        moves = bool(migrating), _or_none(migrated_at_s)
        look = Look(at_s, offered_per_s, backlog, missed_s, tuple(seen), *moves)
        return Scaling(look, self._reasons[int(reason)], tuple(stages), *costs)


def _numbers(made: Scaling, reason: int) -> Iterator[float]:
    """The numbers of a row. ``reason``: the index of the reason."""
    look = made.look
    yield from (look.at_s, look.offered_per_s, look.backlog, look.missed_s, look.migrating)
    yield from (_or_nan(look.migrated_at_s), reason)
    yield from (made.stay_cost, made.move_cost, made.migration_s, made.migration_missed_s)
    for stage, seen in zip(made.stages, look.stages, strict=True):
        yield from (stage.slots, stage.wanted, stage.target)
        yield from (stage.true_per_s, stage.demand_per_s, stage.utilisation, stage.worth)
        yield from (seen.records, seen.busy_s, _or_nan(seen.emitted))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
