"""One service in the foreground, as containers run it: its configuration, what is refused, and that it serves."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import redis
import urllib3
from redis.backoff import NoBackoff
from redis.retry import Retry
from typer.testing import CliRunner

from keyshift.endpoints import Endpoints
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.objects import Bucket, await_answer
from keyshift.redis_program import PASSWORD
from keyshift.services import kafka, serve
from keyshift.services.embedded import is_free
from keyshift.services.kafka import Kafka, cluster_id
from keyshift.services.minio import MinIO
from keyshift.services.processes import tail
from keyshift.services.service import Binding
from keyshift.services.zookeeper import ZooKeeper
from keyshift.waiting import wait_until
from memory_bucket import MemoryBucket, s3_error

DEADLINE_S = 60.0


class Became(Exception):
    """Instead of an exec."""


@pytest.fixture(autouse=True)
def container(tmp_path, monkeypatch):
    """A state folder of its own, programs that need not be there, and nothing that takes this process away."""
    monkeypatch.setenv("KEYSHIFT_HOME", str(tmp_path / "home"))
    others = ("MINIO_", "KEYSHIFT_MINIO", "KEYSHIFT_BUCKET", PASSWORD)
    for name in [name for name in os.environ if name.startswith(others)]:
        monkeypatch.delenv(name)
    for service in (Kafka, ZooKeeper, MinIO):
        monkeypatch.setattr(service, "fetch", lambda self, say, cancel: [f"program-of-{self.name}"])
    monkeypatch.setattr(kafka, "run_to_end", lambda *_, **__: 0)  # what formats its folder
    monkeypatch.chdir(tmp_path)
    return tmp_path


def become(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that this command line ends in."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def exec_(file: str, command: list[str], env: dict[str, str]) -> NoReturn:
        assert file == command[0]
        found.append((command, env))
        raise Became

    monkeypatch.setattr(serve.os, "execvpe", exec_)
    result = CliRunner().invoke(serve.app, list(arguments))
    if isinstance(result.exception, KeyshiftError):
        raise result.exception
    assert isinstance(result.exception, Became), result.output
    return found[0]


def settings(file: Path) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in file.read_text().splitlines())


def test_kafka_serves_everybody_under_the_name_it_is_told_and_keeps_its_controller_to_itself(container, monkeypatch):
    data = container / "volume"
    command, _ = become("kafka", "--advertise", "broker.lab.svc", "--data", str(data), monkeypatch=monkeypatch)
    assert command[-1] == "conf/kafka.properties"
    assert Path.cwd() == container / "home"
    found = settings(container / "home/conf/kafka.properties")
    assert found["listeners"] == "BROKER://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093"
    assert found["advertised.listeners"] == "BROKER://broker.lab.svc:9092"
    assert (found["controller.quorum.voters"], found["log.dirs"]) == ("1@127.0.0.1:9093", str(data / "kafka"))
    assert (data / "kafka").is_dir()


@pytest.mark.parametrize(("host", "number"), [("k-0", 1), ("k-2", 3)])
def test_one_of_three_nodes_knows_from_its_name_which_it_is(container, monkeypatch, host, number):
    monkeypatch.setattr(serve.socket, "gethostname", lambda: host)
    hosts, data = [f"k-{n}.k-nodes.lab.svc" for n in range(3)], container / "volume"
    arguments = ["--nodes", ",".join(hosts), "--data", str(data)]
    command, _ = become("kafka", *arguments, monkeypatch=monkeypatch)
    found = settings(container / "home" / command[-1])
    assert found["node.id"] == str(number)
    assert found["listeners"] == "BROKER://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"
    assert found["advertised.listeners"] == f"BROKER://{host}.k-nodes.lab.svc:9092"
    assert found["controller.quorum.voters"] == ",".join(f"{n}@{at}:9093" for n, at in enumerate(hosts, 1))
    command, _ = become("zookeeper", *arguments, monkeypatch=monkeypatch)
    found = settings(container / "home" / command[-1])
    assert found["server.2"] == "k-1.k-nodes.lab.svc:2182:2183"
    assert (found["clientPortAddress"], found["clientPort"]) == ("0.0.0.0", "2181")
    assert found["quorumListenOnAllIPs"] == "true"
    assert (data / "zookeeper/myid").read_text() == f"{number}\n"


def test_one_of_three_brokers_goes_on_from_their_data_and_not_from_that_of_a_single_one(container, monkeypatch):
    monkeypatch.setattr(serve.socket, "gethostname", lambda: "k-0")
    meta = container / "volume/kafka/meta.properties"
    meta.parent.mkdir(parents=True)
    arguments = "kafka", "--nodes", "k-0.lab.svc,k-1.lab.svc,k-2.lab.svc", "--data", str(container / "volume")
    voters = "1@k-0.lab.svc:9093,2@k-1.lab.svc:9093,3@k-2.lab.svc:9093"
    meta.write_text(f"#\ncluster.id={cluster_id(voters)}\nnode.id=1\n")
    become(*arguments, monkeypatch=monkeypatch)
    meta.write_text(f"#\ncluster.id={cluster_id('')}\nnode.id=1\n")
    with pytest.raises(ServiceUnavailable, match=r"volume/kafka has data of another number of .*the claim data-k-0\)"):
        become(*arguments, monkeypatch=monkeypatch)
    become("kafka", "--advertise", "k", "--data", str(container / "volume"), monkeypatch=monkeypatch)


def test_minio_takes_its_credentials_and_settings_from_the_environment_and_shows_no_secret(container, monkeypatch):
    monkeypatch.setenv("MINIO_ROOT_USER", "somebody")
    monkeypatch.setenv("MINIO_ROOT_PASSWORD", "a-long-secret")
    monkeypatch.setenv("MINIO_PROMETHEUS_AUTH_TYPE", "public")
    command, env = become("minio", "--data", str(container / "volume"), monkeypatch=monkeypatch)
    assert command[:3] == ["program-of-minio", "server", str(container / "volume/minio")]
    assert command[command.index("--address") + 1] == "0.0.0.0:9000"
    assert (env["MINIO_ROOT_USER"], env["MINIO_ROOT_PASSWORD"]) == ("somebody", "a-long-secret")
    assert (env["MINIO_BROWSER"], env["MINIO_PROMETHEUS_AUTH_TYPE"]) == ("off", "public")
    assert "a-long-secret" not in " ".join(command)
    assert not (container / "home/credentials.json").exists()


def test_redis_serves_everybody_who_has_its_password_which_no_command_shows(container, monkeypatch):
    monkeypatch.setenv(PASSWORD, "a-long-secret")
    command, _ = become("redis", "--port", "6380", "--memory-mib", "64", monkeypatch=monkeypatch)
    assert Path(command[0]).name == "redis-server" and os.access(command[0], os.X_OK)
    assert "a-long-secret" not in " ".join(command)
    file = container / "home" / command[1]
    assert file.stat().st_mode & 0o077 == 0
    found = dict(line.split(" ", 1) for line in file.read_text().splitlines())
    assert (found["bind"], found["port"], found["maxmemory"]) == ("0.0.0.0", "6380", "64mb")


@pytest.mark.parametrize("service", [Kafka, ZooKeeper, MinIO])
def test_without_a_place_a_service_keeps_to_this_machine_and_to_its_state_folder(container, service, monkeypatch):
    monkeypatch.setenv("MINIO_PROMETHEUS_AUTH_TYPE", "public")  # of another MinIO
    home = container / "home"
    ports = dict(service.default_ports)
    command, env = service(home).configure(["program"], ports, threading.Event())
    conf = [file.read_text() for file in (home / "conf").glob("*")] if (home / "conf").exists() else []
    written = "\n".join([*conf, *command])
    assert "127.0.0.1" in written
    assert "0.0.0.0" not in written
    assert f"data/{service.name}" in written
    assert str(container) not in written
    if service is MinIO:
        assert "MINIO_PROMETHEUS_AUTH_TYPE" not in env


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kafka", "--advertise", "broker:9092", "--data", "/data"], "--advertise 'broker:9092' is not a host"),
        (["kafka", "--advertise", "0.0.0.0", "--data", "/data"], "--advertise '0.0.0.0' is not a host"),
        (["kafka", "--advertise", "", "--data", "/data"], "--advertise '' is not a host"),
        (["kafka", "--nodes", "x,y,z", "--data", "/data"], "--nodes 'x,y,z': expected the names of three hosts"),
        (["zookeeper", "--nodes", "x", "--data", "/data"], "--nodes 'x': expected the names of three hosts"),
        (["kafka", "--advertise", "a", "--data", "/a,/b"], "--data '/a,/b': expected an absolute path"),
        (["zookeeper", "--data", "data"], "--data 'data': expected an absolute path"),
        (["zookeeper", "--data", "/data", "--listen", "0.0.0.0:1"], "--listen '0.0.0.0:1': expected an IPv4 address"),
        (["minio", "--data", "/data"], "MINIO_ROOT_USER is not set in the environment"),
        (["redis"], "KEYSHIFT_REDIS_PASSWORD is not set in the environment"),
        (["redis", "--listen", "::"], "--listen '::': expected an IPv4 address"),
        (["bucket"], "KEYSHIFT_MINIO is not set in the environment"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_written(container, arguments, message, monkeypatch):
    with pytest.raises(BadInput, match=re.escape(message)):
        become(*arguments, monkeypatch=monkeypatch)
    assert list(container.iterdir()) == []


def test_credentials_too_short_for_minio_are_counted_and_not_shown(monkeypatch):
    monkeypatch.setenv("MINIO_ROOT_USER", "somebody")
    monkeypatch.setenv("MINIO_ROOT_PASSWORD", "s3cret")
    with pytest.raises(BadInput, match=r"MINIO_ROOT_PASSWORD has 6 characters; MinIO wants at least 8") as refused:
        become("minio", "--data", "/data", monkeypatch=monkeypatch)
    assert "s3cret" not in str(refused.value)


def test_a_data_folder_that_cannot_be_made_is_named(container, monkeypatch):
    (container / "file").write_text("not a folder")
    with pytest.raises(ServiceUnavailable, match=r"cannot write to .*/file/zookeeper: .*--data"):
        become("zookeeper", "--data", str(container / "file"), monkeypatch=monkeypatch)


def results_of(client: MemoryBucket) -> Bucket:
    return Bucket(Endpoints("", "", "store:9000", "somebody", "a-secret", bucket="results"), client=client)


def test_the_bucket_is_made_once_the_server_answers_and_then_left_alone():
    failures = [urllib3.exceptions.ProtocolError("refused"), s3_error("XMinioServerNotInitialized")]
    client = MemoryBucket(failures=failures)
    assert await_answer(results_of(client).make, DEADLINE_S) is True
    assert client.buckets == {"results"}
    assert await_answer(results_of(client).make, DEADLINE_S) is False


def test_wrong_credentials_are_told_at_once_and_a_silent_server_after_the_deadline():
    refusing = MemoryBucket(failures=[s3_error("SignatureDoesNotMatch")])
    with pytest.raises(ServiceUnavailable, match=r"store:9000 refused the credentials \(SignatureDoesNotMatch\)"):
        await_answer(results_of(refusing).make, DEADLINE_S)
    silent = MemoryBucket(failures=[urllib3.exceptions.ProtocolError("no route")] * 9)
    with pytest.raises(ServiceUnavailable, match=r"does not answer \(ProtocolError\).*\(tried for 0 s\)"):
        await_answer(results_of(silent).make, 0)
    assert len(silent.failures) == 8


def test_a_bucket_with_an_impossible_name_and_an_address_that_is_none_are_refused(monkeypatch):
    for name in ("KEYSHIFT_ACCESS_KEY", "KEYSHIFT_SECRET_KEY"):
        monkeypatch.setenv(name, "somebody")
    monkeypatch.setenv("KEYSHIFT_MINIO", "store:9000")
    monkeypatch.setenv("KEYSHIFT_BUCKET", "No_Bucket!")
    with pytest.raises(BadInput, match=r"bucket 'No_Bucket!': .*3 to 63 small letters"):
        become("bucket", monkeypatch=monkeypatch)
    monkeypatch.setenv("KEYSHIFT_MINIO", "http://store:9000/x")
    with pytest.raises(BadInput, match=r"'http://store:9000/x': .*expected host:port"):
        become("bucket", monkeypatch=monkeypatch)


@contextlib.contextmanager
def started(log: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A service on a free port of this machine."""
    port = next(filter(is_free, range(28_181, 29_000, 10)))  # no other process of the tests gets it by asking for any
    command = [sys.executable, "-m", "keyshift.services.serve", *arguments, "--listen", "127.0.0.1"]
    with open(log, "wb") as sink:
        server = subprocess.Popen([*command, "--port", str(port)], env=os.environ, stdout=sink, stderr=sink)
    try:
        yield server, port
    finally:
        server.kill()
        server.wait()


