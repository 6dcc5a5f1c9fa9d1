"""Nodes of ZooKeeper that come and go while somebody reads them."""

import secrets
import zlib

from kazoo.retry import KazooRetry
from small_kazoo import Client

from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.tree import PART_BYTES


def test_what_goes_between_the_list_and_the_look_is_not_among_what_is_read(monkeypatch):
    zookeeper = Client()
    zookeeper.nodes |= {"/job/a": b"1", "/job/c": b"3"}
    monkeypatch.setattr(zookeeper, "get_children", lambda path: ["a", "b", "c"])
    assert zookeeper.tree().read_below("/job") == {"a": b"1", "c": b"3"}


def test_a_long_value_that_is_overwritten_while_its_folder_is_read_is_read_again(monkeypatch):
    zookeeper, before, after = Client(), secrets.token_bytes(PART_BYTES + 1), secrets.token_bytes(PART_BYTES + 1)
    monkeypatch.setattr(zookeeper, "retry", KazooRetry(max_tries=5, delay=0.001))
    writer, get = zookeeper.tree(), zookeeper.get
    zookeeper.create("/job/acks")
    writer.write("/job/acks/a", b"1")
    writer.write("/job/acks/b", before)

    def overwritten(path):
        """As soon as somebody knows where its parts were."""
        found = get(path)
        if path == "/job/acks/b" and found[0].startswith(b"/"):
            monkeypatch.setattr(zookeeper, "get", get)
            writer.write(path, after)
        return found

    monkeypatch.setattr(zookeeper, "get", overwritten)
    assert zookeeper.tree().read_below("/job/acks") == {"a": b"1", "b": after}


def test_so_it_is_in_memory(monkeypatch):
    session = MemoryCoordination(Memory(), "/job")
    session.begin()
    session.publish(nodes.ROUTERS[1], 7)
    monkeypatch.setattr(session, "children", lambda folder: ["0", "1"])
    assert session.read_below(nodes.ROUTERS) == {"1": 7}


def test_a_long_value_that_repeats_itself_takes_one_small_part():
    zookeeper, value = Client(), b'["segment-0",1]' * PART_BYTES
    *parts, (path, held) = zookeeper.tree().writes("/job/node", value)
    zookeeper.nodes |= dict(parts)
    assert path == "/job/node"
    assert 0 < sum(map(len, zookeeper.nodes.values())) < PART_BYTES
    assert zookeeper.tree().whole(held) == value


def test_a_long_value_is_read_from_further_above_too():
    """A resume reads what there is of each stage from the root of the job."""
    zookeeper, value = Client(), secrets.token_bytes(PART_BYTES + 1)
    zookeeper.nodes |= dict(zookeeper.tree("/job/0/counter").writes("/job/0/counter/plan", value))
    assert zookeeper.tree("/job").read("/job/0/counter/plan") == value


def test_what_is_deleted_from_further_above_may_have_a_part_that_looks_like_a_path(monkeypatch):
    zookeeper = Client()
    monkeypatch.setattr(zlib, "compress", lambda data, level: data)
    zookeeper.create("/job/stage")
    zookeeper.tree("/job/stage").write("/job/stage/plan", b"/\xff" * PART_BYTES)
    zookeeper.tree("/job").delete("/job")
    assert zookeeper.nodes == {}
