"""What is appointed close together comes to all slots in the order of its epochs, however frames were cut."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from keyshift.checks.replicas import is_capture
from keyshift.model.keys import Assignment, SlotId, Version
from keyshift.ordering import Ordering, Position, Propose, Record, Setting, orderings
from keyshift.protocol.coordinator import Appointment, PublishAssignment
from keyshift.runtime.row import BARRIER, CAPTURE, SAVEPOINT, SNAPSHOT, Row
from keyshift.runtime.slot import Cut
from keyshift.runtime.turn import Turn
from keyshift.runtime.turn_router import TurnRouter
from keyshift.runtime.turn_sender import Sender, TurnSender
from keyshift.runtime.turns import TurnEnd

H, EPOCHS = 20_000, 12
SEEDS = 200 * settings.default.max_examples // 100
SLOTS = 2
AGREE = [name for name, protocol in orderings.items() if protocol.agrees]
Opened = Callable[[Setting, Position], Ordering]


class Appointed(NamedTuple):
    """In the order in which it comes."""

    epoch: int
    kind: int
    version: int  # that holds behind it


def assignment(version: int) -> Assignment:
    return Assignment(Version(version), (SlotId(0), SlotId(1)))


def draw(rng: random.Random) -> list[Appointed]:
    """Some switches and snapshots, and perhaps one savepoint and one capture, which is none behind that."""
    kinds = [rng.choice((BARRIER, SNAPSHOT)) for _ in range(rng.randint(0, 3))]
    epochs = sorted(rng.sample(range(3, EPOCHS), len(kinds)))  # of one coordinator: one behind the other
    found = [Appointed(epoch, kind, 2 + number) for number, (epoch, kind) in enumerate(zip(epochs, kinds, strict=True))]
    ends = rng.choice((EPOCHS, rng.randrange(3, EPOCHS)))
    others = [(SAVEPOINT, ends)] if rng.random() < 0.6 else []
    others += [(CAPTURE, rng.randint(3, ends))] if rng.random() < 0.6 else []
    for kind, epoch in others:
        found.append(Appointed(epoch, kind, max((each.version for each in found if each.epoch <= epoch), default=1)))
    rank = (BARRIER, SNAPSHOT, CAPTURE, SAVEPOINT)  # of what comes at one epoch
    return sorted(found, key=lambda each: (each.epoch, rank.index(each.kind)))


def tell(router: TurnRouter[Any], each: Appointed, given_up: int | None = None) -> None:
    """``given_up``: the epoch of a capture before it of which the router has not heard that it was taken back."""
    if given_up is not None and each.kind in (SAVEPOINT, CAPTURE):
        router.savepoint("given up", Appointment(given_up), stops=False)
    for holds in (False, True):
        appointment = Appointment(each.epoch, holds)
        if each.kind in (BARRIER, SNAPSHOT):
            name = f"{each.kind}" if each.kind == SNAPSHOT else ""
            told = PublishAssignment(assignment(each.version), frozenset(), name, appointment, assignment(1))
            router.switch(told)
        else:
            router.savepoint(f"name-{each.kind}", appointment, stops=each.kind == SAVEPOINT)


def routed(number: int, appointed: Sequence[Appointed], rng: random.Random) -> list[list[Row]]:
    """What each slot gets of a router that is told in any order, and whose frames are cut anyhow."""
    router: TurnRouter[Any] = TurnRouter(PublishAssignment(assignment(1)), SLOTS, 1 << 20, lambda *_: {}, H)
    rows: list[list[Row]] = [[] for _ in range(SLOTS)]
    switches = [each for each in appointed if each.kind in (BARRIER, SNAPSHOT)]
    others = [each for each in appointed if each not in switches]
    due = sorted(switches + others, key=lambda each: rng.random())
    for place in [place for place, each in enumerate(due) if each in switches]:
        due[place] = switches.pop(0)  # these come from one coordinator
    for each in due:
        tell(router, each, rng.choice((None, rng.randint(3, EPOCHS))))
    assert router.may_take(EPOCHS * H), "it would wait for ever"
    epoch, offset = 0, 0
    while epoch < EPOCHS:
        epoch = min(EPOCHS, epoch + rng.choice((0, 1, 1, 2, 9)))
        said, _ = router.frame(number, offset, [], epoch * H + rng.randrange(H))
        offset += 1
        for slot, row in said:
            rows[slot].append(row)
    return rows


class Reader:
    """A slot of one replica: its machine, which now and then goes on in another batch, and ``log``, which it writes if
    it ``leads``.
    """

    def __init__(self, ordering: Opened, setting: Setting, log: list[Record], leads: bool) -> None:
        self.ordering, self.setting, self.log, self.leads = ordering, setting, log, leads
        self.term = self.now_us = 0
        self.turns: list[Turn] = []
        self.open(Position.begin(setting, 1), [])

    def open(self, position: Position, waiting: Sequence[Row]) -> None:
        self.machine, self.term = self.ordering(self.setting, position), self.term + 1
        self.machine.arrived(waiting)
        self.machine.heard(enumerate(self.log))
        if self.leads:
            self.machine.elected(self.term)

    def read(self, channels: Sequence[Sequence[Row]], rng: random.Random) -> list[Turn]:
        """All turns, whatever comes when."""
        left = [deque(rows) for rows in channels]
        while some := [number for number, rows in enumerate(left) if rows]:
            self.machine.arrived([left[rng.choice(some)].popleft()])
            if rng.random() < 0.2:
                self.open(*self.machine.save())
            if rng.random() < 0.5 or not any(left):
                self.deliver()
        assert self.machine.waiting_bytes == 0, "something waits for ever"
        return self.turns

    def deliver(self) -> None:
        while (turn := self.machine.take(True)) is not None or self.ordered():
            self.turns += [turn] if turn else []

    def ordered(self) -> bool:
        """Whether there is something new in the log."""
        self.now_us += 10_000
        self.machine.propose(self.now_us)
        new = [effect.record for effect in self.machine.take_effects() if isinstance(effect, Propose)]
        self.log += new
        self.machine.heard(enumerate(self.log))
        return bool(new)


def said_onward(slot: int, turns: Sequence[Turn], switch: Appointed | None) -> list[list[Row]]:
    """What the slots of the next stage, which switches itself, get of a slot's turns."""
    told = PublishAssignment(assignment(1))
    sender: Any = TurnSender(Sender(slot), told, SLOTS, 1 << 20, lambda *_: {}, H, lambda parts: [*chain(*parts)])
    if switch:
        tell(sender, switch)
    rows: list[list[Row]] = [[] for _ in range(SLOTS)]
    for turn in turns:
        given: list[Any] = [TurnEnd(turn.number, turn.reached, turn.chain)]
        if turn.barriers:
            kind, name = turn.barriers[0].kind, bytes(turn.barriers[0].payload).decode()
            given = [Cut(name, kind == CAPTURE)] if kind in (SAVEPOINT, CAPTURE) else []
        for to, row in sender.give(given):
            rows[to].append(row)
    return rows


