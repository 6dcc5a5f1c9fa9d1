"""Kafka and ZooKeeper of one node and of three: what they are told, where they are found, and what is refused."""

import threading
from types import SimpleNamespace

import pytest

from keyshift.folders import MIB
from keyshift.model.errors import BadInput, ServiceUnavailable
from keyshift.services import kafka
from keyshift.services import stack as stacks
from keyshift.services.kafka import Kafka, cluster_id
from keyshift.services.service import HOST, ServiceNode
from keyshift.services.stack import STORE, Stack
from keyshift.services.zookeeper import ZooKeeper

OF_THREE = [ServiceNode(number, (HOST,) * 3) for number in (1, 2, 3)]


@pytest.fixture(autouse=True)
def unformatted(monkeypatch):
    """What formats Kafka's folder is not there; it keeps the id of the cluster."""
    formatted: list[str] = []

    def run_to_end(command, *_, **__):
        formatted.append(command[command.index("-t") + 1])
        return 0

    monkeypatch.setattr(kafka, "run_to_end", run_to_end)
    return formatted


def configured(home, services):
    """The settings of each, and its command; all know the ports of all."""
    ports = {name: port for service in services for name, port in service.ports.items()}
    found = []
    for service in services:
        command, _ = service.configure([], ports, threading.Event())
        lines = (home / command[-1]).read_text().splitlines()
        found.append((dict(line.split("=", 1) for line in lines), command))
    return found


def test_three_brokers_vote_with_each_other_and_keep_two_copies_at_least(tmp_path, unformatted):
    found = configured(tmp_path, [Kafka(tmp_path, node=node) for node in OF_THREE])
    assert [told["node.id"] for told, _ in found] == ["1", "2", "3"]
    voters = "1@127.0.0.1:19093,2@127.0.0.1:19103,3@127.0.0.1:19113"
    assert {told["controller.quorum.voters"] for told, _ in found} == {voters}
    own, relayed = "BROKER://127.0.0.1:19102", "RELAYED://127.0.0.1:1910"
    assert found[1][0]["listeners"] == f"{own},CONTROLLER://127.0.0.1:19103,{relayed}5"
    assert found[1][0]["advertised.listeners"] == f"{own},{relayed}4", "who comes through a relay comes back to it"
    assert len({told["log.dirs"] for told, _ in found}) == 3
    for told, _ in found:
        assert (told["default.replication.factor"], told["min.insync.replicas"]) == ("3", "2")
        inner = ("transaction.state.log", "share.coordinator.state.topic")
        assert {told[f"{topic}.replication.factor"] for topic in ("offsets.topic", *inner)} == {"3"}
        assert {told[f"{topic}.min.isr"] for topic in inner} == {"2"}
    assert unformatted == [cluster_id(voters)] * 3


def test_a_broker_that_is_alone_is_told_what_it_always_was(tmp_path, unformatted):
    ((told, command),) = configured(tmp_path, [Kafka(tmp_path)])
    assert (told["node.id"], told["controller.quorum.voters"]) == ("1", "1@127.0.0.1:19093")
    assert command[-1] == "conf/kafka.properties"
    assert told["offsets.topic.replication.factor"] == told["transaction.state.log.min.isr"] == "1"
    assert not {"min.insync.replicas", "broker.session.timeout.ms"} & told.keys()
    assert len({*unformatted, cluster_id(told["controller.quorum.voters"])}) == 2, "an id of its own"


def test_three_servers_are_an_ensemble_whose_limits_do_not_shrink_with_the_tick(tmp_path):
    found = configured(tmp_path, [ZooKeeper(tmp_path, session_ms=100, node=node) for node in OF_THREE])
    for number, (told, command) in enumerate(found, 1):
        assert (tmp_path / told["dataDir"] / "myid").read_text() == f"{number}\n"
        servers = {name: told[name] for name in told if name.startswith("server.")}
        ports = {1: "12182:12183", 2: "12192:12193", 3: "12202:12203"}
        assert servers == {f"server.{n}": f"127.0.0.1:{both}" for n, both in ports.items()}
        assert int(told["initLimit"]) * int(told["tickTime"]) == 30_000
        assert int(told["syncLimit"]) * int(told["tickTime"]) == 5_000
        assert told["quorumListenOnAllIPs"] == "false"
        assert command[-2].endswith("QuorumPeerMain")
    assert [told["clientPort"] for told, _ in found] == ["12181", "12191", "12201"]
    ((alone, command),) = configured(tmp_path, [ZooKeeper(tmp_path)])
    assert not [name for name in alone if name.startswith(("server.", "initLimit"))]
    assert command[-2].endswith("QuorumPeerMain"), "the only main class that deletes old logs"
    assert (alone["autopurge.purgeInterval"], alone["autopurge.snapRetainCount"]) == ("1", "3")
    assert int(alone["snapCount"]) <= 20_000, "only what lies before a snapshot can be deleted"


