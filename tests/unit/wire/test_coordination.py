"""What the wrapper does when others undo what it has done; what it promises otherwise: tests/contract."""

import secrets
import threading
from itertools import count

import pytest
from kazoo.exceptions import ConnectionClosedError, NodeExistsError, NoNodeError, NotEmptyError

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire import session as zookeeper_session
from keyshift.wire import tree
from keyshift.wire.confirmed import parents
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ADDRESSES, ALL, ALL_SAVED, saved
from keyshift.wire.tree import PART_BYTES


class Client:
    """Nodes in memory; ``intruders`` are written, one at a time, when somebody asks what is below a node."""

    def __init__(self):
        self.nodes, self.intruders, self.lost = {}, [], False

    def add_listener(self, listener):
        pass

    def retry(self, call, *arguments, **settings):
        return call(*arguments, **settings)

    def create(self, path, value, ephemeral):
        if path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = value

    def get(self, path):
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path], None

    def delete(self, path):
        if self.lost:
            raise ConnectionClosedError
        if path not in self.nodes:
            raise NoNodeError
        if any(other.startswith(f"{path}/") for other in self.nodes):
            raise NotEmptyError
        del self.nodes[path]

    def get_children(self, path):
        names = {other.removeprefix(f"{path}/").split("/")[0] for other in self.nodes if other.startswith(f"{path}/")}
        if self.intruders:
            self.nodes[self.intruders.pop()] = b""
        return sorted(names)

    def transaction(self):
        return Transaction(self)


class Transaction:
    """Of one operation."""

    def __init__(self, client):
        self._client = client

    def delete(self, path):
        self._path = path

    def commit(self):
        try:
            return [self._client.delete(self._path)]
        except (NoNodeError, NotEmptyError) as error:
            return [error]


@pytest.fixture
def job(monkeypatch):
    there = threading.Event()
    there.set()
    monkeypatch.setattr(zookeeper_session, "begin", lambda hosts, secret: (Client(), there))
    return Coordination("nowhere:1", "/job")


def test_a_folder_that_somebody_writes_into_meanwhile_goes_all_the_same(job):
    job._client.nodes = dict.fromkeys(("/job", "/job/acks", "/job/acks/1"), b"")
    job._client.intruders = ["/job/acks/3", "/job/acks/2", "/job/new"]
    job.withdraw(ALL)
    assert not job._client.nodes and not job._client.intruders


def test_a_folder_goes_however_long_what_is_below_takes(job, monkeypatch):
    monkeypatch.setattr(tree, "GIVE_UP_S", 0)
    job._client.nodes = dict.fromkeys(("/job", "/job/acks", "/job/acks/1", "/job/acks/1/slot-1", "/job/new"), b"")
    job.withdraw(ALL)
    assert not job._client.nodes


@pytest.mark.parametrize("gone", [saved("one")["slot-1"], saved("one"), ALL_SAVED])
def test_with_a_value_that_is_too_long_for_a_node_its_parts_go(job, gone):
    def written(path):
        """Gives its parts."""
        writes = job._tree.writes(path, secrets.token_bytes(2 * PART_BYTES))
        for each, data in writes:
            job._client.nodes |= {**dict.fromkeys(parents("/job", each), b""), each: data}
        return {each for each, _ in writes[:-1]}

    written("/job/savepoints/one/slot-1")
    kept = written("/job/measured")
    job.withdraw(gone)
    assert {path for path in job._client.nodes if path.startswith("/job/parts/") and path.count("/") == 4} == kept
    assert "/job/measured" in job._client.nodes and "/job/savepoints/one/slot-1" not in job._client.nodes


def test_a_connection_that_is_closed_ends_a_deletion(job):
    job._client.nodes, job._client.lost = {"/job": b""}, True
    with pytest.raises(ServiceUnavailable, match="ConnectionClosedError"):
        job.withdraw(ALL)


def test_a_folder_that_somebody_writes_into_all_the_time_is_given_up(job, monkeypatch):
    class Endless(count):
        def pop(self):
            return f"/job/new-{next(self)}"

    monkeypatch.setattr(tree, "GIVE_UP_S", 0.05)
    job._client.nodes, job._client.intruders = {"/job": b"", "/job/new": b""}, Endless()
    with pytest.raises(ServiceUnavailable, match="NotEmptyError"):
        job.withdraw(ALL)


def test_a_place_that_somebody_takes_all_the_time_is_given_up(job, monkeypatch):
    monkeypatch.setattr(tree, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(job._client, "delete", lambda path: None)
    job._client.nodes = {"/job/slots/1": b"other"}
    with pytest.raises(ServiceUnavailable, match="NodeExistsError"):
        job.register(ADDRESSES[1], "new")
