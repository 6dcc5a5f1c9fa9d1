"""What comes of replicas of one job: which copy of a result is the first one, and whether they agree.

All replicas have the same turns in a slot, and each gives out the results of a turn behind those of the turns before.
So the first copy of a result is in the first frame of its turn, and it takes one number per slot to know that. And two
replicas with the same chain behind a turn have done the same until there. Pure.
"""

from collections import deque
from typing import NamedTuple

from keyshift.model.frames import OfTurn

KEPT_TURNS = 10_000  # of a slot, whose chain is kept until other replicas come to them: minutes


class FirstCopies:
    """Which frames count. Those of one replica are asked for in the order of their log."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, int]] = {}  # by slot: turn and piece of the last frame that counts

    def counts(self, slot: int, number: int, piece: int) -> bool:
        """Whether this frame of the ``number``-th turn of ``slot`` is the first of its kind; from now on it is not."""
        first = (number, piece) > self._counted.get(slot, (-1, 0))
        if first:
            self._counted[slot] = number, piece
        return first


class Difference(NamedTuple):
    """Two ``replicas`` have another chain behind this turn of ``slot``. They have done the same until turn ``same``, at
    the least; later ones before ``turn`` were not told by both.
    """

    slot: int
    replicas: tuple[int, int]
    turn: int
    epoch: int
    same: int


class Standing(NamedTuple):
    """A replica has done the same as others in all slots since ``since_us``, and not much later than they have; that is
    known up to ``until_us``. Both are microseconds since the epoch.
    """

    since_us: int
    until_us: int


class Chains:
    """The chains of a job's slots, as its replicas tell them. ``compared``: turns so far that two of them have told.

    ``slots``: how many there are. ``near_us``: whoever has a turn later than another one, but not by more, keeps up.
    """

    def __init__(self, slots: int = 1, near_us: int = 0) -> None:
        self.compared = 0
        self._slots, self._near_us = slots, near_us
        # By slot and turn: the chain, who told it first, and when.
        self._told: dict[int, dict[int, tuple[int, int, int]]] = {}
        self._stand: dict[int, dict[int, Standing]] = {}  # by replica and slot
        self._order: dict[int, deque[int]] = {}  # by slot: those turns, as they came
        self._same: dict[tuple[int, int], int] = {}  # by slot and replica: the last turn in which it agreed
        self._differ: set[tuple[int, int]] = set()  # slots, and replicas that have another chain in them

    def told(self, replica: int, slot: int, turn: OfTurn, at_us: int = 0) -> Difference | None:
        """A ``replica`` has this ``turn`` in ``slot``, since ``at_us``. Gives the first difference of each replica, and
        no later ones: behind it everything differs.
        """
        if turn.piece or (slot, replica) in self._differ:
            return None
        known = self._told.setdefault(slot, {})
        chain, first, first_us = known.setdefault(turn.number, (turn.chain, replica, at_us))
        if first == replica:
            self._forget(known, self._order.setdefault(slot, deque()), turn.number)
            return None
        self.compared += 1
        if chain == turn.chain:
            self._same[slot, replica] = turn.number
            self._stands(first, slot, first_us, first_us - at_us)
            self._stands(replica, slot, at_us, at_us - first_us)
            return None
        self._differ.add((slot, replica))
        self._stand.pop(replica, None)
        return Difference(slot, (first, replica), turn.number, turn.epoch, self._same.get((slot, replica), 0))

    def _stands(self, replica: int, slot: int, at_us: int, behind_us: int) -> None:
        mine = self._stand.setdefault(replica, {})
        if behind_us > self._near_us:
            mine.pop(slot, None)
        else:
            mine[slot] = Standing(mine[slot].since_us if slot in mine else at_us, at_us)

    def standings(self) -> dict[int, Standing]:
        """Of each replica that keeps up in all slots."""
        return {
            replica: Standing(
                max(each.since_us for each in mine.values()), min(each.until_us for each in mine.values())
            )
            for replica, mine in self._stand.items()
            if len(mine) == self._slots
        }

    @staticmethod
    def _forget(known: dict[int, tuple[int, int, int]], order: deque[int], number: int) -> None:
        """Only the newest are kept: a replica that has died never comes to them."""
        order.append(number)
        if len(order) > KEPT_TURNS:
            known.pop(order.popleft(), None)
