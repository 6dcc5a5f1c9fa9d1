"""The order of the results of units that move in the stage before: the new slot's come behind all of the old one's.

A slot of the stage before is a router here. It says in its rows where its results of a unit end, and where they begin.
What comes behind a beginning waits until the old slot has said the end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keyshift.model.ids import UnitId, Version
from keyshift.runtime.row import Row


class ChangeOfHands(NamedTuple):
    """The ``hop``-th change of hands of ``unit`` in the step of ``version``, in the stage before."""

    unit: UnitId
    version: Version
    hop: int


@dataclass(frozen=True, slots=True)
class UnitsMoved:
    """What a row of the kind ``MOVED`` says: the changes whose results begin behind it, and those whose results have
    ended before it. No unit that begins here ends here later: its end is taken at once.
    """

    begun: tuple[ChangeOfHands, ...]
    ended: tuple[ChangeOfHands, ...]


class Succession:
    """The rows that wait in one slot during one batch, by router."""

    def __init__(self) -> None:
        self._ended: set[ChangeOfHands] = set()  # whose beginnings have not come
        self._awaited: dict[int, set[ChangeOfHands]] = {}
        self._kept: dict[int, list[Row]] = {}

    def keep(self, row: Row) -> bool:
        """Whether ``row`` has to wait; then it comes again later."""
        if (kept := self._kept.get(row.router)) is None:
            return False
        kept.append(row)
        return True

    def told(self, router: int, begun: Collection[ChangeOfHands], ended: Collection[ChangeOfHands]) -> list[Row]:
        """Hear what ``router`` has said. Gives the rows that waited for that, in the order of each router."""
        self._ended.update(ended)
        if begun:
            self._awaited.setdefault(router, set()).update(begun)
        for awaited in self._awaited.values():
            came = awaited & self._ended
            self._ended -= came
            awaited -= came
        free = self._let_go()
        for waiting in self._awaited:
            self._kept.setdefault(waiting, [])
        return free

    def end(self) -> list[Row]:
        """Give all that waits: nobody says anything any more."""
        for awaited in self._awaited.values():
            awaited.clear()
        return self._let_go()

    def _let_go(self) -> list[Row]:
        routers: Sequence[int] = [router for router, awaited in self._awaited.items() if not awaited]
        for router in routers:
            del self._awaited[router]
        return [row for router in routers for row in self._kept.pop(router, ())]
