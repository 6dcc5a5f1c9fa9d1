"""The phase of each unit of a slot, and the table of what leads from one phase to the next."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from enum import StrEnum, auto

from keyshift.model.keys import UnitId


class Phase(StrEnum):
    """Where the state of a unit is, as far as this slot knows, and what becomes of the unit's records here."""

    ELSEWHERE = auto()  # another slot's: no record may come
    # Ours, and not in a step
    EXPECTED = auto()  # still in the process that held the slot before, or in a savepoint: records queue
    HERE = auto()  # records are processed
    # At the source of a move
    STILL_EXPECTED = auto()  # will leave, and has to come first: records queue
    LEAVING = auto()  # records are processed until those of every router are
    LENDING = auto()  # lent to the destination, which has not acknowledged that: late records queue
    LENT = auto()  # the destination has it: late records queue
    BACK = auto()  # back before the lending was acknowledged: late records are processed
    SENDING = auto()  # the destination's for good, which has not acknowledged that
    # At its destination
    ARRIVING = auto()  # records queue
    BORROWED = auto()  # records of the routers that it was lent for are processed, others queue
    RETURNING = auto()  # given back, which is not acknowledged: records queue
    BORROWED_AGAIN = auto()  # the same as borrowed, but the return before is not acknowledged
    KEPT = auto()  # ours for good, but the return before is not acknowledged


class Event(StrEnum):
    """What happens to a unit."""

    TAKE = auto()  # a step is prepared that takes it away
    BRING = auto()  # a step is prepared that brings it
    DROP = auto()  # that step does not happen
    ARRIVE = auto()  # its state comes for good
    ARRIVE_LENT = auto()  # its state comes for a while; or what we lent comes back
    OPEN = auto()  # what was lent to us is ours for good
    ACKNOWLEDGE = auto()  # the other slot has what we sent to it last
    LEND = auto()  # we lend it to its destination
    RETURN = auto()  # we give back what was lent to us
    GIVE = auto()  # we give it to its destination for good


TRANSITIONS: dict[Phase, dict[Event, Phase]] = {
    Phase.ELSEWHERE: {Event.BRING: Phase.ARRIVING},
    Phase.EXPECTED: {Event.ARRIVE: Phase.HERE, Event.TAKE: Phase.STILL_EXPECTED},
    Phase.HERE: {Event.TAKE: Phase.LEAVING},
    Phase.STILL_EXPECTED: {Event.ARRIVE: Phase.LEAVING, Event.DROP: Phase.EXPECTED},
    Phase.LEAVING: {Event.LEND: Phase.LENDING, Event.GIVE: Phase.SENDING, Event.DROP: Phase.HERE},
    Phase.LENDING: {Event.ACKNOWLEDGE: Phase.LENT, Event.ARRIVE_LENT: Phase.BACK},
    Phase.LENT: {Event.ARRIVE_LENT: Phase.LEAVING, Event.GIVE: Phase.SENDING},
    Phase.BACK: {Event.ACKNOWLEDGE: Phase.LEAVING},
    Phase.SENDING: {Event.ACKNOWLEDGE: Phase.ELSEWHERE},
    Phase.ARRIVING: {Event.ARRIVE: Phase.HERE, Event.ARRIVE_LENT: Phase.BORROWED, Event.DROP: Phase.ELSEWHERE},
    Phase.BORROWED: {Event.OPEN: Phase.HERE, Event.RETURN: Phase.RETURNING},
    Phase.RETURNING: {
        Event.ACKNOWLEDGE: Phase.ARRIVING,
        Event.ARRIVE: Phase.KEPT,
        Event.ARRIVE_LENT: Phase.BORROWED_AGAIN,
    },
    Phase.BORROWED_AGAIN: {Event.ACKNOWLEDGE: Phase.BORROWED, Event.OPEN: Phase.KEPT},
    Phase.KEPT: {Event.ACKNOWLEDGE: Phase.HERE},
}

SERVED = frozenset({Phase.HERE, Phase.LEAVING, Phase.BACK, Phase.BORROWED, Phase.BORROWED_AGAIN, Phase.KEPT})
AWAITED = frozenset({Phase.EXPECTED, Phase.STILL_EXPECTED, Phase.ARRIVING, Phase.RETURNING})
AWAY = frozenset({Phase.LENDING, Phase.LENT})  # lent by us
ON_LOAN = frozenset({Phase.BORROWED, Phase.BORROWED_AGAIN})  # lent to us
AT_THE_OTHER = AWAY | {Phase.ARRIVING, Phase.RETURNING}  # the other slot of the move has it, as far as we know
TO_LEAVE = AWAY | {Phase.STILL_EXPECTED, Phase.LEAVING, Phase.BACK}
# The other slot has not acknowledged that it was lent, or given back.
UNACKNOWLEDGED = frozenset({Phase.LENDING, Phase.BACK, Phase.RETURNING, Phase.BORROWED_AGAIN, Phase.KEPT})
# What a step, or a part of it, has to wait for: behind the gate, and to be reported as released or installed.
NOT_MOVED = TO_LEAVE | {Phase.SENDING, Phase.ARRIVING, Phase.RETURNING}
NOT_RELEASED = TO_LEAVE | UNACKNOWLEDGED | {Phase.SENDING}
NOT_INSTALLED = UNACKNOWLEDGED | {Phase.ARRIVING, Phase.BORROWED}
STANDING = NOT_RELEASED | ON_LOAN  # no event time passes once a router has switched


class Phases(dict[UnitId, Phase]):
    """The phases of the units of one slot; units that are not listed are elsewhere.

    ``serving`` and ``expected`` are its units in a phase of ``SERVED`` and of ``AWAITED``.
    """

    def __init__(self, serving: Iterable[UnitId], expected: Iterable[UnitId]) -> None:
        self.serving, self.expected = set(serving), set(expected)
        super().__init__(dict.fromkeys(self.serving, Phase.HERE) | dict.fromkeys(self.expected, Phase.EXPECTED))
        self._count = dict.fromkeys(Phase, 0) | Counter(self.values())

    def __missing__(self, unit: UnitId) -> Phase:
        return Phase.ELSEWHERE

    def any(self, phases: AbstractSet[Phase]) -> bool:
        """Whether a unit is in one of ``phases``."""
        return any(map(self._count.__getitem__, phases))

    def move(self, unit: UnitId, event: Event) -> None:
        """Let ``event`` happen to ``unit``. Raises KeyError, and changes nothing, if it cannot in the unit's phase."""
        after = TRANSITIONS[self[unit]][event]
        if unit in self:
            self._count[self[unit]] -= 1
        if after is Phase.ELSEWHERE:
            del self[unit]
        else:
            self[unit] = after
            self._count[after] += 1
        for units, phases in ((self.serving, SERVED), (self.expected, AWAITED)):
            (units.add if after in phases else units.discard)(unit)
