"""What the wrapper does when others undo what it has done; what it promises otherwise: tests/contract."""

import secrets
import threading
from itertools import count

import pytest
from small_kazoo import Client

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire import session as zookeeper_session
from keyshift.wire import tree
from keyshift.wire.confirmed import parents
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ADDRESSES, ALL, ALL_SAVED, saved
from keyshift.wire.tree import PART_BYTES


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def job(client, monkeypatch):
    there = threading.Event()
    there.set()
    monkeypatch.setattr(zookeeper_session, "begin", lambda hosts, secret: (client, there))
    return Coordination("nowhere:1", "/job")


def test_a_folder_that_somebody_writes_into_meanwhile_goes_all_the_same(client, job):
    client.nodes = dict.fromkeys(("/job", "/job/acks", "/job/acks/1"), b"")
    client.intruders = ["/job/acks/3", "/job/acks/2", "/job/new"]
    job.withdraw(ALL)
    assert not client.nodes and not client.intruders


def test_a_folder_goes_however_long_what_is_below_takes(client, job, monkeypatch):
    monkeypatch.setattr(tree, "GIVE_UP_S", 0)
    client.nodes = dict.fromkeys(("/job", "/job/acks", "/job/acks/1", "/job/acks/1/slot-1", "/job/new"), b"")
    job.withdraw(ALL)
    assert not client.nodes


@pytest.mark.parametrize("gone", [saved("one")["slot-1"], saved("one"), ALL_SAVED])
def test_with_a_value_that_is_too_long_for_a_node_its_parts_go(client, job, gone):
    def written(path):
        """Gives its parts."""
        writes = tree.Tree(client, "/job", None).writes(path, secrets.token_bytes(2 * PART_BYTES))
        for each, data in writes:
            client.nodes |= {**dict.fromkeys(parents("/job", each), b""), each: data}
        return {each for each, _ in writes[:-1]}

    written("/job/savepoints/one/slot-1")
    kept = written("/job/measured")
    job.withdraw(gone)
    assert {path for path in client.nodes if path.startswith("/job/parts/") and path.count("/") == 4} == kept
    assert "/job/measured" in client.nodes and "/job/savepoints/one/slot-1" not in client.nodes


def test_a_connection_that_is_closed_ends_a_deletion(client, job):
    client.nodes, client.lost = {"/job": b""}, True
    with pytest.raises(ServiceUnavailable, match="ConnectionClosedError"):
        job.withdraw(ALL)


def test_a_folder_that_somebody_writes_into_all_the_time_is_given_up(client, job, monkeypatch):
    class Endless(count):
        def pop(self):
            return f"/job/new-{next(self)}"

    monkeypatch.setattr(tree, "GIVE_UP_S", 0.05)
    client.nodes, client.intruders = {"/job": b"", "/job/new": b""}, Endless()
    with pytest.raises(ServiceUnavailable, match="NotEmptyError"):
        job.withdraw(ALL)


def test_a_place_that_somebody_takes_all_the_time_is_given_up(client, job, monkeypatch):
    monkeypatch.setattr(tree, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(client, "delete", lambda path: None)
    client.nodes = {"/job/slots/1": b"other"}
    with pytest.raises(ServiceUnavailable, match="NodeExistsError"):
        job.register(ADDRESSES[1], "new")