def test_zookeeper_started_this_way_answers_and_ends_on_the_signal(tmp_path):
    log = tmp_path / "zookeeper.log"
    asked = ZooKeeper(tmp_path / "home", Binding())
    with started(log, "zookeeper", "--data", str(tmp_path / "volume")) as (server, port):

        def answers() -> bool:
            assert server.poll() is None, tail(log)
            with contextlib.suppress(OSError, ServiceUnavailable):
                asked.check(port)
                return True
            return False

        assert wait_until(answers, DEADLINE_S)
        assert (tmp_path / "volume/zookeeper/version-2").is_dir()
        server.terminate()  # reaches the server itself: nothing stands between it and its parent
        server.wait(DEADLINE_S)
        with pytest.raises(OSError):
            asked.check(port)


def test_redis_started_this_way_asks_for_the_password_keeps_nothing_and_ends_on_the_signal(tmp_path, monkeypatch):
    password, log = "a \"b' #\\ü", tmp_path / "redis.log"
    monkeypatch.setenv(PASSWORD, password)
    with started(log, "redis", "--memory-mib", "64") as (server, port):
        at_once = Retry(NoBackoff(), 0)  # its own pauses grow to seconds
        client = redis.Redis("127.0.0.1", port, password=password, retry=at_once)

        def answers() -> bool:
            assert server.poll() is None, tail(log)
            with contextlib.suppress(redis.ConnectionError):
                return bool(client.ping())
            return False

        assert wait_until(answers, DEADLINE_S)
        about = client.info()
        assert (about["maxmemory"], about["maxmemory_policy"]) == (64 << 20, "noeviction")
        with redis.Redis("127.0.0.1", port, retry=at_once) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        client.set("key", "value")
        server.terminate()
        server.wait(DEADLINE_S)
        client.close()
    assert [file.name for file in (tmp_path / "home").rglob("*") if file.is_file()] == ["redis.conf"]
