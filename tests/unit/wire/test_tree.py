"""Nodes of ZooKeeper that come and go while somebody reads them."""

import secrets
import zlib
from types import SimpleNamespace

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from keyshift.wire import nodes
from keyshift.wire.memory import Memory, MemoryCoordination
from keyshift.wire.tree import PART_BYTES, GuardedWrites, Tree


def test_what_goes_between_the_list_and_the_look_is_not_among_what_is_read():
    there = {"/job/a": b"1", "/job/c": b"3"}

    def get(path):
        if path not in there:
            raise NoNodeError
        return there[path], None

    client = SimpleNamespace(
        retry=lambda act, *arguments: act(*arguments),
        get_children=lambda path: ["a", "b", "c"],
        get_async=lambda path: SimpleNamespace(get=lambda: get(path)),
    )
    assert Tree(client, "", GuardedWrites(client, "", None)).read_below("/job") == {"a": b"1", "c": b"3"}


def test_so_it_is_in_memory(monkeypatch):
    session = MemoryCoordination(Memory(), "/job")
    session.begin()
    session.publish(nodes.ROUTERS[1], 7)
    monkeypatch.setattr(session, "children", lambda folder: ["0", "1"])
    assert session.read_below(nodes.ROUTERS) == {"1": 7}


def test_a_long_value_that_repeats_itself_takes_one_small_part():
    there = {}
    client = SimpleNamespace(get_async=lambda path: SimpleNamespace(get=lambda: (there[path], None)))
    zookeeper, value = Tree(client, "/job", GuardedWrites(client, "", None)), b'["segment-0",1]' * PART_BYTES
    *parts, (path, held) = zookeeper.writes("/job/node", value)
    there |= dict(parts)
    assert path == "/job/node"
    assert sum(map(len, there.values())) < PART_BYTES
    assert zookeeper.whole(held) == value


def test_a_long_value_is_read_from_further_above_too():
    """A resume reads what there is of each stage from the root of the job."""
    there = {}
    client = SimpleNamespace(
        retry=lambda act, *arguments: act(*arguments),
        get=lambda path: (there[path], None),
        get_async=lambda path: SimpleNamespace(get=lambda: (there[path], None)),
    )
    above, stage = (Tree(client, root, GuardedWrites(client, root, None)) for root in ("/job", "/job/0/counter"))
    value = secrets.token_bytes(PART_BYTES + 1)
    there |= dict(stage.writes("/job/0/counter/plan", value))
    assert above.read("/job/0/counter/plan") == value


class ZooKeeper:
    """All nodes by their paths, and as much of kazoo's client as a tree needs."""

    def __init__(self):
        self.nodes = {"/job": b""}

    def retry(self, act, *arguments, **more):
        return act(*arguments, **more)

    def get(self, path):
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path], None

    def get_async(self, path):
        return SimpleNamespace(get=lambda: self.get(path))

    def get_children(self, path):
        self.get(path)
        return sorted({node[len(path) + 1 :].split("/")[0] for node in self.nodes if node.startswith(f"{path}/")})

    def create(self, path, data=b"", ephemeral=False):
        if path in self.nodes:
            raise NodeExistsError
        self.get(path.rsplit("/", 1)[0])
        self.nodes[path] = data

    def set_data(self, path, data):
        self.get(path)
        self.nodes[path] = data

    def delete(self, path):
        if self.get_children(path):
            raise NotEmptyError
        del self.nodes[path]

    def transaction(self):
        done = []

        def operation(act):
            def noted(*arguments):
                try:
                    done.append(act(*arguments))
                except Exception as error:
                    done.append(error)

            return noted

        acts = {name: operation(getattr(self, name)) for name in ("create", "set_data", "delete")}
        return SimpleNamespace(commit=lambda: done, **acts)

    def tree(self, root="/job"):
        """Of another session."""
        return Tree(self, root, GuardedWrites(self, root, None))


@pytest.mark.parametrize("last", [b"short", secrets.token_bytes(PART_BYTES + 1)], ids=["short", "long"])
def test_a_value_that_is_overwritten_leaves_no_parts_be_it_by_a_later_session(last):
    zookeeper = ZooKeeper()
    first = zookeeper.tree()
    first.write("/job/handover/0", secrets.token_bytes(PART_BYTES + 1))
    first.write("/job/handover/0", secrets.token_bytes(PART_BYTES + 1))
    zookeeper.tree().write("/job/handover/0", last)
    parts = [path for path in zookeeper.nodes if path.startswith("/job/parts/") and path.count("/") == 4]
    assert len(parts) == (2 if len(last) > PART_BYTES else 0)
    assert zookeeper.tree().read("/job/handover/0") == last


def test_what_is_deleted_from_further_above_may_have_a_part_that_looks_like_a_path(monkeypatch):
    zookeeper = ZooKeeper()
    monkeypatch.setattr(zlib, "compress", lambda data, level: data)
    zookeeper.create("/job/stage")
    zookeeper.tree("/job/stage").write("/job/stage/plan", b"/\xff" * PART_BYTES)
    zookeeper.tree("/job").delete("/job")
    assert zookeeper.nodes == {}
