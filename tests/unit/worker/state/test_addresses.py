"""Where slots listen: watched once, known from then on."""

import threading

import pytest

from keyshift.model.errors import MigrationFailed
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.nodes import ADDRESSES
from keyshift.worker.state.addresses import Addresses


@pytest.fixture
def slots():
    """A participant, which may say where slots are. Slot 3 listens."""
    made = MemoryCoordination(Memory())
    made.begin()
    made.register(ADDRESSES[3], "here:1")
    return made


def test_an_address_is_asked_for_once(slots):
    slots.register(ADDRESSES[4], "there:2")
    addresses = Addresses(slots, deadline_s=0)
    assert [addresses.of(slot) for slot in (3, 4, 3, 3, 4)] == ["here:1", "there:2", "here:1", "here:1", "there:2"]
    assert [watch.path for watch in slots.watches] == ["/job/slots/3", "/job/slots/4"]


def test_a_slot_is_found_where_it_is_now_and_when_its_batch_is_over_where_it_was(slots):
    addresses = Addresses(slots, deadline_s=0)
    addresses.of(3)
    slots.register(ADDRESSES[3], "there:2")
    assert addresses.of(3) == "there:2"
    assert addresses.listens(3)
    slots.withdraw(ADDRESSES[3])
    assert addresses.of(3) == "there:2" and not addresses.listens(3)


def test_a_slot_that_is_not_there_yet_is_waited_for_until_the_deadline(slots):
    addresses = Addresses(slots, deadline_s=30)
    with pytest.raises(MigrationFailed, match="slot 4 did not say where it is within 0 s"):
        addresses.of(4, within_s=0)
    with pytest.raises(MigrationFailed, match=r"slot 5 did not say where it is within 0\.01 s"):
        Addresses(slots, deadline_s=0.01).of(5)
    found = []
    asks = threading.Thread(target=lambda: found.append(addresses.of(4)))
    asks.start()
    slots.register(ADDRESSES[4], "there:2")
    asks.join(60)
    assert found == ["there:2"]
