"""Replicas of a job agree on what they do together: each comes to it by itself, and the last one lets it happen.

The coordinators of all replicas are threads of one process, so nothing of this travels. Each says what it would do, and
all of them get what follows from that. Whoever has died, or ended itself, has no say. A decision counts for all that
ask for it, however late they do.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Member = tuple[int, int]  # a replica, and its attempt
LOOK_S = 0.005  # between two looks at who lives, and whether anybody waits
KEPT = 100  # decisions: whoever asks for one has been there for all before


class Agrees(Protocol):
    """The say of one replica, or of a job that has none."""

    def decide(
        self, what: Hashable, mine: T, of_all: Callable[[Iterable[T]], T], wanted: Callable[[], bool]
    ) -> T | None:
        """What follows ``of_all`` that they say about ``what``, of which this is ``mine``. Waits for all that live.

        None if that is not ``wanted`` any more, or nobody counts on this replica any more.
        """

    def leave(self) -> bool:
        """Have no say any more, and say whether that is so: the last one has to go on."""


class Alone:
    """A job without replicas decides at once, and nobody goes on without it."""

    def decide(
        self, what: Hashable, mine: T, of_all: Callable[[Iterable[T]], T], wanted: Callable[[], bool]
    ) -> T | None:
        """See ``Agrees``."""
        return of_all([mine])

    def leave(self) -> bool:
        """See ``Agrees``."""
        return False


ALONE = Alone()


class Agreement:
    """Of one stage of all replicas. ``living``: those that live now; for any thread."""

    def __init__(self, living: Callable[[], Collection[Member]]) -> None:
        self._living = living
        self._changed = threading.Condition()
        self._left: set[Member] = set()
        self._said: dict[Hashable, dict[Member, Any]] = {}  # about what is not decided
        self._decided: OrderedDict[Hashable, Any] = OrderedDict()

    def of(self, member: Member) -> Agrees:
        """The say of this one."""
        return _Say(self, member)

    def _members(self) -> set[Member]:
        return {*self._living()} - self._left

    def decide(
        self,
        member: Member,
        what: Hashable,
        mine: T,
        of_all: Callable[[Iterable[T]], T],
        wanted: Callable[[], bool],
    ) -> T | None:
        """See ``Agrees``."""
        with self._changed:
            if what not in self._decided:
                self._said.setdefault(what, {})[member] = mine
            while wanted() and member in (members := self._members()):
                if what in self._decided:
                    decided: T = self._decided[what]
                    return decided
                said = self._said[what]
                if members <= said.keys():
                    del self._said[what]
                    self._decided[what] = of_all(said[each] for each in members)
                    if len(self._decided) > KEPT:
                        self._decided.popitem(last=False)
                    self._changed.notify_all()
                else:
                    self._changed.wait(LOOK_S)
            return None

    def leave(self, member: Member) -> bool:
        """See ``Agrees``."""
        with self._changed:
            others = self._members() - {member}
            if others:
                self._left.add(member)
                self._changed.notify_all()
            return bool(others)


class _Say:
    def __init__(self, agreement: Agreement, member: Member) -> None:
        self._agreement, self._member = agreement, member

    def decide(
        self, what: Hashable, mine: T, of_all: Callable[[Iterable[T]], T], wanted: Callable[[], bool]
    ) -> T | None:
        return self._agreement.decide(self._member, what, mine, of_all, wanted)

    def leave(self) -> bool:
        return self._agreement.leave(self._member)
