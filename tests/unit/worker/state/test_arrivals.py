"""What a slot finds elsewhere when it opens comes to it, what is needed first in front, whatever fails on the way."""

import threading
from types import SimpleNamespace

import pytest
from tenacity import stop_after_attempt

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import RESTORING, Location
from keyshift.wire.savepoint import SavedUnit
from keyshift.worker.flight.messages import Shipment, Taken
from keyshift.worker.state import arrivals, outbox
from keyshift.worker.state.arrivals import Arrivals

MOST = 2
ATTEMPTS = 5  # as many as there is time for within a deadline


class Predecessor:
    """The process that held the slot: streams break after as many units as ``breaks`` says, one number for each."""

    def __init__(self, breaks=()):
        self.breaks = list(breaks)
        self.asked, self.taken, self.deaf = [], [], 0

    def pull(self, address, slot, units, arrived):
        assert (address, slot) == ("there", 1)
        self.asked.append(units)
        whole = self.breaks.pop(0) if self.breaks else len(units)
        for unit in units[:whole]:
            arrived([Shipment(unit)])
        if whole < len(units):
            raise ServiceUnavailable("the stream broke")

    def tell(self, address, message):
        assert address == "there" and isinstance(message, Taken) and message.slot == 1
        if self.deaf:
            self.deaf -= 1
            raise ServiceUnavailable("not heard")
        self.taken.append(list(message.units))


class Slot(Arrivals):
    """Waits for all units but those in ``elsewhere``, the last in the order first."""

    def __init__(self, *units, elsewhere=()):
        self.units, self.wanted, self.got = units, [*reversed(units), *elsewhere], []
        self.closed = threading.Event()
        self.nodes = MemoryCoordination(Memory())
        self.nodes.begin()
        shared = SimpleNamespace(
            slot=1,
            clients=None,
            closed=self.closed,
            lock=threading.Lock(),
            core=SimpleNamespace(machine=self),
            config=SimpleNamespace(stage="counter", bins=MOST, deadline_s=30.0),
            coordination=self.nodes,
        )
        super().__init__(shared, None, {})

    def fetch(self, before):
        self._shared.clients = before
        self.pull(self.units, "there")

    def take(self, shipments):
        for shipment in shipments:
            self.got.append(shipment.unit)
            self.wanted.remove(shipment.unit)
        return [True] * len(shipments)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(arrivals, "PULL_GROUPS", 1)
    monkeypatch.setattr(outbox, "RETRY_MOST_S", 0.001)
    monkeypatch.setattr(outbox, "stop_after_delay", lambda within_s: stop_after_attempt(ATTEMPTS))


def test_units_come_a_few_at_a_time_what_is_needed_first_in_front_and_are_given_up_there():
    slot, before = Slot(4, 5, 6, 7, 8, elsewhere=[99]), Predecessor()
    slot.fetch(before)
    assert before.asked == [[8, 7], [6, 5], [4]]
    assert slot.got == before.taken[-1] == [8, 7, 6, 5, 4]
    assert slot.wanted == [99], "that comes with a step"


def test_what_has_become_urgent_meanwhile_comes_next():
    slot, before = Slot(4, 5, 6, 7, 8), Predecessor()
    pull = before.pull

    def urgent(*arguments):
        pull(*arguments)
        slot.wanted.sort()

    before.pull = urgent
    slot.fetch(before)
    assert before.asked == [[8, 7], [4, 5], [6]]


def test_a_stream_that_breaks_goes_on_where_it_broke():
    slot, before = Slot(4, 5, 6, 7), Predecessor(breaks=[1, 0, 0, 1])
    slot.fetch(before)
    assert before.asked == [[7, 6], [6, 5], [6, 5], [6, 5], [5, 4]]
    assert slot.got == before.taken[-1] == [7, 6, 5, 4], "each once"


def test_that_units_were_taken_is_told_again_if_it_was_not_heard_and_nobody_waits_for_it():
    slot, before = Slot(4, 5, 6, 7), Predecessor()
    before.deaf = 1
    slot.fetch(before)
    assert before.taken == [[7, 6, 5, 4]]
    slot, before = Slot(4), Predecessor()
    before.deaf = 1
    slot.fetch(before)
    assert slot.got == [4] and before.asked == [[4]]


def test_a_predecessor_from_which_nothing_comes_is_given_up_after_the_deadline():
    slot, before = Slot(4, 5, 6), Predecessor(breaks=[1] + [0] * 10**6)
    with pytest.raises(ServiceUnavailable, match="the stream broke"):
        slot.fetch(before)
    assert slot.got == [6] and before.asked == [[6, 5], *[[5, 4]] * ATTEMPTS]


def test_as_long_as_something_comes_the_deadline_begins_anew():
    slot, before = Slot(*range(8)), Predecessor(breaks=[*[0] * (ATTEMPTS - 1), 1] * 8)
    slot.fetch(before)
    assert sorted(slot.got) == list(range(8))


def test_a_slot_that_is_closed_asks_no_more():
    slot, before = Slot(4, 5, 6, 7), Predecessor()
    pull = before.pull

    def last(*arguments):
        pull(*arguments)
        slot.closed.set()

    before.pull = last
    slot.fetch(before)
    assert slot.got == [7, 6]


class Store:
    """A savepoint whose manifest, and then the unit 5 in it, can be read when it is tried again."""

    def __init__(self):
        self.failing, self.read_so_far = {"manifest", 5}, []

    def _fail(self, what):
        if what in self.failing:
            self.failing.remove(what)
            raise ServiceUnavailable(f"{what} cannot be read")

    def committed(self, of):
        return [of]

    def locations(self, savepoint, stage):
        assert (savepoint, stage) == ("one", "counter")
        self._fail("manifest")
        return {unit: [Location(unit, "segment", 0, 1, 0)] for unit in range(9)}

    def read(self, units):
        for unit in units:
            self._fail(unit)
            self.read_so_far.append(unit)
            yield [SavedUnit(unit, [], None)]


def test_a_savepoint_that_cannot_be_read_at_first_is_read_again_and_a_slot_tells_how_far_it_restores(monkeypatch):
    monkeypatch.setattr(arrivals, "SAY_S", 0.0)
    slot, store, said = Slot(4, 5, 6), Store(), []
    slot.nodes.watch(RESTORING[1], said.append)
    slot.restore(slot.units, store, "one")
    assert slot.got == store.read_so_far == [6, 5, 4]
    assert said == [1, 2, 3]
