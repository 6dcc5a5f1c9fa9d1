"""TimeMerge: the turns of LiveRobin, and within a turn events go by their time.

Source: an older way to agree, with a priority queue on timestamps per epoch. It costs a sort, and rows may be cut into
pieces. The order within a turn then depends neither on the number of the turn nor on who sent what together. The times
of a router's events must not fall, or events of one channel would overtake each other.
"""

from collections.abc import Sequence

from keyshift.ordering.live_robin import LiveRobin
from keyshift.runtime.row import DATA, Row


class TimeMerge(LiveRobin):
    """The machine of TimeMerge. ``Setting.merge`` sorts: what a row contains is not known here."""

    def _ordered(self, rows: Sequence[Row]) -> Sequence[Row]:
        others = [row for row in rows if row.kind != DATA]
        return [*self.setting.merge([row for row in rows if row.kind == DATA]), *others]