@pytest.mark.parametrize(("session_ms", "tick"), [(500, 100), (100, 20), (20, 4)])
def test_the_shortest_session_of_zookeeper_has_five_ticks(tmp_path, monkeypatch, session_ms, tick):
    made: list[ZooKeeper] = []
    monkeypatch.setattr(stacks, "ZooKeeper", lambda home, **how: made.append(ZooKeeper(home, **how)) or made[0])
    Stack(tmp_path, session_ms=session_ms)
    ((told, _),) = configured(tmp_path, made)
    assert told["tickTime"] == str(tick)


def test_a_stack_of_three_nodes_has_three_of_each_but_of_minio_and_lists_them_all(started):
    stack = started.make(3, ports={"kafka": 20_001})
    names = [f"{name}-{number}" for name in ("kafka", "zookeeper") for number in (1, 2, 3)]
    addresses, endpoints = {status.service: status.address for status in stack.status()}, stack.up()
    assert [*addresses] == [*names, "minio"]
    assert [*addresses.values()] == f"{endpoints.kafka},{endpoints.zookeeper},{endpoints.minio}".split(",")
    assert endpoints.kafka == "127.0.0.1:20001,127.0.0.1:19102,127.0.0.1:19112"
    assert endpoints.zookeeper == "127.0.0.1:12181,127.0.0.1:12191,127.0.0.1:12201"
    assert (endpoints.minio, endpoints.replication) == ("127.0.0.1:19000", 3)
    started.lives.clear()
    assert started.make(1).up().replication == 1


@pytest.fixture
def started(tmp_path, lives, monkeypatch):
    """Makes stacks of one folder; ``lives`` names those of its services that do, and it has memory for all."""
    memory = SimpleNamespace(free=64 << 30)
    monkeypatch.setattr(stacks.limits, "memory", lambda: memory)
    make = lambda nodes=None, **how: Stack(tmp_path, nodes=nodes, **how)  # noqa: E731
    return SimpleNamespace(lives=lives, memory=memory, make=make)


def test_whoever_does_not_say_how_many_nodes_finds_those_that_were_started(started):
    started.make(3).up()
    assert started.lives == {*(f"{name}-{n}" for name in ("kafka", "zookeeper") for n in (1, 2, 3)), "minio"}
    assert started.make().nodes == 3


def test_services_that_run_with_another_number_of_nodes_are_left_alone(started):
    started.make().up()
    with pytest.raises(BadInput, match=r"nodes = 3: the services in .* run with nodes = 1; stop them with `keyshift d"):
        started.make(3).up()
    assert started.lives == {"kafka", "zookeeper", "minio"}
    started.lives.clear()
    started.make(3).up()
    assert "kafka-3" in started.lives


@pytest.mark.parametrize("reader_first", [True, False])
def test_the_last_command_stops_all_nodes_also_if_its_profile_has_another_number(started, reader_first):
    """Whoever reads the store alone uses the MinIO of whatever runs."""
    reader, three = started.make(1).used(needs=STORE), started.make(3).used()
    first, last = (reader, three) if reader_first else (three, reader)
    first.__enter__()
    last.__enter__()
    first.__exit__(None, None, None)
    nodes = [f"{kind}-{number}" for kind in ("kafka", "zookeeper") for number in (1, 2, 3)]
    assert started.lives == {*nodes, "minio"}
    last.__exit__(None, None, None)
    assert not started.lives


def test_whoever_comes_while_other_nodes_run_forgets_nobody_who_uses_them(started):
    with started.make(3).used():
        started.lives.remove("minio")
        with started.make(1).used(needs=STORE):
            pass
        assert "kafka-1" in started.lives


def test_too_little_memory_for_three_nodes_is_named_before_anything_is_started(started):
    started.memory.free = 900 * MIB
    with pytest.raises(ServiceUnavailable, match="1260 MiB of memory, and 900 MiB are free; take nodes: 1") as said:
        started.make(3).up()
    assert "\n" not in str(said.value)
    assert not started.lives
    started.make(1).up()  # as it always was


def test_one_of_three_nodes_may_be_away_and_the_first_that_lives_is_the_one_to_hit(started):
    stack = started.make(3)
    stack.up()
    assert stack.node("kafka").name == "kafka-1"
    started.lives -= {"kafka-1", "zookeeper-3"}
    assert len(stack.endpoints().kafka.split(",")) == 3
    assert (stack.node("kafka").name, stack.node("zookeeper").name) == ("kafka-2", "zookeeper-1")
    assert stack.node("kafka-3").name == "kafka-3"
    started.lives -= {"kafka-2"}
    with pytest.raises(ServiceUnavailable, match=r"Kafka 2 at 127\.0\.0\.1:19102 is stopped; start it with"):
        stack.endpoints()
