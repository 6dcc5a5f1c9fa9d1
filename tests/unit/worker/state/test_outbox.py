"""Couriers and outboxes: what is sent leaves in order, in need first, again if it must, and not after the end."""

import threading

import pytest
from small_job import DEADLINE_S

from keyshift.model.errors import ServiceUnavailable
from keyshift.worker.flight.messages import Shipment
from keyshift.worker.state.outbox import Courier, Outbox, again
from waits import until


class Door:
    """A delivery that waits until it is let through, and may be told to fail."""

    def __init__(self):
        self.came, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.errors = []

    def pass_through(self):
        self.came.release()
        assert self.may_go.acquire(timeout=DEADLINE_S)
        if self.errors:
            raise self.errors.pop(0)

    def let_through(self, error=None):
        """The next one who comes, with an error or without."""
        assert self.came.acquire(timeout=DEADLINE_S)
        if error:
            self.errors.append(error)
        self.may_go.release()


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def courier(door, failures):
    delivered = []

    def deliver(items):
        door.pass_through()
        delivered.append(items)

    courier = Courier("a courier", deliver, failures.append)
    courier.delivered = delivered
    yield courier
    courier.close()
    door.may_go.release()


# -- courier -----------------------------------------------------------------------------------------------------------


def test_a_courier_takes_all_that_has_gathered_at_once_and_in_order(courier, door):
    courier.send("a")
    assert door.came.acquire(timeout=DEADLINE_S)
    courier.send("b", "c")
    courier.send("d")
    door.may_go.release()
    door.let_through()
    until(lambda: len(courier.delivered) == 2)
    assert courier.delivered == [["a"], ["b", "c", "d"]]


def test_a_courier_tries_the_same_again_until_the_other_side_answers(courier, door, failures):
    courier.send("a", "b")
    door.let_through(ServiceUnavailable("nobody there"))
    courier.send("c")
    door.let_through(ServiceUnavailable("still nobody"))
    door.let_through()
    door.let_through()
    until(lambda: len(courier.delivered) == 2)
    assert courier.delivered == [["a", "b"], ["c"]]
    assert not failures


def test_an_error_that_is_no_absence_is_told_and_ends_the_courier(courier, door, failures):
    courier.send("a")
    error = ValueError("a bug")
    door.let_through(error)
    until(lambda: failures)
    assert failures == [error]
    courier.send("b")
    assert not door.came.acquire(timeout=0.05)
    assert courier.delivered == []


def test_a_closed_courier_delivers_no_more_and_complains_of_nothing(courier, door, failures):
    courier.send("a")
    assert door.came.acquire(timeout=DEADLINE_S)
    courier.send("b")
    courier.close()
    door.errors.append(ServiceUnavailable("it is closed, too"))
    door.may_go.release()
    assert not door.came.acquire(timeout=0.3), "neither again nor the next"
    assert courier.delivered == [] and not failures


def test_a_courier_can_be_closed_while_it_sleeps(failures):
    threads = threading.active_count()
    courier = Courier("a courier", lambda items: None, failures.append)
    courier.close()
    until(lambda: threading.active_count() <= threads)


HOURS_S = 3600.0


def test_a_courier_pauses_as_long_as_what_it_carries_wants(failures):
    delivered = []
    courier = Courier("a courier", delivered.append, failures.append)
    courier.send("a", pause_s=HOURS_S)
    until(lambda: delivered == [["a"]])
    courier.send("b", pause_s=HOURS_S)
    threading.Event().wait(0.1)
    assert delivered == [["a"]]
    courier.send("c")
    until(lambda: delivered == [["a"], ["b", "c"]])
    courier.send("d", pause_s=HOURS_S)
    until(lambda: delivered[2:] == [["d"]])
    courier.send("e", pause_s=HOURS_S)
    threading.Event().wait(0.1)
    assert delivered[3:] == []
    courier.close()
    assert delivered[3:] == [] and not failures


def test_what_is_tried_for_so_long_and_no_longer_fails_with_the_last_error():
    calls = []

    def act():
        calls.append(1)
        raise ServiceUnavailable("nobody there")

    with pytest.raises(ServiceUnavailable, match="nobody there"):
        again("a call", threading.Event(), act, within_s=0.0)
    assert len(calls) == 1


# -- outbox ------------------------------------------------------------------------------------------------------------


class Road:
    """Where an outbox pushes to: shipments go one at a time, as the test lets them, and are acknowledged by it."""

    def __init__(self, door):
        self.door = door
        self.pushes = []  # units of each push, so far
        self.ended = 0

    def push(self, shipments):
        self.pushes.append([])
        for shipment in shipments:
            self.pushes[-1].append(shipment.unit)
            self.door.pass_through()
        self.ended += 1

    @property
    def sent(self):
        return [unit for units in self.pushes for unit in units]


@pytest.fixture
def road(door):
    return Road(door)


@pytest.fixture
def outbox(road, door, failures):
    outbox = Outbox("an outbox", road.push, failures.append)
    yield outbox
    outbox.close()
    door.may_go.release()


def put(outbox, *units):
    for unit in units:
        outbox.put(Shipment(unit))


def test_what_somebody_waits_for_leaves_next_unless_it_has_left_or_was_never_put(outbox, road, door):
    put(outbox, 1)
    assert door.came.acquire(timeout=DEADLINE_S)
    put(outbox, 2, 3, 4)
    for unit in (4, 3, 1, 9):
        outbox.hurry(unit)
    door.may_go.release()
    for _ in range(2):
        door.let_through()
    assert door.came.acquire(timeout=DEADLINE_S)  # behind the last one all of them go once more
    assert road.sent == [1, 3, 4, 2], "the last one to be hurried is the first"
    assert outbox.acknowledged(1).unit == 1
    assert outbox.acknowledged(1) is outbox.acknowledged(9) is None, "what came twice is answered twice"


def test_what_was_not_acknowledged_goes_again_and_first_when_the_other_side_is_back(outbox, road, door, failures):
    put(outbox, 1, 2)
    door.let_through()
    assert outbox.acknowledged(1)
    put(outbox, 3)
    door.let_through(ServiceUnavailable("gone"))
    door.let_through()
    assert door.came.acquire(timeout=DEADLINE_S)
    assert road.sent == [1, 2, 2, 3], "unit 1 is there"
    assert not failures


def test_a_push_that_ended_with_units_unacknowledged_repeats_them_with_the_next_unit(outbox, road, door):
    put(outbox, 1)
    door.let_through()
    until(lambda: road.ended == 1)
    put(outbox, 2)
    for _ in range(2):
        door.let_through()
    until(lambda: road.sent == [1, 1, 2])


def test_a_unit_that_is_put_again_is_sent_as_it_is_now(door, failures):
    """A delta that found no copy is put again as the whole."""
    sent = []

    def push(shipments):
        for shipment in shipments:
            sent.append(shipment.delta_of)
            outbox.acknowledged(shipment.unit)
            if shipment.delta_of is not None:
                outbox.put(Shipment(shipment.unit))

    outbox = Outbox("an outbox", push, failures.append)
    outbox.put(Shipment(1, delta_of=(88, 4)))
    until(lambda: len(sent) == 2)
    outbox.close()
    assert sent == [(88, 4), None]


def test_a_closed_outbox_sends_no_more(outbox, road, door, failures):
    put(outbox, 1)
    assert door.came.acquire(timeout=DEADLINE_S)
    outbox.close()
    door.errors.append(ServiceUnavailable("gone"))
    door.may_go.release()
    put(outbox, 2)
    assert not door.came.acquire(timeout=0.3)
    assert road.sent == [1] and not failures
