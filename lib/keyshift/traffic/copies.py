"""What comes of replicas of one job: which copy of a result is the first one, and whether they agree.

All replicas have the same turns in a slot, and each gives out the results of a turn behind those of the turns before.
So the first copy of a result is in the first frame of its turn, and it takes one number per slot to know that. And two
replicas with the same chain behind a turn have done the same until there.

If one replica moves its state after the other, a unit may be in different slots for a while. All slots have the turns
of the same numbers, and a unit has the same results in a turn wherever it is: so results are counted by turn and unit,
and a turn is compared by itself, between replicas that have the same assignment. Pure.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keyshift.model.frames import OfTurn

UNKNOWN = -1  # version of a turn that has no result of an event
NO_TURN_YET = -1  # before the first turn of a slot
KEPT_TURNS = 10_000  # of a slot, whose chain is kept until other replicas come to them: minutes
KEPT_TURNS_OF_UNITS = 3_000  # of all slots, at the least: each has a number for each unit


class Superseded(NamedTuple):
    """What a job with replicas had given when another process went on with it, from a state that was written before: it
    comes once more, maybe in other slots. ``ends``: of each log of results, by partition, where that process begins.
    ``turns``: by stage and slot, behind which turns that process begins; all of them where none is known.
    """

    ends: tuple[Mapping[int, int], ...]
    turns: Mapping[str, Mapping[int, int]]

    def covers(self, replica: int, partition: int, log_offset: int, stage: str, slot: int, turn: int) -> bool:
        """Whether what is at ``log_offset``, of this ``turn`` of ``slot``, counts for nothing."""
        return log_offset < self.ends[replica][partition] and turn > self.turns.get(stage, {}).get(slot, NO_TURN_YET)

    def within(self, ends: tuple[Mapping[int, int], ...]) -> "Superseded":
        """The same, where logs end so now: Kafka may have lost the end of some, and what comes there is of others."""
        left = (
            {partition: min(end, now[partition]) for partition, end in before.items()}
            for before, now in zip(self.ends, ends, strict=True)
        )
        return self._replace(ends=tuple(left))


class Incarnation(NamedTuple):
    """What a replica gives between two deaths, in one ``attempt`` of its job: behind these ``turns``, by slot of the
    last stage. The first one gives all from the beginning.
    """

    turns: Mapping[int, int] = {}
    attempt: int = 0


class FirstCopies:
    """Which frames count. Those of one replica are asked for in the order of their log."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, int]] = {}  # by slot: turn and piece of the last frame that counts

    def counts(self, slot: int, number: int, piece: int) -> bool:
        """Whether this frame of the ``number``-th turn of ``slot`` is the first of its kind; from now on it is not."""
        first = (number, piece) > self._counted.get(slot, (NO_TURN_YET, 0))
        if first:
            self._counted[slot] = number, piece
        return first


