"""Replicas of a job agree on what they do together: each comes to it by itself, and the last one lets it happen.

The coordinators of all replicas are threads of one process, so nothing of this travels. Each says what it would do, and
all of them get what follows from that. Whoever has died, or ended itself, has no say, and writes no more by the time
that others go on without it: it would do so under what they have left. A decision counts for all that ask for it,
however late they do.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Member = tuple[int, int]  # a replica, and its attempt
LOOK_S = 0.005  # between two looks at who lives, and whether anybody waits
KEPT = 100  # decisions: whoever asks for one has been there for all before


class Agreement:
    """What all replicas agree on about one stage; they use it by ``MemberSay``. ``living``, for any thread: who lives
    now; nothing of any other one writes.
    """

    def __init__(self, living: Callable[[], Collection[Member]]) -> None:
        self.changed = threading.Condition()
        self.left: set[Member] = set()
        self.said: dict[Hashable, dict[Member, Any]] = {}  # about what is not decided
        self.decided: OrderedDict[Hashable, Any] = OrderedDict()
        self._living = living

    @property
    def members(self) -> set[Member]:
        """The members that are waited for."""
        return {*self._living()} - self.left


class MemberSay:
    """The say of one ``member``, whom ``end`` ends, in an ``agreement``. For its own thread."""

    def __init__(self, agreement: Agreement, member: Member, end: Callable[[], object] = lambda: None) -> None:
        self._agreement, self._member, self._end = agreement, member, end

    def decide(
        self, what: Hashable, mine: T, of_all: Callable[[Mapping[Member, T]], R], wanted: Callable[[], bool]
    ) -> R | None:
        """Give what ``of_all`` makes of what they say of ``what``, of which this is ``mine``. Waits for all that live.

        None if that is not ``wanted`` any more, or nobody counts on this member any more.
        """
        of = self._agreement
        with of.changed:
            if what not in of.decided:
                of.said.setdefault(what, {})[self._member] = mine
            while wanted() and self._member in (members := of.members):
                if what in of.decided:
                    decided: R = of.decided[what]
                    return decided
                if members <= of.said[what].keys():
                    said = of.said.pop(what)
                    of.decided[what] = of_all({each: said[each] for each in members})
                    if len(of.decided) > KEPT:
                        of.decided.popitem(last=False)
                    of.changed.notify_all()
                else:
                    of.changed.wait(LOOK_S)
            return None

    def leave(self) -> bool:
        """End this member, which has no say any more, and say whether that is so: the last one has to go on."""
        of = self._agreement
        with of.changed:
            others = of.members - {self._member}
            if others:
                self._end()
                of.left.add(self._member)
                of.changed.notify_all()
            return bool(others)


def alone() -> MemberSay:
    """The say of a job without replicas: it decides at once, and nobody goes on without it."""
    only = (0, 0)
    return MemberSay(Agreement(lambda: [only]), only)
