"""The three services: how each is configured, started, and asked whether it is well.

The embedded stack runs them on this machine for itself, ``keyshift.lab.serve`` one of them for others. Every path of
the embedded stack is relative to the state folder, where the processes run: no folder name needs escaping.
"""

import base64
import json
import logging
import os
import secrets
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import minio
import urllib3
from kafka import KafkaAdminClient

from keyshift.errors import ServiceUnavailable
from keyshift.lab.folders import Say, write_whole
from keyshift.lab.jars import jars, pyspark_jars, require_java
from keyshift.lab.minio_binary import minio_binary
from keyshift.lab.processes import run_to_end, tail

Command = list[str]
Env = dict[str, str]

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
BUCKET = "keyshift"
ANSWER_S = 3.0  # how long a health check waits for an answer

# One client compiler and the serial collector: on few cores the services leave the processor to the job.
JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]
# Log4j without a configuration file: lines of this level and above go to the standard output, and so to our log.
JVM += ["-Dorg.apache.logging.log4j.level=INFO", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service is: by default where only this machine finds it."""

    listen: str = HOST
    advertise: str = HOST  # the name under which clients reach it
    data: Path | None = None  # by default a folder in the state folder


class Service(ABC):
    """One service of the stack. Call order: ``fetch``, ``configure`` with the ports chosen, start it, ``check``."""

    name: ClassVar[str]
    title: ClassVar[str]
    default_ports: ClassVar[dict[str, int]]  # the first is the one clients use
    deadline_s: ClassVar[float]  # from its start to the first good check, on a busy machine

    def __init__(self, home: Path, place: Place = Place()) -> None:
        self.home = home
        self.place = place
        self.data = place.data or Path("data", self.name)
        self.log = home / "logs" / f"{self.name}.log"
        self.pid_file = home / "pids" / f"{self.name}.json"

    @abstractmethod
    def fetch(self, say: Say, cancel: threading.Event) -> Command:
        """Get what it needs, which may take minutes the first time; returns the start of its command."""

    @abstractmethod
    def configure(self, program: Command, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Command, Env]:
        """Write its configuration; returns the command and the environment to start it with, in the state folder."""

    @abstractmethod
    def check(self, port: int) -> None:
        """Return if it is well and ready for use (MinIO: with its bucket); any exception says what is wrong."""


class Kafka(Service):
    """A single KRaft broker that is its own controller."""

    name, title, deadline_s = "kafka", "Kafka", 90.0
    default_ports: ClassVar = {"kafka": 19092, "kafka_controller": 19093}

    def fetch(self, say: Say, cancel: threading.Event) -> Command:
        """Java and the jars of the broker."""
        classpath = os.pathsep.join(str(jar) for jar in jars("broker", say, cancel))
        return [require_java(), *JVM, "-Xms128m", "-Xmx512m", "-cp", classpath]

    def configure(self, program: Command, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Command, Env]:
        """Write the properties, and format the data folder at the first start."""
        controller = f"{HOST}:{ports['kafka_controller']}"  # always: the broker is the only one that speaks with it
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"BROKER://{self.place.listen}:{ports['kafka']},CONTROLLER://{controller}",
            "advertised.listeners": f"BROKER://{self.place.advertise}:{ports['kafka']}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            # Static voters: their address is not in the data, so another port can be used at the next start.
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": self.data,
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "message.max.bytes": 8 * 1024**2,
            "replica.fetch.max.bytes": 8 * 1024**2,
            # Runs are read back within minutes: hours of events must not fill the disk.
            "log.retention.hours": 6,
            "log.retention.bytes": 2 * 1024**3,  # per partition
            "log.retention.check.interval.ms": 60_000,
            "log.segment.bytes": 128 * 1024**2,
            "log.cleaner.threads": 1,
            "log.cleaner.dedupe.buffer.size": 16 * 1024**2,  # the default takes a quarter of the heap
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings |= {f"{topic}.replication.factor": 1, f"{topic}.num.partitions": 1}
        settings |= {"transaction.state.log.min.isr": 1, "share.coordinator.state.topic.min.isr": 1}
        file = "conf/kafka.properties"
        write_whole(self.home / file, "".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (self.home / self.data / "meta.properties").is_file():
            self._format(program, file, cancel)
        return [*program, "kafka.Kafka", file], dict(os.environ)

    def _format(self, program: Command, file: str, cancel: threading.Event) -> None:
        # "u" in front: an id that begins with a dash would be taken for an option.
        cluster_id = "u" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = self.log.with_name("kafka-format.log")
        command = [*program, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", file]
        code = run_to_end(command, log, cwd=self.home, cancel=cancel)
        if code != 0:
            raise ServiceUnavailable(f"Kafka's data folder could not be formatted. Last lines of {log}:\n{tail(log)}")

    def check(self, port: int) -> None:
        """The broker names itself in the metadata and takes part in its cluster."""
        with _quiet("kafka"):
            wait_ms = int(ANSWER_S * 1000)
            admin = KafkaAdminClient(
                bootstrap_servers=f"{HOST}:{port}", request_timeout_ms=wait_ms, bootstrap_timeout_ms=wait_ms
            )
            try:
                brokers = admin.describe_cluster()["brokers"]
            finally:
                admin.close()
        # A broker answers before its controller lets it take partitions.
        if not any(broker["port"] == port and not broker.get("is_fenced") for broker in brokers):
            raise ServiceUnavailable("the broker has not joined its cluster yet")


class ZooKeeper(Service):
    """A single ZooKeeper server, from the jars of pyspark."""

    name, title, deadline_s = "zookeeper", "ZooKeeper", 60.0
    default_ports: ClassVar = {"zookeeper": 12181}
    _jars: ClassVar = (
        "zookeeper-*",
        "log4j-api-*",
        "log4j-core-*",
        "log4j-slf4j2-impl-*",
        "slf4j-api-*",
        "netty-*",
        "metrics-core-*",
        "snappy-java-*",
    )

    def fetch(self, say: Say, cancel: threading.Event) -> Command:
        """Java and jars of pyspark."""
        found = [str(jar) for pattern in self._jars for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
        return [require_java(), *JVM, "-Xmx256m", "-cp", os.pathsep.join(found)]

    def configure(self, program: Command, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Command, Env]:
        """Write zoo.cfg."""
        settings = {
            "clientPortAddress": self.place.listen,
            "clientPort": ports["zookeeper"],
            "dataDir": self.data,
            "tickTime": 500,  # a session may be as short as two ticks
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,  # no limit: every router, slot and client comes from this one address
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "forceSync": "no",  # the folder is disposable
            "preAllocSize": 1024,  # KiB
        }
        file = "conf/zoo.cfg"
        write_whole(self.home / file, "".join(f"{name}={value}\n" for name, value in settings.items()))
        return [*program, "org.apache.zookeeper.server.ZooKeeperServerMain", file], dict(os.environ)

    def check(self, port: int) -> None:
        """It answers that it serves alone."""
        with socket.create_connection((HOST, port), timeout=ANSWER_S) as link:
            link.sendall(b"srvr")
            answer = b"".join(iter(lambda: link.recv(4096), b""))
        if b"Mode: standalone" not in answer:
            raise ServiceUnavailable(f"ZooKeeper answered {answer[:80]!r}")


class MinIO(Service):
    """A single MinIO server with one folder, and in it the bucket of keyshift."""

    name, title, deadline_s = "minio", "MinIO", 60.0
    default_ports: ClassVar = {"minio": 19000}

    def __init__(self, home: Path, place: Place = Place(), credentials: tuple[str, str] | None = None) -> None:
        super().__init__(home, place)
        self._given = credentials

    def fetch(self, say: Say, cancel: threading.Event) -> Command:
        """The server program; building it is what takes minutes."""
        return [str(minio_binary(say, cancel))]

    def configure(self, program: Command, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Command, Env]:
        """Everything is in the command and the environment."""
        access_key, secret_key = self.credentials()
        # Settings of another MinIO in the user's environment must not leak into this one.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("MINIO_", "_MINIO_"))}
        env |= {"MINIO_ROOT_USER": access_key, "MINIO_ROOT_PASSWORD": secret_key}
        env |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}  # no console, no asking for updates
        address = f"{self.place.listen}:{ports['minio']}"
        command = [*program, "server", str(self.data), "--address", address, "--quiet", "--certs-dir", "conf/minio"]
        return command, env

    def credentials(self) -> tuple[str, str]:
        """Access key and secret key: those given, else generated on first use and kept in a file only the user can
        read.
        """
        if self._given:
            return self._given
        file = self.home / "credentials.json"
        try:
            saved = json.loads(file.read_text())
            return saved["access_key"], saved["secret_key"]
        except FileNotFoundError:
            keys = f"keyshift-{secrets.token_hex(4)}", secrets.token_urlsafe(24)
            write_whole(file, json.dumps({"access_key": keys[0], "secret_key": keys[1]}))
            return keys
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServiceUnavailable(
                f"the MinIO credentials in {file} cannot be read; remove the file and call `keyshift up`"
            ) from error

    def check(self, port: int) -> None:
        """It lives, takes our credentials, and has the bucket: made if it is not there."""
        # The client's own pool waits for minutes and retries five times.
        pool = urllib3.PoolManager(timeout=ANSWER_S, retries=False)
        answer = pool.request("GET", f"http://{HOST}:{port}/minio/health/live")
        if answer.status != 200:
            raise ServiceUnavailable(f"MinIO says it is not live (HTTP {answer.status})")
        access_key, secret_key = self.credentials()
        make_bucket(minio.Minio(f"{HOST}:{port}", access_key, secret_key, secure=False, http_client=pool), BUCKET)


def make_bucket(client: minio.Minio, bucket: str) -> bool:
    """Make the bucket if it is not there; says whether it did."""
    if client.bucket_exists(bucket):  # a signed request: also proves that the credentials fit
        return False
    client.make_bucket(bucket)
    return True


_quieting = threading.Lock()


@contextmanager
def _quiet(logger_name: str) -> Iterator[None]:
    """No log lines from a library while a failure is an answer and not an incident."""
    logger = logging.getLogger(logger_name)
    with _quieting:  # else two threads could restore each other's silence
        before = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(before)
