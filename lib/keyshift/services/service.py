"""The interface of every service: configuration, start, health check.

The embedded stack runs them on this machine for itself, ``services.serve`` one of them for others. Every path of the
embedded stack is relative to the state folder, where the processes run: no folder name needs escaping.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from keyshift.progress import Say

Argv = list[str]
Env = dict[str, str]

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
ANSWER_S = 3.0  # how long a health check waits for an answer

# One client compiler and the serial collector: on few cores the services leave the processor to the job.
JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]
# Log4j without a configuration file: lines of this level and above go to the standard output, and so to our log.
JVM += ["-Dorg.apache.logging.log4j.level=INFO", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true"]


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a service is: by default where only this machine finds it."""

    listen: str = HOST
    advertise: str = HOST  # the name under which clients reach it
    data: Path | None = None  # by default a folder in the state folder


LOCAL = Binding()


class Route(NamedTuple):
    """A way to a service ``to`` (host, port), for somebody who is to connect to ``port``; 0: any."""

    port: int
    to: tuple[str, int]


@dataclass(frozen=True, slots=True)
class ServiceNode:
    """Which node of a service one is: ``number``, from 1; ``hosts``: how each finds the others."""

    number: int = 1
    hosts: tuple[str, ...] = (HOST,)

    @property
    def alone(self) -> bool:
        """Whether there is no other node."""
        return len(self.hosts) == 1

    @property
    def majority(self) -> int:
        """How many nodes have to live."""
        return len(self.hosts) // 2 + 1

    def everybody(self, port: str, ports: Mapping[str, int]) -> dict[int, str]:
        """The host:port of each node by its number, with what ``ports`` has for its port called ``port``."""
        return {n: f"{host}:{ports[port_of(port, n)]}" for n, host in enumerate(self.hosts, 1)}


ALONE = ServiceNode()


def port_of(port: str, number: int) -> str:
    """The name that the port called ``port`` has on node ``number``: on the first as if it were alone."""
    return port if number == 1 else f"{port}-{number}"


class Service(ABC):
    """One service of the stack. Call order: ``fetch``, ``configure`` with the ports chosen, start it, ``check``."""

    name: str  # as files of it are called; of one of several nodes with its number
    title: str
    default_ports: ClassVar[dict[str, int]]  # of the first node; the first is the one clients use
    quorum_ports: ClassVar[dict[str, int]] = {}  # what it needs in addition if there are several nodes
    relay_ports: ClassVar[tuple[str, ...]] = ()  # where a relay listens, and where it connects to, if there may be one
    deadline_s: ClassVar[float]  # from its start to the first good check, on a busy machine

    def __init__(self, home: Path, binding: Binding = LOCAL, node: ServiceNode = ALONE) -> None:
        self.home, self.binding, self.node, self.kind = home, binding, node, self.name
        if not node.alone:
            self.name, self.title = f"{self.name}-{node.number}", f"{self.title} {node.number}"
        wanted = self.default_ports | ({} if node.alone else self.quorum_ports)
        self.ports = {port_of(name, node.number): port + 10 * (node.number - 1) for name, port in wanted.items()}
        self.data = binding.data or Path("data", self.name)
        self.log = home / "logs" / f"{self.name}.log"
        self.pid_file = home / "pids" / f"{self.name}.json"

    @abstractmethod
    def fetch(self, say: Say, cancel: threading.Event) -> Argv:
        """Get what it needs, which may take minutes the first time; returns the start of its command."""

    @abstractmethod
    def configure(self, program: Argv, ports: Mapping[str, int], cancel: threading.Event) -> tuple[Argv, Env]:
        """Write its configuration; returns the command and the environment to start it with, in the state folder.

        ``ports``: by the names of ``self.ports``, and of several nodes those of all of them.
        """

    @abstractmethod
    def check(self, port: int) -> None:
        """Return if it is well and ready for use (MinIO: with its bucket); any exception says what is wrong."""
