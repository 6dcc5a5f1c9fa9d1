"""ZooKeeper: a single server, or one of an ensemble."""

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from keyshift.folders import write_whole
from keyshift.model.errors import ServiceUnavailable
from keyshift.progress import Say
from keyshift.services.jars import pyspark_jars, require_java
from keyshift.services.service import ALONE, ANSWER_S, HOST, JVM, LOCAL, Argv, Binding, Env, Service, ServiceNode

SESSION_MS, TICKS = 500, 5  # the shortest session that somebody wants, and its ticks: ZooKeeper has none below two
JOIN_MS, SYNC_MS = 30_000, 5_000  # in which a server has to join its leader, and to answer it; a machine may be busy


class ZooKeeper(Service):
    """A ZooKeeper server, from the jars of pyspark. ``session_ms``: the shortest session that it has to hold."""

    name, title, deadline_s = "zookeeper", "ZooKeeper", 60.0
    default_ports: ClassVar = {"zookeeper": 12181}
    quorum_ports: ClassVar = {"zookeeper_peers": 12182, "zookeeper_election": 12183}
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

    def __init__(
        self, home: Path, binding: Binding = LOCAL, session_ms: int = SESSION_MS, node: ServiceNode = ALONE
    ) -> None:
        super().__init__(home, binding, node)
        self._tick_ms = max(1, session_ms // TICKS)

    def fetch(self, say: Say, cancel: threading.Event) -> Argv:
        """Get Java and the jars of pyspark."""
        found = [str(jar) for pattern in self._jars for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
        return [require_java(), *JVM, "-Xmx256m" if self.node.alone else "-Xmx128m", "-cp", os.pathsep.join(found)]

    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        """Write its file of settings, and in an ensemble which server it is."""
        settings: dict[str, object] = {
            "clientPortAddress": self.binding.listen,
            "clientPort": ports[next(iter(self.ports))],
            "dataDir": self.data,
            "tickTime": self._tick_ms,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,  # no limit: every router, slot and client comes from this one address
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "forceSync": "no",  # the folder is disposable
            "preAllocSize": 1024,  # KiB
            # A live job writes all the time. What lies before the last snapshots of the tree is deleted, once an hour.
            "snapCount": 20_000,
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        if not self.node.alone:
            settings |= self._ensemble(ports)
            write_whole(self.home / self.data / "myid", f"{self.node.number}\n")
        file = "conf/zoo.cfg" if self.node.alone else f"conf/{self.name}.cfg"
        write_whole(self.home / file, "".join(f"{name}={value}\n" for name, value in settings.items()))
        # Alone, too: the other main class deletes nothing.
        return [*program, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file], dict(os.environ)

    def _ensemble(self, ports: Mapping[str, int]) -> dict[str, object]:
        election = self.node.everybody("zookeeper_election", ports)
        servers: dict[str, object] = {
            f"server.{number}": f"{peers}:{election[number].rsplit(':', 1)[1]}"
            for number, peers in self.node.everybody("zookeeper_peers", ports).items()
        }
        limits = {"initLimit": -(-JOIN_MS // self._tick_ms), "syncLimit": -(-SYNC_MS // self._tick_ms)}
        # A pod may start before its own name is known.
        return servers | limits | {"quorumListenOnAllIPs": str(self.binding.listen != HOST).lower()}

    def check(self, port: int) -> None:
        """Return if it answers that it serves: alone, or with a majority of its ensemble."""
        with socket.create_connection((HOST, port), timeout=ANSWER_S) as link:
            link.sendall(b"srvr")
            answer = b"".join(iter(lambda: link.recv(4096), b""))
        modes = (b"standalone",) if self.node.alone else (b"leader", b"follower")
        if not any(b"Mode: " + mode in answer for mode in modes):
            raise ServiceUnavailable(f"ZooKeeper answered {answer[:80]!r}")
