"""Where slots listen: watched once, known from then on."""

import threading

import pytest

from keyshift.model.errors import MigrationFailed
from keyshift.worker.state.addresses import Addresses


class Nodes:
    """What ``Coordination`` would say of the slots; ``watched`` counts how often it was asked."""

    def __init__(self, **addresses):
        self.addresses, self.calls, self.watched = addresses, {}, []

    def watch(self, node, call, gone=lambda: None):
        self.watched.append(node.path)
        self.calls[node.path] = call, gone
        self.tell(node.path)

    def tell(self, path):
        call, gone = self.calls[path]
        address = self.addresses.get(path.removeprefix("slots/"))
        if address:
            call(address)
        else:
            gone()


def test_an_address_is_asked_for_once():
    nodes = Nodes(**{"3": "here:1", "4": "there:2"})
    addresses = Addresses(nodes, deadline_s=0)
    assert [addresses.of(slot) for slot in (3, 4, 3, 3, 4)] == ["here:1", "there:2", "here:1", "here:1", "there:2"]
    assert nodes.watched == ["slots/3", "slots/4"]


def test_a_slot_that_has_moved_is_found_where_it_is_now():
    nodes = Nodes(**{"3": "here:1"})
    addresses = Addresses(nodes, deadline_s=0)
    addresses.of(3)
    nodes.addresses["3"] = "there:2"
    nodes.tell("slots/3")
    assert addresses.of(3) == "there:2"


def test_a_slot_whose_batch_is_over_is_where_it_was():
    nodes = Nodes(**{"3": "here:1"})
    addresses = Addresses(nodes, deadline_s=0)
    addresses.of(3)
    del nodes.addresses["3"]
    nodes.tell("slots/3")
    assert addresses.of(3) == "here:1"


def test_a_slot_that_is_not_there_yet_is_waited_for():
    nodes = Nodes()
    addresses = Addresses(nodes, deadline_s=30)
    with pytest.raises(MigrationFailed, match="slot 3 did not say where it is within 0 s"):
        addresses.of(3, within_s=0)
    found = []
    asks = threading.Thread(target=lambda: found.append(addresses.of(3)))
    asks.start()
    nodes.addresses["3"] = "there:2"
    nodes.tell("slots/3")
    asks.join(60)
    assert found == ["there:2"]


def test_a_slot_that_never_says_where_it_is_is_missed_after_the_deadline():
    with pytest.raises(MigrationFailed, match=r"slot 5 did not say where it is within 0\.01 s"):
        Addresses(Nodes(), deadline_s=0.01).of(5)
