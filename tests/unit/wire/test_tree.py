"""Nodes of ZooKeeper that come and go while somebody reads them."""

import secrets
from types import SimpleNamespace

from kazoo.exceptions import NoNodeError

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
