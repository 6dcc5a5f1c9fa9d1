"""One service of the embedded stack: its ports, its process, and whether it is well."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from keyshift.folders import MIB, Cancelled, write_whole
from keyshift.model.errors import ServiceUnavailable
from keyshift.model.messages import decode
from keyshift.progress import Say
from keyshift.services import processes
from keyshift.services.service import HOST, Route, Service, port_of
from keyshift.waiting import wait_until

PORT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What ``keyshift status`` shows of one service, as columns."""

    service: str
    state: str  # "running", "stopped" or "unhealthy" (its process lives, but does not answer as it should)
    address: str
    pid: int | None
    up_s: int | None
    rss_mib: int | None
    log: Path


class Ports:
    """The ports of all services of the state folder ``home``; ``wanted``: those that the user has asked for, by name.

    A file in the folder has those of the last start, which are taken again at the next if they are free.
    """

    def __init__(self, home: Path, wanted: Mapping[str, int]) -> None:
        self._file, self._wanted = home / "ports.json", dict(wanted)
        self._choosing = threading.Lock()

    def saved(self) -> dict[str, int]:
        """The ports of the last start, by name; none if the file is not there or damaged."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, int] = decode(dict[str, int], self._file.read_bytes())
            return found
        return {}

    def of_clients(self, service: Service) -> int:
        """The port at which clients find the service."""
        name, default = next(iter(service.ports.items()))
        return self.saved().get(name, self._wanted.get(name, default))

    def choose(self, service: Service, say: Say) -> dict[str, int]:
        """Choose a free port for each it needs: the one asked for, else that of the last start, else the default, else
        any. If one is not the default, those behind it are shifted by as much: at that of a relay nobody listens as
        long as there is none, so it would seem to be free though another stack has it.

        Raises ServiceUnavailable if none is free.
        """
        with self._choosing:  # two services must not choose the same
            saved = self.saved()
            taken = {port for name, port in saved.items() if name not in service.ports}
            chosen: dict[str, int] = {}
            shift = 0
            for name, default in service.ports.items():
                first = self._wanted.get(name, saved.get(name, min(default + shift, 65535)))
                free = (p for p in _candidates(first, default) if p not in taken and is_free(p))
                port = next(free, None)
                if port is None:
                    raise ServiceUnavailable(f"no free port for {name} from {default} on; name one that is free")
                if port != first:
                    say(f"{service.title}: port {first} is taken, using {port}")
                chosen[name] = port
                taken.add(port)
                shift = shift or port - default
            write_whole(self._file, json.dumps(saved | chosen, indent=1))
            return chosen

    def forget(self, service: Service) -> None:
        """Forget the ports of the service: they are chosen next time as if it had never been started."""
        with self._choosing:
            others = {name: port for name, port in self.saved().items() if name not in service.ports}
            write_whole(self._file, json.dumps(others, indent=1))


class EmbeddedService:
    """``service`` as a process that outlives us, on some of ``ports``."""

    def __init__(self, service: Service, ports: Ports) -> None:
        self._service, self._ports = service, ports
        self.name, self.title, self.log, self.pid_file = service.name, service.title, service.log, service.pid_file
        self.kind, self.node = service.kind, service.node

    @property
    def process(self) -> psutil.Process | None:
        """Its process, None if none lives."""
        return processes.find(self.pid_file)

    @property
    def address(self) -> str:
        """Where clients find it, or would find it: host:port."""
        return f"{HOST}:{self._ports.of_clients(self._service)}"

    def route(self) -> Route:
        """The way to it through a relay. Raises ServiceUnavailable if it is not known by which ports."""
        if not self._service.relay_ports:
            return Route(0, (HOST, self._ports.of_clients(self._service)))
        saved = self._ports.saved()
        try:
            port, to = (saved[port_of(name, self.node.number)] for name in self._service.relay_ports)
        except KeyError:
            remedy = "stop the services with `keyshift down`, and try again"
            raise ServiceUnavailable(f"{self.title} was started by an older keyshift; {remedy}") from None
        return Route(port, (HOST, to))

    def used_ports(self) -> list[int]:
        """The ports of its last start."""
        saved = self._ports.saved()
        return [saved[name] for name in self._service.ports if name in saved]

    def reserve(self, say: Say) -> None:
        """Choose its ports before any node of the service starts, as each has to know those of all. A process of it
        that is unwell, and has them, is ended before.

        Raises ServiceUnavailable if none is free.
        """
        if unwell := self.process:
            say(f"{self.title}: process {unwell.pid} does not answer as it should, restarting it")
            processes.stop([unwell], deadline_s=5.0)  # it may not even hear the signal
        if not self.node.alone:
            self._ports.choose(self._service, say)

    def start(self, say: Say, cancel: threading.Event) -> None:
        """Start it, behind ``reserve``; returns when it is well.

        Raises ServiceUnavailable, with the last lines of its log, if it does not become well; Cancelled once ``cancel``
        is set.
        """
        service = self._service
        program = service.fetch(say, cancel)
        if cancel.is_set():
            raise Cancelled
        started = time.monotonic()
        for _ in range(PORT_ATTEMPTS if self.node.alone else 1):  # other nodes would not hear of another port
            ports = self._ports.choose(service, say)
            command, env = service.configure(program, self._ports.saved() | ports, cancel)
            processes.launch(command, env, service.home, service.log, service.pid_file)
            problem = self._problem(service.deadline_s, cancel)
            if cancel.is_set():
                raise Cancelled
            lost = self.process is None and not all(map(is_free, ports.values()))
            if not lost:  # else somebody took one between our choice and its start: another stack that starts as well
                break
            if self.node.alone:
                self._ports.forget(service)  # who has that one has those behind it, also if nobody listens there yet
        if problem:
            raise ServiceUnavailable(
                f"{service.title} did not start: {problem}. Last lines of {service.log}:\n{processes.tail(service.log)}"
            )
        say(f"{service.title}: ready at {self.address} after {time.monotonic() - started:.1f} s")

    def state(self, patience_s: float) -> tuple[str, str | None]:
        """Its state as in ``ServiceStatus``, and if it is unhealthy, which takes ``patience_s`` to tell, why."""
        if self.process is None:
            return "stopped", None
        problem = self._problem(patience_s)
        return ("unhealthy", problem) if problem else ("running", None)

    def status(self) -> ServiceStatus:
        """All that a user is shown of it; takes some seconds if it does not answer."""
        state, _ = self.state(patience_s=3.0)
        pid = up_s = rss_mib = None
        if process := self.process:
            try:
                up_s, rss_mib = round(time.time() - process.create_time()), process.memory_info().rss // MIB
                pid = process.pid
            except psutil.NoSuchProcess:
                state, up_s = "stopped", None
        return ServiceStatus(self.name, state, self.address, pid, up_s, rss_mib, self.log)

    def _problem(self, deadline_s: float, cancel: threading.Event | None = None) -> str | None:
        """Wait until the service is well: None. Else what is wrong: it died, or was not well within the deadline."""
        port = self._ports.of_clients(self._service)
        problem: str | None = None

        def decided() -> bool:
            nonlocal problem
            process = self.process
            problem = _problem_now(self._service, process, port)
            return problem is None or process is None or (cancel is not None and cancel.is_set())

        return problem if wait_until(decided, deadline_s, 0.2) else f"{problem}, for {deadline_s:.0f} s"


def _problem_now(service: Service, process: psutil.Process | None, port: int) -> str | None:
    if process is None:
        return "its process ended"
    if not processes.listens(process, port):  # a stranger on that port could answer in its place
        return f"process {process.pid} does not listen on port {port}"
    try:
        service.check(port)
    except Exception as error:  # whatever the client raises means the same: not well, and this is why
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _candidates(first: int, default: int) -> Iterator[int]:
    yield first
    yield from range(default, min(default + 1000, 65536), 10)


def is_free(port: int) -> bool:
    """Whether nobody listens on the port and we may."""
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((HOST, port)) == 0:  # a listener on all addresses does not everywhere forbid to bind on one
            return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections that linger do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