def barriers(turns: Sequence[Turn]) -> list[tuple[int, int]]:
    return [(turn.barriers[0].kind, turn.barriers[0].version) for turn in turns if turn.barriers]


def without_captures(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if not is_capture(turn)]


@pytest.mark.parametrize("name", AGREE)
def test_all_slots_come_to_what_is_appointed_in_the_order_of_its_epochs(name):
    protocol, close = orderings.get(name), 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        appointed = draw(rng)
        by_router = [routed(number, appointed, rng) for number in range(rng.randint(1, 3))]
        setting, later, sent = Setting(len(by_router), H), Setting(SLOTS, H, later=True), []
        switch = Appointed(rng.randint(1, EPOCHS), BARRIER, 2) if rng.random() < 0.7 else None
        for slot in range(SLOTS):
            turns = in_replicas(protocol.open, setting, [rows[slot] for rows in by_router], rng)
            wanted = [(each.kind, each.version) for each in appointed]
            if protocol.leads:  # then a capture has no place among the others
                assert sorted(barriers(turns)) == sorted(wanted), f"seed {seed}"
                in_order = [(kind, version) for kind, version in wanted if kind != CAPTURE]
                assert barriers(without_captures(turns)) == in_order, f"seed {seed}"
            else:
                assert barriers(turns) == wanted, f"seed {seed}"
            sent.append(said_onward(slot, turns, switch))
        close += len(appointed) > 1
        if protocol.leads:  # no stage behind another one switches then
            continue
        for slot in range(SLOTS):
            turns = in_replicas(protocol.open, later, [rows[slot] for rows in sent], rng)
            kinds = [each.kind for each in appointed if each.kind in (SAVEPOINT, CAPTURE)] + [BARRIER] * bool(switch)
            assert sorted(kind for kind, _ in barriers(turns)) == sorted(kinds), f"seed {seed}"
    assert close > SEEDS / 4


def in_replicas(
    ordering: Opened, setting: Setting, channels: Sequence[Sequence[Row]], rng: random.Random
) -> list[Turn]:
    """The turns of a slot, which two replicas have alike. Where a capture comes between them may differ if a leader
    orders them: it is of one replica alone.
    """
    log = list[Record]()
    turns, others = (Reader(ordering, setting, log, leads).read(channels, rng) for leads in (True, False))
    if log:
        assert without_captures(turns) == without_captures(others)
    else:
        assert turns == others
    return turns
