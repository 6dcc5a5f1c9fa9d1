"""Who does not know a job's secrets gets nothing out of it, and nothing into it."""

import secrets

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from keyshift.model.errors import ServiceUnavailable
from keyshift.wire.coordination import Coordination
from keyshift.wire.nodes import ADDRESSES, ALL, Node

ASSIGNMENT = Node("assignment", dict)  # of any kind


@pytest.fixture
def job(stack):
    """A job with something published."""
    coordination = Coordination(stack.zookeeper, f"/keyshift/{secrets.token_hex(4)}/0", "secret")
    coordination.begin()
    coordination.publish(ASSIGNMENT, {"version": 1})
    coordination.register(ADDRESSES[0], "here:1")
    yield coordination
    coordination.root = coordination.root.removesuffix("/0")
    coordination.withdraw(ALL)
    coordination.close()


@pytest.fixture
def stranger(stack):
    client = KazooClient(hosts=stack.zookeeper, timeout=60.0)
    client.start(timeout=30)
    client.add_auth("digest", "job:secret")  # the digest is of another word than the secret
    yield client
    client.stop()
    client.close()


@pytest.mark.parametrize("node", ["", "/assignment", "/slots", "/slots/0"])
def test_a_stranger_neither_reads_nor_writes_nor_deletes_what_a_job_has_in_zookeeper(job, stranger, node):
    path = f"{job.root}{node}"
    acts = [("get",), ("get_children",), ("set", b"{}"), ("set_acls", OPEN_ACL_UNSAFE), ("delete",)]
    for act, *given in acts:
        with pytest.raises(NoAuthError):
            getattr(stranger, act)(path, *given)
    with pytest.raises(NoAuthError):
        stranger.create(f"{path}/new", b"{}")
    with pytest.raises(NotEmptyError):  # anybody may delete folders of jobs, but none with something in it
        stranger.delete(job.root.removesuffix("/0"))
    assert job.read(ASSIGNMENT) == {"version": 1}


def test_jobs_do_not_see_each_other_and_each_removes_its_own(stack, job):
    other = Coordination(stack.zookeeper, f"/keyshift/{secrets.token_hex(4)}/0", "another secret")
    try:
        other.begin()
        other.publish(ASSIGNMENT, {"version": 2})
        other.withdraw(ALL)
        assert other.read(ASSIGNMENT) is None
        assert job.read(ASSIGNMENT) == {"version": 1}
        other.root = job.root
        with pytest.raises(ServiceUnavailable, match="NoAuthError"):
            other.read(ASSIGNMENT)
    finally:
        other.close()


def test_spark_answers_nobody_who_does_not_know_its_secret(lab):
    spark = SparkSession.builder.getOrCreate()
    jvm, port = spark._jvm, int(spark.conf.get("spark.driver.port"))
    network = jvm.org.apache.spark.network
    conf = network.util.TransportConf("rpc", network.util.MapConfigProvider.EMPTY)
    factory = network.TransportContext(conf, network.server.NoOpRpcHandler()).createClientFactory()
    try:
        client = factory.createClient("127.0.0.1", port)
        with pytest.raises(Py4JJavaError, match="does not have SASL enabled"):
            client.sendRpcSync(jvm.java.nio.ByteBuffer.allocate(8), 10_000)
    finally:
        factory.close()
