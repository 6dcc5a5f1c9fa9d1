"""Kafka and ZooKeeper of three nodes each: one of each fails, and what uses them goes on."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kazoo.client import KazooClient

from keyshift.lab.run import Lab
from keyshift.place.profile import SparkProfile
from keyshift.services.jars import jars
from keyshift.services.stack import DEFAULT_PORTS, Stack
from keyshift.traffic.topics import Topic
from own_stack import stopped_with_us
from small_run import spec

pytestmark = pytest.mark.nightly("a minute each; tests/unit/services has the settings of three nodes")
DEADLINE_S = 60.0
REPLICATED = {"replicas": 2, "ordering": "live_robin", "frame_ms": 100.0, "heartbeat_ms": 100.0, "rate": 200.0}


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Services of three nodes for one test, which may hit them."""
    ports = {name: port + 13_000 for name, port in DEFAULT_PORTS.items()}
    stack = Stack(tmp_path_factory.mktemp("nodes"), ports, nodes=3)
    with stopped_with_us(stack):
        stack.up()
        yield stack


def kill(stack: Stack, name: str) -> None:
    os.kill(stack.pid(name), signal.SIGKILL)


def test_a_topic_is_written_and_a_session_lives_on_without_one_node_of_each(nodes):
    endpoints = nodes.endpoints()
    assert [len(each.split(",")) for each in (endpoints.kafka, endpoints.zookeeper, endpoints.minio)] == [3, 3, 1]
    topic = Topic.at(endpoints, f"test-{uuid.uuid4().hex[:12]}", 3)
    topic.create()
    with closing(KafkaAdminClient(bootstrap_servers=endpoints.kafka)) as admin:
        found = admin.describe_topics([topic.name])[0]["partitions"]
    assert [sorted(partition["replica_nodes"]) for partition in found] == [[1, 2, 3]] * 3
    producer = KafkaProducer(bootstrap_servers=endpoints.kafka, acks="all")
    client = KazooClient(hosts=endpoints.zookeeper, timeout=30.0)
    client.start(timeout=DEADLINE_S)
    try:
        client.create("/mine", b"before", ephemeral=True)
        session = client.client_id
        for when in (b"before", b"after"):
            for each in topic.parts:  # each broker leads one of them
                producer.send(topic.name, when, partition=each.partition).get(DEADLINE_S)
            if when == b"before":
                kill(nodes, "kafka")
                kill(nodes, "zookeeper")
        client.retry(client.set, "/mine", b"after")
        assert client.retry(client.get, "/mine")[0] == b"after"
        assert client.client_id == session
    finally:
        client.stop()
        client.close()
        producer.close()
    assert sorted(record.value for _, some in topic.records() for record in some) == [b"after"] * 3 + [b"before"] * 3
    assert nodes.endpoints() == endpoints  # they are there, as long as two nodes of three are
    stopped = {status.service for status in nodes.status() if status.state == "stopped"}
    assert stopped == {"kafka-1", "zookeeper-1"}
    said: list[str] = []
    nodes.up(said.append)
    assert {line.split(":")[0] for line in said if "ready" in line} == {"Kafka 1", "ZooKeeper 1"}
    assert {status.state for status in nodes.status()} == {"running"}


@pytest.mark.usefixtures("no_other_spark")
@pytest.mark.parametrize(
    "values",
    [
        {"strategy": "fluid", "fault": "kill:zookeeper@transfer,kill:kafka@5"},
        {"strategy": "fluid", "fault": "restart:zookeeper@transfer:2s,restart:kafka@5:2s"},
        REPLICATED | {"fault": "kill:zookeeper@3,kill:kafka@5"},
    ],
    ids=["killed", "restarted", "killed, with replicas"],
)
def test_a_job_goes_on_without_one_node_of_each(nodes, tmp_path_factory, values):
    lines: list[str] = []
    home, cores = tmp_path_factory.mktemp("lab"), 0 if "replicas" in values else 6  # each replica has its own Spark
    with Lab(nodes.endpoints(), jars("spark"), home, cores, lines.append, SparkProfile(), nodes) as lab:
        manifest = lab.run(spec(**values))
    assert manifest.status == "ok", manifest.verdict.examples
    action = values["fault"].split(":")[0]
    for name in ("zookeeper", "kafka"):
        assert f"{action} of {name} hits {name}-1" in manifest.notes
