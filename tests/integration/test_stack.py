"""The embedded stack with its real services: they work, survive trouble, and leave nothing behind."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import minio
import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import UnknownTopicOrPartitionError

from keyshift.endpoints import Endpoints
from keyshift.model.errors import ServiceUnavailable
from keyshift.services import processes, zookeeper
from keyshift.services import stack as stack_module
from keyshift.services.embedded import EmbeddedService
from keyshift.services.kafka import Kafka
from keyshift.services.service import Argv, Env
from keyshift.services.stack import DEFAULT_PORTS, Stack
from keyshift.waiting import wait_until
from own_stack import stopped_with_us

DEADLINE_S = 60.0


def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def pids(stack: Stack) -> dict[str, int | None]:
    return {status.service: status.pid for status in stack.status()}


def states(stack: Stack) -> dict[str, str]:
    return {status.service: status.state for status in stack.status()}


ALL_RUN = dict.fromkeys(["kafka", "zookeeper", "minio"], "running")


def all_run(stack: Stack, **but: str) -> bool:
    """Whether they do, but for some; a busy one may be late with its answer."""
    return wait_until(lambda: states(stack) == ALL_RUN | but, DEADLINE_S)


def produce(kafka: str, topic: str, values: list[bytes]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka, max_request_size=8 * 1024**2)
    for value in values:
        producer.send(topic, value).get(DEADLINE_S)
    producer.close()


def consume(kafka: str, topic: str, count: int) -> list[bytes]:
    how = {"auto_offset_reset": "earliest", "consumer_timeout_ms": int(DEADLINE_S * 1000)}
    consumer = KafkaConsumer(topic, bootstrap_servers=kafka, group_id=name(), **how)
    values = [message.value for _, message in zip(range(count), consumer, strict=False)]
    consumer.close()
    return values


def s3(at: Endpoints) -> minio.Minio:
    return minio.Minio(at.minio, at.access_key, at.secret_key, secure=at.secure)


# The services do their work


def test_what_is_produced_is_consumed_up_to_frames_of_megabytes(stack: Endpoints) -> None:
    topic, values = name(), [b"small", b"x" * 7 * 1024**2, b"last"]
    produce(stack.kafka, topic, values)
    assert consume(stack.kafka, topic, 3) == values


def test_a_topic_that_nobody_made_is_not_made_by_asking(stack: Endpoints) -> None:
    admin = KafkaAdminClient(bootstrap_servers=stack.kafka)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name()])
    admin.close()


def test_every_service_listens_on_the_loopback_address_only(session_stack: Stack) -> None:
    for pid in pids(session_stack).values():
        listening = [c for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert listening
        assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} <= {"127.0.0.1", "::1"}


def test_credentials_are_private_and_never_shown(session_stack: Stack, stack: Endpoints) -> None:
    assert (session_stack.home / "credentials.json").stat().st_mode & 0o077 == 0
    assert stack.secret_key not in repr(stack)
    for log in (session_stack.home / "logs").iterdir():
        assert stack.secret_key not in log.read_text(errors="replace")


def test_status_tells_address_process_uptime_memory_and_log(session_stack: Stack, stack: Endpoints) -> None:
    assert all_run(session_stack)
    found = {status.service: status for status in session_stack.status()}
    addresses = {"kafka": stack.kafka, "zookeeper": stack.zookeeper, "minio": stack.minio}
    assert {name: service.address for name, service in found.items()} == addresses
    for service in found.values():
        assert service.up_s >= 0 and service.rss_mib > 10
        assert service.log == session_stack.home / "logs" / f"{service.service}.log" and service.log.is_file()


# Trouble: a stack that may be broken


class Impatient(Kafka):
    """The embedded broker, whose next one serves two seconds after it was killed, not nine."""

    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        made = super().configure(program, ports, cancel)
        with open(self.home / "conf" / "kafka.properties", "a") as file:
            file.write("broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n")
        return made


@pytest.fixture(scope="module")
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    ports = {name: port + 12_000 for name, port in DEFAULT_PORTS.items()}  # which no other test begins with
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_module, "Kafka", Impatient)
        own = Stack(tmp_path_factory.mktemp("own"), ports)
    with stopped_with_us(own):
        own.up()
        yield own


def test_up_leaves_alone_what_runs_well(own_stack: Stack) -> None:
    before = pids(own_stack)
    assert all(before.values())
    assert (own_stack.up(), pids(own_stack)) == (own_stack.endpoints(), before)


def test_a_killed_service_is_named_and_the_next_up_brings_it_back_with_its_data(own_stack: Stack) -> None:
    topic, before = name(), pids(own_stack)
    produce(own_stack.endpoints().kafka, topic, [b"kept"])
    killed = psutil.Process(before["kafka"])
    killed.kill()
    psutil.wait_procs([killed], timeout=DEADLINE_S)
    assert all_run(own_stack, kafka="stopped")
    with pytest.raises(ServiceUnavailable, match=r"Kafka at 127\.0\.0\.1:\d+ is stopped; start it with `keyshift up`"):
        own_stack.endpoints()
    assert own_stack.running()

    endpoints = own_stack.up()
    after = pids(own_stack)
    assert after["kafka"] not in (None, before["kafka"])
    assert after | {"kafka": 0} == before | {"kafka": 0}
    assert consume(endpoints.kafka, topic, 1) == [b"kept"]


@contextlib.contextmanager
def impatient(service_name: str) -> Iterator[None]:
    """Meanwhile this service, which will not answer, counts as unhealthy at once."""
    plain = EmbeddedService.state

    def state(service: EmbeddedService, patience_s: float) -> tuple[str, str | None]:
        return plain(service, 0.5 if service.name == service_name else patience_s)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EmbeddedService, "state", state)
        yield


def test_a_service_that_hangs_is_unhealthy_and_restarted(own_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = processes.stop  # it will hear no question and no signal, however long one waits
    monkeypatch.setattr(processes, "stop", lambda unwell, deadline_s: stop(unwell, min(deadline_s, 0.5)))
    monkeypatch.setattr(zookeeper, "ANSWER_S", 0.5)
    own_stack.up()
    hanging = pids(own_stack)["zookeeper"]
    assert hanging
    os.kill(hanging, signal.SIGSTOP)
    with impatient("zookeeper"):
        assert all_run(own_stack, zookeeper="unhealthy")
        with pytest.raises(ServiceUnavailable, match=r"ZooKeeper at .* is unhealthy \(.*zookeeper\.log"):
            own_stack.endpoints()
        own_stack.up()
    assert all_run(own_stack)
    assert not psutil.pid_exists(hanging)


def test_credentials_that_do_not_fit_the_running_minio_are_found_and_mended(own_stack: Stack) -> None:
    endpoints = own_stack.up()
    s3(endpoints).put_object(endpoints.bucket, "kept", io.BytesIO(b"kept"), 4)
    new = {"access_key": "somebody", "secret_key": "another-secret"}
    (own_stack.home / "credentials.json").write_text(json.dumps(new))
    with impatient("minio"):
        assert all_run(own_stack, minio="unhealthy")
        endpoints = own_stack.up()
    assert (endpoints.access_key, endpoints.secret_key) == ("somebody", "another-secret")
    with s3(endpoints).get_object(endpoints.bucket, "kept") as answer:
        assert answer.read() == b"kept"


def test_a_port_taken_by_somebody_else_is_avoided_and_down_leaves_no_process(own_stack: Stack) -> None:
    first = own_stack.up()
    before = [psutil.Process(pid) for pid in pids(own_stack).values()]
    own_stack.down()
    assert not any(process.is_running() for process in before)
    assert not own_stack.running()

    host, port = first.kafka.split(":")
    said: list[str] = []
    with socket.create_server((host, int(port))):
        second = own_stack.up(said.append)
        assert all_run(own_stack)
    assert f"Kafka: port {port} is taken, using {second.kafka.split(':')[1]}" in said
    assert second.kafka != first.kafka
    assert (second.zookeeper, second.minio) == (first.zookeeper, first.minio)
    assert Stack(own_stack.home).endpoints() == second  # another process finds them too


def test_a_start_that_fails_shows_the_log_and_ends_what_it_started(tmp_path: Path) -> None:
    data = tmp_path / "data" / "kafka"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\ncluster.id=someone-elses\nnode.id=77\n")
    broken = Stack(tmp_path, {"kafka": 28092, "kafka_controller": 28093, "zookeeper": 28181, "minio": 28900})
    with pytest.raises(ServiceUnavailable, match=r"(?s)Kafka did not start: its process ended.*kafka\.log.*node id 77"):
        broken.up()
    assert not broken.running()
    assert set(states(broken).values()) == {"stopped"}


def test_after_wipe_nothing_but_the_lock_is_left_and_a_new_stack_starts(own_stack: Stack) -> None:
    topic = name()
    produce(own_stack.up().kafka, topic, [b"gone"])
    old = own_stack.endpoints()
    own_stack.down(wipe=True)
    assert [entry.name for entry in own_stack.home.iterdir()] == ["lock"]
    new = own_stack.up()
    assert new.secret_key != old.secret_key
    admin = KafkaAdminClient(bootstrap_servers=new.kafka)
    assert topic not in admin.list_topics()
    admin.close()


def test_two_ups_at_once_start_each_service_once(tmp_path: Path) -> None:
    script = "import sys; from keyshift.services.stack import Stack, Path; Stack(Path(sys.argv[1])).up()"
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    stack = Stack(tmp_path)
    try:
        assert [up.wait(300) for up in both] == [0, 0]
        assert all_run(stack)
        ours = [p for p in psutil.process_iter() if _works_in(p, tmp_path)]
        assert {p.pid for p in ours} == set(pids(stack).values())
    finally:
        for up in both:
            up.kill()
            up.wait()
        stack.down()
    assert not any(_works_in(p, tmp_path) for p in psutil.process_iter())


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False
