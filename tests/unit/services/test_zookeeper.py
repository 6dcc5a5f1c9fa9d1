"""The ticks of the embedded ZooKeeper."""

import threading

import pytest

from keyshift.services.stack import Stack
from keyshift.services.zookeeper import ZooKeeper


def settings(home, service):
    service.configure([], {"zookeeper": 2181}, threading.Event())
    lines = (home / "conf/zoo.cfg").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def tick_ms(home, service):
    return int(settings(home, service)["tickTime"])


def test_old_logs_are_deleted_by_the_only_main_class_that_does(tmp_path):
    """A live job of days would fill its volume."""
    service = ZooKeeper(tmp_path)
    command, _ = service.configure(["java"], {"zookeeper": 2181}, threading.Event())
    assert command[1] == "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    found = settings(tmp_path, service)
    assert (found["autopurge.purgeInterval"], found["autopurge.snapRetainCount"]) == ("1", "3")
    assert int(found["snapCount"]) <= 20_000, "only what lies before a snapshot can be deleted"


@pytest.mark.parametrize(("session_ms", "tick"), [(500, 100), (100, 20), (20, 4)])
def test_the_shortest_session_has_five_ticks(tmp_path, session_ms, tick):
    assert tick_ms(tmp_path, ZooKeeper(tmp_path, session_ms=session_ms)) == tick


def test_a_stack_has_the_session_that_it_was_asked_for(tmp_path):
    for asked, tick in (({}, 100), ({"session_ms": 250}, 50)):
        stack = Stack(tmp_path, **asked)
        [zookeeper] = [each._service for each in stack._services if each.name == "zookeeper"]
        assert tick_ms(tmp_path, zookeeper) == tick
