"""What a slot delivers together when its job is replicated: the unit of order, time, output and comparison.

A turn has either rows or barriers. Barriers stand behind the turn whose number they have, and before the next one.
"""

from typing import NamedTuple

from keyshift.runtime.row import Row


class Turn(NamedTuple):
    """The ``number``-th turn of a slot, from 1; all replicas have the same ones. Times are microseconds.

    ``barriers``: one of each channel. ``rows``: data, and ticks that tell the time; what a unit gets, it gets in
    their order. All of them meet the watermark ``met`` and the processing time ``clock``. Behind them the timers up to
    ``reached`` fire, and the next turn meets that. ``chain``: of this turn and all before it, see
    ``ordering.digest``.
    """

    number: int
    barriers: tuple[Row, ...]
    rows: tuple[Row, ...]
    met: int
    reached: int
    clock: int
    chain: int
