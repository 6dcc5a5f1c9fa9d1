"""Kafka: a single broker, or one of several."""

import base64
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from kafka import KafkaAdminClient

from keyshift.folders import write_whole
from keyshift.model.errors import ServiceUnavailable
from keyshift.progress import Say
from keyshift.services.jars import jars, require_java
from keyshift.services.processes import run_to_end, tail
from keyshift.services.service import ANSWER_S, HOST, JVM, Argv, Env, Service, port_of


class Kafka(Service):
    """A KRaft broker that is a controller, too."""

    name, title, deadline_s = "kafka", "Kafka", 90.0
    default_ports: ClassVar = {"kafka": 19092, "kafka_controller": 19093, "kafka_relay": 19094, "kafka_relayed": 19095}
    relay_ports = ("kafka_relay", "kafka_relayed")

    def fetch(self, say: Say, cancel: threading.Event) -> Argv:
        """Get Java and the jars of the broker."""
        classpath = os.pathsep.join(str(jar) for jar in jars("broker", say, cancel))
        return [require_java(), *JVM, "-Xms128m", "-Xmx512m" if self.node.alone else "-Xmx384m", "-cp", classpath]

    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        """Write the properties, and format the data folder at the first start. Raises ServiceUnavailable if it has
        data that one of so many nodes cannot go on from.
        """
        number, nodes = self.node.number, len(self.node.hosts)
        voters = ",".join(f"{n}@{at}" for n, at in self.node.everybody("kafka_controller", ports).items())
        port, of_controller = (ports[port_of(name, number)] for name in ("kafka", "kafka_controller"))
        # A broker that is alone is the only one that speaks with its controller.
        controller = f"{HOST if self.node.alone else self.binding.listen}:{of_controller}"
        listeners = {"BROKER": f"{self.binding.listen}:{port}", "CONTROLLER": controller}
        advertised = {"BROKER": f"{self.binding.advertise}:{port}"}
        relay, relayed = (port_of(name, number) for name in self.relay_ports)
        if relay in ports:  # else it is a server for others
            # Clients who come through the relay are told that the broker is there.
            listeners["RELAYED"] = f"{HOST}:{ports[relayed]}"
            advertised["RELAYED"] = f"{HOST}:{ports[relay]}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "listeners": ",".join(f"{name}://{at}" for name, at in listeners.items()),
            "advertised.listeners": ",".join(f"{name}://{at}" for name, at in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            # Static voters: their address is not in the data, so another port can be used at the next start.
            "controller.quorum.voters": voters,
            "log.dirs": self.data,
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "message.max.bytes": 8 * 1024**2,
            "replica.fetch.max.bytes": 8 * 1024**2,
            "log.retention.check.interval.ms": 60_000,
            "log.segment.bytes": 128 * 1024**2,
            "log.cleaner.threads": 1,
            "log.cleaner.dedupe.buffer.size": 16 * 1024**2,  # the default takes a quarter of the heap
        }
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings |= {f"{topic}.replication.factor": nodes, f"{topic}.num.partitions": 1}
        majority = self.node.majority
        settings |= {"transaction.state.log.min.isr": majority, "share.coordinator.state.topic.min.isr": majority}
        if not self.node.alone:
            settings |= {"default.replication.factor": nodes, "min.insync.replicas": majority}
            # Half of the default: so long do partitions have no leader whose broker was killed.
            settings |= {"broker.session.timeout.ms": 4500, "broker.heartbeat.interval.ms": 500}
        file = f"conf/{self.name}.properties"
        write_whole(self.home / file, "".join(f"{name}={value}\n" for name, value in settings.items()))
        meta = self.home / self.data / "meta.properties"
        if not meta.is_file():
            self._format(program, file, "" if self.node.alone else voters, cancel)
        elif not self.node.alone and relay not in ports:  # embedded: a folder of its own, and the ports may change
            self._require_own(meta, voters)
        return [*program, "kafka.Kafka", file], dict(os.environ)

    def _require_own(self, meta: Path, voters: str) -> None:
        if f"cluster.id={cluster_id(voters)}" not in meta.read_text().splitlines():
            pod = self.node.hosts[self.node.number - 1].partition(".")[0]
            raise ServiceUnavailable(
                f"{meta.parent} has data of another number of nodes, or of nodes of other names; delete it (on "
                f"Kubernetes the claim data-{pod}), or start the nodes that have written it"
            )

    def _format(self, program: Argv, file: str, voters: str, cancel: threading.Event) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = self.log.with_name(f"{self.name}-format.log")
        command = [*program, "kafka.tools.StorageTool", "format", "-t", cluster_id(voters), "-c", file]
        code = run_to_end(command, log, cwd=self.home, cancel=cancel)
        if code != 0:
            raise ServiceUnavailable(f"Kafka's data folder could not be formatted. Last lines of {log}:\n{tail(log)}")

    def check(self, port: int) -> None:
        """Return if the broker names itself in the metadata and takes part in its cluster."""
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


def cluster_id(voters: str) -> str:
    """The id of the cluster of several nodes, or a new one if there are no ``voters``."""
    # Nodes are formatted by themselves, and need one id: it is made of what all of them know.
    chosen = uuid.uuid5(uuid.NAMESPACE_URL, voters) if voters else uuid.uuid4()
    # "u" in front: an id that begins with a dash would be taken for an option.
    return "u" + base64.urlsafe_b64encode(chosen.bytes).decode()[1:22]


_quieting = threading.Lock()


@contextmanager
def _quiet(logger_name: str) -> Iterator[None]:
    """Let a library write no log lines while a failure is an answer and not an incident."""
    logger = logging.getLogger(logger_name)
    with _quieting:  # else two threads could restore each other's silence
        before = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.setLevel(before)
