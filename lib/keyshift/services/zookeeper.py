"""ZooKeeper: a single server."""

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
from keyshift.services.service import ANSWER_S, HOST, JVM, LOCAL, Binding, Command, Env, Service

SESSION_MS, TICKS = 500, 5  # the shortest session that somebody wants, and its ticks: ZooKeeper has none below two


class ZooKeeper(Service):
    """A single ZooKeeper server, from the jars of pyspark. ``session_ms``: the shortest session that it has to hold."""

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

    def __init__(self, home: Path, binding: Binding = LOCAL, session_ms: int = SESSION_MS) -> None:
        super().__init__(home, binding)
        self._tick_ms = max(1, session_ms // TICKS)

    def fetch(self, say: Say, cancel: threading.Event) -> Command:
        """Java and jars of pyspark."""
        found = [str(jar) for pattern in self._jars for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
        return [require_java(), *JVM, "-Xmx256m", "-cp", os.pathsep.join(found)]

    def configure(self, program: Command, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Command, Env]:
        """Write zoo.cfg."""
        settings = {
            "clientPortAddress": self.binding.listen,
            "clientPort": ports["zookeeper"],
            "dataDir": self.data,
            "tickTime": self._tick_ms,
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