class FirstResults:
    """Which results count if replicas have different assignments for a while. Frames of each log are asked for in their
    order; a unit that has changed its slot may go on there before all of it has come from here.

    A turn is forgotten when one replica has given all of it: when it has come to a later one in each of its ``slots``.
    Logs may be read far ahead of each other.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._come: OrderedDict[int, Counter[int]] = OrderedDict()  # by turn: how many results of each unit
        self._forgotten = NO_TURN_YET  # the latest turn that is not among them any more
        self._given: dict[tuple[int, int], tuple[int, Counter[int]]] = {}  # by replica and slot: of its last turn

    def count(self, replica: int, slot: int, number: int, units: Iterable[int]) -> list[bool]:
        """Say which results of a frame of turn ``number`` are the first of their kind; from now on they are not.
        ``units``: of each of them, in their order; none of a turn without results.
        """
        last, given = self._given.get((replica, slot), (NO_TURN_YET, Counter[int]()))
        if last != number:
            given = Counter()
        self._given[replica, slot] = number, given
        come = self._come.get(number)
        if come is None:
            if number <= self._forgotten:
                return [False for _ in units]
            come = self._come[number] = Counter()
        first = []
        for unit in units:
            given[unit] += 1
            first.append(given[unit] > come[unit])
            come[unit] = max(come[unit], given[unit])
        if len(self._come) > KEPT_TURNS_OF_UNITS:
            self._forget()
        return first

    def _forget(self) -> None:
        reached = defaultdict[int, list[int]](list)  # by replica
        for (replica, _), (number, _) in self._given.items():
            reached[replica].append(number)
        whole = max((min(each) for each in reached.values() if len(each) == self._slots), default=NO_TURN_YET)
        while len(self._come) > KEPT_TURNS_OF_UNITS and (number := next(iter(self._come))) < whole:
            self._come.popitem(last=False)
            self._forgotten = max(self._forgotten, number)


class Difference(NamedTuple):
    """Two ``replicas`` have another chain behind this turn of ``slot``, which closes ``epoch``. They have done the same
    until turn ``same``, at the least; later ones before ``turn`` were not told by both.
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
    ``apart``: replicas may have different assignments for a while, and chains are of a turn alone.
    """

    def __init__(self, slots: int = 1, near_us: int = 0, apart: bool = False) -> None:
        self.compared = 0
        self._slots, self._near_us, self._apart = slots, near_us, apart
        # By slot and turn, as they came: the chain, who told it first, when, and under which version.
        self._told = defaultdict[int, OrderedDict[int, tuple[int, int, int, int]]](OrderedDict)
        self._stand = defaultdict[int, dict[int, Standing]](dict)  # by replica and slot
        self._same: dict[tuple[int, int], int] = {}  # by slot and replica: the last turn in which it agreed
        self._differ: set[tuple[int, int]] = set()  # slots, and replicas that have another chain in them
        self._come_to = defaultdict[int, Counter[int]](Counter)  # by replica and slot: the epoch that it told last

    def told(self, replica: int, slot: int, turn: OfTurn, at_us: int = 0, version: int = UNKNOWN) -> Difference | None:
        """Hear that ``replica`` has this ``turn`` in ``slot``, since ``at_us``, under ``version``. Gives the first
        difference of each replica, and no later ones: behind it everything differs.
        """
        self._come_to[replica][slot] = turn.epoch
        if turn.piece or (slot, replica) in self._differ:
            return None
        known = self._told[slot]
        chain, first, first_us, under = known.setdefault(turn.number, (turn.chain, replica, at_us, version))
        if first == replica:
            if len(known) > KEPT_TURNS:  # a replica that has died never comes to the oldest
                known.popitem(last=False)
            return None
        alike = not self._apart or under == version != UNKNOWN  # otherwise there is nothing to be compared
        self.compared += alike
        if not alike or chain == turn.chain:
            self._same[slot, replica] = turn.number if alike else self._same.get((slot, replica), 0)
            self._stands(first, slot, first_us, first_us - at_us)
            self._stands(replica, slot, at_us, at_us - first_us)
            return None
        self._differ.add((slot, replica))
        self._stand.pop(replica, None)
        return Difference(slot, (first, replica), turn.number, turn.epoch, self._same.get((slot, replica), 0))

    def _stands(self, replica: int, slot: int, at_us: int, behind_us: int) -> None:
        mine = self._stand[replica]
        if behind_us > self._near_us:
            mine.pop(slot, None)
        else:
            mine[slot] = Standing(mine[slot].since_us if slot in mine else at_us, at_us)

    def standings(self) -> dict[int, Standing]:
        """The standing of each replica that keeps up in all slots."""
        return {
            replica: Standing(
                max(each.since_us for each in mine.values()), min(each.until_us for each in mine.values())
            )
            for replica, mine in self._stand.items()
            if len(mine) == self._slots
        }

    def behind(self) -> dict[int, int]:
        """Count the epochs that each replica is behind the one that has come furthest, in the slot where that is most.
        One that comes back, and replays, is behind by what it has still to replay.
        """
        furthest: Counter[int] = Counter()
        for epochs in self._come_to.values():
            furthest |= epochs
        return {
            replica: max(furthest[slot] - epoch for slot, epoch in epochs.items())
            for replica, epochs in self._come_to.items()
        }
